"""Networks for ImageNet on phones: MobileNet v1 and v2, EfficientNet-Lite0.

Their weights come from TensorFlow: convolutions pad as "same" there, batch norm has eps 1e-3, and
activations are ReLU6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import relu6

_EPS = 1e-3


def same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Images padded with zeros as TensorFlow's "same" does; the stride is at most the kernel.

    An output has ceil(size / stride) pixels. Where the padding is odd, the larger half is below
    and to the right, unlike the padding of torch's convolutions.
    """
    # Without branches, so that torch.fx can trace networks that call it.
    height, width = (kernel - stride + -side % stride for side in (x.shape[2], x.shape[3]))
    top, left = height // 2, width // 2
    return functional.pad(x, (left, width - left, top, height - top))


def _spatial(before: int, after: int, kernel: int, stride: int, **more: int | bool) -> nn.Conv2d:
    """A convolution that pads itself where "same" is symmetric; otherwise `same` goes before it."""
    padding = kernel // 2 if stride == 1 else 0
    return nn.Conv2d(before, after, kernel, stride, padding, **more)  # type: ignore[arg-type]  # groups and bias


def _convolved(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """The output of a convolution made by `_spatial`, or of a 1x1 convolution."""
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    answer: Tensor = conv(x if stride == 1 else same(x, kernel, stride))
    return answer


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=_EPS)


class Separable(nn.Module):
    """A 3x3 convolution of each channel, then a 1x1 convolution across channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.dw = _spatial(before, before, 3, stride, groups=before, bias=False)
        self.bn1 = _norm(before)
        self.pw = nn.Conv2d(before, after, 1, bias=False)
        self.bn2 = _norm(after)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, before, h, w]`` to ``[rows, after, h / stride, w / stride]``."""
        x = relu6(self.bn1(_convolved(self.dw, x)))
        return relu6(self.bn2(self.pw(x)))


class MobileNetV1(nn.Module):
    """A strided convolution, 13 separable ones, and one linear layer."""

    # Channels after the first convolution and after each separable one, and the strides of those.
    _CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    _STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)

    def __init__(self, multiplier: float, classes: int, in_channels: int) -> None:
        super().__init__()
        widths = [max(8, int(multiplier * channels)) for channels in self._CHANNELS]
        self.conv1 = _spatial(in_channels, widths[0], 3, 2, bias=False)
        self.bn1 = _norm(widths[0])
        self.blocks = nn.Sequential(
            *map(Separable, widths[:-1], widths[1:], self._STRIDES),
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = self.blocks(relu6(self.bn1(_convolved(self.conv1, x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def mobilenet_v1(multiplier: float = 1.0, classes: int = 1000, in_channels: int = 3) -> MobileNetV1:
    """MobileNet v1 (Howard et al. 2017): 13 depthwise separable convolutions.

    Parameters
    ----------
    multiplier : float
        The paper's width multiplier: 0.75 has three quarters of the channels.
    classes, in_channels : int
        Outputs, and channels of the images.
    """
    return MobileNetV1(multiplier, classes, in_channels)


class MobileNetV2(nn.Module):
    """52 convolutions and a 1x1 convolution for the logits, in one list in order of execution.

    Batch norm is part of the convolutions, as in files made for phones. The first output is the
    background, which TensorFlow's networks count as a class, and is dropped.
    """

    # Expansion, channels, blocks and first stride of each stage (the paper's table 2).
    _STAGES = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )

    def __init__(self, classes: int, in_channels: int) -> None:
        super().__init__()
        convs = [_spatial(in_channels, 32, 3, 2)]
        before = 32
        self.blocks: list[tuple[int, bool]] = []
        """Of every block, how many convolutions it has, and whether its input is added."""
        for expansion, after, count, first in self._STAGES:
            for stride in (first, *[1] * (count - 1)):
                inner = expansion * before
                block = [_spatial(inner, inner, 3, stride, groups=inner)]
                if expansion > 1:
                    block.insert(0, nn.Conv2d(before, inner, 1))
                block.append(nn.Conv2d(inner, after, 1))
                self.blocks.append((len(block), stride == 1 and before == after))
                convs += block
                before = after
        convs += [nn.Conv2d(before, 1280, 1), nn.Conv2d(1280, 1 + classes, 1)]
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        convs: Iterator[Any] = iter(self.convs)
        x = relu6(_convolved(next(convs), x))
        for count, added in self.blocks:
            y = x
            for _ in range(count - 1):
                y = relu6(_convolved(next(convs), y))
            y = next(convs)(y)
            x = x + y if added else y
        x = relu6(next(convs)(x)).mean((2, 3), keepdim=True)
        logits: Tensor = next(convs)(x).flatten(1)
        return logits[:, 1:]


def mobilenet_v2(classes: int = 1000, in_channels: int = 3) -> MobileNetV2:
    """MobileNet v2 (Sandler et al. 2018) of width 1, batch norm folded into the convolutions.

    The network has one more output, the background, which is not among its answers.
    """
    return MobileNetV2(classes, in_channels)


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise one, and a 1x1 one to fewer channels."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = expansion * before
        self.expands, self.added = expansion > 1, stride == 1 and before == after
        if self.expands:
            self._expand_conv = nn.Conv2d(before, inner, 1, bias=False)
            self._bn0 = _norm(inner)
        self._depthwise_conv = _spatial(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv = nn.Conv2d(inner, after, 1, bias=False)
        self._bn2 = _norm(after)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, before, h, w]`` to ``[rows, after, h / stride, w / stride]``."""
        y = relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = relu6(self._bn1(_convolved(self._depthwise_conv, y)))
        y = self._bn2(self._project_conv(y))
        answer: Tensor = x + y if self.added else y
        return answer


class EfficientNetLite0(nn.Module):
    """16 inverted residual blocks; weights have the names of efficientnet_lite_pytorch."""

    # Expansion, channels, blocks, kernel and first stride of each stage.
    _STAGES = (
        *((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2)),
        *((6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1)),
    )

    def __init__(self, classes: int, in_channels: int) -> None:
        super().__init__()
        self._conv_stem = _spatial(in_channels, 32, 3, 2, bias=False)
        self._bn0 = _norm(32)
        blocks, before = [], 32
        for expansion, after, count, kernel, first in self._STAGES:
            for stride in (first, *[1] * (count - 1)):
                blocks.append(InvertedResidual(before, after, expansion, kernel, stride))
                before = after
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(before, 1280, 1, bias=False)
        self._bn1 = _norm(1280)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = self._blocks(relu6(self._bn0(_convolved(self._conv_stem, x))))
        x = relu6(self._bn1(self._conv_head(x))).mean((2, 3))
        logits: Tensor = self._fc(self._dropout(x))
        return logits


def efficientnet_lite0(classes: int = 1000, in_channels: int = 3) -> EfficientNetLite0:
    """EfficientNet-Lite0: EfficientNet-B0 (Tan and Le 2019) without squeeze-and-excitation.

    Activations are ReLU6 instead of swish, and the first and last convolutions keep their width at
    every scale.
    """
    return EfficientNetLite0(classes, in_channels)
