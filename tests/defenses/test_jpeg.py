"""`jpeg` equals Pillow's round trip bit for bit, at every quality."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.defenses import Defended, Jpeg, load

BOX = (0.0, 1.0)


def dice(rows: int) -> Dice:
    return Dice.throw(0, torch.arange(rows))


def pictures(channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Noise, black and white pixels, and a smooth picture, as whole numbers."""
    rng = np.random.default_rng(seed)
    shape = (channels, height, width)
    smooth = rng.normal(0, 4, shape).cumsum(1).cumsum(2) + 128
    made = [rng.integers(0, 256, shape), 255 * rng.integers(0, 2, shape), smooth.clip(0, 255)]
    return torch.from_numpy(np.stack(made).astype(np.uint8))


def round_trip(images: Tensor, quality: int, subsampling: str) -> Tensor:
    """What Pillow reads back of the files it writes."""
    read = []
    for image in images:
        file, grey = io.BytesIO(), len(image) == 1
        pixels = image[0] if grey else image.permute(1, 2, 0).contiguous()
        how = {} if grey else {"subsampling": subsampling}
        Image.fromarray(pixels.numpy()).save(file, "JPEG", quality=quality, **how)
        pixels = torch.from_numpy(np.array(Image.open(file)))
        read.append(pixels[None] if grey else pixels.permute(2, 0, 1))
    return torch.stack(read)


def ours(images: Tensor, quality: int, subsampling: str) -> Tensor:
    made = Jpeg(quality, subsampling)(images / 255, BOX, dice(len(images)))  # type: ignore[arg-type]
    whole = (made * 255).round()
    assert torch.equal(whole / 255, made)  # levels of 255, and nothing between
    return whole.to(torch.uint8)


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(47, 61), (33, 17)])
def test_it_is_pillow_bit_for_bit_at_every_quality(
    size: tuple[int, int], channels: int, subsampling: str
) -> None:
    for quality in range(1, 101):
        images = pictures(channels, *size, seed=quality)
        assert torch.equal(
            ours(images, quality, subsampling), round_trip(images, quality, subsampling)
        ), quality


@pytest.mark.parametrize("height", [1, 2, 7, 16, 18])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 8, 16, 18, 26])
def test_small_and_even_sizes_are_pillow_too(height: int, width: int) -> None:
    images = pictures(3, height, width)
    for quality in (1, 30, 75, 95):
        for subsampling in ("4:2:0", "4:4:4"):
            assert torch.equal(
                ours(images, quality, subsampling), round_trip(images, quality, subsampling)
            )


def test_pixels_are_first_rounded_to_levels_of_any_box() -> None:
    images = pictures(3, 20, 22)
    expected = round_trip(images, 75, "4:2:0").float()
    shifted = images + torch.empty(images.shape).uniform_(-0.45, 0.45)
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
        box = (low, high)
        made = Jpeg()((shifted / 255 * (high - low) + low).clamp(low, high), box, dice(3))
        assert torch.allclose((made - low) / (high - low) * 255, expected, atol=1e-3)


def test_the_identity_surrogate_gives_the_bare_gradient_at_the_compressed_image() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 7), torch.nn.Tanh())
    x = torch.rand(3, 3, 8, 8, requires_grad=True)
    layer = Jpeg(backward="identity")
    seen = layer(x.detach(), BOX, dice(3)).requires_grad_(True)
    made = layer(x, BOX, dice(3))
    assert torch.equal(made, seen)
    (through,) = torch.autograd.grad(net(made).sum(), x)
    (bare,) = torch.autograd.grad(net(seen).sum(), seen)
    assert torch.equal(through, bare) and through.abs().max() > 0


def test_the_soft_surrogate_is_close_and_knows_which_frequencies_are_lost() -> None:
    layer = Jpeg(50)
    x = (pictures(3, 16, 16)[2:] / 255).requires_grad_(True)
    soft = layer.surrogate(x, BOX, dice(1))
    assert soft is not None
    assert (soft - layer(x.detach(), BOX, dice(1))).abs().max() < 0.5
    # The finest pattern of pixels is quantised away: hardly any gradient is left along it.
    places = torch.arange(16)
    fine = 1.0 - 2.0 * ((places[:, None] + places) % 2)
    slopes = []
    for pattern in (fine, torch.ones(16, 16)):
        (slope,) = torch.autograd.grad(layer(x, BOX, dice(1)), x, pattern.expand_as(x))
        slopes.append(float((slope * pattern).sum()))
    assert abs(slopes[0]) < 0.1 * slopes[1]


def test_pgd_through_the_soft_surrogate_breaks_more_than_through_the_identity() -> None:
    data = besiege.data.load("digits", count=60)
    left = [
        int(
            besiege.attack(
                "pgd(steps=10)",
                Defended("zoo:digits-natural", Jpeg(10, backward=how)),
                data.images,
                data.labels,
                threat="linf:0.1",
            ).verdicts.robust.sum()
        )
        for how in ("soft", "identity")
    ]
    assert left[0] < 0.8 * left[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jpeg(quality=0)", "quality is 0, but a whole number 1 to 100 is needed"),
        ("jpeg(quality=101)", "quality is 101"),
        ("jpeg(quality=7.5)", "quality is 7.5"),
        ("jpeg(subsampling='4:1:1')", "'4:2:0' or '4:4:4' is needed"),
        ("jpeg(backward='hard')", "'soft' or 'identity' is needed"),
    ],
)
def test_impossible_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"zoo:digits-natural+{text}")


def test_what_is_no_picture_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match=r"have 2 channels.*adapt\(channels=3\)"):
        Jpeg()(torch.rand(1, 2, 8, 8), BOX, dice(1))
    with pytest.raises(InputError, match=r"given \[3, 8, 8\].*x\[None\]"):
        Jpeg()(torch.rand(3, 8, 8), BOX, dice(1))
    with pytest.raises(InputError, match="at least one pixel"):
        Jpeg()(torch.rand(1, 3, 0, 8), BOX, dice(1))
