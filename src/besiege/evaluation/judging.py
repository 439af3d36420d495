"""Judge: query the original victim again with exactly the stored images, and trust no claim."""

from __future__ import annotations

import math

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
from besiege.evaluation.verdicts import Certainty, Claims, CleanPredictions, Rejection, Verdicts
from besiege.models.black_box import afresh, black_box

AGAIN = 16
"""Number of clean images with which a deterministic victim is queried repeatedly."""

PASSES = 5
"""Number of queries with them before any attack."""

DRAWS = 10
"""Number of queries of a stochastic victim per image."""


def predict_clean(
    victim: Victim, samples: Samples, *, seed: int = 0, draws: int = DRAWS
) -> CleanPredictions:
    """Classify clean images before any attack."""
    with victim.held(), full_precision(victim.device):
        samples = samples.to(victim.device)
        many = draws if victim.stochastic else 1
        scores = _ask(victim, samples.images, samples.ids, seed, "clean", many)
        samples.check_classes(_classes(victim, scores))
        findings = answers(victim, scores[0])
        right = criterion.correct(scores.argmax(2), samples.labels)
        share = right.double().mean(0)
        certainty, prediction = answered(victim, scores, samples.labels)
        correct = criterion.mostly_correct(share)
        again = 1 if victim.stochastic or victim.metered else PASSES - 1
        findings += _health(victim, samples, scores, correct, again)
        few = samples.at(torch.arange(min(AGAIN, len(samples)), device=samples.ids.device))
        findings += optimising(victim, few, seed)
        times = again + 1 if not victim.stochastic else 1
        asked = many * len(samples) + times * len(few)
        return CleanPredictions(
            prediction,
            certainty,
            share,
            bits(right),
            correct,
            Rejection.of(victim, scores),
            _class_logits(victim, scores),
            _classes(victim, scores),
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
    """Judge crafted images.

    Parameters
    ----------
    victim : Victim
        The original victim, never a twin.
    crafted, samples, threat
        The crafted images, the clean samples, and the threat.
    seed, draws
        Seed and number of the draws of a stochastic victim; the attack saw other draws.
    """
    with victim.held(), full_precision(victim.device):
        samples = samples.toward(threat.target).to(victim.device)
        images = crafted.images
        goal = ball(threat.norm, samples.images, threat.radius, victim.box, victim.grid)
        valid = goal.boxed(images)
        # Invalid images are replaced by the clean ones, so that the victim never gets them.
        shown = pick(valid, images, samples.images)
        many = draws if victim.stochastic else 1
        scores = _ask(victim, shown, samples.ids, seed, "judge", many)
        clean = _ask(victim, samples.images, samples.ids, seed, "clean", many)
        classes = _classes(victim, scores)
        aimed = _targets(threat.goal, samples, crafted, classes)
        within = goal.inside(shown)
        once = _wins(scores, samples, aimed, classes)
        again = _confirm(victim, shown, scores, once[0] & valid & within)
        wins = _wins(scores, samples, aimed, classes)
        findings = [_unstable(victim)] if bool((once & ~wins).any()) else []
        share = wins.double().mean(0)
        certainty, prediction = answered(victim, scores, samples.labels)
        reached = criterion.mostly_reached(share)
        right = criterion.correct(clean.argmax(2), samples.labels)
        correct = criterion.mostly_correct(right.double().mean(0))
        sizes = {
            norm: ball(norm, samples.images, torch.inf, victim.box, victim.grid).distance(shown)
            for norm in Norm
        }
        success = valid & within & reached
        findings += [f for f in _health(victim, samples, clean, correct) if f not in findings]
        if not victim.stochastic:
            findings += _reproduced(crafted, success)
        return Verdicts(
            valid,
            {norm: distance.where(valid, torch.inf) for norm, distance in sizes.items()},
            within,
            prediction,
            certainty,
            reached,
            share,
            bits(wins),
            success,
            correct,
            Rejection.of(victim, scores),
            rank_of(victim, scores, aimed),
            2 * many * len(samples)
            + (0 if victim.stochastic else min(AGAIN, len(samples)))
            + again,
            tuple(findings),
        )


def answered(victim: Victim, scores: Tensor, labels: Tensor) -> tuple[Certainty, Tensor]:
    """The probabilities and the predicted class, from ``[draws, rows, columns]``."""
    scores = scores[:, :, : _classes(victim, scores)]
    prediction = torch.softmax(scores.double(), 2).mean(0).argmax(1)
    if len(scores) == 1:
        prediction = scores[0].argmax(1)
    certainty = Certainty.of(scores, labels)
    if victim.access is Access.DECISION:  # its scores only encode the label
        certainty = Certainty(*(torch.full_like(part, torch.nan) for part in certainty))
    return certainty, prediction


def rank_of(victim: Victim, scores: Tensor, targets: Tensor | None) -> Tensor | None:
    """The place of each target by ``[draws, rows, columns]``; of equal scores the first leads."""
    if targets is None or victim.access is Access.DECISION:  # its scores only encode the label
        return None
    scores = scores[:, :, : _classes(victim, scores)]
    every = scores[0] if len(scores) == 1 else torch.softmax(scores.double(), 2).mean(0)
    own = every.gather(1, targets[:, None])
    before = torch.arange(every.shape[1], device=every.device) < targets[:, None]
    return 1 + ((every > own) | ((every == own) & before)).sum(1)


def _classes(victim: Victim, scores: Tensor) -> int:
    """The number of classes: all columns of ``[draws, rows, columns]`` but that of rejection."""
    return scores.shape[2] - victim.rejects


def _class_logits(victim: Victim, scores: Tensor) -> Tensor | None:
    """The logits ``[rows, classes]`` that stand for all draws of ``[draws, rows, columns]``."""
    if victim.access is Access.DECISION:
        return None
    scores = scores[:, :, : _classes(victim, scores)]
    if len(scores) == 1:
        return scores[0]
    every = torch.log_softmax(scores.double(), 2)
    return (every.logsumexp(0) - math.log(len(every))).float()


def _health(
    victim: Victim, samples: Samples, clean: Tensor, correct: Tensor, again: int = 1
) -> list[Finding]:
    """Findings about a victim that is not deterministic, or no better than guessing."""
    findings = []
    if not victim.stochastic:
        once, few = clean[0, :AGAIN], samples.images[:AGAIN]
        with afresh(victim):  # a ledger always repeats its answers
            if any(_strays(victim, once, few) for _ in range(again)):
                findings.append(_unstable(victim))
    return [*findings, *rules.chance(int(correct.sum()), len(samples), _classes(victim, clean))]


def _strays(victim: Victim, once: Tensor, images: Tensor) -> bool:
    """Whether a victim that should be deterministic now gives other answers than `once`."""
    now = Oracle(victim).logits(images)
    if not differ(once, now):
        return False
    if black_box(victim) is None or bool((once.argmax(1) != now.argmax(1)).any()):
        return True
    # Cached answers came from other batches; ask twice before calling a model stochastic.
    return differ(now, Oracle(victim).logits(images))


def _confirm(victim: Victim, shown: Tensor, scores: Tensor, success: Tensor) -> int:
    """Query the victim again about successes that a ledger answered; the number of queries.

    The new answers replace those of the ledger in `scores`.
    """
    inner = black_box(victim)
    rows = success.nonzero()[:, 0]
    if inner is None or victim.stochastic or not inner.recalls or not len(rows):
        return 0
    with afresh(victim):
        scores[0, rows] = Oracle(victim).logits(shown[rows])
    return len(rows)


def _unstable(victim: Victim) -> Finding:
    """The finding that a victim is not deterministic; its ledger is not used from then on."""
    inner = black_box(victim)
    if inner is None:
        return rules.stochastic()
    if inner.ledger is not None:
        inner.ledger.distrust()
    return rules.stochastic(
        "Declare it with stochastic=True; answers from a ledger are not used again."
    )


def _wins(scores: Tensor, samples: Samples, aimed: Tensor | None, classes: int) -> Tensor:
    """In which draws the image is accepted and the goal reached, ``[draws, rows]``."""
    labels = scores.argmax(2)
    return criterion.reached(labels, samples.labels, aimed) & criterion.accepted(labels, classes)


def bits(draws: Tensor) -> Tensor:
    """Boolean draws ``[draws, rows]`` as one integer per row.

    Bit k is draw k of the first 62. The bit above them is always set: it marks a row that has
    draws.
    """
    draws = draws[:62].long()
    places = torch.arange(len(draws), device=draws.device)[:, None]
    return (draws << places).sum(0) + (1 << len(draws))


def differ(once: Tensor, again: Tensor) -> bool:
    """Whether two answers to the same images differ by more than rounding, or in the class.

    A class with the score minus infinity must have it both times.
    """
    ruled_out = torch.isinf(once) & torch.isinf(again)
    change = (once - again).masked_fill(ruled_out, 0.0)
    size = once.masked_fill(torch.isinf(once), 0.0).norm(dim=1)
    other = bool((once.argmax(1) != again.argmax(1)).any())
    return other or not bool((change.norm(dim=1) <= 1e-4 * size).all())


def _reproduced(crafted: Crafted | Claims, success: Tensor) -> list[Finding]:
    """Findings about claimed successes that are none."""
    lost = int((crafted.success & ~success).sum())
    return [*rules.reproduced(lost, int(crafted.success.sum()), "the attack")]


def _targets(
    goal: Goal, samples: Samples, crafted: Crafted | Claims, classes: int
) -> Tensor | None:
    """The targets, computed from the samples where the goal allows it."""
    if goal is Goal.UNTARGETED:
        return None
    if goal is Goal.GIVEN:
        return samples.targets
    if goal is Goal.RANDOM:
        return random_targets(samples.ids, samples.labels, classes)
    return crafted.targets  # they follow from clean scores, which are random for stochastic victims


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
