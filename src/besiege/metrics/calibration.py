"""Warning rule W26: the threshold above which a victim rejects images, set once on clean images."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from besiege.core.errors import Finding
from besiege.metrics.evidence import Calibrated, Evidence
from besiege.metrics.intervals import Rate
from besiege.metrics.rejection import detection

ALPHA = 0.05
"""Smallest probability of a realised share at which the threshold counts as set for it."""


def w26_calibration(evidence: Evidence) -> Iterator[Finding]:
    """Clean images are rejected as often as intended, and the threshold was set on others."""
    if not evidence.rejects or not evidence.count:
        return
    known = evidence.calibration
    if known is not None:
        yield from _realised(evidence, known)
    if known is not None and known.here:
        yield Finding(
            "W26",
            f"{known.here} of the {evidence.count} evaluated images are among those that the "
            "threshold of the detector was set on.",
            "The share of clean images that it rejects is then that of its own calibration, and "
            "says nothing about other images: evaluate images that it was not calibrated on.",
        )
    for trial in (one for one in evidence.trials if not one.guard and one.rows.count):
        area = detection(evidence, trial).auc
        if area is not None and area.reversed:
            yield Finding(
                "W26",
                f"the detector finds the misclassified images of '{trial.text}' less suspicious "
                f"than their clean images: area under the ROC curve {area.value:.2f} "
                f"[{area.low:.2f}, {area.high:.2f}], below one half.",
                "Its sign is flipped for these images, which does not mean that they are hard to "
                "detect. Its score follows something else than an attack, often low confidence: "
                "images that are misclassified with high confidence pass. Quote its detection rate "
                "of no other attack without this one.",
                "note",
            )


def _realised(evidence: Evidence, known: Calibrated) -> Iterator[Finding]:
    """A finding where the share of rejected clean images is not the intended one."""
    rejected = int(evidence.clean["rejected"].astype(bool).sum())
    rate = Rate.of(rejected, evidence.count)
    if rate.low <= known.nominal <= rate.high:
        return
    if known.images and luck(rejected, evidence.count, known) >= ALPHA:
        return
    more = rate.value > known.nominal
    yield Finding(
        "W26",
        f"the detector rejects {rate} of the {evidence.count} clean images, and its threshold was "
        f"set for {100 * known.nominal:g} %.",
        "It was set on images unlike these"
        + (", such as training images of the model. " if more else ". ")
        + "Detection rates at this threshold do not compare with others at the intended share: set "
        "the threshold again, once, on clean images of the same kind that are not evaluated.",
    )


def luck(rejected: int, count: int, known: Calibrated) -> float:
    """The probability of so unusual a share of rejected images, if all images are of one kind.

    The threshold is the score of rank r = ceil(m (1 - nominal)) of m images, so the share of all
    images above it is itself random, Beta(m - r + 1, r), and the number among `count` others is
    beta-binomial. Two-sided: twice the smaller tail.

    Examples
    --------
    >>> known = Calibrated(0.05, images=100)
    >>> luck(5, 100, known) > 0.5, luck(20, 100, known) < 0.01
    (True, True)
    """
    from scipy.special import betaln, gammaln  # slow to import, and kept figures do without

    rank = math.ceil(known.images * (1 - known.nominal) - 1e-9)
    a, b = known.images - rank + 1, rank
    k = np.arange(count + 1)
    ways = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
    mass = np.exp(ways + betaln(k + a, count - k + b) - betaln(a, b))
    tails = mass[: rejected + 1].sum(), mass[rejected:].sum()
    return float(min(1.0, 2 * min(tails)))
