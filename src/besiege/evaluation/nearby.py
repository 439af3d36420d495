"""Checks that scores near the images are finite, continuous, and not flat."""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.examination import Check
from besiege.core.threat import Access
from besiege.evaluation.subject import HALF, Subject

NAME = "scores near the images are finite and vary"
POINTS = 8
"""Images on the segment from an image to a corner of the ball."""
SHARE = 0.25
"""Share of the images that must show a fault."""
TINY = 1 / 256
"""Length of the shortest move, in units of the budget."""
JUMP = 0.5
"""Which share of what a quarter of the budget changes the shortest move may change."""
LOST = 1e-3
"""Rounding of the largest logit beside the spread of the logits."""
SATURATED = 1e-6
"""How close to 1 a probability is if float32 loses the others."""
LEANING = 0.02
"""Which share of the largest change between neighbours the median change is on stairs."""
_ADVICE = "Return the logits of the last layer, without "


def not_finite(subject: Subject, clean: Tensor, seed: int) -> Check | None:
    """A check that failed if answers to perturbed images are not finite; None if all are."""
    count = len(subject)
    own = torch.arange(count, device=subject.images.device)
    dice = Dice.throw(seed, own).of("nearby")
    inside, shell = subject.ball.sample(dice.of("inside")), subject.ball.shell(dice.of("shell"))
    grids = [subject.on_grid(point) for point in (inside, shell)]
    kinds = {
        "off the grid of the images": torch.cat([inside, shell]),
        "on the grid of the images": torch.cat(grids),
    }
    if not _is_finite(clean).all():
        return None  # the clean images have no answers either, which is another error
    bad = {}
    for kind, images in kinds.items():
        finite = _finite(subject, images, own.repeat(len(images) // count))
        bad[kind] = int((~finite).sum())
    if not any(bad.values()):
        return None
    where = " and ".join(kind for kind, number in bad.items() if number)
    return _undefined(sum(bad.values()), sum(map(len, kinds.values())), where)


def _undefined(bad: int, total: int, where: str) -> Check:
    return _failed(
        f"{bad} of {total} answers are not finite",
        f"the model answers the images, but NaN, infinity or an error to perturbed ones ({where}).",
        "Attacks cannot use such answers. Find what overflows or is undefined there (a division, "
        "log, sqrt, a lookup of known pixel values), and repair it.",
    )


def segments(subject: Subject, seed: int) -> Tensor:
    """Points ``[rows, points, ...]`` between each image and a corner of its ball, nearest first."""
    own = torch.arange(len(subject), device=subject.images.device)
    dice = Dice.throw(seed, own).of("segments")
    end = subject.near.confine(subject.images + subject.amplitude * _inward(subject, dice))
    shares = [TINY, *((k + 1) / POINTS for k in range(POINTS))]
    points = torch.stack([subject.images + s * (end - subject.images) for s in shares], 1)
    return subject.ball.snap(points)


def flat(
    subject: Subject, clean: Tensor, points: Tensor, answers: Tensor | None, eps: float
) -> Check:
    """Whether answers move as those of a network do along segments inside the ball.

    Parameters
    ----------
    subject, clean, eps
        The victim, its answers to the images, and their precision.
    points : Tensor
        The `segments`.
    answers : Tensor or None
        Answers to the first of them, which are not asked again.
    """
    sent, of = points.flatten(0, 1), sources(points)
    known = 0 if answers is None else len(answers)
    rest = [subject.ask_all(sent[known:], of[known:])] if known < len(sent) else []
    logits = torch.cat([*([] if answers is None else [answers]), *rest])
    finite = _is_finite(logits)
    if bool(_is_finite(clean).all()) and not bool(finite.all()):
        return _undefined(int((~finite).sum()), len(finite), "off the grid of the images")
    logits = logits.view(*points.shape[:2], -1)
    # The column of rejection is on a scale of its own, and would hide that of the classes.
    clean_and_near = subject.classes(torch.cat([clean, logits.flatten(0, 1)]))
    if (found := _scale(subject, clean_and_near, eps)) is not None:
        return found
    if (found := _probabilities(subject, subject.classes(clean))) is not None:
        return found
    if subject.access is Access.DECISION:
        return Check(NAME, "passed", "labels only: finite near all images")
    if (found := _steps(subject, logits[:, 1:], points[:, 1:], eps)) is not None:
        return found
    if subject.victim.grid is None and (found := _jump(subject, clean, logits, eps)) is not None:
        return found
    return Check(NAME, "passed", f"{len(subject)} of {len(subject)} segments")


def _scale(subject: Subject, logits: Tensor, eps: float) -> Check | None:
    """Logits whose differences float32 cannot hold."""
    finite = torch.where(torch.isfinite(logits), logits, 0.0)
    largest = finite.abs().amax(1)
    spread = (finite - finite.median(1, keepdim=True).values).abs().amax(1)
    rounding = largest * torch.finfo(torch.float32).eps
    lost = (rounding > LOST * spread) & (largest > 0)
    if eps > HALF or float(lost.float().mean()) < SHARE:
        return None
    return _failed(
        f"logits about {float(largest.median()):.1g}, differences about "
        f"{float(spread.median()):.1g}",
        "the logits are so large beside their differences that float32 loses these differences.",
        _ADVICE + "the constant that is added to all of them.",
    )


def _probabilities(subject: Subject, clean: Tensor) -> Check | None:
    """Probabilities that are not declared, and so close to 1 that float32 loses the rest."""
    shares = bool(((clean >= 0) & (clean <= 1)).all())
    if not shares or not bool(((clean.sum(1) - 1).abs() < 1e-4).all()):
        return None
    full = clean.amax(1) >= 1 - SATURATED
    if subject.access is Access.DECISION or float(full.float().mean()) < SHARE:
        return None
    many, count = int(full.sum()), len(full)
    return _failed(
        f"{many} of {count} probabilities are 1",
        "the answers are probabilities, though not declared so, and saturated: the largest is 1 up "
        f"to rounding for {many} of {count} images.",
        _ADVICE + "softmax; outputs='probabilities' helps only where they are not saturated.",
    )


def _steps(subject: Subject, logits: Tensor, points: Tensor, eps: float) -> Check | None:
    """Scores that do not move at all, or only in steps, although the images do."""
    moved = (points[:, 1:] != points[:, :-1]).flatten(2).any(2)
    same = (logits[:, 1:] == logits[:, :-1]).all(2) & moved
    still = same.sum(1) == moved.sum(1)
    sizes = (logits[:, 1:] - logits[:, :-1]).nan_to_num(0.0, 0.0, 0.0).norm(dim=2)
    # Stairs may have a slight slope: most changes are tiny beside the largest.
    leaning = sizes.median(1).values < LEANING * sizes.amax(1)
    stepped = (2 * same.sum(1) >= moved.sum(1)) | leaning
    still, stepped = (one & (moved.sum(1) >= 3) for one in (still, stepped))
    coarse = eps > HALF or subject.access is not Access.GRADIENT or subject.victim.metered
    fails = still if coarse else stepped
    needed = 0.75 if coarse else SHARE
    if float(fails.float().mean()) < needed:
        return None
    many, count = int(fails.sum()), len(fails)
    if int(still.sum()) * 2 >= many:
        return _failed(
            f"{many} of {count} segments are flat",
            f"the scores do not change at all within the budget for {int(still.sum())} of {count} "
            "images: they are constant, saturated (tanh, sigmoid) or only tell the label.",
            _ADVICE + "what flattens them.",
        )
    return _failed(
        f"{many} of {count} segments are stairs",
        f"the scores move only in steps within the budget for {many} of {count} images: something "
        "is rounded.",
        "If pixels are rounded, remove that from the model and evaluate MODEL+bits(depth=3); make "
        "other rounding a besiege.defenses.Layer with a surrogate (besiege show Layer). Declare "
        "grid=... if the model can only receive such pixel values.",
    )


def _jump(subject: Subject, clean: Tensor, logits: Tensor, eps: float) -> Check | None:
    """Answers at the images themselves that are unlike those right beside them."""
    start, tiny, quarter = (
        torch.where(torch.isfinite(z), z, 0.0).double() for z in (clean, logits[:, 0], logits[:, 2])
    )
    first, rest = (tiny - start).norm(dim=1), (quarter - tiny).norm(dim=1)
    level = max(0.01, 64 * eps) * torch.maximum(start.norm(dim=1), quarter.norm(dim=1))
    jumped = (first > JUMP * rest) & (first > level)
    if float(jumped.double().mean()) < 0.5:
        return None
    return _failed(
        f"{int(jumped.sum())} of {len(jumped)} images",
        "the answers jump: images that differ by 1/256 of the budget have unlike answers. The "
        "model treats given pixel values in a special way, rounds, or adds noise that it computes "
        "from the image.",
        "Find what looks at exact pixel values (a lookup, a grid of 1/255, a hash) and remove it; "
        "declare grid=... if the model can only receive such values.",
    )


def sources(points: Tensor) -> Tensor:
    """Which image each point of the segments belongs to, ``[rows * points]``."""
    rows, count = points.shape[:2]
    return torch.arange(rows, device=points.device).repeat_interleave(count)


def _inward(subject: Subject, dice: Dice) -> Tensor:
    """Random signs; pixel values at an end of the box move into it."""
    low, high = subject.victim.box
    signs = dice.of("signs").signs(subject.images.shape[1:]).to(subject.images)
    signs = torch.where(subject.images <= low, 1.0, signs)
    return torch.where(subject.images >= high, -1.0, signs)


def _finite(subject: Subject, images: Tensor, of: Tensor) -> Tensor:
    """Which images have an answer; one on which the model raises an error has none."""
    try:
        logits = subject.ask_all(images, of)
    except VictimError:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device)
    return _is_finite(logits)


def _is_finite(logits: Tensor) -> Tensor:
    """Whether answers name a class: a logit may be minus infinity, the largest may not."""
    return torch.isfinite(logits.amax(1)) & ~logits.isnan().any(1)


def _failed(number: str, seen: str, advice: str) -> Check:
    return Check(NAME, "failed", number, seen, advice, "W47")
