"""Warning rules that are applied to single batches as well as to whole evaluations.

Craft and judge apply them to one batch, the metrics to all rows; thresholds and words are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import exp, lgamma, log
from typing import Final

from besiege.core.errors import Finding

TITLES: Final[Mapping[str, str]] = {
    "W01": "Other answers without a perturbation",
    "W02": "Weaker with a larger budget",
    "W03": "Survives any budget",
    "W04": "One step does better",
    "W05": "More steps still help",
    "W06": "More restarts still help",
    "W07": "Loss does not rise, or still rises",
    "W08": "Gradients mislead",
    "W09": "Another model's images do better",
    "W10": "Random points do better",
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
    "W26": "Detector not as calibrated",
    "W27": "Shares of other images",
    "W28": "Unusual budget",
    "W29": "Best at the edge of a grid",
    "W30": "A proof and an attack disagree",
    "W32": "Transfer without an attack on the model",
    "W33": "Attacks do not fit the defense",
    "W34": "One family of attacks",
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
    "W47": "Answers without information",
    "W48": "Attacks too weak for this model",
    "W49": "Lost in transfer",
    "W50": "Images made elsewhere do better",
    "W51": "Images left out",
    "DAMAGED": "A record cannot be read",
    "FAILED": "An attack failed",
    "UNFINISHED": "Records are missing",
}
"""What every rule is about, as in ``docs/warnings.md``."""
FAULTS: Final = ("W11", "W12", "W14", "W45", "W46", "W47")
"""Rules whose stop is a fault of the model: stronger attacks do not help, another model does."""
SURROGATE: Final = """\
# defended.py: what has no gradient leaves the network for a layer.
from dataclasses import dataclass
from besiege.defenses import Defended, Layer

@dataclass(frozen=True)
class Rounding(Layer):
    def transform(self, x, box, dice):  # what the model does
        return (7 * x).round() / 7
    def surrogate(self, x, box, dice):  # what gradients go through
        return x

def make():
    # Or your network, without the rounding.
    return Defended("zoo:digits-natural", Rounding())
"""
"""How a part without a gradient gets a surrogate."""
CODED: Final = ("W11", "W12", "W45", "W47")
"""Rules whose advice it is."""
FOLLOW: Final = (
    *("W01", "W02", "W03", "W04", "W05", "W06", "W07"),
    *("W17", "W20", "W21", "W23", "W24", "W48", "W50"),
)
"""Rules whose findings follow from a fault of the model."""
FEW: Final = 20
"""With fewer samples, a share is too uncertain to warn about."""
TAIL: Final = 0.025
"""Each side of the exact 95 % interval."""


def faults(findings: Iterable[Finding]) -> list[str]:
    """The rules of which findings are a fault of the model, each once.

    Examples
    --------
    >>> faults([Finding("W11", "", ""), Finding("W47", "", "", "stop"), Finding("W08", "", "")])
    ['W47']
    """
    stops = (one.id for one in findings if one.level == "stop")
    return [id for id in dict.fromkeys(stops) if id in FAULTS]


def vanished(gone: int, samples: str, saturates: bool = True) -> Iterator[Finding]:
    """W11: an attack learns nothing from a gradient that is exactly zero.

    `saturates` says whether the loss may have lost it, not the model.
    """
    if gone:
        loss = "use loss=margin or loss=dlr, or " if saturates else ""
        yield Finding(
            "W11",
            f"the gradient was zero or not finite for {gone} {samples}.",
            f"Their robustness may be only that of the gradient: {loss}give a non-differentiable "
            "layer its surrogate (besiege show Layer).",
        )


def stochastic(advice: str = "") -> Finding:
    """W14: a model whose answers to the same images differ, though it is not declared so."""
    usual = (
        "Remove the randomness, or make it a stochastic besiege.defenses.Layer (besiege show "
        "Layer) and use --suite adaptive."
    )
    return Finding(
        "W14",
        "the model gave different answers to the same images: it is stochastic (dropout, noise, "
        "batch statistics?), and not declared so.",
        f"Its figures are not repeatable, and robustness is overstated. {advice or usual}",
        "stop",
    )


def chance(right: int, count: int, classes: int) -> Iterator[Finding]:
    """W15: a model that is no better than guessing was probably given wrongly prepared images.

    It fires where the lower end of the exact 95 % interval of the accuracy is not above chance:
    exactly where guessing would be right on so many images, or more, in 2.5 % of all cases.
    """
    guess = 1 / classes
    if count < FEW:
        return
    if right / count > guess and at_least(right, count, guess) < TAIL:
        return
    yield Finding(
        "W15",
        f"the model classifies only {100 * right / count:.1f} % of the clean images correctly, "
        f"hardly more than guessing would ({100 * guess:.1f} %).",
        "Check that its trained weights were loaded, the range of the images that it takes (they "
        "are given from 0 to 1, not to 255), mean and std (in the units of the images: 0.485, not "
        "123.7), the order of the channels, and the order of the classes.",
        "stop",
    )


def at_least(right: int, count: int, guess: float) -> float:
    """The probability that guesses are right on so many images or more, if above the mean.

    It is below `TAIL` exactly where the 95 % interval of the share lies above the guess.
    """
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
