"""`bits`: levels and rounding, and the digests of records written before it had them."""

from __future__ import annotations

import pytest
import torch

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.defenses import BitDepth, Defended, load

BOX = (0.0, 1.0)
DICE = Dice.throw(0, torch.arange(1))
"""SHA-256 of what digests of models hold of these layers, in records of earlier releases."""


def line(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, 1, 1, -1)


@pytest.mark.parametrize("levels", [2, 3, 5, 16, 200])
def test_levels_are_so_many_values_with_both_ends(levels: int) -> None:
    made = BitDepth(levels=levels)(torch.linspace(0, 1, 5001).view(1, 1, 1, -1), BOX, DICE)
    assert sorted(set(made.flatten().tolist())) == pytest.approx(
        torch.linspace(0, 1, levels).tolist()
    )
    assert torch.equal(BitDepth(levels=levels)(made, BOX, DICE), made)


@pytest.mark.parametrize("depth", [1, 4, 7])
def test_so_many_levels_are_the_depth_that_has_them(depth: int) -> None:
    x = torch.rand(1, 3, 9, 9)
    for how in ("round", "floor"):
        deep = BitDepth(depth, how=how)
        made = BitDepth(levels=2**depth, how=how)(x, BOX, DICE)
        assert torch.equal(made, deep(x, BOX, DICE))


def test_floor_darkens_and_keeps_the_top() -> None:
    x = line(0.0, 0.249, 0.25, 0.6, 0.999, 1.0)
    made = BitDepth(levels=4, how="floor")(x, BOX, DICE)
    assert torch.equal(made, line(0.0, 0.0, 0.25, 0.5, 0.75, 1.0))
    made = BitDepth(levels=4, how="floor")(x * 2 - 1, (-1.0, 1.0), DICE)
    assert torch.equal(made, line(0.0, 0.0, 0.25, 0.5, 0.75, 1.0) * 2 - 1)


def test_digests_tell_the_new_parameters_apart() -> None:
    layers = (
        *(BitDepth(), BitDepth(3), BitDepth(levels=16), BitDepth(levels=8)),
        *(BitDepth(how="floor"), BitDepth(3, how="floor")),
    )
    assert len({Defended("zoo:digits-natural", one).digest() for one in layers}) == len(layers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bits(levels=1)", "levels is 1, but a whole number 2 to 65536 is needed"),
        ("bits(levels=2.5)", "levels is 2.5"),
        ("bits(how='ceil')", "'round' or 'floor' is needed"),
        ("bits(depth=3, levels=8)", "both depth=3 and levels=8 are given: use one"),
    ],
)
def test_impossible_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"zoo:digits-natural+{text}")
