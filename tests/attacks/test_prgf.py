"""P-RGF: shares against a grid search, and cosines with priors of known worth."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.attacks.test_estimates import ENTRIES, SHAPE, cosines, expected, plane
from tests.victims import Spy, affine, normal, siege, uniform
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import parse
from besiege.attacks.estimates import Smooth, even, sphere
from besiege.attacks.prgf import PRGF, SIZING, best_share
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Linf, Norm, Threat
from besiege.core.victim import Victim
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Likeness, digits, natural, untrained

Q = 50


def squared(lam: Tensor, alpha: float, d: int, q: int) -> Tensor:
    """The expected squared cosine of directions that lean towards a prior."""
    a = alpha**2
    first = lam * a + (1 - lam) * (1 - a) / (d - 1)
    second = lam**2 * a + (1 - lam) ** 2 * (1 - a) / (d - 1) ** 2
    return first**2 / ((1 - 1 / q) * second + first / q)


@pytest.mark.parametrize(("d", "q"), [(3072, 50), (3072, 10), (768, 100)])
def test_the_share_is_the_best_there_is(d: int, q: int) -> None:
    grid = torch.cat((torch.zeros(1), torch.logspace(-7, 0, 20001))).double()
    for alpha in (0.0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.17, 0.2, 0.5, 1.0):
        lam = best_share(torch.tensor([alpha]), d, q)
        best = squared(grid, alpha, d, q).nan_to_num(0.0).max()
        assert float(squared(lam, alpha, d, q)[0]) >= float(best) * (1 - 1e-4), alpha


def test_shares_of_the_table() -> None:
    table = {0.05: 0.0098, 0.10: 0.0145, 0.15: 0.0347, 0.17: 0.118, 0.20: 1.0}
    found = best_share(torch.tensor([*table]), ENTRIES, Q)
    assert torch.allclose(found, torch.tensor([*table.values()]).double(), atol=1e-3)
    assert best_share(torch.tensor([3.0]), ENTRIES, Q).item() == 1.0  # a length estimated too small


def tilted(slope: Tensor, alpha: float, rows: int) -> Tensor:
    """Priors whose cosine with the gradient is alpha, at the length of a vector of ones."""
    g = (slope / slope.norm()).expand(rows, -1, -1, -1)
    other = torch.randn(rows, *SHAPE, generator=torch.Generator().manual_seed(3))
    other = other - (other * g).flatten(1).sum(1).view(-1, 1, 1, 1) * g
    other = other / other.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    return even((alpha * g + math.sqrt(1 - alpha**2) * other)[:, None])[:, 0]


def estimated(attack: PRGF, alpha: float, rows: int = 24) -> tuple[float, float]:
    """The mean cosine of a first estimate with a prior, and its mean cost."""
    victim, slope = plane()
    x = 0.3 + 0.4 * uniform(rows, *SHAPE)
    laid = siege(victim, x, torch.zeros(rows).long(), leave="end")
    sigma = torch.full((rows,), 0.01).double()
    told = attack._measure(laid, x, tilted(slope, alpha, rows), sigma, 0)
    length = (told.squares / SIZING).sqrt()
    g, seen, _ = attack.combine(laid, x, told, sigma, length, 0)
    assert seen.all()
    return float(cosines(g, slope).mean()), float(laid.record.meter.queries.double().mean())


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.1, 0.17, 0.3])
def test_a_prior_is_worth_what_it_is_worth(alpha: float, biased: bool) -> None:
    """With alpha estimated: as good as the better of prior and probes, within 2 %."""
    found, cost = estimated(PRGF(probes=Q, biased=biased), alpha)
    noise = 3 * 0.0125 / math.sqrt(24) / 2
    assert found >= 0.98 * max(expected(Q), alpha) - noise, found
    if alpha == 0.3:  # the prior is followed, and nothing else is asked
        assert cost < 2 + SIZING + Q / 4
    if alpha == 0.17 and not biased:
        assert found > 1.1 * alpha
    # No worse at equal queries: here one of sixty is lost.
    if not biased:
        equal = expected(round(cost) - 1)
        assert found >= 0.98 * equal - noise
        if alpha >= 0.1:
            assert found >= 1.05 * equal


def test_leaning_directions_have_the_cosine_of_theory() -> None:
    """With the length of the gradient known the share is the best, and so is the estimate."""
    victim, slope = plane()
    x, attack = 0.3 + 0.4 * uniform(24, *SHAPE), PRGF(probes=Q, biased=True)
    for alpha, wanted in {0.1: 0.137, 0.15: 0.156}.items():
        laid = siege(victim, x, torch.zeros(24).long(), leave="end")
        sigma = torch.full((24,), 0.01).double()
        told = attack._measure(laid, x, tilted(slope, alpha, 24), sigma, 1)
        length = torch.full((24,), float(slope.norm())).double()
        g, *_ = attack.combine(laid, x, told, sigma, length, 1)
        assert abs(float(cosines(g, slope).mean()) - wanted) < 0.011


# smooth directions

SIDE = 8
SPACE = 3 * SIDE * SIDE


def among(lam: Tensor, a: float, within: float, d: int, q: int) -> Tensor:
    """The expected squared cosine where what is not the prior is drawn in d dimensions."""
    first = lam * a + (1 - lam) * within / d
    second = lam**2 * a + (1 - lam) ** 2 * within / d**2
    return first**2 / ((1 - 1 / q) * second + first / q)


@pytest.mark.parametrize(("d", "q", "n"), [(7500, 50, 268203), (192, 50, 3072), (768, 20, 3072)])
def test_the_share_among_smooth_directions_is_the_best_there_is(d: int, q: int, n: int) -> None:
    grid = torch.cat((torch.zeros(1), torch.logspace(-7, 0, 20001))).double()
    for gamma in (0.7, 1.0, 3.5):
        within = gamma * d / n
        for alpha in (0.0, 0.003, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.5):
            lam = best_share(torch.tensor([alpha]), d, q, torch.tensor([within]).double())
            assert 0 <= float(lam) <= 1
            best = among(grid, alpha**2, within, d, q).nan_to_num(0.0).max()
            found = float(among(lam, alpha**2, within, d, q)[0])
            assert found >= float(best) * (1 - 1e-4), (gamma, alpha)


def test_smooth_directions_are_tiles_of_the_same_length() -> None:
    counter = torch.arange(5).expand(2, -1)
    u = Smooth(SIDE)(Dice.throw(0, torch.arange(2)), SHAPE, counter)
    assert u.shape == (2, 5, *SHAPE)
    tiles = u.view(2, 5, 3, SIDE, 32 // SIDE, SIDE, 32 // SIDE)
    assert torch.equal(tiles, tiles[:, :, :, :, :1, :, :1].expand_as(tiles))
    assert torch.allclose(u.flatten(2).norm(dim=2), torch.tensor(math.sqrt(ENTRIES)))
    # As large as the image, or larger, they are what they always were.
    drawn = [draw(Dice.throw(0, torch.arange(2)), SHAPE, counter) for draw in (Smooth(50), sphere)]
    assert torch.equal(*drawn)


def bumpy(within: float) -> tuple[Classifier, Tensor]:
    """A linear victim, a share of the square of whose slope is constant on tiles."""
    rough = normal(1, *SHAPE, seed=5)
    tiles = functional.avg_pool2d(rough, 32 // SIDE).repeat_interleave(32 // SIDE, 2)
    tiles = tiles.repeat_interleave(32 // SIDE, 3)
    rest = rough - tiles
    slope = math.sqrt(within) * tiles / tiles.norm() + math.sqrt(1 - within) * rest / rest.norm()
    slope = 8.0 * slope
    return affine(torch.cat((torch.zeros_like(slope), slope)).flatten(1), torch.zeros(2)), slope


def among_tiles(attack: PRGF, within: float, alpha: float) -> tuple[float, float]:
    """The mean cosine with the length of the gradient known, and how smooth it was seen to be."""
    victim, slope = bumpy(within)
    x = 0.3 + 0.4 * uniform(24, *SHAPE)
    laid = siege(victim, x, torch.zeros(24).long(), leave="end")
    sigma, one = torch.full((24,), 0.01).double(), torch.ones(24).double()
    told = attack._measure(laid, x, tilted(slope, alpha, 24), sigma, 1)
    gamma = within * ENTRIES / SPACE
    g, _, square = attack.combine(laid, x, told, sigma, 8.0 * one, 1, gamma * one)
    return float(cosines(g, slope).mean()), float(square.mean() / 64)


@pytest.mark.parametrize("within", [0.04, 0.25])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_smooth_probes_have_the_cosine_of_theory(within: float, alpha: float) -> None:
    """Rougher than noise they tell less than others would, and smoother four times as much."""
    leaning = PRGF(probes=Q, biased=True, low=SIDE)
    found, _ = among_tiles(leaning, within, alpha)
    gamma = torch.tensor([within]).double()
    lam = best_share(torch.tensor([alpha]), SPACE, Q, gamma)
    assert found == pytest.approx(math.sqrt(among(lam, alpha**2, within, SPACE, Q)), abs=0.012)
    ours, seen = among_tiles(PRGF(probes=Q, low=SIDE), within, alpha)
    assert ours > found - 0.005
    assert seen == pytest.approx(within * ENTRIES / SPACE, rel=0.15)
    plain, _ = among_tiles(PRGF(probes=Q), within, alpha)
    assert (ours > 1.3 * plain) if within > 0.1 else (ours < plain)


def test_how_smooth_is_learnt_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the published guess to what the probes see."""
    seen: list[Tensor] = []
    combine = PRGF.combine

    def watched(self: PRGF, *given: Any) -> Any:
        seen.append(given[-1])
        return combine(self, *given)

    monkeypatch.setattr(PRGF, "combine", watched)
    victim, _ = bumpy(0.04)
    samples = Samples.of(0.3 + 0.4 * uniform(8, *SHAPE), torch.zeros(8).long())
    substitute = affine(normal(2, ENTRIES, seed=9), torch.zeros(2))
    for text in ("prgf(steps=3, low=8)", "prgf(steps=3, low=8, gamma=2.0)"):
        terms = Threat(Linf, 1e-4, access=Access.SCORE)
        craft(
            victim,
            parse(text),
            samples,
            terms,
            knowledge=Knowledge(substitute=substitute),
            leave="end",
        )
    assert (seen[0] == 3.5).all() and 0.4 < float(seen[2].mean()) < 1.6
    assert all((gamma == 2.0).all() for gamma in seen[3:])


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_a_good_substitute_saves_queries_and_a_bad_one_costs_none(norm: Norm) -> None:
    victim, samples = natural(), digits(16)
    threat = Threat(norm, {Linf: 0.15, L2: 0.75}[norm], access=Access.SCORE)
    spent = {}
    substitutes: dict[str, Victim] = {
        "good": Likeness(victim, (1, 8, 8)),
        "bad": untrained((1, 8, 8), 10, seed=3),
    }
    for name, substitute in substitutes.items():
        made = craft(
            victim, PRGF(), samples, threat, queries=700, knowledge=Knowledge(substitute=substitute)
        )
        spent[name] = float(made.queries.double().mean())
        assert (
            made.substitute_passes is not None
            and (made.substitute_passes[made.queries > 1] > 0).all()
        )
    plain = craft(victim, parse("rgf"), samples, threat, queries=700)
    assert spent["good"] < 0.85 * float(plain.queries.double().mean())
    assert spent["bad"] < 1.15 * float(plain.queries.double().mean())


