"""Data-frame libraries take rows and exported files: pandas 2 and 3, polars, pyarrow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import besiege

pytestmark = [
    pytest.mark.peer,
    # Their own calls into numpy warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]


ADDED = 4
"""Columns of a file before those of the rows: model, data, threat, evaluation."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    folder = tmp_path_factory.mktemp("frames") / "run"
    return besiege.evaluate(
        "zoo:digits-natural",
        "digits",
        threat="l2",
        attacks="fmn(steps=5), ddn(steps=10)",
        count=20,
        out=folder,
    )


def check(frame: Any, found: besiege.Evaluation, more: int = 0) -> None:
    """Whether a frame has the columns and values of the rows."""
    rows = found.rows if more == 0 else found.rows.without("record", "row")
    assert frame.shape == (rows.count, len(rows) + more) and rows.count == 40
    for name, column in rows.items():
        mine = np.asarray(frame[name])
        if column.dtype.kind == "f":
            assert np.array_equal(mine.astype(column.dtype), column, equal_nan=True), name
        else:
            assert mine.tolist() == column.tolist(), name


def test_pandas(found: besiege.Evaluation) -> None:
    pandas = pytest.importorskip("pandas")
    for frame in (pandas.DataFrame(found.rows), found.rows.to_pandas()):
        check(frame, found)
        assert frame["success"].dtype == bool and frame["sample"].dtype == np.int64
        assert frame.groupby("attack")["success"].sum().sum() == found.rows["success"].sum()
    assert len(pandas.DataFrame(found.by_sample)) == 20


def test_polars(found: besiege.Evaluation) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(found.rows)
    check(frame, found)
    assert frame.schema["attack"] == polars.String and frame.schema["success"] == polars.Boolean


def test_arrow(found: besiege.Evaluation) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    for table in (found.rows.to_arrow(), pyarrow.table(found.rows)):
        check(table, found)
        assert pyarrow.types.is_string(table.schema.field("attack").type)


def test_files_in_pandas(found: besiege.Evaluation, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    check(
        pandas.read_csv(found.export(tmp_path / "a.csv"), float_precision="round_trip"),
        found,
        ADDED,
    )
    frame = pandas.read_json(found.export(tmp_path / "a.json"), precise_float=True)
    assert frame["sample"].tolist() == found.rows["sample"].tolist()
    pytest.importorskip("pyarrow")
    check(pandas.read_parquet(found.export(tmp_path / "a.parquet")), found, ADDED)


def test_files_in_polars_and_arrow(found: besiege.Evaluation, tmp_path: Path) -> None:
    polars, parquet = pytest.importorskip("polars"), pytest.importorskip("pyarrow.parquet")
    path = found.export(tmp_path / "a.parquet")
    check(polars.read_parquet(path), found, ADDED)
    about = json.loads(parquet.read_schema(path).metadata[b"besiege"])
    assert about["evaluations"][0]["threat"]["text"] == "l2"
