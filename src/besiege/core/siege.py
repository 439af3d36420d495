"""One attack on one batch: what an attack works with.

An attack asks (`gradient`, `logits`, `labels`, `offer`, `scan`), moves, and settles. The siege
charges every image, looks at every answer, notes the rows that reach their goal inside their
ball, keeps the image the caller wants kept and lets rows leave when the caller wants them to. No
attack contains bookkeeping, and none holds the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from besiege.core.answer import Aim, Answer, Loss, Scan, Through
from besiege.core.ball import Ball
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, StochasticError, ThreatError
from besiege.core.knowledge import Knowledge
from besiege.core.oracle import Access, Meter, Oracle
from besiege.core.queries import Queries
from besiege.core.record import Keep, Leave, Record
from besiege.core.registry import Registry
from besiege.core.threat import Goal
from besiege.core.tracker import order

ATTACKS: Registry[Any] = Registry(
    "attack",
    (
        "besiege.attacks.alma",
        "besiege.attacks.ascent",
        "besiege.attacks.apgd",
        "besiege.attacks.bandits",
        "besiege.attacks.blb",
        "besiege.attacks.boundary",
        "besiege.attacks.combine",
        "besiege.attacks.deepfool",
        "besiege.attacks.cw",
        "besiege.attacks.ead",
        "besiege.attacks.evolutionary",
        "besiege.attacks.fab",
        "besiege.attacks.geoda",
        "besiege.attacks.hopskipjump",
        "besiege.attacks.jsma",
        "besiege.attacks.nattack",
        "besiege.attacks.nes",
        "besiege.attacks.prgf",
        "besiege.attacks.opt",
        "besiege.attacks.optmargin",
        "besiege.attacks.partial",
        "besiege.attacks.rays",
        "besiege.attacks.sigmazero",
        "besiege.attacks.square",
        "besiege.attacks.universal",
        "besiege.attacks.zoo",
    ),
    group="besiege.attacks",
)
register = ATTACKS.register

BLOCK = 128
"""Images of one row that are made and asked at once, at most."""
CPU_PIECE, GPU_PIECE = 2**22, 2**24
"""And how many entries these may have: more would leave the caches and take gigabytes."""
CPU_BLOCK, GPU_BLOCK = (512, 64 * 3 * 32 * 32), (8192, 8192 * 3 * 32 * 32)
"""Images of several rows that are made and asked at once, and how many entries they may have: what
stays in a CPU's caches, and what keeps a GPU from waiting for the next ones."""


