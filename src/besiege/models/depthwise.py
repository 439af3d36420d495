"""Networks of depthwise and 1x1 convolutions for 32x32 images, in the style of MobileNet v1."""

from __future__ import annotations

from torch import nn

# Channels of each pair at multiplier 1, and its stride: four times smaller images than ImageNet's
# leave less to halve.
_PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))


def mobile_cifar(multiplier: float = 1.0, classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """A 3x3 convolution, seven pairs of a depthwise 3x3 and a 1x1 convolution, a linear layer.

    Each convolution is followed by batch norm and ReLU (Howard et al. 2017).

    Parameters
    ----------
    multiplier : float
        Of all channels: 32 in the first convolution up to 512 in the last one.
    classes, in_channels : int
        Outputs, and channels of the images.
    """
    if not 0 < multiplier <= 4:
        raise ValueError(f"the multiplier is {multiplier!r}, but it is above 0, and up to 4")

    def scaled(channels: int) -> int:
        return max(8, round(channels * multiplier / 8) * 8)

    before = scaled(32)
    layers = _convolution(in_channels, before, 3, 1)
    for channels, stride in _PAIRS:
        after = scaled(channels)
        layers += _convolution(before, before, 3, stride, groups=before)
        layers += _convolution(before, after, 1, 1)
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def _convolution(
    before: int, after: int, kernel: int, stride: int, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU()]
