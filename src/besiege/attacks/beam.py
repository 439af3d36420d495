"""Beam: a search among the values that a rounding layer shows, along the gradients there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.directions import Adam
from besiege.attacks.losses import Weighed, margin
from besiege.attacks.opgd import Fooling
from besiege.attacks.pieces import Cosine
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.cells import aligning
from besiege.core.dice import Dice
from besiege.core.fields import whole_number
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege, not_examined
from besiege.core.state import rows_of
from besiege.core.threat import Linf
from besiege.core.tracker import order

_BRIEF = 3
"""Steps that a value rests where many move at once: many rest, and few would be left to move."""
_LAST = 4
"""States of a row for which blocks of rows are made: they hold more in the first rounds."""


@register("beam")
@dataclass(frozen=True)
class Beam(Attack):
    """Choose a cell for every pixel value by beam search, then the values within the cells.

    A layer such as `bits` does not tell the pixel values of a cell apart. A state is a cell for
    every pixel value, among those that its ball and box contain. From every state of the beam go
    `tries` others, in each of which one value moves to the next cell: those with the largest gains
    by the gradient at the state. Of all that are reached the best `width` are kept, also where
    they are worse than before; what moved rests for `tenure` steps. One state more moves many
    values at a time: all that gain, the better half of these, or of that half again.

    States are sent as images inside the ball that have these cells. A victim that may reject images
    is sent the values of the layer itself, which may lie outside the ball, and answers with the
    classifier's margin. Then, for the best states that are misclassified, Adam moves the pixel
    values within ball and cells, until an image is misclassified and accepted: from the values of
    the layer, and from those nearest to the clean image. Meanwhile the layer has no gradient.

    Parameters
    ----------
    steps : int
        Steps of the search: of each, one forward and backward pass for every state, and up to
        `tries` forward passes.
    width : int
        States kept, besides the one that moves many values.
    tries : int
        States tried from each.
    tenure : int
        Steps that a value rests after it moved.
    finds : int
        States whose pixel values are searched, of a victim that may reject images.
    climb : int
        Steps of that search in its first round, from both starts of all `finds`, each of one
        forward and backward pass. In each further round the better half goes on, twice as long.

    Examples
    --------
    >>> str(Beam(steps=100))
    'beam(steps=100)'
    """

    steps: int = whole_number(40)
    width: int = whole_number(3)
    tries: int = whole_number(6)
    tenure: int = whole_number(10, 0)
    finds: int = whole_number(16)
    climb: int = whole_number(50)

    norms = frozenset({Linf})
    needs_cells = True

    def passes(self, shape: tuple[int, ...], classes: int) -> int:
        return self.steps * (1 + self.width) * (2 + self.tries)

    def run(self, siege: Siege) -> None:
        reach = Reach.of(siege)
        state = State.first(siege, 1 + self.width)
        finds = Finds.none(state, self.finds if siege.rejects else 0)
        for step in range(self.steps):
            state = self._step(siege, reach, state, step)
            finds = finds.joined(state)
            reach, state, finds = siege.settle(reach, state, finds)
            if not len(siege):
                return
        if siege.rejects:
            self._within(siege, state, finds)

    def _step(self, siege: Siege, reach: Reach, state: State, step: int) -> State:
        """The states after one step, made in blocks of rows."""
        made = [
            self._moved(siege, rows, rows_of(reach, rows), rows_of(state, rows), step)
            for rows in siege.blocks(state.score.shape[1] * self.tries)
        ]
        return State(*(torch.cat(parts) for parts in zip(*made, strict=True)))

    def _moved(self, siege: Siege, rows: Tensor, reach: Reach, state: State, step: int) -> State:
        """The best states that are one step away, of some rows."""
        moves = Moves.of(siege, rows, reach, state, step)
        tried = self._tried(moves, state)
        loss = torch.full_like(tried.key, -torch.inf, dtype=torch.float32)
        row, member, place = sent = tried.many.nonzero(as_tuple=True)
        if len(row):
            moved = moves.made(tried.low[sent], tried.many[sent], row, member)
            number = torch.where(moved, moves.number[row, member], state.number[row, member])
            loss[sent] = _answer(siege, rows[row], number).loss
        # The state that moves many values goes on alone; of the others the best stay.
        alone, tries = loss[:, :1].max(2), loss.shape[2]
        ranked = loss[:, 1:].flatten(1).sort(dim=1, descending=True, stable=True)
        place = ranked.indices[:, : self.width]
        member = torch.cat([torch.zeros_like(alone.indices), 1 + place // tries], 1)
        place = torch.cat([alone.indices, place % tries], 1)
        score = torch.cat([alone.values, ranked.values[:, : self.width]], 1)
        best = torch.arange(len(rows), device=rows.device)[:, None], member, place
        moved = moves.made(tried.low[best], tried.many[best], *best[:2])
        rest = torch.full_like(score, step + 1 + self.tenure, dtype=torch.int32)
        rest[:, 0] = step + 1 + min(self.tenure, _BRIEF)
        new = State(
            torch.where(moved, moves.number[best[:2]], state.number[best[:2]]),
            torch.where(moved, rest[:, :, None], state.rest[best[:2]]),
            score,
            tried.key[best],
        )
        # Where nothing can move, states wait until something has rested.
        none = torch.isinf(score)
        none[:, 1:] = none[:, 1:].all(1, keepdim=True)
        both = zip(state, new, strict=True)
        return State(*(torch.where(rowwise(none, one), old, one) for old, one in both))

    def _tried(self, moves: Moves, state: State) -> Tried:
        """What is tried from every state: so many values move, from a place in their order."""
        place = torch.arange(min(self.tries, moves.rank.shape[2]), device=moves.rank.device)
        many = moves.many[:, :, None]
        low = place.expand(*moves.many.shape, -1).clone()
        low[:, 0] = 0
        count = (place < many).long()
        count[:, 0] = moves.good[:, :1] >> place
        key = state.key[:, :, None] + moves.keys.gather(2, low + count) - moves.keys.gather(2, low)
        # Several ways lead to a state: it is sent once.
        keys, sent = key[:, 1:].flatten(1), count[:, 1:].flatten(1) > 0
        known = (keys[:, :, None] == keys[:, None, :]) & sent[:, None, :]
        count[:, 1:] *= ~known.tril(-1).any(2).view_as(count[:, 1:])
        return Tried(low, count, key)

    def _within(self, siege: Siege, state: State, finds: Finds) -> None:
        """Search the pixel values of misclassified states, in blocks of rows."""
        # Something of every row is examined, also where nothing was found.
        best = torch.where(finds.found[:, :1, None], finds.number[:, :1], state.number[:, 1:2])
        siege.offer(_inside(siege, best[:, 0]))
        finds = siege.settle(finds)
        # The last rounds, of few states, take longest: more of a row would leave them too small.
        for rows in siege.blocks(_LAST):
            self._search(siege.view(rows), rows_of(finds, rows))

    def _search(self, siege: Siege, finds: Finds) -> None:
        """Search the pixel values of all states at once, and then of ever fewer.

        After every round the better half of a row's states goes on, twice as long.
        """
        rows, place = finds.found.nonzero(as_tuple=True)
        siege = siege.view(rows)
        if not len(siege):
            return
        x = _inside(siege, finds.number[rows, place])
        # From the values of the layer, and from the nearest to the clean image.
        low, high = siege.cells.ends(siege.cells.number(x))
        x = torch.stack([x, siege.ball.center.maximum(low).minimum(high)], 1).flatten(0, 1)
        siege = siege.view(torch.arange(len(siege), device=x.device).repeat_interleave(2))
        with aligning(siege.cells):
            for turn in range(self.finds.bit_length()):
                x, loss = self._climb(siege, x, self.climb << turn)
                # By falling loss, then by row: both sorts are stable.
                ranked = loss.argsort(descending=True, stable=True)
                ranked = ranked[siege.rows[ranked].argsort(stable=True)]
                going = ranked[order(siege.rows[ranked]) < self.finds >> turn].sort().values
                siege, x = siege.view(going), x[going]
                if not len(siege):
                    return

    def _climb(self, siege: Siege, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """The pixel values after some steps that keep their cells, and the loss there."""
        loss, adam, pace = Weighed(), Adam(), Cosine(0.1)
        bounds, turning = siege.cells.ends(siege.cells.number(x)), adam.init(x)
        for step in range(steps):
            answer = siege.gradient(x, loss)
            x, answer, bounds, turning = siege.settle(x, answer, bounds, turning)
            if not len(siege):
                return x, answer.loss
            g, turning = adam.turn(answer.gradient, turning)
            move = adam.move(g, x, siege.ball, pace.length(step, steps) * siege.ball.radius)
            low, high = bounds
            x = siege.ball.confine(x + move).maximum(low).minimum(high)
        answer = siege.offer(x, loss)
        return siege.settle(x, answer.loss)


class Reach(NamedTuple):
    """The first and last cell of every pixel value that its ball and box contain, ``[rows, n]``."""

    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, siege: Siege) -> Self:
        """The cells of all rows."""
        ball, cells = siege.ball, siege.cells
        ends = (ball.project(torch.full_like(ball.center, end)) for end in ball.box)
        return cls(*(cells.number(end).flatten(1).short() for end in ends))


class State(NamedTuple):
    """The states of every row: the first moves many values at a time, the others are the beam.

    Attributes
    ----------
    number : Tensor
        int16 ``[rows, states, n]``: the cell of every pixel value.
    rest : Tensor
        int32, of the same shape: the step from which a value may move.
    score : Tensor
        ``[rows, states]``: the loss, minus infinity where there is no state yet.
    key : Tensor
        int64 ``[rows, states]``: a hash that tells states apart.
    """

    number: Tensor
    rest: Tensor
    score: Tensor
    key: Tensor

    @classmethod
    def first(cls, siege: Siege, many: int) -> Self:
        """The cells of the clean image, twice: one state for either way to move."""
        number = siege.cells.number(siege.ball.center).flatten(1).short()
        number = number[:, None].expand(-1, many, -1).contiguous()
        score = number.new_full(number.shape[:2], -torch.inf, dtype=torch.float32)
        score[:, :2] = torch.finfo(torch.float32).min
        key = torch.zeros_like(score, dtype=torch.int64)
        return cls(number, torch.zeros_like(number, dtype=torch.int32), score, key)


class Tried(NamedTuple):
    """What is tried from every state, ``[rows, states, tries]``.

    Attributes
    ----------
    low, many : Tensor
        The values that move are `many` from place `low` on, in the order of their gains.
    key : Tensor
        The hash of the state that is reached.
    """

    low: Tensor
    many: Tensor
    key: Tensor


class Moves(NamedTuple):
    """The move of every value of every state that gains most.

    Attributes
    ----------
    number : Tensor
        int16 ``[rows, states, n]``: the next cell.
    rank : Tensor
        ``[rows, states, n]``: the place of the value in the order of gains.
    many, good : Tensor
        ``[rows, states]``: how many values can move, and how many of them gain; these come first in
        the order.
    keys : Tensor
        int64 ``[rows, states, n + 1]``: by how much the hash changes if the first values move.
    """

    number: Tensor
    rank: Tensor
    many: Tensor
    good: Tensor
    keys: Tensor

    @classmethod
    def of(cls, siege: Siege, rows: Tensor, reach: Reach, state: State, step: int) -> Self:
        """The moves of some rows: one gradient for every state there is."""
        slope = torch.zeros_like(state.number, dtype=torch.float32)
        row, _ = some = torch.isfinite(state.score).nonzero(as_tuple=True)
        answer = _answer(siege, rows[row], state.number[some], slope=True)
        slope[some] = answer.gradient.flatten(1)
        way = torch.sign(slope).short()
        ends = reach.first[:, None], reach.last[:, None]
        number = (state.number + way).clamp(*ends)
        # Where the gradient leads out of reach, the other way is the move, and loses.
        number = torch.where(number == state.number, (number - way).clamp(*ends), number)
        values = siege.cells.value
        gain = (values(number.long()) - values(state.number.long())) * slope
        still = (number == state.number) | (state.rest > step)
        gain = gain.masked_fill(still, -torch.inf)
        ranked = gain.argsort(dim=2, descending=True, stable=True)
        places = torch.arange(ranked.shape[2], device=ranked.device).expand_as(ranked)
        words = Dice.throw(0, rows[:1] * 0).of("beam").integers(2**31, tuple(ranked.shape[2:]))
        change = ((number - state.number) * words).gather(2, ranked).cumsum(2)
        return cls(
            number,
            torch.empty_like(ranked).scatter_(2, ranked, places),
            torch.isfinite(gain).sum(2),
            (gain > 0).sum(2),
            torch.cat([torch.zeros_like(change[:, :, :1]), change], 2),
        )

    def made(self, low: Tensor, count: Tensor, row: Tensor, member: Tensor) -> Tensor:
        """Which values move, of some states."""
        rank = self.rank[row, member]
        return (rank >= low[..., None]) & (rank < (low + count)[..., None])


class Finds(NamedTuple):
    """The best misclassified states of every row, the best first.

    Attributes
    ----------
    number, score, key : Tensor
        As of `State`; the score is minus infinity where fewer were found.
    """

    number: Tensor
    score: Tensor
    key: Tensor

    @classmethod
    def none(cls, state: State, most: int) -> Self:
        """Room for so many, of which none is found."""
        rows, _, size = state.number.shape
        return cls(
            state.number.new_zeros(rows, most, size),
            state.score.new_full((rows, most), -torch.inf),
            state.key.new_zeros(rows, most),
        )

    @property
    def found(self) -> Tensor:
        """Which of them are there, ``[rows, most]``."""
        return torch.isfinite(self.score)

    def joined(self, state: State) -> Finds:
        """With the misclassified states among these."""
        most = self.score.shape[1]
        if not most:
            return self
        score = torch.cat([self.score, state.score.masked_fill(state.score <= 0, -torch.inf)], 1)
        key = torch.cat([self.key, state.key], 1)
        known = (key[:, :, None] == key[:, None, :]) & torch.isfinite(score)[:, None, :]
        ranked = score.masked_fill(known.tril(-1).any(2), -torch.inf).sort(
            dim=1, descending=True, stable=True
        )
        place = ranked.indices[:, :most]
        row = torch.arange(len(place), device=place.device)[:, None]
        number = torch.cat([self.number, state.number], 1)[row, place]
        return Finds(number, ranked.values[:, :most], key[row, place])


def _answer(siege: Siege, rows: Tensor, number: Tensor, slope: bool = False) -> Answer:
    """The loss, or its gradient, at states of some rows."""
    if not siege.rejects:
        x = _inside(siege, number, rows)
        return siege.gradient(x, margin, rows=rows) if slope else siege.logits(x, rows, margin)
    x = siege.cells.value(number.long()).view(-1, *siege.ball.center.shape[1:])
    loss = Fooling(siege.classes)
    if slope:
        return siege.gradient(x, loss, not_examined, rows)
    return siege.logits(x, rows, loss, examine=False)


def _inside(siege: Siege, number: Tensor, rows: Tensor | None = None) -> Tensor:
    """Images of the ball that have these cells: the values of their layer, or the nearest."""
    ball = siege.ball if rows is None else siege.ball.at(rows)
    return ball.project(siege.cells.value(number.long()).view_as(ball.center))
