"""Tables for other programs: a row for each sample and attack, as CSV, Parquet and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO

from besiege.bench.evaluations import labelled_rows
from besiege.bench.exports import EXPORTS, Export
from besiege.bench.parquet import copy
from besiege.metrics.rows import Column, Rows


def table_of(wanted: Export) -> Rows:
    """The rows of all evaluations, without their places in the run folder."""
    return labelled_rows(wanted.evaluations).without("record", "row")


@EXPORTS.register("csv")
def to_csv(wanted: Export, file: BinaryIO) -> None:
    """Comma-separated values with a header; numbers read back exactly."""
    copy(table_of(wanted), file, "FORMAT csv, HEADER")


@EXPORTS.register("parquet")
def to_parquet(wanted: Export, file: BinaryIO) -> None:
    """A Parquet file, with the provenance as JSON under the key ``besiege`` of its metadata."""
    about = json.dumps(wanted.provenance).replace("'", "''")
    options = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{besiege: '{about}'}}"
    copy(table_of(wanted), file, options)


@EXPORTS.register("json")
def to_json(wanted: Export, file: BinaryIO) -> None:
    """A list of objects; JSON has no NaN and no infinity, so they are null."""
    rows = table_of(wanted)
    copy(rows, file, "FORMAT json, ARRAY true", ", ".join(_finite(rows)))


def _finite(rows: Mapping[str, Column]) -> list[str]:
    """The columns in SQL, with numbers that are not finite as NULL."""
    names = {name: '"' + name.replace('"', '""') + '"' for name in rows}
    return [
        f"CASE WHEN isfinite({quoted}) THEN {quoted} END AS {quoted}"
        if rows[name].dtype.kind == "f"
        else quoted
        for name, quoted in names.items()
    ]
