from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import SMALL_RUN
from tests.recount import accuracy_after, accuracy_within
from torch import nn

import besiege
from besiege.bench.overview import status
from besiege.bench.pictures import pictures
from besiege.bench.results import summarise
from besiege.bench.single import evaluate
from besiege.bench.store import Store
from besiege.bench.words import in_lines
from besiege.core.errors import AttackError, InputError, StoreError, ThreatError, VictimError
from besiege.core.record import COSTS
from besiege.metrics import against_cost, area, envelope, local_optimality, quantile

NATURAL = "zoo:digits-natural"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    return evaluate(
        NATURAL,
        "digits",
        threat="linf:0.1",
        attacks="fgsm, pgd(steps=10), bim",
        count=120,
        shard=50,
        out=tmp_path_factory.mktemp("run"),
    )


def test_the_figures_are_those_of_the_attacks_alone(found: besiege.Evaluation) -> None:
    data = besiege.data.load("digits", count=120)
    standing = torch.ones(120, dtype=torch.bool)
    for text, rate in found.by_attack.items():
        alone = besiege.attack(
            text, NATURAL, data.images, data.labels, ids=data.ids, threat="linf:0.1"
        )
        assert rate.count == 120
        assert round(rate.value * 120) == int(alone.verdicts.robust.sum())
        standing &= alone.verdicts.robust
        mine = found.rows.where(found.rows["attack"] == text)
        assert mine["sample"].tolist() == data.ids.tolist()
        assert mine["success"].tolist() == alone.success.tolist()
        assert mine["queries"].tolist() == alone.queries.tolist()
        assert np.allclose(mine["linf"][mine["success"]], alone.distance[alone.success].numpy())
    assert found.robust is not None
    assert round(found.robust.value * 120) == int(standing.sum())
    assert round(found.clean.value * 120) == int(alone.verdicts.correct.sum())
    assert list(found.by_attack) == ["fgsm", "pgd(steps=10)", "bim"]


def test_both_curves_fall_and_equal_a_script_of_a_few_lines(found: besiege.Evaluation) -> None:
    data = besiege.data.load("digits", count=120)
    net = besiege.Classifier.of(NATURAL)
    bim = next(c for c in found.figures.steps_curve if c.attack == "bim")
    assert np.all(np.diff(bim.value) <= 0)
    again = accuracy_after(net, data.images, data.labels, 0.1, 0.015, 20)
    for step in (1, 4, 20):
        assert bim.value[step] == pytest.approx(again[step], abs=1e-9)
    curve = found.figures.eps_curve
    assert curve is not None
    assert np.all(np.diff(curve.value) <= 0) and curve.value[-1] == 0
    for eps in (0.02, 0.06, 0.12):
        value = np.array(curve.value)[np.searchsorted(curve.x, eps, side="right") - 1]
        again_at = accuracy_within(net, found.folder, curve, eps, data.images, data.labels)
        assert value == pytest.approx(again_at, abs=1e-9)
    # And another attack, run anew at these budgets, is not far off.
    for eps in (0.03, 0.06):
        value = np.array(curve.value)[np.searchsorted(curve.x, eps, side="right") - 1]
        anew = accuracy_after(net, data.images, data.labels, eps, eps / 4, 20)[-1]
        assert abs(value - anew) < 0.05


def test_a_suite_runs_each_attack_on_what_is_left(tmp_path: Path) -> None:
    chain = evaluate(
        NATURAL,
        "digits",
        threat="linf:0.05",
        suite=["apgd(steps=10)", "apgdt(steps=5, targets=3)", "square(steps=50)"],
        count=30,
        shard=12,
        curve=False,
        out=tmp_path,
    )
    shares = [rate.value for rate in chain.by_attack.values()]
    assert shares == sorted(shares, reverse=True)
    assert chain.robust is not None and chain.robust.value == shares[-1]
    rows = chain.rows
    first, second, *_ = chain.by_attack
    broken = rows["sample"][(rows["attack"] == first) & (rows["success"] | ~rows["correct"])]
    assert len(broken)
    tried = rows["sample"][rows["attack"] == second]
    assert not set(broken) & set(tried) and len(broken) + len(tried) == 30
    assert chain.figures.mode == "suite"


def test_one_folder_holds_several_evaluations(tmp_path: Path) -> None:
    for eps in ("0.1", "0.05"):
        evaluate(
            NATURAL,
            "digits",
            threat=f"linf:{eps}",
            attacks="fgsm",
            count=30,
            curve=False,
            out=tmp_path,
        )
    both = summarise(tmp_path)
    assert [e.threat.text for e in both.evaluations] == ["linf:0.1", "linf:0.05"]
    assert both.complete
    # The clean images were looked at once for both.
    assert len(status(tmp_path)) == 2
    kinds = [
        json.loads(p.read_text())["identity"]["kind"]
        for p in tmp_path.glob("records/*/record.json")
    ]
    assert kinds.count("clean") == 1 and kinds.count("craft") == 2


