"""Wide residual networks for 32x32 images (Zagoruyko and Komodakis 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from besiege.models.preact import PreActBlock


class WideResNet(nn.Module):
    """A 3x3 convolution of 16 channels, three stages of pre-activation blocks, a linear layer.

    The stages have 16, 32 and 64 times `widen` channels; all but the first halve the image.

    Parameters
    ----------
    depth : int
        Layers: 6n + 4, with n blocks per stage.
    widen : int
        How many times wider than the network of He et al. (2016).
    classes, in_channels : int
        Outputs, and channels of the images.
    """

    def __init__(self, depth: int, widen: int, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"the depth is {depth!r}, but a wide residual network has 6n + 4")
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        stages, before = [], 16
        for number in range(3):
            channels, stride = 16 * 2**number * widen, 1 if number == 0 else 2
            first = PreActBlock(before, channels, stride)
            rest_of_them = (PreActBlock(channels, channels, 1) for _ in range(blocks - 1))
            stages.append(nn.Sequential(first, *rest_of_them))
            before = channels
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(before)
        self.linear = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = torch.relu(self.bn(self.stages(self.conv1(x))))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def wide_resnet(
    depth: int = 28, widen: int = 10, classes: int = 10, in_channels: int = 3
) -> WideResNet:
    """Wide ResNet, WRN-28-10 by default: 36.5 million parameters.

    Without dropout. The order of the weights is our own: checkpoints of other code need renaming.
    """
    return WideResNet(depth, widen, classes, in_channels)
