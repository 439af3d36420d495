"""Accuracy of a stochastic victim: over evaluations, within several draws, and per sample."""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.defense_values import AttackSpread, Draws, Probability, Spread, Tries
from besiege.metrics.evidence import Evidence, Mask
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.rows import Column, Rows, places

Wins = NDArray[np.bool_]
TRIES = (1, 5, 10)
"""Numbers of draws of which an attacker may try any."""


class Judged(NamedTuple):
    """Which draws of every sample are misclassified or successes, as tables ``[samples, draws]``.

    ``images`` has, for each trial, its own image or, in a suite, the worst up to it; ``worst`` the
    image with most successes in the first half of the draws. ``known`` are the samples that were
    judged under every attack.
    """

    clean: Wins
    images: tuple[Wins, ...]
    worst: Wins
    known: Mask


def chance_figures(evidence: Evidence, draws: int) -> Draws | None:
    """Accuracy of a stochastic victim over the judge's draws of every sample.

    The first half of the draws chooses, for every sample, the image that is misclassified most
    often: the clean one, or that of an attack. The other half evaluates the chosen images, so that
    choice and evaluation use independent draws (Croce and Hein 2020). Of equal ones it is the first
    attack's, not the clean image. Accuracy under an attack is that of its own images; in a suite,
    of the worst image up to this attack.

    The mean over evaluations is the accuracy when an attacker has one try per sample. With k tries,
    a sample counts as withstood if none of k draws is a success: of s successes in m draws, in
    ``C(m - s, k) / C(m, k)`` of all choices of k draws. Where k exceeds the second half, all draws
    are used, of which the first half chose the image: that accuracy is slightly too low.

    None where the draws were not kept, or no sample was judged under every attack.
    """
    judged = _judged(evidence, draws)
    if judged is None:
        return None
    known, half = judged.known, draws // 2
    attacks = []
    for trial, wins in zip(evidence.trials, judged.images, strict=True):
        tried = known & evidence.covered(trial)
        if tried.any():
            within = _within(wins[tried], half)
            attacks.append(AttackSpread(*_spread(wins, tried, half), trial.text, within))
    clean, robust = (Spread(*_spread(wins, known, half)) for wins in (judged.clean, judged.worst))
    worst = judged.worst[known]
    return Draws(
        draws - half, clean, robust, tuple(attacks), _within(worst, half), _grouped(worst, half)
    )


def success_probabilities(evidence: Evidence, draws: int) -> dict[str, Column]:
    """Columns of the probability that a draw of a sample's worst image is a success.

    ``probability`` with its exact 95 % interval, ``probability_low`` and ``probability_high``, from
    the draws that did not choose the image; NaN for samples that were not judged under every
    attack. Empty where `chance_figures` is None.
    """
    judged = _judged(evidence, draws)
    if judged is None:
        return {}
    rows = np.array([_probability(n, draws - draws // 2) for n in range(draws - draws // 2 + 1)])
    found = rows[judged.worst[:, draws // 2 :].sum(1)]
    found[~judged.known] = np.nan
    names = ("probability", "probability_low", "probability_high")
    return dict(zip(names, found.T, strict=True))


def _judged(evidence: Evidence, draws: int) -> Judged | None:
    """The draws of all images; None where some were not kept, or nothing was judged."""
    if draws < 2:
        return None
    known = evidence.covered_by_all()
    clean = _wins(evidence.clean, draws)
    tables = [_wins(trial.rows, draws) for trial in evidence.trials]
    if not known.any() or clean is None or any(table is None for table in tables):
        return None
    half = draws // 2
    worst = ~clean  # draws of clean images count correct answers, those of attacks successes
    untouched = np.ones(len(worst), bool)
    images = []
    for trial, table in zip(evidence.trials, tables, strict=True):
        assert table is not None
        sound = trial.rows["valid"].astype(bool) & trial.rows["within"].astype(bool)
        rows = places(evidence.clean["sample"], trial.rows["sample"])
        own = (table & sound[:, None])[rows >= 0]
        rows = rows[rows >= 0]
        alone = ~clean
        alone[rows] = own
        # An attacker sends the attacked image where the clean one was misclassified as often.
        more = _more(own, worst[rows], half, untouched[rows])
        worst[rows[more]], untouched[rows[more]] = own[more], False
        images.append(worst.copy() if evidence.chained else alone)
    return Judged(~clean, tuple(images), worst, known)


def _wins(rows: Rows, draws: int) -> Wins | None:
    """The bits of ``draws`` as a table ``[rows, draws]``; None where a row has none."""
    if "draws" not in rows:
        return np.zeros((0, draws), bool) if rows.count == 0 else None
    bits = rows["draws"].astype(np.int64)
    if not bool(np.all(bits >> draws == 1)):  # the bit above the draws marks a valid row
        return None
    found: Wins = (bits[:, None] >> np.arange(draws)) & 1 == 1
    return found


def _more(one: Wins, other: Wins, half: int, ties: Mask) -> Mask:
    """Where the first image has more successes in the first half of the draws, or as many."""
    ahead = one[:, :half].sum(1) - other[:, :half].sum(1)
    more: Mask = (ahead > 0) | (ties & (ahead == 0))
    return more


def _spread(wins: Wins, known: Mask, half: int) -> tuple[float, float]:
    """Mean and standard deviation of the accuracy over the second half of the draws."""
    accuracy = 1 - wins[known][:, half:].mean(0)
    deviation = float(accuracy.std(ddof=1)) if len(accuracy) > 1 else 0.0
    return float(accuracy.mean()), deviation


def _within(wins: Wins, half: int) -> tuple[Tries, ...]:
    """Accuracy where an attacker may try any of so many draws."""
    found = []
    for tries in (count for count in TRIES if count <= wins.shape[1]):
        used = wins[:, half:] if tries <= wins.shape[1] - half else wins
        draws = used.shape[1]
        none = np.array([comb(draws - s, tries) / comb(draws, tries) for s in range(draws + 1)])
        found.append(Tries(tries, float(none[used.sum(1)].mean())))
    return tuple(found)


def _grouped(wins: Wins, half: int) -> tuple[Probability, ...]:
    """The samples by their number of successes in the second half of the draws."""
    draws = wins.shape[1] - half
    counts = np.bincount(wins[:, half:].sum(1), minlength=draws + 1)
    return tuple(Probability(*_probability(n, draws), int(count)) for n, count in enumerate(counts))


def _probability(successes: int, draws: int) -> tuple[float, float, float]:
    """A share of draws and its exact interval."""
    return successes / draws, *clopper_pearson(successes, draws)
