"""The text form of a defended victim, and what identifies one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError, UnknownNameError
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Blur, Defended, Layer, ResizePad, load
from besiege.defenses.defended import split
from besiege.models import Classifier
from besiege.models.small import digits_mlp

X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("text", "model", "layers"),
    [
        ("zoo:a", "zoo:a", []),
        ("zoo:a+bits", "zoo:a", ["bits"]),
        ("zoo:a+bits(depth=3)+resize_pad", "zoo:a", ["bits(depth=3)", "resize_pad"]),
        ("zoo:a + bits(depth=(1+2)) + bits ", "zoo:a", ["bits(depth=(1+2))", "bits"]),
        ("cnn_a(mean=1+2):a+b/w.safetensors", "cnn_a(mean=1+2):a+b/w.safetensors", []),
        ("cnn_a:a+b/w+bits.pt+bits", "cnn_a:a+b/w+bits.pt", ["bits"]),
        ("cnn_a:odd)(/w.pt+bits(depth=2)", "cnn_a:odd)(/w.pt", ["bits(depth=2)"]),
        ("c++/net+x.py:make(a=1+2)+bits", "c++/net+x.py:make(a=1+2)", ["bits"]),
        ("bits+x.py:make", "bits+x.py:make", []),
    ],
)
def test_a_text_is_split_where_a_layer_follows(text: str, model: str, layers: list[str]) -> None:
    assert split(text) == (model, layers)


def test_a_defended_victim_is_read_from_text_and_prints_it() -> None:
    victim = load("zoo:digits-natural+bits(depth=2)+bits(depth=1)")
    assert isinstance(victim, Defended)
    assert str(victim) == "zoo:digits-natural+bits(depth=2)+bits(depth=1)"
    by_hand = Defended("zoo:digits-natural", BitDepth(2), BitDepth(1))
    assert torch.equal(victim(X), by_hand(X)) and victim.digest() == by_hand.digest()
    # The first layer written is the first an image meets.
    other = load("zoo:digits-natural+bits(depth=1)+bits(depth=2)")
    assert isinstance(other, Defended) and other.layers == (BitDepth(1), BitDepth(2))
    assert load("zoo:digits-natural+resize_pad").stochastic
    inner = Defended("zoo:digits-natural+bits(depth=2)", BitDepth(1))
    assert str(inner) == str(victim) and torch.equal(inner(X), victim(X))


def test_without_layers_it_is_the_model_itself() -> None:
    victim = load("zoo:digits-natural")
    assert isinstance(victim, Classifier) and victim.name == "zoo:digits-natural"


def test_a_plus_in_a_path_is_part_of_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "a+b"
    folder.mkdir()
    net = digits_mlp()
    save_file(net.state_dict(), folder / "w+bits.safetensors")
    text = f"digits_mlp:{folder / 'w+bits.safetensors'}"
    assert torch.equal(load(text)(X), net(X))
    victim = load(f"{text}+bits(depth=1)")
    assert torch.equal(victim(X), net(X.round())) and str(victim) == f"{text}+bits(depth=1)"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("zoo:digits-natural+bitz(depth=3)", UnknownNameError, "did you mean 'bits'"),
        ("zoo:digits-natural+bitz+bits", UnknownNameError, "did you mean 'bits'"),
        ("zoo:digits-natural+resizepad", UnknownNameError, "did you mean 'resize_pad'"),
        ("zoo:digits-natrual+bits", UnknownNameError, "did you mean 'digits-natural'"),
        ("zoo:digits-natural+bits(dept=3)", InputError, "did you mean 'depth'"),
        ("zoo:digits-natural+bits(depth=99)", InputError, "1 to 16"),
        ("zoo:digits-natural+bits(depth=)", InputError, "cannot be read"),
        ("zoo:digits-natural+", InputError, "write a layer after it"),
        ("zoo:digits-natural++bits", InputError, "write a layer after it"),
        ("+bits", UnknownNameError, "names no model"),
        ("", UnknownNameError, "names no model"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(
    text: str, error: type[BesiegeError], says: str
) -> None:
    with pytest.raises(error, match=says):
        load(text)


def test_attack_takes_the_text() -> None:
    data = besiege.data.load("digits", count=16)
    bare, defended = (
        besiege.attack("fgsm", model, data.images, data.labels, threat="linf:0.15")
        for model in ("zoo:digits-natural", "zoo:digits-natural+bits(depth=1)")
    )
    assert defended.model == "zoo:digits-natural+bits(depth=1)"
    assert not torch.equal(bare.images, defended.images)


FACTORY = """
from torch import nn
from besiege.defenses import BitDepth, Defended

def make():
    return Defended(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), BitDepth(3))
"""


def test_a_factory_may_return_a_defended_victim(tmp_path: Path) -> None:
    path = tmp_path / "nets.py"
    path.write_text(FACTORY)
    victim = load(f"{path}:make+bits(depth=1)")
    assert isinstance(victim, Defended) and isinstance(victim.victim, Defended)
    assert victim(X).shape == (3, 10)
    with pytest.raises(InputError, match=r"besiege\.defenses\.load"):
        besiege.models.load(f"{path}:make")


def test_a_defended_victim_is_moved_to_a_device() -> None:
    victim = load("zoo:digits-natural+bits", device="meta")
    assert victim.device == torch.device("meta")
    assert isinstance(victim, Defended) and victim.to("meta") is victim
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        load("zoo:digits-natural+bits", device="cudda")


class Remote(Victim):
    """A victim that computes elsewhere: nothing to move."""

    classes, access, metered = 10, Access.SCORE, True

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return torch.zeros(len(x), 10)


def test_a_victim_elsewhere_cannot_be_moved() -> None:
    with pytest.raises(InputError, match="Remote cannot be moved"):
        Defended(Remote(), BitDepth()).to("meta")


def inverting(low: float) -> Layer:
    @dataclass(frozen=True)
    class Inverted(Layer):
        """Somebody else's layer."""

        def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
            return box[1] - x + low

    return Inverted()


def test_the_digest_covers_the_victim_the_layers_and_their_code() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    victims = [
        Defended(net),
        Defended(net, BitDepth(3)),
        Defended(net, BitDepth(4)),
        Defended(net, BitDepth(3), BitDepth(4)),
        Defended(net, BitDepth(4), BitDepth(3)),
        Defended(net, ResizePad()),
        Defended(net, inverting(0.0)),
        Defended(net, inverting(0.5)),
        Defended(digits_mlp(), BitDepth(3)),
        Defended(Remote(), BitDepth(3)),
    ]
    assert len({victim.digest() for victim in victims}) == len(victims)
    assert Defended(net, BitDepth(3)).digest() == victims[1].digest()
    assert Defended(net, inverting(0.5)).digest() == victims[7].digest()


def test_layers_are_given_one_by_one_as_objects() -> None:
    wrong: list[Any] = [[BitDepth(3)], BitDepth, "bits"]
    for one in wrong:
        with pytest.raises(InputError, match=r"Defended\(model, first, second\)"):
            Defended("zoo:digits-natural", one)


def test_layers_are_applied_in_the_order_of_the_text() -> None:
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    victim, net = load("zoo:digits-natural+blur+bits(depth=1)"), load("zoo:digits-natural")
    dice = Dice.throw(0, torch.arange(4))
    with torch.no_grad():
        inwards = net(BitDepth(1)(Blur()(x, (0, 1), dice), (0, 1), dice))
        outwards = net(Blur()(BitDepth(1)(x, (0, 1), dice), (0, 1), dice))
        assert torch.equal(victim(x), inwards)
    assert not torch.equal(inwards, outwards)
