"""The suite ``adaptive``: an attack that ignores a defense, then attacks through it."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.bench.records import content
from tests.children import forked
from torch import Tensor, nn

import besiege
from besiege.attacks.suites import suite
from besiege.bench import estimate
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.board_reading import board_of
from besiege.bench.expanding import declared
from besiege.bench.single import measure
from besiege.bench.store import Store
from besiege.bench.work_estimate import Event
from besiege.core.dice import Dice
from besiege.defenses import BitDepth, Calibration, Defended, Detected, Layer, Median, Squeezing
from besiege.report import table
from besiege.report.site import write_site

BITS = "zoo:digits-pgd-at+bits(depth=1)"
RANDOM = "zoo:digits-natural+resize_pad"
SHORT = ["oblivious(pgd)", "pgd(steps=9, loss=margin)", "apgd(steps=9, loss=dlr)"]
DRAWN = ["oblivious(pgd)", "averaged(pgd(steps=5, loss=margin), 3)", "averaged(square(steps=9), 3)"]


# Two defenses of one network, for which all figures follow from its weights.


class Halves(nn.Module):
    """The logit w x - 0.8 of images 4x4: w is 0.1 everywhere, plus 1 on the left, minus 1 right.

    An image of one value c has the logit 1.6 (c - 0.5), to which the halves add nothing. Within
    linf:0.1 an attack moves it by about 1.6, by the halves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights: Tensor
        halves = torch.tensor([1.0, 1.0, -1.0, -1.0]).expand(4, 4)
        self.register_buffer("weights", (0.1 + halves).flatten())

    def forward(self, x: Tensor) -> Tensor:
        score = (x.flatten(1) - 0.5) @ self.weights
        return torch.stack([-score, score], 1)


@dataclass(frozen=True)
class Mirror(Layer):
    """The mirror image: what moves the bare network down moves this one up."""

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return x.flip(3)


@dataclass(frozen=True)
class Symmetric(Layer):
    """The mean of the image and its mirror image, in which the halves cancel."""

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return (x + x.flip(3)) / 2


@dataclass(frozen=True)
class Dimmed(Layer):
    """Less contrast, which changes no order of images."""

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return 0.5 + 0.9 * (x - 0.5)


def plain_images() -> tuple[Tensor, Tensor]:
    values = torch.tensor([0.25, 0.75] * 10)
    return values[:, None, None, None].expand(-1, 1, 4, 4).contiguous(), (values > 0.5).long()


def accuracies(layer: Layer, **more: Any) -> dict[str, float]:
    victim = Defended(besiege.Classifier(Halves(), name="halves"), layer)
    asked: dict[str, Any] = {"threat": "linf:0.1", "suite": "adaptive", "curve": False, **more}
    found = besiege.evaluate(victim, plain_images(), **asked)
    rates = {text: rate.value for text, rate in found.by_attack.items()}
    assert found.robust is not None
    return {**rates, "robust": found.robust.value}


def test_what_an_attack_that_ignores_the_defense_misses_an_adaptive_one_breaks() -> None:
    found = accuracies(Mirror())
    assert found["oblivious(pgd)"] == 1 and found["pgd(steps=100, loss=margin)"] == 0
    assert found["robust"] == 0
    # The attack itself works: without the defense it breaks every image.
    bare = besiege.attack("pgd", Halves(), *plain_images(), threat="linf:0.1")
    assert bare.success.all()


def test_a_defense_that_removes_what_attacks_add_withstands_both() -> None:
    assert set(accuracies(Symmetric()).values()) == {1.0}


def test_what_the_oblivious_attack_breaks_is_broken() -> None:
    """Against a network that is only dimmed, images of the undefended one still succeed."""
    found = accuracies(Dimmed(), suite=["oblivious(pgd)", "noise(steps=1)"])
    assert found == {"oblivious(pgd)": 0, "noise(steps=1)": 0, "robust": 0}


# On digits.


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    folder = tmp_path_factory.mktemp("adaptive")
    asked: dict[str, Any] = {"threat": "linf:0.15", "suite": "adaptive", "count": 12}
    found: besiege.Evaluation = besiege.evaluate(BITS, "digits", out=folder, **asked)
    return found


