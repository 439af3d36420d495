"""Evaluations are examined: as tasks like any other, and with the figures that follow."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.bench.overview import open_run, status
from besiege.bench.plan import Plan
from besiege.bench.spec import Request
from besiege.core.examination import Check
from besiege.models import Classifier

pytestmark = pytest.mark.usefixtures("examined")

ASK: dict[str, Any] = {"threat": "linf:0.15", "count": 30, "curve": False}
NAMES = [
    "gradients match finite differences",
    "gradients lower the margin within the budget",
    "an image gets one answer",
    "scores near the images are finite and vary",
    "attacks without gradients break no more",
    "answers are the same after the attacks",
    "the attacks find known adversarial examples",
]


def natural() -> nn.Module:
    return besiege.models.load("zoo:digits-natural").module


class Backwards(torch.autograd.Function):
    """The image itself, with the gradient of another one."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *slope: Tensor) -> Tensor:
        return slope[0].flip(2, 3)


class Misleading(nn.Module):
    """A natural network whose gradient is that of the image turned upside down."""

    def __init__(self) -> None:
        super().__init__()
        self.net = natural()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(Backwards.apply(x))  # type: ignore[no-untyped-call]  # torch
        return y


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    folder = tmp_path_factory.mktemp("honest") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "examined", property(lambda self: True))
        found: besiege.Evaluation = besiege.evaluate(
            "zoo:digits-pgd-at", "digits", out=folder, **ASK
        )
    return found


def of(found: besiege.Evaluation, name: str) -> Check:
    assert found.examination is not None
    return next(check for check in found.examination.checks if check.name == name)


def test_an_honest_model_passes_every_check(honest: besiege.Evaluation) -> None:
    assert honest.examination is not None
    assert [check.name for check in honest.examination.checks] == NAMES
    assert {check.outcome for check in honest.examination.checks} == {"passed"}
    assert all(check.number for check in honest.examination.checks)
    # Another loss breaks 5 points more of these images, which on so few may be chance.
    assert [one.level for one in honest.warnings if one.id == "W23"] == ["note"]
    assert (honest.examination.enough, honest.examination.doubts) == ("yes", ())
    assert not [one for one in honest.warnings if one.level == "stop"]
    again = besiege.open(honest.folder)
    assert isinstance(again, besiege.Evaluation)
    assert again.examination == honest.examination, "it is read back"


def test_a_guard_is_tried_on_a_few_images_that_are_left(honest: besiege.Evaluation) -> None:
    *attacks, noise, guard, other = honest.figures.attacks
    assert (guard.text, other.text) == ("square (guard)", "pgd on another model (guard)")
    assert noise.text == "noise (guard)", "the weakest first"
    assert other.transfer and other.forwards == 0, "the model got each image once"
    assert honest.robust is not None and honest.robust.count == 30, "all images are covered"
    rows = honest.rows.where(honest.rows["attack"] == guard.text)
    assert 0 < rows.count < 30
    assert not set(rows["sample"]) & set(
        honest.by_sample["sample"][honest.by_sample["fate"] == "wrong"]
    )
    spent = sum(one.forwards + one.backwards for one in attacks)
    assert guard.forwards <= 0.2 * spent and noise.forwards <= 0.05 * spent
    of_all = [noise.text, guard.text, other.text]
    tried = honest.rows.where(np.isin(honest.rows["attack"], of_all))
    assert of(honest, NAMES[4]).number == f"0 of {len(set(tried['sample']))} images"


def test_a_misled_attack_is_noticed_and_the_lower_figure_printed(tmp_path: Path) -> None:
    model = Classifier(Misleading(), name="misleading")
    asked = {**ASK, "count": 16}
    found = besiege.evaluate(model, "digits", out=tmp_path, **asked)
    alone = besiege.evaluate(
        model, "digits", attacks="fgsm, pgd, each_target(pgd(loss=margin), 3)", **asked
    )
    assert found.robust is not None and alone.robust is not None
    assert found.robust.value < alone.robust.value - 0.2
    assert found.examination is not None and found.examination.enough == "no"
    assert {"W08", "W45"} <= {one.id for one in found.warnings if one.level == "stop"}
    assert of(found, NAMES[0]).outcome == of(found, NAMES[4]).outcome == "failed"
    noise, guard = found.figures.attacks[-3:-1]
    left = noise.accuracy
    assert left is not None and guard.broken > 0.02 * left.hits
    tried = found.rows.where(found.rows["attack"] == guard.text)
    assert tried.count == left.hits, "on every image that the attacks left"
    (plan,) = open_run(tmp_path)[1].plans
    assert plan.guarded == "all"
    fates = found.by_sample
    assert (fates["attack"][fates["fate"] == "broken"] == guard.text).sum() == guard.broken
    assert of(alone, NAMES[4]).outcome == "not run", "no attack without gradients was listed"


