"""Which images are sent to the victim, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.answer import Answer, Loss, Through
from besiege.core.ball import distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.oracle import Access, Oracle
from besiege.core.record import largest
from besiege.core.terms import ActiveRows, Terms
from besiege.core.threat import Linf
from besiege.core.tracker import Answered, Tracker, order, upto

Kind = Literal["labels", "logits", "gradient", "gradients"]


class Query(NamedTuple):
    """What a request wants to know about every image."""

    kind: Kind
    loss: Loss | None = None
    through: Through | None = None
    survey: bool = False
    """Whether this is the clean check, whose logits set the scale of rounding."""
    elsewhere: bool = False
    """Whether the points are no images: `through` makes of them what the victim takes."""


class Batch(NamedTuple):
    """Images of a request, and for each: its row, its number among copies, its place, its classes.

    ``place`` counts the images of the same sample before it (`Answered`); ``classes`` are those
    whose gradients are requested.
    """

    images: Tensor
    rows: Tensor
    slot: Tensor
    place: Tensor | None
    classes: Tensor | None

    def at(self, some: Tensor) -> Batch:
        """Some of the images."""
        return self._each(lambda part: part[some])

    def repeated(self, times: int) -> Batch:
        """Every image so many times, side by side."""
        return self._each(lambda part: part.repeat_interleave(times, 0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch._make([None if part is None else change(part) for part in self])


class Queries:
    """The requests of a siege: sends images, charges them and has the tracker examine the answers.

    Parameters
    ----------
    oracle : Oracle
        The victim, as it is queried.
    tracker : Tracker
        Examines every answer, and knows which samples are done.
    terms : Terms
        How many answers are averaged, and the caller's function to show progress.
    several : bool
        Whether a sample may have several of the rows.
    """

    def __init__(self, oracle: Oracle, tracker: Tracker, terms: Terms, several: bool) -> None:
        self.oracle = oracle
        self.several = several
        self._tracker = tracker
        self._record = tracker.record
        self._terms, self._draws = terms, terms.draws
        self._asked = False

    @property
    def one_by_one(self) -> bool:
        """Whether candidates of a row are sent one by one, never ahead of a decision."""
        victim = self.oracle.victim
        return victim.metered or victim.stochastic or self.several

    def alive(self, active: ActiveRows) -> Tensor:
        """Which rows may still be sent: not done, and with queries left."""
        return self._payable(active.samples, None)

    def staying(self, active: ActiveRows) -> Tensor | None:
        """The numbers of the rows that stay in the siege after a step; None where all do."""
        if not self._asked:
            self._record.catch_up()
        self._asked = False
        if not self._selective:
            return None
        alive = self.alive(active)
        self._tracker.some_done = False
        return None if bool(alive.all()) else alive.nonzero()[:, 0]

    @property
    def _selective(self) -> bool:
        """Whether there may be rows that must not be sent."""
        return self._tracker.some_done or self._record.meter.budget is not None

    def _payable(self, samples: Tensor, place: Tensor | None) -> Tensor:
        """Which images may be sent: those of samples not done, in order, up to each budget."""
        chosen = ~self._tracker.done(samples)
        if self._record.meter.budget is not None:
            chosen &= self._record.meter.left(samples) >= upto(place, self._draws)
        return chosen

    def ask(
        self,
        active: ActiveRows,
        query: Query,
        x: Tensor,
        rows: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Answer:
        """The answer to points ``[rows, ...]`` or candidates ``[rows, k, ...]``.

        `rows` are the numbers of the rows that are sent, all by default; `classes`, ``[rows, c]``,
        those whose gradients are requested. Rows that may not be sent have a blank answer.
        """
        owners = len(active) if rows is None else len(rows)
        check_shape(active, x, owners, query.elsewhere)
        one = x.dim() if query.elsewhere else active.ball.center.dim()
        plain = rows is None and query.through is None and x.dim() == one
        if not (plain and self._terms.keep == "first" and not self._selective):
            self._record.catch_up()  # rows broken by the last request are not sent again
        several = self.several or (rows is not None and _repeats(rows))
        k = x.shape[1] if x.dim() > one else None
        at = active.numbers if rows is None else rows
        flat, slot = x, at if query.through is None else torch.zeros_like(at)
        if k is not None:
            flat, at = x.flatten(0, 1), at.repeat_interleave(k)
            slot = torch.arange(k, device=x.device).repeat(owners)
            classes = None if classes is None else classes.repeat_interleave(k, 0)
        place = order(active.samples_at(at)) if several else None if k is None else slot
        batch = Batch(flat, at, slot, place, classes)
        sent: Tensor | None = None
        if self._selective:
            chosen = self._payable(active.samples_at(at), place)
            if not bool(chosen.all()):
                sent = chosen.nonzero()[:, 0]
                batch = batch.at(sent)
        answer = self._send(active, query, batch)
        if sent is not None:
            answer = answer.blank(len(x) * (k or 1)).put(sent, answer)
        return answer if k is None else answer.shaped(owners, k)

    def _send(self, active: ActiveRows, query: Query, batch: Batch) -> Answer:
        self._asked = True
        samples = active.samples_at(batch.rows)
        images = batch.images
        if not query.elsewhere:
            images = _received(active, images, batch.rows)
        logits, value, gradient = self._answers(active, query, batch._replace(images=images))
        if gradient is not None and value is not None:
            self._record.note_losses(samples, value.detach())
        slopes = 1 if batch.classes is None else batch.classes.shape[1]
        labels = self._classes(logits, samples, query.survey)
        hit: Tensor | Callable[[], Tensor] = torch.zeros_like(labels, dtype=torch.bool)
        if query.through is None:
            answered = Answered(images, samples, value, batch.place)
            ball = active.ball if samples is active.samples else None
            hit = self._tracker.look(answered, labels, logits, ball)
        else:
            self._tracker.must_be_numbers(logits)
        self._charge(active, samples, batch.place, 0 if gradient is None else slopes)
        if gradient is not None:
            gradient = self._sound(gradient, samples, query.elsewhere)
        shown = None if query.kind == "labels" else logits
        return Answer(hit, labels, logits=shown, loss=value, gradient=gradient)

    def _answers(
        self, active: ActiveRows, query: Query, batch: Batch
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits, loss and gradient of every image: means over the draws of a stochastic victim."""
        kind, loss, n = query.kind, query.loss, self._draws
        batch = batch if n == 1 else batch.repeated(n)
        chances = self._chances(active, batch.rows)
        gradient = value = None
        if kind == "gradient":
            assert loss is not None
            aim, through = active.aim_at(batch.rows), _through(active, query.through, batch)
            gradient, value, logits = self.oracle.gradient(
                batch.images, loss, aim, chances, through
            )
        elif kind == "gradients":
            assert batch.classes is not None
            labels = active.aim_at(batch.rows).labels
            gradient, logits = self.oracle.gradients(batch.images, batch.classes, chances, labels)
        else:
            logits = self.oracle.logits(batch.images, chances)
            if loss is not None or self.oracle.victim.rejects:
                aim = active.aim_at(batch.rows)
                seen = self.oracle.fold(logits, aim.labels, loss)
                value = None if loss is None else loss(seen, aim)
                logits = self.oracle.fold(logits, aim.labels)
        if n == 1:
            return logits, value, gradient
        if kind == "labels":
            # The mean of labels is a vote, which reveals no scores.
            logits = functional.one_hot(logits.argmax(1), logits.shape[1]).to(logits)
        parts = (logits, value, gradient)
        mean = [None if p is None else p.reshape(-1, n, *p.shape[1:]).mean(1) for p in parts]
        assert mean[0] is not None
        return mean[0], mean[1], mean[2]

    def _classes(self, logits: Tensor, samples: Tensor, survey: bool) -> Tensor:
        """The classes answered; near the boundary only those that rounding cannot change."""
        if survey:
            self._record.scale[samples] = largest(logits).to(self._record.scale)
        elif self._tracker.closes_in:
            return self._record.sure(logits, samples)
        return logits.argmax(1)

    def _chances(self, active: ActiveRows, rows: Tensor) -> Dice | None:
        """The dice of a stochastic victim, from seed, sample and number of earlier forwards."""
        if not self.oracle.victim.stochastic:
            return None
        samples = active.samples_at(rows)
        count = self._record.meter.forwards[samples] + order(samples)
        return self._record.chances.at(samples).counted(count)

    def _charge(
        self, active: ActiveRows, samples: Tensor, place: Tensor | None, backwards: int
    ) -> None:
        meter, n = self._record.meter, self._draws
        price = meter.price(n, backwards * n)
        if samples is active.samples and place is None and len(active) == meter.tab.shape[0]:
            meter.tab += (
                price  # every sample once: a plain addition is faster, which small networks notice
            )
        else:
            meter.tab.index_add_(0, samples, price.expand(len(samples), 4))
            if place is not None:  # several images, but one request
                meter.asked.index_add_(0, samples, (place > 0).to(torch.int64), alpha=-1)
        over = self._tracker.overtaken(samples)
        if over is not None:  # already broken: this request was not needed for them
            meter.queries.index_add_(0, samples, over.to(torch.int64), alpha=-n)
            self._record.asked[samples] -= over.to(torch.int64)
        self._report()

    def _report(self) -> None:
        self._record.meter.padding = self.oracle.padded
        if self._terms.watch is not None:
            self._terms.watch(self._record)

    def _sound(self, gradient: Tensor, samples: Tensor, elsewhere: bool) -> Tensor:
        """Record rows whose gradient vanished or is not finite; set such values to zero."""
        record = self._record
        if record.zero_share is None and not elsewhere:  # the share is one of pixel values
            record.zero_share = torch.full_like(record.distance, torch.nan)
            record.zero_share[samples] = (gradient == 0).flatten(1).double().mean(1)
        size = distances(gradient, Linf)
        if self.oracle.deferred:
            gone = ~(torch.isfinite(size) & (size > 0))
            every = torch.zeros_like(record.asked).index_add_(0, samples, gone.to(torch.int64))
            record.vanished |= every > 0
            return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        if len(size) and not math.isfinite(size.max()):
            record.vanished[samples[~torch.isfinite(size)]] = True
            gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
            size = distances(gradient, Linf)
        if len(size) and not size.min() > 0:
            record.vanished[samples[size == 0]] = True
        return gradient

    def speculate(
        self,
        active: ActiveRows,
        part: Tensor,
        rows: Tensor,
        accept: Callable[[Answer], Tensor],
        loss: Loss | None,
        each: bool,
    ) -> tuple[Answer, Tensor, Tensor]:
        """Compute all candidates at once; count only those that sending one by one would have used.

        Returns the answers, which candidate each row took (k if none) and which it used last.
        With `each`, every candidate used counts as a step.
        """
        r, k = part.shape[:2]
        at = rows.repeat_interleave(k)
        place = torch.arange(k, device=part.device).repeat(r)
        if self.several:
            place = order(active.samples[at])
        payable = self._payable(active.samples[at], place)
        sent = payable.nonzero()[:, 0]
        at, place = at[sent], place[sent]
        flat, samples = _received(active, part.flatten(0, 1)[sent], at), active.samples[at]
        scored = self.oracle.access >= Access.SCORE
        query = Query("logits" if scored else "labels", loss)
        batch = Batch(flat, at, at, place, None)
        logits, value, _ = self._answers(active, query, batch)
        labels = self._classes(logits, samples, False)
        hit = self._tracker.would_hit(flat, samples, labels)
        answer = Answer(hit, labels, logits=logits if scored else None, loss=value)
        answer = answer.blank(r * k).put(sent, answer).shaped(r, k)
        every_row = answer.blank(len(active)).put(rows, answer)
        stop = accept(every_row)[rows] & payable.view(r, k)
        if self._terms.leave == "success":
            stop = stop | answer.hit
        taken = torch.where(stop.any(1), stop.int().argmax(1), torch.full_like(rows, k))
        used = torch.arange(k, device=part.device) <= taken[:, None]
        seen = (used.flatten() & payable)[sent].nonzero()[:, 0]
        answered = Answered(flat, samples, value, place).at(seen)
        self._count(answered, labels[seen], logits[seen], active.samples[rows], each)
        self._record.meter.forwards.index_add_(
            0, samples, torch.ones_like(samples), alpha=self._draws
        )
        self._report()
        last = taken.minimum(payable.view(r, k).sum(1) - 1)
        answer.parts["hit"] &= used
        return answer, taken, last

    def _count(
        self, answered: Answered, labels: Tensor, logits: Tensor, owners: Tensor, each: bool
    ) -> None:
        """Have the candidates examined that sending one by one would have used; charge them."""
        record, meter, samples = self._record, self._record.meter, answered.samples
        unhit = owners[record.first_step[owners] < 0]
        self._tracker.look(answered, labels, logits)
        if each:
            # A success was recorded with the steps before the scan: add the candidates before it.
            new = unhit[record.first_step[unhit] >= 0]
            before = (record.first_query[new] - meter.queries[new]) // self._draws - 1
            record.first_step[new] += before
            record.asked.index_add_(0, samples, torch.ones_like(samples))
        meter.queries.index_add_(0, samples, torch.ones_like(samples), alpha=self._draws)


