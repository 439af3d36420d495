"""What the judge found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.core import criterion
from besiege.core.errors import Finding
from besiege.core.threat import Norm
from besiege.core.victim import Victim


class Claims(NamedTuple):
    """The input of the judge: images, claimed successes and targets."""

    images: Tensor
    success: Tensor
    targets: Tensor | None


class Rejection(NamedTuple):
    """What a victim that may reject images does with each.

    Attributes
    ----------
    rejected : Tensor
        Whether most draws reject it; never by a victim that does not reject.
    suspicion : Tensor
        The column of rejection minus the largest of the classes, a mean over the draws; NaN for a
        victim that does not reject.
    """

    rejected: Tensor
    suspicion: Tensor

    @classmethod
    def of(cls, victim: Victim, scores: Tensor) -> Rejection:
        """From the answers ``[draws, rows, columns]``."""
        if not victim.rejects:
            none = scores.new_zeros(scores.shape[1])
            return cls(none.bool(), torch.full_like(none, torch.nan, dtype=torch.float64))
        lead = scores[:, :, -1].double() - scores[:, :, :-1].amax(2).double()
        return cls(criterion.mostly_rejected((lead > 0).double().mean(0)), lead.mean(0))


class Certainty(NamedTuple):
    """How sure a victim is of its answers: means over all draws, in float64.

    NaN for a victim that returns labels only. The column with which a victim rejects images is
    left out: its scale is arbitrary.

    Attributes
    ----------
    confidence : Tensor
        The probability of the predicted class.
    p_label : Tensor
        The probability of the true class.
    p_second : Tensor
        The second largest probability; 0 where there is a single class.
    entropy : Tensor
        The entropy of the probabilities, in natural logarithms.
    """

    confidence: Tensor
    p_label: Tensor
    p_second: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor) -> Certainty:
        """From the logits ``[draws, rows, classes]`` and the true classes of the rows."""
        odds = torch.softmax(scores.double(), 2).mean(0)
        top = odds.topk(min(2, odds.shape[1]), 1).values
        second = top[:, 1] if top.shape[1] > 1 else torch.zeros_like(top[:, 0])
        return cls(
            top[:, 0],
            odds.gather(1, labels[:, None])[:, 0],
            second,
            torch.special.entr(odds).sum(1),
        )


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of the judge; one row per sample.

    Attributes
    ----------
    valid : Tensor
        Whether the image is finite and in the box.
    distance : dict
        The size of the perturbation in every norm, float64.
    within : Tensor
        Whether it is within the threat's budget.
    prediction : Tensor
        The predicted class. Of a rejected image the class it would have had.
    certainty : Certainty
        The probabilities of the answer.
    reached : Tensor
        Whether the image is accepted and the goal reached; for a stochastic victim in at least half
        of the draws.
    share : Tensor
        The share of draws in which it is; 0 or 1 for a deterministic victim.
    draws : Tensor
        The draws in which it is, as `bits`.
    success : Tensor
        Valid, within and reached.
    correct : Tensor
        Whether the clean image is accepted and classified correctly.
    rejection : Rejection
        Whether the victim rejects the image.
    rank : Tensor, optional
        The place of the target class among all classes, 1 for the predicted one; None without
        targets, and for a victim that returns labels only. Of a stochastic victim by its mean
        probabilities.
    forwards : int
        Forward passes of the judge, which are not part of the attack's cost.
    findings : tuple of Finding
        Warnings about victim or attack.
    """

    valid: Tensor
    distance: dict[Norm, Tensor]
    within: Tensor
    prediction: Tensor
    certainty: Certainty
    reached: Tensor
    share: Tensor
    draws: Tensor
    success: Tensor
    correct: Tensor
    rejection: Rejection
    rank: Tensor | None
    forwards: int
    findings: tuple[Finding, ...]

    @property
    def robust(self) -> Tensor:
        """Classified correctly when clean, and not broken."""
        return self.correct & ~self.success


@dataclass(frozen=True)
class CleanPredictions:
    """A victim's predictions on clean images; one row per sample.

    Attributes
    ----------
    prediction : Tensor
        The predicted class, over all draws of a stochastic victim.
    certainty : Certainty
        The probabilities of the answer.
    share : Tensor
        The share of draws with a correct answer; 0 or 1 for a deterministic victim.
    draws : Tensor
        The draws with a correct answer, as `bits`.
    correct : Tensor
        Whether most draws are correct; an image that is rejected is not.
    rejection : Rejection
        Whether the victim rejects the image.
    logits : Tensor, optional
        Logits of the classes, float32 ``[rows, classes]``; None for a victim that returns labels
        only. Of a stochastic victim they are the logarithms of the mean probabilities over all
        draws. The column with which a victim rejects images is left out: its scale is arbitrary.
    classes, forwards : int
        The victim's number of classes, and the forward passes used.
    findings : tuple of Finding
        Warnings about the victim.
    """

    prediction: Tensor
    certainty: Certainty
    share: Tensor
    draws: Tensor
    correct: Tensor
    rejection: Rejection
    logits: Tensor | None
    classes: int
    forwards: int
    findings: tuple[Finding, ...]
