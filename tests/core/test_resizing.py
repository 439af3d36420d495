from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.resizing import resize_pad


def reference(x: Tensor, size: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """One image at a time, with torch's own resize and pad."""
    height, width = x.shape[2:]
    done = []
    for image, h, t, s in zip(x, size.tolist(), top.tolist(), left.tolist(), strict=True):
        w = int(width * h / height + 0.5)
        small = functional.interpolate(image[None], size=(h, w), mode="bilinear")
        done.append(functional.pad(small, (s, width - w - s, t, height - h - t)))
    return torch.cat(done)


def places(rows: int, height: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    size = torch.randint(max(1, height // 2), height + 1, (rows,), generator=draw)
    size[0], size[-1] = height, max(1, height // 2)
    breadth = (width * size / height + 0.5).floor().long()
    top = (torch.rand(rows, generator=draw) * (height - size + 1)).long()
    left = (torch.rand(rows, generator=draw) * (width - breadth + 1)).long()
    return size, top, left


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "shape", [(16, 3, 32, 32), (4, 1, 8, 8), (6, 3, 20, 31), (3, 3, 224, 224), (2, 1, 1, 1)]
)
def test_values_and_gradients_are_those_of_interpolate_and_pad(shape: tuple[int, ...]) -> None:
    where = places(shape[0], shape[2], shape[3])
    x, y = (images(*shape).requires_grad_(True) for _ in range(2))
    weights = torch.linspace(-1, 1, x.numel()).reshape(shape)
    ours, theirs = resize_pad(x, *where), reference(y, *where)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), x)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), y)
    assert torch.allclose(gradient, expected, rtol=0, atol=2e-6)


def test_the_whole_size_is_exactly_the_identity() -> None:
    x = images(3, 3, 17, 12)
    zero = torch.zeros(3, dtype=torch.int64)
    assert torch.equal(resize_pad(x, torch.full_like(zero, 17), zero, zero), x)


def test_outside_is_exactly_zero_and_inside_is_not() -> None:
    x = images(1, 1, 8, 8) + 0.5
    out = resize_pad(x, torch.tensor([5]), torch.tensor([2]), torch.tensor([3]))
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:7, 3:8] = True
    assert (out[0, 0][~mask] == 0).all()
    assert (out[0, 0][mask] >= 0.5).all()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    x, where = images(13, 3, 32, 32), places(13, 32, 32)
    whole = resize_pad(x, *where)
    order = torch.arange(12, -1, -1)
    size, top, left = (w[order] for w in where)
    assert torch.equal(resize_pad(x[order], size, top, left), whole[order])
    for row in (0, 5, 12):
        one = slice(row, row + 1)
        size, top, left = (w[one] for w in where)
        assert torch.equal(resize_pad(x[one], size, top, left), whole[one])


def test_no_rows_work() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert resize_pad(torch.zeros(0, 3, 8, 8), none, none, none).shape == (0, 3, 8, 8)
