"""HopSkipJump: votes against theory, distances against simulation, and what a grid leaves of it."""

from __future__ import annotations

import math

import pytest
import torch
from tests.victims import Spy, siege
from torch import Tensor, nn

from besiege.attacks.attack import parse
from besiege.attacks.hopskipjump import HopSkipJump, _clear, length, narrow, units, votes
from besiege.core import blocks
from besiege.core.answer import Answer
from besiege.core.ball import ball
from besiege.core.blocks import CPU_PIECE
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.knowledge import Knowledge
from besiege.core.record import COSTS
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import Crafted, craft
from besiege.models import Classifier
from besiege.testing.victims import Counting, Linear, digits, natural, untrained

OPTIMUM = 0.3


def flat(entries: int, rows: int = 8, seed: int = 0) -> tuple[Linear, Samples, Tensor]:
    """Two linear classes, images inside the box at the distance 0.3, and the unit normal."""
    victim = Linear((1, 1, entries), 2, seed=1)
    normal = torch.from_numpy(victim.weight[1] - victim.weight[0])
    offset, size = float(victim.bias[1] - victim.bias[0]), normal.norm()
    draw = torch.Generator().manual_seed(seed)
    x = 0.35 + 0.3 * torch.rand(rows, entries, generator=draw, dtype=torch.float64)
    x = x - (((x @ normal + offset) / size)[:, None] + OPTIMUM) * normal / size
    samples = Samples.of(x.float().view(-1, 1, 1, entries), torch.zeros(rows).long())
    assert (victim(samples.images).argmax(1) == 0).all()
    return victim, samples, normal / size


def medians(made: Crafted, *queries: int) -> list[float]:
    """Median distances after so many queries, over the optimum."""
    assert made.descent is not None
    return [float(made.descent[:, COSTS.index(q)].median()) / OPTIMUM for q in queries]


def some(samples: Samples, rows: list[int]) -> Samples:
    return samples.at(torch.tensor(rows))


def laid(victim: Linear, samples: Samples) -> Siege:
    return siege(
        victim,
        samples.images,
        samples.labels,
        torch.inf,
        L2,
        access=Access.DECISION,
        keep="smallest",
        leave="end",
    )


def normals(dice: Dice, places: Tensor) -> Tensor:
    return units(dice.of("test").normal((1, 1, 300), places))


# votes


@pytest.mark.parametrize("many", [50, 100, 400])
def test_votes_find_the_normal_as_well_as_theory_says(many: int) -> None:
    victim, samples, normal = flat(300, 24)
    begun = laid(victim, samples)
    at = samples.images + (OPTIMUM + 1e-5) * normal.float()
    found, share = votes(begun, at, torch.full((24,), 0.02).double(), many, normals)
    cosine = torch.nn.functional.cosine_similarity(found.flatten(1).double(), normal[None])
    expected = math.sqrt(many / (many + 0.5 * math.pi * 299))
    assert cosine.mean().item() == pytest.approx(expected, rel=0.06)
    assert ((share > 0.3) & (share < 0.7)).all()
    assert begun.record.meter.queries.tolist() == [many] * 24


def test_votes_off_the_boundary_are_centred() -> None:
    """At one standard deviation of the probes, where 84 of 100 are adversarial."""
    victim, samples, normal = flat(300, 24)
    begun = laid(victim, samples)
    long = 0.02
    at = samples.images + (OPTIMUM + long / math.sqrt(300)) * normal.float()
    found, share = votes(begun, at, torch.full((24,), long).double(), 100, normals)
    assert share.mean().item() == pytest.approx(0.84, abs=0.03)
    cosine = torch.nn.functional.cosine_similarity(found.flatten(1).double(), normal[None])
    phi = math.exp(-0.5) / math.sqrt(2 * math.pi)
    expected = math.sqrt(phi**2 / (phi**2 + 0.84 * 0.16 * 299 / 100))
    assert cosine.mean().item() == pytest.approx(expected, rel=0.1)


def test_votes_that_agree_still_point_somewhere() -> None:
    victim, samples, normal = flat(300, 4)
    begun = laid(victim, samples)
    for away, sign in ((0.0, -1.0), (2 * OPTIMUM, 1.0)):
        at = samples.images + away * normal.float()
        found, share = votes(begun, at, torch.full((4,), 1e-3).double(), 30, normals)
        places = torch.arange(30).expand(4, -1)
        mean = normals(begun.dice, places).sum(1)
        assert share.tolist() == [max(sign, 0.0)] * 4
        assert torch.allclose(found, sign * mean, atol=1e-2)


