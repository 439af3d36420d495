"""Residual networks for 32x32 images, built from their published descriptions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.models.denoising import How, denoise_stages


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


def resnet20(classes: int = 10, in_channels: int = 3, denoise: How | None = None) -> CifarResNet:
    """CIFAR ResNet with 20 layers, 0.27 million parameters.

    `denoise` puts a `besiege.models.denoising.Denoise` block after each stage.
    """
    net = CifarResNet(3, classes, in_channels)
    if denoise is not None:
        denoise_stages((net.layer1, net.layer2, net.layer3), (16, 32, 64), denoise)
    return net


def resnet32(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 32 layers, 0.46 million parameters."""
    return CifarResNet(5, classes, in_channels)


def resnet44(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 44 layers, 0.66 million parameters."""
    return CifarResNet(7, classes, in_channels)


def resnet56(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 56 layers, 0.85 million parameters."""
    return CifarResNet(9, classes, in_channels)


def resnet110(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """CIFAR ResNet with 110 layers, 1.73 million parameters."""
    return CifarResNet(18, classes, in_channels)


class BiasedBlock(nn.Module):
    """Two 3x3 convolutions with biases and no batch norm, around a shortcut.

    Where the block halves the image or changes the channels, the shortcut is a 1x1 convolution.
    """

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != channels:
            self.shortcut.append(nn.Conv2d(before, channels, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, before, h, w]`` to ``[rows, channels, h / stride, w / stride]``."""
        y = self.conv2(torch.relu(self.conv1(x)))
        return torch.relu(y + self.shortcut(x))


class VerifiedResNet(nn.Module):
    """A residual network small enough for complete verifiers, without batch norm.

    A strided convolution, then stages of two blocks that halve the image each, then two linear
    layers with 100 units between them.

    Parameters
    ----------
    first, stage : int
        Channels of the first convolution and of the stages.
    stages : int
        One or two.
    classes, in_channels, size : int
        Outputs, channels of the images, and their height and width.
    """

    def __init__(
        self, first: int, stage: int, stages: int, classes: int, in_channels: int, size: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, first, 3, 2, 1)
        self.layer1 = _biased_stage(first, stage)
        self.layer2 = _biased_stage(stage, stage) if stages == 2 else nn.Sequential()
        left = size
        for _ in range(1 + stages):
            left = (left + 1) // 2
        self.linear1 = nn.Linear(stage * left**2, 100)
        self.linear2 = nn.Linear(100, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = self.layer2(self.layer1(torch.relu(self.conv1(x))))
        logits: Tensor = self.linear2(torch.relu(self.linear1(x.flatten(1))))
        return logits


def _biased_stage(before: int, channels: int) -> nn.Sequential:
    return nn.Sequential(BiasedBlock(before, channels, 2), BiasedBlock(channels, channels, 1))


def resnet2b(classes: int = 10, in_channels: int = 3, size: int = 32) -> VerifiedResNet:
    """Residual network of two blocks for verifiers (the *2B* of VNN-COMP 2021), no batch norm."""
    return VerifiedResNet(8, 16, 1, classes, in_channels, size)


def resnet4b(classes: int = 10, in_channels: int = 3, size: int = 32) -> VerifiedResNet:
    """Residual network of four blocks for verifiers (the *4B* of VNN-COMP 2021), no batch norm."""
    return VerifiedResNet(16, 32, 2, classes, in_channels, size)
