"""Resizing and cropping inside a victim: as torch does it, differentiable, part of the digest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from besiege.core.errors import InputError
from besiege.core.resizing import resized
from besiege.core.threat import Threat
from besiege.models import Classifier
from besiege.models.sizing import Sizing
from besiege.testing import conform_victim

draw = torch.Generator().manual_seed(0)


def noise(height: int, width: int, rows: int = 3) -> torch.Tensor:
    return torch.rand(rows, 3, height, width, generator=draw)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [(7, 9), (40, 31), (13, 64), (20, 20)])
def test_resizing_is_that_of_torch(mode: str, antialias: bool, size: tuple[int, int]) -> None:
    antialias = antialias and mode != "nearest"
    x = noise(20, 33).requires_grad_(True)
    made = resized(x, *size, mode, antialias)
    expected = functional.interpolate(x, size, mode=mode, antialias=antialias)
    assert torch.allclose(made, expected, atol=2e-6)
    weights = torch.rand(made.shape, generator=draw)
    ours, theirs = (torch.autograd.grad((one * weights).sum(), x)[0] for one in (made, expected))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_row_does_not_depend_on_the_batch() -> None:
    x = noise(23, 37, rows=40)
    whole = resized(x, 16, 16, "bilinear", True)
    for rows in (1, 3, 8, 17):
        assert torch.equal(resized(x[:rows], 16, 16, "bilinear", True), whole[:rows])


@pytest.mark.parametrize(
    ("sizing", "given", "expected"),
    [
        (Sizing(256, (224, 224)), (300, 400), (224, 224)),
        (Sizing(20), (30, 45), (20, 30)),
        (Sizing(20), (45, 30), (30, 20)),
        (Sizing(20), (31, 46), (20, 29)),  # rounded down, as torchvision and Pillow do
        (Sizing((8, 12)), (30, 45), (8, 12)),
        (Sizing(crop=(5, 6)), (9, 9), (5, 6)),
        (Sizing(), (9, 9), (9, 9)),
    ],
)
def test_sizes(sizing: Sizing, given: tuple[int, int], expected: tuple[int, int]) -> None:
    assert sizing.final(*given) == expected
    assert sizing(noise(*given)).shape[2:] == expected


def test_the_crop_is_in_the_middle_and_halves_are_rounded_as_the_package_does() -> None:
    x = noise(8, 11)
    even, down = (Sizing(crop=(8, 8), round_down=down)(x) for down in (False, True))
    assert torch.equal(even, x[..., 2:10]) and torch.equal(down, x[..., 1:9])


def test_images_of_the_final_size_are_left_alone_unless_told() -> None:
    x = noise(16, 16)
    assert Sizing(20, (16, 16))(x) is x
    always = Sizing(20, (16, 16), always=True)(x)
    assert always.shape == x.shape and not torch.allclose(always, x, atol=0.01)


def test_images_smaller_than_the_crop_are_refused() -> None:
    with pytest.raises(InputError, match="8x9 are smaller than the 16x16"):
        Sizing(crop=(16, 16))(noise(8, 9))
    with pytest.raises(InputError, match="did you mean 'bilinear'"):
        Sizing(8, interpolation="bilinea")  # type: ignore[arg-type]


class Fixed(nn.Module):
    """Takes 8x8 pixels only, and has a batch norm to fold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 64, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def test_sizing_comes_before_the_normalisation_and_is_part_of_the_digest() -> None:
    torch.manual_seed(0)
    net = Fixed().eval()
    sizing = Sizing(10, (8, 8), "bicubic")
    victim = Classifier(net, mean=0.5, std=0.25, sizing=sizing)
    x = noise(13, 17)
    with torch.no_grad():
        assert torch.equal(victim(x), net((sizing(x) - 0.5) / 0.25))
    plain = Classifier(net, mean=0.5, std=0.25)
    other = Classifier(net, mean=0.5, std=0.25, sizing=Sizing(10, (8, 8)))
    assert len({victim.digest(), plain.digest(), other.digest()}) == 3
    assert conform_victim(victim, noise(13, 17, rows=11))


def test_a_twin_has_the_same_sizing() -> None:
    torch.manual_seed(0)
    from besiege.core.samples import Samples

    victim = Classifier(Fixed().eval(), sizing=Sizing(10, (8, 8)))
    x = noise(13, 17, rows=8)
    twin = victim.twin(Samples.of(x, torch.zeros(8).long()), Threat.parse("linf:0.1"))
    assert twin is not None and twin.sizing == victim.sizing
    with torch.no_grad():
        assert torch.allclose(twin(x), victim(x), atol=1e-5)
