"""Carlini and Wagner's attacks: distance plus a weighted hinge, descended by Adam.

In l2 the weight is searched row by row. Where the distance has no useful gradient the search is
another: in linf for the level above which changes are penalised, in l0 for the set of entries that
may change. Which one a norm takes is a table here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from besiege.attacks.attack import Attack, must_count
from besiege.attacks.planes import steering
from besiege.attacks.smallest import endless
from besiege.attacks.weighting import (
    RAISE,
    Adam,
    Best,
    Clip,
    Seen,
    Tanh,
    Weights,
    corrections,
    elsewhere,
    flat_gap,
    short,
    unseen,
)
from besiege.core.ball import distances
from besiege.core.siege import Siege, register
from besiege.core.threat import L0, L2, Linf, Norm

FIRST, RATE = 1.0, 0.5
"""The first weight, in weights that are just enough if the victim is linear, and the length of the
first steps, in distances to its boundary."""

PUBLISHED_FIRST, PUBLISHED_RATE = 1e-3, 0.01
"""The same in absolute terms, as published."""

END = 0.04
"""What is left of the rate at the end of a round."""

MOMENTUM, MEMORY = 0.5, 0.99
"""Adam's decay rates. The hinge switches on and off from step to step: the usual 0.9 carries a row
far beyond the boundary and back, and 0.999 remembers the first round to the end."""

PUBLISHED_DECAYS = (0.9, 0.999)

STALLED = 0.9999
"""A round is given up where this share of the objective is left after a tenth of it."""

BRISK, CALM = 0.3, 0.03
"""What is taken of the rate in linf, where every entry may go all the way: in the first round, and
in the others, which begin near to the boundary."""

PLENTY = 10.0
"""The weight in l0, in first weights: what counts there is that few entries suffice."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "cw-2017": "cw(steps=10000, compat=True)",
        "cw-su": "cw(steps=1000, first=0.01, rate=0.001, compat=True)",
        "cw-realsafe": "cw(steps=100, compat=True)",
        "cw-deepsec": "cw(steps=10000, rate=0.02, compat=True)",
        "cw-deepsec-20": "cw(steps=10000, kappa=20, rate=0.02, compat=True)",
    }
)
"""Published settings: Carlini and Wagner 2017, Su et al. 2018, RealSafe 2020, DEEPSEC 2019."""


@register("cw")
@dataclass(frozen=True)
class CW(Attack):
    """Carlini and Wagner's attack: descend ``size of the change + c * hinge`` by Adam.

    The hinge is how far the margin is below the confidence wanted, and in l2 the weight c is
    searched row by row: lower after a round with a success, ten times as high while there is none
    (Carlini and Wagner, Towards evaluating the robustness of neural networks, 2017).

    Three things are otherwise than published, all for short runs. Hinge and step size are measured
    by the distance of the boundary as it appears from the clean image: so the scale of the logits
    does not matter, the first weight is nearly right, and a hundred steps are enough. Changed
    images are cut to the box instead of being a tanh, whose slope at saturated pixels is so small
    that they hardly move. And the next weight begins where the last one ended, with Adam's state.
    ``compat=True`` is as published in all of them.

    In linf what exceeds a level is penalised, and the level is searched; in l0 the change is that
    of l2 on ever fewer entries, those whose change and slope are the largest.

    Parameters
    ----------
    rounds : int
        Weights (levels, sets of entries) tried one after the other.
    steps : int
        Steps of every round, at most.
    kappa : float
        By how much, in logits, the goal must be surpassed. It means something else for every
        model. Points that are less sure are not kept, and the others cost one forward more.
    first : float, optional
        The first weight: by default 1, the weight that would be just enough for a linear victim.
    rate : float, optional
        Adam's rate: by default 0.5, in distances to the boundary of a linear victim.
    abort : bool
        Whether a row goes on to its next weight when it does not descend any more.
    compat : bool
        As published: a tanh variable, `first` (0.001) and `rate` (0.01) absolute, Adam's usual
        decays, every round from the clean image. In l2 only.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("cw(rounds=4, steps=25)"))
    'cw(rounds=4, steps=25)'
    """

    rounds: int = 9
    steps: int = 100
    kappa: float = 0.0
    first: float | None = None
    rate: float | None = None
    abort: bool = True
    compat: bool = False

    minimal = True
    norms = frozenset({L2, Linf, L0})
    source = "Carlini and Wagner, Towards evaluating the robustness of neural networks, 2017"

    def __post_init__(self) -> None:
        must_count(self, 1, "rounds", "steps")
        if not 0 <= self.kappa < math.inf:
            raise ValueError(f"kappa is {self.kappa!r}, but a number from 0 is needed")
        for name in ("first", "rate"):
            given = getattr(self, name)
            if given is not None and not 0 < given < math.inf:
                raise ValueError(f"{name} is {given!r}, but a number above 0 is needed")

        if self.compat:  # what was published for the other norms is another loop
            object.__setattr__(self, "norms", self.norms & {L2})

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if len(siege):
            FORMS[siege.ball.norm](self, siege)

    def held(self, siege: Siege) -> tuple[Tensor, ...]:
        """What `look` wants to know of every row, drawn once."""
        return ()

    def look(self, siege: Siege, x: Tensor, *held: Tensor) -> Seen:
        """Ask about points, and read the hinge, its slope and success off the answer."""
        answer = siege.gradient(x, steering(siege), through=unseen if self.hidden else None)
        gap = short(answer.loss.double(), self.kappa)
        won = siege.record.reached(siege.rows, answer.labels) & (gap <= 0)
        slope = answer.gradient * siege.ball.scaled(gap > 0)
        return Seen(gap, slope, won)

    @property
    def hidden(self) -> bool:
        """Whether points reach the goal that must not be kept, so that the siege may not look."""
        return self.kappa > 0

    def first_weight(self) -> float:
        """The weight of the first round."""
        if self.first is not None:
            return self.first
        return PUBLISHED_FIRST if self.compat else FIRST

    def rates(self, device: torch.device) -> Tensor:
        """The rate at every step of a round, float64."""
        rate = self.rate if self.rate is not None else PUBLISHED_RATE if self.compat else RATE
        end = 1.0 if self.compat else END
        # A table: powers of single rows are rounded by other code than those of many.
        return torch.tensor(
            [rate * end ** (step / self.steps) for step in range(self.steps)],
            dtype=torch.float64,
            device=device,
        )


