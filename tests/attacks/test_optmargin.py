"""OptMargin: its copies, what counts as success, and that its points survive noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.victims import Spy, siege
from torch import Tensor

from besiege.attacks.attack import Attack, parse
from besiege.attacks.cw import CW
from besiege.attacks.losses import margin
from besiege.attacks.optmargin import OptMargin
from besiege.core.answer import Aim
from besiege.core.ball import distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Threat
from besiege.evaluation import Crafted, craft
from besiege.testing.victims import Linear, digits, images_of, natural

SIZE = 0.1
SHORT = OptMargin(rounds=3, steps=15, copies=8, size=SIZE)


def smallest(victim: Any, attack: Attack, samples: Samples, **more: Any) -> Crafted:
    return craft(victim, attack, samples, Threat(L2, None), **more)


def moves(attack: OptMargin, samples: Samples, seed: int = 0) -> Tensor:
    """The moves of the copies as a run on these samples draws them."""
    laid = siege(natural(), samples.images, samples.labels, torch.inf, L2)
    laid = laid.view(dice=Dice.throw(seed, samples.ids).of(attack.title()))
    return attack.held(laid)[0]


def test_directions_are_at_right_angles_and_as_long_as_wanted() -> None:
    samples = digits(4)
    held = moves(OptMargin(copies=20, size=0.1), samples).flatten(2)
    assert held.shape == (4, 20, 64)
    inner = held @ held.mT
    expected = torch.diag(torch.tensor([64 * 0.01] * 19 + [0.0]))
    assert torch.allclose(inner, expected.expand_as(inner), atol=1e-5)
    assert not torch.equal(held[0], held[1])
    least = moves(OptMargin(copies=20, size=0.1, measure="max"), samples).flatten(1)
    assert least.abs().amax(1).tolist() == pytest.approx([0.1] * 4)
    # No more than there are dimensions.
    tiny = Linear((1, 1, 7), 2).samples(3)
    laid = siege(Linear((1, 1, 7), 2), tiny.images, tiny.labels, torch.inf, L2)
    assert OptMargin().held(laid)[0].shape == (3, 8, 1, 1, 7)
    assert OptMargin(copies=1).held(laid)[0].shape == (3, 1, 1, 1, 7)


def test_copies_stay_the_same_during_a_run_and_are_cut_to_the_box() -> None:
    victim = Linear((1, 5, 5), 3)
    samples = victim.samples(4)
    spy = Spy(victim)
    smallest(spy, OptMargin(rounds=1, steps=4, copies=3), samples, pad=False, batch=10**6)
    asked = [part.view(4, 3, -1) for part in spy.images if len(part) == 12]
    assert len(asked) == 4
    inside = torch.stack([((a > 0) & (a < 1)).all(1) for a in asked]).all(0)
    apart = [(a[:, :2] - a[:, 2:]) * inside[:, None] for a in asked]
    assert inside.float().mean() > 0.3
    assert all(torch.allclose(one, apart[0], atol=1e-6) for one in apart)
    assert min(a.min() for a in asked) >= 0 and max(a.max() for a in asked) <= 1


def test_the_slope_is_that_of_the_hinge_of_the_copies_as_they_are_cut() -> None:
    samples = digits(6)
    attack = OptMargin(copies=5, size=0.3, kappa=1.0)
    laid = siege(natural(), samples.images, samples.labels, torch.inf, L2)
    held = attack.held(laid)[0]
    x = samples.images.clone().requires_grad_()
    copies = x[:, None] + held
    assert ((copies < 0) | (copies > 1)).float().mean() > 0.2
    z = natural()(copies.clamp(0, 1).flatten(0, 1))
    lead = margin(z, Aim(samples.labels.repeat_interleave(5)))
    (known,) = torch.autograd.grad((1.0 - lead).clamp_min(0.0).sum(), x)
    seen = attack.look(laid, samples.images, held)
    assert torch.allclose(seen.slope, -known, atol=1e-5)


def test_a_limit_on_queries_takes_no_success_back() -> None:
    samples = digits(16)
    attack = OptMargin(steps=200, copies=4, size=0.02)
    found = smallest(natural(), attack, samples, queries=80)
    assert int(found.success.sum()) > 6 and found.queries.max() <= 80


def test_all_copies_of_what_is_kept_are_misclassified() -> None:
    samples = digits(16)
    found = smallest(natural(), SHORT, samples)
    rows = found.success & (found.distance > 0)
    assert int(rows.sum()) >= 12
    copies = (found.images[:, None] + moves(SHORT, samples)).clamp(0, 1)
    answered = natural()(copies.flatten(0, 1)).argmax(1).view(16, 8)
    assert (answered != samples.labels[:, None])[rows].all()
    # With the centre alone they need not be, and the change is smaller.
    near = smallest(natural(), OptMargin(3, 15, copies=8, size=SIZE, success_on="centre"), samples)
    copies = (near.images[:, None] + moves(SHORT, samples)).clamp(0, 1)
    answered = natural()(copies.flatten(0, 1)).argmax(1).view(16, 8)
    assert not (answered != samples.labels[:, None])[rows].all()
    assert near.distance[rows].mean() < found.distance[rows].mean()


def test_its_points_survive_noise_that_undoes_others() -> None:
    samples = digits(24)
    noise = SIZE * torch.randn(
        30, *samples.images.shape, generator=torch.Generator().manual_seed(0)
    )

    def surviving(attack: Attack) -> float:
        found = smallest(natural(), attack, samples)
        rows = found.success & (found.distance > 0)
        noisy = (found.images + noise).clamp(0, 1).flatten(0, 1)
        wrong = natural()(noisy).argmax(1).view(30, -1) != samples.labels
        return float(wrong[:, rows].float().mean())

    assert surviving(SHORT) > 0.85 > surviving(CW(rounds=4, steps=25)) + 0.1


def test_an_affine_victim_is_left_behind_by_the_farthest_copy() -> None:
    """Two classes: the copy that is pushed back most must lie beyond the plane, and just."""
    victim = Linear((1, 5, 5), 2)
    samples = Samples.of(0.3 + 0.4 * images_of((1, 5, 5), 6), torch.zeros(6).long())
    samples = Samples.of(samples.images, victim(samples.images).argmax(1))
    attack = OptMargin(rounds=6, steps=60, copies=6, size=0.01)
    laid = siege(victim, samples.images, samples.labels, torch.inf, L2)
    laid = laid.view(dice=Dice.throw(0, samples.ids).of("optmargin"))
    held = attack.held(laid)[0].flatten(2).double()
    y = samples.labels
    weight = torch.from_numpy(victim.weight)
    w = weight[1 - y] - weight[y]
    back = (held * w[:, None]).sum(2).amin(1)
    z = victim(samples.images).detach().double()
    gap = (z.gather(1, y[:, None]) - z.gather(1, 1 - y[:, None]))[:, 0]
    known = (gap - back) / w.norm(dim=1)
    found = smallest(victim, attack, samples)
    assert found.success.all()
    assert torch.allclose(found.distance, known, rtol=0.02)


def test_points_are_charged_with_their_copies() -> None:
    victim = Linear((1, 5, 5), 2)
    samples = victim.samples(3)
    attack = OptMargin(rounds=2, steps=5, copies=4, kappa=1e6, abort=False)
    found = smallest(victim, attack, samples, pad=False)
    assert found.backwards.tolist() == [40] * 3 and found.forwards.tolist() == [41] * 3
    assert not found.success.any() and torch.equal(found.images, samples.images)
    assert distances(found.images - samples.images, L2).max() == 0


@pytest.mark.parametrize(
    "text", ["optmargin", "optmargin(copies=5, size=0.3, success_on='centre')"]
)
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optmargin(copies=0)", "copies is 0"),
        ("optmargin(size=-1)", "size is -1"),
        ("optmargin(success_on='some')", "success_on is 'some'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)
