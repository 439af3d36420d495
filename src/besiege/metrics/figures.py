"""The figures of one evaluation: rates, curves, costs, a gallery."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from besiege.metrics.curves import Curve, against_budget, against_queries, against_steps
from besiege.metrics.distances import NORMS, quantile, smallest
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.rows import places
from besiege.metrics.values import AttackCurve, AttackFigures, BudgetCurve, Cost, Picture

_PICTURES = 12
_POINTS = 2000
"""Points of a curve that are written down; with more, evenly chosen ones are."""


def rate(hits: int, count: int) -> Rate | None:
    """A rate with its exact interval, None of nothing."""
    return Rate.of(hits, count) if count else None


def clean_rate(evidence: Evidence) -> Rate | None:
    """The accuracy on clean images."""
    return rate(int(evidence.right.sum()), evidence.count)


def robust_rate(evidence: Evidence) -> Rate | None:
    """The share that no attack broke, of the samples that every attack was judged on.

    Unknown where there are none: what was not attacked is not robust.
    """
    known = evidence.covered_by_all()
    return rate(int(evidence.standing()[known].sum()), int(known.sum()))


def expected_accuracy(evidence: Evidence) -> float | None:
    """Accuracy under the worst attack in expectation over the draws of a victim by chance.

    For every sample that all attacks were judged on, the attack that reaches its goal in most
    draws counts.
    """
    known = evidence.covered_by_all()
    if evidence.chained or not known.any():
        return None
    ids = evidence.clean["sample"][known]
    worst = np.zeros(len(ids))
    for trial in evidence.trials:
        worst = np.maximum(worst, trial.rows["share"][places(trial.rows["sample"], ids)])
    return float(1 - worst.mean())


def attack_figures(case: Case) -> tuple[AttackFigures, ...]:
    """What each attack did and cost.

    Its accuracy is over the samples it has been judged on, those that earlier attacks of a chain
    broke included.
    """
    return tuple(_attack(case, trial) for trial in case.evidence.trials)


def _attack(case: Case, trial: Trial) -> AttackFigures:
    evidence, rows, text = case.evidence, trial.rows, trial.text
    others = [evidence.broken_ids(other) for other in evidence.trials if other is not trial]
    elsewhere = np.concatenate(others) if others else np.zeros(0, np.int64)
    mine = evidence.broken_ids(trial)
    found = rows[evidence.norm][evidence.broken(trial)]
    covered = evidence.covered(trial)
    return AttackFigures(
        text,
        case.described.get(text, ""),
        trial.steps,
        trial.access == "transfer",
        rate(int(evidence.left_by(trial)[covered].sum()), int(covered.sum())),
        len(mine),
        int((~np.isin(mine, elsewhere)).sum()),
        float(np.median(found)) if len(found) else None,
        int(rows["forwards"].sum()),
        int(rows["backwards"].sum()),
        int(rows["queries"].sum()),
        case.seconds.get(text, 0.0),
        text not in case.unfinished and text not in case.failures,
        case.failures.get(text),
    )


def cost_figures(case: Case) -> Cost:
    """What the attacks and the search for the smallest perturbation cost, together."""
    trials = case.evidence.searches()
    forwards, backwards, queries = (
        sum(int(trial.rows[what].sum()) for trial in trials)
        for what in ("forwards", "backwards", "queries")
    )
    return Cost(forwards, backwards, queries, case.judged, sum(case.seconds.values()))


def columns_of(curve: Curve) -> dict[str, Any]:
    """A curve as tuples; a long one is thinned to points that it passes through."""
    keep = np.arange(len(curve.x))
    if len(keep) > _POINTS:
        keep = np.unique(np.linspace(0, len(keep) - 1, _POINTS).round().astype(int))
    columns = {name: tuple(getattr(curve, name)[keep].tolist()) for name in _AXES}
    return {**columns, "count": curve.count}


_AXES = ("x", "value", "low", "high")


def steps_figures(evidence: Evidence) -> tuple[AttackCurve, ...]:
    """Accuracy against steps, for every attack that takes more than one on the model itself.

    None without a budget: there the first success may be one of any size.
    """
    if evidence.eps is None:
        return ()
    curves = []
    for trial in evidence.trials:
        # The steps of what asks are no unit: queries are. On a substitute they tell nothing here.
        if trial.one_step or trial.steps is None or trial.access != "gradient":
            continue
        curve = against_steps(evidence, trial)
        if curve is not None and len(curve.x) > 1:
            curves.append(AttackCurve(trial.text, **columns_of(curve)))
    return tuple(curves)


def queries_figures(evidence: Evidence) -> tuple[AttackCurve, ...]:
    """Accuracy against queries, of every attack that only asks."""
    if evidence.eps is None:
        return ()
    curves = []
    for trial in evidence.trials:
        asks = trial.access in ("score", "decision")
        curve = against_queries(evidence, trial) if asks else None
        if curve is not None and len(curve.x) > 1:
            curves.append(AttackCurve(trial.text, **columns_of(curve)))
    return tuple(curves)


def budget_figures(evidence: Evidence) -> BudgetCurve | None:
    """Accuracy against the budget, from the smallest changes that were found."""
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
    """Accuracy against the budget under each attack alone, where all look for the smallest change.

    Of the same samples as the curve of all of them; none where there is only one attack.
    """
    if evidence.eps is not None or len(evidence.trials) < 2:
        return ()
    curves = [(trial, against_budget(evidence, [trial])) for trial in evidence.trials]
    return tuple(
        AttackCurve(t.text, **columns_of(curve)) for t, curve in curves if curve is not None
    )


def gallery(evidence: Evidence) -> tuple[Picture, ...]:
    """Which broken samples to show: class after class, by a hash of the id, never by hand.

    The image is that of the strongest attack that broke the sample. Without a budget, the samples
    are those whose smallest perturbation is nearest to the median.
    """
    if evidence.eps is None and not evidence.chained:
        return _gallery_at_median(evidence)
    clean = {record["sample"]: record for record in evidence.clean.records()}
    chosen: dict[int, tuple[Trial, int]] = {}
    for trial in sorted(evidence.trials, key=evidence.accuracy):
        for row in np.flatnonzero(evidence.broken(trial)).tolist():
            sample = int(trial.rows["sample"][row])
            if sample in clean:
                chosen.setdefault(sample, (trial, row))
    ranked = sorted(chosen, key=lambda s: hashlib.sha256(str(s).encode()).digest())
    turns: dict[int, int] = {}
    turned: list[tuple[int, int, int]] = []
    for sample in ranked:
        label = int(clean[sample]["label"])
        turns[label] = turns.get(label, 0) + 1
        turned.append((turns[label], len(turned), sample))
    return tuple(
        _picture(evidence.norm, clean[sample], *chosen[sample])
        for _, _, sample in sorted(turned)[:_PICTURES]
    )


def _gallery_at_median(evidence: Evidence) -> tuple[Picture, ...]:
    """The broken samples whose smallest change is nearest to their median, from small to large."""
    best = smallest(evidence)
    best = best.where(best["row"] >= 0)
    if not best.count:
        return ()
    ends = best["distance"]
    near = np.argsort(np.abs(ends - quantile(ends)), kind="stable")[:_PICTURES]
    clean = {record["sample"]: record for record in evidence.clean.records()}
    by_text = {trial.text: trial for trial in evidence.trials}
    shown = []
    for place in sorted(near.tolist(), key=lambda place: float(ends[place])):
        sample, trial = int(best["sample"][place]), by_text[str(best["attack"][place])]
        row = int(np.flatnonzero(trial.rows["sample"] == sample)[0])
        shown.append(_picture(evidence.norm, clean[sample], trial, row))
    return tuple(shown)


def _known(value: float) -> float | None:
    """A figure, or None where the model does not tell it."""
    return None if np.isnan(value) else float(value)


def _picture(norm: str, seen: dict[str, Any], trial: Trial, row: int) -> Picture:
    """What the gallery says about a sample, and where its two images are."""
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
