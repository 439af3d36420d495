"""Carlini and Wagner's attack in linf and l0, where the distance has no useful gradient.

In linf the search is over the level above which pixel values are penalised, in l0 over the set of
pixel values that may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
from besiege.core.ball import Ball, distances
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L0, L2, Linf

if TYPE_CHECKING:
    from besiege.attacks.cw import CW

BRISK, BRISKEST, CALM = 0.3, 0.6, 0.03
"""Fractions of the rate in linf, where every pixel value may move all the way: for rows that have
no success yet, their maximum in short rounds, and for the other rows, which start nearby."""

ENOUGH = 100
"""Steps in which a round at BRISK goes far enough."""

PLENTY = 10.0
"""Weight in l0, in units of the first: only the number of pixel values counts there."""


class Level(NamedTuple):
    """The state of the search in linf, rows first.

    Attributes
    ----------
    x, adam
        The iterates, and Adam's state.
    c : Tensor
        The weight.
    low, tau : Tensor
        The highest level that failed, and the level above which pixel values are penalised.
    unit, reach : Tensor
        Units of weights and steps; zero until measured.
    before : Tensor
        The smallest distance before this round.
    """

    x: Tensor
    adam: Adam
    c: Tensor
    low: Tensor
    tau: Tensor
    unit: Tensor
    reach: Tensor
    before: Tensor


def level(attack: CW, siege: Siege) -> None:
    """The search in linf: ``sum max(|d| - tau, 0) + c * hinge``, tau searched row by row."""
    center = siege.ball.center
    rates = attack.rates(center.device)
    table = corrections(DECAYS, attack.steps, center.device)
    # A short round must get as far as a long one to succeed.
    brisk = min(BRISKEST, BRISK * max(1.0, ENOUGH / attack.steps))
    best, none = Best(siege, attack.hidden), torch.zeros_like(siege.ball.radius)
    c = torch.full_like(none, attack.first_weight())
    at = Level(center.clone(), Adam.at(center), c, none, none, none, none, best.far)
    for turn in range(attack.rounds):
        if turn > 0:  # from the best point, clipped to the level, or from the last iterate
            most = siege.ball.scaled(at.tau)
            cut = (best.x - siege.ball.center).clamp(-most, most) + siege.ball.center
            at = at._replace(x=pick(torch.isfinite(best.far), cut, at.x))
        at = at._replace(adam=Adam.at(at.x), before=best.far)
        for step in range(attack.steps):
            seen = attack.look(siege, at.x)
            best.note(at.x, seen.won, siege.ball.distance(at.x))
            seen, at = best.settle(siege, (seen, at))
            if not len(siege):
                return
            here = siege.ball
            if turn == 0 and step < 2:
                at = _levelled(siege, seen, at)
            change = at.x - here.center
            pull = torch.sign(change) * (change.abs() > here.scaled(at.tau))
            pull = pull.sub_(seen.slope.mul(here.scaled(at.c * at.unit)))
            adam, move = at.adam.step(pull, DECAYS, table)
            pace = torch.where(torch.isfinite(at.before), CALM, brisk)
            move.mul_(here.scaled(pace * rates[step] * at.reach))
            at = at._replace(x=at.x.sub_(move).clamp_(*here.box), adam=adam)
        best.offer(siege)
        ever, far = torch.isfinite(best.far), best.far
        low = torch.where(ever & (far >= at.before), torch.maximum(at.low, at.tau), at.low)
        tau = torch.where(ever, torch.maximum(0.5 * (low + far), 0.9 * far), 1.5 * at.tau)
        at = at._replace(low=low, tau=tau, c=torch.where(ever, at.c, 2.0 * at.c))
    attack.end(siege, at.x)


def _levelled(siege: Siege, seen: Seen, at: Level) -> Level:
    """Units and first levels of rows that have none yet; rows without a gradient move randomly."""
    ball, new = siege.ball, (at.reach == 0) & (seen.gap > 0)
    gap, steep = apparent(ball, seen.gap, seen.slope), ball.dual(seen.slope)
    reach = torch.where(new, flat_gap(siege, Linf, gap, seen.slope), at.reach)
    return at._replace(
        x=pick(new & (reach == 0), elsewhere(siege), at.x),
        tau=torch.where(new, 0.9 * reach, at.tau),
        unit=torch.where(new & (steep > 0), ball.size / steep, at.unit),
        reach=reach,
    )


class Sparse(NamedTuple):
    """The state of the search in l0, rows first.

    Attributes
    ----------
    x, adam
        The iterates, and Adam's state.
    mask : Tensor
        One where pixel values may differ.
    found, steep : Tensor
        The last success, and the last gradient.
    c : Tensor
        The weight.
    low, high : Tensor
        A number of pixel values that did not suffice, and one that did.
    clean, gap : Tensor
        Gradient and hinge at the clean images; zero until measured.
    unit, stride : Tensor
        Units of weights and steps in this round.
    won : Tensor
        Whether there was a success in this round.
    """

    x: Tensor
    adam: Adam
    mask: Tensor
    found: Tensor
    steep: Tensor
    c: Tensor
    low: Tensor
    high: Tensor
    clean: Tensor
    gap: Tensor
    unit: Tensor
    stride: Tensor
    won: Tensor

    @classmethod
    def of(cls, siege: Siege, first: float) -> Sparse:
        """The first round: all pixel values may differ."""
        center = siege.ball.center
        c, none = torch.full_like(siege.ball.radius, first), torch.zeros_like(center)
        zero, won = torch.zeros_like(c), torch.zeros_like(c, dtype=torch.bool)
        return cls(
            center.clone(),
            Adam.at(center),
            mask=torch.ones_like(center),
            found=center,
            steep=none,
            c=c,
            low=torch.ones_like(c),
            high=torch.full_like(c, torch.inf),
            clean=none,
            gap=zero,
            unit=zero,
            stride=zero,
            won=won,
        )

    def fewer(self, ball: Ball) -> Sparse:
        """The next round: its mask and its start."""
        won, change = self.won, self.found - ball.center
        high = torch.where(won, distances(change, L0), self.high)
        most = torch.maximum(self.low, distances(self.mask, L0))
        low = torch.where(won | torch.isinf(high), self.low, most)
        many = torch.floor(torch.sqrt(low * high)).clamp_max(ball.size)
        mask = pick(torch.isfinite(high), _highest((change * self.steep).abs(), many), self.mask)
        return self._replace(
            x=ball.center + change * mask,
            mask=mask,
            c=torch.where(won | torch.isfinite(high), self.c, RAISE * self.c),
            low=low,
            high=high,
        )


def sparse(attack: CW, siege: Siege) -> None:
    """The search in l0: the l2 attack on a subset of pixel values, its size searched row by row.

    The first round uses all. Each further round uses those whose perturbation times gradient was
    largest in the last success; their number is the geometric mean of one that sufficed and one
    that did not.
    """
    device = siege.ball.center.device
    rates = attack.rates(device)
    table = corrections(DECAYS, attack.steps, device)
    best, at = Best(siege, attack.hidden), Sparse.of(siege, PLENTY * attack.first_weight())
    for turn in range(attack.rounds):
        unit, stride = _within(siege, at.clean * at.mask, at.gap)
        adam, won = Adam.at(at.x), torch.zeros_like(at.won)
        at = at._replace(adam=adam, unit=unit, stride=stride, won=won)
        for step in range(attack.steps):
            seen = attack.look(siege, at.x)
            if attack.hidden:
                best.note(at.x, seen.won, siege.ball.distance(at.x))
            seen, at = best.settle(siege, (seen, at))
            if not len(siege):
                return
            here = siege.ball
            if turn == 0 and step < 2:
                at = _thinned(siege, seen, at)
            change = at.x - here.center
            pull = change.mul_(2.0).sub_(seen.slope.mul(here.scaled(at.c * at.unit))).mul_(at.mask)
            adam, move = at.adam.step(pull, DECAYS, table)
            move.mul_(here.scaled(rates[step] * at.stride))
            at = at._replace(
                x=(at.x - move).clamp_(*here.box),
                adam=adam,
                found=pick(seen.won, at.x, at.found),
                steep=pick(seen.gap > 0, seen.slope, at.steep),
                won=at.won | seen.won,
            )
        best.offer(siege)
        at = at.fewer(siege.ball)
    attack.end(siege, at.x)


def _thinned(siege: Siege, seen: Seen, at: Sparse) -> Sparse:
    """Gradients and units of rows that have none yet; rows without a gradient move randomly."""
    new = (at.unit == 0) & (seen.gap > 0)
    clean = pick(new, seen.slope, at.clean)
    gap = torch.where(new, apparent(siege.ball, seen.gap, seen.slope), at.gap)
    unit, stride = _within(siege, clean, gap)
    x = pick(new & (unit == 0), elsewhere(siege), at.x)
    return at._replace(x=x, clean=clean, gap=gap, unit=unit, stride=stride)


def _within(siege: Siege, slope: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Unit and stride of `weigh` if only pixel values with a nonzero gradient may differ."""
    far = flat_gap(siege, L2, gap, slope)
    some = distances(slope, L0).clamp_min(1.0)
    return 2.0 * far**2 / gap.clamp_min(1e-300), far / some.sqrt()


def _highest(score: Tensor, many: Tensor) -> Tensor:
    """1 for the `many` highest values of each row that are above zero, else 0."""
    flat = score.flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    place = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, place)
    return ((rank < many[:, None]) & (flat > 0)).to(score.dtype).view_as(score)
