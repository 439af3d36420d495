"""AutoAttack as a whole, on the shipped digits network: scale, cascade, chance, and the record."""

from __future__ import annotations

import json
import runpy
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.test_suites import small
from torch import Tensor, nn

import besiege
from besiege.attacks.attack import parse
from besiege.attacks.combine import Cascade
from besiege.attacks.suites import suite
from besiege.bench.single import evaluate
from besiege.core.errors import StochasticError, UnknownNameError
from besiege.core.samples import Samples
from besiege.core.threat import L1, Norm, Threat
from besiege.core.victim import Victim
from besiege.evaluation import craft, judge
from besiege.models.classifier import Classifier
from besiege.testing.victims import module_of, natural, scaled

NATURAL = "zoo:digits-natural"
RESIZED = f"{NATURAL}+resize_pad(least=0.9)"
THREATS = ("linf:0.08", "l2:0.5", "l1:2")
SCALES = (10.0, 100.0, 1000.0)
PEERS = "pgd(loss=cross_entropy(stable=False))"
RECORDED = Path(__file__).parents[1] / "benchmarks" / "autoattack" / "recorded"


@cache
def some(count: int) -> Samples:
    data = besiege.data.load("digits", count=count)
    return Samples.of(data.images, data.labels, ids=data.ids)


@cache
def loud(scale: float) -> Victim:
    """The network with its logits times a scale."""
    return natural() if scale == 1.0 else scaled(natural(), scale)


def standard(norm: Norm, full: bool) -> list[str]:
    """The texts of the suite, or shorter ones."""
    texts = suite("standard").attacks_for(norm)
    steps = {"square": 60}
    return [text if full else str(small(parse(text), steps.get(text, 15))) for text in texts]


def fallen(victim: Victim, samples: Samples, threat: Threat, texts: list[str]) -> dict[str, Tensor]:
    """Which samples each attack alone breaks, by the judge."""
    found = {}
    for text in texts:
        crafted = craft(victim, parse(text), samples, threat)
        found[text] = judge(victim, crafted, samples, threat).success
    return found


def union(found: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(found.values())).any(0)


def check_scales(threat: str, count: int, full: bool) -> None:
    """The verdict is the same at every scale, though cross-entropy goes blind."""
    within, samples = Threat.parse(threat), some(count)
    texts = standard(within.norm, full)
    usual = fallen(loud(1.0), samples, within, texts)
    assert 0.2 * count < int(union(usual).sum()) < 0.95 * count, "something is left to tell apart"
    blind = []
    for scale in SCALES:
        found = fallen(loud(scale), samples, within, texts)
        assert torch.equal(union(found), union(usual)), f"{threat} x {scale}"
        for text in texts[1:]:  # and each attack without cross-entropy by itself
            assert torch.equal(found[text], usual[text]), f"{text} at {threat} x {scale}"
        blind.append(int(found[texts[0]].sum()))
    assert blind[2] <= blind[1] <= blind[0] < int(usual[texts[0]].sum()), "apgd on cross-entropy"


def test_the_verdict_does_not_depend_on_the_scale_of_the_logits() -> None:
    check_scales("linf:0.08", 50, full=False)


@pytest.mark.slow
@pytest.mark.parametrize("threat", THREATS)
def test_the_verdict_in_every_norm_does_not_either(threat: str) -> None:
    check_scales(threat, 100, full=False)


@pytest.mark.slow
@pytest.mark.parametrize("threat", THREATS)
def test_the_verdict_of_the_whole_suite_does_not_either(threat: str) -> None:
    check_scales(threat, 100, full=True)


@pytest.mark.parametrize("threat", THREATS)
def test_a_scale_that_rounds_nothing_changes_no_bit(threat: str) -> None:
    """No absolute constant anywhere on the way: a clamp, a floor, a tolerance in logits."""
    within, samples = Threat.parse(threat), some(8)
    for text in standard(within.norm, full=False)[1:]:
        attack = parse(text)
        one, other = (craft(loud(scale), attack, samples, within) for scale in (2.0**20, 2.0**-20))
        assert torch.equal(one.images, other.images), text
        assert torch.equal(one.queries, other.queries)


