"""What attacks of the weighting family share: the search over the weight, and what is weighed.

They descend ``size of the change + c * hinge``, where the hinge is how far a row is still short of
its goal, and search the weight c row by row: Carlini and Wagner's, EAD, OptMargin, BLB.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from besiege.attacks.smallest import across
from besiege.core.answer import Answer
from besiege.core.ball import Ball, ball, distances
from besiege.core.dice import Dice
from besiege.core.rowwise import pick, rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Norm

T = TypeVar("T")

UNSET = 1e10
"""The upper end of a bracket in which no weight has worked yet."""

RAISE = 10.0
"""By how much a weight grows while none has worked."""

DECAYS = (0.5, 0.99)
"""Adam's decay rates. The hinge switches on and off from step to step: the usual 0.9 carries a row
far beyond the boundary and back, and 0.999 remembers the first round to the end."""

MOST = 1e19
"""The largest entry of a gradient whose square float32 can hold."""

TANH = 0.999999
"""Saturated pixels start this near to the end of the tanh, where it still has a slope."""


class Weights(NamedTuple):
    """Every row's weight and its bracket, float64 ``[rows]`` each.

    After a round `after` takes for which rows its weight was enough. That is told by the round
    alone, for an earlier one says nothing about the weight that was just tried: a success anywhere
    in it where steps go to and fro across the boundary, or, where a round ends at its minimum
    (BLB), that this lies beyond.

    Attributes
    ----------
    c : Tensor
        The weight to try next.
    low, high : Tensor
        The largest weight that failed, and the smallest that was enough (`UNSET` where none was).

    Examples
    --------
    >>> import torch
    >>> weights = Weights.of(2, 0.5).after(torch.tensor([True, False]))
    >>> weights.c.tolist()
    [0.25, 5.0]
    """

    c: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, rows: int, first: float, device: torch.device | str = "cpu") -> Weights:
        """The same first weight for so many rows."""
        c = torch.full((rows,), float(first), dtype=torch.float64, device=device)
        return cls(c, torch.zeros_like(c), torch.full_like(c, UNSET))

    def after(self, won: Tensor) -> Weights:
        """The weights of the next round; `won` says for which rows this one's was enough."""
        high = torch.where(won, torch.minimum(self.high, self.c), self.high)
        low = torch.where(won, self.low, torch.maximum(self.low, self.c))
        grown = (RAISE * self.c).clamp_max(UNSET)
        return Weights(torch.where(high < UNSET, (low + high) / 2, grown), low, high)

    def next(self, won: Tensor, over: Tensor) -> Weights:
        """The weights with those `after` the round of the rows whose round is over."""
        both = zip(self.after(won), self, strict=True)
        return Weights(*(torch.where(over, new, old) for new, old in both))


def short(siege: Siege, answer: Answer, kappa: float) -> Tensor:
    """The hinge: how far each lead is below the confidence wanted, never less than zero.

    Nor zero where the goal is not reached: at an exact tie the victim may still name the label,
    and without a hinge nothing would ever lead away.
    """
    labels = answer.labels
    rows = rowwise(siege.rows, labels).expand_as(labels)
    gap = (kappa - answer.loss.double()).clamp_min(0.0)
    return torch.where(siege.record.reached(rows, labels), gap, gap.clamp_min(1e-300))


class Seen(NamedTuple):
    """What one answer says about the rows."""

    gap: Tensor
    """How far each row is short of its goal, float64, zero where it is not."""
    slope: Tensor
    """Along which direction the gap falls."""
    won: Tensor
    """Which rows are where they should be."""


def unseen(x: Tensor, dice: Dice, slot: Tensor) -> Tensor:
    """The images themselves, as through a map: the answer steers and is not kept."""
    return x


class Adam(NamedTuple):
    """Adam's state, rows first, and how many steps it has made."""

    mean: Tensor
    square: Tensor
    made: Tensor

    @classmethod
    def at(cls, x: Tensor) -> Adam:
        """At rest."""
        made = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls(torch.zeros_like(x), torch.zeros_like(x), made)

    def step(self, g: Tensor, decays: tuple[float, float], table: Tensor) -> tuple[Adam, Tensor]:
        """The state after another gradient, and the step it makes at rate one.

        Writes over its tensors. `table` is `corrections` of the same decays.
        """
        one, two = decays
        # What overflows, or its square, would be lost: infinity over infinity is no step.
        g = torch.nan_to_num(g, nan=0.0).clamp_(-MOST, MOST)
        mean = self.mean.mul_(one).add_(g, alpha=1 - one)
        square = self.square.mul_(two).addcmul_(g, g, value=1 - two)
        factor = rowwise(table[self.made.clamp_max(len(table) - 1)], g)
        size = square.sqrt().add_(torch.finfo(g.dtype).tiny)
        return Adam(mean, square, self.made + 1), (mean * factor.to(g.dtype)).div_(size)

    def rested(self, rows: Tensor) -> Adam:
        """The state with some rows at rest again; writes over its tensors."""
        keep = rowwise(~rows, self.mean)
        return Adam(self.mean.mul_(keep), self.square.mul_(keep), self.made * ~rows)


