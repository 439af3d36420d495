"""Crops and flips: by each sample's own dice, and nothing but shifts and mirrors."""

from __future__ import annotations

import torch
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.training.augmentation import augmented

X = torch.rand(400, 3, 6, 5, generator=torch.Generator().manual_seed(0))
DICE = Dice.throw(1, torch.arange(400))


def test_every_image_is_a_shift_of_itself_perhaps_mirrored_and_all_occur() -> None:
    made = augmented(X, DICE, crop=1, flip=True)
    seen = set()
    for image, given in zip(made, X, strict=True):
        found = []
        for mirrored in (False, True):
            border = functional.pad(given.flip(2) if mirrored else given, (1, 1, 1, 1))
            for down in range(3):
                for along in range(3):
                    if torch.equal(image, border[:, down : down + 6, along : along + 5]):
                        found.append((mirrored, down, along))
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) == 18


def test_a_row_does_not_depend_on_its_neighbours_and_an_epoch_draws_anew() -> None:
    whole = augmented(X, DICE, crop=2, flip=True)
    rows = torch.tensor([7, 3, 390])
    assert torch.equal(augmented(X[rows], DICE.at(rows), crop=2, flip=True), whole[rows])
    assert not torch.equal(augmented(X, DICE.of("augment", 2), crop=2, flip=True), whole)


def test_nothing_asked_is_nothing_done() -> None:
    assert augmented(X, DICE, crop=0, flip=False) is X
    only = augmented(X, DICE, crop=0, flip=True)
    share = (only == X).flatten(1).all(1).double().mean()
    assert 0.4 < share < 0.6 and only.is_contiguous()
    assert torch.equal(
        torch.where((only == X).flatten(1).all(1)[:, None, None, None], X, X.flip(3)), only
    )
