"""OPT and Sign-OPT against what is known of linear victims, and the searches they share."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tests.victims import Spy, affine, normal, siege, smallest
from torch import Tensor, nn

from besiege.attacks.attack import Attack, parse
from besiege.attacks.directional import Rays, State, set_out
from besiege.attacks.opt import Opt, SignOpt, exactness
from besiege.core.ball import distances
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, digits, images_of, natural, untrained

BOTH: list[Attack] = [SignOpt(steps=3, votes=12, tries=4), Opt(steps=3, probes=3, tries=4)]
EVERY = [(attack, norm) for attack in BOTH for norm in (L2, Linf)]
HEIGHT = 0.3


def plane(entries: int, rows: int = 1) -> tuple[Classifier, Samples, Tensor]:
    """Class 1 beyond a plane that is `HEIGHT` away from the grey image, and its normal."""
    w = normal(entries, seed=3)
    w = w / w.norm()
    x = torch.full((rows, 1, 1, entries), 0.5)
    bias = -float(w.double() @ x[0].flatten().double()) - HEIGHT
    victim = affine(torch.stack([0 * w, w]), torch.tensor([0.0, bias]))
    return victim, Samples.of(x, torch.zeros(rows, dtype=torch.int64)), w


def some(victim: Classifier, shape: tuple[int, int, int], rows: int = 4) -> Samples:
    images = images_of(shape, rows)
    return Samples.of(images, victim(images).argmax(1))


# how far the boundary is


def test_g_of_a_linear_victim_is_what_it_must_be() -> None:
    victim, samples, w = plane(100, 5)
    laid = siege(victim, samples.images, samples.labels, math.inf, L2, leave="end", keep="smallest")
    rows = torch.arange(5).repeat_interleave(3)
    theta = w + 0.05 * normal(15, 100, seed=4)
    theta = (theta / theta.norm(dim=1, keepdim=True)).view(15, 1, 1, 100)
    known = HEIGHT / (theta.flatten(1).double() @ w.double())
    one = torch.ones(15, dtype=torch.float64)
    # From far below and from far above, with narrow and wide first steps.
    begin = known * torch.tensor([0.1, 1.001, 1.9]).repeat(5)
    for width in (1e-3, 0.3):
        rays = Rays.of(rows, theta)
        rays.measure(laid, begin, width * one, 1e-6 * one, 60, most=20.0 * one)
        assert torch.allclose(rays.high, known, rtol=1e-4)
        assert bool((rays.low < rays.high).all()) and bool((rays.low >= 0).all())
    # Only what is below the guess: one query where that is not adversarial.
    before = int(laid.record.meter.queries.sum())
    rays = Rays.of(rows, theta)
    rays.measure(laid, 0.9 * known, 0.1 * known, 0.01 * one, 60)
    assert bool((rays.high == torch.inf).all())
    assert int(laid.record.meter.queries.sum()) - before == 15


def test_a_search_ends_where_images_do_not_differ() -> None:
    victim, samples, w = plane(50)
    laid = siege(victim, samples.images, samples.labels, math.inf, L2, leave="end", keep="smallest")
    one = torch.ones(1, dtype=torch.float64)
    rays = Rays.of(torch.tensor([0]), w.view(1, 1, 1, 50))
    rays.measure(laid, one, one, 0.0 * one, 10**6, most=20.0 * one)
    assert float(rays.high) == pytest.approx(HEIGHT, rel=1e-4)
    assert int(laid.record.meter.queries) < 45


def test_the_best_of_more_directions_is_better() -> None:
    found = []
    for tries in (1, 30):
        victim, samples, _ = plane(60, 8)
        laid = siege(victim, samples.images, samples.labels, math.inf, L2, leave="end")
        walk = set_out(laid, tries, 0.2, 1e-4)
        assert torch.allclose(walk.length, laid.ball.distance(walk.x))
        found.append(float(walk.length.mean()))
        # Rejected directions cost one query, not a search.
        assert int(laid.record.meter.queries.max()) < 2 * tries + 40
    assert found[1] < 0.7 * found[0]


# votes


def test_votes_are_mixed_and_point_where_theory_says(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, votes, rows = 300, 100, 8
    victim, samples, w = plane(entries, rows)
    shares: list[Tensor] = []
    cosines: list[Tensor] = []
    vote = SignOpt.vote

    def voted(self: SignOpt, besieged: Siege, state: State, step: int) -> tuple[Tensor, Tensor]:
        toward, share = vote(self, besieged, state, step)
        cosines.append((toward.flatten(1) @ w) / toward.flatten(1).norm(dim=1))
        shares.append(share)
        return toward, share

    monkeypatch.setattr(SignOpt, "vote", voted)
    smallest(victim, SignOpt(steps=5, votes=votes), samples, L2)
    assert len(shares) == len(cosines) == 5
    share = torch.cat(shares)
    assert bool(((share > 0.2) & (share < 0.8)).all())
    known = math.sqrt(votes / (votes + math.pi / 2 * (entries - 1)))
    assert float(torch.cat(cosines).mean()) == pytest.approx(known, rel=0.06)


def test_distances_come_near_those_of_the_plane() -> None:
    victim, samples, w = plane(300, 4)
    made = smallest(victim, SignOpt(), samples, L2, queries=2000)
    assert float((made.distance / HEIGHT).max()) < 1.25
    slow = smallest(victim, Opt(), samples, L2, queries=2000)
    assert float((slow.distance / HEIGHT).max()) < 2.0
    box = smallest(victim, SignOpt(), samples, Linf, queries=2000)
    assert float((box.distance * float(w.abs().sum()) / HEIGHT).max()) < 1.4


# accounts


@pytest.mark.parametrize(("attack", "norm"), EVERY, ids=str)
def test_the_victim_counts_what_the_meter_says(attack: Attack, norm: Norm) -> None:
    victim = untrained((3, 6, 6), 5)
    samples = some(victim, (3, 6, 6))
    for queries in (None, 40):
        counting = Counting(victim, metered=True)
        made = smallest(counting, attack, samples, norm, queries=queries)
        assert counting.forwards == int(made.queries.sum())
        most = attack.cost((3, 6, 6), 5)
        assert most is not None
        assert int(made.queries.max()) <= (queries or 1 + most)
        assert bool(made.success.all())


@pytest.mark.parametrize(("attack", "norm"), EVERY, ids=str)
def test_alone_as_in_company(attack: Attack, norm: Norm) -> None:
    victim = untrained((3, 6, 6), 5)
    samples = some(victim, (3, 6, 6))
    whole = smallest(victim, attack, samples, norm, queries=130)
    for row in range(len(samples)):
        one = smallest(victim, attack, samples.at(torch.tensor([row])), norm, queries=130)
        assert torch.equal(one.images[0], whole.images[row])
        assert one.queries[0] == whole.queries[row]
        assert one.distance[0] == whole.distance[row]


def test_what_is_sent_is_inside_the_box() -> None:
    victim = natural()
    for attack, norm in EVERY:
        spy = Spy(victim)
        smallest(spy, attack, some(victim, (1, 8, 8), 3), norm)
        seen = torch.cat(spy.images)
        assert torch.equal(seen, seen.clamp(0.0, 1.0))


# where to begin


@pytest.mark.parametrize("attack", BOTH, ids=str)
def test_a_class_is_reached_from_images_of_it(attack: Attack) -> None:
    victim = natural()
    pool = digits(60)
    samples = pool.at(torch.arange(4))
    targets = (samples.labels + 3) % 10
    samples = Samples(samples.images, samples.labels, samples.ids, targets)
    threat = Threat(L2, None, Goal.GIVEN, Access.DECISION)
    made = craft(victim, attack, samples, threat, knowledge=Knowledge(starts=pool))
    with torch.no_grad():
        told = victim(made.images).argmax(1)
    assert torch.equal(told[made.success], targets[made.success])
    assert bool(made.success.all())
    away = torch.stack(
        [
            distances(pool.images[pool.labels == t] - x, L2).min()
            for x, t in zip(samples.images, targets, strict=True)
        ]
    )
    assert bool((made.distance < away).all())  # nearer than the nearest image of the class


class Stubborn(nn.Module):
    """Always the same class."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([3.0, 1.0]).expand(len(x), 2) + 0.0 * x.flatten(1)[:, :1]


