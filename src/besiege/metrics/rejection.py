"""The figures of a victim that may reject images: right, wrong and rejected, and detection.

The three shares are of the images as the judge saw them, always over all images: a rejection is
neither a success of the attacker nor left out of a denominator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.defense_values import Detection, Rejections, Shares
from besiege.metrics.detection import auc_interval, roc
from besiege.metrics.evidence import Evidence, Mask, Trial
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.rows import Column, places

Codes = NDArray[np.int8]
RIGHT, REJECTED, WRONG = 0, 1, 2
"""What happened to an image, the worst last: the worst of several is the maximum."""
NAMES = np.array(["right", "rejected", "wrong", "unknown"], object)
"""The words for these codes; the last, of code -1, for images that were not judged."""
POINTS = 1000
"""Largest number of points of a ROC curve in ``figures.json``; of more, evenly spaced ones stay."""


class Answers(NamedTuple):
    """What a victim does with one image of every sample.

    ``codes`` says whether it is right, rejected or wrong; ``alone`` whether the classifier without
    its detector is right.
    """

    codes: Codes
    alone: Mask

    def worse(self, other: Answers) -> Answers:
        """The worse answer for every sample."""
        return Answers(np.maximum(self.codes, other.codes), self.alone & other.alone)


def rejection_figures(case: Case) -> Rejections | None:
    """Right, wrong and rejected for clean images and each attack; None for other victims."""
    evidence = case.evidence
    if not evidence.rejects or not evidence.count:
        return None
    clean = clean_answers(evidence)
    everyone = np.ones(evidence.count, bool)
    shown = [trial for trial in evidence.trials if not trial.guard]
    known = evidence.covered_by_all()
    return Rejections(
        None if evidence.calibration is None else evidence.calibration.nominal,
        _shares("", clean, everyone),
        tuple(
            _shares(trial.text, under(evidence, trial), covered, trial.access == "transfer")
            for trial in shown
            if (covered := evidence.covered(trial)).any()
        ),
        _shares("", _worst(evidence, evidence.trials), known) if known.any() else None,
        tuple(detection(evidence, trial) for trial in shown if trial.rows.count),
    )


def clean_answers(evidence: Evidence) -> Answers:
    """What the victim does with the clean images."""
    rows = evidence.clean
    rejected = rows["rejected"].astype(bool) & ~evidence.right
    codes = np.where(evidence.right, RIGHT, np.where(rejected, REJECTED, WRONG))
    return Answers(codes.astype(np.int8), rows["prediction"] == rows["label"])


def under(evidence: Evidence, trial: Trial) -> Answers:
    """What it does with the images of an attack; in a suite, the worst up to it.

    Samples without a valid image within the budget keep their clean image.
    """
    before = evidence.before(trial)
    return _worst(evidence, [*before, trial]) if before else _answers(evidence, trial)


def outcome_columns(evidence: Evidence) -> dict[str, Column]:
    """Columns of every sample: what becomes of it under all attacks, and of its clean image.

    ``outcome`` is 'right', 'wrong' or 'rejected', the worst over all attacks, or 'unknown' where
    not all were judged; ``rejected`` and ``suspicion`` are those of the clean image. None for
    victims that do not reject.
    """
    if not evidence.rejects or not evidence.count:
        return {}
    codes = _worst(evidence, evidence.trials).codes
    known = evidence.covered_by_all() | (codes == WRONG)
    return {
        "outcome": NAMES[np.where(known, codes, -1)],
        "rejected": evidence.clean["rejected"].astype(bool),
        "suspicion": evidence.clean["suspicion"],
    }


def detection(evidence: Evidence, trial: Trial) -> Detection:
    """How well rejection finds the classifier's own errors under an attack.

    The positives are adversarial images that the classifier misclassifies, of samples whose clean
    image it classifies correctly; the negatives are the clean images of the same samples, so that
    there are as many (DEEPSEC).
    """
    clean, rows, transfer = evidence.clean, trial.rows, trial.access == "transfer"
    where = places(clean["sample"], rows["sample"])
    alone = clean_answers(evidence).alone
    error = (rows["prediction"] != rows["label"]) & _sound(trial) & (where >= 0) & alone[where]
    count = int(error.sum())
    if not count:
        return Detection(trial.text, transfer, None, None)
    caught = Rate.of(int(rows["rejected"][error].astype(bool).sum()), count)
    attacked, before = rows["suspicion"][error], clean["suspicion"][where[error]]
    if np.isnan(attacked).any() or np.isnan(before).any():
        return Detection(trial.text, transfer, caught, None)
    curve = roc(attacked, before)
    kept = np.arange(len(curve.fpr))
    if len(kept) > POINTS:
        kept = np.unique(np.linspace(0, len(kept) - 1, POINTS).round().astype(int))
    return Detection(
        trial.text,
        transfer,
        caught,
        auc_interval(attacked, before, paired=True),
        tuple(curve.fpr[kept].tolist()),
        tuple(curve.tpr[kept].tolist()),
    )


def _answers(evidence: Evidence, trial: Trial) -> Answers:
    """What the victim does with the images of one attack, and with clean images without any."""
    before, rows = clean_answers(evidence), trial.rows
    if not rows.count:
        return before
    codes, alone = before.codes.copy(), before.alone.copy()
    same = rows["prediction"] == rows["label"]
    rejected = rows["rejected"].astype(bool)
    # The goal counts first: in half of the draws it may be reached, and the image rejected in most.
    wrong = rows["reached"].astype(bool) | (~rejected & ~same)
    found = np.where(wrong, WRONG, np.where(rejected, REJECTED, RIGHT))
    where = places(evidence.clean["sample"], rows["sample"])
    judged = _sound(trial) & (where >= 0)
    codes[where[judged]], alone[where[judged]] = found[judged], same[judged]
    return Answers(codes, alone)


def _worst(evidence: Evidence, trials: Iterable[Trial]) -> Answers:
    """The worst answer for every sample, over these attacks and the clean image."""
    worst = clean_answers(evidence)
    for trial in trials:
        worst = worst.worse(_answers(evidence, trial))
    return worst


def _sound(trial: Trial) -> Mask:
    """Which images are valid and within the budget: others are no images of this threat."""
    sound: Mask = trial.rows["valid"].astype(bool) & trial.rows["within"].astype(bool)
    return sound


def _shares(text: str, found: Answers, known: Mask, transfer: bool = False) -> Shares:
    codes, count = found.codes[known], int(known.sum())
    right, rejected, wrong = (int((codes == code).sum()) for code in (RIGHT, REJECTED, WRONG))
    return Shares(
        text,
        Rate.of(right, count),
        Rate.of(wrong, count),
        Rate.of(rejected, count),
        Rate.of(int(found.alone[known].sum()), count),
        transfer,
    )
