"""Bounds of networks against `convex_adversarial`, the code of Wong and Kolter (2018)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import besiege
from besiege.bounds import Bounding
from besiege.bounds.bounding import Relaxed, fast_lin, margins_by_lines
from besiege.bounds.operations import Rectifier
from besiege.bounds.region import Region
from besiege.bounds.relaxing import Bounds, lines
from besiege.models.sources import load

pytestmark = pytest.mark.peer
NETS = {
    "cifar10_oval_base_kw": ("cifar10", 2 / 255),
    "cifar10_kw_small_8px": ("cifar10", 2 / 255),
    "fashion_kw_small_eps0.1": ("fashion-mnist", 0.05),
    "mnist_kw_small_eps0.1": ("mnist", 0.05),
}
IMAGES, PIECE = 50, 5


def _theirs(
    package: Any, monkeypatch: pytest.MonkeyPatch, net: Any, x: Tensor, y: Tensor, eps: float
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Their bounds of all margins, and those of what every ReLU reads."""
    read: list[tuple[Tensor, Tensor]] = []
    relu = package.dual_layers.DualReLU
    build = relu.__init__

    def watched(self: Any, low: Tensor, high: Tensor) -> None:
        read.append((low, high))
        build(self, low, high)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(relu, "__init__", watched)
        found = -package.RobustBounds(net, eps)(x, y)
    every = torch.arange(found.shape[1])
    others = every.expand(len(y), -1)[every != y[:, None]].view(len(y), -1)
    return found.gather(1, others), read


@pytest.mark.parametrize("name", NETS)
def test_fast_lin_is_the_dual_network_and_never_looser(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = pytest.importorskip("convex_adversarial")
    source, eps = NETS[name]
    victim: Any = load(f"public:{name}")
    data = besiege.data.load(source, count=IMAGES)
    # Theirs knows no limits of pixel values: these images stay eps away from them.
    images = eps + (1 - 2 * eps) * data.images
    mean, std = (victim.mean, victim.std) if victim.mean else ((0.0,), (1.0,))
    assert len(set(std)) == 1, "one budget for all normalised channels"
    shifted = (images - torch.tensor(mean).view(1, -1, 1, 1)) / std[0]
    bounding = Bounding.of(victim, images)
    norm = besiege.Threat.parse(f"linf:{eps}").norm
    for start in range(0, IMAGES, PIECE):
        some = slice(start, start + PIECE)
        x, y = images[some], data.labels[some]
        margins, read = _theirs(package, monkeypatch, victim.module, shifted[some], y, eps / std[0])
        region = Region.of(x, torch.full((len(x),), eps), norm, victim.box)
        with torch.no_grad(), victim.held():
            ours = fast_lin(bounding.graph, region)
            known, chosen = dict(ours.bounds), {}
            for number, (low, high) in zip(bounding.graph.bent, read, strict=True):
                node = bounding.graph.nodes[number]
                assert isinstance(node.operation, Rectifier)
                parent = node.parents[0]
                mine = ours.bounds[parent]
                # Values whose sign intervals tell are not bounded from the image.
                open_ = mine.unstable()
                slack = 1e-4 * float(torch.maximum(low.abs(), high.abs()).amax())
                assert (low <= mine.low + slack)[open_].all()
                assert (high >= mine.high - slack)[open_].all()
                known[parent] = Bounds(low, high)
                chosen[number] = lines(node.operation, known[parent], parallel=True)
            same = margins_by_lines(bounding.graph, Relaxed(region, known, chosen), y, chosen)
            better = margins_by_lines(bounding.graph, ours, y, ours.lines)
        torch.testing.assert_close(same, margins, rtol=1e-4, atol=1e-4)
        # Better bounds inside do not make every margin better, only most.
        assert (better - margins).mean() >= 0
