"""Judge images that were crafted on one model with another: its answer to each, and to the clean
image as it gets that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from besiege.core import criterion
from besiege.core.ball import ball
from besiege.core.oracle import Oracle, full_precision
from besiege.core.rowwise import pick
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.evaluation.judging import rank_of
from besiege.evaluation.verdicts import Claims


class Elsewhere(NamedTuple):
    """The answers of another model; one row per sample.

    Attributes
    ----------
    prediction : Tensor
        The class that it predicts for the crafted image.
    correct : Tensor
        Whether it classifies the clean image correctly.
    within : Tensor
        Whether the crafted image is finite, in the box and within the budget.
    rank : Tensor, optional
        The place of the target class among all, 1 for the predicted one; None without targets.
    """

    prediction: Tensor
    correct: Tensor
    within: Tensor
    rank: Tensor | None


def judge_elsewhere(victim: Victim, crafted: Claims, samples: Samples, threat: Threat) -> Elsewhere:
    """The answers of a deterministic model to exactly the stored images of another one."""
    samples = samples.to(victim.device)
    images = crafted.images.to(victim.device)
    allowed = ball(threat.norm, samples.images, threat.radius, victim.box, victim.grid)
    valid = allowed.boxed(images)
    # Invalid images are replaced by the clean ones, so that the model never gets them.
    shown = pick(valid, images, samples.images)
    scores, clean = (answered_by(victim, part) for part in (shown, samples.images))
    targets = None if crafted.targets is None else crafted.targets.to(victim.device)
    return Elsewhere(
        scores.argmax(1),
        criterion.correct(clean.argmax(1), samples.labels),
        valid & allowed.inside(shown),
        rank_of(victim, scores[None], targets),
    )


def answered_by(victim: Victim, images: Tensor) -> Tensor:
    """The logits of images."""
    with victim.held(), full_precision(victim.device), torch.no_grad():
        return Oracle(victim).logits(images.to(victim.device))
