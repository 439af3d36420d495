"""`autoencoder`: MagNet's networks that map an image to one like those they were trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Autoencoder(nn.Module):
    """Convolutions with sigmoids between them, perhaps at half the resolution in the middle.

    Parameters
    ----------
    width, pool, in_channels
        As for `autoencoder`.
    """

    def __init__(self, width: int, pool: bool, in_channels: int) -> None:
        super().__init__()
        self.pool = pool

        def convolution(before: int, after: int) -> nn.Conv2d:
            return nn.Conv2d(before, after, 3, 1, 1)

        self.first = convolution(in_channels, width)
        middle = 3 if pool else 1
        self.middle = nn.ModuleList(convolution(width, width) for _ in range(middle))
        self.last = convolution(width, in_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[rows, channels, height, width]`` to images of the same shape, from 0 to 1."""
        size = x.shape[2:]
        x = torch.sigmoid(self.first(x))
        if self.pool:
            x = functional.avg_pool2d(x, 2, ceil_mode=True)
        for number, convolution in enumerate(self.middle):
            if self.pool and number == 2:
                x = functional.interpolate(x, size=size, mode="nearest")
            x = torch.sigmoid(convolution(x))
        return torch.sigmoid(self.last(x))


def autoencoder(width: int = 3, pool: bool = True, in_channels: int = 1) -> Autoencoder:
    """MagNet's autoencoders (Meng and Chen 2017), for images of any size from 0 to 1.

    It is no classifier: it answers images. The layer `reform` puts it in front of a model.

    Parameters
    ----------
    width : int
        Channels of the hidden layers; 3 in the paper.
    pool : bool
        Whether the middle has half the resolution, as the first network for MNIST: five 3x3
        convolutions. The second one, and that for CIFAR-10, are three without pooling.
    in_channels : int
        Channels of the images.

    Examples
    --------
    >>> autoencoder()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    for name, value in (("width", width), ("in_channels", in_channels)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} is {value!r}, but an autoencoder has one channel or more")
    return Autoencoder(width, pool, in_channels)
