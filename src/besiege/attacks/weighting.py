"""Shared by attacks with a weight search: CW, EAD, OptMargin, BLB, ZOO.

They minimize ``distance + c * hinge``, where the hinge is the amount by which a row misses its
goal, and search the weight c row by row.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from besiege.attacks.smallest import across
from besiege.core.answer import Answer
from besiege.core.ball import Ball, ball, distances
from besiege.core.rowwise import pick, rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Norm

T = TypeVar("T")

UNSET = 1e10
"""Upper end of a bracket in which no weight has succeeded yet."""

RAISE = 10.0
"""Factor of a weight while none has succeeded."""

DECAYS, USUAL_DECAYS = (0.5, 0.99), (0.9, 0.999)
"""Adam's decay rates, and the usual ones. The hinge switches on and off between steps: 0.9 carries
a row far beyond the boundary and back, and 0.999 remembers the first round until the end."""

EPSILON = 1e-8
"""Published: added to the root of Adam's second moment. Saturated pixels, whose gradient is far
smaller behind a tanh, hardly move with it and as far as all others without."""

STALLED = 0.9999
"""Published: a round ends early if more than this fraction of the objective is left after a tenth
of its steps."""

MANY = 10
"""Published: with so many rounds the last one repeats the smallest weight that sufficed."""

MOST = 1e19
"""Largest gradient component whose square fits in float32."""

TANH = 0.999999
"""Saturated pixels start at this value of the tanh, where its derivative is not yet zero."""


class Weights(NamedTuple):
    """Every row's weight and its bracket, float64 ``[rows]`` each.

    After a round, `after` takes for which rows the weight sufficed. Only that round counts, since
    an earlier one used another weight. A weight suffices if any iterate succeeded, or, for attacks
    whose rounds end at a minimum (BLB), if that minimum is beyond the boundary.

    Attributes
    ----------
    c : Tensor
        The next weight.
    low, high : Tensor
        The largest weight that failed, and the smallest that sufficed (`UNSET` if none did).

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
        """The same first weight for all rows."""
        c = torch.full((rows,), float(first), dtype=torch.float64, device=device)
        return cls(c, torch.zeros_like(c), torch.full_like(c, UNSET))

    def after(self, won: Tensor) -> Weights:
        """The weights of the next round; `won` says for which rows this weight sufficed."""
        high = torch.where(won, torch.minimum(self.high, self.c), self.high)
        low = torch.where(won, self.low, torch.maximum(self.low, self.c))
        grown = (RAISE * self.c).clamp_max(UNSET)
        return Weights(torch.where(high < UNSET, (low + high) / 2, grown), low, high)

    def repeated(self, rows: Tensor, turn: Tensor | int, rounds: int) -> Weights:
        """The weights of some rows in a round, counted from 0, of `rounds`.

        In the last of at least `MANY` rounds the smallest that sufficed (`UNSET` if none did).
        """
        if rounds < MANY:
            return self
        return self._replace(c=torch.where(rows & (turn == rounds - 1), self.high, self.c))

    def next(self, won: Tensor, over: Tensor) -> Weights:
        """The weights, updated by `after` for the rows whose round is over."""
        both = zip(self.after(won), self, strict=True)
        return Weights(*(torch.where(over, new, old) for new, old in both))


def short(siege: Siege, answer: Answer, kappa: float) -> Tensor:
    """The hinge: the amount by which each margin misses the wanted confidence, at least zero.

    Above zero where the goal is not reached: at an exact tie the victim may still return the label,
    and a zero hinge would never move the row.
    """
    labels = answer.labels
    rows = rowwise(siege.rows, labels).expand_as(labels)
    gap = (kappa - answer.loss.double()).clamp_min(0.0)
    return torch.where(siege.record.reached(rows, labels), gap, gap.clamp_min(1e-300))


class Seen(NamedTuple):
    """One answer about the rows."""

    gap: Tensor
    """The hinge, float64, zero where the goal is reached."""
    slope: Tensor
    """Direction in which the hinge falls."""
    won: Tensor
    """Which rows reach the goal."""


class Adam(NamedTuple):
    """Adam's state, rows first, and the number of steps made."""

    mean: Tensor
    square: Tensor
    made: Tensor

    @classmethod
    def at(cls, x: Tensor) -> Adam:
        """The state before the first step."""
        made = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls(torch.zeros_like(x), torch.zeros_like(x), made)

    def step(
        self,
        g: Tensor,
        decays: tuple[float, float],
        table: Tensor,
        floors: Tensor | None = None,
    ) -> tuple[Adam, Tensor]:
        """The state after another gradient, and the step at rate one, both in place.

        `table` holds the `corrections` of the same decays, and `floors` those of Adam's epsilon.
        """
        one, two = decays
        # Clamp: infinity divided by infinity would not be a step.
        g = torch.nan_to_num(g, nan=0.0).clamp_(-MOST, MOST)
        mean = self.mean.mul_(one).add_(g, alpha=1 - one)
        square = self.square.mul_(two).addcmul_(g, g, value=1 - two)
        turn = self.made.clamp_max(len(table) - 1)
        factor = rowwise(table[turn], g)
        if floors is None:
            size = square.sqrt().add_(torch.finfo(g.dtype).tiny)
        else:
            size = square.sqrt().add_(rowwise(floors[turn], g).to(g.dtype))
        return Adam(mean, square, self.made + 1), (mean * factor.to(g.dtype)).div_(size)

    def rested(self, rows: Tensor) -> Adam:
        """The state with some rows reset, in place."""
        keep = rowwise(~rows, self.mean)
        return Adam(self.mean.mul_(keep), self.square.mul_(keep), self.made * ~rows)


