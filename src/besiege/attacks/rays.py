"""RayS: a search over the signs of the perturbation, block by block, with labels only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.smallest import endless
from besiege.attacks.starts import adversarial
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import Goal, Linf

COARSEST = 0.02
"""Largest relative tolerance of radii, used while blocks are large."""

FINER, FINEST = 0.25, 0.02
"""Factor of the tolerance after a pass without a gain, and where the search ends, as a fraction of
the first tolerance."""

_ROUNDING = 2.0**-22
"""Radii closer than this, in box widths, are equal in float32."""

_NONE = -1.0


class State(NamedTuple):
    """The state of the search, rows first.

    Attributes
    ----------
    signs : Tensor
        The best signs, ``[rows, pixel values]``.
    radius : Tensor
        The smallest radius at which they are adversarial, float64; infinite before there is one.
    level, block : Tensor
        Which block of which level is flipped; level -1 flips none and tests the first signs.
    at : Tensor
        The radius to query next.
    low, high, width : Tensor
        For the flip being tried: a radius that is not adversarial (-1: unknown), one that is
        (infinite: none), and the next step inwards.
    asked, fruitless : Tensor
        Queries, and flips since the last one that was kept.
    share : Tensor
        Tolerance of radii, as a fraction of what a block of average weight can gain.
    """

    signs: Tensor
    radius: Tensor
    level: Tensor
    block: Tensor
    at: Tensor
    low: Tensor
    high: Tensor
    width: Tensor
    asked: Tensor
    fruitless: Tensor
    share: Tensor


@register("rays")
@dataclass(frozen=True)
class Rays(Attack):
    """Search over sign vectors, from the whole image to ever smaller blocks.

    The perturbation is ``r v`` with signs v; for a linear victim the best v is the sign of its
    weights. At level s the flattened image is cut into ``2**s`` equal blocks, and the signs of one
    after the other are flipped. A flip that is not adversarial at a radius slightly below the best
    is undone after one query; otherwise its radius is searched. Without votes and gradient
    estimates, victims with a grid are no harder: radii are whole grid steps there.

    Unlike the published method: every row has its own level and block; radius searches start at the
    best radius, go inwards in steps that double, and are as precise as a block of that size is
    worth, since a flip of a level gains half as much as one of the level before. After the finest
    level the first follows again; if no flip has helped in between, searches become more precise.
    With a grid this ends at single grid steps.

    Parameters
    ----------
    steps : int
        Queries: one for each flip, and about five for each that is kept.
    tolerance : float
        First tolerance of radii, relative to the radius times the fraction of the image that is
        flipped. Flips that gain less are undone. With `compat` it is the tolerance of all radii,
        as l2 distances of the perturbation.
    compat : bool
        Whether the search is the published one: a flip is first tested at the best radius, which is
        then bisected from zero; the first flip is that of the whole image; after the finest level
        its blocks follow again.

    References
    ----------
    Chen and Gu, RayS: a ray searching method for hard-label adversarial attack, 2020.

    Examples
    --------
    >>> str(Rays(steps=1000))
    'rays(steps=1000)'
    """

    steps: int = whole_number(20000)
    tolerance: float = number(1.0, above=0)
    compat: bool = yes_or_no(False, added=True)

    access = Access.DECISION
    norms = frozenset({Linf})
    goals = frozenset({Goal.UNTARGETED})
    minimal = True
    source: ClassVar[str] = "Chen and Gu, RayS, 2020"

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return self.steps

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        siege.leave(siege.record.distance[siege.rows] == 0.0)  # already adversarial
        siege.settle()
        state = _fresh(siege.ball, self.tolerance)
        if self.compat:
            state = state._replace(level=torch.zeros_like(state.level))
        while len(siege):
            ball = siege.ball
            tried = _flipped(state)
            x = ball.center + tried.view_as(ball.center) * ball.scaled(state.at)
            answer = siege.labels(x.clamp_(*ball.box))
            tell = _published if self.compat else _tell
            state = tell(ball, state, tried, adversarial(siege, answer))
            # If not even a corner is adversarial, a finer search would repeat the same queries.
            over = (state.asked >= self.steps) | (state.share < FINEST * self.tolerance)
            if bool(over.any()):
                siege.give_up(over & (state.radius == torch.inf))
                siege.leave(over)
            state = siege.settle(state)


def _tell(ball: Ball, state: State, tried: Tensor, good: Tensor) -> State:
    """The state after an answer: a bracket narrowed, or the next flip."""
    low = torch.where(good, state.low, state.at)
    high = torch.where(good, state.at, state.high)
    low = torch.where((low < 0) & (high <= state.width), 0.0, low)
    least = ball.grid or _ROUNDING * ball.width
    exact = _worth(state.level, state.share, ball.size) * high
    close = high - low <= exact.clamp_min(least * (1.0 + 1e-6))
    kept = good | (high < torch.inf)
    ends = ~kept | ((low >= 0) & close)
    kept &= ends
    level, block = _next(state.level, state.block, ball.size)
    radius = torch.where(kept, high, state.radius)
    fruitless = torch.where(kept, 0, torch.where(ends, state.fruitless + 1, state.fruitless))
    # Inwards while adversarial, then bisection; or the next flip, slightly below the best radius.
    inward = torch.where(low >= 0, 0.5 * (low + high), high - state.width)
    # A whole pass without a gain: more precise; without any adversarial corner: the end.
    vain = fruitless >= _around(ball.size)
    share = torch.where(
        vain, state.share * torch.where(radius < torch.inf, FINER, 0.0), state.share
    )
    if ball.grid is not None:
        share = torch.where(_exhausted(ball.grid, state.share, radius, vain), 0.0, share)
    fruitless = torch.where(vain, 0, fruitless)
    gain = (_worth(level, share, ball.size) * radius).clamp_min(least)
    begin = torch.where(radius < torch.inf, radius - gain, ball.width)
    at = torch.where(ends, begin, inward)
    if ball.grid is not None:
        # Zero grid steps would be the clean image.
        at = torch.round(at / ball.grid).clamp_min(1.0) * ball.grid
    first = torch.where(radius < torch.inf, gain, torch.full_like(gain, torch.inf))
    return State(
        torch.where(kept[:, None], tried, state.signs),
        radius,
        torch.where(ends, level, state.level),
        torch.where(ends, block, state.block),
        at,
        torch.where(ends, _NONE, low),
        torch.where(ends, torch.inf, high),
        torch.where(ends, first, 2.0 * state.width),
        state.asked + 1,
        fruitless,
        share,
    )


def _published(ball: Ball, state: State, tried: Tensor, good: Tensor) -> State:
    """The state after an answer, as published: a bisection from zero, or the next flip."""
    first = state.high == torch.inf
    low = torch.where(good, torch.where(first, 0.0, state.low), state.at)
    high = torch.where(good, state.at, state.high)
    exact = state.share / math.sqrt(ball.size) * ball.width
    ends = torch.where(first, ~good, high - low <= exact)
    kept = ends & (high < state.radius)
    radius = torch.where(kept, high, state.radius)
    level, block = _next(state.level, state.block, ball.size)
    finest = _size(state.level, ball.size) == 1
    level = torch.where(finest, state.level, level)
    at = torch.where(ends, radius.clamp_max(ball.width), 0.5 * (low + high))
    return state._replace(
        signs=torch.where(kept[:, None], tried, state.signs),
        radius=radius,
        level=torch.where(ends, level, state.level),
        block=torch.where(ends, block, state.block),
        at=at,
        low=torch.where(ends, _NONE, low),
        high=torch.where(ends, torch.inf, high),
        asked=state.asked + 1,
    )


def _exhausted(grid: float, share: Tensor, radius: Tensor, vain: Tensor) -> Tensor:
    """Where a grid leaves nothing to query: the radius is one grid step, or a pass without a gain
    already used single grid steps.
    """
    single = share.clamp_max(COARSEST) * radius < 1.5 * grid  # rounds to one step
    return (radius < 1.5 * grid) | (vain & single)


def _fresh(ball: Ball, tolerance: float) -> State:
    """All signs positive, nothing known; the first radius, the box width, reaches a corner."""
    signs = torch.ones_like(ball.center).flatten(1)
    none = torch.full_like(ball.radius, torch.inf)
    zero = torch.zeros(len(ball), dtype=torch.int64, device=signs.device)
    at = torch.full_like(none, ball.width)
    share = torch.full_like(none, tolerance)
    low = torch.full_like(none, _NONE)
    return State(signs, none, zero - 1, zero, at, low, none, none, zero, zero, share)


def _flipped(state: State) -> Tensor:
    """The signs with the current block flipped."""
    entries = state.signs.shape[1]
    size = _size(state.level.clamp_min(0), entries)
    begin = torch.where(state.level < 0, entries, state.block * size)
    place = torch.arange(entries, device=begin.device)
    inside = (place >= begin[:, None]) & (place < (begin + size)[:, None])
    return torch.where(inside, -state.signs, state.signs)


def _size(level: Tensor, entries: int) -> Tensor:
    """The block length of a level; the last block may be shorter."""
    runs = torch.bitwise_left_shift(torch.ones_like(level), level)
    return (entries + runs - 1) // runs


def _worth(level: Tensor, share: Tensor, entries: int) -> Tensor:
    """The relative tolerance of radii for flips of a level."""
    return (share * _size(level.clamp_min(0), entries) / entries).clamp_max(COARSEST)


def _next(level: Tensor, block: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """The next block: of the next level after the last one, of the first level after the finest."""
    size = _size(level.clamp_min(0), entries)
    last = (level < 0) | ((block + 1) * size >= entries)
    above = torch.where(last & (size == 1) & (level >= 0), 0, level + 1)
    return torch.where(last, above, level), torch.where(last, 0, block + 1)


def _around(entries: int) -> int:
    """Flips in one pass over all levels."""
    flips, size, level = 0, entries + 1, 0
    while size > 1:
        size = -(-entries // 2**level)
        flips += -(-entries // size)
        level += 1
    return flips
