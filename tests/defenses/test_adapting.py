"""Images of one size for a model of another: what it does, its gradient, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.victims import normal, uniform
from torch import Tensor
from torch.nn import functional

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError
from besiege.core.oracle import Oracle
from besiege.defenses import Adapt, Defended, load
from besiege.defenses.layers import LANGUAGE

BOX = (0.0, 1.0)


def adapted(layer: Adapt, x: Tensor, box: tuple[float, float] = BOX) -> Tensor:
    return layer(x, box, Dice.throw(0, torch.arange(len(x))))


@pytest.mark.parametrize("shape", [(7, 9), (32, 32), (40, 24), (33, 65)])
@pytest.mark.parametrize("size", [32, (20, 48)])
def test_resizing_is_bilinear_and_antialiased_where_it_shrinks(shape: Any, size: Any) -> None:
    x = uniform(3, 3, *shape)
    height, width = size if isinstance(size, tuple) else (size, size)
    down = functional.interpolate(x, (shape[0], width), mode="bilinear", antialias=width < shape[1])
    right = functional.interpolate(
        down, (height, width), mode="bilinear", antialias=height < shape[0]
    )
    found = adapted(Adapt(size), x)
    assert found.shape == (3, 3, height, width)
    assert torch.allclose(found, right, atol=2e-6)
    usual = functional.interpolate(x, (height, width), mode="bilinear", antialias=True)
    assert torch.allclose(found, usual, atol=2e-6)


def test_cropping_keeps_the_middle_and_borders_surround_it() -> None:
    x = torch.arange(30.0).view(1, 1, 5, 6) / 30
    assert torch.equal(adapted(Adapt((3, 4), "crop"), x), x[:, :, 1:4, 1:5])
    for how, value in (("white", 1.0), ("grey", 0.5)):
        assert torch.equal(adapted(Adapt((3, 4), how), x), x[:, :, 1:4, 1:5])  # type: ignore[arg-type]
        framed = adapted(Adapt((8, 10), how), x)  # type: ignore[arg-type]
        assert torch.equal(framed[:, :, 1:6, 2:8], x)
        framed[:, :, 1:6, 2:8] = value
        assert bool((framed == value).all())
    mixed = adapted(Adapt((9, 4), "white"), x)  # smaller in one direction, larger in the other
    assert mixed.shape == (1, 1, 9, 4) and torch.equal(mixed[:, :, 2:7], x[:, :, :, 1:5])


def test_borders_know_the_box() -> None:
    x = torch.zeros(1, 1, 1, 1)
    assert adapted(Adapt(3, "white"), x, (-1.0, 3.0))[0, 0, 0, 0] == 3
    assert adapted(Adapt(3, "grey"), x, (-1.0, 3.0))[0, 0, 0, 0] == 1


@pytest.mark.parametrize("how", ["resize", "crop", "white", "grey"])
def test_the_right_size_is_left_alone(how: Any) -> None:
    x = uniform(2, 3, 8, 9)
    assert torch.equal(adapted(Adapt((8, 9), how), x), x)


@pytest.mark.parametrize("how", ["resize", "crop", "white", "grey"])
@pytest.mark.parametrize("size", [(5, 4), (11, 9), (5, 11)])
def test_the_gradient_is_the_transpose(how: Any, size: tuple[int, int]) -> None:
    if how == "crop" and size != (5, 4):
        return
    x = uniform(2, 1, 7, 8).double().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda v: adapted(Adapt(size, how), v), x)
    assert torch.autograd.gradcheck(lambda v: adapted(Adapt(size, how, channels=3), v), x)


def test_grey_and_colour_become_each_other() -> None:
    grey, colour = uniform(2, 1, 4, 4), uniform(2, 3, 4, 4)
    assert torch.equal(adapted(Adapt(4, channels=3), grey), grey.expand(-1, 3, -1, -1))
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    found = adapted(Adapt(4, channels=1), colour)
    assert torch.allclose(found, (colour * weights).sum(1, keepdim=True), atol=1e-6)
    assert torch.allclose(adapted(Adapt(4, channels=1), adapted(Adapt(4, channels=3), grey)), grey)
    with pytest.raises(InputError, match="2 channels"):
        adapted(Adapt(4, channels=3), uniform(1, 2, 4, 4))


def test_resizing_shrinks_a_change_of_signs_and_cropping_does_not() -> None:
    # What differs from pixel to pixel is averaged: halving with a triangle of 4 pixels leaves of
    # independent signs the root of the sum of its squared weights, (2 (1 + 9) / 64) in each way.
    eps = 8 / 255
    change = eps * normal(4, 3, 64, 64).sign()
    x = torch.full_like(change, 0.5)
    shrunk = adapted(Adapt(32), x + change) - adapted(Adapt(32), x)
    rms = float(shrunk.square().mean().sqrt())
    assert rms == pytest.approx(eps * 20 / 64, rel=0.05)
    cropped = adapted(Adapt(32, "crop"), x + change) - adapted(Adapt(32, "crop"), x)
    assert torch.allclose(cropped.abs(), torch.full_like(cropped, eps), atol=1e-6)
    enlarged = adapted(Adapt(128), x + change) - adapted(Adapt(128), x)
    assert float(enlarged.square().mean().sqrt()) == pytest.approx(0.625 * eps, rel=0.05)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    victim = load("zoo:digits-natural+adapt(size=8)")
    x = uniform(13, 1, 20, 17)
    together, alone = Oracle(victim).logits(x), Oracle(victim).logits(x[5:6])
    assert torch.equal(together[5:6], alone)


def test_it_is_part_of_text_and_digest() -> None:
    victim = load("zoo:digits-natural+adapt(size=8)")
    assert str(victim) == "zoo:digits-natural+adapt(size=8, how='resize')"
    texts = [
        "adapt(size=8, how='resize')",
        "adapt(size=8, how='white')",
        "adapt(size=(8, 8), how='white')",
        "adapt(size=8, how='resize', channels=1)",
    ]
    digests = set()
    for text in texts:
        layer = LANGUAGE.read(text)
        assert str(layer) == text
        made = Defended("zoo:digits-natural", layer)
        assert str(load(str(made))) == str(made)
        digests.add(made.digest())
    assert len(digests) == 4
    assert Defended("zoo:digits-natural").digest() not in digests


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adapt(size=0)", "write 224"),
        ("adapt(size=(3, 4, 5))", "write 224"),
        ("adapt(size=8.5)", "write 224"),
        ("adapt(size=8, how='whit')", "'white'"),
        ("adapt(size=8, channels=2)", "1 is grey"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(BesiegeError, match=said):
        load(f"zoo:digits-natural+{text}")


def test_what_is_too_small_to_crop_is_refused_with_the_way_out() -> None:
    victim = load("zoo:digits-natural+adapt(size=8, how='crop')")
    with pytest.raises(InputError, match=r"6x6 cannot be cropped to 8x8.*white"):
        besiege.attack("fgsm", victim, uniform(2, 1, 6, 6), torch.zeros(2).long(), threat="linf:1")


def test_a_model_of_another_size_is_evaluated(tmp_path: Path) -> None:
    data = besiege.data.load("digits", count=30)
    large = functional.interpolate(data.images, (16, 16), mode="nearest")
    done: Any = {"threat": "linf:0.1", "attacks": "pgd(steps=10)", "curve": "none"}
    result = besiege.evaluate(
        "zoo:digits-natural+adapt(size=8)", (large, data.labels), out=tmp_path / "run", **done
    )
    small = besiege.evaluate(
        "zoo:digits-natural", (data.images, data.labels), out=tmp_path / "small", **done
    )
    assert result.robust is not None
    assert result.clean.value == small.clean.value > 0.9
    assert result.robust.value < result.clean.value - 0.2
