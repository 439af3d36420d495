"""`median` and `blur` equal scipy.ndimage; gradients of the median go to the chosen pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from scipy import ndimage
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.defenses import Blur, Median, PilBlur, load

BOX = (0.0, 1.0)
SHAPES = [(4, 3, 32, 32), (2, 1, 9, 6), (3, 2, 3, 2), (1, 1, 1, 5)]


def dice(rows: int) -> Dice:
    return Dice.throw(0, torch.arange(rows))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_median_is_that_of_scipy(shape: tuple[int, ...], size: int) -> None:
    x = torch.rand(shape)
    made = Median(size)(x, BOX, dice(len(x)))
    expected = ndimage.median_filter(x.numpy(), size=(1, 1, size, size), mode="reflect")
    assert np.array_equal(made.numpy(), expected)


def test_gradients_of_the_median_go_to_the_chosen_pixel() -> None:
    x = torch.tensor([[1.0, 4.0], [3.0, 2.0]]).view(1, 1, 2, 2).requires_grad_(True)
    made = Median()(x, (0.0, 4.0), dice(1))
    # The last window holds all four pixels; of these, 3 is the upper median.
    assert made[0, 0, 1, 1] == 3
    (slope,) = torch.autograd.grad(made[0, 0, 1, 1], x)
    assert torch.equal(slope[0, 0], torch.tensor([[0.0, 0.0], [1.0, 0.0]]))


def test_among_equal_pixels_the_first_gets_the_whole_gradient() -> None:
    x = torch.full((1, 1, 2, 2), 0.5, requires_grad=True)
    (slope,) = torch.autograd.grad(Median()(x, BOX, dice(1))[0, 0, 1, 1], x)
    assert torch.equal(slope[0, 0], torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_the_slope_of_the_median_is_that_of_small_steps() -> None:
    x = torch.rand(2, 3, 6, 7, dtype=torch.float64).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda t: Median(3)(t, BOX, dice(2)), x, eps=1e-7)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5, 9.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_blur_is_that_of_scipy(shape: tuple[int, ...], sigma: float) -> None:
    x = torch.rand(shape)
    made = Blur(sigma)(x, BOX, dice(len(x)))
    expected = ndimage.gaussian_filter(
        x.double().numpy(), sigma=(0, 0, sigma, sigma), mode="reflect"
    )
    assert np.abs(made.numpy() - expected).max() < 1e-6


def test_the_gradient_of_blur_is_blur_the_other_way() -> None:
    x, other = torch.rand(2, 3, 6, 7, requires_grad=True), torch.rand(2, 3, 6, 7)
    made = Blur(0.8)(x, BOX, dice(2))
    (slope,) = torch.autograd.grad(made, x, other)
    assert torch.allclose((slope * x).sum(), (other * made).sum())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("median(size=1)", "size is 1, but a whole number 2 to 7 is needed"),
        ("median(size=8)", "size is 8"),
        ("blur(sigma=0)", "sigma is 0, but a number above 0 up to 100 is needed"),
    ],
)
def test_impossible_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"zoo:digits-natural+{text}")


@pytest.mark.parametrize("layer", [Median(), Blur()])
@pytest.mark.parametrize("x", [torch.rand(3, 8, 8), torch.rand(1, 1, 0, 4)])
def test_what_is_no_image_is_refused(layer: Median | Blur, x: Tensor) -> None:
    with pytest.raises(InputError, match="at least one pixel"):
        layer(x, BOX, dice(1))


@pytest.mark.parametrize("radius", [0.5, 0.1, 1.0, 2.3, 5.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_blur_of_8_bits_is_that_of_pillow(shape: tuple[int, ...], radius: float) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    made = (PilBlur(radius)(x, BOX, dice(len(x))) * 255).round().byte()
    levels = (x * 255 + 0.5).floor().byte().flatten(0, 1).numpy()
    for channel, found in zip(levels, made.flatten(0, 1).numpy(), strict=True):
        blurred = Image.fromarray(channel).filter(ImageFilter.GaussianBlur(radius))
        assert np.array_equal(found, np.asarray(blurred))


def test_the_blur_of_8_bits_has_the_gradient_of_its_filters() -> None:
    x = torch.rand(2, 3, 8, 7, dtype=torch.float64).requires_grad_(True)
    layer = PilBlur(0.8)
    soft = layer.surrogate(x, BOX, dice(2))
    assert soft is not None
    assert torch.allclose(soft, layer(x, BOX, dice(2)), atol=5 / 255)
    (slope,) = torch.autograd.grad(layer(x, BOX, dice(2)).sum(), x)
    assert slope.sum() == pytest.approx(x.numel(), rel=1e-6), "every output sums its window"
