"""SqueezeNet 1.1: a network for ImageNet with 1.2 M parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """A 1x1 convolution to few channels, then 1x1 and 3x3 convolutions side by side to many."""

    def __init__(self, before: int, few: int, many: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(before, few, 1)
        self.expand1x1 = nn.Conv2d(few, many, 1)
        self.expand3x3 = nn.Conv2d(few, many, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, before, h, w]`` to ``[rows, 2 many, h, w]``."""
        x = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.expand1x1(x), self.expand3x3(x)], 1))


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1; its weights have torchvision's names."""

    def __init__(self, classes: int, in_channels: int, bgr: bool) -> None:
        super().__init__()

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, 2, ceil_mode=True)

        self.bgr = bgr
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 64, 3, 2),
            nn.ReLU(),
            pool(),
            Fire(64, 16, 64),
            Fire(128, 16, 64),
            pool(),
            Fire(128, 32, 128),
            Fire(256, 32, 128),
            pool(),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            Fire(512, 64, 256),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(512, classes, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = self.features(x.flip(1) if self.bgr else x)
        logits: Tensor = self.classifier(x).mean((2, 3))
        return logits


def squeezenet(classes: int = 1000, in_channels: int = 3, bgr: bool = False) -> SqueezeNet:
    """SqueezeNet 1.1 (Iandola et al. 2016): eight fire modules, no linear layer, no batch norm.

    Parameters
    ----------
    classes, in_channels : int
        Outputs, and channels of the images.
    bgr : bool
        Whether the weights are for channels in the order blue, green, red, as those of Caffe are.
        Images and normalisation are RGB either way: the network reverses the channels itself.
    """
    return SqueezeNet(classes, in_channels, bgr)
