"""A victim type from outside the package is one file: a class and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.testing import conform_victim
from besiege.testing.victims import module_of

DATA = besiege.data.load("digits", count=24)


class Voting(besiege.Victim):
    """Networks that vote: the mean of their probabilities, of images on a coarse grid."""

    grid = 1 / 16
    classes = 10

    def __init__(self, *networks: nn.Module) -> None:
        self.networks = networks
        self.passes = len(networks)

    @property
    def parts(self) -> Sequence[nn.Module]:
        return self.networks

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        shares = [network(x).softmax(1) for network in self.networks]
        return torch.stack(shares).mean(0).log()


@pytest.fixture(scope="module")
def voting() -> Voting:
    names = ("zoo:digits-natural", "zoo:digits-pgd-at")
    return Voting(*(besiege.models.load(name).module for name in names))


def test_it_conforms(voting: Voting) -> None:
    conform_victim(voting, DATA.images)


def test_it_is_attacked(voting: Voting) -> None:
    found = besiege.attack("pgd(steps=5)", voting, DATA.images, DATA.labels, threat="linf:3/16")
    assert found.model == "Voting" and int(found.success.sum()) > 5
    levels = found.images * 16
    assert torch.allclose(levels, levels.round(), atol=1e-4), "images are on the victim's grid"
    wrong = voting(found.images).argmax(1) != DATA.labels
    assert torch.equal(wrong & found.success, found.success)


def test_it_is_evaluated_and_known_again(voting: Voting, tmp_path: Path) -> None:
    terms: dict[str, Any] = {"attacks": ["fgsm", "square(steps=20)"], "curve": False}
    found = besiege.evaluate(voting, DATA, threat="linf:2/16", out=tmp_path, **terms)
    assert found.complete and found.robust is not None and found.clean.value > 0.8
    assert found.robust.value < found.clean.value
    keys = {path.name for path in (tmp_path / "records").iterdir()}
    again = Voting(*voting.networks)
    besiege.evaluate(again, DATA, threat="linf:2/16", out=tmp_path, **terms)
    assert {path.name for path in (tmp_path / "records").iterdir()} == keys
    assert Voting(*voting.networks, module_of((1, 8, 8), 10)).digest() != voting.digest()


def test_it_is_defended_and_fused_like_any_other(voting: Voting) -> None:
    defended = besiege.defenses.Defended(voting, besiege.defenses.BitDepth(3))
    assert defended.grid == voting.grid and defended.passes == 2 and defended.bare is voting
    assert str(defended) == "Voting+bits(depth=3)"
    conform_victim(besiege.models.Ensemble([defended, "zoo:digits-natural"]), DATA.images)