@pytest.mark.parametrize("classes", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_nor_with_few_classes(classes: int) -> None:
    victim = Classifier(module_of((1, 8, 8), classes), classes=classes, name="untrained")
    images = some(4).images
    samples = Samples.of(images, victim(images).argmax(1))
    for threat in ("linf:0.02", "l2:0.2", "l1:1"):
        within = Threat.parse(threat)
        for text in (
            "apgdt(steps=5, targets=2)",
            "fabt(steps=5, targets=2)",
            "square(steps=20)",
            "fab(steps=5)",
            "apgd(steps=5, loss=dlr)",
        ):
            attack = parse(text)
            loudly, softly = (
                craft(scaled(victim, factor), attack, samples, within)
                for factor in (2.0**20, 2.0**-20)
            )
            assert torch.equal(loudly.images, softly.images), f"{text} {threat}"


def test_cross_entropy_goes_blind_with_the_scale_and_says_so() -> None:
    """AutoAttack's figure 2: what pgd leaves rises to the clean accuracy.

    The stable form never leaves more, and less at scale 10; beyond 100 the other probabilities
    are below what float32 holds, and it is as blind.
    """
    samples, within = some(100), Threat.parse("linf:0.08")
    left: dict[str, list[int]] = {PEERS: [], "pgd": []}
    warned: dict[str, list[bool]] = {PEERS: [], "pgd": []}
    for scale in (1.0, *SCALES):
        for text in left:
            crafted = craft(loud(scale), parse(text), samples, within)
            verdicts = judge(loud(scale), crafted, samples, within)
            left[text].append(int(verdicts.robust.sum()))
            warned[text].append("W11" in [finding.id for finding in crafted.findings])
    clean = int((natural()(samples.images).argmax(1) == samples.labels).sum())
    usual, stable = left[PEERS], left["pgd"]
    assert usual == sorted(usual) and len(set(usual)) == 4, f"it rises with every scale: {left}"
    assert usual[0] < 0.7 * clean and usual[3] >= clean - 2
    assert all(one <= other for one, other in zip(stable, usual, strict=True))
    assert stable[0] == usual[0] and stable[1] < usual[1] and stable[3] == usual[3]
    assert warned == {PEERS: [False, True, True, True], "pgd": [False, True, True, True]}


class Loud(nn.Module):
    """The shipped digits network with louder logits."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = besiege.Classifier.of(NATURAL).module
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return self.scale * logits


def test_standard_by_name_and_who_broke_what_first() -> None:
    """On a network whose cross-entropy is blind, so that more than one attack has work."""
    data = besiege.data.load("digits", count=12)
    found = evaluate(
        Loud(100.0), (data.images, data.labels), threat="linf:0.15", suite="standard", curve=False
    )
    stages = found.figures.cascade
    assert found.figures.suite == "standard" and found.figures.mode == "suite"
    assert [stage.text for stage in stages] == ["apgd", "apgdt", "fabt", "square"]
    assert stages[0].before == round(found.clean.value * 12)
    for one, after in pairwise(stages):
        assert one.before - one.broken == one.left == after.before
    assert found.robust is not None and stages[-1].left == round(found.robust.value * 12)
    assert all(text in repr(found) for text in found.by_attack), "the cascade is printed"
    fates = found.by_sample
    for stage in stages:
        mine = (fates["fate"] == "broken") & (fates["attack"] == stage.text)
        assert int(mine.sum()) == stage.broken
        assert all(q > 0 for q in fates["queries"][mine])
    assert stages[1].broken >= 3, "what apgd was too blind for"
    # The same attacks as one: other chances, and the same verdict.
    samples, threat = Samples.of(data.images, data.labels), Threat.parse("linf:0.15")
    whole = parse("cascade(apgd, apgdt, fabt, square)")
    assert isinstance(whole, Cascade) and len(whole.attacks) == 4
    victim = Classifier(Loud(100.0), classes=10, name="loud")
    verdicts = judge(victim, craft(victim, whole, samples, threat), samples, threat)
    standing = (fates["fate"] == "standing")[np.argsort(fates["sample"])]
    assert verdicts.robust.tolist() == standing.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("threat", THREATS)
def test_standard_is_the_cascade_of_its_attacks(threat: str, tmp_path: Path) -> None:
    samples, within = some(100), Threat.parse(threat)
    found = evaluate(
        NATURAL, "digits", threat=threat, suite="standard", count=100, curve=False, out=tmp_path
    )
    texts = suite("standard").attacks_for(within.norm)
    whole = craft(natural(), parse(f"cascade({', '.join(texts)})"), samples, within)
    verdicts = judge(natural(), whole, samples, within)
    fates = dict(zip(found.by_sample["sample"], found.by_sample["fate"], strict=True))
    assert [fates[i] == "standing" for i in samples.ids.tolist()] == verdicts.robust.tolist()


def test_a_list_of_ones_own_and_a_mistyped_name() -> None:
    texts = ["fgsm", "square(steps=50)"]
    found = evaluate(NATURAL, "digits", threat="linf:0.1", suite=texts, count=40, curve=False)
    first, second = found.figures.cascade
    assert list(found.by_attack) == texts and second.before == first.left > 0
    with pytest.raises(UnknownNameError, match=r"no suite is called 'plsu'.*'plus'"):
        evaluate(NATURAL, "digits", threat="linf:0.1", suite="plsu", count=10)


def test_a_suite_on_images_that_are_all_wrong() -> None:
    data = besiege.data.load("digits", count=6)
    wrong = (natural()(data.images).argmax(1) + 1) % 10
    found = evaluate(
        NATURAL, (data.images, wrong), threat="linf:0.1", suite="standard", curve=False
    )
    assert found.clean.value == 0 and found.robust is not None and found.robust.value == 0
    assert [(s.before, s.broken) for s in found.figures.cascade] == [(0, 0)] * 4
    assert set(found.by_sample["fate"]) == {"wrong"}


def check_rand(texts: str | list[str], count: int) -> None:
    found = evaluate(RESIZED, "digits", threat="linf:0.1", suite=texts, count=count, curve=False)
    told = found.figures.chance
    assert told is not None
    assert told.evaluations == 5 and len(told.attacks) == 3
    assert told.robust.mean < told.clean.mean
    assert told.robust.deviation > 0 and told.clean.deviation > 0
    means = [attack.mean for attack in told.attacks]
    assert means[-1] == told.robust.mean
    assert found.robust is not None and found.robust.value < found.clean.value - 0.1
    assert "Stochastic model" in found.page().read_text("utf-8")


def test_rand_on_a_model_that_answers_by_chance() -> None:
    texts = [str(small(parse(text), 10, 5)) for text in suite("rand").attacks]
    assert all(text.startswith("averaged(") for text in texts)
    check_rand(texts, 40)


@pytest.mark.slow
def test_rand_by_name() -> None:
    check_rand("rand", 60)


@pytest.mark.parametrize("name", ["standard", "plus", "quick"])
def test_other_suites_are_refused_there_and_rand_is_named(name: str) -> None:
    with pytest.raises(StochasticError, match=r"suite='adaptive'.* 'averaged\(.*, 20\)'"):
        evaluate(RESIZED, "digits", threat="linf:0.1", suite=name, count=10)


# What the reference implementation came to


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded figures are not shipped")
def test_the_recorded_figures_of_the_reference_are_whole() -> None:
    from benchmarks.autoattack.cells import CELLS, COMPONENTS, unpacked

    cells = {cell.name: cell for cell in CELLS}
    paths = sorted(RECORDED.glob("*.json"))
    assert {path.stem for path in paths} <= set(cells) and len(paths) >= 18
    for path in paths:
        said, cell = json.loads(path.read_text("utf-8")), cells[path.stem]
        assert (said["model"], said["data"], said["threat"]) == (cell.model, cell.data, cell.threat)
        count = said["count"]
        assert count >= 500 and set(said["components"]) == set(COMPONENTS)
        assert said["made"]["by"].startswith("pyautoattack ") and said["made"]["torch"]
        assert len(said["clean"]) == 2 * -(-count // 8)
        clean = unpacked(said["clean"], count)
        assert len(clean) == count and clean.mean() > 0.25, "a network that knows its data"
        together = clean.copy()
        for component in said["components"].values():
            assert len(component["robust"]) == len(said["clean"]) and component["seconds"] > 0
            robust = unpacked(component["robust"], count)
            assert not (robust & ~clean).any(), "what is wrong when clean is not robust"
            together &= robust
        assert together.sum() < clean.sum(), path.stem
    assert {cell.within.norm for cell in CELLS} >= {L1}


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded figures are not shipped")
@pytest.mark.parametrize("name", ["cells", "compare"])
def test_reading_them_needs_no_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the cells nor the comparison imports the package they are compared with."""
    monkeypatch.setitem(sys.modules, "pyautoattack", None)  # importing it fails
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = RECORDED.parent / f"{name}.py"
    read = runpy.run_path(str(path), run_name="read")
    assert read["RECORDED"] == RECORDED