@pytest.mark.parametrize("low", [None, 4])
def test_rows_alone_and_accounts(low: int | None) -> None:
    victim, samples, attack = natural(), digits(12), PRGF(steps=5, probes=6, low=low)
    substitute = Likeness(victim, (1, 8, 8))
    threat = Threat(Linf, 0.1, access=Access.SCORE)
    counting = Counting(victim, access=Access.SCORE, metered=True)
    whole = craft(counting, attack, samples, threat, knowledge=Knowledge(substitute=substitute))
    assert counting.forwards == int(whole.queries.sum()) and counting.backwards == 0
    assert int(whole.queries.max()) <= 1 + attack.cost((1, 8, 8), 10)
    for row in (0, 5, 11):
        one = craft(
            victim,
            attack,
            samples.at(torch.tensor([row])),
            threat,
            knowledge=Knowledge(substitute=substitute),
        )
        for name in ("images", "success", "queries", "first_query", "substitute_passes"):
            assert torch.equal(getattr(one, name)[0], getattr(whole, name)[row]), (row, name)


def test_probes_that_show_nothing_grow() -> None:
    """A victim that rounds and does not say so: the first probes vanish, later ones do not."""
    victim = natural()
    stepped = type(victim)(torch.nn.Sequential(_Steps(), victim.module), classes=10, name="stepped")
    samples = digits(12)
    threat = Threat(Linf, 0.15, access=Access.SCORE)
    made = craft(
        stepped,
        PRGF(sigma=1e-6),
        samples,
        threat,
        queries=1000,
        knowledge=Knowledge(substitute=victim),
    )
    assert int(made.success.sum()) >= 6


