"""FAB and FAB-T: projections onto the linearised boundary, biased towards the clean image."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.planes import (
    closest,
    crossed,
    lowered,
    nearest,
    planes,
    rest,
    shorten,
    steering,
    turns,
)
from besiege.attacks.smallest import across, endless
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.rowwise import pick
from besiege.core.siege import Siege, not_examined
from besiege.core.threat import ALL_GOALS, L1, L2, Goal, Linf

CHOICE = 5
"""First steps that choose the class whose plane is nearest to the clean image; later ones choose by
the distance from the iterate, which stays with a class where boundaries are curved."""

FLAT = 4
"""Rows without a plane move to a random point every so many steps. Checking more often would
synchronise a GPU for a rare case."""


@register("fab")
@dataclass(frozen=True)
class FAB(Attack):
    """Fast adaptive boundary attack: along the boundary, biased towards the clean image.

    Every step linearises the victim, projects both the iterate and the clean image onto the nearest
    plane inside the box, slightly beyond it, and averages the two. Beyond the boundary it first
    shrinks the perturbation (Croce and Hein, Minimally distorted adversarial examples with a fast
    adaptive boundary attack, 2020).

    Three things differ from the authors' code. After shrinking, the plane is the one computed
    before, at the iterate: that saves the second forward pass of every step, and for a linear
    victim it is the same plane. Shrinking is strong at first and falls to zero: most rows end
    nearer, in l1 by several per cent. And in the first steps the class is the one whose plane is
    nearest to the clean image inside the box.

    Without a budget it searches for the smallest perturbation. With one the iterates are the same,
    and a row may leave at its first success within the budget.

    Parameters
    ----------
    steps : int
        Steps of every run.
    restarts : int
        Runs: the first from the clean image, the others from random points at half of the smallest
        known distance.
    alpha_max : float
        Largest weight of the clean image's projection in a step.
    eta : float
        Length of a step, in units of the distance to its plane.
    beta : float
        Fraction of the perturbation that shrinking leaves; with `anneal`, at the first step.
    anneal : bool
        Whether `beta` rises to one during a run. ``beta=0.9, anneal=False`` with `compat` is as
        published.
    search : int
        Secant steps between the clean image and the best point, at the end of a run.
    compat : bool
        As in the authors' code: the plane is computed after shrinking, for one forward pass more
        in every step; shrinking scales the perturbation in every norm, and points found by it do
        not count; the class is always the one nearest to the iterate without the box; planes are
        at the boundary itself; rows without a plane stay where they are.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> parse("fab(steps=20)").minimal
    True
    """

    steps: int = whole_number(100)
    restarts: int = whole_number(1)
    alpha_max: float = number(0.1, most=1, what="a fraction")
    eta: float = number(1.05, least=1)
    beta: float = number(0.7, most=1, what="a fraction")
    anneal: bool = True
    search: int = whole_number(3, 0)
    compat: bool = yes_or_no(False, added=True)

    minimal = True
    norms = frozenset({Linf, L2, L1})
    goals = frozenset({Goal.UNTARGETED})
    source = "Croce and Hein, Minimally distorted adversarial examples (FAB), 2020"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        for rows in turns(siege, siege.classes):
            self._runs(siege.view(rows))

    def _runs(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            # Rows broken in an earlier run have left, unless the caller keeps them.
            view = siege.view(dice=siege.dice.of("restart", restart))
            if len(view):
                self._run(view, _anywhere(view, "start") if restart else view.ball.center)

    def _run(self, siege: Siege, x: Tensor) -> None:
        best, far = x, torch.full_like(siege.ball.radius, torch.inf)
        scores = x.new_zeros(len(x), siege.classes)
        for step in range(self.steps + 1):
            last = step == self.steps
            look = last or (self.compat and step > 0)
            answer = siege.logits(x) if look else self._ask(siege, x)
            x, answer, best, far, scores = siege.settle(x, answer, best, far, scores)
            if not len(siege):
                return
            beyond = siege.record.reached(siege.rows, answer.labels)
            away = siege.ball.distance(x)
            closer = beyond & (away < far)
            far = torch.where(closer, away, far)
            best = pick(closer, x, best)
            scores = torch.where(closer[:, None], answer.logits, scores)
            if last:
                break
            if look:
                shrunk = siege.ball.center.lerp(x, self._left(step))
                x = pick(crossed(siege, answer), shrunk, x)
                x, answer, best, far, scores = siege.settle(
                    x, self._ask(siege, x), best, far, scores
                )
                if not len(siege):
                    return
                beyond, away = (
                    torch.zeros_like(siege.rows, dtype=torch.bool),
                    siege.ball.distance(x),
                )
            x = self._step(siege, x, beyond, away, answer, step)
        shorten(siege, best, torch.isfinite(far), scores, self.search, most=1.0)

    def _ask(self, siege: Siege, x: Tensor) -> Answer:
        every = torch.arange(siege.classes, device=x.device)
        return siege.gradients(x, every.expand(len(x), -1), examine=not self.compat)

    def _plane(self, siege: Siege, x: Tensor, answer: Answer, step: int) -> tuple[Tensor, Tensor]:
        ball, labels = siege.ball, siege.aim.labels
        w, f = planes(answer, labels)
        f = f if self.compat else lowered(siege, f, answer.logits)
        early = step < CHOICE and not self.compat
        chosen = nearest(ball, x, w, f, labels) if early else closest(ball, w, f, labels)
        rows = torch.arange(len(x), device=x.device)
        return w[rows, chosen], f[rows, chosen]

    def _step(
        self, siege: Siege, x: Tensor, beyond: Tensor, away: Tensor, answer: Answer, step: int
    ) -> Tensor:
        ball, rows, clean = siege.ball, len(x), siege.ball.center
        w, f = self._plane(siege, x, answer, step)
        change = x - clean
        left = torch.where(beyond, self._left(step), 1.0).double()
        kept = ball.retreat(change, away, left)
        w, f = torch.cat((w, w)), torch.cat((f, f))
        needed = rest(w, f, torch.cat((change - kept, change)))
        moves = ball.plane(torch.cat((clean + kept, clean)), w, needed)
        size = distances(moves, ball.norm)
        near, far = size.clamp_min(1e-8 * ball.width).view(2, rows)
        alpha = ball.scaled((near / (near + far)).clamp_max_(self.alpha_max))
        # Average perturbations, not images: pixel values that neither step moves stay exact.
        here, there = moves.mul_(self.eta).view(2, *x.shape)
        x = here.add_(kept).mul_(1.0 - alpha).add_(there.mul_(alpha)).add_(clean)
        x = x.clamp_(*ball.box)
        if step % FLAT == 0 and not self.compat:
            flat = size[rows:] == 0
            if bool(flat.any()):
                x = pick(flat, _anywhere(siege, "flat", step), x)
        return x

    def _left(self, step: int) -> float:
        """The fraction of the perturbation that shrinking leaves."""
        return self.beta + (1.0 - self.beta) * (step / self.steps if self.anneal else 0.0)


@register("fabt")
@dataclass(frozen=True)
class FABT(FAB):
    """FAB aimed at one class after the other: one backward pass per step for any number of classes.

    The likeliest wrong classes of the clean image come first; any misclassification counts.
    Targeted, the plane is that between the target and the likeliest other class (Croce and Hein,
    Reliable evaluation of adversarial robustness, 2020).

    Parameters
    ----------
    steps, restarts, alpha_max, eta, beta, anneal, search, compat
        As in `fab`, for every class.
    targets : int
        Most classes tried.
    together : int
        Classes of a row attacked side by side, after the first one on its own: batches are fuller
        when few rows are left.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("fabt(targets=3)"))
    'fabt(targets=3)'
    """

    targets: int = whole_number(9)
    together: int = whole_number(4)

    goals = ALL_GOALS

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        given = siege.aim.targets
        ranked = siege.ranked()[:, : self.targets] if given is None else given[:, None]
        many = ranked.shape[1]
        # Most broken rows break towards the first class, so that one is attacked on its own.
        for first, end in pairwise([0, *range(1, many, self.together), many]):
            ranked = siege.settle(ranked)
            turn = torch.arange(first, end, device=ranked.device)
            for some in turns(siege, len(turn)):
                rows = some.repeat_interleave(len(turn))
                dice = siege.dice.at(rows).of("target").counted(turn.repeat(len(some)))
                aim = ranked[some, first:end].flatten()
                self._runs(siege.view(rows, aim=aim, dice=dice))

    def _ask(self, siege: Siege, x: Tensor) -> Answer:
        if self.compat:
            return siege.gradient(x, steering(siege, sure=False), not_examined)
        return siege.gradient(x, steering(siege))

    def _plane(self, siege: Siege, x: Tensor, answer: Answer, step: int) -> tuple[Tensor, Tensor]:
        return answer.gradient, answer.loss


def _anywhere(siege: Siege, purpose: str, counter: int = 0) -> Tensor:
    """A random point at half of the smallest known distance, or of the budget."""
    ball = siege.ball
    known = torch.minimum(siege.distance, ball.radius)
    # Without a known distance, far enough for another gradient.
    radius = torch.where(torch.isfinite(known), known, 0.2 * across(ball)) / 2
    return ball.of(radius).shell(siege.dice.of(purpose), counter)
