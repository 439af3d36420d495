"""`nlm` and `tvm` against OpenCV and scikit-image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import besiege
from besiege.core.dice import Dice
from besiege.defenses import NonLocalMeans
from besiege.defenses.tvm import minimised

pytestmark = pytest.mark.peer
BOX = (0.0, 1.0)


@pytest.mark.parametrize(("search", "patch", "strength"), [(13, 3, 2), (11, 3, 4), (7, 5, 6)])
@pytest.mark.parametrize("channels", [1, 3])
def test_non_local_means_are_those_of_opencv(
    channels: int, search: int, patch: int, strength: int
) -> None:
    cv2: Any = pytest.importorskip("cv2")
    x = besiege.data.load("cifar10", count=50).images[:, :channels]
    made = NonLocalMeans(search, patch, strength)(x, BOX, Dice.throw(0, torch.arange(50))) * 255
    pixels = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    if channels == 1:
        theirs = [
            cv2.fastNlMeansDenoising(one, None, strength, patch, search)[..., None]
            for one in pixels
        ]
    else:
        theirs = [
            cv2.fastNlMeansDenoisingColored(one, None, strength, strength, patch, search)
            for one in pixels
        ]
    gap = np.abs(made.round().permute(0, 2, 3, 1).numpy() - np.stack(theirs))
    assert gap.max() <= (1 if channels == 1 else 6)
    assert (gap == 0).mean() >= 0.999


def test_total_variation_is_at_most_that_of_scikit_image() -> None:
    restoration: Any = pytest.importorskip("skimage.restoration")
    x = besiege.data.load("digits", count=20).images.double()
    kept = torch.ones_like(x)

    def objective(z: torch.Tensor) -> torch.Tensor:
        down, along = torch.zeros_like(z), torch.zeros_like(z)
        down[:, :, :-1], along[..., :-1] = z.diff(dim=2), z.diff(dim=3)
        return ((z - x) ** 2 + 0.1 * (down**2 + along**2).sqrt()).sum((1, 2, 3))

    theirs = [
        restoration.denoise_tv_chambolle(one[0].numpy(), weight=0.05, eps=1e-12, max_num_iter=20000)
        for one in x
    ]
    least = objective(torch.from_numpy(np.stack(theirs))[:, None])
    mine = objective(minimised(x.float(), kept.float(), 0.1).double())
    assert float((mine / least).max()) <= 1.001
