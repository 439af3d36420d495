"""Solvers of the balls' projections and moves: how far each pixel value moves to reach a total.

All rows of a batch are solved together. A row that has converged repeats its own arithmetic while
others continue, so that no row depends on its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.core.rowwise import rowwise

_TINY = torch.finfo(torch.float32).tiny


def never_alone(rows: Tensor) -> Tensor:
    """A single row is repeated: torch splits the sum of one long row among its threads."""
    return rows.expand(2, -1) if rows.shape[0] == 1 else rows


def _sums(rows: Tensor) -> Tensor:
    return never_alone(rows).sum(1)[: rows.shape[0]]


def forward_plane(w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The same plane with positive c, scaled so that max|w| is one."""
    largest = w.flatten(1).abs().amax(1).clamp_min_(torch.finfo(w.dtype).tiny)
    scale = rowwise(torch.copysign(largest, c).to(w.dtype), w)
    return w / scale, c.abs().double() / largest


def flood(p: Tensor | None, r: Tensor, weight: Tensor, amount: Tensor, power: int) -> Tensor:
    """Raise values at speeds p up to their rooms r until ``sum(weight * d**power) = amount``.

    d = min(tau * p, r), with p one everywhere for None. Starting from the tau that ignores all
    rooms, every round marks the values that are full and solves for tau again; tau only rises and
    stops within a few rounds.
    """
    shape, r, weight = r.shape, r.flatten(1), weight.flatten(1)
    p = None if p is None else p.flatten(1)
    amount = amount.to(r.dtype)
    rate = weight if p is None else weight * _power(p, power)
    filled = weight * _power(r, power)
    # Finite, because values of speed zero would be 0 * inf.
    most = torch.finfo(r.dtype).max
    tau = _root(amount / _sums(rate).clamp_min_(_TINY), power).clamp_max_(most)
    level = tau[:, None] if p is None else p * tau[:, None]
    full = _reaches(level, r)
    # On a GPU convergence is tested every 4 rounds; extra rounds change nothing.
    rounds = 1 if r.device.type == "cpu" else 4
    for turn in range(r.shape[1]):
        left = (amount - _sums(filled * full)).clamp_min_(0.0)
        # Where all are full, tau becomes very large, which changes nothing.
        speed = _sums(rate * (1.0 - full)).clamp_min_(_TINY)
        tau = torch.maximum(tau, _root(left / speed, power).clamp_max_(most))
        before, level = full, tau[:, None] if p is None else p * tau[:, None]
        full = _reaches(level, r)
        if (turn + 1) % rounds == 0 and torch.equal(before, full):
            break
    return torch.minimum(level, r).view(shape)


def _power(base: Tensor, power: int) -> Tensor:
    return base if power == 1 else base**power


def _root(base: Tensor, power: int) -> Tensor:
    return base if power == 1 else base ** (1.0 / power)


def _reaches(a: Tensor, b: Tensor) -> Tensor:
    """1 where a >= b, else 0: products with it do not branch on every value, as masks do."""
    return torch.ge(a, b, out=torch.empty_like(b))


def threshold(size: Tensor, amount: Tensor) -> Tensor:
    """max(size - lam, 0) with lam such that each row sums to its amount, at most its own sum.

    `shrink` without rooms: the sum is convex in lam, so that Newton's step never overshoots.
    """
    shape, a = size.shape, size.flatten(1).double()
    lam = torch.zeros_like(amount)
    enough = amount * (1.0 + 1e-13)
    for _ in range(a.shape[1]):
        rest = a - lam[:, None]
        sums, active = _sums(rest.clamp_min(0.0)), (rest > 0).sum(1)
        more = sums > enough
        if not more.any():
            break
        lam = torch.where(more, lam + (sums - amount) / active, lam)
    return (a - lam[:, None]).clamp_min_(0.0).to(size.dtype).view(shape)


def shrink(size: Tensor, room: Tensor, amount: Tensor) -> Tensor:
    """min(max(size - lam, 0), room) with lam such that each row sums to its amount.

    The sum falls piecewise linearly in lam: Newton's step is exact once it is in the right piece,
    and bisection replaces it where the rooms make the curve concave. Rows of amount zero and rows
    that have converged keep their lam.
    """
    shape = size.shape
    a, r = size.flatten(1).double(), room.flatten(1).double()
    low = torch.zeros_like(amount)
    high = a.amax(1)
    lam = low.clone()
    done = amount <= 0
    for _ in range(200):
        rest = a - lam[:, None]
        over = _sums(rest.clamp_min(0.0).minimum(r)) - amount
        done = done | (over.abs() <= 1e-13 * amount)
        if done.all():
            break
        low, high = torch.where(over > 0, lam, low), torch.where(over < 0, lam, high)
        active = ((rest > 0) & (rest < r)).sum(1)
        newton = lam + over / active.clamp_min(1)
        middle = 0.5 * (low + high)
        ok = (active > 0) & (newton > low) & (newton < high)
        lam = torch.where(done, lam, torch.where(ok, newton, middle))
    return (a - lam[:, None]).clamp_min(0.0).minimum(r).to(size.dtype).view(shape)


def greedy(score: Tensor, value: Tensor, room: Tensor, amount: Tensor) -> Tensor:
    """Spend rooms in the order of falling score until the values gathered reach the amount.

    The last room is spent in part; rooms of value zero are not spent. Usually a few are enough, so
    only the highest scores of a row are sorted first, and more where they were not enough.
    """
    shape = score.shape
    # Elements of value zero go to the end, where they do not displace others.
    score = (score * torch.sign(value)).flatten(1)
    value, room, amount = value.flatten(1), room.flatten(1), amount.double()
    spent = torch.zeros_like(room)
    rows, count = torch.arange(len(score), device=score.device), 16
    while len(rows):
        ranked, order = _highest(score.index_select(0, rows), count)
        own = value.index_select(0, rows).gather(1, order).double()
        before = own.cumsum(1) - own
        share = (amount[rows, None] - before) / own.clamp_min(1e-300)
        share = torch.where(own > 0, share.clamp_(0.0, 1.0), torch.zeros_like(share))
        parts = share.to(room.dtype) * room.index_select(0, rows).gather(1, order)
        spent[rows] = torch.zeros_like(spent[rows]).scatter_(1, order, parts)
        if count >= score.shape[1]:
            break
        # Others may share the last score: those strictly above it must suffice, despite rounding.
        sure = (own * (ranked > ranked[:, -1:])).sum(1) > amount[rows] * (1.0 + 1e-9)
        rows, count = rows[~sure], 8 * count
    return spent.view(shape)


def _highest(score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row in falling order and their positions; ties go to the first."""
    if count >= score.shape[1]:
        return score.sort(dim=1, descending=True, stable=True)
    where = score.topk(count, dim=1, sorted=False).indices.sort(dim=1).values
    ranked, order = score.gather(1, where).sort(dim=1, descending=True, stable=True)
    return ranked, where.gather(1, order)
