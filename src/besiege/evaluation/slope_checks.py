"""Judges measured slopes: are the gradients those of the answers, and of use within the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.examination import Check
from besiege.evaluation.slopes import Slopes, agreement, consistency, usable

OF_THE_ANSWERS = "gradients match finite differences"
WITHIN_THE_BUDGET = "gradients lower the margin within the budget"
AGREE = 0.95
"""Correlation of gradients and slopes above which they are the same function's. The lowest of 60
honest models is 0.99; a gradient without a quarter of the pixels has 0.9."""
WRONG = 0.3
"""Correlation below which a gradient says nothing about the answers."""
CONSISTENT = 0.7
"""Correlation of slopes over neighbouring lengths above which there is a slope at all."""
SCALE = 2.0
"""By which factor gradients may be too long or too short."""
SHARE = 0.25
"""Share of the images that must show a fault."""
KEPT = 0.15
"""Share of the expected drop that a move of a quarter or half of the budget keeps at least; natural
networks keep 0.2 to 1, even where they bend strongly."""
ASIDE = 2.0
"""By which factor moves along the gradient lower margins more than random ones."""
RISING = 0.1
"""By how much a correlation rises to shorter lengths where a network bends within these."""
PLAIN = 3.0
"""The same where nothing but these moves can be measured."""
COARSE_AGREE = 0.6
"""The first of these for float16 and bfloat16, where only long moves can be measured."""
SURE = 3.0
"""How many standard errors a mean or a correlation is above zero if rounding did not make it."""
_LAYER = (
    "Make the step whose gradient is not its own a besiege.defenses.Layer with a surrogate "
    "(besiege show Layer)."
)


@dataclass(frozen=True)
class _Found:
    """What is wrong with gradients, in a word and in a sentence."""

    word: str
    seen: str


def slope_checks(slopes: Slopes, half: bool, past: int) -> list[Check]:
    """The two checks of the gradients.

    Parameters
    ----------
    slopes : Slopes
        What was measured.
    half : bool
        Whether the model computes in float16 or bfloat16.
    past : int
        How many layers, up to the last with a surrogate, were left out.
    """
    where = f", past {past} layer{'s' if past > 1 else ''} with a surrogate" if past else ""
    able = usable(slopes)
    enough = able.double().mean(0) >= SHARE
    gone = slopes.vanished.double().mean(1)
    moving = able.any(1) | _moves_count(slopes)
    lost = (gone > 0) & moving
    if float(lost.double().mean()) >= SHARE:
        words = (
            f"the gradient is zero, underflows or is not finite near {int(lost.sum())} of "
            f"{len(lost)} images, although the answers change there: it is vanishing."
        )
        number = f"{int(lost.sum())} of {len(lost)} images without a gradient{where}"
        return [_failed(OF_THE_ANSWERS, number, words), _unknown(WITHIN_THE_BUDGET)]
    flat = (gone > 0) & ~moving
    if float(flat.double().mean()) >= SHARE:
        return [_flat(int(flat.sum()), len(flat), where), _unmeasured(WITHIN_THE_BUDGET, where)]
    if not bool(enough.any()):
        return _unmeasurable(slopes, half, where)
    close = torch.where(enough, agreement(slopes, able), -torch.inf).nan_to_num(0.0)
    best = int(close.argmax())
    agree, total = _agreeing(slopes, able, best)
    number = f"{agree} of {total} slopes{where}"
    steady = _steadiest(slopes, able, enough)
    if steady is None and float(close[best]) < AGREE:
        return _unmeasurable(slopes, half, where)
    found = _wrong(slopes, able, close, best, half, 1.0 if steady is None else steady)
    if found is not None and found.word == "bent":
        return _unmeasurable(slopes, half, where)
    if found is not None:
        first = _failed(
            OF_THE_ANSWERS, f"{number}, correlation {float(close[best]):.2f}", found.seen
        )
        followed = found.word == "scaled"  # its direction is right
        return [first, _downhill(slopes, where) if followed else _unknown(WITHIN_THE_BUDGET)]
    return [Check(OF_THE_ANSWERS, "passed", number), _downhill(slopes, where)]


def _wrong(
    slopes: Slopes, able: Tensor, close: Tensor, best: int, half: bool, steady: float
) -> _Found | None:
    """What is wrong with gradients that are there."""
    most = float(close[best])
    against = float(close[torch.isfinite(close)].min())
    if most < WRONG and against < -0.5 and steady >= CONSISTENT:
        return _Found("reversed", "the gradient points the wrong way: it is reversed.")
    if most >= (COARSE_AGREE if half else AGREE):
        ratio = _ratio(slopes, able, best)
        if 1 / SCALE <= ratio <= SCALE or half:
            return None
        return _Found(
            "scaled",
            f"the gradient is {ratio:.2g} times what the answers change by: it is wrong in length.",
        )
    if steady < CONSISTENT:
        if half:
            return None  # rounding inside the network looks the same
        return _Found(
            "jumps",
            "the answers jump between images that are nearly the same, so that no gradient can "
            "describe them: they are rounded, in steps, or have noise computed from the image; "
            f"the gradient is wrong (correlation with the changes {most:.2f}).",
        )
    shortest = best == int(torch.isfinite(close).int().argmax())
    if shortest and best + 1 < len(close) and most - float(close[best + 1]) > RISING:
        return _Found("bent", "")
    if most < WRONG:
        return _Found(
            "wrong",
            "the gradient says nothing about how the answers change "
            f"(correlation {most:.2f}): it is wrong.",
        )
    return _Found(
        "partial",
        f"the gradient explains only a part of how the answers change (correlation {most:.2f}): "
        "it is partial, zero or wrong for some pixels or some images.",
    )


def _downhill(slopes: Slopes, where: str) -> Check:
    """Whether moves along the gradient lower margins more than random moves do."""
    drop, hoped = slopes.along.sum(0), slopes.predicted.sum(0)
    kept = (drop / hoped).nan_to_num(0.0)
    more = _more(slopes)
    place = int(more.argmax())
    number = f"margins fall {float(more[place]):.1f} times as much as at random{where}"
    if float(kept.max()) >= KEPT or float(more.max()) >= ASIDE:
        return Check(WITHIN_THE_BUDGET, "passed", number)
    return Check(
        WITHIN_THE_BUDGET,
        "failed",
        number,
        "the gradient holds only in the closest neighbourhood of an image: a move along it by a "
        "quarter or half of the budget lowers the margin no more than a random move, so it is "
        "shattered.",
        "Gradient attacks find nothing here. Make the part that oscillates a "
        "besiege.defenses.Layer with a surrogate (besiege show Layer).",
        "W12",
    )


def _unmeasurable(slopes: Slopes, half: bool, where: str) -> list[Check]:
    """The checks where slopes are lost in rounding: in float16 and bfloat16, moves may tell."""
    drops, lost = slopes.along, "slopes are lost in half precision"
    errors = drops.std(0, correction=0) / math.sqrt(len(drops) - 1)  # NaN for one image
    more = torch.where(drops.mean(0) >= SURE * errors, _more(slopes), 0.0)
    if half and float(more.max()) >= PLAIN:
        # Rounding cannot do this: it raises as many margins as it lowers.
        number = f"margins fall {float(more.max()):.1f} times as much as at random{where}"
        return [
            Check(OF_THE_ANSWERS, "passed", f"{number}; {lost}"),
            Check(WITHIN_THE_BUDGET, "passed", number),
        ]
    close = _together(slopes)
    if half and close >= COARSE_AGREE:
        # Nor this: it is independent of the gradient, and only lowers the correlation.
        downhill = _downhill(slopes, where)
        if downhill.outcome != "passed":
            downhill = _unmeasured(WITHIN_THE_BUDGET, where)
        number = f"correlation {close:.2f} over all images{where}; single {lost}"
        return [Check(OF_THE_ANSWERS, "passed", number), downhill]
    return [_unmeasured(OF_THE_ANSWERS, where), _unmeasured(WITHIN_THE_BUDGET, where)]


def _more(slopes: Slopes) -> Tensor:
    """Drops of the margins along the gradient, in units of what random moves change; ``[moves]``.

    It is 0 where random moves change nothing at all.
    """
    random = slopes.aside.abs().mean(2).sum(0)
    return (slopes.along.sum(0) / random).nan_to_num(0.0, 0.0)


def _together(slopes: Slopes) -> float:
    """The best correlation over all images; 0 where so few could have it by chance."""
    every = torch.ones_like(slopes.measured[:, 0], dtype=torch.bool)
    close = float(agreement(slopes, every).nan_to_num(0.0).max())
    return close if close * math.sqrt(slopes.measured[..., 0].numel()) >= SURE else 0.0


def _moves_count(slopes: Slopes) -> Tensor:
    """For which images random moves within the budget change the margin beyond rounding."""
    return (slopes.aside.abs().flatten(1) > 10 * slopes.noise[:, None]).any(1)


def _agreeing(slopes: Slopes, able: Tensor, length: int) -> tuple[int, int]:
    a, b = slopes.expected[..., length], slopes.measured[..., length]
    scale = ((a.square() + b.square()).mean(1, keepdim=True) / 2).sqrt()
    near = ((a - b).abs() <= 0.3 * scale) & able[:, length, None]
    return int(near.sum()), int(able[:, length].sum()) * a.shape[1]


def _ratio(slopes: Slopes, able: Tensor, length: int) -> float:
    """How long gradients are beside what they should be: the median over the images."""
    a, b = slopes.expected[..., length], slopes.measured[..., length]
    size = a.square().sum(1).sqrt() / b.square().sum(1).sqrt()
    return float(size[able[:, length]].median())


def _steadiest(slopes: Slopes, able: Tensor, enough: Tensor) -> float | None:
    """The best correlation between slopes over neighbouring lengths; None if only one is usable."""
    both = enough[:-1] & enough[1:]
    if not bool(both.any()):
        return None
    return float(torch.where(both, consistency(slopes, able).nan_to_num(0.0), -1.0).max())


def _failed(name: str, number: str, seen: str) -> Check:
    return Check(name, "failed", number, seen, _LAYER, "W45")


def _flat(flat: int, count: int, where: str) -> Check:
    return Check(
        OF_THE_ANSWERS,
        "failed",
        f"{flat} of {count} images without a gradient{where}",
        f"neither the answers nor the gradient change near {flat} of {count} images: the answers "
        "are saturated.",
        "Return the logits of the last layer, without what flattens them (softmax, sigmoid, tanh, "
        "rounding).",
        "W47",
    )


def _unknown(name: str) -> Check:
    return Check(name, "not run", seen="the gradient is wrong, so there is nothing to follow.")


def _unmeasured(name: str, where: str) -> Check:
    return Check(
        name,
        "not run",
        f"0 slopes{where}",
        "slopes cannot be measured: where the answers are straight, they change by no more than "
        "rounding.",
    )