def test_searches_of_one_folder_are_held_against_each_other(tmp_path: Path) -> None:
    """W20 and W21 are said of the search that is too weak, and of no other evaluation."""
    asked = {"l2": "fmn(steps=30)", "linf": "fmn(steps=3)", "linf:0.1": "pgd(steps=20)"}

    def warned(weak: str) -> dict[str, set[str]]:
        for threat, attacks in {**asked, "linf": weak}.items():
            terms: dict[str, Any] = {"count": 40, "curve": False, "out": tmp_path / weak}
            evaluate(NATURAL, "digits", threat=threat, attacks=attacks, **terms)
        told = summarise(tmp_path / weak).evaluations
        mine = {e.threat.text: {w.id for w in e.warnings} for e in told}
        return {threat: ids & {"W20", "W21"} for threat, ids in mine.items()}

    assert warned("fmn(steps=3)") == {"l2": set(), "linf": {"W20", "W21"}, "linf:0.1": set()}
    assert warned("fmn") == {"l2": set(), "linf": set(), "linf:0.1": set()}


def test_other_attacks_later_use_the_records_again(evaluated: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in evaluated.glob("records/*/record.json")}
    more = evaluate(NATURAL, "digits", out=evaluated, **{**SMALL_RUN, "attacks": "fgsm,bim"})
    assert list(more.by_attack) == ["fgsm", "bim"]
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_budgets_written_differently_are_one(tmp_path: Path) -> None:
    for text in ("linf:8/255", "linf:16/510"):
        evaluate(
            NATURAL, "digits", threat=text, attacks="fgsm", count=10, curve=False, out=tmp_path
        )
    kinds = [
        json.loads(p.read_text())["identity"]["kind"]
        for p in tmp_path.glob("records/*/record.json")
    ]
    assert kinds.count("craft") == 1


def test_what_was_not_broken_is_not_stored_twice(found: besiege.Evaluation) -> None:
    item = found.figures.gallery[0]
    clean, adversarial = pictures(Store(found.folder), [item])(item)
    assert clean.shape == adversarial.shape == (1, 8, 8)
    assert np.abs(clean - adversarial).max() == pytest.approx(item.distance, rel=1e-5)
    net = besiege.Classifier.of(NATURAL)
    assert int(net(torch.from_numpy(adversarial[None])).argmax()) == item.prediction
    assert item.prediction != item.label == item.clean_prediction


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))  # type: ignore[no-any-return]


def test_ones_own_module_and_tensors() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(30, 1, 2, 2), torch.arange(30) % 3
    own = evaluate(Net(), (x, y), threat="l2:0.3", attacks="pgd(steps=5)")
    assert own.clean.count == 30 and own.complete
    assert own.folder.exists()
    assert "Net" in repr(own)


def test_a_smallest_change_is_its_own_curve() -> None:
    small = evaluate(NATURAL, "digits", threat="linf", attacks="minimal(pgd(steps=5))", count=30)
    assert small.robust is not None and small.robust.value == 0
    assert small.figures.eps_curve is not None
    assert small.figures.eps_curve.attack == "minimal(pgd(steps=5))"
    assert small.figures.eps_curve.value[-1] == 0
    assert small.figures.threat.eps is None


def test_a_defended_model_by_its_text() -> None:
    hidden = evaluate(
        f"{NATURAL}+bits(depth=3)", "digits", threat="linf:0.2", attacks="pgd(steps=5)", count=20
    )
    assert hidden.figures.model.name == f"{NATURAL}+bits(depth=3)"
    chance = evaluate(
        f"{NATURAL}+resize_pad(least=0.75)",
        "digits",
        threat="linf:0.2",
        attacks="averaged(pgd(steps=3), 4)",
        count=20,
    )
    assert chance.figures.eps_curve is None and chance.complete
    assert "one lucky draw" in (chance.figures.no_curve or "")
    rows = chance.rows
    # The last five of ten draws are the evaluations; bit k of a row is how draw k went.
    by_hand = 1 - ((rows["draws"][:, None] >> np.arange(5, 10)) & 1).mean(0)
    told = chance.figures.chance
    assert told is not None
    assert told.attacks[0].mean == pytest.approx(by_hand.mean())
    assert told.attacks[0].deviation == pytest.approx(by_hand.std(ddof=1))
    expected = 100 * told.robust.mean
    assert f"under the worst attack is {expected:.1f} %" in chance.figures.threat.words


class Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :10] * 3


class Cracked(nn.Module):
    """Answers the clean images and then no more."""

    def __init__(self) -> None:
        super().__init__()
        self.net = besiege.models.load(NATURAL).module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("out of order")
        return self.net(x)  # type: ignore[no-any-return]


def test_an_attack_that_fails_is_no_robustness(tmp_path: Path) -> None:
    failed = evaluate(Cracked(), "digits", threat="linf:0.1", attacks="pgd", count=30, out=tmp_path)
    assert not failed.complete and failed.robust is None and failed.by_attack == {}
    (finding,) = [f for f in failed.warnings if f.id == "FAILED"]
    assert "out of order" in finding.seen and finding.level == "stop"
    assert "unknown" in repr(failed)
    assert status(tmp_path)[0].attacks[1].failures[0].startswith("VictimError: ")


def test_wrong_input_is_found_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "run"
    x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 10])
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ThreatError, "linf:8/255", {"threat": "linf:8"}),
        (ThreatError, "did you mean 'linf'", {"threat": "lin:0.1"}),
        (AttackError, "listed twice", {"attacks": "pgd,pgd"}),
        (AttackError, "not both", {"attacks": "pgd", "suite": "quick"}),
        (besiege.BesiegeError, "did you mean 'quick'", {"suite": "quik"}),
        (besiege.BesiegeError, "did you mean 'pgd'", {"attacks": "pdg"}),
        (ThreatError, "targeted:random", {"goal": "targeted:rndom"}),
        (ThreatError, "did you mean 'score'", {"access": "scores"}),
        (AttackError, "needs gradient access", {"access": "score", "attacks": "pgd"}),
        (besiege.BesiegeError, "did you mean", {"model": "zoo:digits-naturl"}),
        (besiege.BesiegeError, "digit", {"data": "digit"}),
        (InputError, "is 10, but", {"data": (x, y)}),
        (
            VictimError,
            "could not take images",
            {"data": (torch.rand(2, 1, 9, 9), y[:2])},
        ),
        (VictimError, "returns probabilities", {"model": nn.Sequential(Flat(), nn.Softmax(1))}),
        (InputError, "did you mean 'full'", {"curve": "ful"}),
        (InputError, "1 to 397", {"count": 1000}),
        (InputError, "whole number", {"shard": 0}),
    ]
    for kind, text, change in cases:
        terms: dict[str, Any] = {"model": NATURAL, "data": "digits", "threat": "linf:0.1", **change}
        with pytest.raises(kind, match=text):
            evaluate(terms.pop("model"), terms.pop("data"), out=out, **terms)
        assert not out.exists(), change


