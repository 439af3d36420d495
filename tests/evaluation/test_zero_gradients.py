"""Zeros in a gradient: W11's advice tells harmless ones from those that hide something."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.evaluation.test_examining import natural
from torch import Tensor, nn

import besiege
from besiege.evaluation.slope_checks import OF_THE_ANSWERS


class Edges(nn.Module):
    """Digits without their edges, or with edges that have no gradient."""

    inside: Tensor

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.network, self.read = natural(), read
        self.register_buffer("inside", nn.functional.pad(torch.ones(1, 1, 6, 6), (1, 1, 1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        kept = x * self.inside
        if self.read:
            kept = kept + (x * (1 - self.inside)).detach()
        logits: Tensor = self.network(kept)
        return logits


class Off(nn.Module):
    """Dark pixels switch the first ReLUs off."""

    def __init__(self) -> None:
        super().__init__()
        self.network = natural()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(torch.relu(x - 0.2))
        return logits


@pytest.mark.usefixtures("examined")
@pytest.mark.parametrize(
    ("model", "outcome", "faults"),
    [
        pytest.param(Edges(read=False), "passed", set(), id="edges that are not read"),
        pytest.param(Off(), "passed", set(), id="ReLUs that are off"),
        pytest.param(Edges(read=True), "failed", {"W45"}, id="edges without a gradient"),
    ],
)
def test_the_check_that_w11_names_tells_the_causes_apart(
    model: nn.Module, outcome: str, faults: set[str], tmp_path: Path
) -> None:
    found = besiege.evaluate(
        model.eval(), "digits", threat="linf:0.15", attacks="pgd(steps=5)", count=30, out=tmp_path
    )
    (warning,) = [one for one in found.warnings if one.id == "W11"]
    assert "is exactly zero, on average" in warning.seen and warning.level == "warning"
    assert f"'{OF_THE_ANSWERS}'" in warning.advice
    for word in ("does not read", "ReLUs are off", "surrogate"):
        assert word in warning.advice
    assert found.figures.examination is not None
    checks = {check.name: check.outcome for check in found.figures.examination.checks}
    assert checks[OF_THE_ANSWERS] == outcome
    assert {one.id for one in found.warnings if one.level == "stop"} == faults