def test_the_suite_fits_the_victim(found: besiege.Evaluation) -> None:
    adaptive = ["pgd(steps=100, loss=margin)", "apgd(loss=dlr)", "apgdt", "square"]
    assert list(found.by_attack) == ["oblivious(pgd)", *adaptive, "beam"]
    how: dict[str, Any] = {"threat": "linf:0.15", "suite": "adaptive", "count": 4}
    on_bare = estimate("zoo:digits-natural", "digits", **how)
    drawn = estimate(RANDOM, "digits", **how)
    asked = {one.account: one.asked for one in drawn.prices}
    assert [one.account for one in on_bare.prices[2:-1]] == adaptive
    assert list(asked)[2:-1] == [
        "oblivious(pgd)",
        *(f"averaged({text}, 20)" for text in [*adaptive[:3], "square(steps=1000)"]),
    ]
    assert asked["oblivious(pgd)"] == 0, "the judge sends its images"
    on_another = estimate(BITS, "digits", **how, substitute="zoo:digits-natural")
    attacks = [one.account for one in on_another.prices[2:] if one.account != "curve"]
    assert attacks[:5] == ["oblivious(pgd)", *adaptive] and "beam" not in attacks


def test_robust_accuracy_is_the_worst_of_both_kinds(found: besiege.Evaluation) -> None:
    rows, right = found.rows, found.by_sample["fate"] != "wrong"
    broken = np.unique(rows["sample"][rows["success"] & rows["correct"]])
    assert found.robust is not None and found.clean is not None
    assert found.robust.hits == int(right.sum()) - len(broken)
    ignoring = rows["attack"] == "oblivious(pgd)"
    assert (rows["success"] & rows["correct"] & ignoring).any(), "it breaks some"
    assert list(found.by_attack.values())[-1].value == found.robust.value


def test_nobody_takes_it_for_an_attack_on_the_model(found: besiege.Evaluation) -> None:
    rows = found.rows
    ignoring = rows["attack"] == "oblivious(pgd)"
    assert set(rows["access"][ignoring]) == {"transfer"}
    assert set(rows["access"][~ignoring]) == {"gradient", "score"}
    assert set(rows["queries"][ignoring]) == {1} and not rows["forwards"][ignoring].any()
    assert (rows["aside"][ignoring] >= 80).all() and not rows["aside"][~ignoring].any()
    assert [one.transfer for one in found.figures.attacks] == [True] + 5 * [False]
    assert "ignored the defense: crafted on the undefended model (transfer)" in (
        found.figures.threat.words
    )
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(table(found._run))
    said = console.export_text()
    assert "oblivious(pgd), transfer" in said and "crafted on another model" in said
    page = found.page().read_text("utf-8")
    assert re.search(r"<code>oblivious\(pgd\)</code> <span class=\"badge\">transfer</span>", page)
    badge = '<span class="badge">transfer</span>'
    own = re.findall(rf"<code>oblivious\(pgd\)</code> {badge}", page.replace("<wbr>", ""))
    assert page.count(badge) == len(own), "no other attack has it, in any table"
    text = found.export(found.page().parent / "table.md").read_text("utf-8")
    assert "oblivious (transfer)" in text


@pytest.mark.usefixtures("examined")
def test_its_examination_compares_attacks_on_the_same_images(tmp_path: Path) -> None:
    """Images that the first attack broke were left by no gradient-based one: no sign of masking."""
    found = siege(tmp_path, BITS, [*SHORT, "square(steps=50)"])
    broken = found.rows["success"] & (found.rows["access"] == "transfer")
    assert int(broken.sum()) > 1 and found.examination is not None
    checks = {one.name: one.outcome for one in found.examination.checks}
    assert checks["attacks without gradients break no more"] == "passed"
    assert not {one.id for one in found.warnings} & {"W08", "W09", "W33"}


def test_the_curve_is_that_of_an_attack_on_the_model(found: besiege.Evaluation) -> None:
    curve = found._plan.curve
    assert curve is not None and curve.attack.source is None
    assert curve.attack.text.startswith("minimal(")


