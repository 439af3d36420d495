"""Carlini and Wagner's attacks: distance plus a weighted hinge, minimized by Adam.

In l2 the weight is searched row by row. The searches in linf and l0 are in `cw_norms`.
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
    STALLED,
    TANH,
    USUAL_DECAYS,
    Adam,
    Best,
    Clip,
    Seen,
    Tanh,
    Weights,
    corrections,
    elsewhere,
    flat_gap,
    floors,
    short,
)
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.rowwise import pick
from besiege.core.siege import Siege, not_examined
from besiege.core.threat import L0, L2, Linf, Norm

FIRST, RATE = 1.0, 0.5
"""First weight, relative to the one that just suffices for a linear victim, and first step size,
relative to the distance to its boundary."""

PUBLISHED_FIRST, PUBLISHED_RATE = 1e-3, 0.01
"""The same in absolute units, as published."""

END = 0.04
"""Fraction of the rate left at the end of a round."""


@register("cw")
@dataclass(frozen=True)
class CW(Attack):
    """Carlini and Wagner's attack: minimize ``|d|^2 + c * hinge`` by Adam.

    The hinge is the amount by which the margin misses the wanted confidence. In l2 the weight c is
    searched row by row: lowered after a round with a success, multiplied by ten while there is none
    (Carlini and Wagner, Towards evaluating the robustness of neural networks, 2017).

    Three things differ from the paper, all for short runs. Hinge and step size are measured in
    units of the boundary distance estimated at the clean image: the scale of the logits does not
    matter, the first weight is nearly right, and a hundred steps suffice. Images are clipped to the
    box instead of being a tanh, whose derivative nearly vanishes at saturated pixels. And the next
    weight resumes from the last iterate, with Adam's state. ``compat=True`` is as published in all
    three.

    In linf pixel values that exceed a level are penalised, and the level is searched. In l0 the
    attack is that of l2 on ever fewer pixel values, those with the largest product of perturbation
    and gradient.

    Parameters
    ----------
    rounds : int
        Weights (levels, sets of pixel values) tried one after the other.
    steps : int
        Most steps of a round.
    kappa : float
        Confidence: the margin to reach, in logits. Its meaning differs between models. Less
        confident points are not kept, and the others cost one more forward pass.
    first : float, optional
        First weight: by default 1, which would just suffice for a linear victim.
    rate : float, optional
        Adam's rate: by default 0.5, in units of a linear victim's boundary distance.
    abort : bool
        Whether a row moves on to its next weight when its objective stops falling.
    compat : bool
        As published: a tanh variable, absolute `first` (0.001) and `rate` (0.01), Adam's usual
        decays and epsilon, every round from the clean image. In l2 only.
    repeat : bool
        Published: with ten rounds or more the last one repeats the smallest weight that sufficed.
    resume : bool
        With `compat`, whether a round begins at the last iterate instead of the clean image.
    edge : float
        With `compat`, the tanh at which saturated pixels start: the smaller, the sooner they move.

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
    repeat: bool = yes_or_no(False, added=True)
    resume: bool = yes_or_no(False, added=True)
    edge: float = number(TANH, above=0, below=1, added=True)

    minimal = True
    norms = frozenset({L2, Linf, L0})
    source = "Carlini and Wagner, Towards evaluating the robustness of neural networks, 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compat:  # the published attacks of the other norms differ
            object.__setattr__(self, "norms", self.norms & {L2})

    @property
    def revision(self) -> int:  # type: ignore[override]  # of every attack one, here of its form
        """Part of the identity: 2 has other steps in linf; 3 is Adam with its epsilon."""
        return 3 if self.compat else 2

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if len(siege):
            FORMS[siege.ball.norm](self, siege)

    def held(self, siege: Siege) -> tuple[Tensor, ...]:
        """What `look` needs of every row, drawn once."""
        return ()

    def look(self, siege: Siege, x: Tensor, *held: Tensor) -> Seen:
        """Query the iterates; returns the hinge, its gradient and the successes."""
        answer = siege.gradient(
            x,
            steering(siege, sure=not self.compat),
            through=not_examined if self.hidden else None,
        )
        gap = short(siege, answer, self.kappa)
        won = siege.record.reached(siege.rows, answer.labels) & (gap <= 0)
        slope = answer.gradient * siege.ball.scaled(gap > 0)
        return Seen(gap, slope, won)

    @property
    def hidden(self) -> bool:
        """Whether the siege must not record successes: points below the confidence do not count."""
        return self.kappa > 0

    def first_weight(self) -> float:
        """The weight of the first round."""
        return self.first or (PUBLISHED_FIRST if self.compat else FIRST)

    @property
    def every(self) -> int:
        """Steps between checks whether a row's objective still falls."""
        return max(1, self.steps // 10)

    def rates(self, device: torch.device) -> Tensor:
        """The rate at every step of a round, float64."""
        rate = self.rate or (PUBLISHED_RATE if self.compat else RATE)
        end = 1.0 if self.compat else END
        # A table: the rounding of torch's powers depends on the number of rows.
        rates = [rate * end ** (step / self.steps) for step in range(self.steps)]
        return torch.tensor(rates, dtype=torch.float64, device=device)

    def end(self, siege: Siege, x: Tensor, rows: Tensor | None = None) -> None:
        """Query the last iterates, unless successes are hidden."""
        if not self.hidden:
            siege.logits(x if rows is None else x[rows], rows=rows)


class State(NamedTuple):
    """The state of the descent in l2, rows first.

    Attributes
    ----------
    w : Tensor
        The variable that is optimised.
    adam, weights
        Adam's state, and the search over the weight.
    won : Tensor
        Whether there was a success in this round.
    step, turn : Tensor
        Steps in this round, and rounds before it.
    unit, stride : Tensor
        Units of weights and steps; zero until measured.
    last : Tensor
        The objective at the last check.
    held : tuple of Tensor
        Further arguments of `CW.look` (`CW.held`).
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
        """The state before the first step."""
        adam = Adam.at(w)
        weights = Weights.of(len(siege), attack.first_weight(), w.device)
        # With compat both are absolute: the hinge is scaled to a box of width one, and steps are
        # in the variable of the tanh.
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
    """The search in l2: ``|d|^2 + c * hinge``, with c searched row by row."""
    center, compat = siege.ball.center, attack.compat
    variable = Tanh(attack.edge) if compat else Clip()
    decays, most = USUAL_DECAYS if compat else DECAYS, attack.steps * attack.rounds
    rates = attack.rates(center.device)
    table = corrections(decays, most, center.device)
    # Gradients of the tanh variable grow with the square of the box's width.
    least = floors(decays, most, center.device) * siege.ball.width**2 if compat else None
    state = State.of(attack, siege, variable.of(siege.ball, center).clone())
    best, unknown = Best(siege, attack.hidden), not compat
    for count in range(1, most + 1):
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
        change = x - variable.origin(here)
        pull = change.mul(2.0).sub_(seen.slope.mul(here.scaled(state.weights.c * state.unit)))
        pull = variable.pull(here, state.w, pull)
        adam, move = state.adam.step(pull, decays, table, least)
        move.mul_(here.scaled(rates[state.step] * state.stride))
        state = state._replace(w=variable.land(here, state.w.sub_(move)), adam=adam)
        state, over = _next(attack, state, seen, change)
        if compat:
            w = state.w if attack.resume else pick(over, variable.of(here, here.center), state.w)
            state = state._replace(w=w, adam=state.adam.rested(over))
        if count % attack.every == 0:
            best.offer(siege)
        if compat or count % attack.every == 0:
            done = state.turn >= attack.rounds
            if bool(done.any()):
                best.offer(siege, done)
                if not compat:
                    attack.end(siege, variable.image(here, state.w), done.nonzero()[:, 0])
                siege.leave(done)
    best.offer(siege)
    if not compat:
        attack.end(siege, variable.image(siege.ball, state.w))


def _next(attack: CW, state: State, seen: Seen, change: Tensor) -> tuple[State, Tensor]:
    """The state after a step, with the next weight where a round is over, and where one is."""
    won, step, last = state.won | seen.won, state.step + 1, state.last
    over = step == attack.steps
    if attack.abort:
        value = distances(change, L2) ** 2 + state.weights.c * state.unit * seen.gap
        # As published the first iterate is checked too, so that every check is one step earlier.
        checked = (state.step if attack.compat else step) % attack.every == 0
        stalled = checked & (value > STALLED * last)
        if attack.compat:  # as published the iterate at which a round is given up does not count
            won = torch.where(stalled, state.won, won)
        over = over | stalled
        last = torch.where(over, torch.inf, torch.where(checked, value, last))
    turn, weights = state.turn + over, state.weights.next(won, over)
    if attack.repeat:
        weights = weights.repeated(over, turn, attack.rounds)
    state = state._replace(
        weights=weights, won=won & ~over, step=step * ~over, turn=turn, last=last
    )
    return state, over


def _measured(siege: Siege, seen: Seen, state: State) -> tuple[State, Tensor]:
    """Units and strides of rows that have none yet, and which of those have a zero gradient.

    In these units weight 1 just suffices for a linear victim: at its boundary the gradients of the
    squared distance, ``2 d``, and of the hinge are equal. At rate one, a stride in every pixel
    value goes as far as the boundary.
    """
    new, gap = state.unit == 0, apparent(siege.ball, seen.gap, seen.slope)
    far = flat_gap(siege, L2, gap, seen.slope)
    stride = torch.where(new, far / math.sqrt(siege.ball.size), state.stride)
    unit = torch.where(new & (far > 0), 2.0 * far**2 / gap.clamp_min(1e-300), state.unit)
    return state._replace(unit=unit, stride=stride), (unit == 0) & (gap > 0)


FORMS: Mapping[Norm, Callable[[CW, Siege], None]] = MappingProxyType(
    {L2: weigh, Linf: level, L0: sparse}
)
