"""OPGD: the projections by their definition, its losses, and what it does to a detector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core.test_refusal import Guarded, labels, problem
from torch import Tensor

import besiege
from besiege.attacks.attack import parse
from besiege.attacks.losses import Weighed, margin
from besiege.attacks.opgd import Fooling, Hiding, Selected, joint, orthogonal
from besiege.core.answer import Aim
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Calibration, Detected, Median, Squeezing, load
from besiege.defenses.calibrating import threshold_at

TEST = besiege.data.load("digits", "test")
AIM = Aim(torch.tensor([0, 1, 1]))
LOGITS = torch.tensor([[2.0, 1.0, 5.0], [3.0, 1.0, 2.0], [3.0, 1.0, 4.0]])
"""Two classes and the rejection: right and rejected, wrong and accepted, wrong and rejected."""


def squeezed() -> Detected:
    inner, kind = load("zoo:digits-natural"), Squeezing((BitDepth(2), Median(2)))
    with torch.no_grad():
        clean = Detected(inner, kind, Calibration(0.5)).score(TEST.images[200:])
    return Detected(inner, kind, Calibration(threshold_at(clean, 0.1), 0.3, 10.0))


def test_what_is_left_is_orthogonal_and_the_rest_lies_along_the_other() -> None:
    generator = torch.Generator().manual_seed(0)
    g, h = (torch.randn(5, 1, 6, 6, generator=generator) for _ in range(2))
    left = orthogonal(g, h).flatten(1).double()
    h, g = h.flatten(1).double(), g.flatten(1).double()
    assert float((left * h).sum(1).abs().max()) < 1e-5
    along = (g - left) / h
    assert torch.allclose(along, along[:, :1].expand_as(along), atol=1e-4)
    assert torch.allclose(left, g - (g * h).sum(1, True) / (h * h).sum(1, True) * h, atol=1e-5)


def test_projections_are_exact_for_tiny_zero_and_parallel_gradients() -> None:
    g = torch.tensor([[3.0, 4.0]])
    assert torch.equal(orthogonal(g, torch.zeros(1, 2)), g), "no detector gradient: nothing to lose"
    assert torch.equal(orthogonal(g, -2 * g), g), "parallel: what is left would be rounding"
    small = orthogonal(g * 2.0**-70, torch.tensor([[0.0, 2.0**-70]]))
    assert torch.equal(small, torch.tensor([[3.0, 0.0]]) * 2.0**-70)
    row = torch.randn(1, 300, generator=torch.Generator().manual_seed(0))
    other = torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    many = orthogonal(row.repeat(5, 1), other.repeat(5, 1))
    assert torch.equal(many, orthogonal(row, other).expand(5, -1)), "rows are independent"


def test_a_row_that_is_wrong_hides_and_one_that_is_right_fools() -> None:
    fool, hide = torch.tensor([[1.0, 1.0]] * 2), torch.tensor([[0.0, 2.0]] * 2)
    made = joint(fool, hide, torch.tensor([True, False]))
    assert torch.allclose(made, torch.tensor([[-1.0, 1.0], [1.0, 0.0]]))


def test_losses_see_all_columns() -> None:
    assert torch.equal(Fooling(2)(LOGITS, AIM), margin(LOGITS[:, :2], AIM))
    assert torch.equal(Fooling(2)(LOGITS, AIM) > 0, torch.tensor([False, True, True]))
    assert torch.equal(Hiding(2)(LOGITS, AIM), torch.tensor([-3.0, 1.0, -1.0]))
    assert torch.equal(Selected(2)(LOGITS, AIM), torch.tensor([-1.0, 1.0, -1.0]))
    assert Fooling.unfolded and Hiding.unfolded and Selected.unfolded
    aimed = Aim(torch.tensor([0]), torch.tensor([1]))
    assert float(Fooling(2)(torch.tensor([[2.0, 1.0, 9.0]]), aimed)) == -1


def test_a_weighed_rejection_lowers_the_margin_by_its_excess() -> None:
    loss = Weighed(0.25, most=1.5)
    # Right and rejected by 3; wrong by 2, capped, and accepted; wrong by 2 and rejected by 1.
    assert torch.equal(loss(LOGITS, replaced(AIM)), torch.tensor([-1.75, 1.5, 1.25]))
    assert torch.equal(loss(LOGITS[:, :2], replaced(AIM)), torch.tensor([-1.0, 1.5, 1.5]))
    assert Weighed.unfolded


def replaced(aim: Aim) -> Aim:
    """The aim with clean logits, which tell how many classes there are."""
    return Aim(aim.labels, aim.targets, LOGITS[:, :2])


def test_on_a_victim_without_rejection_it_is_pgd() -> None:
    x, y = TEST.images[:20], TEST.labels[:20]
    for projection in ("orthogonal", "selective"):
        # From the clean image: random starts depend on the name of the attack.
        text = f"opgd(steps=8, start=origin, projection={projection!r})"
        ours = besiege.attack(text, "zoo:digits-natural", x, y, threat="l2:0.5")
        text = "pgd(steps=8, start=origin, loss=margin)"
        theirs = besiege.attack(text, "zoo:digits-natural", x, y, threat="l2:0.5")
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.queries, theirs.queries)


@pytest.mark.parametrize("projection", ["orthogonal", "selective"])
def test_it_finds_accepted_errors_of_a_linear_problem(projection: str) -> None:
    x, *parts = problem()
    victim = Guarded(*parts)
    text = f"opgd(steps=60, projection={projection!r})"
    found = besiege.attack(text, victim, x, labels(), threat="l2:1.5")
    best = besiege.attack("pgd(loss=margin)", victim, x, labels(), threat="l2:1.5")
    assert int(found.success.sum()) >= int(best.success.sum()) > 0
    assert bool((victim(found.images[found.success]).argmax(1) == 1).all())


def succeeded(victim: Victim, images: Tensor, y: Tensor) -> int:
    with torch.no_grad():
        answer = victim(images).argmax(1)
    return int(((answer != y) & (answer < 10)).sum())


def test_it_evades_squeezing_where_an_oblivious_attack_is_rejected() -> None:
    victim = squeezed()
    x, y = TEST.images[:40], TEST.labels[:40]
    blind = besiege.attack("pgd", victim.bare, x, y, threat="linf:0.1", keep="last")
    seeing = besiege.attack("opgd(steps=40)", victim, x, y, threat="linf:0.1")
    assert succeeded(victim, seeing.images, y) > succeeded(victim, blind.images, y)
    claimed = seeing.success
    assert int(claimed.sum()) == succeeded(victim, seeing.images[claimed], y[claimed])


def test_rows_of_a_rejecting_victim_do_not_depend_on_their_batch() -> None:
    victim, x, y = squeezed(), TEST.images[:9], TEST.labels[:9]
    ids = torch.arange(9)
    how: dict[str, Any] = {"threat": "linf:0.08", "keep": "last"}
    whole = besiege.attack("opgd(steps=5)", victim, x, y, ids=ids, **how)
    for rows in (ids[:1], ids[3:5], ids.flip(0)):
        part = besiege.attack("opgd(steps=5)", victim, x[rows], y[rows], ids=ids[rows], **how)
        assert torch.equal(part.images, whole.images[rows])


def test_orthogonal_steps_cost_two_gradients_and_selective_ones_one() -> None:
    x, *parts = problem()
    victim = Guarded(*parts)
    spent = {}
    for projection in ("orthogonal", "selective"):
        text = f"opgd(steps=10, projection={projection!r})"
        found = besiege.attack(text, victim, x, labels(), threat="l2:0.01", keep="last")
        spent[projection] = int(found.queries.max())
    assert spent == {"orthogonal": 22, "selective": 12}  # with the clean check and the last point


def test_its_text_reads_back() -> None:
    attack = parse("opgd(steps=7, projection='selective')")
    assert parse(str(attack)) == attack
