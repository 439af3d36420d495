"""CLEVER: scores from the largest gradients near images, and the attacks that refute them.

A score is an estimate of the distance to the decision boundary, never a bound: gradients that are
masked make it too large. So every score is compared with the smallest perturbation that any attack
found, and images where it is larger are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.distances import quantile
from besiege.metrics.extremes import fit_reverse_weibull
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows, places

Numbers = NDArray[np.float64]

COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("sample", "target", "gradients"), np.int64),
    **dict.fromkeys(("correct", "constant", "endless", "capped"), np.bool_),
    **dict.fromkeys(("score", "margin", "location", "shape", "p"), np.float64),
}
"""The columns of the rows of the task kind ``clever``."""
MARKS = (10, 25, 50, 100, 200)
"""Numbers of batches after which the score is kept, too, where there are more."""
TOLERANCE = 1e-5
"""By which share a score must exceed a distance: what float32 arithmetic needs."""
POOR = 0.05
"""P-values below it speak against the fit."""


@dataclass(frozen=True)
class Refuted:
    """An image whose score an attack refutes: its sample, the score and the distance found."""

    sample: int
    score: float
    distance: float


@dataclass(frozen=True)
class CleverFigures:
    """CLEVER scores of an evaluation: estimates, never bounds.

    Attributes
    ----------
    count : int
        Images with a score; misclassified ones have the score 0.
    without : int
        Images without a score, whose maxima show no end point.
    misclassified : int
        Images that are misclassified.
    mean, median : float, optional
        Of the scores.
    mean_correct : float, optional
        Of the scores of images that are classified correctly.
    capped : int
        Scores that are as large as the radius: the estimate says no more.
    poor : int
        Fits with a p-value below 0.05.
    gradients : int
        Backward passes in all.
    attacked : int
        Images for which an attack found a perturbation, with which the score was compared.
    refuted : tuple of Refuted
        Images whose score exceeds the smallest perturbation found, the worst first.
    """

    count: int
    without: int
    misclassified: int
    mean: float | None
    median: float | None
    mean_correct: float | None
    capped: int
    poor: int
    gradients: int
    attacked: int
    refuted: tuple[Refuted, ...]


def scored(
    targets: NDArray[np.int64], margins: Numbers, maxima: Numbers, radius: float
) -> dict[str, NDArray[Any]]:
    """The scores of images, from the largest gradients near them.

    ``score = min(g / L, R)`` with the margin ``g`` of the image and the end point ``L`` of the
    maxima; over several targets the smallest. A target whose maxima show no end point has no score,
    and an image without any has NaN.

    Parameters
    ----------
    targets, margins : array of shape (rows, k)
        The target classes, and the margins over them.
    maxima : array of shape (rows, k, batches)
        The largest dual norm of the margin's gradient in every batch.
    radius : float
        The radius of the balls.

    Returns
    -------
    dict
        ``score``, and of the target that has it ``target``, ``margin``, ``location``, ``shape``,
        ``p``, ``constant`` and ``endless``.

    References
    ----------
    Weng et al. 2018, "Evaluating the robustness of neural networks: an extreme value theory
    approach".
    """
    fit = fit_reverse_weibull(maxima.reshape(-1, maxima.shape[2]))
    steep = fit.location.reshape(margins.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Without any gradient nothing limits the distance but the radius.
        each = np.where(steep > 0, np.maximum(margins, 0) / steep, np.where(margins > 0, radius, 0))
    each = np.minimum(each, radius)
    endless = fit.endless.reshape(margins.shape)
    # Maxima that show no end say nothing about the largest gradient.
    chosen = np.where(endless, np.inf, each).argmin(1)[:, None]
    each = np.where(endless, np.nan, each)

    def of_chosen(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.take_along_axis(values.reshape(margins.shape), chosen, 1)[:, 0])

    return {
        "score": of_chosen(each),
        "target": of_chosen(targets),
        "margin": of_chosen(margins),
        **{name: of_chosen(getattr(fit, name)) for name in ("location", "shape", "p", "constant")},
        "endless": np.asarray(endless.any(1)),
        "capped": of_chosen(each) >= radius,
    }


def clever_figures(case: Case) -> CleverFigures | None:
    """The scores of an evaluation beside its attacks; None where none were sampled."""
    rows = case.evidence.others.get("clever")
    if rows is None or not rows.count:
        return None
    score, right = rows["score"], rows["correct"].astype(bool)
    found = best_distances(case, rows)
    known = np.isfinite(found)
    refuted = refuted_by(score, found) & right
    worst = np.flatnonzero(refuted)
    worst = worst[np.argsort(found[worst] - score[worst], kind="stable")]
    there = np.isfinite(score)
    return CleverFigures(
        int(there.sum()),
        int((~there).sum()),
        int((~right).sum()),
        _mean(score[there]),
        quantile(score[there]) if there.any() else None,
        _mean(score[there & right]),
        int((rows["capped"].astype(bool) & right).sum()),
        int(((rows["p"] < POOR) & right).sum()),
        int(rows["gradients"].sum()),
        int((known & right & there).sum()),
        tuple(Refuted(int(rows["sample"][at]), float(score[at]), float(found[at])) for at in worst),
    )


def mark(batches: int) -> str:
    """The column of the scores after so many batches; records of earlier releases have none."""
    return f"score_{batches}"


def _mean(values: Numbers) -> float | None:
    return float(values.mean()) if len(values) else None


def refuted_by(score: Numbers, distance: Numbers) -> NDArray[np.bool_]:
    """Which scores exceed the smallest perturbation found; infinite where none was found."""
    return np.asarray(score > distance * (1 + TOLERANCE))


def best_distances(case: Case, rows: Rows) -> Numbers:
    """The smallest perturbation that any attack found for each row; infinite without a success."""
    best = np.full(rows.count, np.inf)
    evidence = case.evidence
    for trial in evidence.searches():
        won = trial.rows.where(trial.rows["success"].astype(bool))
        where = places(rows["sample"], won["sample"])
        np.minimum.at(best, where[where >= 0], won[evidence.norm][where >= 0])
    return best
