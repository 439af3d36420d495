"""One attack on one batch: what an attack works with.

An attack asks (`gradient`, `logits`, `labels`, `offer`, `scan`), moves, and settles. The siege
charges every image, looks at every answer, notes the rows that reach their goal inside their
ball, keeps the image the caller wants kept and lets rows leave when the caller wants them to. No
attack contains bookkeeping, and none holds the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from besiege.core.answer import Aim, Answer, Loss, Scan, Through
from besiege.core.ball import TOLERANCE, Ball, distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, StochasticError, ThreatError
from besiege.core.oracle import Access, Meter, Oracle
from besiege.core.record import Keep, Leave, Record
from besiege.core.registry import Registry
from besiege.core.threat import Goal, Linf

ATTACKS: Registry[Any] = Registry(
    "attack",
    ("besiege.attacks.ascent", "besiege.attacks.combine"),
    group="besiege.attacks",
)
register = ATTACKS.register

BLOCK = 128
"""Images per block for attacks with many candidates per row."""

Kind = Literal["labels", "logits", "gradient", "gradients"]


class Siege:
    """One attack on some rows of a record, on given terms.

    Built by `lay`; combinators make others with `view`.

    Attributes
    ----------
    ball : Ball
        Where each row may go.
    aim : Aim
        Where the loss steers each row.
    dice : Dice
        Each row's chances.
    record : Record
        What is known of every sample of the batch.
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
        parent: Siege | None = None,
        watch: Callable[[Record], None] | None = None,
    ) -> None:
        self._oracle = oracle
        self._watch = watch
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
        self._hit = torch.zeros(n, dtype=torch.bool, device=index.device)
        self._done: Tensor = self._hit.clone() if parent is None else parent._done.clone()
        self._uneven = parent is not None or record.meter.budget is not None
        if parent is not None:
            self.settle()

    @classmethod
    def lay(
        cls,
        oracle: Oracle,
        ball: Ball,
        labels: Tensor,
        dice: Dice,
        *,
        targets: Tensor | None = None,
        keep: Keep = "first",
        leave: Leave = "success",
        queries: int | None = None,
        watch: Callable[[Record], None] | None = None,
    ) -> Siege:
        """A siege of all rows of a ball; `targets` make it a targeted one.

        `watch` is called after every answer, for whoever shows progress.
        """
        meter = Meter(len(ball), ball.center.device, queries)
        record = Record(ball.center, labels, targets, meter, dice.of("victim"))
        index = torch.arange(len(ball), device=ball.center.device)
        aim = Aim(labels, targets)
        return cls(oracle, record, index, ball, aim, dice, keep=keep, leave=leave, watch=watch)

    # What an attack may know.

    def __len__(self) -> int:
        return self._index.shape[0]  # len of a tensor is slow, and this is asked often

    @property
    def rows(self) -> Tensor:
        """The position in the batch of each row that is still there."""
        return self._index

    @property
    def targeted(self) -> bool:
        """Whether a given class must be reached, or any error counts."""
        return self.record.targets is not None

    @property
    def classes(self) -> int:
        """How many classes the victim tells apart."""
        classes = self._oracle.classes
        if classes is None:
            raise AttackError("the number of classes is not known before the clean check")
        return classes

    @property
    def broken(self) -> Tensor:
        """Which of the rows this siege began with were hit in it, within their radii."""
        return self._hit[self._entered]

    @property
    def distance(self) -> Tensor:
        """The distance of each row's kept success, infinite where there is none."""
        return self.record.distance[self._index]

    def ranked(self) -> Tensor:
        """The other classes of each row, ``[rows, classes - 1]``, likeliest when clean first.

        Decision access shows no likelihoods: then in order of their number after the label.
        """
        labels, clean = self.aim.labels, self.aim.clean
        if clean is None:
            after = torch.arange(1, self.classes, device=labels.device)
            return (labels[:, None] + after) % self.classes
        others = clean.scatter(1, labels[:, None], -torch.inf)
        return others.argsort(dim=1, descending=True, stable=True)[:, :-1]

    # Asking.

    def survey(self, targets: Callable[[Siege], Tensor] | None = None) -> Answer:
        """The clean check: one answer for the clean images, charged, not counted as a step.

        `targets` chooses the class each row must reach, for goals that are rules on what the
        clean check tells: the clean scores, the number of classes.
        """
        ask = self.logits if self._oracle.access >= Access.SCORE else self.labels
        record, answer = self.record, ask(self.ball.center)
        record.asked[self._index] = 0
        if "logits" in answer:
            clean = answer.logits.new_zeros(len(record.labels), answer.logits.shape[1])
            clean[self._index] = answer.logits
            record.logits = clean
            for level in self._chain():
                level.aim = replace(level.aim, clean=clean[level._index])
        if targets is not None:
            record.targets = torch.full_like(record.labels, -1)
            record.targets[self._index] = targets(self)
            for level in self._chain():
                level.aim = replace(level.aim, targets=record.targets[level._index])
            hit = self._look(self.ball.center, self._index, answer.labels, None, charged=True)
            answer.parts["hit"] = hit
        return answer

    def gradient(
        self, x: Tensor, loss: Loss, through: Through | None = None, rows: Tensor | None = None
    ) -> Answer:
        """The gradient of a loss, and all that a forward tells.

        Parameters
        ----------
        x : Tensor
            Points ``[rows, ...]``, or k candidates per row, ``[rows, k, ...]``.
        loss : callable
            Logits and aim to one number per image, to be raised.
        through : callable, optional
            A differentiable map in front of the victim: answers through it steer, but are not
            looked at for success.
        rows : Tensor, optional
            Ask for some rows only: their numbers, ascending, repeats allowed.
        """
        self._needs_gradient()
        return self._request(x, rows, "gradient", loss, through)

    def gradients(self, x: Tensor, classes: Tensor) -> Answer:
        """Gradients of chosen logits, ``[rows, c, ...]``: one forward, one backward per class.

        `classes` is ``[rows, c]``.
        """
        self._needs_gradient()
        return self._request(x, None, "gradients", classes=classes)

    def logits(self, x: Tensor, rows: Tensor | None = None, loss: Loss | None = None) -> Answer:
        """The logits, and the loss if one is given."""
        self._oracle.allow(Access.SCORE, fitting)
        return self._request(x, rows, "logits", loss)

    def labels(self, x: Tensor, rows: Tensor | None = None) -> Answer:
        """The predicted classes and nothing else."""
        return self._request(x, rows, "labels")

    def offer(self, x: Tensor, loss: Loss | None = None) -> Answer:
        """Have points looked at: one charged forward each. The loss is for keep 'highest'."""
        if self._oracle.access >= Access.SCORE:
            return self.logits(x, loss=loss)
        return self.labels(x)

    def scan(self, x: Tensor, accept: Callable[[Answer], Tensor]) -> Scan:
        """Candidates ``[rows, k, ...]`` in order, up to the first that `accept` takes.

        The same choices, hits and queries as asking one by one. A local victim computes all k
        at once (forwards say so); a metered or stochastic one is asked one by one. A hit ends a
        row's scan where rows leave at success. `accept` is given answers ``[rows, j]`` to j
        candidates of every row, blank where a row was not asked, and says which it would take.
        """
        self._check_shape(x, len(self))
        r, k = x.shape[:2]
        victim = self._oracle.victim
        ahead = 1 if victim.metered or victim.stochastic else k
        choice = torch.full((r,), k, dtype=torch.int64, device=x.device)
        told: Answer | None = None
        asked = self._index[self._alive()]
        for start in range(0, k, ahead):
            rows = ((choice == k) & self._alive()).nonzero()[:, 0]
            if len(rows) == 0:
                break
            part = x[rows, start : start + ahead]
            answer, taken, last = self._speculate(part, rows, accept)
            seen = answer.choose(last)
            told = (seen.blank(r) if told is None else told).put(rows, seen)
            accepted = taken < part.shape[1]
            choice[rows[accepted]] = start + taken[accepted]
        self.record.asked[asked] += 1  # one request, however it was sent
        if told is None:
            told = Answer(torch.zeros_like(choice, dtype=torch.bool), torch.full_like(choice, -1))
        return Scan(choice, told)

    def blocks(self, k: int) -> Iterator[Tensor]:
        """Row numbers in pieces of about 128 images, for attacks with k candidates per row."""
        rows = torch.arange(len(self), device=self._index.device)
        size = max(1, BLOCK // max(k, 1))
        for start in range(0, len(self), size):
            yield rows[start : start + size]

    # Going on.

    def settle(self, *state: Tensor | Answer) -> Any:
        """Let the rows that are done leave; give back the state of those that stay.

        Takes tensors and answers, all with the rows first, and gives back as many (one alone not
        in a tuple). Called once per outer step, right after the answer. It only saves work: a
        row that is done is not sent any more, settled or not.
        """
        for part in state:
            length = (part.hit if isinstance(part, Answer) else part).shape[0]
            if length != len(self):
                raise AttackError(
                    f"settle was given a state of {length} rows, but {len(self)} rows are in the "
                    "siege; all state has the rows first and is settled together"
                )
        if self._uneven:
            stay = self._alive()
            if not bool(stay.all()):
                rows = stay.nonzero()[:, 0]
                self._index = self._index[rows]
                self.ball, self.aim, self.dice = (
                    self.ball.at(rows),
                    self.aim.at(rows),
                    self.dice.at(rows),
                )
                state = tuple(p.at(rows) if isinstance(p, Answer) else p[rows] for p in state)
            self._uneven = self.record.meter.budget is not None
        return state[0] if len(state) == 1 else state

    def leave(self, mask: Tensor) -> None:
        """An attack's own stop rule: these rows leave."""
        self._done[self._index[mask]] = True
        self._uneven = True

    # Other terms.

    def view(
        self,
        rows: Tensor | None = None,
        *,
        radius: Tensor | None = None,
        aim: Tensor | None = None,
        dice: Dice | None = None,
        keep: Keep | None = None,
        leave: Leave | None = None,
        draws: int | None = None,
    ) -> Siege:
        """The same record and meter on other terms: what combinators are made of.

        Parameters
        ----------
        rows : Tensor, optional
            Row numbers of this siege; all by default. Rows that are done do not enter.
        radius, aim, dice : optional
            Other radii, target classes to steer to, or chances, for those rows.
        keep, leave, draws : optional
            Other settings.
        """
        index, ball, aims, chances = self._index, self.ball, self.aim, self.dice
        if rows is not None:
            index, ball, aims, chances = index[rows], ball.at(rows), aims.at(rows), chances.at(rows)
        return Siege(
            self._oracle,
            self.record,
            index,
            ball if radius is None else ball.of(radius),
            aims if aim is None else replace(aims, targets=aim),
            chances if dice is None else dice,
            keep=keep or self.keeps,
            leave=leave or self.leaves,
            draws=draws or self._draws,
            parent=self,
            watch=self._watch,
        )

    def averaged(self, draws: int) -> Siege:
        """The same siege with every answer a mean over fresh chances of a stochastic victim."""
        return self.view(draws=draws * self._draws)

    # Below: sending, charging, looking.

    def _chain(self) -> Iterator[Siege]:
        """The siege itself and those it was made from, the root last."""
        level: Siege | None = self
        while level is not None:
            yield level
            level = level._parent

    def _needs_gradient(self) -> None:
        self._oracle.allow(Access.GRADIENT, fitting)
        if self._oracle.victim.stochastic and self._draws == 1:
            raise StochasticError(
                "this victim answers by chance, and one gradient of it is one draw: attack its "
                "expectation, for example averaged(pgd, 20)"
            )

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
            cost = (_order(at) + 1) * self._draws
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
            value = None if loss is None else loss(logits, self.aim.at(owners))
        if n > 1:
            logits = logits.reshape(-1, n, *logits.shape[1:]).mean(1)
            value = None if value is None else value.reshape(-1, n).mean(1)
            if gradient is not None:
                gradient = gradient.reshape(-1, n, *gradient.shape[1:]).mean(1)
        samples = self._samples(at)
        backwards = 0 if gradient is None else 1 if classes is None else classes.shape[1]
        labels = logits.argmax(1)
        if through is None:
            hit = self._look(flat, samples, labels, value)
        else:
            hit = torch.zeros_like(labels, dtype=torch.bool)
        self._charge(samples, n, backwards * n)
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

        def value(logits: Tensor, rows: slice) -> Tensor:
            return loss(logits, aim if len(logits) == len(x) else aim.at(rows))

        return self._oracle.gradient(x, value, chances, mapped)

    def _chances(self, owners: Tensor) -> Dice | None:
        """The victim's chances: of (seed, sample, how often asked)."""
        if not self._oracle.victim.stochastic:
            return None
        samples = self._index[owners]
        count = self.record.meter.forwards[samples] + _order(owners)
        return self.record.chances.at(samples).counted(count)

    def _charge(self, samples: Tensor, forwards: int, backwards: int) -> None:
        record, meter = self.record, self.record.meter
        if samples is self._index and len(self) == record.asked.shape[0]:
            # Everybody once: plain additions, which small networks notice.
            meter.forwards += forwards
            meter.queries += forwards
            meter.backwards += backwards
            record.asked += 1
        else:
            one = torch.ones_like(samples)
            meter.forwards.index_add_(0, samples, one, alpha=forwards)
            meter.queries.index_add_(0, samples, one, alpha=forwards)
            meter.backwards.index_add_(0, samples, one, alpha=backwards)
            record.asked[samples] += 1
        meter.padding = self._oracle.padded

    def _sound(self, gradient: Tensor, samples: Tensor) -> Tensor:
        """Note rows whose gradient vanished, and make zero what is not finite."""
        size = distances(gradient, Linf)
        if len(size) and not math.isfinite(size.max()):
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
        *,
        charged: bool = False,
    ) -> Tensor:
        """Note the rows that reached their goal inside their ball; keep what is to be kept."""
        reached = self.record.reached(samples, labels)
        if self.keeps == "first" and samples is self._index:
            # Of every row once only the first hit matters: as a rule few are new, often none.
            known = self._hit[samples] & self.record.success[samples]
            new = (reached & ~known).nonzero()[:, 0]
            if new.shape[0]:
                some = None if loss is None else loss[new]
                self._note(x.index_select(0, new), samples[new], None, some, charged)
            return reached & self.ball.inside(x)
        return self._note(x, samples, reached, loss, charged)

    def _note(
        self,
        x: Tensor,
        samples: Tensor,
        reached: Tensor | None,
        loss: Tensor | None,
        charged: bool,
    ) -> Tensor:
        """Tell the sieges and the record what was reached; None for `reached` means all."""
        record = self.record
        distance = self._distances(x, samples, reached)
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
                place = 0 if reached is None else _order(samples)
                queries = record.meter.queries[samples]
                if not charged:
                    queries = queries + (place + 1) * self._draws
                if reached is not None:
                    new = new[_order(samples[new]) == 0]
                record.note_first(samples[new], queries[new])
        elif self.keeps in ("first", "smallest"):
            return hit
        distance = torch.where(inside, distance, torch.full_like(distance, torch.inf))
        record.keep(self.keeps, x, samples, distance, loss)
        return hit

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
        self, part: Tensor, rows: Tensor, accept: Callable[[Answer], Tensor]
    ) -> tuple[Answer, Tensor, Tensor]:
        """Answer candidates at once, counting only what asking one by one would have seen.

        Gives back the answers, which candidate each row took (k if none) and which it saw last.
        """
        r, k = part.shape[:2]
        at = rows.repeat_interleave(k)
        payable = self._payable(at)
        sent = payable.nonzero()[:, 0]
        flat, samples = part.flatten(0, 1)[sent].contiguous(), self._index[at[sent]]
        n = self._draws
        images, owners = (t.repeat_interleave(n, 0) for t in (flat, at[sent]))
        logits = self._oracle.logits(images, self._chances(owners))
        logits = logits.reshape(-1, n, logits.shape[1]).mean(1)
        labels = logits.argmax(1)
        distance = self._distances(flat, samples, self.record.reached(samples, labels))
        hit = distance <= self._limit[samples]
        scored = logits if self._oracle.access >= Access.SCORE else None
        answer = Answer(hit, labels, logits=scored)
        answer = answer.blank(r * k).put(sent, answer).shaped(r, k)
        whole = answer.blank(len(self)).put(rows, answer)
        stop = accept(whole)[rows] & payable.view(r, k)
        if self.leaves == "success":
            stop = stop | answer.hit
        taken = torch.where(stop.any(1), stop.int().argmax(1), torch.full_like(rows, k))
        used = torch.arange(k, device=part.device) <= taken[:, None]
        seen = (used.flatten() & payable)[sent]
        meter, looked = self.record.meter, samples[seen]
        self._look(flat[seen], looked, labels[seen], None)
        meter.forwards.index_add_(0, samples, torch.ones_like(samples), alpha=n)
        meter.queries.index_add_(0, looked, torch.ones_like(looked), alpha=n)
        meter.padding = self._oracle.padded
        last = taken.minimum(payable.view(r, k).sum(1) - 1)
        answer.parts["hit"] &= used
        return answer, taken, last


def target_class(siege: Siege, goal: Goal) -> Tensor:
    """The class of each row by a rule on the clean scores: least likely, or second."""
    if siege.aim.clean is None:
        raise ThreatError(
            f"the class of '{goal}' is read off the clean scores, which decision access does not "
            "give; use a threat of score access, or give the targets"
        )
    return siege.ranked()[:, -1 if goal is Goal.LEAST_LIKELY else 0]


def fitting(access: Access) -> list[str]:
    """Names of the registered attacks that need no more than this access."""
    return [
        name
        for name, attack in ATTACKS.items()
        if isinstance(getattr(attack, "access", None), Access) and attack.access <= access
    ]


def _order(owners: Tensor) -> Tensor:
    """The place of each entry among those of the same owner; an owner's stand together."""
    place = torch.arange(len(owners), device=owners.device)
    if len(owners) == 0:
        return place
    new = torch.ones_like(owners, dtype=torch.bool)
    new[1:] = owners[1:] != owners[:-1]
    began = torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    return place - began