def corrections(decays: tuple[float, float], many: int, device: torch.device) -> Tensor:
    """What Adam's step is multiplied by for having begun at zero, for so many first steps."""
    one, two = decays
    factors = [math.sqrt(1 - two**t) / (1 - one**t) for t in range(1, many + 1)]
    return torch.tensor(factors, dtype=torch.float64, device=device)


class Clip:
    """What is descended on: the image, cut to the box."""

    def of(self, ball: Ball, x: Tensor) -> Tensor:
        """The variable of some images."""
        return x

    def image(self, ball: Ball, w: Tensor) -> Tensor:
        """The images of a variable."""
        return w

    def pull(self, ball: Ball, w: Tensor, g: Tensor) -> Tensor:
        """The gradient for the variable, from that for the images."""
        return g

    def land(self, ball: Ball, w: Tensor) -> Tensor:
        """The variable after a step; writes over it."""
        return w.clamp_(*ball.box)


class Tanh(Clip):
    """The image is the tanh of the variable: it cannot leave the box."""

    def of(self, ball: Ball, x: Tensor) -> Tensor:
        low, high = ball.box
        u = (x - (low + high) / 2) * (2 * TANH / (high - low))
        # Not torch.atanh: it rounds the last entries of a tensor another way than the others.
        return 0.5 * (torch.log1p(u) - torch.log1p(-u))

    def image(self, ball: Ball, w: Tensor) -> Tensor:
        low, high = ball.box
        return (torch.tanh(w) * ((high - low) / 2) + (low + high) / 2).clamp_(low, high)

    def pull(self, ball: Ball, w: Tensor, g: Tensor) -> Tensor:
        low, high = ball.box
        return g * (1 - torch.tanh(w) ** 2) * ((high - low) / 2)

    def land(self, ball: Ball, w: Tensor) -> Tensor:
        return w


class Best:
    """The smallest point of each row that is where it should be.

    Where the siege may not look (`hidden`) it is offered now and then, and in any case before the
    queries of its row end: the last ones are held back for it.
    """

    def __init__(self, siege: Siege, hidden: bool) -> None:
        self.hidden = hidden
        self.x = siege.ball.center
        self.far = torch.full_like(siege.ball.radius, torch.inf)
        self.told = self.far
        self.left = siege.record.meter.left(siege.rows)

    def note(self, x: Tensor, won: Tensor, size: Tensor) -> None:
        """Remember points that are smaller than any before."""
        closer = won & (size < self.far)
        self.far = torch.where(closer, size, self.far)
        self.x = pick(closer, x, self.x)

    def offer(self, siege: Siege, ending: Tensor | None = None) -> None:
        """Have looked at what is new, of all rows or of some."""
        new = self.far < self.told
        rows = (new if ending is None else new & ending).nonzero()[:, 0]
        if self.hidden and len(rows):
            self.told = self.told.index_copy(0, rows, self.far[rows])
            siege.logits(self.x[rows], rows=rows)

    def settle(self, siege: Siege, state: T) -> T:
        """Settle what is remembered together with other state, which comes back."""
        if siege.record.meter.budget is not None:
            left = siege.record.meter.left(siege.rows)
            # Not enough for as much as since the last time, and an offer.
            self.offer(siege, left < 2 * (self.left - left))
            self.left = siege.record.meter.left(siege.rows)
        kept = self.x, self.far, self.told, self.left
        (self.x, self.far, self.told, self.left), state = siege.settle(kept, state)
        return state


def flat_gap(siege: Siege, norm: Norm, gap: Tensor, slope: Tensor) -> Tensor:
    """How far the boundary is from the clean image if the victim is linear, in a norm, float64.

    Zero where the slope is.
    """
    at = ball(norm, siege.ball.center, siege.ball.radius, siege.ball.box)
    reach = distances(at.plane(at.center, slope, gap.clamp_min(1e-300)), norm)
    return torch.minimum(reach, across(at))


def elsewhere(siege: Siege) -> Tensor:
    """A random point a tenth of the box away, for rows that see no slope where they are."""
    # Euclidean whatever the norm: a tenth of the entries of a small image may be none.
    near = ball(L2, siege.ball.center, siege.ball.radius, siege.ball.box)
    return near.of(0.1 * across(near)).shell(siege.dice.of("flat"))