def test_without_a_defense_it_leaves_the_oblivious_attack_out_and_says_so(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"threat": "linf:0.15", "suite": "adaptive", "count": 6}
    found = besiege.evaluate("zoo:digits-natural", "digits", out=tmp_path, curve=False, **asked)
    assert "oblivious(pgd)" not in found.by_attack and len(found.by_attack) == 4
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(table(found._run))
    assert "oblivious(pgd) was left out" in " ".join(console.export_text().split())
    assert "oblivious(pgd) was left out" in found.page().read_text("utf-8")


def test_defenses_of_one_model_share_the_images(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"threat": "linf:0.15", "count": 8, "curve": False, "examine": "none"}
    models = ["zoo:digits-natural+bits(depth=1)", "zoo:digits-natural+bits(depth=2)"]
    besiege.evaluate(models, "digits", attacks="oblivious(pgd)", out=tmp_path, **asked)
    store = Store(tmp_path)
    kinds = [record.identity["kind"] for key in store.present() if (record := store.read(key))]
    assert kinds.count("craft") == 1 and kinds.count("judge") == 2


def test_the_same_attack_listed_alone_gives_the_same(tmp_path: Path) -> None:
    """In a list all attacks run on all images; the oblivious one as if it were alone."""
    asked: dict[str, Any] = {"threat": "linf:0.15", "count": 12, "curve": False}
    both = besiege.evaluate(BITS, "digits", attacks="pgd, oblivious(pgd)", **asked)
    alone = besiege.evaluate(BITS, "digits", attacks="oblivious(pgd)", **asked)
    assert both.by_attack["oblivious(pgd)"] == alone.by_attack["oblivious(pgd)"]
    assert [one.transfer for one in both.figures.attacks] == [False, True]


def test_attacks_that_do_not_fit_the_defense_are_reported() -> None:
    asked: dict[str, Any] = {"threat": "linf:0.15", "count": 8, "curve": False}
    found = besiege.evaluate(BITS, "digits", attacks="oblivious(pgd)", **asked)
    (weak,) = (one for one in found.warnings if one.id == "W33")
    assert weak.level == "warning" and "bits(depth=1) has no gradient of its own" in weak.seen
    (step,) = (one for one in found.figures.next_steps if "W33" in one.rules)
    assert "--suite adaptive" in step.command and "--attacks" not in step.command
    assert found.figures.model.surrogates == ("bits(depth=1)",)
    both = besiege.evaluate(
        BITS, "digits", attacks="oblivious(pgd), averaged(pgd(steps=3), 2)", **asked
    )
    (vain,) = (one for one in both.warnings if one.id == "W33")
    assert vain.level == "note" and "'averaged(pgd(steps=3), 2)' averages 2" in vain.seen
    drawn = besiege.evaluate(RANDOM, "digits", attacks="averaged(pgd(steps=3), 2)", **asked)
    assert "W33" not in {one.id for one in drawn.warnings}


def test_tries_and_probabilities_of_a_stochastic_model(tmp_path: Path) -> None:
    found = siege(tmp_path, RANDOM, DRAWN)
    chance, rows = found.figures.chance, found.by_sample
    assert chance is not None and [few.count for few in chance.within] == [1, 5, 10]
    assert chance.within[0].accuracy == pytest.approx(chance.robust.mean)
    assert 1 - rows["probability"].mean() == pytest.approx(chance.robust.mean)
    assert sum(one.images for one in chance.probabilities) == 16
    assert (rows["probability_low"] <= rows["probability"]).all()
    text = " ".join(found.page().read_text("utf-8").split())
    assert "10 tries" in text and "Success probability" in text


def test_a_model_that_may_reject_meets_gradients_of_its_detector_too() -> None:
    guarded = Detected(
        "zoo:digits-natural", Squeezing((BitDepth(1), Median(2))), Calibration(threshold=0.5)
    )
    how: dict[str, Any] = {"threat": "linf:0.15", "suite": "adaptive", "count": 4}
    accounts = [one.account for one in estimate(guarded, "digits", **how).prices]
    assert "opgd" in accounts and accounts.index("oblivious(pgd)") == 2


# Stopped, shared, declared.


def siege(folder: Path, model: str, texts: list[str], **more: Any) -> besiege.Evaluation:
    asked: dict[str, Any] = {"threat": "linf:0.15", "count": 16, "shard": 8, "curve": False}
    made: besiege.Evaluation = besiege.evaluate(
        model, "digits", suite=texts, out=folder, **asked, **more
    )
    return made