def test_a_row_votes_as_it_does_alone() -> None:
    victim, samples, normal = flat(300, 6)
    at = samples.images + (OPTIMUM + 1e-5) * normal.float()
    for many in (7, 30, 64, 200):
        whole = votes(laid(victim, samples), at, torch.full((6,), 0.02).double(), many, normals)[0]
        for row in (0, 5):
            begun = laid(victim, some(samples, [row]))
            begun = begun.view(dice=laid(victim, samples).dice.at(torch.tensor([row])))
            alone = votes(begun, at[[row]], torch.full((1,), 0.02).double(), many, normals)[0]
            assert torch.equal(alone[0], whole[row]), many


# the search


def test_distances_are_those_of_the_reference_simulation() -> None:
    """A linear victim in 300 dimensions: 1.24 after 1,200 queries."""
    victim, samples, _ = flat(300, 6)
    made = craft(victim, HopSkipJump(), samples, Threat(L2, None), queries=1200)
    after = medians(made, 250, 500, 1200)
    assert after[0] < 2.1 and after[1] < 1.65 and after[2] < 1.27
    assert min(after) > 1.0
    shown = craft(victim, parse("hopskipjump@chen"), samples, Threat(L2, None), queries=1200)
    assert medians(shown, 1200)[0] == pytest.approx(1.24, abs=0.05)


def test_more_than_a_share_of_the_probes_is_on_either_side() -> None:
    victim, samples, _ = flat(300, 6)
    seen = 0
    for row in range(6):  # alone, so that a call holds one step's probes
        alone = Samples.of(samples.images[row : row + 1], samples.labels[row : row + 1])
        spy = Spy(victim, Access.DECISION)
        craft(spy, HopSkipJump(steps=6), alone, Threat(L2, None), pad=False)
        for step in range(2, 7):
            many = HopSkipJump().many(step)
            for images in (call for call in spy.images if len(call) == many):
                share = victim(images).argmax(1).double().mean()
                assert 0.2 < share < 0.8, step
                seen += 1
    assert seen == 6 * 5


@pytest.mark.parametrize("norm", [L2, Linf], ids=str)
def test_bisection_is_as_near_as_probes_are_long_along_the_normal(norm: Norm) -> None:
    """In the units of the norm: a change of all entries by one is sqrt(d) long in l2."""
    around = ball(norm, torch.zeros(2, 1, 1, 300), torch.inf)
    far, root = torch.tensor([0.5, 2.0]).double(), math.sqrt(300)
    alike = 1.0 if norm is L2 else root
    assert torch.allclose(length(around, far, 0.1), 0.1 * far * alike)
    assert torch.allclose(narrow(around, 0.1 * far * alike) * alike, 0.1 * far * alike / root)
    coarse = ball(norm, torch.zeros(2, 1, 1, 300), torch.inf, grid=1 / 255)
    assert (length(coarse, 1e-6 * far, 0.1) == 0.5 / 255 * root).all()


@pytest.mark.parametrize("norm", [L2, Linf], ids=str)
def test_on_real_digits_it_gets_near(norm: Norm) -> None:
    samples = digits(8)
    made = craft(natural(), HopSkipJump(), samples, Threat(norm, None), queries=400)
    assert made.success.all() and made.queries.max() == 400
    known = craft(natural(), parse("deepfool"), samples, Threat(norm, None))
    ratio = made.distance / known.distance.clamp_min(1e-6)
    right = known.distance > 0
    assert float(ratio[right].median()) < {L2: 2.0, Linf: 2.5}[norm]


def test_a_victim_with_a_grid_costs_a_tenth_at_most() -> None:
    """What it cannot see is not sent: distances are those of the victim without the grid."""
    samples = digits(12)
    images = (samples.images * 255).round() / 255
    samples = Samples.of(images, samples.labels, ids=samples.ids)
    victim, coarse = natural(), Counting(natural(), Access.DECISION)
    coarse.grid = 1 / 255
    found = [
        craft(v, HopSkipJump(), samples, Threat(L2, None), queries=500) for v in (victim, coarse)
    ]
    steps = found[1].images * 255
    assert torch.allclose(steps, steps.round(), atol=1e-3)
    right = found[0].distance > 0
    free, held = (made.distance[right].log().mean().exp() for made in found)
    assert held < 1.1 * free


@pytest.mark.parametrize("norm", [L2, Linf], ids=str)
def test_a_row_is_what_it_is_alone(norm: Norm) -> None:
    victim = untrained((3, 8, 8), 5)
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    samples = Samples.of(images, victim(images).argmax(1))
    counting = Counting(victim, Access.DECISION, metered=True)
    whole = craft(counting, HopSkipJump(steps=4), samples, Threat(norm, None))
    assert counting.forwards == int(whole.queries.sum())
    for rows in ([1], [4], [0, 3]):
        part = craft(victim, HopSkipJump(steps=4), some(samples, rows), Threat(norm, None))
        for name in ("images", "success", "distance", "queries", "no_start"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), (rows, name)


