"""Warning rules that are applied to single batches as well as to whole evaluations.

Craft and judge apply them to one batch, the metrics to all rows; thresholds and words are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, lgamma, log
from typing import Final

from besiege.core.errors import Finding

TITLES: Final[Mapping[str, str]] = {
    "W01": "Zero budget",
    "W02": "Monotone budget",
    "W03": "Large budget",
    "W04": "Single step",
    "W05": "More steps",
    "W06": "More restarts",
    "W07": "Loss trace",
    "W08": "Better without gradients",
    "W09": "Better from another model",
    "W10": "Better at random",
    "W11": "Vanished gradient",
    "W12": "Shattered gradient",
    "W13": "Probabilities",
    "W14": "Different answers",
    "W15": "No better than chance",
    "W16": "Outside the rules",
    "W17": "Not reproduced",
    "W18": "Lost in rounding",
    "W19": "Easier with a target",
    "W20": "Smaller in another norm",
    "W21": "Broken within the budget after all",
    "W22": "An undefended model stands",
    "W23": "Another loss breaks far more",
    "W24": "Precision",
    "W27": "Shares of other images",
    "W28": "Unusual budget",
    "W35": "More robust than accurate",
    "W36": "A record that cannot be repeated",
    "W38": "Optimises at test time",
    "W39": "Few classes",
    "W40": "No starting point",
    "W41": "Depends on the batch",
    "W42": "Small probes",
    "W43": "Code that cannot be read",
    "W44": "Not as published",
    "W45": "Wrong gradient",
    "W46": "Depends on more than the image",
    "W47": "Answers that are no answers",
    "W48": "Attacks too weak for this model",
    "W49": "Lost in transfer",
    "DAMAGED": "A record cannot be read",
    "FAILED": "An attack failed",
    "UNFINISHED": "Records are missing",
}
"""What every rule is about, as in ``docs/warnings.md``."""
FEW: Final = 20
"""With fewer samples, a share is too uncertain to warn about."""
_TAIL: Final = 0.025
"""Each side of the exact 95 % interval."""


def vanished(gone: int, samples: str) -> Iterator[Finding]:
    """W11: an attack learns nothing from a gradient that is exactly zero."""
    if gone:
        yield Finding(
            "W11",
            f"the gradient was zero or not finite for {gone} {samples}.",
            "Their robustness may be only that of the gradient: use loss=margin or loss=dlr, "
            "or give a non-differentiable layer its surrogate.",
        )


def chance(right: int, count: int, classes: int) -> Iterator[Finding]:
    """W15: a model that is no better than guessing was probably given wrongly prepared images.

    It fires where the lower end of the exact 95 % interval of the accuracy is not above chance:
    exactly where guessing would be right on so many images, or more, in 2.5 % of all cases.
    """
    guess = 1 / classes
    if count < FEW:
        return
    if right / count > guess and _at_least(right, count, guess) < _TAIL:
        return
    yield Finding(
        "W15",
        f"the model classifies only {100 * right / count:.1f} % of the clean images correctly, "
        f"hardly more than guessing would ({100 * guess:.1f} %).",
        "Check that its trained weights were loaded, mean and std (in the units of the images: "
        "0.485, not 123.7), the order of the channels, and the order of the classes.",
        "stop",
    )


def _at_least(right: int, count: int, guess: float) -> float:
    """The probability that guesses are right on so many images or more, if above the mean."""
    ways = lgamma(count + 1) - lgamma(right + 1) - lgamma(count - right + 1)
    term = exp(ways + right * log(guess) + (count - right) * log(1 - guess))
    total = 0.0
    for k in range(right, count + 1):  # terms only fall above the mean
        total += term
        term *= (count - k) / (k + 1) * guess / (1 - guess)
        if term < 1e-18 * total:
            break
    return total


def reproduced(lost: int, claimed: int, attack: str) -> Iterator[Finding]:
    """W17: a success must be reproduced when the model is queried again."""
    if lost:
        yield Finding(
            "W17",
            f"{lost} of {claimed} successes of {attack} are not reproduced when the model is "
            "queried again.",
            "They are not counted, and these samples left early: their robustness is "
            "overstated. The model is not deterministic, or the attack breaks the rules.",
            "stop",
        )
