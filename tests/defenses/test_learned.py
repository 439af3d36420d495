"""Layers with a trained network inside: `reform` and `pixeldefend`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, DataError, InputError
from besiege.defenses import Defended, PixelDefend, Reform, load
from besiege.defenses.learned import purified
from besiege.models import ARCHITECTURES, Classifier
from besiege.models.pixelcnn import PixelCNN, pixelcnn
from besiege.testing.victims import images_of
from besiege.training import fresh

BOX = (0.0, 1.0)
LEARNED = ["reform('zoo:digits-autoencoder')", "pixeldefend('zoo:digits-pixelcnn')"]


def dice(rows: int) -> Dice:
    return Dice.throw(0, torch.arange(rows))


def small(levels: int = 7, channels: int = 3) -> PixelCNN:
    """A network whose levels depend on each other strongly."""
    made = fresh(lambda: pixelcnn(levels, 8, 2, channels)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.5)
    return made


def written(folder: Path, module: nn.Module, name: str = "mine") -> Path:
    path = folder / f"{name}.safetensors"
    save_file({key: value.clone() for key, value in module.state_dict().items()}, path)
    return path


def greedy(network: PixelCNN, x: Tensor, eps: float) -> Tensor:
    """Purification as the paper has it: a full pass for every value of every image by itself."""
    values = torch.arange(network.levels) / (network.levels - 1)
    results = []
    for image in x:
        made = image.clone()
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                for channel in range(x.shape[1]):
                    with torch.no_grad():
                        logits = network(made[None])[0, channel, :, i, j]
                    near = (values - image[channel, i, j]).abs() <= eps + 1e-5
                    if near.any():
                        best = max(range(len(values)), key=lambda k: (bool(near[k]), logits[k]))
                        made[channel, i, j] = values[best]
        results.append(made)
    return torch.stack(results)


@pytest.mark.parametrize(("channels", "eps"), [(3, 0.2), (3, 0.35), (1, 0.5), (3, 0.05), (1, 1.0)])
def test_purification_is_that_of_a_pass_for_every_value(
    channels: int, eps: float, tmp_path: Path
) -> None:
    network = small(channels=channels)
    x = images_of((channels, 4, 5), 3)
    path = written(tmp_path, network)
    text = f"pixelcnn(levels=7, width=8, blocks=2, in_channels={channels}):{path}"
    made = PixelDefend(text, eps).transform(x, BOX, dice(3))
    torch.testing.assert_close(made, greedy(network, x, eps), rtol=0, atol=1e-6)
    assert float((made - x).abs().max()) <= eps + 1e-5
    if eps >= 0.2:
        nearest = (x * 6).round() / 6
        assert not torch.allclose(made, nearest, atol=1e-3), "the network decided nothing"


def test_bounds_are_those_of_the_original_image_and_the_box() -> None:
    layer = PixelDefend("zoo:digits-pixelcnn", 0.1)
    x = images_of((1, 8, 8), 20)
    for low, high in (BOX, (-1.0, 1.0), (0.0, 255.0)):
        given = x * (high - low) + low
        made = layer(given, (low, high), dice(20))
        width = high - low
        assert float((made - given).abs().max()) <= (0.1 + 1e-4) * width
        assert low <= float(made.min()) and float(made.max()) <= high
        torch.testing.assert_close((made - low) / width, layer(x, BOX, dice(20)), rtol=0, atol=1e-5)


def test_an_image_of_levels_may_move_by_the_whole_bound_and_stays_without_one() -> None:
    levels = 256
    network = fresh(lambda: pixelcnn(levels, 4, 1, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.heads[0].levels.bias.copy_(torch.arange(levels).float())  # type: ignore[union-attr,operator]  # a Head
    x = torch.arange(0, 200, 2).float().view(1, 1, 10, 10) / 255
    assert torch.equal(purified(network, x, 16 / 255), (x * 255).round() + 16)
    assert torch.equal(purified(network, x, 0.0), (x * 255).round())
    assert bool((purified(network, x + 0.4 / 255, 0.1 / 255) == -1).all())


def test_a_value_without_a_level_nearby_stays(tmp_path: Path) -> None:
    path = written(tmp_path, small(channels=1))
    layer = PixelDefend(f"pixelcnn(levels=7, width=8, blocks=2, in_channels=1):{path}", 0.01)
    x = torch.full((2, 1, 3, 3), 0.25)  # halfway between levels
    assert torch.equal(layer(x, BOX, dice(2)), x)


def test_rows_do_not_depend_on_their_number() -> None:
    layer = PixelDefend("zoo:digits-pixelcnn", 0.3)
    x = images_of((1, 8, 8), 70)
    whole = layer(x, BOX, dice(70))
    for count in (1, 3, 8, 13, 16, 40):
        assert torch.equal(layer(x[:count], BOX, dice(count)), whole[:count])


def test_the_gradient_behind_pixeldefend_is_the_bare_nets_at_the_purified_image() -> None:
    victim = load("zoo:digits-natural+pixeldefend('zoo:digits-pixelcnn')")
    x = besiege.data.load("digits", count=5).images.requires_grad_(True)
    assert isinstance(victim, Defended)
    with victim.held():
        (slope,) = torch.autograd.grad(victim(x).square().sum(), x)
        purer = victim.layers[0].transform(x, BOX, dice(5)).detach()
        assert not torch.equal(purer, x)
        at = purer.clone().requires_grad_(True)
        (bare,) = torch.autograd.grad(victim.bare(at).square().sum(), at)
        assert torch.equal(victim(x), victim.bare(purer))
    assert torch.equal(slope, bare) and float(bare.abs().max()) > 0


def test_reform_is_the_network_clipped_and_its_gradient_its_own(tmp_path: Path) -> None:
    class Bright(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1.5 * x - 0.2

    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\nclass Bright(nn.Module):\n"
        "    def forward(self, x):\n        return 1.5 * x - 0.2\n"
    )
    layer = Reform(f"{tmp_path}/nets.py:Bright")
    x = images_of((3, 4, 4), 6).requires_grad_(True)
    for low, high in (BOX, (0.0, 255.0)):
        made = layer(x * (high - low) + low, (low, high), dice(6))
        wanted = Bright()(x).clamp(0, 1)
        torch.testing.assert_close((made - low) / (high - low), wanted)
        (slope,) = torch.autograd.grad(made.sum() / (high - low), x)
        inside = (wanted > 0) & (wanted < 1)
        torch.testing.assert_close(slope, 1.5 * inside.to(x))
        assert bool(inside.any()) and not bool(inside.all())


def test_an_attack_through_reform_follows_the_whole_chain() -> None:
    victim = load("zoo:digits-natural+reform('zoo:digits-autoencoder')")
    assert isinstance(victim, Defended) and victim.layers[0].surrogate(*_call(1)) is None
    network = victim.layers[0].parts[0]
    assert isinstance(network, Classifier)
    x = besiege.data.load("digits", count=4).images.requires_grad_(True)
    with victim.held():
        (slope,) = torch.autograd.grad(victim(x).sum(), x)
        (chain,) = torch.autograd.grad(victim.bare(network.module(x).clamp(0, 1)).sum(), x)
    torch.testing.assert_close(slope, chain)


def _call(rows: int) -> tuple[Tensor, tuple[float, float], Dice]:
    return torch.zeros(rows, 1, 8, 8), BOX, dice(rows)


@pytest.mark.parametrize(
    ("name", "arch"),
    [("reform", "autoencoder"), ("pixeldefend", "pixelcnn(levels=7, width=8, in_channels=1)")],
)
def test_one_weight_changes_every_digest(name: str, arch: str, tmp_path: Path) -> None:
    from besiege.models.architectures import ARCHITECTURES
    from besiege.training.fitting import read_architecture

    found = read_architecture(arch)
    assert found is not None
    path = written(tmp_path, fresh(lambda: ARCHITECTURES[found[0]](**found[1])))
    text = f"zoo:digits-natural+{name}('{arch}:{path}')"
    victim = load(text)
    assert load(str(victim)).digest() == victim.digest()
    weights = load_file(path)
    key = sorted(weights)[-1]
    weights[key].view(-1)[-1] += 1e-3
    save_file(weights, path)
    assert load(text).digest() != victim.digest()
    assert str(load(text)) == str(victim), "the digest must tell, since the text does not"


@pytest.mark.parametrize("text", LEARNED)
def test_moving_and_holding_reach_the_network(text: str) -> None:
    victim = load(f"zoo:digits-natural+{text}")
    assert isinstance(victim, Defended)
    (network,) = victim.layers[0].parts
    assert network in victim.parts and isinstance(network, Classifier)
    network.module.train()
    with victim.held():
        assert not any(part.training for part in network.module.modules())
        assert not any(p.requires_grad for p in network.module.parameters())
    assert network.module.training
    victim.to("meta")
    assert all(p.is_meta for p in network.module.parameters())


def test_every_net_answers_without_gradients_of_its_weights() -> None:
    for text in LEARNED:
        victim = load(f"zoo:digits-natural+{text}")
        assert isinstance(victim, Defended)
        (network,) = victim.layers[0].parts
        assert isinstance(network, Classifier)
        assert not any(p.requires_grad for p in network.module.parameters())


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("reform", InputError, "net"),
        ("reform(3)", InputError, "is a text"),
        ("reform('zoo:digits-natural')", InputError, "makes logits.* autoencoder"),
        ("reform('zoo:digits-pixelcnn')", InputError, "makes levels.* autoencoder"),
        ("pixeldefend('zoo:digits-autoencoder')", InputError, "makes images.* pixelcnn"),
        ("reform('zoo:digits-autoencodr')", BesiegeError, "did you mean"),
        ("reform('autoencoder:missing.safetensors')", DataError, "does not exist"),
        ("pixeldefend('zoo:digits-pixelcnn', eps=2)", InputError, "eps is 2"),
        ("pixeldefend('zoo:digits-pixelcnn', eps=-0.1)", InputError, "eps is -0.1"),
    ],
)
def test_what_is_wrong_is_refused(text: str, kind: type[BesiegeError], said: str) -> None:
    with pytest.raises(kind, match=said):
        load(f"zoo:digits-natural+{text}")


def test_a_file_of_another_shape_is_refused_when_the_text_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, ARCHITECTURES["autoencoder"](width=5))
    with pytest.raises(DataError, match=r"does not fit autoencoder.*card beside.*arguments"):
        load(f"zoo:digits-natural+reform('autoencoder:{path}')")
    load(f"zoo:digits-natural+reform('autoencoder(width=5):{path}')")
    path = written(tmp_path, small(levels=8), "pixels")
    with pytest.raises(DataError, match="does not fit pixelcnn"):
        load(f"zoo:digits-natural+pixeldefend('pixelcnn(levels=9, width=8, blocks=2):{path}')")
    text = f"pixelcnn(levels=8, width=8, blocks=2, mean=0.5, std=0.5):{path}"
    with pytest.raises(InputError, match="leave out mean and std"):
        PixelDefend(text)


@pytest.mark.parametrize("text", LEARNED)
def test_images_of_other_channels_are_refused(text: str) -> None:
    layer = load(f"zoo:digits-natural+{text}")
    assert isinstance(layer, Defended)
    with pytest.raises(InputError, match=r"1 channels, and these have 3.*in_channels=3"):
        layer.layers[0](torch.zeros(2, 3, 8, 8), BOX, dice(2))
    with pytest.raises(InputError, match="at least one pixel"):
        layer.layers[0](torch.zeros(2, 8, 8), BOX, dice(2))


def test_networks_of_a_factory_are_checked_at_the_first_image(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\ndef flat():\n    return nn.Flatten()\n"
    )
    source = f"{tmp_path}/nets.py:flat"
    with pytest.raises(InputError, match=r"makes \[64\] of images \[1, 8, 8\]"):
        Reform(source)(*_call(2))
    with pytest.raises(InputError, match="is a Flatten: give a PixelCNN"):
        PixelDefend(source)


def test_the_shipped_networks_help_against_an_attacker_who_ignores_them() -> None:
    data = besiege.data.load("digits", count=150)
    found = besiege.attack(
        "pgd(steps=20)", "zoo:digits-natural", data.images, data.labels, threat="linf:0.1"
    )
    bare = load("zoo:digits-natural")

    def accuracy(text: str, x: Tensor) -> float:
        victim = bare if not text else load(f"zoo:digits-natural+{text}")
        with torch.no_grad():
            return float((victim(x).argmax(1) == data.labels).double().mean())

    for text, clean in ((LEARNED[0], 0.9), ("pixeldefend('zoo:digits-pixelcnn', eps=0.1)", 0.85)):
        assert accuracy(text, data.images) > clean
        assert accuracy(text, found.images) > accuracy("", found.images) + 0.15
