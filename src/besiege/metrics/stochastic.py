"""Accuracy of a stochastic victim: mean and standard deviation over evaluations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.evidence import Evidence, Mask
from besiege.metrics.rows import Rows, places
from besiege.metrics.values import AttackSpread, Draws, Spread

Wins = NDArray[np.bool_]


def chance_figures(evidence: Evidence, draws: int) -> Draws | None:
    """Mean and standard deviation over evaluations, each with one draw of every sample.

    The first half of the judge's draws chooses, for every sample, the image that is misclassified
    most often: the clean one, or that of an attack. The other half evaluates the chosen images, so
    that choice and evaluation use independent draws (Croce and Hein 2020). Accuracy under an
    attack is that of its own images; in a suite, of the worst image up to this attack.

    None where the draws were not kept, or no sample was judged under every attack.
    """
    if draws < 2:
        return None
    known = evidence.covered_by_all()
    clean = _wins(evidence.clean, draws)
    tables = [_wins(trial.rows, draws) for trial in evidence.trials]
    if not known.any() or clean is None or any(table is None for table in tables):
        return None
    half = draws // 2
    worst = ~clean  # draws of clean images count correct answers, those of attacks successes
    attacks = []
    for trial, table in zip(evidence.trials, tables, strict=True):
        assert table is not None
        sound = trial.rows["valid"].astype(bool) & trial.rows["within"].astype(bool)
        mine = worst.copy() if evidence.chained else ~clean
        rows = places(evidence.clean["sample"], trial.rows["sample"])
        own = (table & sound[:, None])[rows >= 0]
        rows = rows[rows >= 0]
        mine[rows] = _stronger(mine[rows], own, half) if evidence.chained else own
        worst = _stronger(worst, mine, half)
        tried = known & evidence.covered(trial)
        if tried.any():
            attacks.append(AttackSpread(*_spread(mine, tried, half), trial.text))
    clean_spread, robust = (Spread(*_spread(wins, known, half)) for wins in (~clean, worst))
    return Draws(draws - half, clean_spread, robust, tuple(attacks))


def _wins(rows: Rows, draws: int) -> Wins | None:
    """The bits of ``draws`` as a table ``[rows, draws]``; None where a row has none."""
    if "draws" not in rows:
        return np.zeros((0, draws), bool) if rows.count == 0 else None
    bits = rows["draws"].astype(np.int64)
    if not bool(np.all(bits >> draws == 1)):  # the bit above the draws marks a valid row
        return None
    found: Wins = (bits[:, None] >> np.arange(draws)) & 1 == 1
    return found


def _stronger(one: Wins, other: Wins, half: int) -> Wins:
    """Of two images per row, the one with more successes in the first half of the draws."""
    more = other[:, :half].sum(1) > one[:, :half].sum(1)
    return np.where(more[:, None], other, one)


def _spread(wins: Wins, known: Mask, half: int) -> tuple[float, float]:
    """Mean and standard deviation of the accuracy over the second half of the draws."""
    accuracy = 1 - wins[known][:, half:].mean(0)
    deviation = float(accuracy.std(ddof=1)) if len(accuracy) > 1 else 0.0
    return float(accuracy.mean()), deviation
