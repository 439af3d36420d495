"""Thresholds of detectors, set on clean images that they were not fitted on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import Withheld
from besiege.core.victim import Victim
from besiege.defenses.detected import Calibration, Detected
from besiege.defenses.detecting import Detector, Examined

_AT_ONCE = 200
"""Calibration images between two reports of progress."""


def threshold_at(scores: Tensor, fpr: float) -> float:
    """The threshold that rejects at most a share of clean images: ``s[ceil(n (1 - fpr)) - 1]``.

    Parameters
    ----------
    scores : Tensor
        Scores ``[n]`` of clean images.
    fpr : float
        The nominal false positive rate, such as 0.05; ``n fpr`` must be 1 or more.

    Examples
    --------
    >>> import torch
    >>> threshold_at(torch.arange(1.0, 101.0), 0.05)
    95.0
    """
    must_be_rate(fpr, len(scores))
    if not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"{int((~torch.isfinite(scores)).sum())} of {len(scores)} clean images have a score "
            "that is NaN or infinite: no threshold can be set; check the model's weights"
        )
    # As a fraction: 100 * (1 - 0.07) is not 93 in floating point.
    place = len(scores) - math.floor(len(scores) * Fraction(str(fpr))) - 1
    return float(scores.sort().values[place])


def must_be_rate(fpr: float, count: int) -> None:
    """Refuse a false positive rate outside (0, 1), or too small for a number of images."""
    if not _is_share(fpr):
        raise InputError(
            f"fpr is {fpr!r}, but the false positive rate is a share between 0 and 1, such as 0.05"
        )
    if count == 0:
        raise InputError("no images are left to calibrate the detector on: give more data")
    if count * Fraction(str(fpr)) < 1:
        raise InputError(
            f"a false positive rate of {fpr:g} is less than one of {count} calibration images: "
            f"give {math.ceil(1 / Fraction(str(fpr)))} images or more, or a larger rate"
        )


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1


def calibrate(
    victim: Victim,
    detector: Detector,
    tensors: Mapping[str, Tensor],
    images: Tensor,
    fpr: float,
    withheld: Withheld | None = None,
    tick: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The calibration of a fitted detector on held-out clean images in the victim's box.

    Parameters
    ----------
    victim : Victim
        The model to guard.
    detector : Detector
        The kind of detector.
    tensors : mapping
        What `Detector.fit` learned; empty where there is nothing to learn.
    images : Tensor
        Clean images ``[count, channels, height, width]`` that neither has seen.
    fpr : float
        The share of them that is rejected: at most, and one image fewer is less.
    withheld : Withheld, optional
        Which images these are, so that evaluations leave them out.
    tick : callable, optional
        Called with the images done and their number.

    Returns
    -------
    Calibration
        Threshold, spread and gain.

    Examples
    --------
    >>> from besiege.data import load as load_data
    >>> from besiege.defenses import BitDepth, Squeezing, calibrate, load
    >>> images = load_data("digits").images[199:]
    >>> found = calibrate(load("zoo:digits-natural"), Squeezing((BitDepth(1),)), {}, images, 0.05)
    >>> found.fpr, found.threshold > 0
    (0.05, True)
    """
    must_be_rate(fpr, len(images))
    scores, leads = [], []
    trial = Detected(victim, detector, Calibration(0.0), tensors)
    for place, part in enumerate(torch.split(images, _AT_ONCE)):
        found = examined(trial, part)
        scores.append(found.score)
        best = found.logits.topk(2, dim=1).values
        leads.append(best[:, 0] - best[:, 1])
        if tick is not None:
            tick(min((place + 1) * _AT_ONCE, len(images)), len(images))
    score, lead = torch.cat(scores), torch.cat(leads)
    threshold = threshold_at(score, fpr)
    spread = float(score.double().std(unbiased=False))
    # Scores that are all alike have no spread: any unit will do that float32 can divide by.
    spread = max(spread, 1e-6 * abs(threshold), 1e-12)
    gain = max(float(lead.double().median()), 1e-6)
    return Calibration(threshold, spread, gain, fpr, withheld)


def examined(victim: Detected, images: Tensor) -> Examined:
    """Logits and scores of images, padded, held and in full precision as in a siege."""
    plainly = _Scored(victim)
    with victim.held(), full_precision(victim.device):
        answers = Oracle(plainly).logits(images.to(victim.device))
    return Examined(answers[:, :-1], answers[:, -1])


class _Scored(Victim):
    """A detected victim whose last column is the score itself: it says nothing about rejection."""

    def __init__(self, victim: Detected) -> None:
        self.adopt(victim)
        self.inner = victim

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits, score = self.inner.examine(x, dice)
        return torch.cat([logits, score[:, None]], 1)
