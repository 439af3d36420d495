"""A run folder that an earlier version wrote: found under the same keys, with the same figures.

``written_before`` was written by commit 67bcbda: the suite `standard`, a decision run, a transfer
run and a search on a defended model. Of its long figures ``figures.json`` holds the digest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import besiege
from besiege.bench.overview import status
from besiege.bench.results import summarise
from besiege.bench.run import read_run
from besiege.bench.store import Store

BEFORE = Path(__file__).parent / "written_before"
NATURAL = "zoo:digits-natural"
ASKED: list[tuple[str, dict[str, Any]]] = [
    (NATURAL, {"threat": "linf:0.1", "suite": "standard", "count": 12, "shard": 6}),
    (
        NATURAL,
        {
            "threat": "l2:0.5",
            "access": "decision",
            "attacks": "boundary(steps=200), hopskipjump(steps=3)",
            "queries": 300,
            "count": 8,
        },
    ),
    (NATURAL, {"threat": "linf:0.15", "substitute": "zoo:digits-pgd-at", "count": 12}),
    (f"{NATURAL}+bits(depth=3)", {"threat": "l2", "attacks": "minimal(pgd(steps=5))", "count": 8}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE, tmp_path / "run"))


def test_its_keys_are_computed_again() -> None:
    run = read_run(Store(BEFORE))
    assert run is not None and len(run.plans) == len(ASKED)
    keys = {task.key for plan in run.plans for task in plan.tasks()}
    assert keys == Store(BEFORE).present()


def test_its_figures_are_the_same(folder: Path) -> None:
    told = json.loads((BEFORE / "figures.json").read_text())
    found = summarise(folder).plain()["evaluations"]
    assert all(one.complete for one in status(folder))
    assert {one["name"] for one in found} == set(told)
    for one in found:
        for name, figure in told[one["name"]].items():
            if name in ("threat", "warnings"):
                assert _without_sentences(one[name]) == _without_sentences(figure), one["name"]
                continue
            if name == "attacks":  # later fields; nothing had a guard, or images made elsewhere
                assert not any(attack.pop("guard") for attack in one[name])
                assert not any(attack.pop("given") for attack in one[name])
                assert {attack.pop("tried") for attack in one[name]} == {None}
                if one["mode"] == "suite":  # once a number, of attacks that saw other images
                    assert {attack.pop("alone") for attack in one[name]} == {None}
                    figure = [{k: v for k, v in old.items() if k != "alone"} for old in figure]
            if name == "cascade" and one[name]:  # a later field; nothing was proved
                assert {attack.pop("spared") for attack in one[name]} == {0}
            if name == "model":  # a later field, of benchmarks
                assert one[name].pop("declared") is None and one[name].pop("pooled") == 1
                one[name].pop("surrogates")
                assert not one[name].pop("rounds")
                assert one[name].pop("passes") == 1
                # Nothing could reject images.
                assert not one[name].pop("rejects") and one[name].pop("nominal_rejections") is None
                assert {one[name].pop(f"calibrated_{what}") for what in ("on", "here")} == {0}
            text = json.dumps(one[name], sort_keys=True)
            long = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
            assert figure in (json.loads(text), long), f"{one['name']}: {name}"


def _without_sentences(figure: Any) -> Any:
    """A figure without the words that explain it, which later releases may improve."""
    if isinstance(figure, list):  # W24, on how precise a figure is, was a warning then
        levels = {"W24": "note"}
        return [(one["id"], levels.get(one["id"], one["level"])) for one in figure]
    return {name: value for name, value in figure.items() if name != "words"}


@pytest.mark.parametrize(("model", "given"), ASKED, ids=["suite", "decision", "transfer", "search"])
def test_it_is_extended_by_nothing(folder: Path, model: str, given: dict[str, Any]) -> None:
    written = {path: path.stat().st_mtime_ns for path in (folder / "records").rglob("*")}
    found = besiege.evaluate(model, "digits", out=folder, **given)
    assert found.complete
    after = {path: path.stat().st_mtime_ns for path in (folder / "records").rglob("*")}
    if model == NATURAL:
        assert after == written
        return
    # The source of a layer was part of its digest, so what is behind layers is measured again.
    assert after.items() > written.items()