@pytest.mark.parametrize(
    ("model", "texts"), [pytest.param(BITS, SHORT, marks=pytest.mark.slow), (RANDOM, DRAWN)]
)
def test_killed_inside_every_attack_it_ends_with_the_same_records(
    model: str, texts: list[str], tmp_path: Path
) -> None:
    assert siege(tmp_path / "whole", model, texts).complete
    folder = tmp_path / "run"

    def killed(at: str) -> Callable[[], object]:
        def watch(event: Event) -> None:
            if event.stage and event.stage.attack == at:
                os.kill(os.getpid(), signal.SIGKILL)

        return lambda: siege(folder, model, texts, watch=watch)

    for at in texts:
        _, ended = os.waitpid(forked(killed(at)), 0)
        assert os.WIFSIGNALED(ended)
    assert siege(folder, model, texts).complete
    assert content(folder) == content(tmp_path / "whole")


POOLED = "zoo:digits-natural+resize_pad+pooled(draws=5)"


@pytest.mark.slow
def test_killed_at_ten_moments_a_pooled_model_ends_with_the_same_records(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"threat": "linf:0.15", "count": 8, "shard": 4, "curve": False}

    def run(folder: Path, **more: Any) -> besiege.Evaluation:
        made: besiege.Evaluation = besiege.evaluate(
            POOLED, "digits", suite="adaptive", out=folder, examine="none", **asked, **more
        )
        return made

    events = 0

    def count(event: Event) -> None:
        nonlocal events
        events += 1

    assert run(tmp_path / "whole", watch=count).complete
    folder, draws = tmp_path / "run", random.Random(0)

    def killed(at: int) -> Callable[[], object]:
        seen = 0

        def watch(event: Event) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

        return lambda: run(folder, watch=watch)

    stopped = 0
    for _ in range(10):
        _, ended = os.waitpid(forked(killed(draws.randrange(1, max(2, events // 6)))), 0)
        stopped += os.WIFSIGNALED(ended)
    assert stopped >= 5, "most of the runs must be killed"
    assert run(folder).complete
    assert content(folder) == content(tmp_path / "whole")


@pytest.mark.slow
def test_workers_make_the_same_records(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    siege(tmp_path / "alone", BITS, SHORT, examine="none")
    siege(tmp_path / "shared", BITS, SHORT, examine="none", workers=2)
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


SPEC = """
name = "defenses"
data = "digits"
count = 5

[models]
natural = "zoo:digits-natural"
bits = "zoo:digits-natural+bits(depth=1)"
random = "zoo:digits-natural+resize_pad(least=0.75)"

[[cells]]
name = "adaptive"
threat = "linf:0.4"
suite = "adaptive"

[[cells]]
name = "ignored"
threat = "linf:0.15"
attacks = ["oblivious(pgd)"]
"""


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark") / "run"
    measure(declared(benchmark_of(tomllib.loads(SPEC)), Path()), out=folder)
    return folder


def test_a_benchmark_fits_the_suite_to_every_model(benchmark: Path) -> None:
    board = board_of(benchmark)
    cell = board.cell("adaptive")
    tried = {
        model: {text for a, text in enumerate(cell.attacks) if cell.covered[m, a].any()}
        for m, model in enumerate(cell.models)
    }
    usual = suite("adaptive")
    assert tried == {
        "natural": {*usual.attacks[1:]},
        "bits": {*usual.attacks, *usual.rounding},
        "random": {*usual.stochastic},
    }
    assert board.cell("ignored").models == ("bits", "random")
    ((place, model, reason),) = board.unfit
    assert (place, model) == ("ignored", "natural") and "nothing to be oblivious of" in reason


def test_the_site_labels_it_as_transfer(benchmark: Path) -> None:
    site = write_site(benchmark).parent
    for page in ("index.html", "cells/adaptive.html", "models/bits.html"):
        text = (site / page).read_text("utf-8")
        labels = re.findall(r"oblivious\(pgd\)</code>(.{0,400}?)</tr>", text, re.DOTALL)
        assert labels and all("transfer" in one for one in labels), page
