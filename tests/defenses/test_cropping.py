"""`crop_rescale` crops anywhere and rescales as torch does, every image for itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.defenses import CropRescale, load

BOX = (0.0, 1.0)


def dice(rows: int, seed: int = 0) -> Dice:
    return Dice.throw(seed, torch.arange(rows))


@pytest.mark.parametrize("how", ["bilinear", "nearest"])
def test_every_image_is_one_of_the_crops_that_fit_rescaled_as_torch_does_it(how: str) -> None:
    x = torch.rand(1, 3, 7, 9).expand(60, -1, -1, -1)
    made = CropRescale((5, 6), how)(x, BOX, dice(60))  # type: ignore[arg-type]
    seen = set()
    for image in made:
        found = [
            (top, left)
            for top in range(3)
            for left in range(4)
            if torch.allclose(
                functional.interpolate(x[:1, :, top : top + 5, left : left + 6], (7, 9), mode=how)[
                    0
                ],
                image,
                atol=1e-6,
            )
        ]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) == 12  # every place


def test_a_crop_of_the_whole_image_changes_nothing() -> None:
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(CropRescale(8)(x, BOX, dice(4)), x)


def test_the_gradient_reaches_the_pixels_of_the_crop_only() -> None:
    x = torch.rand(20, 1, 8, 8, requires_grad=True)
    (slope,) = torch.autograd.grad(CropRescale(5)(x, BOX, dice(20)).sum(), x)
    assert ((slope != 0).flatten(1).sum(1) == 25).all()
    assert torch.allclose(slope.sum((1, 2, 3)), torch.tensor(64.0))


def test_a_crop_larger_than_the_image_is_refused_with_one_that_fits() -> None:
    with pytest.raises(InputError, match=r"30x30 is larger.*8x8: use crop_rescale\(size=6\)"):
        CropRescale()(torch.rand(2, 1, 8, 8), BOX, dice(2))


@pytest.mark.parametrize("size", ["0", "2.5", "(3, 4, 5)", "'large'"])
def test_sizes_that_are_none_are_refused(size: str) -> None:
    with pytest.raises(InputError, match=r"but 30, or \(30, 28\), is needed"):
        load(f"zoo:digits-natural+crop_rescale(size={size})")
