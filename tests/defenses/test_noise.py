from __future__ import annotations

import pytest
import torch

from besiege.attacks.attack import parse
from besiege.core.dice import Dice
from besiege.core.errors import StochasticError
from besiege.core.threat import Threat
from besiege.defenses import GaussianNoise, load
from besiege.evaluation.crafting import craft
from besiege.testing.victims import digits

X = torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
DICE = Dice.throw(0, torch.arange(50))


@pytest.mark.parametrize("box", [(0.0, 1.0), (0.0, 255.0), (-1.0, 1.0)])
def test_noise_is_gaussian_relative_to_the_box_and_not_clamped(box: tuple[float, float]) -> None:
    width = box[1] - box[0]
    x = X * width + box[0]
    noise = (GaussianNoise(0.25)(x, box, DICE) - x) / width
    assert abs(float(noise.mean())) < 0.02 and abs(float(noise.std()) - 0.25) < 0.01
    # As many beyond one and two deviations as a normal distribution has, which clamping would cut.
    for deviations, share in ((1, 0.317), (2, 0.0455)):
        beyond = float((noise.abs() > deviations * 0.25).float().mean())
        assert abs(beyond - share) < 0.02


def test_it_is_a_layer_with_a_text_that_makes_the_victim_stochastic() -> None:
    victim = load("zoo:digits-natural+gaussian_noise(sigma=0.1)")
    assert victim.stochastic and str(victim) == "zoo:digits-natural+gaussian_noise(sigma=0.1)"
    with pytest.raises(StochasticError, match="averaged"):
        craft(victim, parse("pgd"), digits(4), Threat.parse("linf:0.1"))
    for sigma in (0, -1, float("inf")):
        with pytest.raises(ValueError, match="positive standard deviation"):
            GaussianNoise(sigma)
