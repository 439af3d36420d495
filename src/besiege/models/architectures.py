"""The networks whose weights besiege can name, built from their published descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a parameter-free shortcut (option A).

    Where the block halves the image, the shortcut keeps every other pixel and pads the channels
    with zeros on both sides (He et al. 2016, section 3.3).
    """

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.extra = channels - before

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, before, h, w]`` to ``[rows, channels, h / stride, w / stride]``."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1 or self.extra:
            below = self.extra // 2
            x = x[:, :, :: self.stride, :: self.stride]
            x = functional.pad(x, (0, 0, 0, 0, below, self.extra - below))
        return torch.relu(y + x)


class CifarResNet(nn.Module):
    """The residual network of He et al. (2016) for 32x32 images: 6n + 2 layers, 16-32-64 channels.

    Parameters
    ----------
    blocks : int
        The n of 6n + 2: blocks per stage.
    classes, in_channels : int
        Outputs, and channels of the images.
    """

    def __init__(self, blocks: int, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, 1)
        self.layer2 = _stage(16, 32, blocks, 2)
        self.layer3 = _stage(32, 64, blocks, 2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _stage(before: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(before, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))


def resnet20(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 20 layers, 0.27 million parameters."""
    return CifarResNet(3, classes, in_channels)


def resnet32(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 32 layers, 0.46 million parameters."""
    return CifarResNet(5, classes, in_channels)


def resnet44(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 44 layers, 0.66 million parameters."""
    return CifarResNet(7, classes, in_channels)


def resnet56(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 56 layers, 0.85 million parameters."""
    return CifarResNet(9, classes, in_channels)


def cnn_a(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The small network of the verification papers: two strided 4x4 convolutions, two layers.

    Wong and Kolter (2018) call it *small*, Dathathri et al. (2020) *CNN-A*. Images are ``size``
    pixels high and wide, a multiple of four.
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (size // 4) ** 2, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def digits_cnn(in_channels: int = 1, size: int = 8, classes: int = 10) -> nn.Sequential:
    """A convolutional network for 8x8 digits: fast enough to attack in a test."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * ((size + 1) // 2) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def digits_mlp(in_channels: int = 1, size: int = 8, classes: int = 10) -> nn.Sequential:
    """A fully connected network for 8x8 digits, two hidden layers of 64."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(in_channels * size**2, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "resnet20": resnet20,
        "resnet32": resnet32,
        "resnet44": resnet44,
        "resnet56": resnet56,
        "cnn_a": cnn_a,
        "digits_cnn": digits_cnn,
        "digits_mlp": digits_mlp,
    }
)
