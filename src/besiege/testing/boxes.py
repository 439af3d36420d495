"""Laws about the box: 11 box equivariant, 12 sound queries."""

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
"""Powers of two, so that rounding stays the same."""

_REQUESTS = 2
"""Requests compared where the box has another low end: the clean check and the attack's first one.
After those, rounding may lead to other iterates."""

_OFF = 1e-5
"""By how much their images may differ, in widths of the box."""


@law(11, "scale", "offset")
def box_equivariant(trial: Trial) -> None:
    """Law 11: the box is a unit of measurement and nothing else.

    A victim ``g(y) = f((y - low) / width)`` in the box from low to low + width, with the budget
    times the width: for widths that are powers of two, images, distances, verdicts and accounts are
    bitwise the same in units of the width. In a box with another low end, the first images sent are
    the same up to rounding.
    """
    trial = trial.brief()
    plain, before = _in_box(trial, 0.0, 1.0)
    if "scale" not in trial.without:
        for width in _SCALES:
            other, _ = _in_box(trial, 0.0, width)
            trial.same(plain, other, f"between the boxes (0, 1) and (0, {width:g})")
    if "offset" not in trial.without:
        _, after = _in_box(trial, -1.0, 2.0)
        for number, (one, two) in enumerate(zip(before, after, strict=True), 1):
            trial.demand(
                one.shape == two.shape and float((one - two).abs().max()) <= _OFF,
                f"the images of request {number} differ between the boxes (0, 1) and (-1, 1)",
            )


def _in_box(trial: Trial, low: float, width: float) -> tuple[Crafted, list[Tensor]]:
    """The result in another box and the first images sent, both in units of (0, 1)."""
    victim, samples = trial.victim(_ROWS)
    boxed = Boxed(victim, low, width, _REQUESTS)
    eps, unit = trial.budgets()[-1], 1.0 if trial.norm is L0 else width
    # With a budget the final iterates are compared, which differ most easily.
    ends: dict[str, Any] = {} if eps is None else {"keep": "last", "leave": "end"}
    crafted = trial.craft(
        boxed,
        replace(samples, images=samples.images * width + low),
        None if eps is None else eps * Fraction(unit),
        **ends,
    )
    images, distance = (crafted.images - low) / width, crafted.distance / unit
    return replace(crafted, images=images, distance=distance), boxed.sent


@law(12)
def sound_queries(trial: Trial) -> None:
    """Law 12: every image that is sent is finite and in the box, for any victim.

    Every law checks this. Here the victims have gradients that are exactly zero, logits so large
    that the gradient of cross-entropy vanishes, or gradients so large that their squares overflow.
    No success is claimed where none is possible.
    """
    trial = trial.brief()
    victim, samples = trial.victim(_ROWS)
    flat = Altered(victim, lambda logits: 0.0 * logits + torch.arange(10.0, 0.0, -1.0))
    same = replace(samples, labels=torch.zeros_like(samples.labels))
    # Large budgets: dividing a length by the norm of a tiny gradient overflows first.
    for eps in (trial.size(16.0), *trial.budgets()[1:]):
        crafted = trial.craft(flat, trial.aimed(same), eps)
        trial.demand(
            not bool(crafted.success.any()), "it broke a victim that gives all images one answer"
        )
    for factor in (1e3, 1e30):
        trial.craft(scaled(victim, factor), samples, trial.budgets()[-1])
