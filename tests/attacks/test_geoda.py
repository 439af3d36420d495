"""GeoDA: its cosines, what votes among them tell, and the way along the normal in every norm."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.test_hopskipjump import laid, some
from tests.victims import affine

from besiege.attacks.attack import parse
from besiege.attacks.geoda import GeoDA, cosines, waves
from besiege.attacks.hopskipjump import votes
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Access, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Counting, Linear, untrained

NORMS = [L2, Linf, L1]


@pytest.mark.parametrize("few", [1, 3, 8])
def test_cosines_are_orthonormal_and_low(few: int) -> None:
    table = cosines(8, few).double()
    assert torch.allclose(table.T @ table, torch.eye(few).double(), atol=1e-6)
    turns = (table.sign().diff(dim=0) != 0).sum(0)
    assert turns.tolist() == list(range(few))


def test_waves_lie_in_the_span_and_have_length_one() -> None:
    dice = Dice.throw(0, torch.arange(2))
    u = waves(dice, torch.arange(5).expand(2, -1), (3, 9, 7), 4)
    assert u.shape == (2, 5, 3, 9, 7)
    assert torch.allclose(torch.linalg.vector_norm(u.flatten(2), dim=2), torch.ones(2, 5))
    down, across = cosines(9, 4), cosines(7, 4)
    back = down @ (down.T @ u @ across) @ across.T
    assert torch.allclose(back, u, atol=1e-6)
    alone = waves(dice.at(torch.tensor([1])), torch.arange(5).expand(1, -1), (3, 9, 7), 4)
    assert torch.equal(alone[0], u[1])


def test_votes_in_a_few_dimensions_find_a_normal_that_lies_there() -> None:
    """The dimension that counts is that of the span: 48 of 768."""
    shape, side, rows, many = (3, 16, 16), 4, 24, 60
    normal = waves(Dice.throw(7, torch.arange(1)), torch.zeros(1, 1).long(), shape, side)[0, 0]
    flat = normal.flatten()
    victim = affine(torch.stack([torch.zeros(768), flat]), torch.tensor([0.0, 0.0]))
    draw = torch.Generator().manual_seed(0)
    x = 0.3 + 0.4 * torch.rand(rows, 768, generator=draw)
    at = (x - (x @ flat)[:, None] * flat + 1e-5 * flat).view(rows, *shape)
    assert at.min() > 0 and at.max() < 1
    begun = laid(victim, Samples.of(at, torch.zeros(rows).long()))  # type: ignore[arg-type]
    found, share = votes(
        begun,
        at,
        torch.full((rows,), 0.02).double(),
        many,
        lambda dice, places: waves(dice.of("test"), places, shape, side),
    )
    cosine = torch.nn.functional.cosine_similarity(found.flatten(1), flat[None])
    expected = math.sqrt(many / (many + 0.5 * math.pi * 47))
    assert cosine.mean().item() == pytest.approx(expected, rel=0.06)
    assert 0.4 < share.mean() < 0.6


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_it_nears_the_known_distance_in_every_norm(norm: Norm) -> None:
    victim = Linear((1, 6, 6), 2)
    samples = victim.samples(8)
    known = torch.from_numpy(victim.distance(norm, samples.images, samples.labels))
    made = craft(victim, GeoDA(), samples, Threat(norm, None), queries=1500)
    ratio = made.distance / known
    assert (ratio > 0.999).all() and ratio.median() < {L2: 1.1, Linf: 1.15, L1: 1.3}[norm]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_row_is_what_it_is_alone(norm: Norm) -> None:
    victim = untrained((3, 8, 8), 5)
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    samples = Samples.of(images, victim(images).argmax(1))
    counting = Counting(victim, Access.DECISION, metered=True)
    attack = GeoDA(steps=4, side=4)
    whole = craft(counting, attack, samples, Threat(norm, None))
    assert counting.forwards == int(whole.queries.sum())
    assert (whole.queries <= attack.cost((3, 8, 8), 5) + 1).all()
    for rows in ([1], [0, 3]):
        part = craft(victim, attack, some(samples, rows), Threat(norm, None))
        for name in ("images", "success", "distance", "queries", "no_start"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), (rows, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("geoda(steps=0)", "steps is 0"),
        ("geoda(probes=0)", "probes is 0"),
        ("geoda(side=0)", "side is 0"),
        ("geoda(growth=0.5)", "growth is 0.5"),
        ("geoda(probe=0)", "probe is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


def test_published_settings_read_back() -> None:
    for text in ("geoda", "geoda@rahmati"):
        assert isinstance(parse(text), GeoDA) and parse(str(parse(text))) == parse(text)