def test_the_same_words_for_a_changed_model_replace_the_old_figures(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    code = "import besiege, torch\ndef make():\n    net = besiege.models.load('zoo:{}').module\n"
    for name in ("digits-natural", "digits-pgd-at"):
        file.write_text(code.format(name) + "    return net\n")
        found = evaluate(
            f"{file}:make",
            "digits",
            threat="linf:0.1",
            attacks="fgsm",
            count=20,
            curve=False,
            out=tmp_path / "run",
        )
    both = summarise(tmp_path / "run")
    assert [e.name for e in both.evaluations] == [found.figures.name]


def test_a_judged_record_without_what_it_judged_is_not_done(evaluated: Path) -> None:
    (crafted,) = [
        p.parent
        for p in evaluated.glob("records/*/record.json")
        if json.loads(p.read_text())["identity"]["kind"] == "craft"
    ]
    shutil.rmtree(crafted)
    assert not status(evaluated)[0].complete and not summarise(evaluated).complete


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no run folder"):
        status(tmp_path)
    with pytest.raises(StoreError, match="does not exist"):
        summarise(tmp_path / "nowhere")
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        status(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_number": 7}')
    with pytest.raises(StoreError, match="another release"):
        status(tmp_path)


def test_the_command_asks_the_same_again(found: besiege.Evaluation) -> None:
    assert found.figures.command == (
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.1 --attacks "
        "'fgsm, pgd(steps=10), bim' --count 120 --shard 50"
    )


def test_without_a_budget_the_distances_are_the_figures(tmp_path: Path) -> None:
    def run(out: Path | None = None, **how: Any) -> besiege.Evaluation:
        given = {"attacks": ["fab(steps=10)", "minimal(pgd(steps=5))"], **how}
        return evaluate(NATURAL, "digits", threat="l2", count=30, shard=20, out=out, **given)

    found = run(tmp_path)
    data = besiege.data.load("digits", count=30)
    alone = [
        besiege.attack(text, NATURAL, data.images, data.labels, ids=data.ids, threat="l2")
        for text in found.by_attack
    ]
    table = torch.stack([one.distance for one in alone]).numpy()
    right = alone[0].verdicts.correct.numpy()
    table[:, ~right] = 0.0
    best = envelope(table)
    sizes = found.figures.distances
    assert sizes is not None and sizes.all.cost is not None
    assert sizes.all.median == pytest.approx(quantile(best))
    assert sizes.all.area == pytest.approx(area(best, best.max()))
    for row, one in zip(table, sizes.attacks, strict=True):
        assert one.median == pytest.approx(quantile(row))
        assert one.mean == pytest.approx(row.mean())
        assert one.optimality == pytest.approx(local_optimality(row, best))
    smallest = found.smallest
    assert np.allclose(smallest["distance"], best) and np.allclose(smallest["l2"], best)
    assert bool((smallest["linf"] <= smallest["l2"] + 1e-6).all())
    assert [c.attack for c in found.figures.eps_curves] == list(found.by_attack)
    # The gallery is of the median, by the attack that was best there.
    for item in found.figures.gallery:
        place = data.ids.tolist().index(item.sample)
        assert item.distance == pytest.approx(best[place])
    # Records and tensors tell the same of distance against cost.
    for mine, told in zip(alone, sizes.attacks, strict=True):
        assert mine.descent is not None and told.cost is not None
        again = mine.descent.numpy()
        again[~right] = 0.0
        medians = against_cost(again)
        for passes, median in zip(told.cost.passes, told.cost.median, strict=True):
            claimed = medians[COSTS.index(passes)]
            assert (np.inf if median is None else median) == pytest.approx(claimed, rel=1e-6)
        assert told.cost.in_all == told.median == pytest.approx(medians[-1], rel=1e-6)
        stored = found.rows.where(found.rows["attack"] == told.text)
        assert np.array_equal(stored["best_in_all"], mine.descent[:, -1].numpy())
    whole = sizes.all.cost
    assert whole.in_all == sizes.all.median is not None
    assert sizes.all.median <= min(m for m in whole.median if m)
    assert whole.spent == pytest.approx(
        sum(a.cost.spent for a in sizes.attacks if a.cost is not None)
    )
    assert run(tmp_path).figures.distances == sizes, "read again"
    # In a suite every attack searches on every sample, and the smallest counts.
    suite = run(attacks=None, suite="fab(steps=10), minimal(pgd(steps=5))")
    assert suite.figures.distances == sizes
    assert "smallest perturbations" in found.page().read_text()


def test_accuracy_against_queries_is_that_of_shorter_runs() -> None:
    how: dict[str, Any] = {"threat": "linf:0.15", "attacks": "square", "curve": False, "count": 40}
    found = besiege.evaluate("zoo:digits-natural", "digits", access="score", queries=200, **how)
    (curve,) = found.figures.queries_curve
    assert found.figures.steps_curve == () and curve.x[-1] == 200
    assert "Accuracy against queries" in found.page().read_text("utf-8")
    for queries in (3, 40):
        fewer = besiege.evaluate(
            "zoo:digits-natural", "digits", access="score", queries=queries, **how
        )
        assert fewer.robust is not None
        assert curve.value[curve.x.index(queries)] == pytest.approx(fewer.robust.value)


def test_printed_rows_are_aligned(found: besiege.Evaluation) -> None:
    rows = [line for line in repr(found).splitlines()[1:] if " % [" in line]
    assert [line.split("  ")[1] for line in rows[:5]] == ["clean", "robust", *found.by_attack]
    assert len({line.index(" % [") for line in rows[:5]}) == 1


def test_without_a_budget_the_median_and_the_share_found_are_printed() -> None:
    found = evaluate(
        NATURAL, "digits", threat="linf", attacks="minimal(fgsm), fmn(steps=20)", count=20
    )
    sizes = found.figures.distances
    assert sizes is not None and sizes.all.median is not None
    lines = repr(found).splitlines()
    assert lines[2] == (
        f"  smallest       median {sizes.all.median:.4g}, found for 20 of 20 images, "
        "100.0 % [83.2, 100.0] (in linf)"
    )
    assert lines[3].startswith("  minimal(fgsm)  median ") and "of 20 images" in lines[4]
    assert "robust" not in repr(found)
    partly = replace(sizes, all=replace(sizes.all, median=None, unbroken=11))
    said = in_lines(replace(found.figures, distances=partly))
    assert "median infinite, found for 9 of 20 images, 45.0 %" in said
