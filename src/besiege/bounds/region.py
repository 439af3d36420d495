"""`Region`: the images around each image that a certificate is about."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from besiege.core.threat import L2, Linf, Norm

EXCEEDED = 1e-6
"""The share of a budget by which a judged image may exceed it."""


@dataclass(frozen=True, eq=False)
class Region:
    """Ball and box around each image.

    Parameters
    ----------
    centre : Tensor
        Images ``[rows, ...]``.
    radius : Tensor
        Of the ball of each image, ``[rows]``.
    norm : Norm
        Of the ball: linf, l2 or l1.
    low, high : Tensor
        The smallest box that holds ball and box, like `centre`.
    """

    centre: Tensor
    radius: Tensor
    norm: Norm
    low: Tensor
    high: Tensor

    @classmethod
    def of(
        cls,
        images: Tensor,
        radius: float | Tensor,
        norm: Norm,
        box: tuple[float, float] = (0.0, 1.0),
    ) -> Region:
        """The images within a radius, which may be exceeded as the judge allows."""
        radii = (torch.as_tensor(radius) * (1 + EXCEEDED)).to(images).expand(len(images))
        wide = radii.reshape(-1, *(1,) * (images.ndim - 1))
        low, high = ((images + way * wide).clamp(*box) for way in (-1, 1))
        # An image on the wrong side of the box by rounding belongs to its own region.
        return cls(images, radii, norm, torch.minimum(low, images), torch.maximum(high, images))

    def __len__(self) -> int:
        return len(self.centre)

    def at(self, rows: Tensor) -> Region:
        """The regions of some images."""
        return replace(
            self,
            radius=self.radius[rows],
            centre=self.centre[rows],
            low=self.low[rows],
            high=self.high[rows],
        )

    def lower(self, functions: Tensor, of: Tensor) -> Tensor:
        """The minimum of linear functions ``[functions, ...]``, each over the region of one image.

        For linf it is exact. For l2 and l1 it is the larger of the minimum over the ball, by the
        dual norm, and the minimum over the box.
        """
        flat = functions.flatten(1)
        middle, half = (0.5 * (self.low + self.high), 0.5 * (self.high - self.low))
        boxed = _dot(flat, middle, of) - _dot(flat.abs(), half, of)
        if self.norm is Linf:
            return boxed
        length = flat.norm(dim=1) if self.norm is L2 else flat.abs().amax(1)
        return torch.maximum(boxed, _dot(flat, self.centre, of) - self.radius[of] * length)


def _dot(flat: Tensor, values: Tensor, of: Tensor) -> Tensor:
    values = values.flatten(1)
    if len(values) == 1:
        return flat @ values[0]
    return (flat * values[of]).sum(1)
