"""The law about successes at the boundary: 13 firm."""

from __future__ import annotations

from copy import copy, deepcopy

import torch
from torch import Tensor

from besiege.core.oracle import Access
from besiege.core.samples import Samples
from besiege.models.classifier import Classifier
from besiege.testing.trial import STRONG, Trial, law, reached, shortened
from besiege.testing.victims import linear, natural

_ROWS = 16


@law(13)
def firm(trial: Trial) -> None:
    """Law 13: a smallest perturbation still succeeds when rounding changes.

    The victim is asked about each image alone, in batches of another size and in float64: such a
    search ends at the boundary, where rounding would decide. Tried on the natural digits net and,
    for gradient attacks, on a linear one whose two logits are nearly zero at the boundary.
    """
    if not trial.attack.minimal:
        return
    guided = trial.attack.access is Access.GRADIENT
    trial = trial.by(shortened(trial.attack, STRONG)) if guided else trial.brief()
    victims: list[tuple[Classifier, Samples]] = [(natural(), trial.victim(_ROWS)[1])]
    if guided:
        two = linear(classes=2)
        victims.append((two, trial.aimed(two.samples(_ROWS), 2)))
    for victim, samples in victims:
        crafted = trial.craft(victim, samples, None)
        images = crafted.images
        others = {
            "alone": torch.cat([_labels(victim, one) for one in torch.split(images, 1)]),
            "in batches of five": torch.cat(
                [_labels(victim, some) for some in torch.split(images, 5)]
            ),
            "in float64": _labels(_double(victim), images),
        }
        for how, labels in others.items():
            lost = crafted.success & ~reached(crafted, samples, labels)
            trial.demand(
                not bool(lost.any()),
                f"{int(lost.sum())} of {int(crafted.success.sum())} successes do not hold {how} "
                "(decide by answer.labels, which are beyond rounding, not by the logits)",
            )


def _labels(victim: Classifier, images: Tensor) -> Tensor:
    with victim.held(), torch.no_grad():
        return victim(images).argmax(1)


def _double(victim: Classifier) -> Classifier:
    """The same victim with a network of float64."""
    twice = copy(victim)
    twice.module = deepcopy(victim.module).double()
    return twice
