from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import besiege
from besiege.models import ARCHITECTURES, Classifier, twin
from besiege.models.denoising import Denoise, How
from besiege.testing import conform_victim
from besiege.training import train
from besiege.training.fitting import build

HOWS: tuple[How, ...] = ("gaussian", "dot", "mean", "median")
X = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("how", HOWS)
def test_a_fresh_block_changes_nothing_and_a_trained_one_does(how: How) -> None:
    block = Denoise(4, how).eval()
    assert torch.equal(block(X), X)
    with torch.no_grad():
        block.bn.weight.fill_(1.0)
        added = block(X) - X
        expected = block.bn(block.conv(block.denoised(X)))
    assert torch.allclose(added, expected, atol=1e-6) and float(added.abs().max()) > 0.01


def test_the_gaussian_mean_is_weighted_over_positions() -> None:
    block = Denoise(4, "gaussian")
    assert (block.theta.out_channels, block.phi.out_channels) == (2, 2)
    wide = Denoise(256, "gaussian")
    assert abs(float(wide.theta.weight.detach().std()) - 0.01) < 1e-3
    nn.init.normal_(block.theta.weight)
    nn.init.normal_(block.phi.weight)
    with torch.no_grad():
        out = block.denoised(X)
        theta, phi = block.theta(X), block.phi(X)
    # One position by hand: a softmax over all 30 positions, of products over the square root of 2.
    row, i, j = 1, 2, 3
    products = [
        float(theta[row, :, i, j] @ phi[row, :, a, b]) / math.sqrt(2)
        for a in range(5)
        for b in range(6)
    ]
    weights = torch.tensor(products).softmax(0)
    assert torch.allclose(out[row, :, i, j], X[row].flatten(1) @ weights, atol=1e-5)


def test_the_fused_mean_is_that_of_the_kernel_with_second_derivatives() -> None:
    block = Denoise(4, "gaussian")
    nn.init.normal_(block.theta.weight)
    nn.init.normal_(block.phi.weight)
    weights = torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for twice in (True, False):
        x = X.clone().requires_grad_(True)
        with sdpa_kernel(SDPBackend.MATH) if twice else nullcontext():
            made = block.denoised(x)
        (slope,) = torch.autograd.grad((made * weights).sum(), x, create_graph=twice)
        found.append((made.detach(), slope.detach()))
        if twice:
            (bend,) = torch.autograd.grad(slope.square().sum(), x)
            assert float(bend.abs().max()) > 0.01
    for formula, fused in zip(*found, strict=True):
        assert torch.allclose(formula, fused, atol=1e-4)
    with torch.no_grad():  # a row does not depend on the others
        assert torch.equal(block.denoised(X)[1:], block.denoised(X[1:]))


@pytest.mark.parametrize("objective", ["gradient_penalty(1.0)", "reach(10, 5, 2)"])
def test_objectives_with_second_derivatives_train_networks_with_blocks(objective: str) -> None:
    data = besiege.data.load("digits", "train", count=64)
    victim, _ = build("resnet20(denoise='gaussian')", data)
    train(victim, data, "natural(epochs=4)")
    before = [p.detach().clone() for p in victim.module.parameters()]
    train(victim, data, f"natural(epochs=1, objective={objective})")
    after = list(victim.module.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_dot_product_is_divided_by_the_number_of_positions() -> None:
    out = Denoise(4, "dot").denoised(X)
    row, i, j = 2, 4, 0
    here = X[row, :, i, j]
    expected = sum(
        float(here @ X[row, :, a, b]) * X[row, :, a, b] for a in range(5) for b in range(6)
    )
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(out[row, :, i, j], expected / 30, atol=1e-5)


def test_the_median_is_that_of_scipy() -> None:
    expected = ndimage.median_filter(X.numpy(), size=(1, 1, 3, 3), mode="nearest")
    assert np.array_equal(Denoise(4, "median").denoised(X).numpy(), expected)


def test_the_mean_is_over_the_positions_that_exist() -> None:
    out = Denoise(4, "mean").denoised(X)
    assert torch.allclose(out[:, :, 2, 2], X[:, :, 1:4, 1:4].mean((2, 3)), atol=1e-6)
    assert torch.allclose(out[:, :, 0, 0], X[:, :, :2, :2].mean((2, 3)), atol=1e-6)


def test_blocks_stand_after_the_last_unit_of_each_stage() -> None:
    net = ARCHITECTURES["resnet20"](denoise="gaussian")
    for stage, channels in ((net.layer1, 16), (net.layer2, 32), (net.layer3, 64)):
        assert isinstance(stage, nn.Sequential) and len(stage) == 4
        assert isinstance(stage[3], Denoise) and stage[3].conv.in_channels == channels
    wide = ARCHITECTURES["preact_resnet18"](width=4, denoise="mean")
    assert [n for n, part in wide.named_modules() if isinstance(part, Denoise)] == [
        f"stages.{number}.2" for number in range(4)
    ]
    for name in ("resnet20", "preact_resnet18"):
        plain = set(ARCHITECTURES[name]().state_dict())
        assert plain == set(ARCHITECTURES[name](denoise=None).state_dict())
        assert plain < set(ARCHITECTURES[name](denoise="dot").state_dict())
    with pytest.raises(ValueError, match="denoise is 'gauss': did you mean 'gaussian'"):
        ARCHITECTURES["resnet20"](denoise="gauss")


@pytest.mark.parametrize(
    "how", [pytest.param(h, marks=pytest.mark.slow if h in ("dot", "mean") else []) for h in HOWS]
)
def test_a_denoising_network_is_a_lawful_victim_with_a_twin(how: How) -> None:
    torch.manual_seed(0)
    net = ARCHITECTURES["resnet20"](denoise=how, in_channels=1).eval()
    for part in net.modules():
        if isinstance(part, Denoise):
            nn.init.ones_(part.bn.weight)
            nn.init.ones_(part.bn.running_var)  # type: ignore[arg-type]  # it has one
    # At 8x8, torch's 1x1 convolution of the last 2x2 positions rounds differently by batch size.
    images = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    victim = Classifier(net, classes=10)
    conform_victim(victim, images)
    assert twin(victim, images) is not None
