"""What must never make a figure wrong: failures, chains, keys, curves, damage, other boxes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from tests.children import from_a_child
from tests.conftest import SMALL_RUN
from torch import nn

import besiege
from besiege.attacks.ascent import pgd
from besiege.attacks.attack import Attack, parse, spelled
from besiege.attacks.pieces import Given
from besiege.bench import index
from besiege.bench.overview import open_run, status
from besiege.bench.plan import Plan
from besiege.bench.request import CURVE_SAMPLES
from besiege.bench.results import summarise
from besiege.bench.single import evaluate
from besiege.bench.store import Store
from besiege.core.errors import AttackError, InputError, ThreatError
from besiege.core.siege import Siege
from besiege.data.dataset import Data

NATURAL = "zoo:digits-natural"


class Moody(nn.Module):
    """Fails when asked for gradients, as often as the environment says: no part of its identity."""

    def __init__(self) -> None:
        super().__init__()
        self.net = besiege.models.load(NATURAL).module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = int(os.environ.get("MOODY", "0"))
        if left and torch.is_grad_enabled():
            os.environ["MOODY"] = str(left - 1)
            raise RuntimeError("not in the mood")
        return self.net(x)  # type: ignore[no-any-return]


def test_shards_an_attack_failed_on_are_not_robust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOODY", "4")  # once before the attacks, when gradients are probed
    found = evaluate(
        Moody(), "digits", threat="linf:0.3", attacks="pgd(steps=5), fgsm", count=40, shard=4,
        curve=False, out=tmp_path,
    )  # fmt: skip
    assert not found.complete
    (failed,) = {f.seen.split("'")[1] for f in found.warnings if f.id == "FAILED"} - {"fgsm"}
    assert failed == "pgd(steps=5)"
    tried = int((found.rows["attack"] == "pgd(steps=5)").sum())
    assert tried == 28, "three of ten shards failed"
    assert found.by_attack["pgd(steps=5)"].count == tried
    assert found.robust is not None and found.robust.count == tried
    (curve,) = found.figures.steps_curve
    assert curve.count == tried
    assert not any(f.id == "W04" for f in found.warnings)


def test_a_chain_waits_for_the_verdicts_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["pgd(steps=5)", "pgd(steps=5, loss=margin)"]
    terms: dict[str, Any] = {
        "threat": "linf:0.1", "suite": texts, "count": 20, "shard": 5, "curve": False,
    }  # fmt: skip
    model = Moody()
    monkeypatch.setenv("MOODY", "3")  # once before the attacks, when gradients are probed
    first = evaluate(model, "digits", out=tmp_path / "run", **terms)
    assert not first.complete
    tried = first.rows["attack"] == texts[1]
    assert 0 < int(tried.sum()) <= 10, "only where the first attack was judged"
    assert first.robust is not None and first.robust.count == 10
    again = evaluate(model, "digits", out=tmp_path / "run", **terms)
    clean = evaluate(model, "digits", out=tmp_path / "clean", **terms)
    assert again.complete and clean.complete
    one, other = Store(tmp_path / "run"), Store(tmp_path / "clean")
    assert one.present() == other.present()
    for key in one.present():
        rows, same = one.rows([key]), other.rows([key])
        assert rows["sample"].tolist() == same["sample"].tolist()
    assert again.robust == clean.robust


@dataclass(frozen=True)
class Odd(Attack):
    """An attack of a user's, with a function and an array among its parameters."""

    how: Any = None

    def run(self, siege: Siege) -> None:
        siege.offer(siege.ball.center)


def test_parameters_are_told_by_content_never_by_address() -> None:
    def one(x: float) -> float:
        return x

    def two(x: float) -> float:
        return 2 * x

    texts = [json.dumps(spelled(Odd(how))) for how in (one, two, np.ones(5000), np.zeros(5000))]
    assert len(set(texts)) == 4 and not any("0x" in text for text in texts)
    near, far = torch.zeros(40, 1, 8, 8), torch.zeros(40, 1, 8, 8)
    far[20, 0, 4, 4] = 1.0
    starts = [json.dumps(spelled(replace(pgd, start=Given(points)))) for points in (near, far)]
    assert starts[0] != starts[1]
    with pytest.raises(AttackError, match="finite"):
        spelled(Odd(float("inf")))


