"""Warning rules that detect overstated robustness, computed from judged rows.

``docs/warnings.md`` describes every rule by its id. A rule that compares two accuracies tolerates
half a point (Carlini et al. 2019; Croce and Hein 2020; Tramèr et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import get_args

import numpy as np

from besiege.core import rules
from besiege.core.errors import Finding, Level
from besiege.core.threat import Norm
from besiege.metrics.calibration import w26_calibration
from besiege.metrics.chance import Above, gain_above, share_above, weighed
from besiege.metrics.choices import w29_edge_of_grid, w34_one_family
from besiege.metrics.curves import against_steps
from besiege.metrics.evidence import Evidence, Mask, Trial
from besiege.metrics.intervals import Rate, count_for
from besiege.metrics.kinds import (
    w08_without_gradients,
    w22_undefended,
    w23_loss,
    w33_not_adaptive,
    w39_few_classes,
    w42_small_probes,
    w49_lost_in_transfer,
    w50_made_elsewhere,
)
from besiege.metrics.proofs import w30_contradicted
from besiege.metrics.replayed import w32_not_adaptive
from besiege.metrics.searches import w21_consistency

TOLERANCE = 0.005
MISSED = 0.01
"""The largest share of images that only one step may break."""
CONVERGED = 0.01
"""The largest share of images that twice the steps or restarts may break."""
IDLE = 0.05
"""The largest share of unbroken samples whose loss may never rise."""
Rule = Callable[[Evidence], Iterator[Finding]]


def findings(evidence: Evidence) -> list[Finding]:
    """The findings of all rules about an evaluation, the most serious first."""
    found = [finding for rule in RULES for finding in rule(evidence)]
    return sorted(found, key=lambda finding: finding.rank)


def w01_zero_budget(evidence: Evidence) -> Iterator[Finding]:
    """Accuracy at a budget of 0 must equal the clean accuracy of the same samples."""
    if evidence.curve is None:
        return
    rows = evidence.curve.rows
    right = np.isin(rows["sample"], evidence.clean["sample"][evidence.right])
    differ = int((right != rows["correct"].astype(bool)).sum())
    if differ:
        yield Finding(
            "W01",
            f"at a budget of 0, {differ} of {rows.count} samples are classified differently from "
            "the clean samples.",
            "The model gives different answers to the same image, or the search changed the "
            "model: no figure here can be trusted.",
            "stop",
        )


def w03_large_budget(evidence: Evidence) -> Iterator[Finding]:
    """A large enough budget breaks any model."""
    _, ends = evidence.smallest()
    if not len(ends):
        return
    unbroken = int(np.isinf(ends).sum())
    if unbroken:
        yield Finding(
            "W03",
            f"the search for the smallest perturbation found none of any size for {unbroken} of "
            f"{len(ends)} samples.",
            "Without a limit, a perturbation can turn any image into any other, so the attack "
            "failed. Gradients may be masked: use loss=margin, restarts, or an attack without "
            "gradients.",
        )
        return
    width = evidence.box[1] - evidence.box[0]
    large = 0.5 * width * evidence.pixels ** Norm(evidence.norm).spread
    labels = evidence.clean["label"]
    guess = float(np.bincount(labels).max() / len(labels)) if len(labels) else 0.0
    left = float((ends > large).mean())
    # A grey image has one class, unless it is rejected.
    if left > guess + TOLERANCE and not evidence.rejects:
        yield Finding(
            "W03",
            f"{100 * left:.1f} % of the samples need a perturbation above {large:.4g}, which can "
            "make any image uniformly grey.",
            "The attack failed: gradients may be masked.",
        )


def w04_single_step(evidence: Evidence) -> Iterator[Finding]:
    """An attack with many steps must not be weaker than one with a single step."""
    if evidence.chained:
        return
    # A combined attack has no number of steps, but it iterates.
    many = [trial for trial in evidence.trials if trial.iterates]
    if not many:
        return
    for one in (trial for trial in evidence.trials if trial.one_step):
        apart = {trial.text: evidence.apart(trial, one) for trial in many}
        weakest = max(apart, key=lambda text: apart[text].gain)
        missed = evidence.missed(one, many)
        signs: list[tuple[Above, str]] = [
            (
                gain_above(apart[weakest], TOLERANCE),
                f"'{one.text}' takes one step and breaks more than '{weakest}'.",
            ),
            (
                share_above(missed, evidence.count, MISSED),
                f"'{one.text}' takes one step and breaks {missed} samples that no attack with more "
                "steps breaks.",
            ),
        ]
        above, seen = max(signs, key=lambda sign: get_args(Above).index(sign[0]))
        advice = (
            "Many steps should break whatever one step breaks: gradients are likely masked, or the "
            "step size is wrong. Use restarts, another loss, or an attack without gradients."
        )
        yield from weighed(above, evidence.count, Finding("W04", seen, advice))


def w05_more_steps(evidence: Evidence) -> Iterator[Finding]:
    """Doubling the steps must not change accuracy by more than a point, nor raise it."""
    for trial in evidence.trials:
        if not trial.plain or trial.steps is None or trial.steps < 10 or trial.restarts > 1:
            continue
        if evidence.accuracy(trial) == 0:  # more steps could not break more
            continue
        yield from _late(evidence, trial, "steps", trial.steps, trial.steps // 2, "W05")
    yield from _series(evidence, "steps", "W05")


def w06_restarts(evidence: Evidence) -> Iterator[Finding]:
    """Doubling the restarts must not change accuracy by more than a point."""
    for trial in evidence.trials:
        if not trial.plain or trial.steps is None or trial.restarts < 2:
            continue
        half = trial.restarts // 2 * (trial.steps + 1) - 1
        yield from _late(evidence, trial, "restarts", trial.restarts, half, "W06")
    yield from _series(evidence, "restarts", "W06")


def _late(
    evidence: Evidence, trial: Trial, what: str, number: int, half: int, rule: str
) -> Iterator[Finding]:
    """What the second half of an attack still gained: a note where other attacks gained it, too."""
    curve = against_steps(evidence, trial)
    if curve is None:
        return
    gain = curve.at(half) - float(curve.value[-1])
    late = evidence.broken_ids(trial)[trial.rows["first_step"][evidence.broken(trial)] > half]
    hits = own = round(gain * curve.count)
    if not evidence.chained:
        others = [evidence.broken_ids(one) for one in evidence.trials if one is not trial]
        own -= int(np.isin(late, np.concatenate([*others, late[:0]])).sum())
    elif _stronger_ran(evidence, trial):  # it saw only what this one left
        own = 0
    above = share_above(own, curve.count, CONVERGED)
    stronger = above == "no"
    if stronger:
        above = share_above(hits, curve.count, CONVERGED)
    yield from weighed(
        above,
        curve.count,
        Finding(
            rule,
            f"the second half of the {number} {what} of '{trial.text}' still lowered accuracy by "
            f"{100 * gain:.1f} points.",
            *_not_converged(what, stronger),
        ),
    )


def _series(evidence: Evidence, what: str, rule: str) -> Iterator[Finding]:
    """Trials that differ in one number only: a larger one must not leave more unbroken."""
    fixed = "restarts" if what == "steps" else "steps"
    for one, other in combinations(evidence.trials, 2):
        if evidence.chained or not one.series or one.series != other.series:
            continue
        less, more = sorted((one, other), key=lambda trial: getattr(trial, what) or 0)
        same = getattr(less, what) == getattr(more, what)
        if same or getattr(less, fixed) != getattr(more, fixed):
            continue
        apart = evidence.apart(less, more)
        if apart.gain < 0:
            seen = (
                f"accuracy under '{more.text}' is {-100 * apart.gain:.1f} points higher than under "
                f"'{less.text}'."
            )
            advice = (
                f"More {what} should never weaken an attack: it returns its last image instead of "
                "its best, or its steps became too small."
            )
            above = gain_above(apart.reversed, TOLERANCE)
            yield from weighed(above, apart.judged, Finding(rule, seen, advice))
        elif getattr(more, what) <= 2 * getattr(less, what):
            seen = (
                f"accuracy under '{more.text}' is {100 * apart.gain:.1f} points lower than under "
                f"'{less.text}'."
            )
            advice = (
                f"The attack has not converged, so robustness is overstated: give it more {what}."
            )
            above = gain_above(apart, CONVERGED)
            yield from weighed(above, apart.judged, Finding(rule, seen, advice))


def w07_loss_trace(evidence: Evidence) -> Iterator[Finding]:
    """The loss of unbroken samples must have risen, and must have stopped rising."""
    for trial in evidence.trials:
        rows = trial.rows
        if not trial.plain or trial.restarts > 1 or (trial.steps or 0) < 8:
            continue
        unbroken = _unbroken(evidence, trial) & np.isfinite(rows["loss_best"])
        if int(unbroken.sum()) < rules.FEW:
            continue
        first, late, best = (rows[f"loss_{when}"][unbroken] for when in ("first", "late", "best"))
        idle = int((best <= first).sum())
        above = share_above(idle, len(best), IDLE)
        yield from weighed(
            above,
            len(best),
            Finding(
                "W07",
                f"the loss of '{trial.text}' never rose above its start for {idle} of the "
                f"{len(best)} samples it did not break.",
                "The gradient does not increase the loss there: it is masked, or steps are too "
                "large. Use smaller steps, another loss, or an attack without gradients.",
            ),
        )
        if above != "no":
            continue
        rise, gain = float((best - first).mean()), float((best - late).mean())
        if rise > 0 and gain > 0.05 * rise:
            yield Finding(
                "W07",
                f"the loss of '{trial.text}' was still rising at the end: {100 * gain / rise:.0f} "
                "% of its total increase came in the last quarter.",
                *_not_converged("steps", _stronger_ran(evidence, trial)),
            )


HOLES = 0.1
"""The largest share of a gradient that may be exactly zero."""


def _zero_share(trial: Trial) -> float:
    """The share of the first gradients that is exactly zero; 0 where records lack it."""
    if "blank" not in trial.rows:
        return 0.0
    known = trial.rows["blank"].astype(float)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else 0.0


def w11_vanished(evidence: Evidence) -> Iterator[Finding]:
    """An attack learns nothing from a gradient that is exactly zero."""
    seeing = [trial for trial in evidence.trials if trial.sees]
    left = [_unbroken(evidence, trial) for trial in seeing]
    gone = [int((rows & t.rows["vanished"]).sum()) for t, rows in zip(seeing, left, strict=True)]
    blind = [0 < lost == int(rows.sum()) for lost, rows in zip(gone, left, strict=True)]
    if blind and all(blind):
        yield Finding(
            "W11",
            "no gradient-based attack got a gradient for any of the samples it did not break.",
            "These attacks say nothing about the samples they did not break: a part of the model "
            "(rounding, argmax, detach) has no gradient. Make that part a besiege.defenses.Layer "
            "with a surrogate (besiege show Layer).",
            "stop",
        )
        return
    # A loss that cannot saturate shows that the model, not the loss, has no gradient.
    saturates = not any(
        lost and trial.losses and not any(name.startswith("cross_entropy") for name in trial.losses)
        for lost, trial in zip(gone, seeing, strict=True)
    )
    for lost, trial in zip(gone, seeing, strict=True):
        yield from rules.vanished(lost, f"samples that '{trial.text}' did not break", saturates)
    holes = {trial.text: _zero_share(trial) for trial in seeing}
    worst = max(holes, key=lambda text: holes[text], default=None)
    if worst is not None and holes[worst] > HOLES:
        yield Finding(
            "W11",
            f"{100 * holes[worst]:.0f} % of the first gradient of '{worst}' is exactly zero, on "
            "average over the samples.",
            "This is harmless where the model does not read these pixels (edges that a crop or a "
            "stride leaves out: the same in all images) or its ReLUs are off there (other pixels "
            "in each image). Then the check 'gradients match finite differences' passes (besiege "
            "examine). If it fails, give the layer without gradients a surrogate; if it did not "
            "run, add an attack that needs no gradients (square).",
        )


def w15_chance(evidence: Evidence) -> Iterator[Finding]:
    """A model no better than chance did not get the inputs that it was trained on."""
    yield from rules.chance(int(evidence.right.sum()), evidence.count, evidence.classes)


def w16_validity(evidence: Evidence) -> Iterator[Finding]:
    """An image outside the box or beyond the budget is no success."""
    for trial in _all(evidence):
        rows = trial.rows
        bad = int((rows["claimed"] & ~(rows["valid"] & rows["within"])).sum())
        if bad:
            yield Finding(
                "W16",
                f"{bad} images that '{trial.text}' claimed as successes are not finite, outside "
                "the box or beyond the budget.",
                "They are not counted. The attack is faulty: fix it before quoting its figures.",
                "stop",
            )


def w17_reproduced(evidence: Evidence) -> Iterator[Finding]:
    """A claimed success must be one when the judge queries the model again."""
    for trial in _all(evidence):
        rows = trial.rows
        claimed = int(rows["claimed"].sum())
        lost = int((rows["claimed"] & rows["valid"] & rows["within"] & ~rows["success"]).sum())
        if not rows["chance"].any():
            yield from rules.reproduced(lost, claimed, f"'{trial.text}'")


def w24_precision(evidence: Evidence) -> Iterator[Finding]:
    """The precision of the figure, and the number of images that a better one takes."""
    known = evidence.covered_by_all()
    count = int(known.sum())
    if not count or evidence.eps is None:
        return
    rate = Rate.of(int(evidence.standing()[known].sum()), count)
    half = (rate.high - rate.low) / 2
    finer = [points for points in (3, 1) if 100 * half > points * 1.05]
    if finer:
        takes = {points: count_for(rate.value, points / 100) for points in finer}
        yield Finding(
            "W24",
            f"with {count:,} images, the robust accuracy is known to ±{100 * half:.1f} points.",
            f"{_more_images(takes, count, evidence.total, evidence.withheld)} Telling models apart "
            "takes fewer images: besiege compare tests them image by image.",
            "note",
        )


def _more_images(takes: Mapping[int, int], count: int, total: int | None, withheld: int = 0) -> str:
    """How many images of the data set make a figure precise to so many points.

    `total` are those that can be evaluated: without those that are withheld.
    """
    whose = " on which no detector was calibrated" if withheld else ""
    there = [f"{n:,} for ±{points}" for points, n in takes.items() if total is None or n <= total]
    if there:
        rest = "" if len(there) == len(takes) else f"; the data set has {total:,}{whose}"
        return f"A finer figure takes about {' and '.join(there)}{rest}."
    if total is not None and count < total:
        return f"All {total:,} images of the data set{whose} give a finer figure."
    return f"These are all images of the data set{whose}."


def w27_denominators(evidence: Evidence) -> Iterator[Finding]:
    """Shares in one table must be of the same images."""
    counts = {trial.text: int(evidence.covered(trial).sum()) for trial in evidence.attacks}
    judged = {text: count for text, count in counts.items() if count}
    if len(set(judged.values())) < 2:
        return
    most, least = max(judged, key=judged.__getitem__), min(judged, key=judged.__getitem__)
    yield Finding(
        "W27",
        f"accuracy under '{most}' is of {judged[most]} samples, under '{least}' of only "
        f"{judged[least]}.",
        "Shares of other samples do not compare: run the same command again to complete them.",
    )


def w35_above_clean(evidence: Evidence) -> Iterator[Finding]:
    """An attack cannot make a model more accurate: robust accuracy is at most clean accuracy."""
    known = evidence.covered_by_all()
    if not known.any():
        return
    robust, clean = float(evidence.standing()[known].mean()), float(evidence.right.mean())
    if robust > clean:
        yield Finding(
            "W35",
            f"robust accuracy is {100 * robust:.1f} % of {int(known.sum())} samples, above the "
            f"clean accuracy, {100 * clean:.1f} % of {evidence.count}.",
            "That is impossible on the same samples: here they differ, and the two figures must "
            "not stand beside each other. Run the same command again to complete them.",
            "stop",
        )


def w28_budget(evidence: Evidence) -> Iterator[Finding]:
    """A budget far above the usual one measures something else."""
    width = evidence.box[1] - evidence.box[0]
    if evidence.eps is None or (evidence.norm == "linf" and evidence.eps >= 0.5 * width):
        return  # the threat itself warns from half the range on
    if evidence.standard is not None and evidence.eps > 2 * evidence.standard * (1 + 1e-9):
        yield Finding(
            "W28",
            f"the budget {evidence.eps:.4g} is more than twice the {evidence.standard:.4g} usual "
            "for these data.",
            "Such perturbations may be visible; compare with published figures only at the same "
            "budget.",
            "note",
        )


RULES: Sequence[Rule] = (
    w01_zero_budget,
    w03_large_budget,
    w04_single_step,
    w05_more_steps,
    w06_restarts,
    w07_loss_trace,
    w08_without_gradients,
    w11_vanished,
    w15_chance,
    w16_validity,
    w17_reproduced,
    w21_consistency,
    w22_undefended,
    w23_loss,
    w24_precision,
    w26_calibration,
    w27_denominators,
    w28_budget,
    w29_edge_of_grid,
    w30_contradicted,
    w32_not_adaptive,
    w33_not_adaptive,
    w34_one_family,
    w35_above_clean,
    w39_few_classes,
    w42_small_probes,
    w49_lost_in_transfer,
    w50_made_elsewhere,
)
RECOUNTED = frozenset({"W11", "W15", "W16", "W17"})
"""Rules that craft and judge also apply to each batch; the finding over all rows replaces those."""


def _unbroken(evidence: Evidence, trial: Trial) -> Mask:
    """Which rows of a trial were classified correctly when clean, attacked, and not broken."""
    right = np.isin(trial.rows["sample"], evidence.clean["sample"][evidence.right])
    unbroken: Mask = right & ~trial.rows["success"].astype(bool) & ~trial.spared
    return unbroken


def _stronger_ran(evidence: Evidence, trial: Trial) -> bool:
    """Whether an attack leaves clearly fewer samples than this one."""
    return any(evidence.gain(trial, other) > TOLERANCE for other in evidence.trials)


def _not_converged(what: str, stronger: bool) -> tuple[str, Level]:
    """Advice and level for an attack that has not converged: a note if a stronger one ran."""
    if stronger:
        return f"Its own figure is too high; a stronger attack ran. Give it more {what}.", "note"
    return f"It has not converged, so robustness may be overstated: give it more {what}.", "warning"


def _all(evidence: Evidence) -> list[Trial]:
    return [*evidence.trials, *([evidence.curve] if evidence.curve is not None else [])]
