"""The harness that records peers' smallest changes can call every attack that it names."""

from __future__ import annotations

import pytest
import torch
from benchmarks.minimum.peers import adv_lib, foolbox
from torch import nn

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch and numpy warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("norm", ["l2", "linf", "l1", "l0"])
def test_every_attack_takes_what_it_is_given_and_finds_something(norm: str) -> None:
    pytest.importorskip("adv_lib")
    pytest.importorskip("foolbox")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5)).eval().requires_grad_(False)
    images = torch.rand(4, 1, 8, 8)
    labels = net(images).argmax(1)
    for name, run in {**adv_lib(norm), **foolbox(norm)}.items():
        found = run(net, images, labels).detach()
        assert found.shape == images.shape and found.isfinite().all(), name
        assert (net(found).argmax(1) != labels).any(), name