def at_once(ball: Ball) -> int:
    """How many candidates of one row are made at once: a block, and fewer of large images.

    By size and device alone, so that what a row adds up comes out alike in any company.

    Examples
    --------
    >>> from besiege.core.ball import ball
    >>> from besiege.core.threat import L2
    >>> [at_once(ball(L2, torch.zeros(1, 3, side, side), 1.0)) for side in (32, 224)]
    [128, 24]
    """
    fit = CPU_PIECE if ball.center.device.type == "cpu" else GPU_PIECE
    return max(8, min(BLOCK, fit // ball.size // 8 * 8))


class Siege(Queries):
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

    @classmethod
    def start(
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
        knowledge: Knowledge | None = None,
    ) -> Siege:
        """A siege of all rows of a ball; `targets` make it a targeted one.

        `watch` is called after every answer, for whoever shows progress; `means` are what the
        attack may use besides.
        """
        meter = Meter(len(ball), ball.center.device, queries)
        record = Record(ball.center, labels, targets, meter, dice.of("victim"))
        record.endless = bool(torch.isinf(ball.radius).all())
        index = torch.arange(len(ball), device=ball.center.device)
        aim = Aim(labels, targets)
        return cls(
            oracle,
            record,
            index,
            ball,
            aim,
            dice,
            keep=keep,
            leave=leave,
            watch=watch,
            knowledge=knowledge,
        )

    # What an attack may know.

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
        self.record.catch_up()
        return self._hit[self._entered]

    @property
    def distance(self) -> Tensor:
        """The distance of each row's kept success, infinite where there is none."""
        self.record.catch_up()
        return self.record.distance[self._index]

    def ranked(self) -> Tensor:
        """The other classes of each row, ``[rows, classes - 1]``, likeliest when clean first.

        Decision access shows no likelihoods: then in order of their number after the label.
        """
        labels, clean = self.aim.labels, self.aim.clean
        if clean is None:
            after = torch.arange(1, self.classes, device=labels.device)
            return (labels[:, None] + after) % self.classes
        # The label first, whatever the scores, and then without it.
        ranked = clean.scatter(1, labels[:, None], torch.inf)
        return ranked.argsort(dim=1, descending=True, stable=True)[:, 1:]

    # Asking.

    def survey(self, targets: Callable[[Siege], Tensor] | None = None) -> Answer:
        """The clean check: one answer for the clean images, charged, not counted as a step.

        `targets` chooses the class each row must reach, for goals that are rules on what the
        clean check tells: the clean scores, the number of classes.
        """
        ask = self.logits if self._oracle.access >= Access.SCORE else self.labels
        self._surveying = True
        try:
            record, answer = self.record, ask(self.ball.center)
        finally:
            self._surveying = False
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
            seen = answer.parts.get("logits", answer.labels)
            where = order(self._index) if self._several else None
            x, labels = self.ball.center, answer.labels
            hit = self._look(x, self._index, labels, None, seen, where, charged=True)
            answer.parts["hit"] = hit if isinstance(hit, Tensor) else hit()
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

    def scan(
        self,
        x: Tensor,
        accept: Callable[[Answer], Tensor],
        loss: Loss | None = None,
        *,
        each: bool = False,
    ) -> Scan:
        """Candidates ``[rows, k, ...]`` in order, up to the first that `accept` takes.

        The same choices, hits and queries as asking one by one. A local victim computes all k
        at once (forwards say so); a metered or stochastic one is asked one by one. A hit ends a
        row's scan where rows leave at success. `accept` is given answers ``[rows, j]`` to j
        candidates of every row, blank where a row was not asked, and says which it would take.
        With `loss` the answers hold it. A scan is one step of its attack, or, with `each`, every
        candidate that was seen is one.
        """
        self._check_shape(x, len(self))
        self.record.catch_up()
        r, k = x.shape[:2]
        victim = self._oracle.victim
        ahead = 1 if victim.metered or victim.stochastic or self._several else k
        choice = torch.full((r,), k, dtype=torch.int64, device=x.device)
        told: Answer | None = None
        asked = self._index[self._alive()]
        for start in range(0, k, ahead):
            rows = ((choice == k) & self._alive()).nonzero()[:, 0]
            if len(rows) == 0:
                break
            part = x[rows, start : start + ahead]
            answer, taken, last = self._speculate(part, rows, accept, loss, each)
            seen = answer.choose(last)
            told = (seen.blank(r) if told is None else told).put(rows, seen)
            accepted = taken < part.shape[1]
            choice[rows[accepted]] = start + taken[accepted]
        if not each:
            self.record.asked[asked] += 1  # one request, however it was sent
        if told is None:
            never = None if loss is None else x.new_full((r,), -torch.inf)
            hit, labels = torch.zeros_like(choice, dtype=torch.bool), torch.full_like(choice, -1)
            told = Answer(hit, labels, loss=never)
        return Scan(choice, told)

    def ahead(self, chance: float) -> int:
        """How many candidates per row make a scan quickest, if each is taken with this chance.

        One where they are asked one by one, and where there are rows enough to fill a call.
        """
        victim = self._oracle.victim
        if not len(self) or victim.metered or victim.stochastic or self._several:
            return 1
        return self._oracle.ahead(self.ball.center, self._draws, chance)

    def blocks(self, k: int) -> Iterator[Tensor]:
        """Row numbers in pieces that suit the device, for attacks with k candidates per row."""
        rows = torch.arange(len(self), device=self._index.device)
        return iter(torch.split(rows, self.block(k)) if len(self) else ())

    def block(self, k: int) -> int:
        """How many rows with k candidates each are made and asked at once."""
        most, entries = CPU_BLOCK if self._index.device.type == "cpu" else GPU_BLOCK
        many = max(at_once(self.ball), min(most, entries // self.ball.size), self._oracle.together)
        return max(1, many // max(k, 1))

    def advice(self, x: Tensor, loss: Loss) -> Tensor:
        """The gradient that a substitute has at points ``[rows, ...]``: free, counted apart.

        Rows that are done are not computed: theirs is zero.
        """
        substitute = self.knowledge.substitute
        if substitute is None:
            raise AttackError(
                "this attack takes advice from a substitute, and none was given: pass "
                "substitute='zoo:NAME' or another model"
            )
        self._check_shape(x, len(self))
        rows = self._alive().nonzero()[:, 0]
        gradient = torch.zeros_like(x)
        some = self.ball.at(rows).received(x[rows]) if self.ball.grid is not None else x[rows]
        there = substitute.victim.device  # an endpoint's images are here, a substitute may not be
        found = substitute.gradient(some.contiguous().to(there), loss, self.aim.at(rows).to(there))
        known = torch.nan_to_num(found[0], nan=0.0, posinf=0.0, neginf=0.0)
        gradient[rows] = known.to(gradient.device)
        self.record.substitute_passes[self._index[rows]] += 1
        return gradient

    def _needs_gradient(self) -> None:
        self._oracle.allow(Access.GRADIENT, fitting)
        if self._oracle.victim.stochastic and self._draws == 1:
            raise StochasticError(
                "this victim answers by chance, and one gradient of it is one draw: attack its "
                "expectation, for example averaged(pgd, 20)"
            )

    # Going on.

    def settle(self, *state: Tensor | Answer) -> Any:
        """Let the rows that are done leave; give back the state of those that stay.

        Takes tensors and answers, all with the rows first, and gives back as many (one alone not
        in a tuple). Called once per outer step, right after the answer. It only saves work: a
        row that is done is not sent any more, settled or not.

        Behind a GPU the latest answer may not have been looked at yet; settling once more, with
        nothing asked in between, waits for it.
        """
        if not self._asking:
            self.record.catch_up()
        self._asking = False
        for part in state:
            length = len(part) if isinstance(part, Answer) else part.shape[0]
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
        self.record.catch_up()
        self._done[self._index[mask]] = True
        self._uneven = True

    def give_up(self, mask: Tensor) -> None:
        """Rows for which no starting point was found: they leave, and the record says why."""
        self.record.no_start[self._index[mask]] = True
        self.leave(mask)

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
            Row numbers of this siege; all by default. Rows that are done do not enter. A number
            may stand several times, side by side, for several aims of one sample: they leave
            together.
        radius, aim, dice : optional
            Other radii, target classes to steer to, or chances, for those rows.
        keep, leave, draws : optional
            Other settings.
        """
        self.record.catch_up()
        index, ball, aims, chances = self._index, self.ball, self.aim, self.dice
        if rows is not None:
            index, ball, aims, chances = index[rows], ball.at(rows), aims.at(rows), chances.at(rows)
        view = Siege(
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
            knowledge=self.knowledge,
        )
        view.settle()
        return view

    def averaged(self, draws: int) -> Siege:
        """The same siege with every answer a mean over fresh chances of a stochastic victim."""
        return self.view(draws=draws * self._draws)


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
