from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.thermometer import level, middle
from besiege.defenses import BitDepth, Defended, Thermometer, load
from besiege.models import Classifier
from besiege.models.small import digits_cnn
from besiege.testing import conform_victim

BOX = (0.0, 1.0)
DICE = Dice.throw(0, torch.arange(4))
X = torch.rand(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))


def test_codes_are_one_from_the_level_on_channel_by_channel() -> None:
    values = torch.tensor([0.0, 0.24, 0.26, 0.99, 1.0])
    x = torch.stack([values, 1 - values]).view(1, 2, 1, 5)
    code = Thermometer(4)(x, BOX, DICE)
    assert code.shape == (1, 8, 1, 5)
    # The top of the box has the highest level, not one above it.
    assert level(values, BOX, 4).tolist() == [0, 0, 1, 3, 3]
    # Values that a layer before moved out of the box have the nearest level.
    assert level(torch.tensor([-0.5, 1.5]), BOX, 4).tolist() == [0, 3]
    first = [[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]]
    assert code[0, :4, 0].T.tolist() == first
    second = [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert code[0, 4:, 0].T.tolist() == second


def test_the_code_is_the_cumulative_sum_of_the_one_hot_level() -> None:
    one_hot = nn.functional.one_hot(level(X, BOX, 16), 16).movedim(-1, 2)
    assert torch.equal(Thermometer()(X, BOX, DICE), one_hot.cumsum(2).float().flatten(1, 2))


@pytest.mark.parametrize("box", [(-1.0, 1.0), (0.0, 255.0)])
def test_another_box_has_the_same_codes(box: tuple[float, float]) -> None:
    there = X * (box[1] - box[0]) + box[0]
    for layer in (Thermometer(5), Thermometer()):
        assert torch.equal(layer(there, box, DICE), layer(X, BOX, DICE))


def test_the_middle_of_a_level_has_that_level() -> None:
    for box in ((0.0, 1.0), (-1.0, 1.0)):
        values = torch.tensor(middle(16, box))
        assert level(values, box, 16).tolist() == list(range(16))


def test_the_gradient_is_that_of_the_ramp() -> None:
    layer, k = Thermometer(8), 8
    weights = torch.randn(4, 3, k, 5, 6, generator=torch.Generator().manual_seed(1))
    x = X.clone().requires_grad_(True)
    code = layer(x, BOX, DICE)
    assert torch.equal(code.detach(), layer.transform(X, BOX, DICE))
    (slope,) = torch.autograd.grad((code * weights.flatten(1, 2)).sum(), x)
    # The ramp of the level that the value lies in falls from 1 to 0; all others are flat.
    at = (X * k).floor().long()
    expected = -k * weights.gather(2, at.unsqueeze(2)).squeeze(2)
    assert torch.allclose(slope, expected, atol=1e-4)


def test_a_soft_code_passes_unchanged_with_its_own_gradient() -> None:
    soft = torch.rand(4, 3, 16, 5, 6, requires_grad=True)
    passed = Thermometer()(soft, BOX, DICE)
    assert torch.equal(passed, soft.flatten(1, 2))
    (slope,) = torch.autograd.grad(passed.square().sum(), soft)
    assert torch.allclose(slope, 2 * soft.detach())
    # Images of as many channels as there are levels are images.
    assert Thermometer(3)(X, BOX, DICE).shape == (4, 9, 5, 6)


def test_a_network_for_codes_is_a_victim() -> None:
    torch.manual_seed(0)
    victim = Defended(Classifier(digits_cnn(in_channels=4).eval(), classes=10), Thermometer(4))
    images = besiege.data.load("digits", count=11).images
    conform_victim(victim, images)
    assert victim.name == "Sequential+thermometer(levels=4)"


def test_a_network_for_other_channels_is_refused_with_what_to_build() -> None:
    images = torch.rand(8, 1, 8, 8)
    for text in ("zoo:digits-natural+thermometer", "zoo:digits-natural+thermometer+bits"):
        with pytest.raises(
            VictimError,
            match=r"16 channels of 1.*takes images of 1.*"
            r"resnet20\(in_channels=16\)",
        ):
            load(text)(images)
    with pytest.raises(VictimError, match=r"resnet20\(in_channels=48\)"):
        besiege.evaluate(
            "zoo:cifar10-resnet20-pgd-at+thermometer",
            (torch.rand(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)),
            attacks="pgd",
            threat="linf:8/255",
        )


def test_other_failures_of_the_network_stay_as_they_are() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("out of order")

    for layer in (Thermometer(4), BitDepth(3)):
        with pytest.raises(VictimError, match="out of order"):
            Defended(Classifier(Failing()), layer)(torch.rand(2, 1, 8, 8))


@pytest.mark.parametrize("levels", [0, 1, 257, 2.5])
def test_levels_that_make_no_sense_are_refused(levels: int) -> None:
    with pytest.raises(ValueError, match="2 to 256 make sense"):
        Thermometer(levels)
