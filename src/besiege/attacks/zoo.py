"""ZOO: minimum-norm search by coordinate descent, with scores only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.coordinates import Moments, Partials, State, derived, likelihood, measured
from besiege.attacks.estimates import portions, resized, sent
from besiege.attacks.planes import inner, steering
from besiege.attacks.smallest import endless
from besiege.attacks.weighting import (
    STALLED,
    USUAL_DECAYS,
    Tanh,
    Weights,
    corrections,
    floors,
)
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import number, one_of, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2

FLAT = 0.1
"""Least curvature in Newton's step; a curvature of zero or below counts as one."""

SIDE = 32
"""Published: side of the grid on which the perturbation of a large image is defined."""

RATES = MappingProxyType({"adam": 0.5, "newton": 0.2})
FIRST = 3.0
"""First weight, relative to the one that just suffices for a linear victim: with that one some rows
come close and never cross."""

PUBLISHED_RATE, PUBLISHED_FIRST = 0.01, 0.01
"""The same in absolute units, as published."""


@register("zoo")
@dataclass(frozen=True)
class ZOO(Attack):
    """Minimize ``|x - x0|^2 + c * hinge`` along a few coordinates at a time.

    The partial derivative of the hinge along a coordinate is ``(f(x + h e) - f(x - h e)) / (2 h)``,
    two queries; that of the distance is known. Every step draws new coordinates. Newton's step
    divides the slope by the curvature; for Adam each coordinate has its own moments and count (Chen
    et al., ZOO: zeroth order optimization based black-box attacks, 2017). The weight c is searched
    as in `cw`.

    Weight and rate are not as published: they are in units of the boundary distance estimated from
    the first partial derivatives, so that the scale of the logits does not matter and few steps
    suffice, and a new weight resumes from the last iterate. ``compat=True`` is as published in
    these. Probes are a hundred times as long: one coordinate carries so little of the gradient that
    float32 rounds part of it away, and its curvature completely. Newton's step is the default, Adam
    was the published choice: Adam moves every coordinate equally far, and in a few thousand queries
    few are drawn twice.

    Parameters
    ----------
    steps : int
        Steps of a round, of ``2 coordinates + 1`` queries each.
    rounds : int
        Weights tried one after the other.
    coordinates : int
        Coordinates per step, drawn without replacement, at most all.
    h : float
        Length of a probe, in box widths, or with `tanh` in units of its variable.
    by : str
        'newton', the slope divided by the curvature from the same three answers, which in float32
        is noise if h is below 0.01; or 'adam'.
    rate : float, optional
        By default 0.2 of Newton's step, or for Adam 0.5 of the boundary distance spread over all
        coordinates.
    first : float, optional
        First weight: by default 3, where 1 just suffices for a linear victim.
    side : int, optional
        Side of the grid on which the perturbation is defined and from which it is enlarged. By
        default about 32 x 32 for larger images, and the image's own for others: 1300 queries
        reduce the distance of a 227 x 227 image by a hundredth at full resolution, and by a quarter
        so.
    grow : tuple of int
        Steps at which that grid is doubled.
    important : bool
        Whether coordinates are drawn more often where the perturbation is large already.
    tanh : bool
        Whether the image is the tanh of the variable, or clipped to the box.
    abort : int
        A row moves on to its next weight if its objective has not fallen in this many steps; 0
        never.
    reset : bool
        Whether Adam's state is reset at a row's first success.
    compat : bool
        As published: absolute `first` (0.01) and `rate` (0.01), Adam's epsilon, every round from
        the clean image, steps clipped to the box, and full resolution without a `side`.
    repeat : bool
        Published: with ten rounds or more the last one repeats the smallest weight that sufficed.

    Examples
    --------
    >>> str(ZOO(coordinates=64, by="adam"))
    "zoo(coordinates=64, by='adam')"
    """

    steps: int = whole_number(30)
    rounds: int = whole_number(10)
    coordinates: int = whole_number(32)
    h: float = number(0.01, above=0)
    by: str = one_of("newton", "adam")
    rate: float | None = number(None, above=0)
    first: float | None = number(None, above=0)
    side: int | None = whole_number(None)
    grow: tuple[int, ...] = ()
    important: bool = False
    tanh: bool = False
    abort: int = whole_number(0, 0)
    reset: bool = False
    compat: bool = False
    repeat: bool = yes_or_no(False, added=True)

    access = Access.SCORE
    minimal = True
    norms = frozenset({L2})
    source: ClassVar[str] = "Chen et al., ZOO: zeroth order optimization, 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grow", tuple(self.grow))

    @property
    def revision(self) -> int:  # type: ignore[override]  # of every attack one, here of its form
        """Part of the identity: 2 is Adam with its epsilon, and steps clipped to the box."""
        return 2 if self.compat else 1

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        total, (channels, *sides) = 0, self.grid(shape)
        for step in range(self.rounds * self.steps):
            if step in self.grow:
                sides = [min(2 * a, b) for a, b in zip(sides, shape[1:], strict=True)]
            total += 2 * min(self.coordinates, channels * math.prod(sides)) + 1
        return total + 1

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the first grid."""
        channels, *sides = shape
        if self.side is not None:
            return channels, *(min(self.side, size) for size in sides)
        shrink = 1.0 if self.compat else max(1.0, math.sqrt(math.prod(sides)) / SIDE)
        return channels, *(math.ceil(size / shrink) for size in sides)

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if not len(siege):
            return
        device, most = siege.ball.center.device, self.rounds * self.steps
        grows = siege.ball.width ** (2 if self.tanh else 1)  # as gradients do with the box
        tables = (
            corrections(USUAL_DECAYS, most, device),
            floors(USUAL_DECAYS, most, device) * grows if self.compat else None,
        )
        state = self.begin(siege)
        for step in range(self.rounds * self.steps):
            if step in self.grow:
                state = self._grown(siege.ball, state)
            seen = self.ask(siege, state.w, step)
            state, seen = siege.settle(state, seen)
            if not len(siege):
                return
            if not self.compat:
                state = measured(state, seen)
            new = seen.won & ~state.ever
            if self.reset and not self.compat:
                state = state._replace(moments=state.moments.rested(new))
            state = self._descend(siege.ball, state, seen, tables)
            if self.reset and self.compat:  # as published after the step
                state = state._replace(moments=state.moments.rested(new))
            state = self._next(state, seen)
            if self.abort:
                siege.leave(state.turn >= self.rounds)
        if not self.compat:
            siege.offer(sent(siege.ball, self.images(siege.ball, state.w[:, None]))[:, 0])

    def begin(self, siege: Siege) -> State:
        """The state before the first step."""
        center = siege.ball.center
        w = center.new_zeros(len(center), *self.grid(tuple(center.shape[1:])))
        first = self.first or (PUBLISHED_FIRST if self.compat else FIRST)
        weights = Weights.of(len(w), first, center.device)
        none, no = torch.zeros_like(siege.rows), torch.zeros_like(siege.rows, dtype=torch.bool)
        unit = torch.full_like(weights.c, siege.ball.width**2 if self.compat else 0.0)
        return State(
            w,
            Moments.at(w),
            weights,
            step=none,
            turn=none,
            won=no,
            ever=no,
            unit=unit,
            stride=torch.full_like(unit, self.length(siege.ball) if self.compat else 0.0),
            last=torch.full_like(unit, torch.inf),
        )

    def length(self, ball: Ball) -> float:
        """The unit of the variable: the width of the box, or one for the tanh."""
        return 1.0 if self.tanh else ball.width

    def images(self, ball: Ball, w: Tensor) -> Tensor:
        """The images of perturbations ``[rows, k, ...]``, not clipped to the box."""
        w = resized(w, tuple(ball.center.shape[2:]))
        if self.tanh:
            space = Tanh()
            return space.image(ball, space.of(ball, ball.center)[:, None] + w)
        return ball.center[:, None] + w

    def ask(self, siege: Siege, w: Tensor, step: int) -> Partials:
        """Draw coordinates, and query the iterates and both sides along each."""
        k = min(self.coordinates, w[0].numel())
        chosen = self._draw(siege, w, k, step)
        loss, h = (
            steering(siege, sure=not self.compat),
            max(self.h * self.length(siege.ball), siege.ball.grid or 0.0),
        )
        parts: list[Partials] = []
        for rows in siege.blocks(2 * k + 1):
            ball, at = siege.ball.at(rows), w[rows][:, None]
            x = sent(ball, self.images(ball, at))
            change = (x - ball.center[:, None])[:, 0]
            known: list[tuple[Tensor, ...]] = []
            base = won = torch.empty(0)
            for some in portions(ball, k, 2):
                which = chosen[rows][:, some.to(w.device)]
                there = torch.zeros_like(at).flatten(2).repeat(1, which.shape[1], 1)
                there = there.scatter_(2, which[..., None], h).view(*which.shape, *w.shape[1:])
                high, low = self.images(ball, at + there), self.images(ball, at - there)
                seen = sent(ball, high), sent(ball, low)
                asked = torch.stack(seen, 2).flatten(1, 2)
                asked = asked if known else torch.cat((x, asked), 1)
                answer = siege.logits(asked, rows=rows, loss=loss)
                gap = (-answer.loss.double()).clamp_min(0.0)
                if not known:
                    base, gap = gap[:, 0], gap[:, 1:]
                    owners = siege.rows[rows]
                    won = siege.record.reached(owners, answer.labels[:, 0])
                known.append(derived(gap, base, high - low, seen[0] - seen[1], change, h))
            slope, bend, pull, hold = (torch.cat(part, 1) for part in zip(*known, strict=True))
            far = inner(change, change)
            parts.append(Partials(chosen[rows], base, far, slope, bend, pull, hold, won))
        return Partials(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _draw(self, siege: Siege, w: Tensor, k: int, step: int) -> Tensor:
        """The coordinates of every row, without replacement, ``[rows, k]``."""
        flat = w.flatten(1)
        key = siege.dice.of("coordinates", step).uniform((flat.shape[1],)).clamp_min_(2.0**-25)
        if self.important:
            # The k smallest of exponential draws whose rates are the probabilities.
            key = key.log_().neg_() / likelihood(w).flatten(1)
        return key.topk(k, dim=1, largest=False).indices

    def _descend(
        self, ball: Ball, state: State, seen: Partials, tables: tuple[Tensor, Tensor | None]
    ) -> State:
        """One step along the coordinates drawn."""
        at, scale = seen.coordinates, (state.weights.c * state.unit)[:, None]
        g = seen.pull + scale * seen.slope
        rate = self.rate or (PUBLISHED_RATE if self.compat else RATES[self.by])
        moments = state.moments.drew(at)
        if self.by == "newton":
            bend = seen.hold + scale * seen.bend
            one = (ball.width / self.length(ball)) ** 2
            bend = torch.where(bend <= 0, torch.full_like(bend, one), bend.clamp_min(FLAT * one))
            move = rate * g / bend * (state.unit > 0)[:, None]
        else:
            moments, move = moments.step(at, g, (rate * state.stride)[:, None], *tables)
        w = state.w.flatten(1)
        w = w.scatter_add(1, at, -move.to(w.dtype)).view_as(state.w)
        if self.compat and not self.tanh and w.shape == ball.center.shape:
            low, high = ball.box
            w = torch.maximum(torch.minimum(w, high - ball.center), low - ball.center)
        return state._replace(w=w, moments=moments)

    def _next(self, state: State, seen: Partials) -> State:
        """Move on to the next weight where a round is over."""
        won, step = state.won | seen.won, state.step + 1
        over, last = step >= self.steps, state.last
        if self.abort:
            value = seen.far + state.weights.c * state.unit * seen.gap
            # As published the first iterate is checked too: every check is a step earlier.
            looked = (state.step if self.compat else step) % self.abort == 0
            stalled = looked & (value > STALLED * last)
            if self.compat:  # the iterate at which a round is given up does not count
                won = torch.where(stalled, state.won, won)
            over = over | stalled
            last = torch.where(over, torch.inf, torch.where(looked, value, last))
        turn, weights = state.turn + over, state.weights.next(won, over)
        if self.repeat:
            weights = weights.repeated(over, turn, self.rounds)
        state = state._replace(
            weights=weights,
            won=won & ~over,
            ever=state.ever | seen.won,
            step=step * ~over,
            turn=turn,
            last=last,
        )
        if not self.compat:
            return state
        again = over & (state.turn < self.rounds)
        w = state.w * rowwise(~again, state.w)
        return state._replace(w=w, moments=state.moments.rested(again))

    def _grown(self, ball: Ball, state: State) -> State:
        """The perturbation on a grid twice as fine, with Adam's state reset."""
        size = [
            min(2 * a, b) for a, b in zip(state.w.shape[2:], ball.center.shape[2:], strict=True)
        ]
        w = resized(state.w, tuple(size))
        return state._replace(w=w, moments=Moments.at(w))
