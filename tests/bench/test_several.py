"""Several models and threats in one call: one folder, a sequence of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import besiege
from besiege.bench.work_estimate import Event
from besiege.core.errors import BesiegeError, InputError

BOTH = ["zoo:digits-natural", "zoo:digits-pgd-at"]
WORDS: dict[str, Any] = {"attacks": "pgd(steps=3)", "curve": False, "count": 20}


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_each_result_is_that_of_its_own_evaluation(tmp_path: Path) -> None:
    threats = ["linf:0.15", "l2:1"]
    found = besiege.evaluate(BOTH, "digits", threat=threats, out=tmp_path, **WORDS)
    assert len(found) == 4 and found.complete and found.folder == tmp_path
    assert found.names[1] == "zoo:digits-natural against l2:1"
    for model in BOTH:
        for threat in threats:
            alone = besiege.evaluate(model, "digits", threat=threat, **WORDS)
            mine = found[f"{model} against {threat}"]
            assert mine.robust == alone.robust and mine.figures.name == alone.figures.name
    assert found.page().stat().st_size > 10_000
    with pytest.raises(InputError, match="did you mean"):
        found["zoo:digits-pgdat against l2:1"]


def test_a_temporary_folder_stays_as_long_as_one_result_does() -> None:
    found = besiege.evaluate(BOTH, "digits", threat="linf:0.15", **WORDS)
    folder, last = found.folder, found[1]
    del found
    assert last.rows.count == 20 and folder.exists()
    del last
    assert not folder.exists()


def test_wrong_input_is_found_before_any_work(tmp_path: Path) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        ([BOTH[0], "zoo:digits-pgdat"], "linf:0.15", "did you mean"),
        (BOTH, ["linf:0.15", "linf:x"], "linf:x"),
        ([BOTH[0], BOTH[0]], "linf:0.15", "listed twice"),
        ([], "linf:0.15", "no model is listed"),
        (BOTH, [], "no threat is listed"),
        ([net(), net()], "linf:0.15", "two models are called 'Sequential'"),
    ]
    for models, threats, said in wrong:
        with pytest.raises(BesiegeError, match=said):
            besiege.evaluate(models, "digits", threat=threats, out=tmp_path / "run", **WORDS)
        assert not (tmp_path / "run").exists()


def test_one_bar_covers_them_all() -> None:
    events: list[Event] = []
    besiege.evaluate(BOTH, "digits", threat="linf:0.15", watch=events.append, **WORDS)
    assert [event.title for event in events][:: len(events) - 1] == [
        "1 of 2: zoo:digits-natural against linf:0.15",
        "2 of 2: zoo:digits-pgd-at against linf:0.15",
    ]
    shares = [event.done / event.total for event in events]
    assert shares[-1] == pytest.approx(1) and max(shares[: len(shares) // 2]) < 0.7