class Fragile(nn.Module):
    """One pixel decides the class, but the other class is answered beyond a plane.

    The plane takes the sum of random signs of the changes of all other pixels. Logits are constant
    between the boundaries, and gradients lead away from the plane.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signs = nn.Buffer(torch.randn(64, generator=torch.Generator().manual_seed(0)).sign())
        self.signs[0] = 0
        self.limit = 0.1 * 10  # one in ten random corners of the ball is beyond it

    def forward(self, x: Tensor) -> Tensor:
        along = (x.flatten(1) - 0.5) @ self.signs
        answered = 4.0 * nn.functional.one_hot((x[:, 0, 0, 0] > 0.5).long(), 2)
        logits = torch.where(along[:, None] > self.limit, answered.flip(1), answered)
        return logits + answered * (along - along.detach())[:, None]


def test_random_points_that_break_more_than_gradients_are_said_so() -> None:
    labels = torch.arange(80) % 2
    images = torch.full((80, 1, 8, 8), 0.5)
    images[:, 0, 0, 0] += 0.4 * (labels - 0.5)
    words: dict[str, Any] = {"threat": "linf:0.1", "curve": False}
    found = besiege.evaluate(Fragile(), (images, labels), **words)
    check = of(found, NAMES[4])
    assert (check.outcome, check.rule) == ("failed", "W10") and "random points" in check.seen
    assert "W10" in {one.id for one in found.warnings if one.level == "stop"}
    assert not {"W08", "W09"} & {one.id for one in found.warnings}
    *attacks, noise, square = found.figures.attacks
    assert noise.text == "noise (guard)" and noise.broken > square.broken
    assert attacks[-1].accuracy is not None and attacks[-1].accuracy.value > 0.8
    assert found._plan.guards[0].attack.starts is not None, "it knows images of other classes"


def test_a_model_that_depends_on_the_batch_is_noticed() -> None:
    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = natural()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.net(x)
            return y if len(x) > 1 else y.flip(1)

    found = besiege.evaluate(Batched(), "digits", attacks="fgsm", **ASK)
    check = of(found, NAMES[2])
    assert check.outcome == "failed" and check.rule == "W46" and "batch" in check.seen


@pytest.mark.parametrize(
    "model", ["zoo:digits-pgd-at", pytest.param("zoo:digits-natural", marks=pytest.mark.slow)]
)
def test_the_curve_follows_the_guards(model: str) -> None:
    found = besiege.evaluate(model, "digits", threat="linf:0.15", count=8)
    assert found.complete and found.figures.eps_curve is not None
    assert found.examination is not None
    # A guard is tried on a few samples only: a curve of all samples would invent the others.
    assert not any("guard" in curve.attack for curve in found.figures.queries_curve)


def test_the_curve_follows_guards_that_break_images() -> None:
    model = Classifier(Misleading(), name="misleading")
    found = besiege.evaluate(model, "digits", threat="linf:0.15", count=8)
    assert found.complete and found.figures.eps_curve is not None
    assert found._plan.guarded == "all"


def test_in_l0_known_examples_are_not_tried() -> None:
    words: dict[str, Any] = {**ASK, "threat": "l0:5", "attacks": "fmn(steps=20)"}
    found = besiege.evaluate("zoo:digits-natural", "digits", **words)
    assert of(found, NAMES[6]).outcome == "not applicable"
    assert not [one for one in found.warnings if one.level == "stop"]


def test_nothing_is_examined_unless_asked_for(tmp_path: Path) -> None:
    found = besiege.evaluate("zoo:digits-natural", "digits", examine="none", **ASK)
    assert found.examination is None and not [
        one for one in found.figures.attacks if "guard" in one.text
    ]
    with pytest.raises(besiege.BesiegeError, match="did you mean 'short'"):
        besiege.evaluate("zoo:digits-natural", "digits", examine="shor", **ASK)


def test_examining_later_uses_all_records(tmp_path: Path) -> None:
    words = {**ASK, "out": tmp_path / "run", "attacks": "fgsm"}
    first = besiege.evaluate("zoo:digits-natural", "digits", examine="none", **words)
    store, _ = open_run(tmp_path / "run")
    before = store.present()
    second = besiege.evaluate("zoo:digits-natural", "digits", **words)
    assert before < store.present() and second.robust == first.robust
    assert second.figures.name == first.figures.name and not second.figures.history
    assert second.examination is not None


def test_a_black_box_is_examined_on_request_only() -> None:
    inner = besiege.models.load("zoo:digits-natural")
    model = besiege.function_model(lambda x: inner(torch.as_tensor(x)).detach().numpy(), classes=10)
    words = {**ASK, "count": 8, "attacks": "square(steps=10)"}
    found = besiege.evaluate(model, "digits", **words)
    assert of(found, NAMES[0]).outcome == "not applicable"
    assert of(found, NAMES[2]).outcome == "not run"
    assert found.examination is not None and found.examination.enough != "no"
    full = besiege.evaluate(model, "digits", examine="full", **words)
    assert of(full, NAMES[2]).outcome == "passed"


def test_adversarial_images_are_asked_again_after_the_attacks() -> None:
    words = {**ASK, "count": 16}
    compared, broken = [], []
    for attack in ("noise(steps=1)", "fgsm"):
        found = besiege.evaluate("zoo:digits-natural", "digits", attacks=attack, **words)
        compared.append(int((of(found, NAMES[5]).number).split()[0]))
        broken.append(found.figures.attacks[0].broken)
    assert compared[1] - compared[0] == broken[1] - broken[0] > 0


def test_killed_anywhere_it_ends_with_the_same_box(tmp_path: Path) -> None:
    def run(folder: Path) -> besiege.Evaluation:
        found: besiege.Evaluation = besiege.evaluate(
            "zoo:digits-natural", "digits", out=folder, shard=15, **ASK
        )
        return found

    whole = run(tmp_path / "whole")
    for delay in (0.4, 0.9, 1.5):
        child = os.fork()
        if child == 0:
            run(tmp_path / "killed")
            os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = run(tmp_path / "killed")
    assert found.examination == whole.examination and found.robust == whole.robust
    assert status(tmp_path / "killed")[0].complete
    one, other = ({task.key for task in _plan(tmp_path / n).tasks()} for n in ("whole", "killed"))
    assert one == other


def _plan(folder: Path) -> Plan:
    (plan,) = open_run(folder)[1].plans
    return plan


def test_the_active_test_can_be_requested_by_number(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"attacks": "pgd", "curve": False, "threat": "linf:0.15", "count": 120}
    found = besiege.evaluate(
        "zoo:digits-pgd-at",
        "digits",
        **asked,
        shard=50,
        examine="none",
        active_test=60,
        out=tmp_path,
    )
    assert found.examination is not None and found.examination.enough == "unknown"
    check = of(found, NAMES[6])
    assert (
        check.outcome == "passed"
        and "60 known examples" in check.number
        and check.number.endswith(" to 100 %)")
    )
    (row,) = (one for one in open_run(tmp_path)[1].plans)
    (stage,) = row.stages_of("active")
    (((task,),)) = stage.parts
    assert len(task.identity["shards"]) == 2 and task.identity["first"] == 0
    assert "--active-test 60" in row.request.command
    again = besiege.evaluate(
        "zoo:digits-pgd-at", "digits", **asked, shard=50, examine="none", out=tmp_path
    )
    assert again.examination is None, "not requested this time"
    assert len(open_run(tmp_path)[1].plans) == 1, "it is the same evaluation"


def test_an_active_test_of_attacks_without_gradients_says_why_not() -> None:
    found = besiege.evaluate(
        "zoo:digits-natural",
        "digits",
        attacks="square(steps=5)",
        examine="none",
        active_test=True,
        **ASK,
    )
    assert of(found, NAMES[6]).outcome == "not run"
    assert "no attack follows gradients" in of(found, NAMES[6]).seen


@pytest.mark.parametrize("number", [19, 0, 2.5, "50"])
def test_too_few_images_for_an_active_test_are_refused(number: Any) -> None:
    with pytest.raises(besiege.BesiegeError, match="active_test is"):
        besiege.evaluate("zoo:digits-natural", "digits", active_test=number, **ASK)


@pytest.mark.usefixtures("examined")
def test_attacks_without_gradients_alone_are_not_called_strong_enough() -> None:
    found = besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.15", attacks="square(steps=20)", count=12
    ).examination
    assert found is not None and found.enough == "not asked"
    assert "no attack used the gradients of this model" in found.answer


def test_a_function_is_examined_without_gradients() -> None:
    """A function that ends in numpy() fails on tensors that need gradients."""
    net = besiege.models.load("zoo:digits-natural").module
    victim = besiege.function_model(lambda x: net(torch.from_numpy(x)).numpy(), name="mine")
    options: dict[str, Any] = {"attacks": "square(steps=10)", "count": 8, "examine": "full"}
    found = besiege.evaluate(victim, "digits", threat="linf:0.15", **options).examination
    assert found is not None and not found.findings
