"""`nlm` against a plain loop over pixels; tests/peers compares it with OpenCV."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.defenses import NonLocalMeans, load
from besiege.defenses.lab import from_lab, to_lab

BOX = (0.0, 1.0)


def dice(rows: int) -> Dice:
    return Dice.throw(0, torch.arange(rows))


def by_hand(image: np.ndarray, search: int, patch: int, strength: float) -> np.ndarray:
    """Non-local means of whole numbers ``[height, width, channels]``, pixel by pixel."""
    reach, rim = search // 2, patch // 2
    edge = reach + rim
    padded = np.pad(image.astype(int), ((edge, edge), (edge, edge), (0, 0)), mode="reflect")
    power = 2 ** int(np.ceil(np.log2(patch**2)))
    made = np.empty(image.shape)
    for y, x in np.ndindex(image.shape[:2]):
        here = padded[y + reach : y + reach + patch, x + reach : x + reach + patch]
        total, weights = np.zeros(image.shape[2]), 0.0
        for i, j in np.ndindex(search, search):
            there = padded[y + i : y + i + patch, x + j : x + j + patch]
            distance = ((here - there) ** 2).sum() // power * power / patch**2
            weight = np.exp(-distance / (strength**2 * image.shape[2]))
            weight = weight if weight >= 0.001 else 0.0
            total += weight * there[rim, rim]
            weights += weight
        made[y, x] = np.floor(total / weights + 0.5)
    return made


@pytest.mark.parametrize(("search", "patch", "strength"), [(13, 3, 2), (5, 1, 20), (3, 5, 40)])
def test_it_is_the_loop_over_pixels(search: int, patch: int, strength: float) -> None:
    rng = np.random.default_rng(0)
    steps = 100 + 4 * rng.integers(0, 4, (1, 5, 5)).repeat(2, 1).repeat(2, 2)
    grey = (steps + rng.integers(-1, 2, steps.shape)).clip(0, 255)
    x = torch.from_numpy(grey / 255).float()[None]
    made = NonLocalMeans(search, patch, strength)(x, BOX, dice(1)) * 255
    expected = by_hand(grey[0][..., None], search, patch, strength)[..., 0]
    assert np.abs(made[0, 0].numpy() - expected).max() < 1.01
    assert (np.abs(made[0, 0].numpy() - expected) < 0.01).mean() > 0.98
    assert np.abs(expected - grey[0]).max() > 0.5  # something was averaged


def test_weights_below_the_threshold_of_opencv_do_not_count() -> None:
    """168 pixels that differ by 100 levels: of weight exp(-7) each they would move one by 13."""
    x = torch.zeros(1, 1, 15, 15)
    x[..., 7, 7] = 100 / 255
    made = {
        strength: float(255 * NonLocalMeans(13, 1, strength)(x, BOX, dice(1))[0, 0, 7, 7])
        for strength in (37.8, 39.0)
    }
    assert math.exp(-((100 / 37.8) ** 2)) < 0.001 < math.exp(-((100 / 39) ** 2))
    assert round(made[37.8]) == 100 and round(made[39.0]) < 85


def test_colours_are_averaged_in_lab_lightness_apart() -> None:
    rng = np.random.default_rng(1)
    image = (rng.integers(0, 256, (1, 4, 4, 3)).repeat(2, 1).repeat(2, 2)).clip(0, 255)
    x = torch.from_numpy(image).permute(0, 3, 1, 2).float()
    lab = to_lab(x.flip(1))[0].permute(1, 2, 0).numpy()
    light, colour = (by_hand(part, 5, 3, 30) for part in (lab[..., :1], lab[..., 1:]))
    joined = torch.from_numpy(np.concatenate([light, colour], 2)).permute(2, 0, 1).float()[None]
    made = NonLocalMeans(5, 3, 30)(x / 255, BOX, dice(1)) * 255
    assert ((made - from_lab(joined).flip(1)).abs() < 0.01).float().mean() > 0.97


def test_lab_is_cie_lab_and_goes_back() -> None:
    # Linear primaries: L, a and b of CIE 1976 under D65, scaled to 8 bits.
    colours = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 0, 255]]).float()
    lab = to_lab(colours.T[None, :, :, None])[0, :, :, 0].T
    expected = torch.tensor([[0, 128, 128], [255, 128, 128], [136, 208, 195], [82, 207, 20]])
    assert (lab - expected).abs().max() <= 1
    x = torch.randint(0, 256, (1, 3, 40, 40)).float()
    gap = from_lab(to_lab(x)) - x
    assert gap.abs().max() <= 8 and gap.abs().mean() < 2


@pytest.mark.parametrize("channels", [1, 3])
def test_pixel_values_are_rounded_to_whole_levels_first(channels: int) -> None:
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(20, 236, (2, channels, 9, 8), generator=generator).float()
    beside = levels + 0.8 * torch.rand(levels.shape, generator=generator) - 0.4
    once, again = (NonLocalMeans(5, 3, 20.0)(x / 255, BOX, dice(2)) for x in (levels, beside))
    assert torch.equal(once, again)


def test_flat_images_stay_and_the_gradient_is_that_of_the_bare_net() -> None:
    flat = torch.full((1, 1, 9, 9), 100 / 255)
    assert torch.equal(NonLocalMeans()(flat, BOX, dice(1)), flat)
    net = nn.Sequential(nn.Flatten(), nn.Linear(243, 7), nn.Tanh())
    x = torch.rand(4, 3, 9, 9, requires_grad=True)
    layer = NonLocalMeans(strength=20)
    made = layer(x, BOX, dice(4))
    seen = layer(x.detach(), BOX, dice(4)).requires_grad_(True)
    (through,), (bare,) = (
        torch.autograd.grad(net(image).sum(), of) for image, of in ((made, x), (seen, seen))
    )
    assert torch.equal(made, seen) and torch.equal(through, bare) and through.abs().max() > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nlm(search=12)", "search is 12, but an odd whole number 1 to 99 is needed"),
        ("nlm(patch=0)", "patch is 0, but an odd"),
        ("nlm(strength=0)", "strength is 0"),
    ],
)
def test_impossible_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"zoo:digits-natural+{text}")


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(InputError, match="have 4 channels"):
        NonLocalMeans()(torch.rand(1, 4, 8, 8), BOX, dice(1))