class _Steps(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.round(x * 64) / 64


def test_values() -> None:
    for text in ("prgf@cheng", "prgf@cheng-data"):
        assert str(parse(str(parse(text)))) == str(parse(text))
    assert PRGF.needs_substitute
    with pytest.raises(AttackError, match="substitute"):
        craft(natural(), PRGF(), digits(4), Threat(Linf, 0.1, access=Access.SCORE))
    for text, said in {
        "prgf(probes=0)": "probes is 0",
        "prgf(low=0)": "low is 0",
        "prgf(gamma=0)": "gamma is 0",
        "rgf(low=0)": "low is 0",
    }.items():
        with pytest.raises(AttackError, match=said):
            parse(text)


def test_probes_that_a_coarse_grid_hides_do_not_shrink() -> None:
    """A victim that shows nothing: probes grow, or stay, but are never less than at first."""
    victim = affine(torch.zeros(3, 16), torch.tensor([2.0, 0.0, -3.0]))
    coarse = Classifier(victim.module, grid=1 / 7)
    images = torch.full((1, 1, 4, 4), 3 / 7)
    spy = Spy(coarse)
    made = Samples.of(images, torch.zeros(1).long())
    craft(
        spy,
        PRGF(steps=12, probes=8),
        made,
        Threat(Linf, 0.3),
        knowledge=Knowledge(substitute=untrained((1, 4, 4), 3)),
    )
    moves = [float((call - images).abs().max()) for call in spy.images]
    assert min(move for move in moves if move > 0) >= 3 / 7 - 1e-6, moves
