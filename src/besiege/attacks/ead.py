"""EAD: Carlini and Wagner's attack with an elastic-net penalty, by iterative shrinkage."""

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
from besiege.attacks.weighting import (
    STALLED,
    UNSET,
    Best,
    Weights,
    elsewhere,
    short,
)
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import number, one_of, whole_number, yes_or_no
from besiege.core.rowwise import pick
from besiege.core.siege import Siege, not_examined
from besiege.core.threat import L1, L2, Linf, Norm

FIRST, PUBLISHED_FIRST = 10.0, 1e-3
"""First weight, in units of the one at which the steepest pixel value just begins to move, and as
published, in absolute units."""

NARROW = 0.1
"""A bracket of weights this narrow, relative to its upper end, is searched no further."""

KEEPS: Mapping[str, Norm | None] = MappingProxyType({"l1": L1, "en": None})
"""The norm in which the siege keeps the same success as the rule."""


class State(NamedTuple):
    """The state of a round, rows first.

    Attributes
    ----------
    x, y : Tensor
        The shrunken iterates, and the extrapolated points where the gradient is taken.
    weights : Weights
        The search over the weight.
    unit : Tensor
        Unit of weights; zero until measured.
    won, going : Tensor
        Whether there was a success in this round, and whether the row still moves in it.
    last : Tensor
        The objective at the last check.
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
    """Elastic-net attack: minimize ``c * hinge + |d|_2^2 + beta |d|_1`` by iterative shrinkage.

    Every step moves along the gradient at an extrapolated point, soft-thresholds the perturbation
    by `beta`, which sets most pixel values back exactly, and clips to the box. The weight c is
    searched as in `cw` (Chen et al., EAD: elastic-net attacks to deep neural networks, 2018).
    Success is judged at the shrunken iterates, not at the extrapolated points, by an extra forward
    pass. As published the threshold stays `beta` although the rate falls, so that perturbations
    become sparser until the end of a round.

    The weight is measured in units of the clean image's steepest gradient component, so that the
    scale of the logits does not matter; ``compat=True`` uses absolute weights. The extrapolated
    points are clipped to the box; as published they are not, and the gradient of a saturated pixel
    may be taken outside it.

    Parameters
    ----------
    rounds : int
        Weights tried one after the other, each from the clean image.
    steps : int
        Steps of every round.
    beta : float
        Soft threshold, in box widths: the larger, the sparser. The paper has 0.001; on networks
        0.01 ends a tenth nearer in l1.
    rule : str
        The smallest success without a budget: least 'l1', or 'en' for least ``|d|_2^2 + beta
        |d|_1``. If the threat has another norm, the rule's choice is queried once more at the end,
        and judging a step costs a backward pass.
    kappa : float
        Confidence: the margin to reach, in logits.
    first : float, optional
        First weight: by default 10, ten times what makes one pixel value move at all.
    rate : float
        First step size.
    decay : bool
        Whether the rate falls as the square root of the steps left, or is constant.
    abort : bool
        Whether a row waits for its next weight when its objective stops falling, checked after
        every tenth of a round.
    compat : bool
        As published: `first` (0.001) is absolute, in squared box widths, extrapolated points are
        not clipped, and a round that stalls ends whether it had a success or not.
    repeat : bool
        Published: with ten rounds or more the last one repeats the smallest weight that sufficed.

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
    decay: bool = yes_or_no(True, added=True)
    repeat: bool = yes_or_no(False, added=True)

    minimal = True
    norms = frozenset({L1, L2})
    source = "Chen et al., EAD: elastic-net attacks to deep neural networks, 2018"

    @property
    def revision(self) -> int:  # type: ignore[override]  # of every attack one, here of its form
        """Part of the identity: 2 does not clip extrapolated points."""
        return 2 if self.compat else 1

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
            at = self._begun(siege.ball, at, turn)
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
                judged = self._ask(siege, at.x, at.going, hidden)
                good = siege.record.reached(siege.rows, judged.labels)
                good &= judged.loss >= self.kappa
                good &= at.going
                # As published the first iterate is checked too: every check is a step earlier.
                checked = self.abort and (step if self.compat else step + 1) % every == 0
                if checked and self.compat:
                    at = self._slowed(siege, judged, at)
                    good &= at.going
                at = at._replace(won=at.won | good)
                if hidden:
                    best.note(at.x, good, self._size(siege.ball, at.x))
                judged, at = best.settle(siege, (judged, at))
                if not len(siege):
                    return
                if checked and not self.compat:
                    at = self._slowed(siege, judged, at)
                if checked and not bool(at.going.any()):
                    break
            at = at._replace(weights=at.weights.after(at.won))
        best.offer(siege)

    def _slowed(self, siege: Siege, judged: Answer, at: State) -> State:
        """The state without the rows whose objective stalls, unless they had a success."""
        weighed = at.weights.c * at.unit * short(siege, judged, self.kappa)
        value = self._descended(siege.ball, at.x) + weighed
        falls = ~(value > STALLED * at.last)
        return at._replace(going=at.going & (falls if self.compat else at.won | falls), last=value)

    def _begun(self, ball: Ball, at: State, turn: int) -> State:
        """A round from the clean images; rows whose weight is known precisely enough skip it."""
        weights = at.weights
        c, low, high = weights
        settled = (high < UNSET) & (high - low < NARROW * high) & (not self.compat)
        if self.repeat:
            weights = weights.repeated(torch.ones_like(settled), turn, self.rounds)
        return at._replace(
            weights=weights,
            x=ball.center,
            y=ball.center,
            won=torch.zeros_like(settled),
            going=~(settled & self.abort),
            last=torch.full_like(c, torch.inf),
        )

    def _moved(self, siege: Siege, answer: Answer, at: State, step: int) -> State:
        """One step of the rows that still move."""
        pull = at.weights.c * at.unit * (short(siege, answer, self.kappa) > 0)
        new = self._shrunk(siege.ball, at.y, answer.gradient, pull, step)
        ahead = new + (step / (step + 3)) * (new - at.x)
        if not self.compat:
            ahead = ahead.clamp_(*siege.ball.box)
        return at._replace(x=pick(at.going, new, at.x), y=pick(at.going, ahead, at.y))

    def _ask(self, siege: Siege, x: Tensor, going: Tensor, hidden: bool) -> Answer:
        """Query the rows that still move; if hidden, successes are not recorded."""
        rows = None if bool(going.all()) else going.nonzero()[:, 0]
        some = x if rows is None else x[rows]
        loss = steering(siege, sure=not self.compat)
        if hidden:
            answer = siege.gradient(some, loss, through=not_examined, rows=rows)
        else:
            answer = siege.logits(some, rows=rows, loss=loss)
        return answer if rows is None else answer.blank(len(x)).put(rows, answer)

    def _descended(self, ball: Ball, x: Tensor) -> Tensor:
        """The objective without the hinge, float64."""
        change = x - ball.center
        return distances(change, L2) ** 2 + self.beta * ball.width * distances(change, L1)

    def _hides(self, siege: Siege) -> bool:
        """Whether the siege must not record successes, since it would keep others than the rule."""
        bounded = bool(torch.isfinite(siege.ball.radius).all())
        # Hidden successes are offered at the end, which rows with a query budget may not reach.
        limited = siege.record.meter.budget is not None
        return self.kappa > 0 or not (bounded or limited or KEEPS[self.rule] is siege.ball.norm)

    def _size(self, ball: Ball, x: Tensor) -> Tensor:
        """The size that the rule compares, float64."""
        return distances(x - ball.center, L1) if self.rule == "l1" else self._descended(ball, x)

    def _measured(self, siege: Siege, answer: Answer, at: State) -> State:
        """Units in which weight 1 is where the steepest pixel value begins to move.

        Rows whose gradient is zero move to a random point and are measured there.
        """
        steep, beta = distances(answer.gradient, Linf), self.beta * siege.ball.width
        sloping = torch.where(steep > 0, beta / (self.rate * steep), 0.0)
        unit = torch.where(at.unit == 0, sloping, at.unit)
        flat = unit == 0
        y = pick(flat, elsewhere(siege), at.y) if bool(flat.any()) else at.y
        return at._replace(unit=unit, y=y)

    def _shrunk(self, ball: Ball, y: Tensor, slope: Tensor, pull: Tensor, step: int) -> Tensor:
        rate = self.rate * (math.sqrt(1.0 - step / self.steps) if self.decay else 1.0)
        change = y - ball.center
        change = change - rate * (2.0 * change - ball.scaled(pull) * slope)
        kept = torch.copysign((change.abs() - self.beta * ball.width).clamp_min_(0.0), change)
        return kept.add_(ball.center).clamp_(*ball.box)
