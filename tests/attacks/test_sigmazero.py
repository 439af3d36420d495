"""Sigma-zero against a plain implementation of its own, and what it promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from besiege.attacks import parse
from besiege.attacks.sigmazero import SigmaZero
from besiege.attacks.weighting import USUAL_DECAYS as DECAYS
from besiege.core.threat import L0, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import digits, linear, natural

STEPS = 30


def reference(victim: Classifier, x0: Tensor, y: int, attack: SigmaZero) -> float:
    """The smallest count that sigma-zero finds for one image, by autograd and float64 Adam."""
    d = torch.zeros_like(x0, dtype=torch.float64)
    m, v = torch.zeros_like(d), torch.zeros_like(d)
    chosen, best, unit = attack.settled(), math.inf, 0.0
    cut, rate = chosen.threshold, chosen.rate
    for step in range(attack.steps + 1):
        point = d.clone().requires_grad_(True)
        z = victim((x0.double() + point).float())[0]
        other = torch.cat((z[:y], z[y + 1 :])).max()
        crossed = bool(z.argmax() != y)
        if crossed:
            best = min(best, int((d != 0).sum()))
        if step == attack.steps:
            return best
        (slope,) = torch.autograd.grad((z[y] - other).double(), point)
        if step == 0:
            unit = 1.0 / float(slope.abs().max())
        counted = d.clone().requires_grad_(True)
        mean = (counted**2 / (counted**2 + chosen.sigma)).mean()
        (pull,) = torch.autograd.grad(mean, counted)
        g = pull + (0.0 if crossed else unit) * slope
        g = g / g.abs().max().clamp_min(1e-30)
        m = DECAYS[0] * m + (1 - DECAYS[0]) * g
        v = DECAYS[1] * v + (1 - DECAYS[1]) * g**2
        move = (m / (1 - DECAYS[0] ** (step + 1))) / (
            (v / (1 - DECAYS[1] ** (step + 1))).sqrt() + 1e-30
        )
        d = (x0 + d - rate * move).clamp(0, 1) - x0
        left = (1 + math.cos(math.pi * step / attack.steps)) / 2
        rate = chosen.rate * (chosen.end + (1 - chosen.end) * left)
        cut = min(1.0, max(0.0, cut + (attack.pace if crossed else -attack.pace) * rate))
        d = torch.where(d.abs() < cut, 0.0, d)
    return best


@pytest.mark.parametrize("pace", [0.01, 0.3])  # the second moves the threshold a long way
def test_it_finds_what_a_plain_implementation_finds(pace: float) -> None:
    victim, samples = natural(), digits(24)
    attack = SigmaZero(steps=STEPS, pace=pace)
    found = craft(victim, attack, samples, Threat(L0, None))
    with victim.held():
        plain = [
            reference(victim, x[None], int(y), attack)
            for x, y in zip(samples.images, samples.labels, strict=True)
        ]
    # Rounding sends single rows elsewhere: of discrete counts nearly all are the same.
    same = sum(a == b for a, b in zip(found.distance.tolist(), plain, strict=True))
    assert same >= 20
    assert abs(float(found.distance.mean()) - sum(plain) / len(plain)) < 0.2


def test_long_runs_are_as_published_and_what_is_given_is_taken() -> None:
    assert SigmaZero(steps=1000).settled() == (1.0, 1e-3, 0.3, 0.1)
    assert SigmaZero(sigma=0.5).settled() == (0.8, 0.5, 0.4, 0.3)


def test_on_a_linear_victim_it_comes_near_the_fewest_entries_there_are() -> None:
    victim = linear(classes=2)
    samples, known = victim.equidistant(L0)
    found = craft(victim, parse("sigmazero"), samples, Threat(L0, None))
    assert found.success.all()
    assert float(found.distance.mean()) <= 1.25 * known.mean()


def test_it_goes_nearer_than_fmn_for_the_same_passes() -> None:
    victim, samples = natural(), digits(40)
    ours, other = (craft(victim, parse(t), samples, Threat(L0, None)) for t in ("sigmazero", "fmn"))
    assert torch.equal(ours.backwards, other.backwards)
    assert float(ours.distance.mean()) <= float(other.distance.mean())


def test_saturated_pixels_and_a_flat_slope_are_no_end() -> None:
    victim = linear((1, 2, 2), 2)
    samples = victim.samples(8)
    found = craft(victim, parse("sigmazero(steps=40)"), samples, Threat(L0, None))
    assert torch.isfinite(found.images).all()


@pytest.mark.parametrize("wrong", ["steps=0", "rate=0", "sigma=-1.0", "threshold=0", "pace=0"])
def test_settings_that_would_do_nothing_are_refused(wrong: str) -> None:
    with pytest.raises(Exception, match=wrong.partition("=")[0]):
        parse(f"sigmazero({wrong})")
