"""EAD: Carlini and Wagner's attack with a sparse change, by iterative shrinkage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.planes import steering
from besiege.attacks.smallest import endless
from besiege.attacks.weighting import UNSET, Best, Weights, elsewhere, short, unseen
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import number, one_of, whole_number
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Linf, Norm

FIRST, PUBLISHED_FIRST = 10.0, 1e-3
"""The first weight, in weights at which the steepest entry just begins to move, and as published,
in absolute terms."""

STALLED = 0.9999
"""A row that does not fall below this share of what it was a tenth of the round ago has stalled."""

NARROW = 0.1
"""A bracket of weights so narrow, in shares of its upper end, is searched no further."""

KEEPS: Mapping[str, Norm | None] = MappingProxyType({"l1": L1, "en": None})
"""The norm in which the siege's own choice of the smallest is that of the rule."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "ead-en-2018": "ead(steps=1000, rule='en', beta=0.001, compat=True)",
        "ead-l1-2018": "ead(steps=1000, beta=0.001, compat=True)",
        "ead-su": "ead(steps=1000, first=0.01, rate=0.001, beta=0.001, compat=True)",
        "ead-deepsec-en": "ead(steps=10000, rule='en', rate=0.02, beta=0.001, compat=True)",
        "ead-deepsec-l1": "ead(steps=10000, rate=0.02, beta=0.001, compat=True)",
    }
)
"""Published settings: Chen et al. 2018, Su et al. 2018, DEEPSEC 2019 (there at a constant rate)."""


class State(NamedTuple):
    """Where a round is; everything with the rows first.

    Attributes
    ----------
    x, y : Tensor
        The shrunken points, and those ahead, where the slope is taken.
    weights : Weights
        The search over the weight.
    unit : Tensor
        What weights are measured by; zero until it is known.
    won, going : Tensor
        Whether there was a success in this round, and whether the row still descends in it.
    last : Tensor
        The objective when it was last looked at.
    """

    x: Tensor
    y: Tensor
    weights: Weights
    unit: Tensor
    won: Tensor
    going: Tensor
    last: Tensor