def check_shape(active: ActiveRows, x: Tensor, owners: int, elsewhere: bool = False) -> None:
    """Refuse tensors that are not images ``[rows, ...]`` or ``[rows, k, ...]`` of so many rows.

    Points `elsewhere` need only have so many rows.
    """
    one = active.ball.center.dim()
    shape = active.ball.center.shape[1:]
    images = elsewhere or (x.dim() - one in (0, 1) and x.shape[1 - one :] == shape)
    if len(x) != owners or not images:
        raise AttackError(
            f"images of shape {tuple(x.shape)} were sent, but {owners} rows of images "
            f"{tuple(shape)} are expected"
        )


def _repeats(rows: Tensor) -> bool:
    """Whether a row number is given several times; the numbers must ascend."""
    least = int((rows[1:] - rows[:-1]).min()) if len(rows) > 1 else 1
    if least < 0:
        raise AttackError("rows= was given numbers out of order: sort them and x with them")
    return least == 0


def _received(active: ActiveRows, images: Tensor, rows: Tensor) -> Tensor:
    """The images as the victim receives them: on its grid, contiguous in memory."""
    if active.ball.grid is not None:
        images = active.ball.at(rows).received(images)
    return images.contiguous()


def _through(
    active: ActiveRows, through: Through | None, batch: Batch
) -> Callable[[Tensor, slice], Tensor] | None:
    """The differentiable map in front of the victim, for some of the images of a batch."""
    if through is None:
        return None
    key, slot = active.dice.key[batch.rows], batch.slot
    return lambda image, rows: through(image, Dice(key[rows]), slot[rows])
