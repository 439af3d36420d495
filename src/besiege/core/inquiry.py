"""How a siege asks: which images may be sent, what they cost, and what is seen in the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.answer import Aim, Answer, Loss, Through
from besiege.core.ball import TOLERANCE, Ball, distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.means import Means
from besiege.core.oracle import Access, Oracle, no_numbers, not_numbers
from besiege.core.record import Keep, Leave, Record
from besiege.core.threat import Linf

Kind = Literal["labels", "logits", "gradient", "gradients"]


class Inquiry:
    """Rows of a record under given terms, and the way their images are sent, charged and seen."""

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
        parent: Inquiry | None = None,
        watch: Callable[[Record], None] | None = None,
        means: Means | None = None,
    ) -> None:
        self._oracle = oracle
        self._watch = watch
        self.means = means or Means()
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
        self._wanders = False

    def __len__(self) -> int:
        return self._index.shape[0]  # len of a tensor is slow, and this is asked often

    def _chain(self) -> Iterator[Inquiry]:
        """The siege itself and those it was made from, the root last."""
        level: Inquiry | None = self
        while level is not None:
            yield level
            level = level._parent

    def _alive(self) -> Tensor:
        alive = ~self._done[self._index]
        if self.record.meter.budget is not None:
            alive &= self.record.meter.left(self._index) >= self._draws
        return alive

    def _request(
        self,
        x: Tensor,
        rows: Tensor | None,
        kind: Kind,
        loss: Loss | None = None,
        through: Through | None = None,
        classes: Tensor | None = None,
    ) -> Answer:
        owners = len(self) if rows is None else len(rows)
        self._check_shape(x, owners)
        plain = rows is None and through is None and x.dim() == self.ball.center.dim()
        if not (plain and self.keeps == "first" and not self._uneven):
            self.record.catch_up()  # what was broken one request ago is not asked again
        if rows is not None and bool((rows[1:] < rows[:-1]).any()):
            raise AttackError("rows= was given numbers out of order: sort them and x with them")
        k = x.shape[1] if x.dim() > self.ball.center.dim() else None
        at = self._every() if rows is None else rows
        flat, slot = x, at if through is None else torch.zeros_like(at)
        if k is not None:
            flat, at = x.flatten(0, 1), at.repeat_interleave(k)
            slot = torch.arange(k, device=x.device).repeat(owners)
            classes = None if classes is None else classes.repeat_interleave(k, 0)
        sent: Tensor | None = None
        if self._uneven:
            chosen = self._payable(at)
            if not bool(chosen.all()):
                sent = chosen.nonzero()[:, 0]
                at, flat, slot = at[sent], flat[sent], slot[sent]
                classes = None if classes is None else classes[sent]
        if self.ball.grid is not None:
            flat = self.ball.at(at).received(flat)
        answer = self._send(flat.contiguous(), at, slot, kind, loss, through, classes)
        if sent is not None:
            answer = answer.blank(len(x) * (k or 1)).put(sent, answer)
        return answer if k is None else answer.shaped(owners, k)

    def _check_shape(self, x: Tensor, owners: int) -> None:
        one = self.ball.center.dim()
        shape = self.ball.center.shape[1:]
        if len(x) != owners or x.dim() - one not in (0, 1) or x.shape[1 - one :] != shape:
            raise AttackError(
                f"images of shape {tuple(x.shape)} were asked about, but {owners} rows of images "
                f"{tuple(shape)} are expected"
            )

    def _every(self) -> Tensor:
        """All row numbers, always the same tensor, by which `_samples` knows them."""
        if len(self._all) != len(self._index):
            self._all = torch.arange(len(self._index), device=self._index.device)
        return self._all

    def _samples(self, at: Tensor) -> Tensor:
        return self._index if at is self._all else self._index[at]

    def _payable(self, at: Tensor) -> Tensor:
        """Which images may be sent: of rows not done, in order, up to each row's budget."""
        samples = self._index[at]
        chosen = ~self._done[samples]
        if self.record.meter.budget is not None:
            cost = (_order(samples) + 1) * self._draws
            chosen &= cost <= self.record.meter.left(samples)
        return chosen

    def _send(
        self,
        flat: Tensor,
        at: Tensor,
        slot: Tensor,
        kind: Kind,
        loss: Loss | None,
        through: Through | None,
        classes: Tensor | None,
    ) -> Answer:
        self._asking = True
        n, images, owners = self._draws, flat, at
        if n > 1:
            images, owners, slot = (t.repeat_interleave(n, 0) for t in (flat, at, slot))
            classes = None if classes is None else classes.repeat_interleave(n, 0)
        chances = self._chances(owners)
        gradient = value = None
        if kind == "gradient":
            assert loss is not None
            gradient, value, logits = self._ask_gradient(
                images, owners, slot, loss, through, chances
            )
        elif kind == "gradients":
            assert classes is not None
            gradient, logits = self._oracle.gradients(images, classes, chances)
        else:
            logits = self._oracle.logits(images, chances)
            if loss is not None:
                value = loss(logits, self.aim if owners is self._all else self.aim.at(owners))
        if n > 1:
            if kind == "labels":  # the mean of labels is a vote, which tells no scores
                logits = functional.one_hot(logits.argmax(1), logits.shape[1]).to(logits)
            logits = logits.reshape(-1, n, *logits.shape[1:]).mean(1)
            value = None if value is None else value.reshape(-1, n).mean(1)
            if gradient is not None:
                gradient = gradient.reshape(-1, n, *gradient.shape[1:]).mean(1)
        samples = self._samples(at)
        if gradient is not None and value is not None:
            self.record.climb(samples, value.detach())
        backwards = 0 if gradient is None else 1 if classes is None else classes.shape[1]
        labels = logits.argmax(1)
        hit: Tensor | Callable[[], Tensor] = torch.zeros_like(labels, dtype=torch.bool)
        if through is None:
            hit = self._look(flat, samples, labels, value, logits)
        else:
            self._must_be_numbers(logits)
        self._charge(samples, n, backwards * n)
        if self._late:
            self._late = False
            self._excuse(samples, n)
        if self._watch is not None:
            self._watch(self.record)
        if gradient is not None:
            gradient = self._sound(gradient, samples)
        shown = None if kind == "labels" else logits
        return Answer(hit, labels, logits=shown, loss=value, gradient=gradient)

    def _ask_gradient(
        self,
        x: Tensor,
        at: Tensor,
        slot: Tensor,
        loss: Loss,
        through: Through | None,
        chances: Dice | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        aim = self.aim if at is self._all else self.aim.at(at)
        mapped = None
        if through is not None:
            key = self.dice.key[at]

            def mapped(image: Tensor, rows: slice) -> Tensor:
                return through(image, Dice(key[rows]), slot[rows])

        return self._oracle.gradient(x, loss, aim, chances, mapped)

    def _chances(self, owners: Tensor) -> Dice | None:
        """The victim's chances: of (seed, sample, how often asked)."""
        if not self._oracle.victim.stochastic:
            return None
        samples = self._index[owners]
        count = self.record.meter.forwards[samples] + _order(samples)
        return self.record.chances.at(samples).counted(count)

    def _charge(self, samples: Tensor, forwards: int, backwards: int) -> None:
        meter, price = self.record.meter, self.record.meter.price(forwards, backwards)
        if samples is self._index and not self._several and len(self) == meter.tab.shape[0]:
            meter.tab += price  # everybody once: a plain addition, which small networks notice
        else:
            meter.tab.index_add_(0, samples, price.expand(len(samples), 4))
            if self._several or samples is not self._index:  # several images, but one request
                meter.asked.index_add_(0, samples, (_order(samples) > 0).to(torch.int64), alpha=-1)
        meter.padding = self._oracle.padded

    def _excuse(self, samples: Tensor, forwards: int) -> None:
        """Rows found to have been hit one request ago: this one decided nothing about them."""
        record, over = self.record, self._done[samples]
        record.meter.queries.index_add_(0, samples, over.to(torch.int64), alpha=-forwards)
        record.asked[samples] -= over.to(torch.int64)

    def _sound(self, gradient: Tensor, samples: Tensor) -> Tensor:
        """Note rows whose gradient vanished or is not finite, and make zero what is not."""
        record = self.record
        if record.blank is None:
            record.blank = torch.full_like(record.distance, torch.nan)
            record.blank[samples] = (gradient == 0).flatten(1).double().mean(1)
        size = distances(gradient, Linf)
        if self._oracle.patient:
            gone = ~(torch.isfinite(size) & (size > 0))
            every = torch.zeros_like(self.record.asked).index_add_(0, samples, gone.to(torch.int64))
            self.record.vanished |= every > 0
            return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        if len(size) and not math.isfinite(size.max()):
            self.record.vanished[samples[~torch.isfinite(size)]] = True
            gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
            size = distances(gradient, Linf)
        if len(size) and not size.min() > 0:
            self.record.vanished[samples[size == 0]] = True
        return gradient

    def _look(
        self,
        x: Tensor,
        samples: Tensor,
        labels: Tensor,
        loss: Tensor | None,
        logits: Tensor,
        *,
        charged: bool = False,
    ) -> Tensor | Callable[[], Tensor]:
        """Note the rows that reached their goal inside their ball; keep what is to be kept.

        Gives back which rows did, or how to find out.
        """
        record = self.record
        reached = record.reached(samples, labels)
        if self.keeps == "first" and samples is self._index:
            # Of every row only the first hit matters: as a rule few are new, often none.
            new = reached & ~(self._hit[samples] & record.success[samples])
            if self._oracle.patient and record.meter.budget is None and not charged:
                ball, x = self.ball, x.clone()  # an attack may write over its own points
                if self._wanders:
                    new &= ball.inside(x)
                self._late = self._defer(x, samples, new, loss, logits)
                return lambda: reached & ball.inside(x)
            self._must_be_numbers(logits)
            self._note_new(x, samples, new.nonzero()[:, 0], loss, charged)
            return reached & self.ball.inside(x)
        record.catch_up()
        self._must_be_numbers(logits)
        return self._note(x, samples, reached, loss, charged)

    def _must_be_numbers(self, logits: Tensor) -> None:
        # Others than a patient oracle have looked already.
        if self._oracle.patient and bool(no_numbers(logits)):
            raise not_numbers()

    def _note_new(
        self, x: Tensor, samples: Tensor, new: Tensor, loss: Tensor | None, charged: bool
    ) -> None:
        """Note some of the rows asked, all of which reached their goal."""
        if not new.shape[0]:
            return
        place = 1 if charged else 1 + (_order(samples)[new] if self._several else 0)
        queries = self.record.meter.queries[samples[new]] + (0 if charged else place * self._draws)
        some = None if loss is None else loss[new]
        when = self.record.asked[samples[new]], queries
        self._note(x.index_select(0, new), samples[new], None, some, charged, when)

    def _defer(
        self, x: Tensor, samples: Tensor, new: Tensor, loss: Tensor | None, logits: Tensor
    ) -> bool:
        """Look at this answer when the next one has been asked for; whether the last had news.

        By then it is there, and nobody has waited. Rows that it broke were asked once more.
        """
        record, device = self.record, x.device
        flags = torch.stack((new.any(), no_numbers(logits))).to("cpu", non_blocking=True)
        ready = torch.Event(device) if device.type == "cuda" else None
        if ready is not None:
            ready.record()
        before = record.meter.tab[samples]

        def pending() -> bool:
            if ready is not None:
                ready.synchronize()
            news, wrong = flags.tolist()
            if wrong:
                raise not_numbers()
            if news:
                rows = new.nonzero()[:, 0]
                place = 1 + (_order(samples)[rows] if self._several else 0)
                _, _, queries, asked = before[rows].unbind(1)
                when = asked, queries + place * self._draws
                some = None if loss is None else loss[rows]
                hit = self._note(x.index_select(0, rows), samples[rows], None, some, False, when)
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
                    if not charged:
                        queries = queries + (_order(samples) + 1) * self._draws
                    when = record.asked[samples], queries
                new = new[_order(samples[new]) == 0]
                record.note_first(samples[new], when[0][new], when[1][new])
        elif self.keeps in ("first", "smallest"):
            return hit
        distance = torch.where(inside, distance, torch.full_like(distance, torch.inf))
        if whole:
            fit = (anywhere <= level._limit[samples]).nonzero()[:, 0]
            x, samples, distance = x[fit], samples[fit], distance[fit]
            loss = None if loss is None else loss[fit]
        spent = self._spent(samples, charged) if self.keeps == "smallest" else None
        record.keep(self.keeps, x, samples, distance, loss, spent)
        return hit

    def _spent(self, samples: Tensor, charged: bool) -> Tensor:
        """Queries and backwards of every image's sample, up to its own forward."""
        meter = self.record.meter
        spent = meter.queries[samples] + meter.backwards[samples]
        return spent if charged else spent + (_order(samples) + 1) * self._draws

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

    def _speculate(
        self,
        part: Tensor,
        rows: Tensor,
        accept: Callable[[Answer], Tensor],
        loss: Loss | None,
        each: bool,
    ) -> tuple[Answer, Tensor, Tensor]:
        """Answer candidates at once, counting only what asking one by one would have seen.

        Gives back the answers, which candidate each row took (k if none) and which it saw last.
        Where `each` is a step, it counts them.
        """
        r, k = part.shape[:2]
        at = rows.repeat_interleave(k)
        payable = self._payable(at)
        sent = payable.nonzero()[:, 0]
        flat, samples = part.flatten(0, 1)[sent].contiguous(), self._index[at[sent]]
        if self.ball.grid is not None:
            flat = self.ball.at(at[sent]).received(flat)
        n = self._draws
        images, owners = (t.repeat_interleave(n, 0) for t in (flat, at[sent]))
        logits = self._oracle.logits(images, self._chances(owners))
        value = None if loss is None else loss(logits, self.aim.at(owners))
        if n > 1:
            logits = logits.reshape(-1, n, logits.shape[1]).mean(1)
            value = None if value is None else value.reshape(-1, n).mean(1)
        labels = logits.argmax(1)
        distance = self._distances(flat, samples, self.record.reached(samples, labels))
        hit = distance <= self._limit[samples]
        scored = logits if self._oracle.access >= Access.SCORE else None
        answer = Answer(hit, labels, logits=scored, loss=value)
        answer = answer.blank(r * k).put(sent, answer).shaped(r, k)
        whole = answer.blank(len(self)).put(rows, answer)
        stop = accept(whole)[rows] & payable.view(r, k)
        if self.leaves == "success":
            stop = stop | answer.hit
        taken = torch.where(stop.any(1), stop.int().argmax(1), torch.full_like(rows, k))
        used = torch.arange(k, device=part.device) <= taken[:, None]
        seen = (used.flatten() & payable)[sent]
        record, meter, looked = self.record, self.record.meter, samples[seen]
        unhit = self._index[rows]
        unhit = unhit[record.first_step[unhit] < 0]
        some = None if value is None else value[seen]
        self._look(flat[seen], looked, labels[seen], some, logits[seen])
        if each:
            # A hit was noted with the steps before the scan: add the candidates before it.
            new = unhit[record.first_step[unhit] >= 0]
            record.first_step[new] += (record.first_query[new] - meter.queries[new]) // n - 1
            record.asked.index_add_(0, looked, torch.ones_like(looked))
        meter.forwards.index_add_(0, samples, torch.ones_like(samples), alpha=n)
        meter.queries.index_add_(0, looked, torch.ones_like(looked), alpha=n)
        meter.padding = self._oracle.padded
        if self._watch is not None:
            self._watch(record)
        last = taken.minimum(payable.view(r, k).sum(1) - 1)
        answer.parts["hit"] &= used
        return answer, taken, last


def _order(owners: Tensor) -> Tensor:
    """The place of each entry among those of the same owner; an owner's stand together."""
    place = torch.arange(len(owners), device=owners.device)
    if len(owners) == 0:
        return place
    new = torch.ones_like(owners, dtype=torch.bool)
    new[1:] = owners[1:] != owners[:-1]
    began = torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    return place - began
