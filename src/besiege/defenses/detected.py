"""`Detected`: a victim that rejects images whose score is above a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.cells import coarsest
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.identity import plain
from besiege.core.samples import Samples, Withheld
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.defenses.detecting import Detector, Examined, Numbers
from besiege.defenses.layers import cells_of, straight
from besiege.models.classifier import Classifier

_LARGEST = 1e38
"""Bound of the column of rejection: infinite logits would be refused."""
_STEEPEST = 1e30
"""Bound of its slope, so that gradients are finite for any spread."""


@dataclass(frozen=True)
class Calibration:
    """Where a detector rejects, as measured on clean images that it was not fitted on.

    Attributes
    ----------
    threshold : float
        Images with a score above it are rejected.
    spread : float
        The standard deviation of the clean scores: the unit of scores.
    gain : float
        The median lead of the top logit over the second on clean images: how far the column of
        rejection rises with a spread of the score.
    fpr : float, optional
        The nominal share of clean images that are rejected; none for a threshold set by hand.
    withheld : Withheld, optional
        The images it was measured on, which must not be evaluated.
    """

    threshold: float
    spread: float = 1.0
    gain: float = 1.0
    fpr: float | None = None
    withheld: Withheld | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.threshold) or not (0 < self.spread < math.inf):
            raise InputError(
                f"the threshold is {self.threshold} and the spread {self.spread}: calibrate the "
                "detector on images whose scores are finite and differ"
            )
        if not 0 < self.gain < math.inf:
            raise InputError(f"the gain is {self.gain}, but a finite number above 0 is needed")


class Detected(Victim):
    """A victim whose detector rejects suspicious images.

    It answers one column more than it has classes: the top logit plus
    ``gain (score - threshold) / spread``. This is larger than all others exactly when the score is
    above the threshold. To an attacker a rejection is as good as the right class
    (`besiege.core.refusal`), so every attack attacks detector and classifier together.

    Parameters
    ----------
    victim : Victim, nn.Module or str
        The model to guard, with its layers. It must not be stochastic.
    detector : Detector
        The kind of detector.
    calibration : Calibration
        Where it rejects.
    tensors : mapping, optional
        What `Detector.fit` learned.
    text : str, optional
        How the detector is written after the model: ``detector('FILE')``.

    Examples
    --------
    >>> from besiege.defenses import BitDepth, Calibration, Detected, Median, Squeezing
    >>> squeezing = Squeezing((BitDepth(1), Median(2)))
    >>> victim = Detected("zoo:digits-natural", squeezing, Calibration(threshold=0.5))
    >>> victim.rejects, victim.classes, victim.passes
    (True, 10, 3)
    """

    def __init__(
        self,
        victim: Victim | nn.Module | str,
        detector: Detector,
        calibration: Calibration,
        tensors: Mapping[str, Tensor] | None = None,
        text: str | None = None,
    ) -> None:
        if isinstance(victim, str):
            from besiege.defenses.defended import load

            victim = load(victim)
        inner = self.adopt(Classifier.of(victim))
        must_be_guardable(inner, detector)
        self.victim, self.detector, self.calibration = inner, detector, calibration
        self.text = str(detector) if text is None else text
        self.rejects = True
        self.passes = detector.passes * inner.passes
        squeezed = (cells_of(one, inner.box) for one in detector.layers)
        self.cells = coarsest([inner.cells, *squeezed])
        self.withheld = calibration.withheld
        self.nominal_rejections = calibration.fpr
        about = {name: getattr(calibration, name) for name in ("threshold", "spread", "gain")}
        single = {name: torch.tensor(value, dtype=torch.float32) for name, value in about.items()}
        self.numbers = Numbers({**(tensors or {}), **single}).to(inner.device)

    @cached_property
    def name(self) -> str:
        """The text that `load` reads back, if the model's name is one and the detector a file."""
        return f"{self.victim.name}+{self.text}"

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        """The victim, the detector's tensors and its networks."""
        return (self.victim, self.numbers, *self.detector.parts)

    @property
    def bare(self) -> Victim:
        """The model without detector and layers."""
        return self.victim.bare

    def examine(self, x: Tensor, dice: Dice | None = None) -> Examined:
        """Logits of the classes and scores of images."""
        if dice is None:
            dice = Dice(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        return self.detector.examine(self.victim, x, dice, self.numbers)

    def score(self, x: Tensor) -> Tensor:
        """Scores ``[rows]`` of images: higher is more suspicious."""
        return self.examine(x).score

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits ``[rows, classes + 1]``; the last column is the largest where it rejects."""
        logits, score = self.examine(x, dice)
        kept = dict(self.numbers.named_buffers())
        last = rejection(logits, score, kept["threshold"], kept["spread"], kept["gain"])
        return torch.cat([logits, last[:, None]], 1)

    def digest(self) -> str:
        """SHA-256 of the victim's digest, the kind of detector with its layers, and its tensors."""
        parts = [self.victim.digest(), str(self.detector), str(self.detector.revision)]
        parts += [layer.identity() for layer in self.detector.layers]
        inside = {id(part) for layer in self.detector.layers for part in layer.parts}
        others = [part for part in self.detector.parts if id(part) not in inside]
        parts += [Classifier.of(part).digest() for part in others]
        if not type(self.detector).__module__.startswith("besiege.defenses."):
            parts.append(plain(self.detector))  # the source of another package's detector
        return sha256("\n".join([*parts, self.numbers.digest()]).encode()).hexdigest()

    def twin(self, samples: Samples, threat: Threat, **how: Any) -> Victim | None:
        """The detector in front of an accelerated copy of the victim, if there is one."""
        if not self.detector.follows_twin:
            return None
        inner = self.victim.twin(samples, threat, **how)
        if inner is None:
            return None
        fitted = dict(self.numbers.named_buffers())
        return Detected(inner, self.detector, self.calibration, fitted, self.text)

    def __repr__(self) -> str:
        return self.name


def rejection(
    logits: Tensor, score: Tensor, threshold: Tensor, spread: Tensor, gain: Tensor
) -> Tensor:
    """The column of rejection: ``max(z) + gain (score - threshold) / spread``.

    In float32 the sum may round to the top logit or past it. The result is therefore at least the
    next number above the top logit where the score is above the threshold, and at most the next one
    below it everywhere else, so that signs are exact. Gradients are those of the sum.

    Examples
    --------
    >>> import torch
    >>> one = torch.tensor(1.0)
    >>> rejection(torch.tensor([[0.0, 2.0]]), torch.tensor([0.5]), one, one, one)
    tensor([1.5000])
    """
    top = logits.amax(1)
    # Bounded: an infinite ratio would make NaN of a score that equals the threshold.
    usual = top + (score - threshold) * (gain / spread).clamp(max=_STEEPEST)
    with torch.no_grad():
        high, low = (torch.full_like(top, bound) for bound in (torch.inf, -torch.inf))
        # An infinite threshold accepts everything, and minus infinity rejects everything.
        bounded = usual.clamp(-_LARGEST, _LARGEST)
        above = torch.maximum(bounded, torch.nextafter(top, high))
        below = torch.minimum(bounded, torch.nextafter(top, low))
        exact = torch.where(score > threshold, above, below)
        exact = torch.where(score.isnan(), score, exact)
    return straight(usual, exact)


def must_be_guardable(victim: Victim, detector: Detector) -> None:
    """Refuse a victim that a detector cannot guard."""
    if not isinstance(detector, Detector):
        raise InputError(
            f"the detector is a {type(detector).__name__}: give an object of a class that derives "
            "from besiege.defenses.Detector, such as Squeezing()"
        )
    if victim.rejects:
        raise InputError(f"'{victim.name}' rejects images already: write one detector")
    if victim.stochastic:
        raise InputError(
            f"'{victim.name}' is stochastic, and a threshold set with some draws does not hold for "
            "others: leave out the stochastic layers, or the detector"
        )
    if victim.access < Access.SCORE:
        raise InputError(
            f"'{victim.name}' returns labels only, and a detector compares scores: give a model "
            "that returns logits or probabilities"
        )
    detector.must_fit(victim)


def forced(victim: Detected, threshold: float) -> Detected:
    """The same victim with another threshold; infinite thresholds accept or reject everything."""
    calibration = replace(victim.calibration, threshold=threshold)
    fitted = dict(victim.numbers.named_buffers())
    return Detected(victim.victim, victim.detector, calibration, fitted, victim.text)