def corrections(decays: tuple[float, float], many: int, device: torch.device) -> Tensor:
    """Adam's bias corrections of the first `many` steps."""
    one, two = decays
    factors = [math.sqrt(1 - two**t) / (1 - one**t) for t in range(1, many + 1)]
    return torch.tensor(factors, dtype=torch.float64, device=device)


def floors(decays: tuple[float, float], many: int, device: torch.device) -> Tensor:
    """Adam's epsilon of the first `many` steps, as added to a root without bias correction."""
    sizes = [EPSILON * math.sqrt(1 - decays[1] ** t) for t in range(1, many + 1)]
    return torch.tensor(sizes, dtype=torch.float64, device=device)


class Clip:
    """The optimised variable is the image itself, clipped to the box."""

    def of(self, ball: Ball, x: Tensor) -> Tensor:
        """The variable of given images."""
        return x

    def image(self, ball: Ball, w: Tensor) -> Tensor:
        """The images of a variable."""
        return w

    def origin(self, ball: Ball) -> Tensor:
        """The images of the clean images' variables."""
        return self.image(ball, self.of(ball, ball.center))

    def pull(self, ball: Ball, w: Tensor, g: Tensor) -> Tensor:
        """The gradient with respect to the variable, from that with respect to the images."""
        return g

    def land(self, ball: Ball, w: Tensor) -> Tensor:
        """The variable after a step, in place."""
        return w.clamp_(*ball.box)


class Tanh(Clip):
    """The image is the tanh of the variable and cannot leave the box.

    Parameters
    ----------
    edge : float
        The tanh at which saturated pixels start.
    """

    def __init__(self, edge: float = TANH) -> None:
        self.edge = edge

    def of(self, ball: Ball, x: Tensor) -> Tensor:
        low, high = ball.box
        u = (x - (low + high) / 2) * (2 * self.edge / (high - low))
        # Not torch.atanh: its rounding depends on the position in the tensor.
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
    """The nearest success of each row.

    Where the siege must not record successes by itself (`hidden`), it is offered now and then, and
    always before the row's query budget ends: the last queries are reserved for it.
    """

    def __init__(self, siege: Siege, hidden: bool) -> None:
        self.hidden = hidden
        self.x = siege.ball.center
        self.far = torch.full_like(siege.ball.radius, torch.inf)
        self.offered = self.far
        self.left = siege.record.meter.left(siege.rows)

    def note(self, x: Tensor, won: Tensor, size: Tensor) -> None:
        """Remember successes nearer than any before."""
        closer = won & (size < self.far)
        self.far = torch.where(closer, size, self.far)
        self.x = pick(closer, x, self.x)

    def offer(self, siege: Siege, ending: Tensor | None = None) -> None:
        """Offer new best points to the siege, of all rows or of those `ending`."""
        new = self.far < self.offered
        rows = (new if ending is None else new & ending).nonzero()[:, 0]
        if self.hidden and len(rows):
            self.offered = self.offered.index_copy(0, rows, self.far[rows])
            siege.logits(self.x[rows], rows=rows)

    def settle(self, siege: Siege, state: T) -> T:
        """Settle the best points together with the given state, which is returned."""
        if siege.record.meter.budget is not None:
            left = siege.record.meter.left(siege.rows)
            # Too few queries for another step like the last one and an offer.
            self.offer(siege, left < 2 * (self.left - left))
            self.left = siege.record.meter.left(siege.rows)
        kept = self.x, self.far, self.offered, self.left
        (self.x, self.far, self.offered, self.left), state = siege.settle(kept, state)
        return state


def flat_gap(siege: Siege, norm: Norm, gap: Tensor, slope: Tensor) -> Tensor:
    """The distance of the clean image from the boundary of a linear victim, in a norm, float64.

    Zero where the gradient is.
    """
    at = ball(norm, siege.ball.center, siege.ball.radius, siege.ball.box)
    reach = distances(at.plane(at.center, slope, gap.clamp_min(1e-300)), norm)
    return torch.minimum(reach, across(at))


def elsewhere(siege: Siege) -> Tensor:
    """A random point a tenth of the box away, for rows whose gradient is zero."""
    # Euclidean in every norm: a tenth of the pixel values of a small image may be none.
    near = ball(L2, siege.ball.center, siege.ball.radius, siege.ball.box)
    return near.of(0.1 * across(near)).shell(siege.dice.of("flat"))
