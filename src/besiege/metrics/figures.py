"""The figures of one evaluation, as plain values for JSON: rates, curves, costs, a gallery."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from besiege.metrics.curves import Curve, against_budget, against_queries, against_steps
from besiege.metrics.distances import NORMS, quantile, smallest
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.intervals import Rate
from besiege.metrics.rows import places

_PICTURES = 12
_POINTS = 2000
"""Points of a curve that are written down; with more, evenly chosen ones are."""


def rate(hits: int, count: int) -> dict[str, Any] | None:
    """A rate with its exact interval, None of nothing."""
    if count < 1:
        return None
    found = Rate.of(hits, count)
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "count": count,
        "hits": hits,
    }


def clean_rate(evidence: Evidence) -> dict[str, Any] | None:
    """The accuracy on clean images."""
    return rate(int(evidence.right.sum()), evidence.count)


def robust_rate(evidence: Evidence) -> dict[str, Any] | None:
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


def attack_figures(evidence: Evidence, trial: Trial) -> dict[str, Any]:
    """What one attack did and cost.

    Its accuracy is over the samples it has been judged on, those that earlier attacks of a chain
    broke included.
    """
    rows = trial.rows
    others = [evidence.broken_ids(other) for other in evidence.trials if other is not trial]
    elsewhere = np.concatenate(others) if others else np.zeros(0, np.int64)
    mine = evidence.broken_ids(trial)
    found = rows[evidence.norm][evidence.broken(trial)]
    covered = evidence.covered(trial)
    return {
        "accuracy": rate(int(evidence.left_by(trial)[covered].sum()), int(covered.sum())),
        "broken": len(mine),
        "alone": int((~np.isin(mine, elsewhere)).sum()),
        "median_distance": float(np.median(found)) if len(found) else None,
        "forwards": int(rows["forwards"].sum()),
        "backwards": int(rows["backwards"].sum()),
        "queries": int(rows["queries"].sum()),
    }


def curve_figures(curve: Curve) -> dict[str, Any]:
    """A curve as lists; a long one is thinned to points that it passes through."""
    keep = np.arange(len(curve.x))
    if len(keep) > _POINTS:
        keep = np.unique(np.linspace(0, len(keep) - 1, _POINTS).round().astype(int))
    return {
        "x": curve.x[keep].tolist(),
        "value": curve.value[keep].tolist(),
        "low": curve.low[keep].tolist(),
        "high": curve.high[keep].tolist(),
        "count": curve.count,
    }


def steps_figures(evidence: Evidence) -> list[dict[str, Any]]:
    """Accuracy against steps, for every attack that takes more than one on the model itself.

    None without a budget: there the first success may be one of any size.
    """
    curves: list[dict[str, Any]] = []
    if evidence.eps is None:
        return curves
    for trial in evidence.trials:
        # The steps of what asks are no unit: queries are. On a substitute they tell nothing here.
        if trial.one_step or trial.steps is None or trial.access != "gradient":
            continue
        curve = against_steps(evidence, trial)
        if curve is not None and len(curve.x) > 1:
            curves.append({"attack": trial.text, **curve_figures(curve)})
    return curves


def queries_figures(evidence: Evidence) -> list[dict[str, Any]]:
    """Accuracy against queries, of every attack that only asks."""
    curves: list[dict[str, Any]] = []
    if evidence.eps is None:
        return curves
    for trial in evidence.trials:
        asks = trial.access in ("score", "decision")
        curve = against_queries(evidence, trial) if asks else None
        if curve is not None and len(curve.x) > 1:
            curves.append({"attack": trial.text, **curve_figures(curve)})
    return curves


def budget_figures(evidence: Evidence) -> dict[str, Any] | None:
    """Accuracy against the budget, from the smallest changes that were found."""
    curve = against_budget(evidence)
    if curve is None or evidence.curve is None:
        return None
    ends = evidence.smallest()[1]
    middle = quantile(ends)
    searchers = [evidence.curve.text] if evidence.eps is not None else []
    searchers = searchers or [trial.text for trial in evidence.trials]
    return {
        "attack": ", ".join(searchers),
        "norm": evidence.norm,
        **curve_figures(curve),
        "median": middle if np.isfinite(middle) else None,
        "unbroken": int(np.isinf(ends).sum()),
    }


def budget_curves(evidence: Evidence) -> list[dict[str, Any]]:
    """Accuracy against the budget under each attack alone, where all look for the smallest change.

    Of the same samples as the curve of all of them; none where there is only one attack.
    """
    if evidence.eps is not None or len(evidence.trials) < 2:
        return []
    found = []
    for trial in evidence.trials:
        curve = against_budget(evidence, [trial])
        if curve is not None:
            found.append({"attack": trial.text, **curve_figures(curve)})
    return found


def gallery(evidence: Evidence, order: Sequence[Trial]) -> list[dict[str, Any]]:
    """Which broken samples to show: class after class, by a hash of the id, never by hand.

    Without a budget, those whose smallest change is nearest to the median. `order` says which
    attack's image is preferred; there it is the smallest. Each item names the records and rows of
    its two images.
    """
    if evidence.eps is None and not evidence.chained:
        return _gallery_at_median(evidence)
    clean = {record["sample"]: record for record in evidence.clean.records()}
    chosen: dict[int, dict[str, Any]] = {}
    for trial in order:
        for row in np.flatnonzero(evidence.broken(trial)).tolist():
            sample = int(trial.rows["sample"][row])
            if sample in clean:
                chosen.setdefault(sample, {"trial": trial, "row": row})
    ranked = sorted(chosen, key=lambda s: hashlib.sha256(str(s).encode()).digest())
    turns: dict[int, int] = {}
    places: list[tuple[int, int, int]] = []
    for sample in ranked:
        label = int(clean[sample]["label"])
        turns[label] = turns.get(label, 0) + 1
        places.append((turns[label], len(places), sample))
    return [
        _picture(evidence.norm, clean[sample], chosen[sample]["trial"], chosen[sample]["row"])
        for _, _, sample in sorted(places)[:_PICTURES]
    ]


def _gallery_at_median(evidence: Evidence) -> list[dict[str, Any]]:
    """The broken samples whose smallest change is nearest to their median, from small to large."""
    best = smallest(evidence)
    best = best.where(best["row"] >= 0)
    if not best.count:
        return []
    ends = best["distance"]
    near = np.argsort(np.abs(ends - quantile(ends)), kind="stable")[:_PICTURES]
    clean = {record["sample"]: record for record in evidence.clean.records()}
    by_text = {trial.text: trial for trial in evidence.trials}
    shown = []
    for place in sorted(near.tolist(), key=lambda place: float(ends[place])):
        sample, trial = int(best["sample"][place]), by_text[str(best["attack"][place])]
        row = int(np.flatnonzero(trial.rows["sample"] == sample)[0])
        shown.append(_picture(evidence.norm, clean[sample], trial, row))
    return shown


def _known(value: float) -> float | None:
    """A figure, or None where the model does not tell it."""
    return None if np.isnan(value) else float(value)


def _picture(norm: str, seen: dict[str, Any], trial: Trial, row: int) -> dict[str, Any]:
    """What the gallery says about a sample, and where its two images are."""
    rows = trial.rows
    return {
        "sample": int(seen["sample"]),
        "attack": trial.text,
        "label": int(seen["label"]),
        "clean_prediction": int(seen["prediction"]),
        "clean_confidence": _known(seen["confidence"]),
        "prediction": int(rows["prediction"][row]),
        "confidence": _known(rows["confidence"][row]),
        "distance": float(rows[norm][row]),
        "norm": norm,
        "distances": {name: float(rows[name][row]) for name in NORMS if name in rows},
        "clean": f"records/{seen['record']}",
        "clean_row": int(seen["row"]),
        "record": f"records/{rows['record'][row]}",
        "row": int(rows["row"][row]),
    }