def test_what_an_attack_uses_of_its_file_is_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    code = """
from dataclasses import dataclass
from besiege.attacks import Attack
import neighbour
SCALE = {scale}
def helper(x):
    return x * SCALE
@dataclass(frozen=True)
class Mine(Attack):
    def run(self, siege):
        siege.offer(siege.ball.project(helper(siege.ball.center) + neighbour.SHIFT))
"""
    keys = []
    for scale, shift in ((0, 0.0), (1, 0.0), (1, 0.1)):
        (tmp_path / "neighbour.py").write_text(f"SHIFT = {shift}\n")
        file.write_text(code.format(scale=scale))
        keys.append(from_a_child(lambda: json.dumps(spelled(parse(f"{file}:Mine"))), ["neighbour"]))
    assert len(set(keys)) == 3


def test_a_verdict_is_on_what_lies_there_now(tmp_path: Path, evaluated: Path) -> None:
    shutil.copytree(evaluated, tmp_path / "one")
    other = evaluate(NATURAL, "digits", out=evaluated, **SMALL_RUN)
    craft = next(
        p.parent
        for p in (tmp_path / "one").glob("records/*/record.json")
        if json.loads(p.read_text())["identity"]["kind"] == "craft"
    )
    # The same task, done again with another result, as another machine might.
    store = Store(tmp_path / "one")
    record = store.read(craft.name)
    assert record is not None
    rows = {n: c for n, c in store.rows([craft.name]).items() if n not in ("record", "row")}
    rows["claimed"] = np.zeros_like(rows["claimed"])
    shutil.rmtree(craft)
    nothing: dict[str, Any] = {"images": np.zeros((0, 1, 8, 8), np.float32)}
    nothing["rows"] = np.zeros(0, np.int64)
    store.commit(record, rows, {"images.safetensors": save(nothing)})
    summary = summarise(tmp_path / "one")
    assert not summary.complete
    assert any("no longer there" in w.seen for w in summary.evaluations[0].warnings)
    mended = evaluate(NATURAL, "digits", out=tmp_path / "one", **SMALL_RUN)
    assert mended.complete
    assert mended.robust is not None and other.robust is not None
    assert mended.robust.value > other.robust.value, "nothing was found this time"


def test_the_curve_knows_what_the_attacks_found(tmp_path: Path) -> None:
    found = evaluate(
        NATURAL, "digits", threat="linf:0.15", attacks="fgsm, pgd(steps=10)", count=80, out=tmp_path
    )
    curve = found.figures.eps_curve
    assert curve is not None
    at = np.array(curve.value)[np.searchsorted(curve.x, 0.15 * (1 + 1e-6), "right") - 1]
    assert found.robust is not None and at <= found.robust.value


def test_searches_for_the_smallest_change_are_taken_together() -> None:
    pixels = besiege.data.load("digits", count=20)
    module = besiege.models.load(NATURAL).module
    wide = besiege.Classifier(module, mean=0.0, std=255.0, box=(0.0, 255.0))
    found = evaluate(wide, pixels, threat="linf", attacks=["minimal(fgsm, scan=2, bisections=0)",
                     "minimal(pgd(steps=5))"])  # fmt: skip
    curve = found.figures.eps_curve
    assert curve is not None
    assert curve.unbroken == 0 and curve.value[-1] == 0
    best = np.full(20, np.inf)
    for text in found.by_attack:
        mine = found.rows.where(found.rows["attack"] == text)
        best = np.minimum(best, np.where(mine["success"], mine["linf"], np.inf))
    assert curve.x[-1] == pytest.approx(best.max()) and best.max() > 2


class Wide(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x.flatten(1)[:, :10]


def test_different_things_of_one_name_stay_apart(tmp_path: Path) -> None:
    terms: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "curve": False}
    data = besiege.data.load("digits", count=10)
    for scale in (1.0, -1.0):
        evaluate(Wide(scale), data, out=tmp_path / "models", **terms)
    (found,) = summarise(tmp_path / "models").evaluations
    assert len(found.history) == 1 and found.history[0].model != found.model.digest
    for shift in (0.0, 0.5):
        pair = (data.images * (1 - shift), data.labels)
        evaluate(Wide(1.0), pair, out=tmp_path / "data", **terms)
    both = summarise(tmp_path / "data").evaluations
    assert len(both) == 2 and "besiege.evaluate(<Wide>" in both[0].command


