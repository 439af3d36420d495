"""A substitute in the victim's place: of its box and grid, and on nobody's account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import besiege
from besiege.core.errors import InputError
from besiege.evaluation.transfer import OnGrid, in_place_of
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear

NET, ANOTHER = "zoo:digits-natural", "zoo:digits-pgd-at"
DATA = besiege.data.load("digits", count=12)
COARSE = (DATA.images * 15).round() / 15


def answering(box: tuple[float, float] = (0.0, 1.0), **how: Any) -> Any:
    """The natural net behind a wall, of another box or grid."""
    net, (low, high) = besiege.models.load(NET), box

    def answer(images: Any) -> Any:
        with torch.no_grad():
            return net((torch.from_numpy(images) - low) / (high - low)).numpy()

    return besiege.function_model(answer, classes=10, box=box, **how)


def transfer(victim: Any, images: torch.Tensor, eps: float, **more: Any) -> besiege.AttackResult:
    given: dict[str, Any] = {"threat": f"linf:{eps}", "substitute": NET, **more}
    return besiege.attack(given.pop("attack", "mim"), victim, images, DATA.labels, **given)


def test_what_is_crafted_is_what_the_victim_can_receive() -> None:
    found = transfer(answering(grid=1 / 15), COARSE, 0.2)
    steps = found.images.double() * 15
    assert (steps - steps.round()).abs().max() < 1e-5
    assert int(found.success.sum()) == int(transfer(NET, COARSE, 0.2).success.sum()) == 12


def test_another_box_is_refused_and_the_advice_is_right() -> None:
    victim, wide = answering(box=(-1.0, 1.0)), DATA.images * 2 - 1
    for attack in ("mim", "prgf(steps=2)"):
        with pytest.raises(InputError, match=r"takes pixels in .* mean=-1 and std=2"):
            transfer(victim, wide, 0.4, attack=attack)
    net = besiege.models.load(NET).module
    own = Classifier(net, mean=-1.0, std=2.0, box=(-1.0, 1.0))
    found = transfer(victim, wide, 0.4, substitute=own)
    assert int(found.success.sum()) == int(transfer(NET, DATA.images, 0.2).success.sum())


def test_a_substitute_that_cannot_serve_is_refused() -> None:
    for substitute, said in (
        (Linear((1, 8, 8), 7), "has 7 classes, but the victim 10"),
        (Linear((3, 5, 5), 10), "cannot take the images"),
        (f"{NET}+resize_pad", "is stochastic"),
        (answering(), "score access only"),
    ):
        with pytest.raises(InputError, match=said):
            transfer(answering(), DATA.images, 0.2, substitute=substitute)


def test_the_victim_is_shown_once_what_was_crafted_elsewhere(tmp_path: Path) -> None:
    found = transfer(ANOTHER, DATA.images, 0.2, queries=5)
    there = besiege.attack(
        "mim", NET, DATA.images, DATA.labels, threat="linf:0.2", keep="last", leave="end"
    )
    assert found.success.any() and not found.success.all()
    for name in ("forwards", "backwards"):
        assert int(getattr(found, name).abs().sum()) == 0, name
    assert (found.queries == 1).all()
    assert torch.equal(found.first_query, torch.where(found.success, 1, -1))
    assert torch.equal(found.first_step, torch.where(found.success, 0, -1))
    assert found.substitute_passes is not None
    assert torch.equal(found.substitute_passes, there.forwards + there.backwards)
    assert (
        f"1.0 queries, {float(found.substitute_passes.double().mean()):.1f} on a substitute"
        in repr(found)
    )
    assert "substitute" not in repr(there)
    # An evaluation says the same of the same images.
    rows = besiege.evaluate(
        ANOTHER,
        (DATA.images, DATA.labels),
        threat="linf:0.2",
        attacks="mim",
        substitute=NET,
        curve=False,
        out=tmp_path,
    ).rows
    hit = rows["success"]
    for name in ("queries", "forwards", "backwards", "first_query", "first_step"):
        assert (rows[name][hit] == getattr(found, name)[found.success].numpy()[0]).all(), name
    assert (rows["queries"] == 1).all()


def test_one_grid_is_not_another(tmp_path: Path) -> None:
    net = besiege.models.load(NET)
    names = {OnGrid(net, grid).digest() for grid in (None, 1 / 16, 1 / 48)} | {net.digest()}
    assert len(names) == 4
    how: dict[str, Any] = {
        "threat": "linf:0.2",
        "attacks": "mim",
        "count": 20,
        "substitute": NET,
        "curve": False,
        "out": tmp_path,
    }
    # The digits lie on both grids, but what is crafted on the finer one not on the coarser.
    for grid in (1 / 48, 1 / 16):
        found = besiege.evaluate(answering(grid=grid), "digits", **how)
        assert found.rows["valid"].all() and found.rows["success"].mean() > 0.8


def test_what_has_the_victims_grid_stays_as_it_is() -> None:
    net = besiege.models.load(NET)
    assert in_place_of(answering(), net, DATA.images[:1], None) is net
