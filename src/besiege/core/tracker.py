"""What a siege sees: which answers reached a goal inside their ball, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from besiege.core.answer import Aim
from besiege.core.ball import TOLERANCE, Ball
from besiege.core.dice import Dice
from besiege.core.door import not_numbers, tops
from besiege.core.knowledge import Knowledge
from besiege.core.oracle import Oracle
from besiege.core.record import Keep, Leave, Record


class Tracker:
    """Rows of a record under given terms, and what is noted of their answers.

    Where several images of one sample are looked at together, `place` says how many of its own
    stand before each; None where every sample has one at most.
    """

    def __init__(
        self,
        oracle: Oracle,
        record: Record,
        index: Tensor,
        ball: Ball,
        aim: Aim,
        dice: Dice,
        *,
        keep: Keep,
        leave: Leave,
        draws: int = 1,
        parent: Tracker | None = None,
        watch: Callable[[Record], None] | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        self._oracle = oracle
        self._watch = watch
        self.knowledge = knowledge or Knowledge()
        self.record = record
        self._entered = self._index = index
        self._all = index[:0]
        self._limit: Tensor
        self.ball = ball
        self.aim = aim
        self.dice = dice
        self.keeps = keep
        self.leaves = leave
        self._draws = draws
        self._parent = parent
        n = len(record.labels)
        # By sample, not by row: rows come and go, and views of other rows share the samples.
        if parent is not None and ball.radius is parent.ball.radius:
            self._limit = parent._limit
        else:
            self._limit = torch.full((n,), -1.0, dtype=torch.float64, device=index.device)
            self._limit[index] = ball.radius * (1.0 + TOLERANCE)
        # A view may hold a sample several times, side by side: one row for each of several aims.
        self._several: bool = parent is not None and (
            parent._several or bool((index[1:] == index[:-1]).any())
        )
        self._hit = torch.zeros(n, dtype=torch.bool, device=index.device)
        self._done: Tensor = self._hit.clone() if parent is None else parent._done.clone()
        self._uneven = parent is not None or record.meter.budget is not None
        self._late = False
        self._asking = False
        self._surveying = False
        self._wanders = False

    def __len__(self) -> int:
        return self._index.shape[0]  # len of a tensor is slow, and this is asked often

    @property
    def closes_in(self) -> bool:
        """Whether the smallest change is looked for: such a search ends at the boundary itself."""
        return self.record.endless or self.keeps == "smallest"

    def _chain(self) -> Iterator[Tracker]:
        """The siege itself and those it was made from, the root last."""
        level: Tracker | None = self
        while level is not None:
            yield level
            level = level._parent

    def _look(
        self,
        x: Tensor,
        samples: Tensor,
        labels: Tensor,
        loss: Tensor | None,
        logits: Tensor,
        place: Tensor | None = None,
        *,
        charged: bool = False,
    ) -> Tensor | Callable[[], Tensor]:
        """Note the rows that reached their goal inside their ball; keep what is to be kept.

        Gives back which rows did, or how to find out. What is `charged` has been paid already.
        """
        record = self.record
        reached = record.reached(samples, labels)
        if self.keeps == "first" and samples is self._index:
            # Of every row only the first hit matters: as a rule few are new, often none.
            new = reached & ~(self._hit[samples] & record.success[samples])
            if self._oracle.deferred and record.meter.budget is None and not charged:
                ball, x = self.ball, x.clone()  # an attack may write over its own points
                if self._wanders:
                    new &= ball.inside(x)
                self._late = self._defer(x, samples, new, loss, logits, place)
                return lambda: reached & ball.inside(x)
            self._must_be_numbers(logits)
            self._note_new(x, samples, new.nonzero()[:, 0], loss, place, charged)
            return reached & self.ball.inside(x)
        record.catch_up()
        self._must_be_numbers(logits)
        return self._note(x, samples, reached, loss, place, charged)

    def _must_be_numbers(self, logits: Tensor) -> None:
        # Others than a patient oracle have looked already.
        if self._oracle.deferred and not math.isfinite(tops(logits)):
            raise not_numbers()

    def _note_new(
        self,
        x: Tensor,
        samples: Tensor,
        new: Tensor,
        loss: Tensor | None,
        place: Tensor | None,
        charged: bool,
    ) -> None:
        """Note some of the rows asked, all of which reached their goal."""
        if not new.shape[0]:
            return
        some = None if loss is None else loss[new]
        where = None if place is None else place[new]
        self._note(x.index_select(0, new), samples[new], None, some, where, charged)

    def _defer(
        self,
        x: Tensor,
        samples: Tensor,
        new: Tensor,
        loss: Tensor | None,
        logits: Tensor,
        place: Tensor | None,
    ) -> bool:
        """Look at this answer when the next one has been asked for; whether the last had news.

        By then it is there, and nobody has waited. Rows that it broke were asked once more.
        """
        record, device = self.record, x.device
        flags = torch.stack((new.any().double(), tops(logits))).to("cpu", non_blocking=True)
        ready = torch.Event(device) if device.type == "cuda" else None
        if ready is not None:
            ready.record()
        before = record.meter.tab[samples]

        def pending() -> bool:
            if ready is not None:
                ready.synchronize()
            news, whole = flags.tolist()
            if not math.isfinite(whole):
                raise not_numbers()
            if news:
                rows = new.nonzero()[:, 0]
                where = None if place is None else place[rows]
                _, _, queries, asked = before[rows].unbind(1)
                when = asked, queries + self._upto(where)
                some = None if loss is None else loss[rows]
                image = x.index_select(0, rows)
                hit = self._note(image, samples[rows], None, some, where, False, when)
                # A walk outside of the ball is no news: from now on nobody waits for it.
                self._wanders = self._wanders or not bool(hit.any())
            return bool(news)

        late = record.catch_up()
        record.pending = pending
        return late

    def _note(
        self,
        x: Tensor,
        samples: Tensor,
        reached: Tensor | None,
        loss: Tensor | None,
        place: Tensor | None,
        charged: bool,
        when: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Tell the sieges and the record what was reached; None for `reached` means all.

        `when` says how much had been asked, where that is not what the record says now.
        """
        record = self.record
        whole = self.keeps in ("highest", "last")  # these keep what is no success, too
        anywhere = distance = self._distances(x, samples, None if whole else reached)
        if whole and reached is not None:
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
                if level.leaves == "success":
                    level._done[won] = True
                    level._uneven = True
        # What counts in the end is the root's ball: `inside` is now that of the root.
        if won.shape[0]:
            new = (inside & (record.first_step[samples] < 0)).nonzero()[:, 0]
            if new.shape[0]:
                if when is None:
                    queries = record.meter.queries[samples]
                    queries = queries if charged else queries + self._upto(place)
                    when = record.asked[samples], queries
                if place is not None:
                    new = new[order(samples[new]) == 0]
                record.note_first(samples[new], when[0][new], when[1][new])
        elif self.keeps in ("first", "smallest"):
            return hit
        distance = torch.where(inside, distance, torch.full_like(distance, torch.inf))
        if whole:
            fit = (anywhere <= level._limit[samples]).nonzero()[:, 0]
            x, samples, distance = x[fit], samples[fit], distance[fit]
            loss = None if loss is None else loss[fit]
        spent = self._spent(samples, place, charged) if self.keeps == "smallest" else None
        record.keep(self.keeps, x, samples, distance, loss, spent)
        return hit

    def _upto(self, place: Tensor | None) -> Tensor | int:
        """Queries of one request up to the image in that place, its own included."""
        return self._draws if place is None else (place + 1) * self._draws

    def _spent(self, samples: Tensor, place: Tensor | None, charged: bool) -> Tensor:
        """Queries and backwards of every image's sample, up to its own forward."""
        meter = self.record.meter
        spent = meter.queries[samples] + meter.backwards[samples]
        return spent if charged else spent + self._upto(place)

    def _distances(self, x: Tensor, samples: Tensor, reached: Tensor | None) -> Tensor:
        """The distance of every image that reaches its goal in the box.

        NaN for the others, which is within no limit, not even an infinite one.
        """
        if reached is not None:
            distance = torch.full(samples.shape, torch.nan, dtype=torch.float64, device=x.device)
            where = reached.nonzero()[:, 0]
            if where.shape[0]:
                distance[where] = self._distances(x.index_select(0, where), samples[where], None)
            return distance
        center = self.record.clean.index_select(0, samples)
        everywhere = torch.full(samples.shape, torch.inf, dtype=torch.float64, device=x.device)
        ball = type(self.ball)(center, everywhere, self.ball.box, self.ball.grid)
        return torch.where(ball.boxed(x), ball.distance(x), torch.nan)


def order(owners: Tensor) -> Tensor:
    """The place of each entry among those of the same owner; an owner's stand together."""
    place = torch.arange(len(owners), device=owners.device)
    if len(owners) == 0:
        return place
    new = torch.ones_like(owners, dtype=torch.bool)
    new[1:] = owners[1:] != owners[:-1]
    began = torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    return place - began
