"""Sigma-zero: minimize a smooth count of the differing pixel values, and reset small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.pieces import half_cosine
from besiege.attacks.planes import steering
from besiege.attacks.smallest import endless, somewhere
from besiege.attacks.weighting import EPSILON, USUAL_DECAYS, Adam, corrections
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.siege import Siege
from besiege.core.threat import L0, Linf


class Settings(NamedTuple):
    """Parameters that depend on the number of steps; see `SigmaZero`."""

    rate: float
    sigma: float
    threshold: float
    end: float

    def at(self, step: int, steps: int) -> float:
        """Adam's rate at a step."""
        return self.rate * half_cosine(1.0, self.end, step, steps)

    def count_slope(self, change: Tensor) -> Tensor:
        """The gradient of the mean of ``d^2 / (d^2 + sigma)``."""
        many = change[0].numel()
        return change * (2.0 * self.sigma / many) / (change**2 + self.sigma) ** 2


PUBLISHED = Settings(1.0, 1e-3, 0.3, 0.1)
SHORT = {150: Settings(0.8, 0.1, 0.4, 0.3), 300: Settings(0.8, 0.05, 0.4, 0.3)}
"""Settings of runs of at most so many steps; longer ones are as published."""


@register("sigmazero")
@dataclass(frozen=True)
class SigmaZero(Attack):
    """Minimize ``hinge + mean of d^2 / (d^2 + sigma)`` by Adam, and reset small perturbations.

    The second term is a smooth count of the differing pixel values. Gradients are divided by their
    largest component, the rate falls along half a cosine, and after every step perturbations below
    a threshold are set to zero; the threshold rises beyond the boundary and falls before it (Cinà
    et al., Sigma-zero: gradient-based optimization of l0-norm adversarial examples, 2025).

    Unlike the authors' code it measures the hinge in units of the clean image's largest gradient
    component, so that the scale of the logits does not matter. In short runs the count is smoother
    and the rate falls less, which needs up to a tenth fewer pixel values; long ones are as
    published.

    Parameters
    ----------
    steps : int
        Steps of one forward and one backward pass.
    rate : float, optional
        Adam's first rate, in box widths: by default 0.8 up to 300 steps, and 1 above.
    sigma : float, optional
        Sharpness of the count: perturbations well above its square root count as one. By default
        0.1 up to 150 steps, 0.05 up to 300 and 0.001 above.
    threshold : float, optional
        First threshold, in box widths: 0.4 up to 300 steps, 0.3 above.
    end : float, optional
        Fraction of the rate left at the end: 0.3 up to 300 steps, 0.1 above.
    pace : float
        Change of the threshold per step, in units of the rate.
    compat : bool
        As in the authors' code: the hinge is measured in logits, Adam adds 1e-8 to the root of
        its second moment, and the last point is not evaluated.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("sigmazero(steps=1000)"))
    'sigmazero(steps=1000)'
    """

    steps: int = whole_number(100)
    rate: float | None = number(None, above=0)
    sigma: float | None = number(None, above=0)
    threshold: float | None = number(None, above=0)
    end: float | None = number(None, above=0)
    pace: float = number(0.01, above=0)
    compat: bool = yes_or_no(False, added=True)

    minimal = True
    norms = frozenset({L0})
    source = "Cinà et al., Sigma-zero, 2025"

    def settled(self) -> Settings:
        """The settings of this run: those given, else by its length."""
        usual = next((s for most, s in SHORT.items() if self.steps <= most), PUBLISHED)
        given = (self.rate, self.sigma, self.threshold, self.end)
        both = zip(given, usual, strict=True)
        return Settings(*(other if one is None else one for one, other in both))

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if not len(siege):
            return
        chosen, x = self.settled(), siege.ball.center.clone()
        adam, table = Adam.at(x), corrections(USUAL_DECAYS, self.steps, x.device)
        cut = torch.full_like(siege.ball.radius, chosen.threshold)
        unit = torch.zeros_like(cut)
        for step in range(self.steps):
            answer = siege.gradient(x, steering(siege))
            x, answer, adam, cut, unit = siege.settle(x, answer, adam, cut, unit)
            if not len(siege):
                return
            ball, slope = siege.ball, somewhere(siege, answer.gradient, step)
            labels = answer.logits.argmax(1) if self.compat else answer.labels
            crossed = siege.record.reached(siege.rows, labels)
            if step == 0:
                unit = 1.0 / distances(slope, Linf) if not self.compat else torch.ones_like(unit)
            change = (x - ball.center) / ball.width
            pull = chosen.count_slope(change) - slope * ball.scaled(torch.where(crossed, 0.0, unit))
            pull = pull / ball.scaled(distances(pull, Linf).clamp_min(1e-30))
            adam, move = adam.step(pull, USUAL_DECAYS, table)
            if self.compat:  # in the order of torch's Adam, on which last digits depend
                one, two = (1.0 - decay ** (step + 1) for decay in USUAL_DECAYS)
                move = adam.mean / one / ((adam.square / two).sqrt_() + EPSILON)
            rate = chosen.at(max(0, step - 1), self.steps) * ball.width
            x = (x - rate * move).clamp_(*ball.box)
            by = self.pace * chosen.at(step, self.steps)
            cut = (cut + torch.where(crossed, by, -by)).clamp_(0.0, 1.0)
            small = (x - ball.center).abs() < ball.scaled(cut * ball.width)
            x = torch.where(small, ball.center, x)
        if not self.compat:
            siege.offer(x)
