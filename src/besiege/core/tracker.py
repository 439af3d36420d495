"""Which answers were successes, and which images are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.core.ball import TOLERANCE, Ball
from besiege.core.door import not_numbers, tops
from besiege.core.record import Record
from besiege.core.terms import ActiveRows, Terms


class Answered(NamedTuple):
    """Images that were answered: the sample of each, and its loss where one was requested.

    Where one request holds several images of a sample, ``place`` is how many of its own come
    before each; None where every sample has one at most.
    """

    x: Tensor
    samples: Tensor
    loss: Tensor | None
    place: Tensor | None

    def at(self, rows: Tensor) -> Answered:
        """Some of the images."""
        parts = [None if part is None else part.index_select(0, rows) for part in self]
        return Answered._make(parts)


class Tracker:
    """The successes of a siege, by sample: rows come and go, and views share the samples.

    A success is recorded here and in every parent whose radius contains it; each decides for
    itself whether the row is done with that.

    Parameters
    ----------
    record : Record
        Where the kept images are.
    active : ActiveRows
        The rows the siege starts with.
    terms : Terms
        What is kept, and when a row leaves.
    deferred : bool
        Whether answers are examined one request late (`Oracle.deferred`).
    parent : Tracker, optional
        The successes of the siege this one is a view of.
    same_radii : bool
        Whether the rows have the radii they have in the parent.
    """

    def __init__(
        self,
        record: Record,
        active: ActiveRows,
        terms: Terms,
        deferred: bool,
        parent: Tracker | None = None,
        same_radii: bool = False,
    ) -> None:
        self.record = record
        self.closes_in = record.endless or terms.keep == "smallest"
        """Whether the search is for the smallest perturbation, which ends at the boundary."""
        self.some_done = parent is not None
        """Whether rows may have become done since the siege last let such rows leave."""
        self._keep, self._draws, self._deferred = terms.keep, terms.draws, deferred
        self._leaves_at_success = terms.leave == "success"
        self._parent = parent
        ball, n, device = active.ball, len(record.labels), active.samples.device
        self._ball_type, self._box, self._grid = type(ball), ball.box, ball.grid
        self._limit: Tensor
        if parent is not None and same_radii:
            self._limit = parent._limit
        else:
            self._limit = torch.full((n,), -1.0, dtype=torch.float64, device=device)
            self._limit[active.samples] = ball.radius * (1.0 + TOLERANCE)
        self._hit = torch.zeros(n, dtype=torch.bool, device=device)
        self._done: Tensor = self._hit.clone() if parent is None else parent._done.clone()
        self._late = False
        self._wanders = False

    def hit(self, samples: Tensor) -> Tensor:
        """Which of these samples had a success in this siege."""
        return self._hit[samples]

    def done(self, samples: Tensor) -> Tensor:
        """Which of these samples are not sent any more."""
        return self._done[samples]

    def drop(self, samples: Tensor) -> None:
        """Send these samples no more."""
        self._done[samples] = True
        self.some_done = True

    def overtaken(self, samples: Tensor) -> Tensor | None:
        """Which of the samples just sent had been broken by the request before; None for none."""
        late, self._late = self._late, False
        return self._done[samples] if late else None

    def would_hit(self, x: Tensor, samples: Tensor, labels: Tensor) -> Tensor:
        """Which images reach their goal inside their ball; nothing is recorded."""
        distance = self._distances(x, samples, self.record.reached(samples, labels))
        return distance <= self._limit[samples]

    def look(
        self,
        answered: Answered,
        labels: Tensor,
        logits: Tensor,
        ball: Ball | None = None,
        *,
        charged: bool = False,
    ) -> Tensor | Callable[[], Tensor]:
        """Record the rows that reached their goal inside their ball, and keep their images.

        Returns which images did, or a function that computes it. `ball` is the ball of the images
        if they are one for every active row; `charged` says that the meter counts them already.
        """
        record, samples = self.record, answered.samples
        reached = record.reached(samples, labels)
        if self._keep != "first" or ball is None:
            record.catch_up()
            self.must_be_numbers(logits)
            return self._note(answered, reached, charged)
        # Only the first success of a row matters: usually few are new, often none.
        new = reached & ~(self._hit[samples] & record.success[samples])
        if self._deferred and record.meter.budget is None and not charged:
            x = answered.x.clone()  # an attack may overwrite its own points
            if self._wanders:
                new &= ball.inside(x)
            self._late = self._defer(answered._replace(x=x), new, logits)
            return lambda: reached & ball.inside(x)
        self.must_be_numbers(logits)
        rows = new.nonzero()[:, 0]
        if rows.shape[0]:
            self._note(answered.at(rows), None, charged)
        return reached & ball.inside(answered.x)

    def must_be_numbers(self, logits: Tensor) -> None:
        """Refuse logits that are not finite, where the oracle has not checked them yet."""
        if self._deferred and not math.isfinite(tops(logits)):
            raise not_numbers()

    def _defer(self, answered: Answered, new: Tensor, logits: Tensor) -> bool:
        """Examine this answer after the next request; whether the last one held a new success.

        By then the GPU has computed it, and nothing waits. Rows that it broke are sent once more
        than needed.
        """
        record, device = self.record, answered.x.device
        flags = torch.stack((new.any().double(), tops(logits))).to("cpu", non_blocking=True)
        ready = torch.Event(device) if device.type == "cuda" else None
        if ready is not None:
            ready.record()
        before = record.meter.tab[answered.samples]

        def pending() -> bool:
            if ready is not None:
                ready.synchronize()
            any_new, checksum = flags.tolist()
            if not math.isfinite(checksum):
                raise not_numbers()
            if any_new:
                rows = new.nonzero()[:, 0]
                some = answered.at(rows)
                _, _, queries, asked = before[rows].unbind(1)
                hit = self._note(
                    some, None, False, (asked, queries + upto(some.place, self._draws))
                )
                # Successes outside the ball do not count; do not synchronise for them again.
                self._wanders = self._wanders or not bool(hit.any())
            return bool(any_new)

        late = record.catch_up()
        record.pending = pending
        return late

    def _note(
        self,
        answered: Answered,
        reached: Tensor | None,
        charged: bool,
        when: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Record successes, here and in the parents; None for `reached` means all images.

        `when` is the number of requests and queries at the time, if the meter has moved on since.
        """
        record, samples = self.record, answered.samples
        failures_too = self._keep in ("highest", "last")
        wanted = None if failures_too else reached
        anywhere = distance = self._distances(answered.x, samples, wanted)
        if failures_too and reached is not None:
            distance = torch.where(reached, anywhere, torch.nan)
        limit: Tensor | None = None
        for level in self._chain():
            if level._limit is not limit:
                limit = level._limit
                inside = distance <= limit[samples]
                won = samples[inside]
            if level is self:
                hit = inside
            if won.shape[0]:
                level._hit[won] = True
                if level._leaves_at_success:
                    level.drop(won)
        # The root's ball counts in the end: `inside` is now that of the root.
        if won.shape[0]:
            self._note_first(answered, inside, charged, when)
        elif not failures_too:
            return hit
        distance = torch.where(inside, distance, torch.full_like(distance, torch.inf))
        if failures_too:
            fit = (anywhere <= level._limit[samples]).nonzero()[:, 0]
            answered, distance = answered.at(fit), distance[fit]
        spent = None
        if self._keep == "smallest":
            spent = self._counted(record.meter.queries + record.meter.backwards, answered, charged)
        record.keep(self._keep, answered.x, answered.samples, distance, answered.loss, spent)
        return hit

    def _chain(self) -> Iterator[Tracker]:
        """The tracker itself and those of the sieges that its siege is a view of, the root last."""
        level: Tracker | None = self
        while level is not None:
            yield level
            level = level._parent

    def _note_first(
        self, answered: Answered, inside: Tensor, charged: bool, when: tuple[Tensor, Tensor] | None
    ) -> None:
        """Record step and query of the samples that had no success before."""
        record, samples = self.record, answered.samples
        new = (inside & (record.first_step[samples] < 0)).nonzero()[:, 0]
        if new.shape[0]:
            if when is None:
                queries = self._counted(record.meter.queries, answered, charged)
                when = record.asked[samples], queries
            if answered.place is not None:
                new = new[order(samples[new]) == 0]
            record.note_first(samples[new], when[0][new], when[1][new])

    def _counted(self, cost: Tensor, answered: Answered, charged: bool) -> Tensor:
        """A cost by sample at each image, the forward of the image itself included."""
        spent = cost[answered.samples]
        return spent if charged else spent + upto(answered.place, self._draws)

    def _distances(self, x: Tensor, samples: Tensor, reached: Tensor | None) -> Tensor:
        """The distance of every image that reaches its goal in the box.

        NaN for the others, since NaN is within no limit, not even an infinite one.
        """
        if reached is not None:
            distance = torch.full(samples.shape, torch.nan, dtype=torch.float64, device=x.device)
            where = reached.nonzero()[:, 0]
            if where.shape[0]:
                distance[where] = self._distances(x.index_select(0, where), samples[where], None)
            return distance
        center = self.record.clean.index_select(0, samples)
        everywhere = torch.full(samples.shape, torch.inf, dtype=torch.float64, device=x.device)
        ball = self._ball_type(center, everywhere, self._box, self._grid)
        return torch.where(ball.boxed(x), ball.distance(x), torch.nan)


def upto(place: Tensor | None, draws: int) -> Tensor | int:
    """Queries of one request up to the image in that place, its own included."""
    return draws if place is None else (place + 1) * draws


def order(owners: Tensor) -> Tensor:
    """The place of each element among those of its owner, which must be contiguous."""
    place = torch.arange(len(owners), device=owners.device)
    if len(owners) == 0:
        return place
    new = torch.ones_like(owners, dtype=torch.bool)
    new[1:] = owners[1:] != owners[:-1]
    start = torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    return place - start
