"""`GaussianNoise`: noise on the image, as randomised smoothing adds it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from besiege.core.dice import Dice
from besiege.defenses.layers import Unclamped, layer


@layer("gaussian_noise")
@dataclass(frozen=True)
class GaussianNoise(Unclamped):
    """Gaussian noise on every pixel value, drawn for every image (Cohen et al. 2019).

    The noisy image is not clamped to the box: certificates of randomised smoothing hold for noise
    that is Gaussian everywhere. Train the model with the same noise.

    Parameters
    ----------
    sigma : float
        Standard deviation, as a share of the box's width: pixel values themselves in (0, 1).
    """

    sigma: float = 0.25
    stochastic = True

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise ValueError(f"sigma is {self.sigma!r}, but it is a positive standard deviation")

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return x + self.sigma * (box[1] - box[0]) * dice.normal(tuple(x.shape[1:]))
