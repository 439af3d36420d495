"""Checks that an image's answer depends on the image only: not on batch, history or mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core import rules
from besiege.core.dice import Dice
from besiege.core.examination import Check
from besiege.core.region import distances
from besiege.core.rowwise import pick
from besiege.core.samples import in_box
from besiege.core.threat import Linf
from besiege.core.victim import Victim
from besiege.evaluation.subject import Fresh, Subject

NAME = "an image gets one answer"
AGAIN = "answers are the same after the attacks"
ROUNDING = 1e-3
"""Relative difference of logits that rounding explains in float32."""
UNITS = 16.0
"""The same in units of the machine epsilon, for types with fewer bits."""
ALONE, PAIRS, EIGHT, MANY = 4, 2, 8, 64
STEPS, CLIMBERS = 8, 8
"""Steps and images of the recorded ascent."""


@dataclass(frozen=True)
class Asked:
    """Images that were sent, which images they were made from, and the answers."""

    images: Tensor
    of: Tensor
    answers: Tensor

    def at(self, rows: Tensor) -> Asked:
        """Some of them."""
        return Asked(self.images[rows], self.of[rows], self.answers[rows])


def apart(once: Tensor, again: Tensor, eps: float) -> Tensor:
    """Which answers differ by more than rounding, ``[rows]``.

    Labels are not compared: near a tie, rounding may decide them.
    """
    numbers = torch.isfinite(once) & torch.isfinite(again)
    same_kind = torch.where(numbers, True, (once == again) | (once.isnan() & again.isnan()))
    one, two = (torch.where(numbers, z, 0.0) for z in (once, again))
    allowed = max(ROUNDING, UNITS * eps) * torch.maximum(one.norm(dim=1), two.norm(dim=1))
    return torch.logical_or((one - two).norm(dim=1) > allowed, ~same_kind.all(1))


class Sameness:
    """Asks a victim about the same images in different circumstances.

    Parameters
    ----------
    subject : Subject
        The victim and its images.
    eps : float
        The precision of its answers.
    seed : int
        Of the perturbed images.
    besides : tuple of Tensor, optional
        Images that another check asks about, and which images they were made from. They fill the
        largest batch, and ``answers`` then has the logits of the first of them.
    """

    def __init__(
        self,
        subject: Subject,
        eps: float,
        seed: int = 0,
        besides: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.subject, self.eps = subject, eps
        self.answers: Tensor | None = None
        count = min(8, len(subject))
        rows = torch.arange(count, device=subject.images.device)
        dice = Dice.throw(seed, torch.arange(len(subject), device=rows.device)).of("sameness")
        drawn = subject.ball.sample(dice.of("near"))
        gridded = subject.on_grid(drawn)
        near = torch.where((rows % 2 == 0).view(-1, 1, 1, 1), drawn[:count], gridded[:count])
        self.of = torch.cat([rows, rows])
        self.images = torch.cat([subject.images[:count], near])
        self.reference = subject.ask(self.images, self.of)
        noise = in_box(dice.of("noise").uniform(subject.images.shape[1:]), subject.victim.box)
        self.others = subject.ball.snap(torch.cat([subject.images.flip(0), noise]))
        own = torch.arange(len(subject), device=rows.device)
        self.others_of = torch.cat([own.flip(0), own])
        self.besides = besides or (self.others[:0], self.others_of[:0])
        self.compared = 2 * count
        self.differing = 0

    def repeats(self) -> bool:
        """Whether the same batch, with the same dice, is answered in the same way again."""
        return not self._differs(self.subject.ask(self.images, self.of))

    def check(self, fresh: Fresh | None, earlier: Asked | None) -> Check:
        """An image gets one answer; `earlier` holds images asked before in another order."""
        with_fresh = "" if fresh is not None else ", no fresh copy to compare with"
        if not self.repeats():
            return self._unsteady(fresh)
        modes = self.subject.ask(self.images, self.of, gradients=True)
        if self._differs(modes):
            changed = self.differing
            if not (self.repeats() and self.repeats()):  # a model may alternate
                return self._stateful("when it was asked again")
            self.differing = changed
            return self._failed(
                "with gradients and without them",
                "gradient-dependent",
                "Attacks that follow gradients attack another model than the one that is judged. "
                "Remove what looks at torch.is_grad_enabled() or requires_grad.",
            )
        if (batch := self._batches()) is not None:
            return batch
        if not self.repeats():
            return self._stateful("when it was asked again")
        if fresh is not None and (found := self._copies(fresh, earlier)) is not None:
            return found
        return Check(NAME, "passed", f"{self.compared} of {self.compared} answers{with_fresh}")

    def _differs(self, answers: Tensor, rows: Tensor | None = None) -> bool:
        expected = self.reference if rows is None else self.reference[rows]
        different = apart(expected, answers, self.eps)
        self.compared += len(answers)
        self.differing = int(different.sum())
        return self.differing > 0

    def _batches(self) -> Check | None:
        """Other orders, neighbours and sizes of the batch."""
        subject, count = self.subject, len(self.images)
        order = torch.arange(count - 1, -1, -1, device=self.of.device)
        if self._differs(subject.ask(self.images[order], self.of[order]), order):
            return self._batch("in another order of the same batch", "its place in the batch")
        kept = torch.arange(0, count, 2, device=self.of.device)
        mixed, of = self.images.clone(), self.of.clone()
        fill = torch.arange(count - len(kept), device=self.of.device) % len(self.others)
        mixed[1::2], of[1::2] = self.others[fill], self.others_of[fill]
        if self._differs(subject.ask(mixed, of)[kept], kept):
            return self._batch("with other images beside it", "its neighbours in the batch")
        for size in (1, 2, EIGHT, max(MANY, subject.batch)):
            times = {1: ALONE, 2: PAIRS}.get(size, 1)
            for turn in range(1 if subject.victim.metered else times):
                if (found := self._size(size, turn)) is not None:
                    return found
        return None

    def _size(self, size: int, turn: int) -> Check | None:
        """A batch of another size: some of the images, then others."""
        if self.subject.victim.metered and size > EIGHT:
            return None
        count, device = len(self.images), self.of.device
        rows = (torch.arange(min(size, count), device=device) * 5 + 3 * turn) % count
        rows = torch.tensor(list(dict.fromkeys(rows.tolist())), device=device)
        more, more_of = (
            one[: size - len(rows)] if size >= MANY else one[:0] for one in self.besides
        )
        own, end = len(rows), len(rows) + len(more)
        fill = torch.arange(size - end, device=device) % len(self.others)
        images = torch.cat([self.images[rows], more, self.others[fill]])
        of = torch.cat([self.of[rows], more_of, self.others_of[fill]])
        answers = self.subject.ask(images, of)
        self.answers = answers[own:end] if len(more) else self.answers
        if self._differs(answers[:own], rows):
            among = "alone" if size == 1 else f"in a batch of {size}"
            return self._batch(among, "the size of the batch, or its neighbours in it")
        return None

    def _copies(self, fresh: Fresh, earlier: Asked | None) -> Check | None:
        """Fresh copies of the model, which have not been asked anything."""
        new = fresh()
        with new.held():
            order = torch.arange(len(self.images) - 1, -1, -1, device=self.of.device)
            answers = self.subject.with_victim(new).ask(self.images[order], self.of[order])
        if self._differs(answers, order):
            if made_at_random(fresh, self.subject, self.images, self.of, self.eps):
                return self._failed("on a fresh copy of the model", MADE_AT_RANDOM, LOADED)
            return self._stateful("on a fresh copy of the model")
        if earlier is None or not len(earlier.images):
            return None
        new = fresh()
        with new.held():
            order = torch.arange(len(earlier.of) - 1, -1, -1, device=self.of.device)
            different = asked_again(self.subject.with_victim(new), earlier.at(order), self.eps)
        self.compared += len(different)
        self.differing = int(different.sum())
        if self.differing:
            return self._stateful("on a fresh copy of the model, near images it was asked about")
        return None

    def _unsteady(self, fresh: Fresh | None) -> Check:
        """The same batch was answered differently: by chance, or because of a state."""
        if fresh is not None and not by_chance(fresh, self.subject, self.images, self.of, self.eps):
            return self._stateful("when it was asked again")
        return stochastic(NAME, f"{self.differing} of {len(self.images)} answers differ")

    def _batch(self, when: str, on: str) -> Check:
        return self._failed(
            when,
            f"batch-dependent: the answer depends on {on}",
            "Attacks and judge send batches of other sizes than users do. Remove statistics over "
            "the batch (batch norm in training mode, means, sorting, len(x)), so that every image "
            "is answered alone.",
        )

    def _stateful(self, when: str) -> Check:
        return self._failed(when, "stateful", STATELESS)

    def _failed(self, when: str, what: str, advice: str) -> Check:
        return Check(
            NAME,
            "failed",
            f"{self.differing} answers differ",
            f"the model answered the same images differently {when}: it is {what}.",
            advice,
            "W46",
        )


STATELESS = (
    "Its answers depend on earlier queries (a memory, a counter, statistics that are updated), so "
    "attacks and judge see other models. Reset the state before every answer, or evaluate the "
    "model without it."
)

MADE_AT_RANDOM = "made at random, so that every copy is another model"
LOADED = (
    "The function that makes the model draws numbers, such as initial weights: load its trained "
    "weights there, or fix the seed."
)


def made_at_random(fresh: Fresh, subject: Subject, images: Tensor, of: Tensor, eps: float) -> bool:
    """Whether two fresh copies answer their first query differently: a state would be the same."""
    answers = []
    for _ in range(2):
        new = fresh()
        with new.held():
            answers.append(subject.with_victim(new).ask(images, of))
    return bool(apart(answers[0], answers[1], eps).any())


def by_chance(fresh: Fresh, subject: Subject, images: Tensor, of: Tensor, eps: float) -> bool:
    """Whether two fresh copies, each asked twice, answer differently: a state would repeat."""
    firsts = []
    for _ in range(2):
        new = fresh()
        with new.held():
            copy = subject.with_victim(new)
            firsts.append([copy.ask(images, of) for _ in range(2)])
    return any(bool(apart(one, two, eps).any()) for one, two in zip(*firsts, strict=True))


def stochastic(name: str, number: str) -> Check:
    """A failed check of a model that answers by chance."""
    found = rules.stochastic()
    return Check(name, "failed", number, found.seen, found.advice, found.id)


def asked_again(subject: Subject, asked: Asked, eps: float) -> Tensor:
    """Which answers differ when images are asked again in the same batch."""
    return apart(asked.answers, subject.ask_all(asked.images, asked.of), eps)


def one_by_one(subject: Subject, asked: Asked, eps: float, seed: int) -> Tensor:
    """Which answers differ when images are asked again one by one, in random order."""
    device = asked.of.device
    order = Dice.throw(seed, torch.arange(len(asked.of), device=device)).of("order")
    rows = order.uniform(()).argsort()
    answers = torch.cat([subject.ask(asked.images[r], asked.of[r]) for r in rows[:, None]])
    return apart(asked.answers[rows], answers, eps)


def ascent(subject: Subject, clean: Tensor, seed: int) -> Asked:
    """A short ascent with sign steps along the victim's own gradient, and its answers.

    Without gradients the steps are random. `clean` has the answers to the images.
    """
    few = torch.arange(min(CLIMBERS, len(subject)), device=subject.images.device)
    near = subject.near.at(few)
    rivals = subject.rivals(clean)
    x = near.center
    dice = Dice.throw(seed, few).of("ascent")
    sent, answers = [], []
    follows = subject.follows
    for step in range(STEPS):
        move = dice.normal(x.shape[1:], step).to(x)
        if follows:
            slope = -subject.gradient(x, few, rivals)[0].nan_to_num(0.0, 0.0, 0.0)
            # A model that repeats an earlier answer has no gradient: move on nevertheless.
            move = pick(distances(slope, Linf) > 0, slope, move)
        x = near.project(x + near.steepest(move, x, near.radius / STEPS))
        sent.append(x)
        answers.append(subject.ask(x, few))
    return Asked(torch.cat(sent), few.repeat(STEPS), torch.cat(answers))


def copies(fresh: Fresh, subject: Subject, batch: Asked, eps: float) -> Tensor:
    """Which answers differ from those of a fresh copy that is asked nothing else."""
    new: Victim = fresh()
    with new.held():
        return asked_again(subject.with_victim(new), batch, eps)
