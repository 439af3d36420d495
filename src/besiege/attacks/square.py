"""Square: random search with square windows, with scores only.

A step proposes a new perturbation inside one random window and keeps it if the loss rises. The
proposals of each norm are in `besiege.attacks.windows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import ScoreLoss
from besiege.attacks.losses import margin
from besiege.attacks.windows import PROPOSALS, Form, Proposals
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.fields import a_loss, number, one_of, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Linf

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The last step before each halving of the window's area, of 10,000."""

BLOCK = 32
"""Steps drawn at once, between two decisions how many proposals to compute in parallel."""

SCANS = 8
"""Scans between two such decisions."""

_FRESH = 0.05
"""Weight of the last proposal in the acceptance rate."""

_RARE = 1e-4
"""Smallest acceptance rate that matters."""


class State(NamedTuple):
    """The state of the search, rows first.

    Attributes
    ----------
    x : Tensor
        The best point of each row.
    best : Tensor
        Its loss.
    step : Tensor
        Proposals made.
    rate : Tensor
        Recent acceptance rate.
    """

    x: Tensor
    best: Tensor
    step: Tensor
    rate: Tensor


@register("square")
@dataclass(frozen=True)
class Square(Attack):
    """Random search: every step perturbs one window, and is kept if it raises the loss.

    Every row draws its own windows and signs. When few rows are left, several proposals from the
    same point are computed in one call and used in order up to the first that is kept: the same
    search in less time.

    Parameters
    ----------
    steps : int
        Proposals, one query each, after the start.
    p_init : float
        Fraction of the image that the first windows cover.
    restarts : int
        Searches from different random starts; rows already broken are not attacked again.
    rescale : bool
        Whether the schedule of window sizes, made for 10,000 steps, is rescaled to `steps`, as
        first published. AutoAttack does not rescale: a longer search then continues a shorter one.
    loss : callable
        Loss to maximize.
    redraw : bool
        Whether in linf the signs of a proposal that would change nothing are drawn again, as first
        published. AutoAttack does not.
    edge : bool
        Whether windows reach the last row and column. Those of the authors' code do not.
    compat : bool
        True computes changes as the authors' code does: in l2 a change is scaled to the budget and
        what the box then takes is lost; in l1 a new window is as many times its budget as there are
        channels. By default the rest of the change gets what the box takes, and in l1 it is three
        times, also on grey images.

    Examples
    --------
    >>> str(Square(steps=1000, rescale=True))
    'square(steps=1000, rescale=True)'
    """

    steps: int = whole_number(5000)
    p_init: float = number(0.8, above=0, most=1, what="a fraction")
    restarts: int = whole_number(1)
    rescale: bool = one_of(False, True)
    loss: Loss = a_loss(margin)
    redraw: bool = yes_or_no(True, added=True)
    edge: bool = yes_or_no(True, added=True)
    compat: bool = yes_or_no(False, added=True)

    access = Access.SCORE
    norms = frozenset({Linf, L2, L1})
    source: ClassVar[str] = "Andriushchenko et al., Square attack, 2020 (l1: Croce and Hein, 2021)"

    def run(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            # Rows broken in an earlier search have left, unless the caller keeps them.
            rows = siege.view(dice=siege.dice.of("restart", restart))
            if len(rows):
                self._search(rows)

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return self.restarts * (1 + self.steps)

    def halvings(self) -> tuple[int, ...]:
        """The first step of each halved window size."""
        if not self.rescale:
            return tuple(last + 1 for last in HALVINGS)
        # Step t corresponds to step floor(10000 t / steps).
        return tuple(-(-(last + 1) * self.steps // 10000) for last in HALVINGS)

    def _search(self, siege: Siege) -> None:
        halvings = [step for step in self.halvings() if step < self.steps]
        form = Form(self.redraw, self.edge, self.compat)
        proposals = PROPOSALS[siege.ball.norm](siege.ball, self.p_init, halvings, form)
        x = proposals.start(siege.ball, siege.dice.of("start"))
        best = siege.logits(x, loss=ScoreLoss(self.loss)).loss
        rate = torch.full_like(best, 0.25, dtype=torch.float64)
        state = State(x, best, torch.zeros_like(siege.rows), rate)
        turn, ahead = 0, 1
        while True:
            state = siege.settle(state)
            if not len(siege):
                return
            # The only synchronisation with the device: once per block, or per scan.
            last, often = torch.stack((state.step.max(), state.rate.mean())).tolist()
            if last == self.steps:  # rows with an early success in a scan are behind
                siege.leave(state.step == self.steps)
                continue
            if ahead == 1 or turn % SCANS == 0:
                ahead = siege.ahead(max(often, _RARE))
            turn, left = turn + 1, self.steps - int(last)
            if ahead == 1:
                state = self._one_by_one(siege, proposals, state, min(left, BLOCK))
            else:
                state = self._scan(siege, proposals, state, min(left, ahead))

    def _one_by_one(self, siege: Siege, proposals: Proposals, state: State, steps: int) -> State:
        """Several steps, one after the other."""
        draws = proposals.draw(siege.dice, state.step, steps)
        for n in range(steps):
            now = tuple(draw[:, n : n + 1] for draw in draws)
            new = proposals.propose(siege.ball, state.x, now)[:, 0]
            loss = siege.logits(new, loss=ScoreLoss(self.loss)).loss
            state = _moved(state, loss > state.best, new, loss, 1)
            state, draws = siege.settle(state, draws)
            if not len(siege):
                break
        return state

    def _scan(self, siege: Siege, proposals: Proposals, state: State, k: int) -> State:
        """Up to k steps from the same point, computed at once, until one is kept."""
        draws = proposals.draw(siege.dice, state.step, k)
        new = proposals.propose(siege.ball, state.x, draws)
        best = state.best[:, None]
        scan = siege.scan(new, lambda answer: answer.loss > best, ScoreLoss(self.loss), each=True)
        rows = torch.arange(len(new), device=new.device)
        kept, used = new[rows, scan.choice.clamp_max(k - 1)], (scan.choice + 1).clamp_max(k)
        return _moved(state, scan.choice < k, kept, scan.answer.loss, used)


def _moved(state: State, better: Tensor, new: Tensor, loss: Tensor, used: Tensor | int) -> State:
    """The state after `used` proposals, the last of which is kept if better."""
    return State(
        pick(better, new, state.x),
        torch.where(better, loss, state.best),
        state.step + used,
        torch.add(state.rate * (1.0 - _FRESH) ** used, better, alpha=_FRESH),
    )
