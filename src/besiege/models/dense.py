"""DenseNets for 32x32 images (Huang et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DenseLayer(nn.Module):
    """Batch norm, ReLU and a 1x1 convolution, the same with 3x3; beside its input."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, inner, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features, and `growth` new ones behind them."""
        new = self.conv1(torch.relu(self.bn1(x)))
        new = self.conv2(torch.relu(self.bn2(new)))
        return torch.cat([x, new], 1)


class Transition(nn.Module):
    """Half of the channels, and half of the height and width."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, before // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        """Features of half the size."""
        halved: Tensor = self.pool(self.conv(torch.relu(self.bn(x))))
        return halved


class DenseNet(nn.Module):
    """A 3x3 convolution, three dense blocks with transitions between them, a linear layer."""

    def __init__(self, depth: int, growth: int, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers, rest = divmod(depth - 4, 6)
        if rest or layers < 1:
            raise ValueError(f"the depth is {depth!r}, but a DenseNet has 6n + 4")
        channels = 2 * growth
        self.conv = nn.Conv2d(in_channels, channels, 3, 1, 1, bias=False)
        parts: list[nn.Module] = []
        for block in range(3):
            if block:
                parts.append(Transition(channels))
                channels //= 2
            for _ in range(layers):
                parts.append(DenseLayer(channels, growth))
                channels += growth
        self.blocks = nn.Sequential(*parts)
        self.bn = nn.BatchNorm2d(channels)
        # Products of other widths than multiples of 8 depend on the number of rows in their last
        # bits, so that zeros follow the features; see docs/decisions/0006-bitwise.md.
        self.spare = -channels % 8
        self.linear = nn.Linear(channels + self.spare, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = torch.relu(self.bn(self.blocks(self.conv(x))))
        logits: Tensor = self.linear(functional.pad(x.mean((2, 3)), (0, self.spare)))
        return logits


def densenet(
    depth: int = 40, growth: int = 12, classes: int = 10, in_channels: int = 3
) -> DenseNet:
    """DenseNet-BC, 0.18 million parameters by default: bottlenecks, and halving transitions.

    Parameters
    ----------
    depth : int
        Layers: 6n + 4, with n dense layers of two convolutions in each of three blocks.
    growth : int
        Channels that every dense layer adds.
    classes, in_channels : int
        Outputs, and channels of the images.
    """
    return DenseNet(depth, growth, classes, in_channels)