def test_few_attacks_later_do_not_hide_the_strong_ones(tmp_path: Path) -> None:
    terms: dict[str, Any] = {"threat": "linf:0.1", "count": 30, "curve": False, "out": tmp_path}
    evaluate(NATURAL, "digits", attacks="pgd(steps=10)", **terms)
    evaluate(NATURAL, "digits", attacks="fgsm", **terms)
    attacks = [[a.text for a in e.attacks] for e in summarise(tmp_path).evaluations]
    assert attacks == [["pgd(steps=10)"], ["fgsm"]]


def test_rules_know_query_budgets(tmp_path: Path) -> None:
    for eps, queries in (("0.1", None), ("0.12", 2)):
        found = evaluate(
            NATURAL, "digits", threat=f"linf:{eps}", attacks="pgd(steps=10)", queries=queries,
            count=40, out=tmp_path,
        )  # fmt: skip
    assert not {f.id for f in found.warnings} & {"W02", "W03", "W05", "W07"}
    assert found.complete and found.figures.eps_curve is None
    assert found._plan.no_curve is not None and "queries" in found._plan.no_curve


def test_a_combination_is_not_one_step() -> None:
    found = evaluate(
        NATURAL, "digits", threat="linf:0.1", curve=False, count=60,
        attacks="cascade(fgsm, each_target(pgd(steps=10, loss=margin))), pgd(steps=10)",
    )  # fmt: skip
    assert "W04" not in {f.id for f in found.warnings}


def plan_of(**changes: Any) -> Plan:
    """A plan with something changed, and all its keys."""
    terms: dict[str, Any] = {
        "threat": "linf:0.1",
        "attacks": "pgd(steps=2)",
        "count": 12,
        **changes,
    }
    model, data, threat = (terms.pop(n, d) for n, d in _WHERE.items())
    found: besiege.Evaluation = evaluate(model, data, threat=threat, **terms)
    return found._plan


_WHERE: dict[str, Any] = {"model": NATURAL, "data": "digits", "threat": None}


@cache
def usual_keys() -> dict[str, set[str]]:
    return keys_of(plan_of())


def keys_of(plan: Plan) -> dict[str, set[str]]:
    keys: dict[str, set[str]] = {name: set() for name in ("clean", "craft", "judge", "curve")}
    for stage in plan.stages():
        for task in (task for tasks in stage.parts for task in tasks):
            keys["curve" if stage.curve else task.kind].add(task.key)
    return keys


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, {"clean", "craft", "judge", "curve"}),
        ({"batch": 8}, {"clean", "craft", "judge", "curve"}),
        ({"threat": "linf:1/10"}, {"clean", "craft", "judge", "curve"}),
        ({"threat": "linf:0.2"}, {"clean", "curve"}),
        ({"threat": "linf:0.1", "goal": "targeted:random"}, {"clean"}),
        ({"attacks": "pgd(steps=3)"}, {"clean"}),
        ({"attacks": "pgd(steps=2, loss=margin)"}, {"clean"}),
        ({"seed": 1}, set()),
        ({"queries": 50}, {"clean"}),
        ({"model": "zoo:digits-pgd-at"}, set()),
        ({"count": 11}, set()),
        ({"shard": 6}, set()),
    ],
)  # fmt: skip
def test_keys_change_with_what_decides_and_with_nothing_else(
    change: dict[str, Any], same: set[str]
) -> None:
    before, after = usual_keys(), keys_of(plan_of(**change))
    for kind in before:
        if kind in same:
            assert before[kind] == after[kind], kind
        else:
            assert not before[kind] & after[kind], kind


def test_the_curve_is_short_and_by_the_strongest_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CURVE_SAMPLES == 200
    monkeypatch.setattr("besiege.bench.planning.CURVE_SAMPLES", 12)
    plan = plan_of(attacks="fgsm, pgd(steps=30)", count=60)
    assert plan.curve is not None
    assert plan.curve.attack.text == "minimal(pgd(steps=20), tolerance=0.01)"
    assert sum(shard.count for shard in plan.curve.shards) == 12
    whole = plan_of(attacks="pgd(steps=30)", count=16, curve="full")
    assert whole.curve is not None and whole.curve.attack.text == "minimal(pgd(steps=30))"


