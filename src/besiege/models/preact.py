"""The pre-activation residual network for 32x32 images, of any width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from besiege.models.denoising import How, denoise_stages


class PreActBlock(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions (He et al. 2016b).

    Where the shape changes, the shortcut is a 1x1 convolution of the first activation; elsewhere
    it is the block's input itself, which nothing touches.
    """

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        changes = stride != 1 or before != channels
        self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, before, h, w]`` to ``[rows, channels, h / stride, w / stride]``."""
        active = torch.relu(self.bn1(x))
        kept: Tensor = x if self.shortcut is None else self.shortcut(active)
        y: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        return y + kept


class PreActResNet(nn.Module):
    """A 3x3 convolution, four stages of pre-activation blocks, and a linear layer.

    The stages have w, 2w, 4w and 8w channels; all but the first halve the image. A last batch norm
    and ReLU come before the average pool, since the blocks end in a sum that neither has seen
    (He et al. 2016b, appendix).

    Parameters
    ----------
    blocks : tuple of int
        Blocks per stage.
    width : int
        Channels of the first stage.
    classes, in_channels : int
        Outputs, and channels of the images.
    """

    def __init__(
        self, blocks: tuple[int, ...], width: int = 64, classes: int = 10, in_channels: int = 3
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        stages, before = [], width
        for number, count in enumerate(blocks):
            channels, stride = width * 2**number, 1 if number == 0 else 2
            first = PreActBlock(before, channels, stride)
            rest = (PreActBlock(channels, channels, 1) for _ in range(count - 1))
            stages.append(nn.Sequential(first, *rest))
            before = channels
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(before)
        self.linear = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images ``[rows, channels, h, w]`` to logits ``[rows, classes]``."""
        x = torch.relu(self.bn(self.stages(self.conv1(x))))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def preact_resnet18(
    width: int = 64, classes: int = 10, in_channels: int = 3, denoise: How | None = None
) -> PreActResNet:
    """Pre-activation ResNet with 18 layers: 11.2 million parameters, 2.8 at a width of 32.

    `denoise` puts a `besiege.models.denoising.Denoise` block after each stage.

    Examples
    --------
    >>> sum(p.numel() for p in preact_resnet18(width=32).parameters())
    2796714
    """
    net = PreActResNet((2, 2, 2, 2), width, classes, in_channels)
    if denoise is not None:
        stages = [stage for stage in net.stages if isinstance(stage, nn.Sequential)]
        denoise_stages(stages, (width, 2 * width, 4 * width, 8 * width), denoise)
    return net
