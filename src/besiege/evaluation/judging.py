"""Judge: a fresh forward of the original victim on exactly the stored images; nobody's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.core import criterion, rules
from besiege.core.ball import ball
from besiege.core.dice import Dice, random_targets
from besiege.core.errors import Finding
from besiege.core.oracle import Access, Oracle, full_precision
from besiege.core.rowwise import pick
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Norm, Threat
from besiege.core.victim import Victim
from besiege.evaluation.checking import answers
from besiege.evaluation.crafting import Crafted
from besiege.evaluation.probing import optimising
from besiege.models.black_box import afresh, black_box

AGAIN = 16
"""How many clean images a victim without chances is asked about twice, or more often."""

PASSES = 5
"""How often it is asked about them before anybody attacks it."""

DRAWS = 10
"""How often a stochastic victim is asked about every image."""


class Claims(NamedTuple):
    """What the judge reads of what was crafted: images, claimed successes and their targets."""

    images: Tensor
    success: Tensor
    targets: Tensor | None


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
        The class answered and its probability; NaN of a victim that answers classes alone.
    reached : Tensor
        Whether the goal is reached; for a stochastic victim by at least half of the draws.
    share : Tensor
        In how many of the draws it is; 0 or 1 for a victim without chances.
    draws : Tensor
        In which of them, as `bits`.
    success : Tensor
        Valid, within and reached.
    correct : Tensor
        Whether the clean image is classified correctly.
    forwards : int
        What judging cost; an account of its own.
    findings : tuple of Finding
        Signs that victim or attack are not what they seem.
    """

    valid: Tensor
    distance: dict[Norm, Tensor]
    within: Tensor
    prediction: Tensor
    confidence: Tensor
    reached: Tensor
    share: Tensor
    draws: Tensor
    success: Tensor
    correct: Tensor
    forwards: int
    findings: tuple[Finding, ...]

    @property
    def robust(self) -> Tensor:
        """Correct on the clean image, and no valid image broke it."""
        return self.correct & ~self.success


@dataclass(frozen=True)
class CleanPredictions:
    """How a victim sees clean images; one entry per sample.

    Attributes
    ----------
    prediction, confidence : Tensor
        The class answered and its probability, over all draws of a stochastic victim; NaN of a
        victim that answers classes alone.
    share : Tensor
        In how many of the draws the answer is right; 0 or 1 for a victim without chances.
    draws : Tensor
        In which of them, as `bits`.
    correct : Tensor
        Whether it is right in most of them.
    classes, forwards : int
        How many classes it answers with, and what looking cost.
    findings : tuple of Finding
        Signs that the victim is not what it seems.
    """

    prediction: Tensor
    confidence: Tensor
    share: Tensor
    draws: Tensor
    correct: Tensor
    classes: int
    forwards: int
    findings: tuple[Finding, ...]


def predict_clean(
    victim: Victim, samples: Samples, *, seed: int = 0, draws: int = DRAWS
) -> CleanPredictions:
    """See how a victim classifies clean images, before anybody attacks it."""
    with victim.held(), full_precision(victim.device):
        samples = samples.to(victim.device)
        many = draws if victim.stochastic else 1
        scores = _ask(victim, samples.images, samples.ids, seed, "clean", many)
        samples.check_classes(scores.shape[2])
        findings = answers(victim, scores[0])
        right = criterion.correct(scores.argmax(2), samples.labels)
        share = right.double().mean(0)
        confidence, prediction = _confidence(victim, scores)
        correct = criterion.mostly_correct(share)
        again = 1 if victim.stochastic or victim.metered else PASSES - 1
        findings += _sober(victim, samples, scores, correct, again)
        few = samples.at(torch.arange(min(AGAIN, len(samples)), device=samples.ids.device))
        findings += optimising(victim, few, seed)
        times = again + 1 if not victim.stochastic else 1
        asked = many * len(samples) + times * len(few)
        return CleanPredictions(
            prediction,
            confidence,
            share,
            bits(right),
            correct,
            scores.shape[2],
            asked,
            tuple(findings),
        )


