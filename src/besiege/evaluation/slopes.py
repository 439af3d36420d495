"""Measures slopes of a victim's margins, and compares them with its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.region import distances
from besiege.core.rowwise import pick
from besiege.core.threat import Linf
from besiege.evaluation.subject import HALF, Subject, margin

DIRECTIONS = 2
"""Random directions at each of the two points near an image."""
LENGTHS = (1 / 256, 1 / 32, 1 / 4)
"""Half the lengths over which slopes are measured, in units of the budget."""
COARSE = (1 / 16, 1 / 4, 1 / 2)
"""The same for float16 and bfloat16, which round shorter moves away."""
MOVES = (1 / 4, 1 / 2)
"""Lengths of moves along the gradient, in units of the budget."""
RANDOM = 2
"""Random moves of the same lengths that they are compared with."""
FINER = 1 / 32
"""How much shorter lengths are the second time, for networks that bend within the first ones."""
ASKED_AGAIN = 10
"""Images of every length that a fresh copy of the model is asked about again."""
UNDERFLOW = 1e-25
"""Gradients whose largest value is smaller are as good as zero: products with them underflow."""
NOISE = 8.0
"""Rounding of a difference of two margins, in units in the last place of the largest logit."""


@dataclass(frozen=True)
class Slopes:
    """Slopes around images.

    Attributes
    ----------
    expected, measured : Tensor
        float64 ``[images, directions, lengths]``: differences of the margin as the gradient
        predicts them and as they are.
    noise : Tensor
        float64 ``[images]``: by how much rounding may change a difference.
    vanished : Tensor
        bool ``[images, 2]``: whether the gradient is zero, or not finite, at the points.
    predicted, along : Tensor
        float64 ``[images, moves]``: by how much moves along the gradient should lower the margin,
        and by how much they do.
    aside : Tensor
        float64 ``[images, moves, RANDOM]``: by how much random moves of the same lengths do.
    queries, answers : Tensor
        Some of the images sent and the logits, to be asked again.
    of : Tensor
        Which image each query was made from.
    """

    expected: Tensor
    measured: Tensor
    noise: Tensor
    vanished: Tensor
    predicted: Tensor
    along: Tensor
    aside: Tensor
    queries: Tensor
    answers: Tensor
    of: Tensor


def measure(
    subject: Subject, clean: Tensor, eps: float, seed: int = 0, shrink: float = 1.0
) -> Slopes:
    """Measure slopes.

    Parameters
    ----------
    subject : Subject
        The victim and its images.
    clean : Tensor
        The logits of the images.
    eps : float
        The precision of the answers.
    seed : int
        Of directions and points.
    shrink : float
        By which factor lengths are shorter than usual.
    """
    images, count = subject.images, len(subject)
    own = torch.arange(count, device=images.device)
    dice = Dice.throw(seed, own).of("slopes")
    lengths, rivals = shrink * _lengths(subject, eps), subject.rivals(clean)
    reach = float(lengths[-1])
    start = _close(subject, reach, dice)
    first, height = subject.gradient(start, own, rivals)
    end = _far(subject, reach, first.nan_to_num(0.0, 0.0, 0.0), dice)
    second, _ = subject.gradient(end, own, rivals)
    gradients = torch.cat([first, second])
    steep = distances(gradients.nan_to_num(0.0, 0.0, 0.0), Linf)
    vanished = ~torch.isfinite(gradients).flatten(1).all(1) | (steep < UNDERFLOW)
    gradients = gradients.nan_to_num(0.0, 0.0, 0.0)
    pairs = [
        _pairs(subject, [start, end], gradients, float(length), rivals, dice) for length in lengths
    ]
    logits, queries, of = (torch.cat([pair[k] for pair in pairs]) for k in (2, 3, 4))
    largest = torch.stack([pair[5] for pair in pairs]).amax(0)
    return Slopes(
        torch.stack([pair[0] for pair in pairs], 2),
        torch.stack([pair[1] for pair in pairs], 2),
        NOISE * eps * largest,
        vanished.view(2, count).T,
        *_moves(subject, start, gradients[:count], height, rivals, dice),
        queries,
        logits,
        of,
    )


def _pairs(
    subject: Subject,
    points: list[Tensor],
    gradients: Tensor,
    length: float,
    rivals: Tensor,
    dice: Dice,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Differences of margins between images to either side of the points, at one length.

    Returns the differences expected and measured, ``[images, directions]``; some of the answers,
    of the images, and which images these were made from; and every image's largest logit. One
    length at a time: all images at once would need gigabytes for large ones.
    """
    images, count = subject.images, len(subject)
    which = torch.arange(2 * DIRECTIONS, device=images.device).expand(count, 2 * DIRECTIONS)
    moves = length * dice.of("directions").signs(images.shape[1:], which).to(images)
    centers = torch.stack(points, 1).repeat_interleave(DIRECTIONS, 1)
    slopes = torch.stack([gradients[:count], gradients[count:]], 1)
    slopes = slopes.repeat_interleave(DIRECTIONS, 1)
    # Ends as they are after rounding: the expected difference is that of these very images.
    ends = torch.stack([subject.ball.snap(centers + moves), subject.ball.snap(centers - moves)], 2)
    change = (ends[:, :, 0] - ends[:, :, 1]).flatten(2)
    expected = (change.double() * slopes.flatten(2)).sum(2)
    flat = ends.flatten(0, 2)
    of = torch.arange(count, device=images.device).repeat_interleave(len(flat) // count)
    logits = subject.ask_all(flat, of)
    values = margin(logits, rivals[of]).double().view(ends.shape[:3])
    largest = logits.nan_to_num(0.0, 0.0, 0.0).abs().amax(1).view(count, -1).amax(1).double()
    some = slice(0, None, max(1, len(flat) // ASKED_AGAIN))
    differences = values[..., 0] - values[..., 1]
    return expected, differences, logits[some], flat[some], of[some], largest


def _lengths(subject: Subject, eps: float) -> Tensor:
    """How far pixel values move to either side, from short to long."""
    if subject.victim.grid is not None:
        most = max(1.0, subject.amplitude / subject.victim.grid)
        steps = sorted({1, max(1, round(most / 4)), max(1, round(most / 2))})
        return torch.tensor([step * subject.victim.grid for step in steps], dtype=torch.float64)
    shares = COARSE if eps > HALF else LENGTHS
    return torch.tensor([share * subject.amplitude for share in shares], dtype=torch.float64)


def _close(subject: Subject, reach: float, dice: Dice) -> Tensor:
    """A point beside every image from which moves to both sides stay in the box.

    The images themselves are not used: on black pixels, networks without biases have their kinks
    exactly there.
    """
    inside, away = _inside(subject, reach, 1 / 8)
    noise = 2 * dice.of("close").uniform(inside.shape[1:]).to(inside) - 1
    return subject.ball.snap(inside + away * noise)


def _far(subject: Subject, reach: float, gradient: Tensor, dice: Dice) -> Tensor:
    """A point half of the budget away: at random, or downhill for every second image.

    Attacks compute gradients downhill, and a model could be honest everywhere else.
    """
    inside, away = _inside(subject, reach, 1 / 2)
    noise = 2 * dice.of("far").uniform(inside.shape[1:]).to(inside) - 1
    downhill = 0.2 * noise - 0.8 * torch.sign(gradient)  # noise, since equal pixels would tie
    odd = torch.arange(len(inside), device=inside.device) % 2 == 1
    return subject.ball.snap(inside + away * pick(odd, downhill, noise))


def _inside(subject: Subject, reach: float, share: float) -> tuple[Tensor, float]:
    """Images moved inside, so that there is room to go away and to move, and how far away.

    Inside first, then away: pixels clamped to one value would tie in max pooling.
    """
    low, high = subject.victim.box
    most = 0.2 * (high - low)
    away, reach = min(share * subject.amplitude, most), min(reach, most)
    return subject.images.clamp(low + reach + away, high - reach - away), away


def _moves(
    subject: Subject, start: Tensor, gradient: Tensor, height: Tensor, rivals: Tensor, dice: Dice
) -> tuple[Tensor, Tensor, Tensor]:
    """By how much moves should lower the margins, and do, along the gradient and at random."""
    own = torch.arange(len(subject), device=start.device)
    ends, predicted = [], []
    for number, share in enumerate(MOVES):
        near = type(subject.near)(
            start, subject.near.radius * share, subject.victim.box, subject.victim.grid
        )
        end = near.project(start + near.steepest(-gradient, start, near.radius))
        change = (end.double() - start.double()).flatten(1)
        predicted.append(-(change * gradient.double().flatten(1)).sum(1))
        ends.append(end)
        for draw in range(RANDOM):
            own_dice = dice.of("aside", draw)
            if near.norm is Linf:
                signs = own_dice.signs(start.shape[1:], number)
                ends.append(near.project(start + signs * near.scaled(near.radius)))
            else:
                ends.append(near.shell(own_dice, number))
    sent = torch.stack(ends, 1)
    of = own.repeat_interleave(sent.shape[1])
    logits = subject.ask_all(sent.flatten(0, 1), of)
    drops = height.double()[:, None] - margin(logits, rivals[of]).double().view(len(subject), -1)
    drops = drops.view(len(subject), len(MOVES), 1 + RANDOM)
    return torch.stack(predicted, 1), drops[..., 0], drops[..., 1:]


def agreement(slopes: Slopes, usable: Tensor) -> Tensor:
    """The correlation of expected and measured differences at every length, NaN where unusable.

    Images are brought to one scale, so that steep ones do not decide alone.
    """
    a, b = slopes.expected, slopes.measured
    scale = ((a.square() + b.square()).mean(1, keepdim=True) / 2).sqrt().clamp_min(1e-300)
    a, b = (torch.where(usable[:, None], v / scale, 0.0).nan_to_num(0.0) for v in (a, b))
    return _cosine(a, b)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of the angle between two tables, for every length."""
    product = (a * b).sum((0, 1))
    size = (a.square().sum((0, 1)) * b.square().sum((0, 1))).sqrt()
    return product / size


def consistency(slopes: Slopes, usable: Tensor) -> Tensor:
    """The correlation of the differences measured at neighbouring lengths."""
    b = slopes.measured
    scale = b.square().mean(1, keepdim=True).sqrt().clamp_min(1e-300)
    b = torch.where(usable[:, None], b / scale, 0.0).nan_to_num(0.0)
    return _cosine(b[..., :-1], b[..., 1:])


def usable(slopes: Slopes) -> Tensor:
    """At which lengths an image's differences are well above rounding, ``[images, lengths]``."""
    size = slopes.measured.square().mean(1).sqrt()
    finite = torch.isfinite(slopes.measured).all(1)
    return finite & (size > 10 * slopes.noise[:, None])
