"""The pre-activation network: size, shapes and order of its parts."""

from __future__ import annotations

import torch
from torch.nn import functional

from besiege.models.preact import PreActBlock, preact_resnet18
from besiege.training import fresh


def test_sizes_and_shapes() -> None:
    counts = {w: sum(p.numel() for p in preact_resnet18(w).parameters()) for w in (32, 64)}
    assert counts == {32: 2_796_714, 64: 11_172_170}
    net = preact_resnet18(width=4, classes=7, in_channels=1)
    assert net(torch.rand(2, 1, 32, 32)).shape == (2, 7) == net(torch.rand(2, 1, 28, 28)).shape


def test_a_block_is_the_papers_formula() -> None:
    block = fresh(lambda: PreActBlock(3, 5, 2), 0).eval()
    x = torch.rand(4, 3, 8, 8)
    active = functional.relu(functional.batch_norm(x, torch.zeros(3), torch.ones(3)))
    inside = functional.conv2d(active, block.conv1.weight, stride=2, padding=1)
    inside = functional.relu(functional.batch_norm(inside, torch.zeros(5), torch.ones(5)))
    assert block.shortcut is not None
    expected = functional.conv2d(inside, block.conv2.weight, padding=1)
    expected = expected + functional.conv2d(active, block.shortcut.weight, stride=2)
    torch.testing.assert_close(block(x), expected)
    same = PreActBlock(3, 3, 1).eval()
    assert same.shortcut is None
    torch.nn.init.zeros_(same.conv2.weight)
    assert torch.equal(same(x), x), "where the shape stays, nothing touches the shortcut"
