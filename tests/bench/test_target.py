"""One target class for all images: by number or name, in evaluations and in single attacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import besiege
from besiege.bench.command import command_of
from besiege.bench.request import requested, resolve
from besiege.bench.run import read_run
from besiege.bench.spec import Request
from besiege.bench.store import Store
from besiege.bench.summaries import comparison, summary_of
from besiege.bench.target import goal_of
from besiege.bench.words import threat_in_words
from besiege.core.errors import BesiegeError, InputError, ThreatError
from besiege.core.threat import Goal, Threat
from besiege.data.dataset import Data

NATURAL = "zoo:digits-natural"
TERMS: dict[str, Any] = {"threat": "linf:0.15", "attacks": "pgd(steps=10)", "curve": False}


def test_images_of_the_class_are_left_out_and_all_others_must_become_it(tmp_path: Path) -> None:
    found = besiege.evaluate(NATURAL, "digits", target_class=3, count=60, out=tmp_path, **TERMS)
    chosen = besiege.data.load("digits", count=60)
    others = set(chosen.ids[chosen.labels != 3].tolist())
    rows = found.rows
    assert set(rows["sample"].tolist()) == others and len(others) < 60
    assert 0 < int(rows["success"].sum()) < len(others)
    assert set(rows["prediction"][rows["success"]].tolist()) == {3}
    assert not (rows["success"] & (rows["prediction"] != 3)).any()
    assert set(rows["target"].tolist()) == {3}
    run = read_run(Store(tmp_path))
    assert run is not None and run.plans[0].threat == "linf:0.15 targeted:class=3"
    figures = found.figures
    assert figures.threat.goal == "targeted:class=3" and "left out" in figures.threat.words
    assert (figures.data.count, figures.data.total, figures.data.seed) == (len(others), 397, 0)


def test_number_name_and_threat_say_the_same(tmp_path: Path) -> None:
    loaded = besiege.data.load("digits", count=40)
    named = Data(
        *("mine", "all", loaded.images, loaded.labels, loaded.ids, 10),
        ("zero", "one", "two", "Three", "four", "five", "six", "seven", "eight", "nine"),
    )
    wanted = besiege.evaluate(NATURAL, named, target_class=3, out=tmp_path, **TERMS)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").rglob("*")}
    for asked in (
        {"target_class": "Three"},
        {"target_class": "three"},
        {"target_class": np.int64(3)},
        {"threat": "linf:0.15 targeted:class=3"},
        {"threat": "linf:0.15 targeted:class=3", "target_class": 3},
    ):
        found = besiege.evaluate(NATURAL, named, out=tmp_path, **{**TERMS, **asked})
        assert found.robust == wanted.robust and found.figures.name == wanted.figures.name
    assert written == {p: p.stat().st_mtime_ns for p in (tmp_path / "records").rglob("*")}
    assert "class 3 (Three)" in wanted.figures.threat.words


def test_a_decision_attack_starts_from_images_of_the_class() -> None:
    found = besiege.evaluate(
        *(NATURAL, "digits"),
        threat="l2",
        access="decision",
        attacks="hopskipjump(steps=3)",
        target_class=3,
        count=20,
    )
    assert found.rows["success"].all() and not found.rows["no_start"].any()
    resolved = resolve(
        *requested(
            NATURAL, "digits", threat="l2 decision", attacks="hopskipjump", target_class=3, count=60
        )
    )
    assert resolved.knowledge.starts is not None
    assert 3 in resolved.knowledge.starts.labels and 3 not in resolved.data.labels


def test_evaluations_with_different_classes_are_not_compared(tmp_path: Path) -> None:
    data = besiege.data.load("digits", count=30)
    data = data.take((data.labels != 3) & (data.labels != 4))  # the same images for both classes
    for asked in ("linf targeted:class=3", "l2 targeted:class=3", "l2 targeted:class=4"):
        besiege.evaluate(NATURAL, data, threat=asked, attacks="minimal(fgsm)", out=tmp_path)
    store = Store(tmp_path)
    run = read_run(store)
    assert run is not None and len({plan.shards for plan in run.plans}) == 1
    found = [summary_of(store, plan) for plan in run.plans]
    beside = [[one.threat for one in comparison(mine, found, {}).beside] for mine in found]
    assert beside == [["l2 targeted:class=3"], ["linf targeted:class=3"], []]


def test_all_images_are_used_but_those_of_the_class() -> None:
    found = besiege.evaluate(NATURAL, "digits", target_class=0, **{**TERMS, "attacks": "fgsm"})
    data = besiege.data.load("digits")
    assert found.figures.data.count == int((data.labels != 0).sum())
    assert found.figures.data.seed is None, "no image was chosen by a seed"


def test_single_attacks_read_the_class_in_the_threat() -> None:
    data = besiege.data.load("digits", count=30)
    data = data.take(data.labels != 3)
    given: tuple[Any, ...] = ("pgd", NATURAL, data.images, data.labels)
    one = besiege.attack(*given, threat="linf:0.2 targeted:class=3")
    other = besiege.attack(*given, threat="linf:0.2", targets=torch.full_like(data.labels, 3))
    assert torch.equal(one.images, other.images) and torch.equal(one.success, other.success)
    with pytest.raises(InputError, match="give one"):
        besiege.attack(*given, threat="linf:0.2 targeted:class=3", targets=(data.labels + 1) % 10)
    with pytest.raises(InputError, match="label itself"):
        besiege.attack(*given, threat=f"linf:0.2 targeted:class={int(data.labels[0])}")


WRONG: dict[str, tuple[dict[str, Any], type[BesiegeError], str]] = {
    "unknown name": ({"target_class": "seven"}, ThreatError, "no class of digits is called"),
    "no class": ({"target_class": 10}, ThreatError, "digits has 10 classes, 0 to 9"),
    "negative": ({"target_class": -1}, BesiegeError, "called '-1'"),
    "two goals": ({"target_class": 3, "goal": "targeted:random"}, InputError, "give one"),
    "other goal": (
        {"target_class": 3, "threat": "linf:0.1 targeted:second"},
        ThreatError,
        "disagree",
    ),
    "other class": (
        {"target_class": 3, "threat": "linf:0.1 targeted:class=4"},
        ThreatError,
        "disagree",
    ),
    "kind": ({"target_class": 3.5}, InputError, "number or the name"),
    "text": ({"threat": "linf:0.1 targeted:class=cat"}, ThreatError, "write its number"),
    "near": ({"threat": "linf:0.1 targeted:clas=3"}, ThreatError, "targeted:class=3"),
    "attack": ({"target_class": 3, "attacks": "rays"}, ThreatError, "not targeted:class=3"),
    "given": ({"threat": "linf:0.1 targeted:given"}, ThreatError, "targeted:class=3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str) -> None:
    given, error, says = WRONG[case]
    with pytest.raises(error, match=says):
        besiege.evaluate(NATURAL, "digits", **{**TERMS, "count": 5, **given})


def test_images_of_one_class_only_are_refused() -> None:
    data = besiege.data.load("digits", count=60)
    data = data.take(data.labels == 3)
    with pytest.raises(InputError, match="of the target class 3"):
        besiege.evaluate(NATURAL, data, target_class=3, **TERMS)


def test_the_threat_reads_back() -> None:
    threat = Threat.parse("l2:0.5 targeted:class=12 score")
    assert (threat.goal, threat.target, threat.aim) == (Goal.GIVEN, 12, "targeted:class=12")
    assert str(threat) == "l2:0.5 targeted:class=12 score" and Threat.parse(str(threat)) == threat
    assert threat != Threat.parse("l2:0.5 targeted:class=11 score")
    assert Threat("l2", 0.5, target=1).goal is Goal.GIVEN  # type: ignore[arg-type]  # read
    with pytest.raises(ThreatError, match="give one"):
        Threat.parse("l2").__class__(threat.norm, goal=Goal.RANDOM, target=1)
    said = threat_in_words(threat, (0.0, 1.0), None, (1, 2, 2))
    assert "Only class 12 counts as a success; its own images are left out." in said


def test_the_command_names_the_class() -> None:
    request = Request(
        model="m", data="d", threat="l2:1", goal=goal_of(None, "polar bear"), examine="short"
    )
    assert command_of(request).endswith("--threat l2:1 --target-class 'polar bear'")
    call = command_of(request.model_copy(update={"textual": False}))
    assert call == "besiege.evaluate(<m>, <d>, threat='l2:1', target_class='polar bear')"
