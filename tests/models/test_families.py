"""Families of networks for CIFAR-10: their sizes, the laws of victims, and their twins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from besiege.models import ARCHITECTURES, Classifier, twin
from besiege.models.dense import densenet
from besiege.models.inception import Branches, inception_cifar
from besiege.testing import conform_victim

SMALL: dict[str, dict[str, float]] = {
    "plain_cnn": {"depth": 3, "width": 8},
    "vgg": {"depth": 11, "width": 8},
    "densenet": {"depth": 22},
    "mobile_cifar": {"multiplier": 0.25},
    "inception_cifar": {"blocks": 1, "width": 32},
}
"""Sizes that obey every law; 1x1 convolutions of some others round batches of 8 differently, see
docs/decisions/0006-bitwise.md."""


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


def victim(name: str) -> Classifier:
    """A network whose batch norm has seen images, so that it is no identity."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = ARCHITECTURES[name](**SMALL[name])
        net.train()(torch.rand(16, 3, 32, 32))
    return Classifier(net.eval(), classes=10, mean=(0.5,) * 3, std=(0.2,) * 3, name=name)


@pytest.mark.parametrize("name", SMALL)
def test_networks_obey_the_laws_of_victims(name: str) -> None:
    conform_victim(victim(name), torch.rand(6, 3, 32, 32))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "plain_cnn"])
def test_twins_agree(name: str) -> None:
    original, images = victim(name), torch.rand(16, 3, 32, 32)
    copy = twin(original, images[:8])
    assert copy is not None
    with torch.no_grad(), original.held(), copy.held():
        theirs, ours = original(images), copy(images)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert (ours.argmax(1) == theirs.argmax(1)).all()


def test_a_network_without_batch_norm_has_nothing_to_fold() -> None:
    assert twin(victim("plain_cnn"), torch.rand(8, 3, 32, 32)) is None


@pytest.mark.parametrize(("depth", "published"), [(40, 0.18e6), (100, 0.77e6)])
def test_densenets_have_the_published_size(depth: int, published: float) -> None:
    net = densenet(depth=depth)
    assert parameters(net) == pytest.approx(published, rel=0.03)
    assert net.linear.in_features % 8 == 0
    # The depth counts the linear layer.
    assert len(convolutions(net)) + 1 == depth
    with pytest.raises(ValueError, match=r"6n \+ 4"):
        densenet(depth=41)


@pytest.mark.parametrize("depth", [11, 13, 16, 19])
def test_vgg_has_as_many_layers_as_its_name_says(depth: int) -> None:
    net = ARCHITECTURES["vgg"](depth=depth, width=64)
    # The published ones have three linear layers.
    assert len(convolutions(net)) + 3 == depth
    channels = {part.out_channels for part in convolutions(net)}
    assert channels == {64, 128, 256, 512}
    with pytest.raises(ValueError, match="11, 13, 16, 19"):
        ARCHITECTURES["vgg"](depth=12)
    if depth == 16:
        same = ARCHITECTURES["vgg16"]().state_dict()
        assert {k: v.shape for k, v in net.state_dict().items()} == {
            k: v.shape for k, v in same.items()
        }


def test_plain_networks_have_neither_batch_norm_nor_shortcuts() -> None:
    for depth in (3, 6, 9):
        net = ARCHITECTURES["plain_cnn"](depth=depth)
        assert {type(part) for part in net.children()} == {
            nn.Conv2d,
            nn.ReLU,
            nn.Flatten,
            nn.Linear,
        }
        assert [part.stride for part in convolutions(net)].count((2, 2)) == 2
        assert len(convolutions(net)) == depth
        # Signals neither vanish nor explode, so that it trains.
        with torch.no_grad():
            assert 0.05 < float(net(torch.randn(32, 3, 32, 32)).std()) < 5
    with pytest.raises(ValueError, match="multiple of 3"):
        ARCHITECTURES["plain_cnn"](depth=4)


def test_widths_of_depthwise_networks() -> None:
    sizes = [parameters(ARCHITECTURES["mobile_cifar"](multiplier=m)) for m in (0.25, 0.5, 1.0)]
    assert sizes[1] / sizes[0] > 3 and sizes[2] / sizes[1] > 3.5
    parts = convolutions(ARCHITECTURES["mobile_cifar"]())
    assert [part.groups == part.in_channels for part in parts] == [False, *[True, False] * 7]
    assert parts[0].out_channels == 32 and parts[-1].out_channels == 512
    with pytest.raises(ValueError, match="above 0"):
        ARCHITECTURES["mobile_cifar"](multiplier=0)


def test_inception_has_four_branches_of_eight_parts() -> None:
    net = inception_cifar(blocks=1, width=32)
    block = net.stages[0]
    assert isinstance(block, Branches)
    with torch.no_grad():
        x = net.stem(torch.rand(1, 3, 8, 8))
        widths = [branch(x).shape[1] for branch in (block.one, block.three, block.five)]
        assert widths == [8, 16, 4] and block(x).shape == (1, 32, 8, 8)
    assert len(inception_cifar(blocks=3).stages) == 11
    with pytest.raises(ValueError, match="multiple of 8"):
        inception_cifar(width=12)
