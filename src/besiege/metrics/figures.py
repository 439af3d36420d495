"""The figures of one evaluation: rates, curves, costs, a gallery."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.attack_values import AttackCurve, AttackFigures, BudgetCurve
from besiege.metrics.curves import Curve, against_budget, against_queries, against_steps
from besiege.metrics.distances import NORMS, quantile, smallest
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.representatives import representatives
from besiege.metrics.rows import places
from besiege.metrics.values import Cost, Picture

_PICTURES = 12
_POINTS = 2000
"""Largest number of points of a curve in ``figures.json``; of more, evenly spaced ones are kept."""


def rate(hits: int, count: int) -> Rate | None:
    """A rate with its exact interval; None for a count of 0."""
    return Rate.of(hits, count) if count else None


def clean_rate(evidence: Evidence) -> Rate | None:
    """The accuracy on clean images."""
    return rate(int(evidence.right.sum()), evidence.count)


def robust_rate(evidence: Evidence) -> Rate | None:
    """Accuracy under all attacks, over the samples that every attack was judged on.

    None where there are no such samples: samples that were not attacked never count as robust.
    """
    known = evidence.covered_by_all()
    return rate(int(evidence.standing()[known].sum()), int(known.sum()))


def expected_accuracy(evidence: Evidence) -> float | None:
    """Expected accuracy of a stochastic victim under the worst attack.

    For every sample that all attacks were judged on, the attack with most successful draws counts.
    """
    known = evidence.covered_by_all()
    if evidence.chained or not known.any():
        return None
    ids = evidence.clean["sample"][known]
    worst = np.zeros(len(ids))
    for trial in evidence.trials:
        where = places(ids, trial.rows["sample"])
        np.maximum.at(worst, where[where >= 0], trial.rows["share"][where >= 0])
    return float(1 - worst.mean())


def attack_figures(case: Case) -> tuple[AttackFigures, ...]:
    """Results and costs of each attack.

    Its accuracy is over the samples it was judged on, including those that earlier attacks of a
    suite broke.
    """
    return tuple(_attack(case, trial) for trial in case.evidence.trials)


def _attack(case: Case, trial: Trial) -> AttackFigures:
    evidence, rows, text = case.evidence, trial.rows, trial.text
    broken = evidence.newly_broken(trial)
    sizes = rows[evidence.norm][broken]
    covered = evidence.covered(trial)
    return AttackFigures(
        text,
        case.described.get(text, ""),
        trial.steps,
        trial.access == "transfer",
        rate(int(evidence.left_by(trial)[covered].sum()), int(covered.sum())),
        int(broken.sum()),
        # In a suite no two attacks see the same images.
        None if evidence.chained else _alone(evidence, trial),
        float(np.median(sizes)) if len(sizes) else None,
        int(rows["forwards"].sum()),
        int(rows["backwards"].sum()),
        int(rows["queries"].sum()),
        case.seconds.get(text, 0.0),
        text not in case.unfinished and text not in case.failures,
        case.failures.get(text),
        trial.guard,
        trial.given,
        _tried(evidence, trial) if trial.guard else None,
    )


def _alone(evidence: Evidence, trial: Trial) -> int:
    """The number of samples that no other attack broke."""
    others = [evidence.broken_ids(other) for other in evidence.trials if other is not trial]
    mine = evidence.broken_ids(trial)
    return int((~np.isin(mine, np.concatenate([*others, mine[:0]]))).sum())


def _tried(evidence: Evidence, guard: Trial) -> int:
    """The number of images that the attacks and guards before a guard left, and it was tried on."""
    left = evidence.standing(evidence.before(guard))
    return int((left & np.isin(evidence.clean["sample"], guard.rows["sample"])).sum())


def cost_figures(case: Case) -> Cost:
    """The cost of the attacks and of the search for the smallest perturbation, together."""
    trials = case.evidence.searches()
    forwards, backwards, queries = (
        sum(int(trial.rows[what].sum()) for trial in trials)
        for what in ("forwards", "backwards", "queries")
    )
    return Cost(forwards, backwards, queries, case.judged, sum(case.seconds.values()))


def columns_of(curve: Curve) -> dict[str, Any]:
    """A curve as tuples; of a long one, only some of its points."""
    keep = np.arange(len(curve.x))
    if len(keep) > _POINTS:
        keep = np.unique(np.linspace(0, len(keep) - 1, _POINTS).round().astype(int))
    columns = {name: tuple(getattr(curve, name)[keep].tolist()) for name in _AXES}
    return {**columns, "count": curve.count}


_AXES = ("x", "value", "low", "high")


def steps_figures(evidence: Evidence) -> tuple[AttackCurve, ...]:
    """Accuracy against steps, for every gradient-based attack with several steps on the model.

    None without a budget: there the first success may have any size.
    """
    # Query-based attacks are plotted against queries; steps on a substitute say nothing here, nor
    # do those of an attack of which only the last iterate is examined.
    trials = [t for t in evidence.attacks if t.sees and t.steps is not None and not t.one_step]
    trials = [t for t in trials if not t.last]
    return _curves(evidence, trials, against_steps)


def queries_figures(evidence: Evidence) -> tuple[AttackCurve, ...]:
    """Accuracy against queries, for every query-based attack; guards try a few samples only."""
    trials = [t for t in evidence.attacks if t.access in ("score", "decision")]
    return _curves(evidence, trials, against_queries)


def _curves(
    evidence: Evidence, trials: list[Trial], against: Callable[[Evidence, Trial], Curve | None]
) -> tuple[AttackCurve, ...]:
    """The curves of some attacks that have more than one point; none without a budget."""
    if evidence.eps is None:
        return ()
    curves = [(trial, against(evidence, trial)) for trial in trials]
    return tuple(
        AttackCurve(trial.text, **columns_of(curve))
        for trial, curve in curves
        if curve is not None and len(curve.x) > 1
    )


def budget_figures(evidence: Evidence) -> BudgetCurve | None:
    """Accuracy against the budget, from the smallest perturbations."""
    curve = against_budget(evidence)
    if curve is None or evidence.curve is None:
        return None
    ends = evidence.smallest()[1]
    middle = quantile(ends)
    searchers = [evidence.curve.text] if evidence.eps is not None else []
    searchers = searchers or [trial.text for trial in evidence.trials]
    return BudgetCurve(
        ", ".join(searchers),
        evidence.norm,
        **columns_of(curve),
        median=middle if np.isfinite(middle) else None,
        unbroken=int(np.isinf(ends).sum()),
    )


def budget_curves(evidence: Evidence) -> tuple[AttackCurve, ...]:
    """Accuracy against the budget under each single attack, for threats without a budget.

    The samples are those of the curve of all attacks; none for a single attack.
    """
    if evidence.eps is not None or len(evidence.attacks) < 2:
        return ()
    curves = [(trial, against_budget(evidence, [trial])) for trial in evidence.attacks]
    return tuple(
        AttackCurve(t.text, **columns_of(curve)) for t, curve in curves if curve is not None
    )


def gallery(evidence: Evidence, count: int = _PICTURES) -> tuple[Picture, ...]:
    """The broken samples to show: class after class, in the order of a hash of the id.

    The image is that of the strongest attack that broke the sample; with a larger `count` the same
    samples come first. Without a budget, the samples
    are those whose smallest perturbation is nearest to the median.
    """
    if evidence.eps is None and not evidence.chained:
        return _gallery_at_median(evidence, count)
    broken = representatives(evidence)
    hashes = [hashlib.sha256(str(sample).encode()).digest() for sample in broken["sample"].tolist()]
    ranked = np.array(sorted(range(broken.count), key=hashes.__getitem__), np.int64)
    # The order of a class after class: all first ones by their rank, then all second ones.
    turns = _turns(broken["label"][ranked])
    shown = broken.where(ranked[np.argsort(turns, kind="stable")[:count]])
    seen = evidence.clean.where(places(evidence.clean["sample"], shown["sample"])).records()
    return tuple(
        _picture(evidence.norm, clean, evidence.trials[one["trial"]], one["row"])
        for clean, one in zip(seen, shown.records(), strict=True)
    )


def _turns(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal labels stand before each label."""
    order = np.argsort(labels, kind="stable")
    grouped = labels[order]
    turns = np.empty(len(labels), np.int64)
    turns[order] = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
    return turns


