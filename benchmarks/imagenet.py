r"""Networks for ImageNet whose half-precision weights are in the data root, as files of a user.

    besiege examine benchmarks/imagenet.py:squeezenet --data DATA/imagenet-sample --crop 227 \
        --threat linf:1/255

Weights and origins: `imagenet_squeezenet1.1_fp16` is the Caffe model of Iandola et al. 2016,
`imagenet_mobilenet_v1_0.75_fp16` the TensorFlow.js model of Howard et al. 2017; both compute in
float32 here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from besiege.core.errors import DataError
from besiege.models import Classifier
from besiege.models.catalogue import public_path

CROPS = {"squeezenet": 227, "mobilenet": 224}
"""The height and width of the images of each network."""


class Fire(nn.Module):
    """Few channels, then many of two kernel sizes."""

    def __init__(self, inputs: int, few: int, many: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, few, 1)
        self.expand1x1 = nn.Conv2d(few, many, 1)
        self.expand3x3 = nn.Conv2d(few, many, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.squeeze(x))
        return torch.cat([relu(self.expand1x1(x)), relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1, for channels in the order blue, green, red."""

    def __init__(self) -> None:
        super().__init__()

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, 2, ceil_mode=True)

        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2),
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
        self.classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x.flip(1))).mean((2, 3))
        return logits


class Same(nn.Conv2d):
    """A convolution of kernel 3 that pads as TensorFlow does: with stride 2, only at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad(x, (0, 1, 0, 1) if self.stride == (2, 2) else (1, 1, 1, 1)))


class Separable(nn.Module):
    """A convolution of each channel, then one across channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.dw = Same(inputs, inputs, 3, stride, groups=inputs, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs, eps=1e-3)
        self.pw = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, eps=1e-3)
        self.relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.dw(x)))
        answer: Tensor = self.relu(self.bn2(self.pw(x)))
        return answer


class MobileNet(nn.Module):
    """MobileNet v1 with three quarters of the channels."""

    def __init__(self) -> None:
        super().__init__()
        widths = [24, 48, 96, 96, 192, 192, *[384] * 6, 768, 768]
        strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]
        self.conv1 = Same(3, 24, 3, 2, bias=False)
        self.bn1 = nn.BatchNorm2d(24, eps=1e-3)
        self.relu = nn.ReLU6()
        pairs = zip(widths, widths[1:], strides, strict=False)
        self.blocks = nn.Sequential(*[Separable(*one) for one in pairs])
        self.fc = nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def squeezenet() -> Classifier:
    """SqueezeNet 1.1: the Caffe model subtracts a mean colour from values up to 255."""
    mean = (123 / 255, 117 / 255, 104 / 255)
    return _loaded(SqueezeNet(), "imagenet_squeezenet1.1_fp16", mean=mean, std=(1 / 255,) * 3)


def mobilenet() -> Classifier:
    """MobileNet v1 with three quarters of the channels."""
    return _loaded(MobileNet(), "imagenet_mobilenet_v1_0.75_fp16", mean=0.5, std=0.5)


def _loaded(net: nn.Module, name: str, **options: Any) -> Classifier:
    from safetensors.torch import load_file

    path = public_path(name)
    if path is None or not path.exists():
        raise DataError(f"BESIEGE_DATA/weights/{name}.safetensors is not there")
    missing, unexpected = net.load_state_dict(load_file(path), strict=False)
    assert not unexpected and all(key.endswith("num_batches_tracked") for key in missing)
    return Classifier(net.eval(), classes=1000, name=name, **options)
