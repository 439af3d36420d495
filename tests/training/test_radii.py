"""Radii of training images: their distributions."""

from __future__ import annotations

import math

import pytest
import torch

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.training import recipe
from besiege.training.radii import HalfNormal, whole

DICE = Dice.throw(0, torch.arange(100_000))


def test_a_truncated_half_normal() -> None:
    drawn = 255 * HalfNormal(8 / 255, 16 / 255)(1.0, DICE)
    # The mean of a half-normal cut at two deviations.
    inside = math.erf(2 / math.sqrt(2))
    mean = 8 * math.sqrt(2 / math.pi) * (1 - math.exp(-2)) / inside
    assert mean == pytest.approx(5.78, abs=0.01)
    assert float(drawn.mean()) == pytest.approx(mean, abs=4 * 4.1 / 100_000**0.5)
    assert float(drawn.min()) >= 0 and float(drawn.max()) <= 16 and (drawn == 16).sum() == 0
    for quantile in (0.1, 0.5, 0.9):  # of the distribution function itself
        at = float(drawn.quantile(quantile))
        assert math.erf(at / 8 / math.sqrt(2)) / inside == pytest.approx(quantile, abs=0.01)


@pytest.mark.parametrize(
    ("sigma", "cap", "share", "mean"),
    [(50 / 255, 0.3, 0.126, 0.146), (15 / 255, 0.1, 0.089, 0.0448)],
)
def test_deepsec_clips_instead(sigma: float, cap: float, share: float, mean: float) -> None:
    drawn = HalfNormal(sigma, cap, "clipped")(1.0, DICE)
    assert float((drawn == cap).double().mean()) == pytest.approx(share, abs=0.004)
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.001)
    assert float(drawn.max()) == cap


def test_every_image_and_every_epoch_has_its_own() -> None:
    plan = recipe("nat@digits(ramp=2)")
    first, again, later = (plan.radii_at(e, DICE.of("epoch", e)) for e in (2, 2, 3))
    assert torch.equal(first, again) and not torch.equal(first, later)
    assert len(set(first.tolist())) > 90_000
    half = plan.radii_at(1, DICE.of("epoch", 2))
    assert torch.allclose(half * 2, first)
    some = Dice(DICE.key[[5, 9]])
    assert torch.equal(plan.radii_at(3, some), plan.radii_at(3, DICE)[[5, 9]])
    assert torch.equal(whole(0.5, some), torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_a_cap_beyond_the_budget_is_refused() -> None:
    with pytest.raises(InputError, match="give the threat the larger one"):
        recipe("nat@digits(threat='linf:0.1')")
    assert recipe("nat@digits(threat='linf:0.1', radius=half_normal(0.05, cap=0.1))").threat
