from __future__ import annotations

import pytest
import torch
from torch import nn

from besiege.models import ARCHITECTURES, Classifier
from besiege.models.drawing import Noise
from besiege.models.vgg import vgg16


def test_it_has_thirteen_convolutions_of_the_published_channels() -> None:
    net = vgg16()
    channels = [part.out_channels for part in net if isinstance(part, nn.Conv2d)]
    assert channels == [64, 64, 128, 128, *[256] * 3, *[512] * 6]
    assert sum(isinstance(part, nn.MaxPool2d) for part in net) == 5
    linear = [part for part in net if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in linear] == [(512, 10)]
    assert abs(sum(p.numel() for p in net.parameters()) - 14.7e6) < 5e4


@pytest.mark.parametrize(("size", "pools"), [(1, 0), (8, 3), (28, 4), (32, 5), (64, 5)])
def test_it_pools_while_the_image_is_larger_than_one_pixel(size: int, pools: int) -> None:
    net = vgg16(width=2, in_channels=1, size=size).eval()
    assert sum(isinstance(part, nn.MaxPool2d) for part in net) == pools
    assert net(torch.rand(2, 1, size, size)).shape == (2, 10)


def test_noise_stands_before_every_convolution() -> None:
    net = vgg16(width=2, noise=(0.2, 0.1))
    parts = list(net)
    before = [parts[n - 1] for n, part in enumerate(parts) if isinstance(part, nn.Conv2d)]
    assert [part.sigma for part in before if isinstance(part, Noise)] == [0.2, *[0.1] * 12]
    assert sum(isinstance(part, Noise) for part in parts) == 13
    assert Classifier(net).stochastic and not Classifier(vgg16(width=2)).stochastic
    with pytest.raises(ValueError, match=r"such as \(0\.2, 0\.1\)"):
        ARCHITECTURES["vgg16"](noise=(0.2,))