def _gallery_at_median(evidence: Evidence, count: int) -> tuple[Picture, ...]:
    """The broken samples whose smallest perturbation is nearest to the median, ascending."""
    best = smallest(evidence)
    best = best.where(best["row"] >= 0)
    if not best.count:
        return ()
    ends = best["distance"]
    near = np.argsort(np.abs(ends - quantile(ends)), kind="stable")[:count]
    clean = {record["sample"]: record for record in evidence.clean.records()}
    by_text = {trial.text: trial for trial in evidence.trials}
    shown = []
    for place in sorted(near.tolist(), key=lambda place: float(ends[place])):
        sample, trial = int(best["sample"][place]), by_text[str(best["attack"][place])]
        row = int(np.flatnonzero(trial.rows["sample"] == sample)[0])
        shown.append(_picture(evidence.norm, clean[sample], trial, row))
    return tuple(shown)


def _known(value: float) -> float | None:
    """A value, None for NaN."""
    return None if np.isnan(value) else float(value)


def _picture(norm: str, seen: dict[str, Any], trial: Trial, row: int) -> Picture:
    """A sample of the gallery, and where its two images are."""
    rows = trial.rows
    return Picture(
        sample=int(seen["sample"]),
        attack=trial.text,
        label=int(seen["label"]),
        clean_prediction=int(seen["prediction"]),
        clean_confidence=_known(seen["confidence"]),
        prediction=int(rows["prediction"][row]),
        confidence=_known(rows["confidence"][row]),
        distance=float(rows[norm][row]),
        norm=norm,
        distances={name: float(rows[name][row]) for name in NORMS if name in rows},
        clean=f"records/{seen['record']}",
        clean_row=int(seen["row"]),
        record=f"records/{rows['record'][row]}",
        row=int(rows["row"][row]),
    )
