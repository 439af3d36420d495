from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest

from besiege.core.errors import InputError
from besiege.metrics.rows import Rows, places


def test_ids_are_found_in_any_order_and_missing_ones_are_said() -> None:
    ids = np.array([7, 3, 9, 3, 5])
    wanted = np.array([3, 10, 7, 4, 9, 0, 5])
    assert places(ids, wanted).tolist() == [1, -1, 0, -1, 2, -1, 4]
    assert places(ids, wanted[:0]).tolist() == []
    assert places(ids[:0], wanted).tolist() == [-1] * 7


@pytest.fixture
def rows() -> Rows:
    return Rows({"sample": np.arange(3), "l2": np.array([0.1, np.nan, np.inf])}).having(
        attack="pgd", success=np.array([True, False, True])
    )


def test_a_table_is_a_dictionary_of_columns(rows: Rows) -> None:
    # What data-frame libraries make of it depends on this: of another mapping pandas makes a
    # table of the names (tests/peers/test_frames.py has the libraries themselves).
    assert issubclass(Rows, dict) and list(rows) == ["sample", "l2", "attack", "success"]
    assert dict(rows)["attack"].tolist() == ["pgd"] * 3 and rows.count == 3 and len(rows) == 4
    assert rows["attack"].dtype == object, "a text is stored once for all rows"


def test_an_unknown_column_has_a_near_match(rows: Rows) -> None:
    with pytest.raises(KeyError, match="no column 'sucess': did you mean 'success'"):
        rows["sucess"]
    assert rows.get("sucess") is None and "sucess" not in rows


def test_a_table_cannot_be_changed(rows: Rows) -> None:
    other = {"l2": np.zeros(3)}
    changes: dict[str, tuple[Any, ...]] = {
        "__setitem__": ("l2", other["l2"]),
        "__delitem__": ("l2",),
        "__ior__": (other,),
        "update": (other,),
        "setdefault": ("new", other["l2"]),
        "pop": ("l2",),
        "popitem": (),
        "clear": (),
    }
    for method, given in changes.items():
        with pytest.raises(TypeError, match=r"cannot be changed: rows\.having"):
            getattr(rows, method)(*given)
    assert list(rows) == ["sample", "l2", "attack", "success"]


def test_copies_are_tables(rows: Rows) -> None:
    for other in (copy.copy(rows), copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert isinstance(other, Rows) and other.count == 3 and list(other) == list(rows)
        assert other["success"].tolist() == rows["success"].tolist()


def test_some_columns_are_left_out(rows: Rows) -> None:
    assert list(rows.without("l2", "absent")) == ["sample", "attack", "success"]


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_an_absent_package_is_said_with_its_command(
    rows: Rows, method: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"not installed: pip install {package}"):
        getattr(rows, method)()
