"""NES with the first few classes, or with labels: what is told is kept told, and what it takes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.attacks.test_estimates import cosines
from tests.victims import Spy, affine, normal, siege, uniform
from torch import Tensor
from torch.nn import functional

import besiege
from besiege.attacks.attack import parse
from besiege.attacks.closing import CLOSINGS, CUTS, TRIES, HiddenClasses, State
from besiege.attacks.estimates import ScoreLoss, probe
from besiege.attacks.losses import cross_entropy, margin
from besiege.attacks.partial import NESLabels, NESPartial
from besiege.core.answer import Aim
from besiege.core.errors import AttackError, ThreatError
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Altered, Counting, digits, natural

EPS = {Linf: 0.2, L2: 1.25}
BOTH = ["nes_partial", "nes_labels"]


def first(k: int, *, likely: bool = True) -> Altered:
    """The digits net, of whose classes the first k are told: their log-probabilities, or logits."""

    def told(logits: Tensor) -> Tensor:
        scores = functional.log_softmax(logits, 1) if likely else logits
        top = scores.topk(k, 1)
        return torch.full_like(scores, -torch.inf).scatter(1, top.indices, top.values)

    victim = Altered(natural(), told)
    victim.access = Access.SCORE
    return victim


def aimed(rows: int) -> tuple[Samples, Samples]:
    """Digits with targets, and others to start from."""
    data = digits(100)
    right = (natural()(data.images).argmax(1) == data.labels).nonzero()[:, 0]
    few, pool = data.at(right[:rows]), data.at(right[40:])
    targets = (few.labels + 1 + few.ids % 9) % 10
    return Samples(few.images, few.labels, few.ids, targets), pool


def threat(norm: Norm, access: Access = Access.SCORE) -> Threat:
    return Threat(norm, EPS[norm], Goal.GIVEN, access)


def broken(victim: Any, text: str, norm: Norm, queries: int = 1000, rows: int = 12) -> int:
    samples, pool = aimed(rows)
    attack = parse(text)
    made = craft(
        victim,
        attack,
        samples,
        threat(norm, attack.access),
        queries=queries,
        knowledge=Knowledge(starts=pool),
    )
    assert samples.targets is not None
    reached = natural()(made.images).argmax(1) == samples.targets
    assert torch.equal(reached, made.success)
    assert made.no_start is not None and not made.no_start.any()
    return int(made.success.sum())


@cache
def plain(norm: Norm) -> int:
    """How many plain NES breaks where all scores are told."""
    return broken(natural(), "nes", norm)


@pytest.mark.parametrize(("k", "norm"), [(1, Linf), (3, Linf), (1, L2)], ids=str)
def test_targets_that_are_not_told_are_reached(k: int, norm: Norm) -> None:
    """As many as with all scores, and plain NES reaches those alone that were told anyway."""
    assert plain(norm) >= 4
    assert broken(first(k), "nes_partial", norm) >= plain(norm) - 1
    assert broken(first(k), "nes", norm, 300) <= (0 if k == 1 else 2)


def test_logits_are_climbed_as_well() -> None:
    assert broken(first(3, likely=False), "nes_partial", L2) >= plain(L2) - 2
    assert broken(first(1, likely=False), "nes_partial", L2) >= plain(L2) // 2


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_labels_alone_will_do(norm: Norm) -> None:
    assert broken(natural(), "nes_labels", norm, 1500) >= plain(norm) - 2


def test_a_function_that_answers_its_first_classes() -> None:
    """Behind a wall, through what really comes back."""
    net = natural()

    def answer(images: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        with torch.no_grad():
            top = net(torch.from_numpy(images)).softmax(1).topk(2, 1)
        return top.indices.numpy(), top.values.numpy()

    model = besiege.function_model(answer, classes=10, top_k=2, outputs="probabilities")
    samples, pool = aimed(8)
    made = craft(
        model, NESPartial(), samples, threat(L2), queries=600, knowledge=Knowledge(starts=pool)
    )
    assert int(made.success.sum()) >= 2 and model.asked == int(made.queries.sum())
    assert (net(made.images[made.success]).argmax(1) == samples.targets[made.success]).all()  # type: ignore[index]  # they are given


@pytest.mark.parametrize("text", BOTH)
@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_a_ball_closes_in_and_the_target_stays_told(
    text: str, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[tuple[Tensor, Tensor, State]] = []
    attack = parse(text)
    kind = type(attack)
    advance = kind.advance  # type: ignore[attr-defined]  # both have it

    def watched(self: Any, laid: Siege, state: State, *rest: Any) -> State:
        rows = laid.rows.clone()
        states.append((rows, laid.ball.center, state))
        after: State = advance(self, laid, state, *rest)
        assert (after.radius <= state.radius).all() and (after.radius >= laid.ball.radius).all()
        assert bool(laid.ball.of(after.radius).inside(after.x).all())
        told = first(2)(after.x).gather(1, laid.aim.targets[:, None])  # type: ignore[index]
        assert torch.isfinite(told).all()
        return after

    monkeypatch.setattr(kind, "advance", watched)
    samples, pool = aimed(6)
    craft(
        first(2),
        parse(f"{text}(steps=12)"),
        samples,
        threat(norm, attack.access),
        knowledge=Knowledge(starts=pool),
        leave="end",
    )
    assert len(states) == 12
    begun, ended = states[0][2].radius, states[-1][2].radius
    outside = begun > EPS[norm]
    assert outside.any() and (ended[outside] < 0.85 * begun[outside]).all()


@pytest.mark.parametrize(("text", "careful"), [("nes_partial", 2), ("nes_labels", 4)])
def test_as_published_a_ball_waits_until_the_target_is_likely(
    text: str, careful: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = parse(f"{text}(steps=12, waits=True)")
    assert isinstance(attack, HiddenClasses)
    wait, seen = HiddenClasses.wait, []

    def watched(self: HiddenClasses, laid: Siege, state: State, probed: Any, rule: Any) -> State:
        before = int(laid.record.meter.queries.sum())
        after = wait(self, laid, state, probed, rule)
        likely = probed.around > attack.likely
        closer = after.radius < state.radius
        assert not (closer & ~likely).any()
        assert bool(laid.ball.of(after.radius).inside(after.x).all())
        tries = int(laid.record.meter.queries.sum()) - before
        assert len(laid) <= tries <= TRIES * len(laid)
        # A proposal of half the box, or one that was halved, taken to a part.
        part = (
            careful
            * (state.radius - after.radius)[closer & (after.radius > 0.2)]
            / state.share[closer & (after.radius > 0.2)]
        )
        assert torch.allclose(torch.log2(part), torch.log2(part).round(), atol=1e-6)
        seen.append((len(laid), int(closer.sum()), float(state.radius.max())))
        return after

    monkeypatch.setattr(HiddenClasses, "wait", watched)
    samples, pool = aimed(6)
    craft(
        first(2),
        attack,
        samples,
        threat(Linf, attack.access),
        knowledge=Knowledge(starts=pool),
        leave="end",
    )
    assert seen[0][2] == 1.0 and seen[0][1] == 6, "it begins with the whole box"


def test_hidden_classes_leave_the_score_itself() -> None:
    hidden = -torch.inf
    scores = torch.tensor([[-0.1, -2.4], [hidden, -0.3], [-0.3, hidden]])
    loss = NESPartial(waits=True, loss=cross_entropy).score
    found = loss(scores, Aim(torch.zeros(3).long(), torch.ones(3).long()))
    whole = -functional.cross_entropy(scores[:1], torch.ones(1).long())
    assert torch.allclose(found, torch.tensor([float(whole), -0.3, hidden]), atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "nes_partial(steps=4)",
        "nes_labels(steps=3, pairs=10)",
        "nes_partial(steps=4, waits=True)",
        "nes_labels(steps=3, pairs=10, waits=True)",
    ],
)
@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_a_row_is_what_it_is_alone_and_every_query_is_counted(text: str, norm: Norm) -> None:
    attack, (samples, pool) = parse(text), aimed(10)
    counting = Counting(first(3), access=attack.access, metered=True)
    terms = threat(norm, attack.access)
    whole = craft(
        counting, attack, samples, terms, knowledge=Knowledge(starts=pool), keep="last", leave="end"
    )
    assert counting.forwards == int(whole.queries.sum())
    most = attack.cost((1, 8, 8), 10)
    assert most is not None and int(whole.queries.max()) <= 1 + most
    for row in (0, 4, 9):
        one = samples.at(torch.tensor([row]))
        alone = craft(
            first(3), attack, one, terms, knowledge=Knowledge(starts=pool), keep="last", leave="end"
        )
        for name in ("images", "success", "queries", "first_query", "first_step"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[row]), (row, name)


def test_a_point_is_not_asked_about_twice() -> None:
    """What was said of it when it was tried is what its probes are compared with."""
    samples, pool = aimed(1)
    net, alone = natural(), first(1)
    spy = Spy(net, Access.SCORE)
    told = Altered(spy, alone.change)
    told.metered = True
    craft(
        told,
        NESPartial(steps=2, pairs=7),
        samples,
        threat(L2),
        knowledge=Knowledge(starts=pool),
        leave="end",
    )
    assert [n for n in spy.calls if n > 1] == [14, 14]


@pytest.mark.parametrize("text", BOTH)
def test_the_budget_pays_for_all_and_no_start_is_said(text: str) -> None:
    attack, (samples, pool) = parse(text), aimed(6)
    for queries in (3, 40):
        counting = Counting(first(1), access=attack.access, metered=True)
        terms = threat(Linf, attack.access)
        made = craft(
            counting, attack, samples, terms, queries=queries, knowledge=Knowledge(starts=pool)
        )
        assert int(made.queries.max()) == queries
        assert counting.forwards == int(made.queries.sum())
    victim = affine(torch.zeros(3, 4), torch.tensor([1.0, 0.0, 0.0]))
    only = Altered(victim, lambda z: z.where(z == 1.0, -torch.inf))
    images = uniform(2, 1, 2, 2)
    hopeless = Samples.of(images, torch.zeros(2).long(), targets=torch.ones(2).long())
    made = craft(only, attack, hopeless, Threat(Linf, 0.1, Goal.GIVEN, attack.access))
    assert made.no_start is not None and made.no_start.all() and not made.success.any()
    assert any(finding.id == "W40" for finding in made.findings)


@pytest.mark.parametrize("text", BOTH)
def test_without_a_target_they_are_refused(text: str) -> None:
    with pytest.raises(ThreatError, match="targeted:random"):
        craft(natural(), parse(text), digits(4), Threat(Linf, 0.1))


# what a victim tells


def test_of_one_class_alone_its_score_counts() -> None:
    hidden = -torch.inf
    logits = torch.tensor([[3.0, 1.0, 0.0], [3.0, hidden, hidden], [hidden, 2.0, hidden]])
    zero = torch.zeros(3).long()
    for loss in (margin, cross_entropy):
        told = ScoreLoss(loss)(logits, Aim(zero))
        assert told[0] == loss(logits[:1], Aim(zero[:1]))
        assert told[1:].tolist() == [-3.0, math.inf]
        told = ScoreLoss(loss)(logits, Aim(zero + 1, zero))
        assert told[0] == loss(logits[:1], Aim(zero[:1] + 1, zero[:1]))
        assert told[1:].tolist() == [3.0, -math.inf]


def test_one_end_of_a_pair_is_worth_a_slope() -> None:
    """At the edge of what is told every pair has an end that is not."""
    weight = normal(2, 4, seed=2)
    victim = affine(weight, -0.5 * weight.sum(1))
    edge = Altered(victim, lambda z: z.where(z == z.amax(1, keepdim=True), -torch.inf))
    x = torch.full((1, 1, 2, 2), 0.5)
    laid = siege(edge, x, torch.ones(1).long(), targets=torch.zeros(1).long(), leave="end")
    u = normal(1, 8, 1, 2, 2, seed=3)
    rows, sigma = torch.arange(1), torch.full((1,), 0.01)
    with torch.no_grad():
        told = probe(laid, rows, x, u, sigma, ScoreLoss(margin), paired=True, base=torch.zeros(1))
        high, low = (victim(x + sign * 0.01 * u[0]) for sign in (1, -1))
    # Where the target is told it is told alone, and its score counts.
    seen = high[:, 0] > high[:, 1]
    assert torch.equal(seen, low[:, 0] < low[:, 1]) and 0 < int(seen.sum()) < 8
    expected = torch.where(seen, high[:, 0], -low[:, 0]) / 0.01
    # Batches of 1 and of 8 rows round differently, by 1e-7 of the logits.
    assert torch.allclose(told.slope[0], expected, atol=1e-4)
    assert (told.slope != 0).all()


@pytest.mark.parametrize("k", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", ["nes", "spsa", "rgf", "nattack", "bandits", "square"])
def test_plain_attacks_do_without_what_is_not_told(text: str, k: int) -> None:
    """Of the label's score alone, they lower it; nothing that is not a number gets anywhere."""
    samples = digits(100).at(torch.arange(12))
    terms = Threat(Linf, 0.2, access=Access.SCORE)
    whole = craft(natural(), parse(text), samples, terms, queries=300)
    made = craft(first(k), parse(text), samples, terms, queries=300)
    # The likelihood of a sure answer is one up to rounding: of it alone less can be seen.
    many = int(whole.success.sum())
    assert many >= 5 and int(made.success.sum()) >= (many // 2 if k == 1 else many - 2)
    last = craft(first(k), parse(text), samples, terms, queries=60, keep="last", leave="end")
    assert torch.isfinite(last.images).all()
    few, _ = aimed(6)  # where the target is never told there is nothing to climb
    last = craft(first(k), parse(text), few, threat(Linf), queries=60, keep="last", leave="end")
    assert torch.isfinite(last.images).all()


# labels


def test_a_score_is_the_share_of_labels_around_and_both_ends_have_the_same() -> None:
    victim = natural()
    samples, pool = aimed(1)
    spy = Spy(victim, Access.DECISION)
    spy.metered = True
    attack = NESLabels(steps=1, pairs=3, around=4, sigma=0.02, mu=0.005)
    craft(
        spy,
        attack,
        samples,
        threat(Linf, Access.DECISION),
        knowledge=Knowledge(starts=pool),
        leave="end",
    )
    asked = next(x for x in spy.images if len(x) == 24).view(3, 2, 4, 1, 8, 8)
    inside = ((asked > 0.0) & (asked < 1.0)).all(2).all(1)
    apart = (asked[:, 0] - asked[:, 1]).movedim(1, 0)
    for n in range(1, 4):
        assert torch.allclose(apart[n][inside], apart[0][inside], atol=1e-6)
    spread = asked[:, 0] - asked[:, 0, :1]
    assert float(spread.abs().max()) <= 0.01 + 1e-6 and float(spread.abs().max()) > 0.005
    after = [len(x) for x in spy.images[[len(x) for x in spy.images].index(24) + 1 :]]
    assert 1 <= len(after) <= CLOSINGS + CUTS and {*after} == {1}


def test_votes_have_the_cosine_of_theory() -> None:
    """``B / (B + pi/2 (d - 1))`` with B labels at the boundary, if the probes are what differs."""
    shape, entries = (1, 16, 16), 256
    weight = normal(2, entries, seed=5)
    victim = affine(weight, -0.5 * weight.sum(1))
    x = torch.full((24, *shape), 0.5)
    laid = siege(
        victim, x, torch.zeros(24).long(), targets=torch.ones(24).long(), access=Access.DECISION
    )
    laid = laid.view(leave="end", radius=torch.full((24,), 1e-9).double())
    attack = NESLabels(pairs=100, sigma=0.02, mu=1e-6)
    g = attack.slope(laid, x, torch.zeros(24), 0).gradient
    found = float(cosines(g, (weight[1] - weight[0]).view(1, *shape)).mean())
    # Both ends of a pair say the same here, one yes and one no: a pair is one vote.
    expected = math.sqrt(100 / (100 + math.pi / 2 * (entries - 1)))
    assert abs(found - expected) < 0.05


def test_values() -> None:
    for text in ("nes_partial@ilyas", "nes_labels@ilyas"):
        assert str(parse(str(parse(text)))) == str(parse(text))
    assert parse("nes_partial").access is Access.SCORE
    assert parse("nes_labels").access is Access.DECISION
    assert Goal.UNTARGETED not in parse("nes_labels").goals
    for text, said in {
        "nes_partial(pairs=0)": "pairs is 0",
        "nes_partial(sigma=0)": "sigma is 0",
        "nes_partial(momentum=1)": "momentum is 1",
        "nes_partial(loss=3)": "not a loss",
        "nes_labels(around=0)": "around is 0",
        "nes_labels(mu=0)": "mu is 0",
        "nes_labels(rate=True)": "rate is True",
    }.items():
        with pytest.raises(AttackError, match=said):
            parse(text)