def test_the_budget_is_not_passed_and_counted_where_it_is_spent() -> None:
    victim, samples, _ = flat(60, 5)
    for budget in (3, 17, 120, 333):
        counting = Counting(victim, Access.DECISION, metered=True)
        made = craft(counting, HopSkipJump(), samples, Threat(L2, None), queries=budget)
        assert counting.forwards == int(made.queries.sum()) and made.queries.max() == budget
    most = HopSkipJump(steps=5).cost((1, 1, 60), 2)
    made = craft(victim, HopSkipJump(steps=5), samples, Threat(L2, None))
    assert 300 < made.queries.max() <= most + 1


def test_targets_are_reached_from_images_of_their_class() -> None:
    samples = digits(40)
    right = natural()(samples.images).argmax(1) == samples.labels
    pool = samples.at(right.nonzero()[10:, 0])
    few = samples.at(right.nonzero()[:6, 0])
    targets = (few.labels + 3) % 10
    aimed = Samples(few.images, few.labels, few.ids, targets)
    attack, threat = HopSkipJump(), Threat(L2, None, Goal.GIVEN)
    made = craft(natural(), attack, aimed, threat, queries=500, knowledge=Knowledge(starts=pool))
    assert made.success.all() and made.no_start is not None and not made.no_start.any()
    assert torch.equal(natural()(made.images).argmax(1), targets)
    assert (made.distance < 2.5).all()


# values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hopskipjump(steps=0)", "steps is 0"),
        ("hopskipjump(probes=0)", "probes is 0"),
        ("hopskipjump(probe=0)", "probe is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


def test_published_settings_read_back() -> None:
    for text in ("hopskipjump", "hopskipjump@chen", "hopskipjump(probe=None)"):
        assert isinstance(parse(text), HopSkipJump) and parse(str(parse(text))) == parse(text)
    assert parse("hopskipjump").access is Access.DECISION


LARGE = ["hopskipjump(steps=1, probes=60)", "geoda(steps=1, probes=60)", "signopt(steps=1)"]


@pytest.mark.parametrize("text", [*LARGE, pytest.param("opt(steps=1)", marks=pytest.mark.slow)])
def test_of_large_images_few_are_held_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    side, most = 160, 0
    bright = nn.Linear(3, 2)
    nn.init.constant_(bright.bias[0], 1.35)
    nn.init.constant_(bright.bias[1], -1.35)
    nn.init.constant_(bright.weight[0], -1.0)
    nn.init.constant_(bright.weight[1], 1.0)
    victim = Classifier(nn.Sequential(nn.AvgPool2d(side), nn.Flatten(), bright))
    samples = Samples.of(torch.full((4, 3, side, side), 0.4), torch.zeros(4, dtype=torch.int64))
    labels = Siege.labels

    def watched(self: Siege, x: Tensor, rows: Tensor | None = None) -> Answer:
        nonlocal most
        most = max(most, x.numel())
        return labels(self, x, rows)

    monkeypatch.setattr(Siege, "labels", watched)
    craft(victim, parse(text), samples, Threat(L2, None), queries=150)
    assert 8 * 3 * side**2 < most <= CPU_PIECE


@pytest.mark.parametrize("text", LARGE)
def test_votes_in_pieces_are_those_of_a_row_alone(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (3, 6, 6)
    victim = untrained(shape, 3)
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    samples = Samples.of(images, victim(images).argmax(1))
    whole = craft(victim, parse(text), samples, Threat(L2, None))
    monkeypatch.setattr(blocks, "CPU_PIECE", 16 * 3 * 6 * 6)
    pieces = craft(victim, parse(text), samples, Threat(L2, None))
    assert torch.allclose(pieces.distance, whole.distance, rtol=1e-2)
    for row in range(3):
        alone = craft(victim, parse(text), some(samples, [row]), Threat(L2, None))
        assert torch.equal(alone.images, pieces.images[row : row + 1])
        assert torch.equal(alone.queries, pieces.queries[row : row + 1])


def test_in_linf_entries_without_clear_votes_move_less() -> None:
    normal = torch.tensor([[[[4.0, -4.0], [0.1, 0.0]]]])
    v = _clear(normal)
    assert v.flatten()[:2].tolist() == [1.0, -1.0]
    assert 0.0 < v[0, 0, 1, 0] < 0.2 and v[0, 0, 1, 1] == 0.0
