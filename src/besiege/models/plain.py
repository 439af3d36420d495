"""Plain convolutional networks for 32x32 images: no batch norm, no pooling, no shortcuts."""

from __future__ import annotations

from torch import nn


def plain_cnn(
    depth: int = 6, width: int = 32, classes: int = 10, in_channels: int = 3, size: int = 32
) -> nn.Sequential:
    """Padded 3x3 convolutions in three stages and one linear layer, each but the last with ReLU.

    The first convolution of the second and of the third stage halves the image and doubles the
    channels, as in the all-convolutional network of Springenberg et al. (2015). Weights start as
    He et al. (2015) do, without which a deep network without batch norm does not train.

    Parameters
    ----------
    depth : int
        Convolutions, a multiple of 3.
    width : int
        Channels of the first stage; the others have 2 and 4 times as many.
    classes, in_channels, size : int
        Outputs, channels of the images, and their height and width.
    """
    each, rest = divmod(depth, 3)
    if rest or each < 1:
        raise ValueError(f"the depth is {depth!r}, but a plain network has a multiple of 3")
    layers: list[nn.Module] = []
    before, left = in_channels, size
    for stage in range(3):
        for number in range(each):
            stride = 2 if stage and not number else 1
            layers += [nn.Conv2d(before, width << stage, 3, stride, 1), nn.ReLU()]
            before, left = width << stage, -(-left // stride)
    linear = nn.Linear(before * left**2, classes)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None, "convolutions have one here"
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers, nn.Flatten(), linear)
