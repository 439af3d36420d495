"""The largest gradients of margins at random points near images, batch by batch, as CLEVER needs.

Only the largest dual norm of every batch is kept, so that memory does not grow with the number of
batches or of points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core import criterion
from besiege.core.answer import Aim
from besiege.core.ball import Ball, ball
from besiege.core.blocks import together
from besiege.core.dice import Dice, random_targets
from besiege.core.errors import AccessError, InputError, ThreatError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import Samples
from besiege.core.threat import L0, Access, Goal, Threat
from besiege.core.victim import Victim

MOST_CLASSES = 10
"""The most classes with which all wrong ones are targets: each takes a backward pass a point."""


@dataclass(frozen=True)
class Sampled:
    """The largest gradients near some images.

    Attributes
    ----------
    correct : Tensor
        Which images are classified correctly; only these are sampled.
    targets : Tensor
        The target classes of every image, int64 ``[rows, k]``: all wrong ones where untargeted.
    margins : Tensor
        By how much the logit of the label exceeds those of the targets, float64 ``[rows, k]``.
    maxima : Tensor
        The largest dual norm of each margin's gradient in every batch, float64
        ``[rows, k, batches]``; 0 for images that are misclassified.
    gradients : Tensor
        Backward passes for each image, int64 ``[rows]``.
    forwards, backwards : int
        All passes, clean images included.
    """

    correct: Tensor
    targets: Tensor
    margins: Tensor
    maxima: Tensor
    gradients: Tensor
    forwards: int
    backwards: int


def check_sampling(
    victim: Victim, threat: Threat, radius: float, shape: tuple[int, ...], classes: int
) -> None:
    """Refuse a model, a threat or a radius whose gradients cannot be sampled.

    Parameters
    ----------
    victim, threat
        The model, and a threat whose norm and goal are those of the estimate.
    radius : float
        The radius of the ball around each image.
    shape : tuple of int
        The shape of one image.
    classes : int
        The number of classes.
    """
    what = f"CLEVER samples gradients, but the model '{victim.name}'"
    if victim.access < Access.GRADIENT or victim.metered:
        raise AccessError(f"{what} is a black box: it needs one with gradients")
    if victim.stochastic:
        raise AccessError(f"{what} is stochastic: its gradients have no largest one. Leave it out")
    if threat.norm is L0:
        raise ThreatError("CLEVER needs a norm with a dual one: write linf, l2 or l1")
    if threat.goal is Goal.GIVEN and threat.target is None:
        raise ThreatError("CLEVER needs a target for every image: name a class, or another goal")
    if threat.goal is Goal.UNTARGETED and classes > MOST_CLASSES:
        raise ThreatError(
            f"untargeted CLEVER is the smallest over all wrong classes, for {MOST_CLASSES} classes "
            f"at most, and there are {classes}: write for example '{threat.norm} targeted:random'"
        )
    # The longest way between two images: of one pixel value in linf, of all of them otherwise.
    low, high = victim.box
    ends = torch.zeros(1, *shape)
    widest = float(ball(threat.norm, ends, torch.inf).distance(ends + 1.0)) * (high - low)
    if not 0 < radius <= widest:
        raise InputError(
            f"the radius is {radius:g}, but in {threat.norm} the farthest images of this size are "
            f"{widest:g} apart: give a radius above 0, and up to that"
        )


def sample_gradients(
    victim: Victim,
    samples: Samples,
    threat: Threat,
    *,
    radius: float,
    batches: int,
    points: int,
    seed: int = 0,
    batch: int | None = None,
) -> Sampled:
    """Sample the gradients of margins in balls around images.

    Every batch has fresh points. They are uniform in the ball of the threat's norm and then brought
    into the box; each depends on the seed, the image and its number only, so that no other image,
    batch size or order changes a result.

    Parameters
    ----------
    victim, samples
        The model and its images.
    threat : Threat
        Norm and goal; its budget is not used.
    radius : float
        The radius of the ball.
    batches, points : int
        Batches for every image, and points in each.
    seed : int
        Seed of the points.
    batch : int, optional
        Rows per call of the model.
    """
    with victim.held(), full_precision(victim.device):
        samples = samples.toward(threat.target).to(victim.device)
        oracle = Oracle(victim, batch=batch)
        clean = oracle.logits(samples.images)
        correct = criterion.correct(clean.argmax(1), samples.labels)
        logits = oracle.fold(clean, samples.labels)
        targets = _targets(threat, samples, logits)
        own = logits.double().gather(1, samples.labels[:, None])
        margins = own - logits.double().gather(1, targets)
        rows = correct.nonzero()[:, 0]
        maxima = margins.new_zeros(*margins.shape, batches)
        maxima[rows] = _maxima(
            oracle,
            ball(threat.norm, samples.images[rows], radius, victim.box, victim.grid),
            samples.labels[rows],
            targets[rows],
            Dice.throw(seed, samples.ids[rows]).of("clever"),
            (batches, points),
        )
        each = batches * points
        # With several targets, the gradient of every logit is taken once.
        slopes = targets.shape[1] + (targets.shape[1] > 1)
        return Sampled(
            correct,
            targets,
            margins,
            maxima,
            correct.long() * (each * slopes),
            len(samples) + each * len(rows),
            each * slopes * len(rows),
        )


def _maxima(
    oracle: Oracle,
    near: Ball,
    labels: Tensor,
    targets: Tensor,
    dice: Dice,
    size: tuple[int, int],
) -> Tensor:
    """The largest dual norm in every batch, float64 ``[rows, k, batches]``."""
    batches, points = size
    rows, k = targets.shape
    found = torch.zeros(rows * batches, k, dtype=torch.float64, device=labels.device)
    count, block = rows * batches * points, together(near, 1, oracle.together)
    for begin in range(0, count, block):
        number = torch.arange(begin, min(begin + block, count), device=labels.device)
        row = number // (batches * points)
        # The number of a point within its image: others do not move it.
        own = dice.at(row).counted(number % (batches * points))
        around = near.at(row)
        norms = _norms(oracle, around, around.sample(own), labels[row], targets[row])
        place = (number // points)[:, None].expand(-1, k)
        found.scatter_reduce_(0, place, norms, "amax")
    return found.view(rows, batches, k).movedim(2, 1)


def _norms(oracle: Oracle, around: Ball, x: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The dual norms of the gradients of margins at some points, float64 ``[points, k]``."""
    if targets.shape[1] == 1:
        slope, _, _ = oracle.gradient(x, _margin, Aim(labels, targets[:, 0]))
        return around.dual(slope)[:, None]
    # One forward pass for all classes: the label first, then its rivals.
    classes = torch.cat([labels[:, None], targets], 1)
    slopes, _ = oracle.gradients(x, classes, labels=labels)
    steep = slopes[:, :1] - slopes[:, 1:]
    return around.dual(steep.flatten(0, 1)).view(targets.shape)


def _margin(logits: Tensor, aim: Aim) -> Tensor:
    """By how much the logit of the label exceeds that of the target."""
    assert aim.targets is not None, "every image has one"
    both = logits.gather(1, torch.stack([aim.labels, aim.targets], 1))
    return both[:, 0] - both[:, 1]


def _targets(threat: Threat, samples: Samples, logits: Tensor) -> Tensor:
    """The target classes of every image, ``[rows, k]``, as attacks choose them."""
    labels, classes = samples.labels, logits.shape[1]
    if threat.goal is Goal.UNTARGETED:
        after = torch.arange(1, classes, device=labels.device)
        return (labels[:, None] + after) % classes
    if threat.goal is Goal.RANDOM:
        return random_targets(samples.ids, labels, classes)[:, None]
    if threat.goal is Goal.GIVEN:
        assert samples.targets is not None, "check_sampling refuses a goal without them"
        return samples.targets[:, None]
    # In the order of `Siege.ranked`, by which attacks choose theirs.
    ranked = logits.scatter(1, labels[:, None], torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    return ranked[:, 1:2] if threat.goal is Goal.SECOND else ranked[:, -1:]