@pytest.mark.parametrize("attack", BOTH, ids=str)
def test_without_a_start_it_says_so(attack: Attack) -> None:
    victim = Classifier(Stubborn(), classes=2)
    x = images_of((1, 4, 4), 3)
    samples = Samples.of(x, torch.tensor([0, 1, 0]))  # the second is adversarial as it is
    made = smallest(victim, attack, samples, L2)
    assert made.no_start is not None
    assert made.no_start.tolist() == [True, False, True]
    assert made.success.tolist() == [False, True, False]
    most = attack.cost((1, 4, 4), 2)
    assert most is not None and int(made.queries.max()) < most


# victims with a grid


@pytest.mark.parametrize("attack", [SignOpt(steps=6), Opt(steps=6)], ids=str)
def test_a_grid_costs_little(attack: Attack) -> None:
    victim = natural()
    images = torch.round(digits(8).images * 255) / 255
    samples = Samples.of(images, victim(images).argmax(1))
    plain = smallest(victim, attack, samples, L2)
    rough = copy.copy(victim)
    rough.grid = 1 / 255
    spy = Spy(rough)
    made = smallest(spy, attack, samples, L2)
    steps = torch.cat(spy.images) * 255
    assert float((steps - steps.round()).abs().max()) < 1e-3
    assert bool(made.success.all())
    assert float((made.distance / plain.distance).median()) < 1.1


# settings


def test_settings() -> None:
    assert type(parse("opt@cheng")) is Opt and type(parse("signopt@cheng")) is SignOpt
    wrong: list[tuple[type[Attack], dict[str, float]]] = [
        (Opt, {"steps": 0}),
        (Opt, {"probes": 0}),
        (SignOpt, {"votes": 0}),
        (SignOpt, {"momentum": 1.0}),
        (SignOpt, {"beta": 0.0}),
        (Opt, {"alpha": -1.0}),
    ]
    for kind, given in wrong:
        with pytest.raises(ValueError, match=next(iter(given))):
            kind(**given)
    assert exactness(0.01, 100) == pytest.approx(5e-4)


@pytest.mark.parametrize("text", ["signopt(steps=2)", "opt(steps=2)"])
def test_where_all_are_misread_there_is_nothing_to_draw(text: str) -> None:
    samples = digits(3)
    wrong = Samples.of(samples.images, (samples.labels + 1) % 10)
    made = craft(natural(), parse(text), wrong, Threat(L2, None), leave="end")
    assert made.distance.tolist() == [0.0] * 3
