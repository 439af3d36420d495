"""The examination of victims that may reject images: classes and rejection, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import besiege
from besiege.core.dice import Dice
from besiege.core.examination import Check
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses import (
    BitDepth,
    Calibration,
    Detected,
    Detector,
    Examined,
    Median,
    Squeezing,
    load,
)
from besiege.defenses.detecting import Numbers
from besiege.evaluation.examining import examine
from besiege.models.classifier import Classifier

DIGITS = "zoo:digits-natural"
OPEN = Calibration(threshold=1.0, spread=0.1, gain=2.0)
SHUT = Calibration(threshold=-1.0, spread=0.1, gain=2.0)


@dataclass(frozen=True)
class Far(Detector):
    """A smooth score of two halves of the image, changed by a function of the score."""

    change: Callable[[Tensor], Tensor] = torch.clone

    def examine(self, victim: Victim, x: Tensor, dice: Dice, numbers: Numbers) -> Examined:
        left, right = x.flatten(1).chunk(2, 1)
        return Examined(victim(x, dice), self.change((left - right).square().mean(1)))


class Turned(torch.autograd.Function):
    """The same values, and the opposite gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradient: Tensor) -> Tensor:
        return -gradient[0]


def turned(score: Tensor) -> Tensor:
    changed: Tensor = Turned.apply(score)  # type: ignore[no-untyped-call]  # torch declares none
    return changed


def checks_of(victim: Victim) -> list[Check]:
    data = besiege.data.load("digits", count=64)
    samples = Samples.of(data.images, data.labels)
    return examine(victim, samples, Threat.parse("linf:0.1"), fresh=lambda: victim)


@pytest.mark.parametrize("calibration", [OPEN, SHUT])
def test_an_honest_detector_passes_whether_it_accepts_or_rejects(calibration: Calibration) -> None:
    checks = checks_of(Detected(DIGITS, Far(), calibration))
    assert [check.outcome for check in checks] == ["passed"] * 4


@pytest.mark.parametrize("change", [turned, torch.detach], ids=["reversed", "detached"])
def test_a_wrong_gradient_of_the_score_is_found_where_every_image_is_accepted(
    change: Callable[[Tensor], Tensor],
) -> None:
    first = checks_of(Detected(DIGITS, Far(change), OPEN))[0]
    assert first.rule == "W45"
    assert "rejection" in first.seen and "of the rejection" in first.number


@pytest.mark.parametrize("calibration", [OPEN, SHUT])
def test_a_wrong_gradient_of_the_classes_is_found_where_every_image_is_rejected(
    calibration: Calibration,
) -> None:
    class Wrong(Classifier):
        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            return turned(super().__call__(x, dice))

    natural = load(DIGITS)
    assert isinstance(natural, Classifier)
    first = checks_of(Detected(Wrong(natural.module), Far(), calibration))[0]
    assert first.rule == "W45" and "rejection" not in first.seen


def test_squeezers_with_surrogates_are_declared_and_the_model_is_examined() -> None:
    squeezing = Squeezing((BitDepth(1), Median(2)))
    checks = checks_of(Detected(DIGITS, squeezing, Calibration(0.3, 0.1, 2.0)))
    assert [check.outcome for check in checks] == ["passed"] * 4
    assert "past 1 layer with a surrogate" in checks[0].number
