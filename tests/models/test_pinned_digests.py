"""Digests of ordinary models are what they always were: records of earlier versions are found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from besiege.defenses import Defended
from besiege.defenses import load as load_victim
from besiege.models import Classifier, load

FILE = """
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from pinned_aid import nudge

SCALE = 2.0
TABLE = {"act": torch.tanh, "sizes": (1, 2)}


class Triple(NamedTuple):
    a: int = 1
    b: float = 0.5


@dataclass(frozen=True)
class Settings:
    depth: int = 3


class Plain:
    def __init__(self):
        self.held = [1, "two", {3: 4.0}]


def shift(x, by=1):
    import math
    from torch.nn import functional

    return functional.relu(x) + by * math.pi


class Part(nn.Module):
    def forward(self, x):
        return x * SCALE


class Net(nn.Module):
    power = 2

    def __init__(self, hidden=0.5):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(640.0).view(10, 64) / 640)
            self.linear.bias.fill_(0.25)
        self.register_buffer("mask", torch.ones(64, dtype=torch.bool))
        self.part = Part()
        self.parts = [self.part, self.linear]
        self._hidden = hidden
        self.settings = Settings()
        self.triple, self.plain = Triple(), Plain()
        self.named = OrderedDict(one=1, two=torch.zeros(2))
        self.size = torch.Size([1, 8, 8])
        self.act = lambda x: x * hidden
        self.reach = partial(shift, by=2)
        self.kind = torch.float32

    @property
    def gain(self):
        return TABLE["sizes"][0]

    @torch.no_grad()
    def peek(self, x):
        return x

    def forward(self, x):
        x = nudge(self.reach(self.act(x.flatten(1) * self.mask)))
        return F.relu(self.linear(self.part(x)) * self.gain) ** self.power


def make(hidden=0.5):
    return Net(hidden)


def hooked():
    net = Net()
    net.linear.register_forward_hook(lambda m, given, answer: answer * 2)
    net.part.register_forward_pre_hook(lambda m, given: (given[0] + 1,))
    return net
"""
AID = "from torch import relu\n\n\ndef nudge(x):\n    return relu(x)\n"


def constant(module: nn.Module) -> nn.Module:
    """The module with weights that follow from their sizes alone."""
    with torch.no_grad():
        for tensor in module.state_dict().values():
            steps = torch.arange(tensor.numel()).view(tensor.shape)
            tensor.copy_((steps % 7 + 1).to(tensor.dtype))
    return module.eval()


def convolutions() -> nn.Module:
    return constant(
        nn.Sequential(
            nn.Conv2d(1, 2, 3),
            nn.BatchNorm2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(72, 10),
        )
    )


def normed() -> nn.Module:
    module = constant(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    nn.utils.parametrizations.weight_norm(module.get_submodule("1"))
    return module


MADE: dict[str, tuple[Callable[[], Classifier], str]] = {
    "linear": (
        lambda: Classifier(constant(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))),
        "985a0baf6339570cbe9a998bc11bd1a0a1b6a938c3934f3e1fefc1e10b26e4e2",
    ),
    "convolutions": (
        lambda: Classifier(convolutions(), mean=0.5, std=0.25, grid=1 / 255),
        "887583739884c5dc504808355d5f2cf325ba9e960d4fa700dffd73af27b38e4a",
    ),
    "half": (
        lambda: Classifier(convolutions().half(), outputs="probabilities"),
        "0056418d27c91e1de72a5d76aa61cc4b41f7d719511205f555946eae9a87506c",
    ),
    "parametrized": (
        lambda: Classifier(normed(), box=(-1.0, 1.0)),
        "417a65d9de60e026d6526e4897118765fa6da421128f0f3449be9cc9e766ec73",
    ),
    "transformer": (
        lambda: Classifier(constant(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))),
        "a1d91f1a02ef2071f59ceb159c9c2362ddf7633f1470598570d219a3f25c2b16",
    ),
    "graph": (
        lambda: Classifier(torch.fx.symbolic_trace(convolutions())),
        "197a82486ed072d7840197d48a3ad72422671f47806db6dfca069a1d349265e6",
    ),
}
NAMED = {
    "digits-natural": ("6ac69d9d01cf3fae360b4983bcecfee6aecafa29dd17ef0b053abdf2837cdf94"),
    "digits-pgd-at": ("5c2cd257052baf4c6423c0470c9be95544ad6b53e532c3faaccef831623b3932"),
    "cifar10-pgd-at": ("a485e71bcd9827e80aa4a93b07b2bf5b1962db4b29b5646ec1b9ea43197901e2"),
    "cifar10-resnet20-pgd-at": ("03952cfff7b62eebe763eb1a2ddc7497b9b8a49d18485880c3724e67c72653e4"),
    "digits-natural+bits(depth=3)+resize_pad": (
        "3adbc2a55d23dab19421e5ec3d4b46254b5c817fcd717e3973d2e49fecda2509"
    ),
    "digits-natural+adapt(8)": ("fc0dfe8aa90225051954865ead86663ed12058ad3e9ff5862d2eba258b77f773"),
}
WRITTEN = {
    "make": "4ce77481f0ffe8d1248dd5045fbbac2181ee974851534e27fa1f9f2910985a02",
    "make(hidden=0.25)": "a7a078a3c977a8e75f4a604dd9636205943a2ca50fa40d7ca4acf188f4ccac2b",
    "hooked": "c3dd64586e3492acc17ac437982af51a167012b446281d7408acde314c294f78",
}


@pytest.mark.parametrize("name", MADE)
def test_modules_made_here(name: str) -> None:
    make, digest = MADE[name]
    assert make().digest() == digest


@pytest.mark.parametrize("name", NAMED)
def test_models_that_come_with_besiege(name: str) -> None:
    victim = load_victim(f"zoo:{name}")
    assert isinstance(victim, (Classifier, Defended))
    assert victim.digest() == NAMED[name]


@pytest.mark.parametrize("factory", WRITTEN)
def test_networks_in_files(factory: str, tmp_path: Path) -> None:
    (tmp_path / "pinned_aid.py").write_text(AID)
    (tmp_path / "nets.py").write_text(FILE)
    sys.modules.pop("pinned_aid", None)
    assert load(f"{tmp_path / 'nets.py'}:{factory}").digest() == WRITTEN[factory]
