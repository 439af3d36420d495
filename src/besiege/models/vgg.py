"""VGG networks for 32x32 images, and VGG-16 with noise before every convolution (RSE)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from besiege.models.drawing import Noise

# Channels of each block in units of the width, and its convolutions by the depth: configurations A,
# B, D and E of Simonyan and Zisserman.
_TIMES = (1, 2, 4, 8, 8)
_BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(
    depth: int = 13, width: int = 16, classes: int = 10, in_channels: int = 3, size: int = 32
) -> nn.Sequential:
    """VGG with batch norm and one linear layer, of 11, 13, 16 or 19 layers.

    Parameters
    ----------
    depth : int
        11, 13, 16 or 19; the published networks have two more linear layers.
    width : int
        Channels of the first block, 64 as published; the others have 2, 4, 8 and 8 times as many.
    classes, in_channels, size : int
        Outputs, channels of the images, and their height and width.
    """
    if depth not in _BLOCKS:
        raise ValueError(f"the depth is {depth!r}, but VGG has {', '.join(map(str, _BLOCKS))}")
    return _vgg(depth, width, None, classes, in_channels, size)


def vgg16(
    width: int = 64,
    noise: Sequence[float] | None = None,
    classes: int = 10,
    in_channels: int = 3,
    size: int = 32,
) -> nn.Sequential:
    """VGG-16 with batch norm: 13 convolutions in five blocks and one linear layer, 14.7 M weights.

    The convolutions of Simonyan and Zisserman (2015), configuration D, each followed by batch norm
    and ReLU; a block ends in 2x2 pooling while the image is larger than one pixel.

    Parameters
    ----------
    width : int
        Channels of the first block; the others have 2, 4, 8 and 8 times as many.
    noise : (float, float), optional
        Standard deviations of Gaussian noise before the first convolution and before each of the
        others: (0.2, 0.1) is the random self-ensemble RSE (Liu et al. 2018). The network then is
        stochastic.
    classes, in_channels, size : int
        Outputs, channels of the images, and their height and width.
    """
    given: object = noise  # texts may hold anything
    if given is not None and not (isinstance(given, Sequence) and len(given) == 2):
        raise ValueError(
            f"noise is {noise!r}: give two standard deviations, before the first convolution and "
            "before the others, such as (0.2, 0.1)"
        )
    return _vgg(16, width, noise, classes, in_channels, size)


def _vgg(
    depth: int,
    width: int,
    noise: Sequence[float] | None,
    classes: int,
    in_channels: int,
    size: int,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    before, left = in_channels, size
    for count, times in zip(_BLOCKS[depth], _TIMES, strict=True):
        for _ in range(count):
            if noise is not None:
                layers.append(Noise(noise[1] if layers else noise[0]))
            layers += [
                nn.Conv2d(before, times * width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(times * width),
                nn.ReLU(),
            ]
            before = times * width
        if left > 1:
            layers.append(nn.MaxPool2d(2))
            left //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * left**2, classes))
