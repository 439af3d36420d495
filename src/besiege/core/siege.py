"""One attack on one batch: the interface that attacks work with.

An attack queries (`gradient`, `logits`, `labels`, `offer`, `scan`), moves, and settles. The siege
charges every image, examines every answer, records the rows that reach their goal inside their
ball, keeps the images and drops the rows that the caller's terms say. Attacks therefore contain no
bookkeeping, and never hold the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar, TypeVarTuple, overload

import torch
from torch import Tensor

from besiege.core.answer import Aim, Answer, Loss, Scan, Through
from besiege.core.attack_registry import fitting
from besiege.core.ball import Ball
from besiege.core.blocks import together
from besiege.core.cells import Cells
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, StochasticError, ThreatError
from besiege.core.meter import Meter
from besiege.core.oracle import Access, Oracle
from besiege.core.queries import Queries, Query, check_shape
from besiege.core.record import Keep, Leave, Record
from besiege.core.state import check_rows, rows_of
from besiege.core.terms import ActiveRows, Terms
from besiege.core.threat import Goal
from besiege.core.tracker import Answered, Tracker, order
from besiege.core.victim import Victim

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Siege:
    """One attack on some rows of a record, on given terms.

    Made by `start`; combinators make others with `view`. Its parts are a `Tracker`, which knows
    the successes, and `Queries`, which send and charge images.

    Attributes
    ----------
    record : Record
        The results and costs of every sample of the batch.
    keeps, leaves : str
        Which image is kept, and when a row leaves.
    knowledge : Knowledge
        What the attack may use besides the victim.
    closes_in : bool
        Whether the smallest perturbation is searched for: such a search ends at the boundary.
    """

    def __init__(
        self,
        oracle: Oracle,
        record: Record,
        active: ActiveRows,
        terms: Terms,
        parent: Siege | None = None,
    ) -> None:
        self._active, self._terms, self._parent = active, terms, parent
        self._entered = samples = active.samples
        self._queries: Queries
        if parent is None:
            self._tracker = Tracker(record, active, terms, oracle.deferred)
            several = False
        else:
            same_radii = active.ball.radius is parent.ball.radius
            above = parent._tracker
            self._tracker = Tracker(record, active, terms, oracle.deferred, above, same_radii)
            several = parent._queries.several or bool((samples[1:] == samples[:-1]).any())
        self._queries = Queries(oracle, self._tracker, terms, several)
        self.record = record
        self.keeps, self.leaves, self.knowledge = terms.keep, terms.leave, terms.knowledge
        self.closes_in = self._tracker.closes_in

    @classmethod
    def start(
        cls,
        oracle: Oracle,
        ball: Ball,
        labels: Tensor,
        dice: Dice,
        terms: Terms = Terms(),  # noqa: B008  # frozen
        *,
        targets: Tensor | None = None,
    ) -> Siege:
        """A siege of all rows of a ball; `targets` make it a targeted one."""
        meter = Meter(len(ball), ball.center.device, terms.queries)
        record = Record(ball.center, labels, targets, meter, dice.of("victim"))
        record.endless = bool(torch.isinf(ball.radius).all())
        samples = torch.arange(len(ball), device=ball.center.device)
        return cls(oracle, record, ActiveRows(samples, ball, Aim(labels, targets), dice), terms)

    # The state that an attack may read.

    def __len__(self) -> int:
        return len(self._active)

    @property
    def rows(self) -> Tensor:
        """The position in the batch of each row that is still attacked."""
        return self._active.samples

    @property
    def ball(self) -> Ball:
        """Where each row may go."""
        return self._active.ball

    @property
    def aim(self) -> Aim:
        """Where the loss steers each row."""
        return self._active.aim

    @property
    def dice(self) -> Dice:
        """The random draws of each row."""
        return self._active.dice

    @property
    def targeted(self) -> bool:
        """Whether a given class must be reached, or any error counts."""
        return self.record.targets is not None

    @property
    def classes(self) -> int:
        """How many classes the victim has."""
        classes = self._queries.oracle.classes
        if classes is None:
            raise AttackError("the number of classes is not known before the clean check")
        return classes

    @property
    def rejects(self) -> bool:
        """Whether the victim may reject images; a loss that is `unfolded` then sees the column."""
        return self._queries.oracle.victim.rejects

    @property
    def levels(self) -> int:
        """The levels of the thermometer codes that the victim takes in place of images."""
        victim = self._queries.oracle.victim
        must_take_codes(victim, "this attack")
        assert victim.levels is not None
        return victim.levels

    @property
    def cells(self) -> Cells:
        """The cells of pixel values that a layer of the victim does not tell apart."""
        victim = self._queries.oracle.victim
        must_have_cells(victim, "this attack")
        assert victim.cells is not None
        return victim.cells

    @property
    def broken(self) -> Tensor:
        """Which of the rows this siege started with were broken in it, within their radii."""
        self.record.catch_up()
        return self._tracker.hit(self._entered)

    @property
    def distance(self) -> Tensor:
        """The distance of each row's kept success, infinite where there is none."""
        self.record.catch_up()
        return self.record.distance[self.rows]

    def ranked(self) -> Tensor:
        """The other classes of each row, ``[rows, classes - 1]``, by falling clean scores.

        Decision access shows no scores: then in order of their number, starting after the label.
        """
        labels, clean = self.aim.labels, self.aim.clean
        if clean is None:
            after = torch.arange(1, self.classes, device=labels.device)
            return (labels[:, None] + after) % self.classes
        # The label is put first, whatever its score, and then left out.
        ranked = clean.scatter(1, labels[:, None], torch.inf)
        return ranked.argsort(dim=1, descending=True, stable=True)[:, 1:]

    # Queries.

    def survey(self, targets: Callable[[Siege], Tensor] | None = None) -> Answer:
        """The clean check: one answer for the clean images, charged, not counted as a step.

        `targets` chooses the class each row must reach, for goals that depend on the clean check:
        on the clean scores or the number of classes.
        """
        scored = self._queries.oracle.access >= Access.SCORE
        query = Query("logits" if scored else "labels", survey=True)
        record, rows = self.record, self.rows
        answer = self._queries.ask(self._active, query, self.ball.center)
        record.asked[rows] = 0
        if "logits" in answer:
            clean = answer.logits.new_zeros(len(record.labels), answer.logits.shape[1])
            clean[rows] = answer.logits
            record.logits = clean
            self._steer(lambda level: replace(level.aim, clean=clean[level.rows]))
        if targets is not None:
            chosen = record.targets = torch.full_like(record.labels, -1)
            chosen[rows] = targets(self)
            self._steer(lambda level: replace(level.aim, targets=chosen[level.rows]))
            seen = answer.parts.get("logits", answer.labels)
            place = order(rows) if self._queries.several else None
            answered = Answered(self.ball.center, rows, None, place)
            hit = self._tracker.look(answered, answer.labels, seen, self.ball, charged=True)
            answer.parts["hit"] = hit if isinstance(hit, Tensor) else hit()
        return answer

    def _steer(self, aim: Callable[[Siege], Aim]) -> None:
        """Give other aims to this siege and to those it is a view of."""
        level: Siege | None = self
        while level is not None:
            level._active = replace(level._active, aim=aim(level))
            level = level._parent

    def gradient(
        self,
        x: Tensor,
        loss: Loss,
        through: Through | None = None,
        rows: Tensor | None = None,
        *,
        elsewhere: bool = False,
    ) -> Answer:
        """The gradient of a loss, with the loss, the logits and the labels.

        Parameters
        ----------
        x : Tensor
            Points ``[rows, ...]``, or k candidates per row, ``[rows, k, ...]``.
        loss : callable
            A function of logits and aim: one number per image, to be maximised.
        through : callable, optional
            A differentiable map in front of the victim: answers through it guide the attack, but
            are not examined for success.
        rows : Tensor, optional
            Query some rows only: their numbers, ascending, repeats allowed.
        elsewhere : bool
            Whether the points are no images but live in a space of their own, ``[rows, ...]`` of
            any shape, from which `through` makes what the victim takes.
        """
        self._needs_gradient()
        if elsewhere and through is None:
            raise AttackError("points that are no images need a map `through` to what is sent")
        query = Query("gradient", loss, through, elsewhere=elsewhere)
        return self._queries.ask(self._active, query, x, rows)

    def gradients(self, x: Tensor, classes: Tensor, *, examine: bool = True) -> Answer:
        """Gradients of chosen logits, ``[rows, c, ...]``: one forward, one backward per class.

        `classes` is ``[rows, c]``. Without `examine` the answers guide the attack, but are not
        examined for success.
        """
        self._needs_gradient()
        query = Query("gradients", through=None if examine else not_examined)
        return self._queries.ask(self._active, query, x, classes=classes)

    def logits(
        self,
        x: Tensor,
        rows: Tensor | None = None,
        loss: Loss | None = None,
        *,
        examine: bool = True,
    ) -> Answer:
        """The logits, and the loss if one is given; `examine` as in `gradients`."""
        self._queries.oracle.allow(Access.SCORE, fitting)
        query = Query("logits", loss, None if examine else not_examined)
        return self._queries.ask(self._active, query, x, rows)

    def labels(self, x: Tensor, rows: Tensor | None = None) -> Answer:
        """The predicted classes and nothing else."""
        return self._queries.ask(self._active, Query("labels"), x, rows)

    def offer(self, x: Tensor, loss: Loss | None = None) -> Answer:
        """Have points examined: one charged forward each. The loss is for keep 'highest'."""
        if self._queries.oracle.access >= Access.SCORE:
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
        """Query candidates ``[rows, k, ...]`` in order, up to the first that `accept` takes.

        Choices, successes and queries are the same as one by one. A local victim computes all k
        at once (and counts k forwards); a metered or stochastic one is queried one by one. A
        success ends a row's scan where rows leave at success. `accept` is given the answers
        ``[rows, j]`` to j candidates of every row, blank where a row was not sent, and returns
        which it would take. With `loss`, the answers contain it. A scan is one step of its attack
        or, with `each`, every candidate used is one.
        """
        active, queries = self._active, self._queries
        check_shape(active, x, len(self))
        self.record.catch_up()
        r, k = x.shape[:2]
        ahead = 1 if queries.one_by_one else k
        choice = torch.full((r,), k, dtype=torch.int64, device=x.device)
        latest: Answer | None = None
        asked = self.rows[queries.alive(active)]
        for start in range(0, k, ahead):
            rows = ((choice == k) & queries.alive(active)).nonzero()[:, 0]
            if len(rows) == 0:
                break
            part = x[rows, start : start + ahead]
            answer, taken, last = queries.speculate(active, part, rows, accept, loss, each)
            seen = answer.choose(last)
            latest = (seen.blank(r) if latest is None else latest).put(rows, seen)
            accepted = taken < part.shape[1]
            choice[rows[accepted]] = start + taken[accepted]
        if not each:
            self.record.asked[asked] += 1  # one request, however many calls it took
        if latest is None:
            never = None if loss is None else x.new_full((r,), -torch.inf)
            hit, labels = torch.zeros_like(choice, dtype=torch.bool), torch.full_like(choice, -1)
            latest = Answer(hit, labels, loss=never)
        return Scan(choice, latest)

    def ahead(self, chance: float) -> int:
        """How many candidates per row make a scan fastest, if each is taken with this probability.

        One where they are sent one by one, and where there are enough rows to fill a call.
        """
        if not len(self) or self._queries.one_by_one:
            return 1
        return self._queries.oracle.ahead(self.ball.center, self._terms.draws, chance)

    def blocks(self, k: int) -> Iterator[Tensor]:
        """Row numbers in pieces that suit the device, for attacks with k candidates per row."""
        rows = torch.arange(len(self), device=self.rows.device)
        return iter(torch.split(rows, self.block(k)) if len(self) else ())

    def block(self, k: int) -> int:
        """How many rows with k candidates each are made and sent at once."""
        return together(self.ball, k, self._queries.oracle.together)

    def advice(self, x: Tensor, loss: Loss) -> Tensor:
        """The substitute's gradient at points ``[rows, ...]``: free, and counted separately.

        Rows that are done are not computed: their gradient is zero.
        """
        substitute = self.knowledge.oracle
        if substitute is None:
            raise AttackError(
                "this attack needs the gradients of a substitute, and none was given: pass "
                "substitute='zoo:NAME' or another model"
            )
        check_shape(self._active, x, len(self))
        rows = self._queries.alive(self._active).nonzero()[:, 0]
        gradient = torch.zeros_like(x)
        some = self.ball.at(rows).received(x[rows]) if self.ball.grid is not None else x[rows]
        there = substitute.victim.device  # the substitute may be on another device
        slope, _, _ = substitute.gradient(
            some.contiguous().to(there), loss, self.aim.at(rows).to(there)
        )
        finite = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
        gradient[rows] = finite.to(gradient.device)
        self.record.substitute_passes[self.rows[rows]] += 1
        return gradient

    def _needs_gradient(self) -> None:
        oracle = self._queries.oracle
        oracle.allow(Access.GRADIENT, fitting)
        if oracle.victim.stochastic and self._terms.draws * oracle.victim.draws == 1:
            raise StochasticError(
                f"'{oracle.victim.name}' is stochastic, and one gradient of it is one random draw: "
                "attack its expectation, for example averaged(pgd, 20)"
            )

    # Dropping rows.

    @overload
    def settle(self, state: T, /) -> T: ...

    @overload
    def settle(self, *state: *Ts) -> tuple[*Ts]: ...

    def settle(  # type: ignore[misc]  # mypy does not see that Any covers a TypeVarTuple
        self, *state: Any
    ) -> Any:
        """Drop the rows that are done; return the state of the rows that stay.

        A state is a tensor or an answer with the rows first, or a tuple of such, named or not,
        nested to any depth. As many states are returned, each in its own shape; a single one is
        not put into a tuple. Call it once per outer step, right after the answer. It only saves
        work: a row that is done is never sent again, settled or not.

        On a GPU the latest answer may not have been examined yet. Settling once more, without a
        query in between, waits for it.
        """
        check_rows(state, len(self))
        rows = self._queries.staying(self._active)
        if rows is not None:
            self._active = self._active.at(rows)
            state = rows_of(state, rows)
        return state[0] if len(state) == 1 else state

    def leave(self, mask: Tensor) -> None:
        """Drop rows by a stop rule of the attack."""
        self.record.catch_up()
        self._tracker.drop(self.rows[mask])

    def give_up(self, mask: Tensor) -> None:
        """Drop rows for which no starting point was found; the record says why."""
        self.record.no_start[self.rows[mask]] = True
        self.leave(mask)

    # Views.

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
        """A siege with the same record and meter on other terms, for combinators.

        Parameters
        ----------
        rows : Tensor, optional
            Row numbers of this siege; all by default. Rows that are done do not enter. A number
            may stand several times, side by side, for several aims of one sample: they leave
            together.
        radius, aim, dice : optional
            Other radii, target classes to steer to, or dice, for those rows.
        keep, leave, draws : optional
            Other settings.
        """
        self.record.catch_up()
        active = self._active if rows is None else self._active.at(rows)
        if radius is not None or aim is not None or dice is not None:
            active = replace(
                active,
                ball=active.ball if radius is None else active.ball.of(radius),
                aim=active.aim if aim is None else replace(active.aim, targets=aim),
                dice=active.dice if dice is None else dice,
            )
        terms = replace(
            self._terms,
            keep=keep or self.keeps,
            leave=leave or self.leaves,
            draws=draws or self._terms.draws,
        )
        view = Siege(self._queries.oracle, self.record, active, terms, self)
        view.settle()
        return view

    def averaged(self, draws: int) -> Siege:
        """The same siege, where every answer is a mean over draws of a stochastic victim."""
        return self.view(draws=draws * self._terms.draws)


