"""Networks of parallel branches for 32x32 images, in the style of Inception v1."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _convolution(before: int, after: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, 1, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class Branches(nn.Module):
    """Four branches side by side: 1x1, 3x3, twice 3x3 for 5x5, and pooling with 1x1.

    Of eight parts of the channels they have 2, 4, 1 and 1, as in the first block of GoogLeNet; the
    branches with 3x3 kernels begin with fewer channels.
    """

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        part = channels // 8
        self.one = _convolution(before, 2 * part, 1)
        self.three = nn.Sequential(
            _convolution(before, 3 * part, 1), _convolution(3 * part, 4 * part, 3)
        )
        self.five = nn.Sequential(
            _convolution(before, part, 1),
            _convolution(part, part, 3),
            _convolution(part, part, 3),
        )
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(before, part, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The features of all branches, one behind the other."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class InceptionNet(nn.Module):
    """A 3x3 convolution, three stages of `Branches` with pooling between them, a linear layer."""

    def __init__(self, blocks: int, width: int, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        if blocks < 1 or width < 8 or width % 8:
            raise ValueError(
                f"{blocks!r} blocks of width {width!r}: give at least one block, and a multiple of "
                "8 as the width"
            )
        self.stem = _convolution(in_channels, width, 3)
        parts: list[nn.Module] = []
        before = width
        for stage in range(3):
            if stage:
                parts.append(nn.MaxPool2d(2, ceil_mode=True))
            for _ in range(blocks):
                parts.append(Branches(before, width << stage))
                before = width << stage
        self.stages = nn.Sequential(*parts)
        self.linear = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        logits: Tensor = self.linear(self.stages(self.stem(x)).mean((2, 3)))
        return logits


def inception_cifar(
    blocks: int = 2, width: int = 48, classes: int = 10, in_channels: int = 3
) -> InceptionNet:
    """A small Inception network (after Szegedy et al. 2015), with batch norm.

    Parameters
    ----------
    blocks : int
        Blocks of four branches in each of three stages.
    width : int
        Channels of the first stage, a multiple of 8; the others have 2 and 4 times as many.
    classes, in_channels : int
        Outputs, and channels of the images.
    """
    return InceptionNet(blocks, width, classes, in_channels)