def weigh(attack: CW, siege: Siege) -> None:
    """In l2: ``|d|^2 + c * hinge``, the weight c searched row by row."""
    compat, center = attack.compat, siege.ball.center
    variable = Tanh() if compat else Clip()
    decays = PUBLISHED_DECAYS if compat else (MOMENTUM, MEMORY)
    rates = attack.rates(center.device)
    table = corrections(decays, attack.steps * attack.rounds, center.device)
    every = max(1, attack.steps // 10)
    w, adam, best = variable.of(siege.ball, center).clone(), Adam.at(center), Best(siege)
    weights = Weights.of(len(siege), attack.first_weight(), center.device)
    won = torch.zeros(len(siege), dtype=torch.bool, device=center.device)
    step, turn = torch.zeros_like(adam.made), torch.zeros_like(adam.made)
    # The hinge's unit and the length of the steps: one each where all is absolute.
    unit = torch.full_like(weights.c, 1.0 if compat else 0.0)
    stride, last = unit.clone(), torch.full_like(unit, torch.inf)
    held, unknown = [*attack.held(siege)], not compat
    for count in range(1, attack.rounds * attack.steps + 1):
        x = variable.image(siege.ball, w)
        seen = attack.look(siege, x, *held)
        if attack.hidden:
            best.note(siege, x, seen.won)
        state = (w, x, *seen, *adam, *weights, won, step, turn, unit, stride, last, *held)
        w, x, *rest = best.settle(siege, *state)
        if not len(siege):
            return
        seen, adam, weights = Seen(*rest[:3]), Adam(*rest[3:6]), Weights(*rest[6:9])
        won, step, turn, unit, stride, last, *held = rest[9:]
        here = siege.ball
        if unknown:
            unit, stride, flat = _measured(siege, seen, unit, stride)
            unknown = bool(flat.any())
            if unknown:
                w = torch.where(here.scaled(flat) > 0, elsewhere(siege), w)
        change = x - here.center
        pull = change.mul(2.0).sub_(seen.slope.mul(here.scaled(weights.c * unit)))
        adam, move = adam.step(variable.pull(here, w, pull), decays, table)
        w = variable.land(here, w.sub_(move.mul_(here.scaled(rates[step] * stride))))
        won, step = won | seen.won, step + 1
        over = step == attack.steps
        if attack.abort:
            value = distances(change, L2) ** 2 + weights.c * unit * seen.gap
            checked = step % every == 0
            over = over | (checked & (value > STALLED * last))
            last = torch.where(over, torch.inf, torch.where(checked, value, last))
        both = zip(weights.after(won), weights, strict=True)
        weights = Weights(*(torch.where(over, new, old) for new, old in both))
        if compat:  # every round begins anew
            w = torch.where(here.scaled(over) > 0, variable.of(here, here.center), w)
            adam = adam.rested(over)
        won, step, turn = won & ~over, step * ~over, turn + over
        if count % every == 0:
            best.offer(siege)
            done = turn >= attack.rounds
            if bool(done.any()):
                _last(attack, siege, variable.image(here, w), done.nonzero()[:, 0])
                siege.leave(done)
    best.offer(siege)
    _last(attack, siege, variable.image(siege.ball, w))


def _last(attack: CW, siege: Siege, x: Tensor, rows: Tensor | None = None) -> None:
    """Have the points looked at where rows end; where the siege may not look, others are kept."""
    if not attack.hidden:
        siege.logits(x if rows is None else x[rows], rows=rows)


def _measured(
    siege: Siege, seen: Seen, unit: Tensor, stride: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Units and strides of rows that have none yet, and which of them see no slope.

    In these units the weight 1 is just enough for a linear victim: at its boundary the pull of the
    distance, ``2 d``, and that of the hinge are the same. At rate one a stride in every entry
    leads as far as the boundary.
    """
    new = unit == 0
    far = flat_gap(siege, L2, seen)
    stride = torch.where(new, far / math.sqrt(siege.ball.size), stride)
    unit = torch.where(new & (far > 0), 2.0 * far**2 / seen.gap.clamp_min(1e-300), unit)
    return unit, stride, (unit == 0) & (seen.gap > 0)


def level(attack: CW, siege: Siege) -> None:
    """In linf: ``sum max(|d| - tau, 0) + c * hinge``, the level tau searched row by row."""
    center = siege.ball.center
    decays = (MOMENTUM, MEMORY)
    rates = attack.rates(center.device)
    table = corrections(decays, attack.steps, center.device)
    x, best = center.clone(), Best(siege)
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
            best.note(siege, x, seen.won)
            state = (x, *seen, *adam, c, low, tau, unit, reach, before)
            x, *rest = best.settle(siege, *state)
            if not len(siege):
                return
            seen, adam = Seen(*rest[:3]), Adam(*rest[3:6])
            c, low, tau, unit, reach, before = rest[6:]
            here = siege.ball
            if turn == 0 and step < 2:
                new = (reach == 0) & (seen.gap > 0)
                reach = torch.where(new, flat_gap(siege, Linf, seen), reach)
                tau = torch.where(new, 0.9 * reach, tau)
                steep = here.dual(seen.slope)
                unit = torch.where(new & (steep > 0), here.size / steep, unit)
                x = torch.where(here.scaled(new & (reach == 0)) > 0, elsewhere(siege), x)
            change = x - here.center
            pull = torch.sign(change) * (change.abs() > here.scaled(tau))
            pull = pull.sub_(seen.slope.mul(here.scaled(c * unit)))
            adam, move = adam.step(pull, decays, table)
            pace = BRISK if turn == 0 else CALM
            x = x.sub_(move.mul_(here.scaled(pace * rates[step] * reach))).clamp_(*here.box)
        if attack.hidden:
            best.offer(siege)
        ever = torch.isfinite(best.far)
        low = torch.where(ever & (best.far >= before), torch.maximum(low, tau), low)
        c = torch.where(ever, c, 2.0 * c)
        tau = torch.where(ever, torch.maximum(0.5 * (low + best.far), 0.9 * best.far), 1.5 * tau)
    _last(attack, siege, x)


def sparse(attack: CW, siege: Siege) -> None:
    """In l0: the descent of l2 on some entries, and how many are needed searched row by row.

    The first round changes all. The others change those whose change times slope was largest in
    the last success: as many as the geometric mean of a number that was enough and one that was
    not.
    """
    center = siege.ball.center
    decays = (MOMENTUM, MEMORY)
    rates = attack.rates(center.device)
    table = corrections(decays, attack.steps, center.device)
    x, best = center.clone(), Best(siege)
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
                best.note(siege, x, seen.won)
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
                gap = torch.where(new, seen.gap, gap)
                unit, stride = _within(siege, clean, gap)
                x = torch.where(here.scaled(new & (unit == 0)) > 0, elsewhere(siege), x)
            found = torch.where(here.scaled(seen.won) > 0, x, found)
            steep = torch.where(here.scaled(seen.gap > 0) > 0, seen.slope, steep)
            won = won | seen.won
            change = x - here.center
            pull = change.mul_(2.0).sub_(seen.slope.mul(here.scaled(c * unit))).mul_(mask)
            adam, move = adam.step(pull, decays, table)
            x = (x - move.mul_(here.scaled(rates[step] * stride))).clamp_(*here.box)
        if attack.hidden:
            best.offer(siege)
        change = found - here.center
        high = torch.where(won, distances(change, L0), high)
        low = torch.where(won | torch.isinf(high), low, torch.maximum(low, distances(mask, L0)))
        c = torch.where(won | torch.isfinite(high), c, RAISE * c)
        many = torch.floor(torch.sqrt(low * high)).clamp_max(here.size)
        kept = _highest((change * steep).abs(), many)
        mask = torch.where(here.scaled(torch.isfinite(high)) > 0, kept, mask)
        x = here.center + change * mask
    _last(attack, siege, x)


def _within(siege: Siege, slope: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Unit and stride of `weigh` if only the entries with a slope may change."""
    far = flat_gap(siege, L2, Seen(gap, slope, gap > 0))
    some = distances(slope, L0).clamp_min(1.0)
    return 2.0 * far**2 / gap.clamp_min(1e-300), far / some.sqrt()


def _highest(score: Tensor, many: Tensor) -> Tensor:
    """1 for so many of the highest entries of each row that are above zero, else 0."""
    flat = score.flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    place = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, place)
    return ((rank < many[:, None]) & (flat > 0)).to(score.dtype).view_as(score)


FORMS: Mapping[Norm, Callable[[CW, Siege], None]] = MappingProxyType(
    {L2: weigh, Linf: level, L0: sparse}
)
