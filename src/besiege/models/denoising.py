"""Blocks that denoise features inside a residual network (Xie et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional

from besiege.core.errors import near

How = Literal["gaussian", "dot", "mean", "median"]


class Denoise(nn.Module):
    """Features plus their denoised form, after a 1x1 convolution and batch norm.

    The weight of the batch norm starts at zero, so that a fresh block changes nothing.

    - ``gaussian``: every position becomes a mean over all positions, weighted by
      ``softmax(theta(x)_i . phi(x)_j / sqrt(d))``; theta and phi are 1x1 convolutions to d, half
      of the channels.
    - ``dot``: the same with the weights ``x_i . x_j / positions``, without embeddings.
    - ``mean``, ``median``: of the 3x3 positions around each one.

    Parameters
    ----------
    channels : int
        Of the features.
    how : {"gaussian", "dot", "mean", "median"}
        The denoising operation.
    """

    def __init__(self, channels: int, how: How) -> None:
        super().__init__()
        if how not in get_args(How):
            raise ValueError(f"denoise is {how!r}: {near(str(how), get_args(How))}")
        self.how = how
        if how == "gaussian":
            self.theta, self.phi = (
                nn.Conv2d(channels, max(1, channels // 2), 1, bias=False) for _ in range(2)
            )
            for embedding in (self.theta, self.phi):
                nn.init.normal_(embedding.weight, std=0.01)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.bn.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, channels, h, w]`` to features of the same shape."""
        added: Tensor = self.bn(self.conv(self.denoised(x)))
        return x + added

    def denoised(self, x: Tensor) -> Tensor:
        """The denoised features alone."""
        if self.how == "mean":
            return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        if self.how == "median":
            around = functional.pad(x, (1, 1, 1, 1), mode="replicate")
            return around.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2).median(-1)[0]
        flat = x.flatten(2)
        if self.how == "gaussian":
            theta, phi = self.theta(x).flatten(2), self.phi(x).flatten(2)
            scale = 1 / math.sqrt(self.theta.out_channels)
            return _attention(theta, phi, flat, scale).reshape(x.shape)
        weights = flat.transpose(1, 2) @ flat / flat.shape[2]
        return (flat @ weights.transpose(1, 2)).reshape(x.shape)


def _attention(theta: Tensor, phi: Tensor, values: Tensor, scale: float) -> Tensor:
    """The mean of values ``[rows, channels, positions]`` by softmax weights, without a matrix.

    torch's fused kernel, which has no second derivatives: whoever needs them allows its kernel
    ``MATH`` only. It takes the same number of channels of every input; zeros change no product.
    """
    short = values.shape[1] - theta.shape[1]
    theta, phi = (functional.pad(part, (0, 0, 0, short)) for part in (theta, phi))
    # Contiguous, or torch takes its slow kernel without a word.
    query, key, value = (
        part.transpose(1, 2).unsqueeze(1).contiguous() for part in (theta, phi, values)
    )
    made = functional.scaled_dot_product_attention(query, key, value, scale=scale)
    return made.squeeze(1).transpose(1, 2)


def denoise_stages(stages: Iterable[nn.Sequential], channels: Iterable[int], how: How) -> None:
    """Append a block to every stage, after its last residual unit.

    Appended, so that the classes of the networks stay as they are, and with them the digests of
    models without blocks.
    """
    for stage, count in zip(stages, channels, strict=True):
        stage.append(Denoise(count, how))