@register("ead")
@dataclass(frozen=True)
class EAD(Attack):
    """Elastic-net attack: descend ``c * hinge + |d|_2^2 + beta |d|_1`` by iterative shrinkage.

    Every step moves along the gradient at a point ahead, takes `beta` off every entry's change,
    which leaves most at exactly nothing, and cuts to the box; the weight c is searched as by `cw`
    (Chen et al., EAD: elastic-net attacks to deep neural networks, 2018). Success is judged at the
    shrunken points, not at those ahead, with a forward of its own. As published all of `beta` is
    taken off although the rate falls, so that changes become sparser to the end of a round.

    The weight is measured by the steepest entry of the clean image's slope, so that the scale of
    the logits does not matter; ``compat=True`` takes it as it is.

    Parameters
    ----------
    rounds : int
        Weights tried one after the other, each from the clean image.
    steps : int
        Steps of every round.
    beta : float
        What a step takes off every change, in widths of the box: the larger, the sparser. 0.001 as
        published; on networks 0.01 ends a tenth nearer in l1.
    rule : str
        Which success is the smallest where there is no budget: that of the least 'l1', or 'en', of
        the least ``|d|_2^2 + beta |d|_1``. Where the threat's norm is another, what the rule chose
        is asked about once more at the end, and judging costs a backward.
    kappa : float
        By how much, in logits, the goal must be surpassed.
    first : float, optional
        The first weight: by default 10, ten times what makes one entry move at all.
    rate : float
        The length of the first steps; it falls as the root of the steps left.
    abort : bool
        Whether a row waits for its next weight when it does not descend any more, looked at after
        every tenth of a round.
    compat : bool
        As published: `first` (0.001) is absolute, in squared widths of the box.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("ead(rule='en')"))
    "ead(rule='en')"
    """

    rounds: int = whole_number(9)
    steps: int = whole_number(100)
    beta: float = number(0.01, above=0)
    rule: Literal["l1", "en"] = one_of("l1", "en")
    kappa: float = number(0.0)
    first: float | None = number(None, above=0)
    rate: float = number(0.01, above=0)
    abort: bool = True
    compat: bool = False

    minimal = True
    norms = frozenset({L1, L2})
    source = "Chen et al., EAD: elastic-net attacks to deep neural networks, 2018"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if not len(siege):
            return
        center = siege.ball.center
        hidden = self._hides(siege)
        first = self.first or (PUBLISHED_FIRST if self.compat else FIRST)
        weights = Weights.of(len(siege), first, center.device)
        unit = torch.full_like(weights.c, siege.ball.width**2 if self.compat else 0.0)
        best, every = Best(siege, hidden), max(1, self.steps // 10)
        none = torch.zeros_like(unit, dtype=torch.bool)
        at = State(center, center, weights, unit, none, none, unit)
        for turn in range(self.rounds):
            at = self._begun(siege.ball, at)
            if not bool(at.going.any()):
                break
            for step in range(self.steps):
                answer = self._ask(siege, at.y, at.going, hidden=True)
                answer, at = best.settle(siege, (answer, at))
                if not len(siege):
                    return
                if turn == 0 and step < 2 and not self.compat:
                    at = self._measured(siege, answer, at)
                at = self._moved(siege, answer, at, step)
                told = self._ask(siege, at.x, at.going, hidden)
                good = siege.record.reached(siege.rows, told.labels) & (told.loss >= self.kappa)
                good &= at.going
                at = at._replace(won=at.won | good)
                if hidden:
                    best.note(at.x, good, self._size(siege.ball, at.x))
                told, at = best.settle(siege, (told, at))
                if not len(siege):
                    return
                if self.abort and (step + 1) % every == 0:
                    weighed = at.weights.c * at.unit * short(siege, told, self.kappa)
                    value = self._descended(siege.ball, at.x) + weighed
                    going = at.going & (at.won | ~(value > STALLED * at.last))
                    at = at._replace(going=going, last=value)
                    if not bool(going.any()):
                        break
            at = at._replace(weights=at.weights.after(at.won))
        best.offer(siege)

    def _begun(self, ball: Ball, at: State) -> State:
        """A round from the clean images; rows whose weight is known well enough sit it out."""
        c, low, high = at.weights
        settled = (high < UNSET) & (high - low < NARROW * high)
        return at._replace(
            x=ball.center,
            y=ball.center,
            won=torch.zeros_like(settled),
            going=~(settled & self.abort),
            last=torch.full_like(c, torch.inf),
        )

    def _moved(self, siege: Siege, answer: Answer, at: State, step: int) -> State:
        """One step of the rows whose round goes on."""
        pull = at.weights.c * at.unit * (short(siege, answer, self.kappa) > 0)
        new = self._shrunk(siege.ball, at.y, answer.gradient, pull, step)
        ahead = (new + (step / (step + 3)) * (new - at.x)).clamp_(*siege.ball.box)
        return at._replace(x=pick(at.going, new, at.x), y=pick(at.going, ahead, at.y))

    def _ask(self, siege: Siege, x: Tensor, going: Tensor, hidden: bool) -> Answer:
        """Ask about the rows whose round goes on; where hidden, nothing is kept of the answers."""
        rows = None if bool(going.all()) else going.nonzero()[:, 0]
        some = x if rows is None else x[rows]
        if hidden:
            answer = siege.gradient(some, steering(siege), through=unseen, rows=rows)
        else:
            answer = siege.logits(some, rows=rows, loss=steering(siege))
        return answer if rows is None else answer.blank(len(x)).put(rows, answer)

    def _descended(self, ball: Ball, x: Tensor) -> Tensor:
        """What is descended on besides the hinge, float64."""
        change = x - ball.center
        return distances(change, L2) ** 2 + self.beta * ball.width * distances(change, L1)

    def _hides(self, siege: Siege) -> bool:
        """Whether the siege may not look, for it would keep what the rule does not want."""
        bounded = bool(torch.isfinite(siege.ball.radius).all())
        # What is hidden is offered at the end, which a row whose queries end does not see.
        limited = siege.record.meter.budget is not None
        return self.kappa > 0 or not (bounded or limited or KEEPS[self.rule] is siege.ball.norm)

    def _size(self, ball: Ball, x: Tensor) -> Tensor:
        """What the rule compares, float64."""
        return distances(x - ball.center, L1) if self.rule == "l1" else self._descended(ball, x)

    def _measured(self, siege: Siege, answer: Answer, at: State) -> State:
        """Units in which the weight 1 is where the steepest entry begins to move.

        Rows that see no slope are put elsewhere, and measured there.
        """
        steep, beta = distances(answer.gradient, Linf), self.beta * siege.ball.width
        sloping = torch.where(steep > 0, beta / (self.rate * steep), 0.0)
        unit = torch.where(at.unit == 0, sloping, at.unit)
        flat = unit == 0
        y = pick(flat, elsewhere(siege), at.y) if bool(flat.any()) else at.y
        return at._replace(unit=unit, y=y)

    def _shrunk(self, ball: Ball, y: Tensor, slope: Tensor, pull: Tensor, step: int) -> Tensor:
        rate = self.rate * math.sqrt(1.0 - step / self.steps)
        change = y - ball.center
        change = change - rate * (2.0 * change - ball.scaled(pull) * slope)
        kept = torch.copysign((change.abs() - self.beta * ball.width).clamp_min_(0.0), change)
        return kept.add_(ball.center).clamp_(*ball.box)
