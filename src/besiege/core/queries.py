"""How a siege asks: which images may be sent, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.answer import Answer, Loss, Through
from besiege.core.ball import distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.oracle import Access
from besiege.core.record import largest
from besiege.core.threat import Linf
from besiege.core.tracker import Tracker, order

Kind = Literal["labels", "logits", "gradient", "gradients"]


class Queries(Tracker):
    """Rows of a record under given terms, and the way their images are sent and charged."""

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
        several = self._several or (rows is not None and self._repeats(rows))
        k = x.shape[1] if x.dim() > self.ball.center.dim() else None
        at = self._every() if rows is None else rows
        flat, slot = x, at if through is None else torch.zeros_like(at)
        if k is not None:
            flat, at = x.flatten(0, 1), at.repeat_interleave(k)
            slot = torch.arange(k, device=x.device).repeat(owners)
            classes = None if classes is None else classes.repeat_interleave(k, 0)
        place = order(self._samples(at)) if several else None if k is None else slot
        sent: Tensor | None = None
        if self._uneven:
            chosen = self._payable(at, place)
            if not bool(chosen.all()):
                sent = chosen.nonzero()[:, 0]
                at, flat, slot = at[sent], flat[sent], slot[sent]
                place = None if place is None else place[sent]
                classes = None if classes is None else classes[sent]
        if self.ball.grid is not None:
            flat = self.ball.at(at).received(flat)
        answer = self._send(flat.contiguous(), at, slot, place, kind, loss, through, classes)
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

    @staticmethod
    def _repeats(rows: Tensor) -> bool:
        """Whether a row number is given several times; they must ascend."""
        least = int((rows[1:] - rows[:-1]).min()) if len(rows) > 1 else 1
        if least < 0:
            raise AttackError("rows= was given numbers out of order: sort them and x with them")
        return least == 0

    def _every(self) -> Tensor:
        """All row numbers, always the same tensor, by which `_samples` knows them."""
        if len(self._all) != len(self._index):
            self._all = torch.arange(len(self._index), device=self._index.device)
        return self._all

    def _samples(self, at: Tensor) -> Tensor:
        return self._index if at is self._all else self._index[at]

    def _payable(self, at: Tensor, place: Tensor | None) -> Tensor:
        """Which images may be sent: of rows not done, in order, up to each row's budget."""
        samples = self._samples(at)
        chosen = ~self._done[samples]
        if self.record.meter.budget is not None:
            chosen &= self.record.meter.left(samples) >= self._upto(place)
        return chosen

    def _send(
        self,
        flat: Tensor,
        at: Tensor,
        slot: Tensor,
        place: Tensor | None,
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
            if kind == "labels":
                logits = _voted(logits)
            logits = logits.reshape(-1, n, *logits.shape[1:]).mean(1)
            value = None if value is None else value.reshape(-1, n).mean(1)
            if gradient is not None:
                gradient = gradient.reshape(-1, n, *gradient.shape[1:]).mean(1)
        samples = self._samples(at)
        if gradient is not None and value is not None:
            self.record.climb(samples, value.detach())
        backwards = 0 if gradient is None else 1 if classes is None else classes.shape[1]
        labels = self._classes(logits, samples)
        hit: Tensor | Callable[[], Tensor] = torch.zeros_like(labels, dtype=torch.bool)
        if through is None:
            hit = self._look(flat, samples, labels, value, logits, place)
        else:
            self._must_be_numbers(logits)
        self._charge(samples, place, n, backwards * n)
        if self._late:
            self._late = False
            self._excuse(samples, n)
        if self._watch is not None:
            self._watch(self.record)
        if gradient is not None:
            gradient = self._sound(gradient, samples)
        shown = None if kind == "labels" else logits
        return Answer(hit, labels, logits=shown, loss=value, gradient=gradient)

    def _classes(self, logits: Tensor, samples: Tensor) -> Tensor:
        """The classes answered; of a search for the smallest change, those rounding cannot turn."""
        if self._surveying:
            self.record.scale[samples] = largest(logits).to(self.record.scale)
        elif self.closes_in:
            return self.record.sure(logits, samples)
        return logits.argmax(1)

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
        count = self.record.meter.forwards[samples] + order(samples)
        return self.record.chances.at(samples).counted(count)

    def _charge(self, samples: Tensor, place: Tensor | None, forwards: int, backwards: int) -> None:
        meter, price = self.record.meter, self.record.meter.price(forwards, backwards)
        if samples is self._index and place is None and len(self) == meter.tab.shape[0]:
            meter.tab += price  # everybody once: a plain addition, which small networks notice
        else:
            meter.tab.index_add_(0, samples, price.expand(len(samples), 4))
            if place is not None:  # several images, but one request
                meter.asked.index_add_(0, samples, (place > 0).to(torch.int64), alpha=-1)
        meter.padding = self._oracle.padded

    def _excuse(self, samples: Tensor, forwards: int) -> None:
        """Rows found to have been hit one request ago: this one decided nothing about them."""
        record, over = self.record, self._done[samples]
        record.meter.queries.index_add_(0, samples, over.to(torch.int64), alpha=-forwards)
        record.asked[samples] -= over.to(torch.int64)

    def _sound(self, gradient: Tensor, samples: Tensor) -> Tensor:
        """Note rows whose gradient vanished or is not finite, and make zero what is not."""
        record = self.record
        if record.zero_share is None:
            record.zero_share = torch.full_like(record.distance, torch.nan)
            record.zero_share[samples] = (gradient == 0).flatten(1).double().mean(1)
        size = distances(gradient, Linf)
        if self._oracle.deferred:
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
        place = torch.arange(k, device=part.device).repeat(r)
        if self._several:
            place = order(self._index[at])
        payable = self._payable(at, place)
        sent = payable.nonzero()[:, 0]
        flat, samples = part.flatten(0, 1)[sent].contiguous(), self._index[at[sent]]
        if self.ball.grid is not None:
            flat = self.ball.at(at[sent]).received(flat)
        n = self._draws
        images, owners = (t.repeat_interleave(n, 0) for t in (flat, at[sent]))
        logits = self._oracle.logits(images, self._chances(owners))
        value = None if loss is None else loss(logits, self.aim.at(owners))
        if n > 1:
            if self._oracle.access < Access.SCORE:
                logits = _voted(logits)
            logits = logits.reshape(-1, n, logits.shape[1]).mean(1)
            value = None if value is None else value.reshape(-1, n).mean(1)
        labels = self._classes(logits, samples)
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
        self._look(flat[seen], looked, labels[seen], some, logits[seen], place[sent][seen])
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


def _voted(logits: Tensor) -> Tensor:
    """One for the class answered: the mean of labels is a vote, which tells no scores."""
    return functional.one_hot(logits.argmax(1), logits.shape[1]).to(logits)
