"""Tables for other programs as CSV, Parquet and JSON: a row for each sample and attack.

Of the board of a run, a row for each cell, model and attack.

DuckDB takes NaN for a missing value: an empty cell in CSV, null in Parquet and JSON. Data-frame
libraries read these as NaN again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO

from besiege.bench.evaluations import labelled_rows
from besiege.bench.exports import EXPORTS, Export
from besiege.bench.exports.board import board_rows
from besiege.bench.parquet import copy
from besiege.metrics.rows import Column, Rows


def table_of(wanted: Export) -> Rows:
    """The rows of all evaluations, without their places in the run folder; or of the board.

    Or of the table that is wanted in their place.
    """
    if wanted.table is not None:
        return wanted.table.numbers
    if wanted.board is not None:
        return board_rows(wanted.board)
    return labelled_rows(wanted.evaluations).without("record", "row")


@EXPORTS.register("csv")
def to_csv(wanted: Export, file: BinaryIO) -> None:
    """Comma-separated values with a header; numbers read back exactly."""
    rows = table_of(wanted)
    # As doubles, because readers take all numbers for doubles: a short float32 is another double.
    shown = _selected(rows, "CAST({0} AS DOUBLE) AS {0}")
    copy(rows, file, "FORMAT csv, HEADER", shown)


@EXPORTS.register("parquet")
def to_parquet(wanted: Export, file: BinaryIO) -> None:
    """A Parquet file, with the provenance as JSON under the key ``besiege`` of its metadata."""
    about = json.dumps(wanted.provenance).replace("'", "''")
    options = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{besiege: '{about}'}}"
    copy(table_of(wanted), file, options)


@EXPORTS.register("json")
def to_json(wanted: Export, file: BinaryIO) -> None:
    """A list of objects; JSON has no infinity either, so that is null, too."""
    rows = table_of(wanted)
    shown = _selected(rows, "CASE WHEN isfinite({0}) THEN {0} END AS {0}")
    copy(rows, file, "FORMAT json, ARRAY true", shown)


def _selected(rows: Mapping[str, Column], floats: str) -> str:
    """All columns in SQL; `floats` says how columns of floating-point numbers are written."""
    names = {name: '"' + name.replace('"', '""') + '"' for name in rows}
    return ", ".join(
        floats.format(quoted) if rows[name].dtype.kind == "f" else quoted
        for name, quoted in names.items()
    )
