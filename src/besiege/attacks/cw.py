"""Carlini and Wagner's attacks: distance plus a weighted hinge, descended by Adam.

In l2 the weight is searched row by row. In linf and l0 the search is another (`cw_norms`). Which
one a norm takes is a table here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.cw_norms import level, sparse
from besiege.attacks.planes import steering
from besiege.attacks.smallest import apparent, endless
from besiege.attacks.weighting import (
    DECAYS,
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
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import number, whole_number
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L0, L2, Linf, Norm

FIRST, RATE = 1.0, 0.5
"""The first weight, in weights that are just enough if the victim is linear, and the length of the
first steps, in distances to its boundary."""

PUBLISHED_FIRST, PUBLISHED_RATE = 1e-3, 0.01
"""The same in absolute terms, as published."""

END = 0.04
"""What is left of the rate at the end of a round."""

PUBLISHED_DECAYS = (0.9, 0.999)

STALLED = 0.9999
"""A round is given up where this share of the objective is left after a tenth of it."""

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

    rounds: int = whole_number(9)
    steps: int = whole_number(100)
    kappa: float = number(0.0)
    first: float | None = number(None, above=0)
    rate: float | None = number(None, above=0)
    abort: bool = True
    compat: bool = False

    minimal = True
    revision = 2  # other steps in linf
    norms = frozenset({L2, Linf, L0})
    source = "Carlini and Wagner, Towards evaluating the robustness of neural networks, 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
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
        gap = short(siege, answer, self.kappa)
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

    @property
    def every(self) -> int:
        """After how many steps it is looked at whether a row descends."""
        return max(1, self.steps // 10)

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

    def end(self, siege: Siege, x: Tensor, rows: Tensor | None = None) -> None:
        """Have points looked at where rows end; where the siege may not look, others are kept."""
        if not self.hidden:
            siege.logits(x if rows is None else x[rows], rows=rows)


class State(NamedTuple):
    """Where a descent in l2 is; everything with the rows first.

    Attributes
    ----------
    w : Tensor
        What is descended on.
    adam, weights
        Adam's state, and the search over the weight.
    won : Tensor
        Whether there was a success in this round.
    step, turn : Tensor
        Steps of this round, and rounds before it.
    unit, stride : Tensor
        What weights and steps are measured by; zero until it is known.
    last : Tensor
        The objective when it was last looked at.
    held : tuple of Tensor
        What `CW.look` is given besides (`CW.held`).
    """

    w: Tensor
    adam: Adam
    weights: Weights
    won: Tensor
    step: Tensor
    turn: Tensor
    unit: Tensor
    stride: Tensor
    last: Tensor
    held: tuple[Tensor, ...]

    @classmethod
    def of(cls, attack: CW, siege: Siege, w: Tensor) -> State:
        """Before the first step."""
        adam = Adam.at(w)
        weights = Weights.of(len(siege), attack.first_weight(), w.device)
        # The hinge's unit and the length of the steps: where all is absolute, those of a box of
        # width one, in which the variable of the tanh has no width.
        unit = torch.full_like(weights.c, siege.ball.width**2 if attack.compat else 0.0)
        return cls(
            w,
            adam,
            weights,
            won=torch.zeros_like(adam.made, dtype=torch.bool),
            step=torch.zeros_like(adam.made),
            turn=torch.zeros_like(adam.made),
            unit=unit,
            stride=torch.full_like(unit, 1.0 if attack.compat else 0.0),
            last=torch.full_like(unit, torch.inf),
            held=attack.held(siege),
        )


def weigh(attack: CW, siege: Siege) -> None:
    """In l2: ``|d|^2 + c * hinge``, the weight c searched row by row."""
    center, variable = siege.ball.center, Tanh() if attack.compat else Clip()
    decays = PUBLISHED_DECAYS if attack.compat else DECAYS
    rates = attack.rates(center.device)
    table = corrections(decays, attack.steps * attack.rounds, center.device)
    state = State.of(attack, siege, variable.of(siege.ball, center).clone())
    best, unknown = Best(siege, attack.hidden), not attack.compat
    for count in range(1, attack.rounds * attack.steps + 1):
        x = variable.image(siege.ball, state.w)
        seen = attack.look(siege, x, *state.held)
        if attack.hidden:
            best.note(x, seen.won, siege.ball.distance(x))
        x, seen, state = best.settle(siege, (x, seen, state))
        if not len(siege):
            return
        here = siege.ball
        if unknown:
            state, flat = _measured(siege, seen, state)
            unknown = bool(flat.any())
            if unknown:
                state = state._replace(w=pick(flat, elsewhere(siege), state.w))
        change = x - here.center
        pull = change.mul(2.0).sub_(seen.slope.mul(here.scaled(state.weights.c * state.unit)))
        adam, move = state.adam.step(variable.pull(here, state.w, pull), decays, table)
        move.mul_(here.scaled(rates[state.step] * state.stride))
        state = state._replace(w=variable.land(here, state.w.sub_(move)), adam=adam)
        state, over = _next(attack, state, seen, change)
        if attack.compat:  # every round begins again
            w = pick(over, variable.of(here, here.center), state.w)
            state = state._replace(w=w, adam=state.adam.rested(over))
        if count % attack.every == 0:
            best.offer(siege)
            done = state.turn >= attack.rounds
            if bool(done.any()):
                attack.end(siege, variable.image(here, state.w), done.nonzero()[:, 0])
                siege.leave(done)
    best.offer(siege)
    attack.end(siege, variable.image(siege.ball, state.w))


def _next(attack: CW, state: State, seen: Seen, change: Tensor) -> tuple[State, Tensor]:
    """The state after a step, with the next weight where a round is over; and where it is."""
    won, step, last = state.won | seen.won, state.step + 1, state.last
    over = step == attack.steps
    if attack.abort:
        value = distances(change, L2) ** 2 + state.weights.c * state.unit * seen.gap
        checked = step % attack.every == 0
        over = over | (checked & (value > STALLED * last))
        last = torch.where(over, torch.inf, torch.where(checked, value, last))
    state = state._replace(
        weights=state.weights.next(won, over),
        won=won & ~over,
        step=step * ~over,
        turn=state.turn + over,
        last=last,
    )
    return state, over


def _measured(siege: Siege, seen: Seen, state: State) -> tuple[State, Tensor]:
    """Units and strides of rows that have none yet, and which of them see no slope.

    In these units the weight 1 is just enough for a linear victim: at its boundary the pull of the
    distance, ``2 d``, and that of the hinge are the same. At rate one a stride in every entry
    leads as far as the boundary.
    """
    new, gap = state.unit == 0, apparent(siege.ball, seen.gap, seen.slope)
    far = flat_gap(siege, L2, gap, seen.slope)
    stride = torch.where(new, far / math.sqrt(siege.ball.size), state.stride)
    unit = torch.where(new & (far > 0), 2.0 * far**2 / gap.clamp_min(1e-300), state.unit)
    return state._replace(unit=unit, stride=stride), (unit == 0) & (gap > 0)


FORMS: Mapping[Norm, Callable[[CW, Siege], None]] = MappingProxyType(
    {L2: weigh, Linf: level, L0: sparse}
)