def test_a_run_that_awaits_its_curve_is_not_complete(tmp_path: Path) -> None:
    terms: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "count": 12, "out": tmp_path}

    def stop(event: Any) -> None:
        if "minimal" in event.text or event.done >= 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(NATURAL, "digits", watch=stop, **terms)
    assert not status(tmp_path)[0].complete and not summarise(tmp_path).complete
    assert evaluate(NATURAL, "digits", **terms).complete
    assert status(tmp_path)[0].complete


def test_status_sees_damage_it_has_indexed_before(evaluated: Path) -> None:
    assert status(evaluated)[0].complete
    path = next(evaluated.glob("records/*/record.json"))
    path.write_bytes(path.read_bytes()[:-20])
    assert not status(evaluated)[0].complete


def test_an_index_held_by_another_is_done_without(evaluated: Path) -> None:
    status(evaluated)
    (evaluated / "records" / "strange").mkdir()
    path = index.index_path(evaluated)
    assert path is not None
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    assert len(index.lines(Store(evaluated))) == 4
    holder.rollback()
    holder.close()


RANDOM = "linf:0.1 targeted:random"


def test_numbers_and_images_are_checked_to_the_last(tmp_path: Path) -> None:
    data = besiege.data.load("digits", count=40)
    images = data.images.clone()
    images[33, 0, 0, 0] = torch.nan
    holes = Data("holes", "test", images, data.labels, data.ids, 10, data.class_names)
    again = Data("again", "test", data.images, data.labels, data.ids % 7, 10, data.class_names)
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (InputError, "NaN", holes, {}),
        (InputError, "not unique", again, {}),
        (InputError, "batch is 0", data, {"batch": 0}),
        (InputError, "seed is 1.5", data, {"seed": 1.5}),
        (InputError, "queries is '10'", data, {"queries": "10"}),
        (AttackError, "an attack is", data, {"attacks": 5}),
        (AttackError, "finite", data, {"attacks": "pgd(schedule=constant(1e999))"}),
        (
            ThreatError,
            "disagree",
            data,
            {"goal": "targeted:second", "threat": "linf:0.1 targeted:random"},
        ),
    ]
    for kind, text, source, change in cases:
        terms = {"threat": "linf:0.1", "attacks": "fgsm", "shard": 10, **change}
        with pytest.raises(kind, match=text):
            evaluate(NATURAL, source, out=tmp_path / "run", **terms)
        assert not (tmp_path / "run").exists(), text


def test_a_bar_that_breaks_is_no_failure_of_the_attack(tmp_path: Path) -> None:
    def watch(event: Any) -> None:
        if event.text == "pgd(steps=30)":
            raise ValueError("my bar broke")

    with pytest.raises(ValueError, match="my bar broke"):
        evaluate(
            NATURAL, "digits", threat="linf:0.1", attacks="pgd(steps=30)", out=tmp_path, watch=watch
        )
    records = [json.loads(p.read_text()) for p in tmp_path.glob("records/*/record.json")]
    failures = [record["failure"] for record in records]
    assert records and not any(failures)


def test_images_in_another_box_mean_the_same() -> None:
    module = besiege.models.load(NATURAL).module
    wide = besiege.Classifier(module, mean=0.0, std=255.0, box=(0.0, 255.0))
    usual = evaluate(NATURAL, "digits", threat="linf:0.1", attacks="fgsm", count=30, curve=False)
    other = evaluate(wide, "digits", threat="linf:25.5", attacks="fgsm", count=30, curve=False)
    assert other.clean == usual.clean and other.robust == usual.robust
    assert open_run(other.folder)[1].plans[0].data.scaled
    # Tensors are in the victim's box already, and stay as they are.
    data = besiege.data.load("digits", count=30)
    tensors = (data.images * 255, data.labels)
    given = evaluate(wide, tensors, threat="linf:25.5", attacks="fgsm", curve=False)
    assert given.clean == usual.clean and given.robust == usual.robust
    assert not open_run(given.folder)[1].plans[0].data.scaled
