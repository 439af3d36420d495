"""Small networks of the verification and benchmark papers, and those for 8x8 digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def _two_convolutions(
    in_channels: int, size: int, classes: int, width: int, padding: int
) -> nn.Sequential:
    """Two strided 4x4 convolutions of `width` and twice as many channels, then two layers."""
    left = size
    for _ in range(2):
        left = (left + 2 * padding - 4) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 4, 2, padding),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, 2, padding),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * left**2, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def cnn_a(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The small network of the verification papers: two strided 4x4 convolutions, two layers.

    Wong and Kolter (2018) call it *small*, Dathathri et al. (2020) *CNN-A*, the OVAL benchmark
    *wide*. Images are ``size`` pixels high and wide.
    """
    return _two_convolutions(in_channels, size, classes, width=16, padding=1)


def conv_small(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The *ConvSmall* of the ERAN benchmark: as `cnn_a`, but its convolutions pad nothing."""
    return _two_convolutions(in_channels, size, classes, width=16, padding=0)


def oval_base(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The *base* network of the OVAL benchmark: `cnn_a` with half the channels."""
    return _two_convolutions(in_channels, size, classes, width=8, padding=1)


def oval_wide(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The *wide* network of the OVAL benchmark: `cnn_a` under its other name."""
    return cnn_a(in_channels, size, classes)


def oval_deep(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The *deep* network of the OVAL benchmark: four convolutions of 8 channels, two layers."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * (size // 4) ** 2, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


class LeNet(nn.Module):
    """Two padded 3x3 convolutions, each halved by pooling, and two layers (advertorch's LeNet)."""

    def __init__(self, in_channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 32, 3, 1, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1, 1)
        self.linear1 = nn.Linear(64 * (size // 4) ** 2, 200)
        self.linear2 = nn.Linear(200, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[rows, channels, size, size]`` to logits ``[rows, classes]``."""
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        logits: Tensor = self.linear2(torch.relu(self.linear1(x.flatten(1))))
        return logits


def lenet(in_channels: int = 1, size: int = 28, classes: int = 10) -> LeNet:
    """The LeNet of advertorch for MNIST: two convolutions with pooling, two layers."""
    return LeNet(in_channels, size, classes)


def deepsec_cnn(
    in_channels: int = 1, size: int = 28, classes: int = 10, width: int = 32
) -> nn.Sequential:
    """The MNIST network of DEEPSEC (Ling et al. 2019): four convolutions, three layers.

    Convolutions are 3x3, unpadded, 32-32-64-64 channels (`width` and twice as many), each pair
    halved by pooling; layers of 200 and 200 units. Half of the first layer's units are dropped in
    training: single units, where DEEPSEC's code asks for whole channels of features that have none.
    Images too small for that, such as 8x8 digits, get padded convolutions.
    """
    left, padding = ((size - 4) // 2 - 4) // 2, 0
    if left < 1:
        left, padding = size // 4, 1
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, 1, padding),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, 1, padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, 1, padding),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 1, padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * left**2, 200),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def conv5(in_channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The five-layer network of DeepDefense (Yan et al. 2018) for CIFAR-10, as far as it is known.

    From the paper: three convolutions and two linear layers, no batch norm. Not known to us, and
    taken from Caffe's *cifar10 quick*, which networks of this description usually follow: 5x5
    kernels padded by 2, 32-32-64 channels, overlapping 3x3 pooling of stride 2 (maximum once, then
    means), 64 units, no ReLU between the linear layers. Pooling stops at one pixel. The paper
    whitens the images first; besiege does not.
    """
    layers: list[nn.Module] = []
    before, left = in_channels, size
    for number, channels in enumerate((32, 32, 64)):
        layers += [nn.Conv2d(before, channels, 5, 1, 2), nn.ReLU()]
        before = channels
        if left > 1:
            pool = nn.AvgPool2d if number else nn.MaxPool2d
            layers.append(pool(3, 2, ceil_mode=True))
            left = max(1, left // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * left**2, 64), nn.Linear(64, classes))


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
