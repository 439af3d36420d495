"""How often a study has any false answer, where the true effects are exactly at the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.studies.boards import board, searched

from besiege.metrics.paired import ALPHA, paired_intervals
from besiege.studies.answers import level_of_each
from besiege.studies.effects import advantage, least_advantage
from besiege.studies.study import Claim, Measure, Study

SMALLEST, BUDGETS, IMAGES = 0.05, (0.05, 0.1, 0.15), 300
Draw = Callable[[np.random.Generator], NDArray[np.float64]]
"""The smallest perturbations of two models, ``[models, images]``; claims are about the second."""


def shift(effect: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """The second withstands more images at 0.1, by this true difference."""
    kind = generator.choice(3, IMAGES, p=[0.1, 0.1 + effect, 0.8 - effect])
    return np.where([kind == 0, kind == 1], 0.2, 0.05)


def curve(effect: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """The second withstands less at the smallest budget by this true share, and less so beyond."""
    sizes = np.maximum(generator.lognormal(-2.3, 0.4, (2, IMAGES)), BUDGETS[0] + 0.001)
    sizes[1, generator.random(IMAGES) < -effect] = 0.0
    return sizes


def study_of(measures: list[Measure], smallest: float, denied: float) -> Study:
    claims = tuple(
        Claim(f"X{n}", "It is.", measure, smallest, denied) for n, measure in enumerate(measures)
    )
    return Study("simulated", "Simulated", "", Path("none.toml"), claims)


def share_with(verdict: str, study: Study, draw: Draw, studies: int) -> float:
    """The share of simulated studies in which any claim has this verdict."""
    generator, found = np.random.default_rng(5), 0
    for _ in range(studies):
        cells = (
            replace(searched("white linf", draw(generator)), name=f"cell {n}")
            for n in range(len(study.claims))
        )
        found += any(one.verdict == verdict for one in study.answers(board(*cells)))
    return found / studies


def differences(claims: int) -> list[Measure]:
    one = partial(advantage, better="pgd-at", worse="natural", eps=0.1)
    return [partial(one, cell=f"cell {n}") for n in range(claims)]


def orders(claims: int) -> list[Measure]:
    one = partial(least_advantage, better="pgd-at", worse="natural", budgets=BUDGETS)
    return [partial(one, cell=f"cell {n}") for n in range(claims)]


@pytest.mark.parametrize(("verdict", "effect"), [("no", SMALLEST), ("yes", 0.0)])
@pytest.mark.parametrize("claims", [pytest.param(3, marks=pytest.mark.slow), 20])
def test_any_false_verdict_is_rare(verdict: str, effect: float, claims: int) -> None:
    """Without the correction, 20 claims have a false one in 40 % of the studies."""
    study, studies = study_of(differences(claims), SMALLEST, 0.0), 300
    found = share_with(verdict, study, partial(shift, effect), studies)
    assert found <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / studies) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("verdict", "effect"), [("no", 0.0), ("yes", -0.05)])
def test_any_false_verdict_about_orders_is_rare(verdict: str, effect: float) -> None:
    """Also of claims about all budgets, by simultaneous bands."""
    study, studies = study_of(orders(10), 0.0, -0.05), 300
    found = share_with(verdict, study, partial(curve, effect), studies)
    assert found <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / studies) ** 0.5


@pytest.mark.parametrize("claims", [1, 2, 3, 5, 10, 50])
def test_a_false_yes_is_as_rare_as_its_share_with_few_differing_images(claims: int) -> None:
    """Exactly, by all counts: the score interval is an approximation, and few images differ."""
    from scipy.special import ndtri
    from scipy.stats import binom

    differing = np.arange(1, 61)
    first = np.arange(61)
    there = first <= differing[:, None]
    b, n = np.broadcast_arrays(first, differing[:, None])
    level = level_of_each(claims)
    low, _ = paired_intervals(
        np.where(there, b, 0), np.where(there, n - b, 0), 200, -ndtri((1 - level) / 2)
    )
    told = (binom.pmf(b, n, 0.5) * (there & (low > 0))).sum(1)
    for share in np.linspace(0.005, 0.15, 30):
        assert (binom.pmf(differing, 200, share) * told).sum() <= 1 - level
