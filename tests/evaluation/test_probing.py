"""A model that computes gradients while it answers is found, and torch is left as it was."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad as imported_before

from besiege.core.errors import VictimError
from besiege.core.samples import Samples
from besiege.evaluation.judging import predict_clean
from besiege.evaluation.probing import GradientUseProbe, optimising
from besiege.models.classifier import Classifier

SAMPLES = Samples.of(torch.rand(6, 1, 4, 4), torch.zeros(6).long())


class Purifier(nn.Module):
    """Moves its input by a gradient before it looks at it, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        with torch.enable_grad():
            change = torch.zeros_like(flat).requires_grad_()
            energy = self.layer(flat + change).square().sum()
            move = change.detach()
            if self.way == "grad":
                (move,) = torch.autograd.grad(energy, change)
            elif self.way == "imported":
                (move,) = imported_before(energy, change)
            elif self.way == "backward":
                torch.autograd.backward(energy)
                assert change.grad is not None
                move = change.grad
            elif self.way == "optimiser":
                energy.backward()
                torch.optim.SGD([change], 0.1).step()
                move = change.detach()
            elif self.way == "func":
                move = torch.func.grad(lambda z: self.layer(z).square().sum())(flat)
        logits: Tensor = self.layer(flat - 0.1 * move)
        return logits


@pytest.mark.parametrize("way", ["grad", "imported", "backward", "optimiser", "func"])
def test_w38_is_heard(way: str) -> None:
    sight = predict_clean(Classifier(Purifier(way)), SAMPLES)
    assert [f.id for f in sight.findings] == ["W38"]
    assert sight.findings[0].level == "warning"


def test_a_model_that_only_answers_is_quiet() -> None:
    victim = Classifier(Purifier("none"))
    assert predict_clean(victim, SAMPLES).findings == ()
    with torch.enable_grad():  # nor does what the caller does matter
        assert optimising(victim, SAMPLES) == []


def test_only_this_thread_is_listened_to() -> None:
    weight = torch.ones(3, requires_grad=True)
    with GradientUseProbe() as probe:
        other = threading.Thread(target=lambda: torch.autograd.grad(weight.sum(), weight))
        other.start()
        other.join()
        assert not probe.used
        torch.autograd.grad(weight.sum(), weight)
        assert probe.used


def test_a_model_that_fails_leaves_nothing_behind() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("on purpose")

    with pytest.raises((RuntimeError, VictimError)):
        optimising(Classifier(Failing()), SAMPLES)
    assert torch.overrides._get_current_function_mode() is None  # type: ignore[no-untyped-call]


def test_w14_five_passes_find_what_two_may_miss() -> None:
    class Drifting(nn.Module):
        """Answers otherwise the fourth time it is asked."""

        asked = 0

        def forward(self, x: Tensor) -> Tensor:
            self.asked += 1
            return torch.stack([x.sum((1, 2, 3)), torch.full((len(x),), float(self.asked > 3))], 1)

    sight = predict_clean(Classifier(Drifting()), SAMPLES)
    assert [(f.id, f.level) for f in sight.findings] == [("W14", "stop")]


def test_w14_knows_classes_that_are_ruled_out() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits = x.flatten(1)[:, :4].clone()
            logits[:, 3] = -torch.inf
            return logits

    assert predict_clean(Classifier(Masked()), SAMPLES).findings == ()
