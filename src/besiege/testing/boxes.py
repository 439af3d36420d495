"""Laws about the box: 11 it is only a unit, 12 nothing outside of it is sent."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from besiege.core.threat import L0
from besiege.evaluation.crafting import Crafted
from besiege.testing.trial import Trial, law
from besiege.testing.victims import Altered, Boxed, scaled

_ROWS = 5
_SCALES = (2.0**8, 2.0**-6)
"""Powers of two, so that nothing is rounded otherwise."""

_REQUESTS = 2
"""Requests compared where the box begins elsewhere: the clean check and the first of the attack.
After those, rounding may lead elsewhere."""

_OFF = 1e-5
"""By how much those may differ, in widths of the box."""


@law(11, "scale", "offset")
def box_equivariant(trial: Trial) -> None:
    """Law 11: the box is a unit of measurement and nothing else.

    A victim ``g(y) = f((y - low) / width)`` in the box from low to low + width, with the budget
    times the width: for widths that are powers of two the images are the same ones in other units,
    bit for bit, and distances, verdicts and accounts too. In a box that begins elsewhere the first
    images sent are the same up to rounding.
    """
    trial = trial.brief()
    plain, before = _in_box(trial, 0.0, 1.0)
    if "scale" not in trial.without:
        for width in _SCALES:
            found, _ = _in_box(trial, 0.0, width)
            trial.same(plain, found, f"between the boxes (0, 1) and (0, {width:g})")
    if "offset" not in trial.without:
        _, after = _in_box(trial, -1.0, 2.0)
        for number, (one, other) in enumerate(zip(before, after, strict=True), 1):
            trial.demand(
                one.shape == other.shape and float((one - other).abs().max()) <= _OFF,
                f"the images of request {number} differ between the boxes (0, 1) and (-1, 1)",
            )


def _in_box(trial: Trial, low: float, width: float) -> tuple[Crafted, list[Tensor]]:
    """What comes of the trial in another box, and the first images sent, all in units of (0, 1)."""
    victim, samples = trial.victim(_ROWS)
    boxed = Boxed(victim, low, width, _REQUESTS)
    eps, unit = trial.budgets()[-1], 1.0 if trial.norm is L0 else width
    # Of what has a budget the last points, which show most.
    ends: dict[str, Any] = {} if eps is None else {"keep": "last", "leave": "end"}
    found = trial.craft(
        boxed,
        replace(samples, images=samples.images * width + low),
        None if eps is None else eps * Fraction(unit),
        **ends,
    )
    images, distance = (found.images - low) / width, found.distance / unit
    return replace(found, images=images, distance=distance), boxed.sent


@law(12)
def sound_queries(trial: Trial) -> None:
    """Law 12: every image that is sent is finite and in the box, whatever the victim.

    Tried in every law; here on victims whose gradients are exactly zero, whose logits are so large
    that those of cross-entropy vanish, and whose gradients are so large that their squares
    overflow. What cannot be broken is not said to be.
    """
    trial = trial.brief()
    victim, samples = trial.victim(_ROWS)
    flat = Altered(victim, lambda logits: 0.0 * logits + torch.arange(10.0, 0.0, -1.0))
    same = replace(samples, labels=torch.zeros_like(samples.labels))
    # Large budgets: a length over the size of what is nearly nothing overflows first.
    for eps in (trial.size(16.0), *trial.budgets()[1:]):
        found = trial.craft(flat, trial.aimed(same), eps)
        trial.demand(not bool(found.success.any()), "it broke a victim that has one answer to all")
    for factor in (1e3, 1e30):
        trial.craft(scaled(victim, factor), samples, trial.budgets()[-1])