def judge(
    victim: Victim,
    crafted: Crafted | Claims,
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
    with victim.held(), full_precision(victim.device):
        samples = samples.to(victim.device)
        images = crafted.images
        goal = ball(threat.norm, samples.images, threat.radius, victim.box, victim.grid)
        valid = goal.boxed(images)
        # What is not finite is judged as the clean image, so that the victim is never sent it.
        shown = pick(valid, images, samples.images)
        many = draws if victim.stochastic else 1
        scores = _ask(victim, shown, samples.ids, seed, "judge", many)
        clean = _ask(victim, samples.images, samples.ids, seed, "clean", many)
        aimed = _targets(threat.goal, samples, crafted, scores.shape[2])
        within = goal.inside(shown)
        once = _wins(scores, samples, aimed)
        again = _confirm(victim, shown, scores, once[0] & valid & within)
        wins = _wins(scores, samples, aimed)
        findings = [_chance(victim)] if bool((once & ~wins).any()) else []
        share = wins.double().mean(0)
        confidence, prediction = _confidence(victim, scores)
        reached = criterion.mostly_reached(share)
        right = criterion.correct(clean.argmax(2), samples.labels)
        correct = criterion.mostly_correct(right.double().mean(0))
        sizes = {
            norm: ball(norm, samples.images, torch.inf, victim.box, victim.grid).distance(shown)
            for norm in Norm
        }
        success = valid & within & reached
        findings += [f for f in _sober(victim, samples, clean, correct) if f not in findings]
        if not victim.stochastic:
            findings += _reproduced(crafted, success)
        return Verdicts(
            valid,
            {norm: distance.where(valid, torch.inf) for norm, distance in sizes.items()},
            within,
            prediction,
            confidence,
            reached,
            share,
            bits(wins),
            success,
            correct,
            2 * many * len(samples)
            + (0 if victim.stochastic else min(AGAIN, len(samples)))
            + again,
            tuple(findings),
        )


def _confidence(victim: Victim, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The class answered and its probability, from ``[draws, rows, classes]``."""
    confidence, prediction = torch.softmax(scores.double(), 2).mean(0).max(1)
    if len(scores) == 1:
        prediction = scores[0].argmax(1)
    if victim.access is Access.DECISION:  # its scores only stand for a class: they say nothing
        confidence = torch.full_like(confidence, torch.nan)
    return confidence, prediction


def _sober(
    victim: Victim, samples: Samples, clean: Tensor, correct: Tensor, again: int = 1
) -> list[Finding]:
    """Whether the victim answers the same again, and knows more than chance does."""
    findings = []
    if not victim.stochastic:
        once, few = clean[0, :AGAIN], samples.images[:AGAIN]
        with afresh(victim):  # a ledger says the same for ever
            if any(_strays(victim, once, few) for _ in range(again)):
                findings.append(_chance(victim))
    return [*findings, *rules.chance(int(correct.sum()), len(samples), clean.shape[2])]


def _strays(victim: Victim, once: Tensor, images: Tensor) -> bool:
    """Whether a victim now answers otherwise than once, by chance."""
    now = Oracle(victim).logits(images)
    if not differ(once, now):
        return False
    if black_box(victim) is None or bool((once.argmax(1) != now.argmax(1)).any()):
        return True
    # What a ledger holds was sent in other company, which may move the scores: no chance yet.
    return differ(now, Oracle(victim).logits(images))


def _confirm(victim: Victim, shown: Tensor, scores: Tensor, success: Tensor) -> int:
    """Have the victim itself answer what a ledger calls a success; how many it was asked about.

    The new answers take the place of the old ones: an attack acted on those.
    """
    inner = black_box(victim)
    rows = success.nonzero()[:, 0]
    if inner is None or victim.stochastic or not inner.recalls or not len(rows):
        return 0
    with afresh(victim):
        scores[0, rows] = Oracle(victim).logits(shown[rows])
    return len(rows)


def _chance(victim: Victim) -> Finding:
    """Say that a victim answers by chance; from then on its ledger, if it has one, is not used."""
    inner = black_box(victim)
    advice = (
        "Make it deterministic, or make the chance a stochastic besiege.defenses.Layer and use "
        "averaged(...)."
    )
    if inner is not None:
        advice = "Declare it with stochastic=True; answers from a ledger are not used again."
        if inner.ledger is not None:
            inner.ledger.distrust()
    return Finding(
        "W14",
        "the model answered the same images differently when asked again.",
        "It draws by chance (dropout, noise, batch statistics?): no figure of it is repeatable, "
        f"and robustness is overstated. {advice}",
        "error",
    )


def _wins(scores: Tensor, samples: Samples, aimed: Tensor | None) -> Tensor:
    """In which draws the goal is reached, ``[draws, rows]``."""
    return criterion.reached(scores.argmax(2), samples.labels, aimed)


def bits(draws: Tensor) -> Tensor:
    """Which draws said yes, ``[draws, rows]``, as one whole number per row.

    Bit k is draw k, of the first 62, and one bit more is set above them, so that a row that says
    something can be told from one that does not.
    """
    draws = draws[:62].long()
    places = torch.arange(len(draws), device=draws.device)[:, None]
    return (draws << places).sum(0) + (1 << len(draws))


def differ(once: Tensor, again: Tensor) -> bool:
    """Whether two answers to the same images are more than rounding apart, or name other classes.

    A class that is ruled out is minus infinity both times, or the answers differ.
    """
    ruled_out = torch.isinf(once) & torch.isinf(again)
    change = (once - again).masked_fill(ruled_out, 0.0)
    size = once.masked_fill(torch.isinf(once), 0.0).norm(dim=1)
    other = bool((once.argmax(1) != again.argmax(1)).any())
    return other or not bool((change.norm(dim=1) <= 1e-4 * size).all())


def _reproduced(crafted: Crafted | Claims, success: Tensor) -> list[Finding]:
    """Whether what the attack called a success is one."""
    lost = int((crafted.success & ~success).sum())
    return [*rules.reproduced(lost, int(crafted.success.sum()), "the attack")]


def _targets(
    goal: Goal, samples: Samples, crafted: Crafted | Claims, classes: int
) -> Tensor | None:
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
