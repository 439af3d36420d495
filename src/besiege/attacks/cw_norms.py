"""Carlini and Wagner's attack where the distance has no useful gradient.

In linf the level is searched above which changes are penalised, in l0 the set of entries that may
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from besiege.attacks.smallest import apparent
from besiege.attacks.weighting import (
    DECAYS,
    RAISE,
    Adam,
    Best,
    Seen,
    corrections,
    elsewhere,
    flat_gap,
)
from besiege.core.ball import distances
from besiege.core.siege import Siege
from besiege.core.threat import L0, L2, Linf

if TYPE_CHECKING:
    from besiege.attacks.cw import CW

BRISK, BRISKEST, CALM = 0.3, 0.6, 0.03
"""What is taken of the rate in linf, where every entry may go all the way: by rows that have not
crossed the boundary yet, in short rounds at most, and by the others, which begin near to it."""

ENOUGH = 100
"""Steps in which a round at the first of these goes far enough."""

PLENTY = 10.0
"""The weight in l0, in first weights: what counts there is that few entries suffice."""


def level(attack: CW, siege: Siege) -> None:
    """In linf: ``sum max(|d| - tau, 0) + c * hinge``, the level tau searched row by row."""
    center = siege.ball.center
    rates = attack.rates(center.device)
    table = corrections(DECAYS, attack.steps, center.device)
    # A short round must get as far as a long one, or it finds nothing.
    brisk = min(BRISKEST, BRISK * max(1.0, ENOUGH / attack.steps))
    x, best = center.clone(), Best(siege, attack.hidden)
    c = torch.full_like(siege.ball.radius, attack.first_weight())
    low, tau = torch.zeros_like(c), torch.zeros_like(c)
    unit, reach = torch.zeros_like(c), torch.zeros_like(c)
    for turn in range(attack.rounds):
        if turn > 0:  # from the best point, cut to the level, or from where the row is
            most = siege.ball.scaled(tau)
            cut = (best.x - siege.ball.center).clamp(-most, most) + siege.ball.center
            x = torch.where(siege.ball.scaled(torch.isfinite(best.far)) > 0, cut, x)
        adam, before = Adam.at(x), best.far
        for step in range(attack.steps):
            seen = attack.look(siege, x)
            best.note(x, seen.won, siege.ball.distance(x))
            state = (x, *seen, *adam, c, low, tau, unit, reach, before)
            x, *rest = best.settle(siege, *state)
            if not len(siege):
                return
            seen, adam = Seen(*rest[:3]), Adam(*rest[3:6])
            c, low, tau, unit, reach, before = rest[6:]
            here = siege.ball
            if turn == 0 and step < 2:
                new = (reach == 0) & (seen.gap > 0)
                gap = apparent(here, seen.gap, seen.slope)
                reach = torch.where(new, flat_gap(siege, Linf, gap, seen.slope), reach)
                tau = torch.where(new, 0.9 * reach, tau)
                steep = here.dual(seen.slope)
                unit = torch.where(new & (steep > 0), here.size / steep, unit)
                x = torch.where(here.scaled(new & (reach == 0)) > 0, elsewhere(siege), x)
            change = x - here.center
            pull = torch.sign(change) * (change.abs() > here.scaled(tau))
            pull = pull.sub_(seen.slope.mul(here.scaled(c * unit)))
            adam, move = adam.step(pull, DECAYS, table)
            pace = torch.where(torch.isfinite(before), CALM, brisk)
            x = x.sub_(move.mul_(here.scaled(pace * rates[step] * reach))).clamp_(*here.box)
        best.offer(siege)
        ever = torch.isfinite(best.far)
        low = torch.where(ever & (best.far >= before), torch.maximum(low, tau), low)
        c = torch.where(ever, c, 2.0 * c)
        tau = torch.where(ever, torch.maximum(0.5 * (low + best.far), 0.9 * best.far), 1.5 * tau)
    attack.end(siege, x)


def sparse(attack: CW, siege: Siege) -> None:
    """In l0: the descent of l2 on some entries, and how many are needed searched row by row.

    The first round changes all. The others change those whose change times slope was largest in
    the last success: as many as the geometric mean of a number that was enough and one that was
    not.
    """
    center = siege.ball.center
    rates = attack.rates(center.device)
    table = corrections(DECAYS, attack.steps, center.device)
    x, best = center.clone(), Best(siege, attack.hidden)
    mask, steep, found = torch.ones_like(center), torch.zeros_like(center), center
    c = torch.full_like(siege.ball.radius, PLENTY * attack.first_weight())
    low, high = torch.ones_like(c), torch.full_like(c, torch.inf)
    clean, gap = steep, torch.zeros_like(c)
    for turn in range(attack.rounds):
        unit, stride = _within(siege, clean * mask, gap)
        adam, won = Adam.at(x), torch.zeros(len(siege), dtype=torch.bool, device=x.device)
        for step in range(attack.steps):
            seen = attack.look(siege, x)
            if attack.hidden:
                best.note(x, seen.won, siege.ball.distance(x))
            state = (x, mask, steep, found, clean, c, low, high, gap, unit, stride, won)
            x, *rest = best.settle(siege, *state, *adam, *seen)
            if not len(siege):
                return
            mask, steep, found, clean, c, low, high, gap, unit, stride, won = rest[:11]
            adam, seen = Adam(*rest[11:14]), Seen(*rest[14:])
            here = siege.ball
            if turn == 0 and step < 2:
                new = (unit == 0) & (seen.gap > 0)
                clean = torch.where(here.scaled(new) > 0, seen.slope, clean)
                gap = torch.where(new, apparent(here, seen.gap, seen.slope), gap)
                unit, stride = _within(siege, clean, gap)
                x = torch.where(here.scaled(new & (unit == 0)) > 0, elsewhere(siege), x)
            found = torch.where(here.scaled(seen.won) > 0, x, found)
            steep = torch.where(here.scaled(seen.gap > 0) > 0, seen.slope, steep)
            won = won | seen.won
            change = x - here.center
            pull = change.mul_(2.0).sub_(seen.slope.mul(here.scaled(c * unit))).mul_(mask)
            adam, move = adam.step(pull, DECAYS, table)
            x = (x - move.mul_(here.scaled(rates[step] * stride))).clamp_(*here.box)
        best.offer(siege)
        change = found - here.center
        high = torch.where(won, distances(change, L0), high)
        low = torch.where(won | torch.isinf(high), low, torch.maximum(low, distances(mask, L0)))
        c = torch.where(won | torch.isfinite(high), c, RAISE * c)
        many = torch.floor(torch.sqrt(low * high)).clamp_max(here.size)
        kept = _highest((change * steep).abs(), many)
        mask = torch.where(here.scaled(torch.isfinite(high)) > 0, kept, mask)
        x = here.center + change * mask
    attack.end(siege, x)


def _within(siege: Siege, slope: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Unit and stride of `weigh` if only the entries with a slope may change."""
    far = flat_gap(siege, L2, gap, slope)
    some = distances(slope, L0).clamp_min(1.0)
    return 2.0 * far**2 / gap.clamp_min(1e-300), far / some.sqrt()


def _highest(score: Tensor, many: Tensor) -> Tensor:
    """1 for so many of the highest entries of each row that are above zero, else 0."""
    flat = score.flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    place = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, place)
    return ((rank < many[:, None]) & (flat > 0)).to(score.dtype).view_as(score)
