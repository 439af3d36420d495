"""Rows of the networks for CIFAR-10 do not depend on how many others stand in their batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from besiege.core.answer import Aim
from besiege.core.oracle import Oracle
from besiege.models import Classifier
from besiege.models.architectures import ARCHITECTURES

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "densenet22": ("densenet", {"depth": 22}),
    "densenet40": ("densenet", {"depth": 40}),
    "densenet64": ("densenet", {"depth": 64}),
    "inception-1": ("inception_cifar", {"blocks": 1, "width": 32}),
    "inception-2": ("inception_cifar", {"blocks": 2, "width": 48}),
    "inception-3": ("inception_cifar", {"blocks": 3, "width": 48}),
    "mobile-0.25": ("mobile_cifar", {"multiplier": 0.25}),
    "mobile-0.5": ("mobile_cifar", {"multiplier": 0.5}),
    "mobile-0.75": ("mobile_cifar", {"multiplier": 0.75}),
    "vgg11": ("vgg", {"depth": 11, "width": 12}),
    "vgg19": ("vgg", {"depth": 19, "width": 12}),
    "plain3": ("plain_cnn", {"depth": 3, "width": 24}),
    "plain9": ("plain_cnn", {"depth": 9, "width": 24}),
    "resnet20": ("resnet20", {}),
}
FAST = "mobile-0.5"
"""Its products of 8 rows round otherwise than those of 16 on some CPUs, and it is small."""


def drawn(name: str) -> Classifier:
    """A network with drawn weights and statistics of batch norm."""
    architecture, options = NETWORKS[name]
    torch.manual_seed(0)
    net = ARCHITECTURES[architecture](**options).eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return Classifier(net, classes=10, name=name)


def loss(logits: Tensor, aim: Aim) -> Tensor:
    return nn.functional.cross_entropy(logits, aim.labels, reduction="none")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == FAST else pytest.mark.slow) for n in NETWORKS]
)
def test_rows_are_the_same_bit_for_bit_in_batches_of_1_to_40(name: str) -> None:
    victim, images = drawn(name), torch.rand(40, 3, 32, 32)
    labels = torch.arange(40) % 10
    counts = range(1, 41) if name != FAST else (1, 7, 8, 9, 16, 17, 40)
    with victim.held():
        whole = Oracle(victim, batch=64).logits(images)
        slope = Oracle(victim, batch=64).gradient(images, loss, Aim(labels))[0]
        for count in counts:
            assert torch.equal(Oracle(victim).logits(images[:count]), whole[:count])
        for count in (1, 8, 9, 17):
            some = Oracle(victim).gradient(images[:count], loss, Aim(labels[:count]))[0]
            assert torch.equal(some, slope[:count])