def must_take_codes(victim: Victim, attack: str) -> None:
    """Refuse a victim that does not take thermometer codes in place of images."""
    if victim.levels is None:
        raise AttackError(
            f"{attack} sends thermometer codes, but {victim.name} takes images: attack a model "
            "whose first layer is 'thermometer', such as 'MODEL+thermometer(levels=16)', or use pgd"
        )


def must_have_cells(victim: Victim, attack: str) -> None:
    """Refuse a victim without a layer that rounds pixel values to a few."""
    if victim.cells is None:
        raise AttackError(
            f"{attack} searches the values of a layer that rounds pixels, but {victim.name} shows "
            "its network all pixel values: attack a model whose first layer, or a layer of its "
            "detector, is 'bits' or 'thermometer', such as 'MODEL+bits(depth=3)', or use pgd"
        )


def not_examined(x: Tensor, dice: Dice, slot: Tensor) -> Tensor:
    """The identity, as a map in front of the victim: such answers are not recorded as successes."""
    return x


def target_class(siege: Siege, goal: Goal) -> Tensor:
    """The target class of each row by its clean scores: the least likely, or the second."""
    if siege.aim.clean is None:
        raise ThreatError(
            f"the class of '{goal}' depends on the clean scores, which decision access does not "
            "give; use a threat of score access, or give the targets"
        )
    return siege.ranked()[:, -1 if goal is Goal.LEAST_LIKELY else 0]
