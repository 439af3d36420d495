"""FAB and FAB-T: along the boundary, taken for planes, and drawn to the clean image."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.planes import closest, lowered, nearest, planes, rest, shorten, steering, turns
from besiege.attacks.smallest import across, endless
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import number, whole_number
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import ALL_GOALS, L1, L2, Goal, Linf

CHOICE = 5
"""So many first steps choose the class as seen from the clean image, the others from where they
are: the first find the nearest plane, the others stay with it where planes bend."""

FLAT = 4
"""Every so many steps rows that have no plane to go to are put elsewhere. To ask at every step
would keep a GPU waiting for a case that is rare."""


@register("fab")
@dataclass(frozen=True)
class FAB(Attack):
    """Fast adaptive boundary attack: along the boundary, drawn to the clean image.

    Every step takes the victim for a linear one, goes from where it is and from the clean image
    to the nearest plane inside the box, a little beyond, and mixes the two. Beyond the boundary
    it first takes back a part of the change (Croce and Hein, Minimally distorted adversarial
    examples with a fast adaptive boundary attack, 2020).

    Three things are otherwise than in the authors' code. After stepping back the plane is the one
    read before, at the point that was looked at: that spares every step its second forward, and
    for a linear victim it is the same plane. Steps back are long at first and fall to nothing:
    most walks end nearer, in l1 by several hundredths. And in the first steps the class is the
    one whose plane is nearest to the clean image, with the box.

    Without a budget it looks for the smallest change. With one the walk is the same, and a row
    may leave at its first success inside.

    Parameters
    ----------
    steps : int
        Steps of every walk.
    restarts : int
        Walks: the first from the clean image, the others from half of the smallest distance known.
    alpha_max : float
        The largest share that the move from the clean image has in a step.
    eta : float
        How far a move goes, in ways to its plane.
    beta : float
        What a step back leaves of the change; with `anneal`, the first one.
    anneal : bool
        Whether `beta` rises to one over the walk. ``beta=0.9, anneal=False`` is as published.
    search : int
        Secant steps between the clean image and the best point of a walk, at its end.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> parse("fab(steps=20)").minimal
    True
    """

    steps: int = whole_number(100)
    restarts: int = whole_number(1)
    alpha_max: float = number(0.1, most=1, what="a share")
    eta: float = number(1.05, least=1)
    beta: float = number(0.7, most=1, what="a share")
    anneal: bool = True
    search: int = whole_number(3, 0)

    minimal = True
    norms = frozenset({Linf, L2, L1})
    goals = frozenset({Goal.UNTARGETED})
    source = "Croce and Hein, Minimally distorted adversarial examples (FAB), 2020"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        for rows in turns(siege, siege.classes):
            self._walks(siege.view(rows))

    def _walks(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            # A row broken in an earlier walk has left, unless the caller lets rows stay.
            view = siege.view(dice=siege.dice.of("restart", restart))
            if len(view):
                self._walk(view, _anywhere(view, "start") if restart else view.ball.center)

    def _walk(self, siege: Siege, x: Tensor) -> None:
        best, far = x, torch.full_like(siege.ball.radius, torch.inf)
        scores = x.new_zeros(len(x), siege.classes)
        for step in range(self.steps + 1):
            last = step == self.steps
            answer = siege.logits(x) if last else self._ask(siege, x)
            x, answer, best, far, scores = siege.settle(x, answer, best, far, scores)
            if not len(siege):
                return
            beyond = siege.record.reached(siege.rows, answer.labels)
            away = siege.ball.distance(x)
            closer = beyond & (away < far)
            far = torch.where(closer, away, far)
            best = pick(closer, x, best)
            scores = torch.where(closer[:, None], answer.logits, scores)
            if not last:
                x = self._step(siege, x, beyond, away, answer, step)
        shorten(siege, best, torch.isfinite(far), scores, self.search, most=1.0)

    def _ask(self, siege: Siege, x: Tensor) -> Answer:
        every = torch.arange(siege.classes, device=x.device)
        return siege.gradients(x, every.expand(len(x), -1))

    def _plane(self, siege: Siege, x: Tensor, answer: Answer, step: int) -> tuple[Tensor, Tensor]:
        ball, labels = siege.ball, siege.aim.labels
        w, f = planes(answer, labels)
        f = lowered(siege, f, answer.logits)
        early = step < CHOICE
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
        # In changes, so that what neither move touches stays exactly as it was.
        here, there = moves.mul_(self.eta).view(2, *x.shape)
        x = here.add_(kept).mul_(1.0 - alpha).add_(there.mul_(alpha)).add_(clean)
        x = x.clamp_(*ball.box)
        if step % FLAT == 0:
            flat = size[rows:] == 0
            if bool(flat.any()):
                x = pick(flat, _anywhere(siege, "flat", step), x)
        return x

    def _left(self, step: int) -> float:
        """What a step back leaves of the change."""
        return self.beta + (1.0 - self.beta) * (step / self.steps if self.anneal else 0.0)


@register("fabt")
@dataclass(frozen=True)
class FABT(FAB):
    """FAB towards one class after the other: one backward per step, whatever the classes.

    The likeliest wrong classes of the clean image come first; any error counts. Towards a class
    that must be reached the plane is that of the target and the likeliest other class, and
    nothing else counts (Croce and Hein, Reliable evaluation of adversarial robustness, 2020).

    Parameters
    ----------
    steps, restarts, alpha_max, eta, beta, anneal, search
        As of `fab`, for every class.
    targets : int
        How many classes, at most.
    together : int
        How many classes of a row are tried side by side, after the first alone. Calls are fuller
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
        # Most rows that break at all break towards the first class: it is tried alone.
        for first, end in pairwise([0, *range(1, many, self.together), many]):
            ranked = siege.settle(ranked)
            turn = torch.arange(first, end, device=ranked.device)
            for some in turns(siege, len(turn)):
                rows = some.repeat_interleave(len(turn))
                dice = siege.dice.at(rows).of("target").counted(turn.repeat(len(some)))
                aim = ranked[some, first:end].flatten()
                self._walks(siege.view(rows, aim=aim, dice=dice))

    def _ask(self, siege: Siege, x: Tensor) -> Answer:
        return siege.gradient(x, steering(siege))

    def _plane(self, siege: Siege, x: Tensor, answer: Answer, step: int) -> tuple[Tensor, Tensor]:
        return answer.gradient, answer.loss


def _anywhere(siege: Siege, purpose: str, counter: int = 0) -> Tensor:
    """A random point at half of the smallest distance known, or of the budget."""
    ball = siege.ball
    known = torch.minimum(siege.distance, ball.radius)
    # Where nothing is known, far enough to see something else.
    radius = torch.where(torch.isfinite(known), known, 0.2 * across(ball)) / 2
    return ball.of(radius).shell(siege.dice.of(purpose), counter)
