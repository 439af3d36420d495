"""Judge: a fresh forward of the original victim on exactly the stored images; nobody's word."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.ball import ball, distances
from besiege.core.dice import Dice, random_targets
from besiege.core.oracle import Oracle, Victim
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Norm, Threat
from besiege.evaluation.crafting import Crafted

DRAWS = 10
"""How often a stochastic victim is asked about every image."""


@dataclass(frozen=True)
class Verdicts:
    """What the victim itself says of every stored image; one entry per sample.

    Attributes
    ----------
    valid : Tensor
        Finite and in the box.
    distance : dict
        The size of the change in every norm, float64.
    within : Tensor
        Whether it is within the threat's budget.
    prediction, confidence : Tensor
        The class answered and its probability.
    reached : Tensor
        Whether the goal is reached; for a stochastic victim by most of the draws.
    share : Tensor
        In how many of the draws it is; 0 or 1 for a victim without chances.
    success : Tensor
        Valid, within and reached.
    correct : Tensor
        Whether the clean image is classified correctly.
    forwards : int
        What judging cost; an account of its own.
    """

    valid: Tensor
    distance: dict[Norm, Tensor]
    within: Tensor
    prediction: Tensor
    confidence: Tensor
    reached: Tensor
    share: Tensor
    success: Tensor
    correct: Tensor
    forwards: int

    @property
    def robust(self) -> Tensor:
        """Correct on the clean image, and no valid image broke it."""
        return self.correct & ~self.success


def judge(
    victim: Victim,
    crafted: Crafted,
    samples: Samples,
    threat: Threat,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Verdicts:
    """Say what the crafted images are worth.

    Parameters
    ----------
    victim : Victim
        The original, never a twin.
    crafted, samples, threat
        What was made, from what, within what.
    seed, draws
        Of a stochastic victim's chances; they are not those the attack saw.
    """
    with victim.held(), torch.inference_mode(False), torch.no_grad():
        samples = samples.to(victim.device)
        images = crafted.images
        goal = ball(threat.norm, samples.images, threat.radius, victim.box, victim.grid)
        valid = goal.boxed(images)
        # What is not finite is judged as the clean image, so that the victim is never sent it.
        shown = torch.where(valid.view(-1, 1, 1, 1), images, samples.images)
        many = draws if victim.stochastic else 1
        scores = _ask(victim, shown, samples.ids, seed, "judge", many)
        clean = _ask(victim, samples.images, samples.ids, seed, "clean", many)
        labels = scores.argmax(2)
        aimed = _targets(threat.goal, samples, crafted, scores.shape[2])
        wins = labels != samples.labels if aimed is None else labels == aimed
        share = wins.double().mean(0)
        mean = torch.softmax(scores.double(), 2).mean(0)
        confidence, prediction = mean.max(1)
        if many == 1:
            prediction = labels[0]
        reached = share > 0.5
        within = goal.distance(shown) <= goal.radius * (1 + 1e-6)
        correct = (clean.argmax(2) == samples.labels).double().mean(0) > 0.5
        change = shown - samples.images
        return Verdicts(
            valid,
            {norm: distances(change, norm) for norm in Norm},
            within,
            prediction,
            confidence,
            reached,
            share,
            valid & within & reached,
            correct,
            2 * many * len(samples),
        )


def _targets(goal: Goal, samples: Samples, crafted: Crafted, classes: int) -> Tensor | None:
    """The classes to reach, from the samples themselves where the goal allows it."""
    if goal is Goal.UNTARGETED:
        return None
    if goal is Goal.GIVEN:
        return samples.targets
    if goal is Goal.RANDOM:
        return random_targets(samples.ids, samples.labels, classes)
    return crafted.targets  # rules on clean scores, which are drawn anew each time they are asked


def _ask(
    victim: Victim, images: Tensor, ids: Tensor, seed: int, purpose: str, draws: int
) -> Tensor:
    """Logits of every image, ``[draws, rows, classes]``."""
    oracle = Oracle(victim)
    dice = Dice.throw(seed, ids).of(purpose)
    return torch.stack(
        [
            oracle.logits(images, dice.of(draw) if victim.stochastic else None)
            for draw in range(draws)
        ]
    )
