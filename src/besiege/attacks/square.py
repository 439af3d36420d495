"""Square: random search by windows, with scores alone.

A step proposes another change inside one random window and keeps it if the loss rises. What a
proposal looks like is the norm's matter: `Corners` for linf, `Bumps` for l2 and l1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.losses import margin
from besiege.core.answer import Loss
from besiege.core.ball import Ball, distances
from besiege.core.dice import Dice
from besiege.core.oracle import Access
from besiege.core.siege import Siege, register
from besiege.core.threat import L1, L2, Linf, Norm

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The last step before each halving of the window's area, of 10,000."""

TILES = 5
"""How many tiles of the l2 and l1 start fit into the shorter side of an image."""

BLOCK = 32
"""Steps whose draws are made at once while all rows are at the same step."""

SPARSE = 256
"""Entries changed outside of a window that the projection in l1 reckons with."""

_FADE = 0.95
"""How slowly the share of proposals kept is forgotten, by which some are computed ahead."""

_TINY = 1e-30

Memory = tuple[Tensor, ...]
Group = tuple[int, Tensor | None]
"""How often the windows have been halved, and the numbers of the proposals; None for all."""


@register("square")
@dataclass(frozen=True)
class Square(Attack):
    """Random search: each step another change in one window, kept if it raises the loss.

    Every row draws windows and signs of its own, and a proposal that would change nothing is
    drawn again. When few rows are left, several proposals from the same point are computed in
    one call and taken in order up to the first that is kept: the same search in less time.

    Parameters
    ----------
    steps : int
        Proposals, one query each, after the start.
    p_init : float
        Share of the image that the first windows cover.
    restarts : int
        Searches from fresh starts; rows that were broken do not search again.
    rescale : bool
        Whether the schedule of 10,000 steps by which windows shrink is fitted to `steps`, as
        first published. AutoAttack leaves it as it is: a longer search continues a shorter one.
    loss : callable
        What is raised.

    Examples
    --------
    >>> str(Square(steps=1000, rescale=True))
    'square(steps=1000, rescale=True)'
    """

    steps: int = 5000
    p_init: float = 0.8
    restarts: int = 1
    rescale: bool = False
    loss: Loss = margin

    access = Access.SCORE
    norms = frozenset({Linf, L2, L1})
    source: ClassVar[str] = "Andriushchenko et al., Square attack, 2020 (l1: Croce and Hein, 2021)"

    def __post_init__(self) -> None:
        for what in ("steps", "restarts"):
            given = getattr(self, what)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise ValueError(f"{what} is {given!r}, but a whole number from 1 is needed")
        if not 0 < self.p_init <= 1:
            raise ValueError(f"p_init is {self.p_init!r}, but a share above 0 up to 1 is needed")
        if self.rescale not in (False, True):
            raise ValueError(f"rescale is {self.rescale!r}, but False or True is needed")
        if not callable(self.loss):
            raise ValueError(f"loss is {self.loss!r}, which is not a loss")

    def run(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            # A row broken in an earlier search has left, unless the caller lets rows stay.
            rows = siege.view(dice=siege.dice.of("restart", restart))
            if len(rows):
                self._search(rows)

    def halvings(self) -> tuple[int, ...]:
        """The first step of each halved size of window."""
        if not self.rescale:
            return tuple(last + 1 for last in HALVINGS)
        # Step t stands for step floor(10000 t / steps).
        return tuple(-(-(last + 1) * self.steps // 10000) for last in HALVINGS)

    def _search(self, siege: Siege) -> None:
        proposals = PROPOSALS[siege.ball.norm](siege.ball, self.p_init)
        halvings = self.halvings()
        memory = proposals.remember(siege.ball)
        x = proposals.start(siege.ball, siege.dice.of("start"), memory)
        best = siege.logits(x, loss=self.loss).loss
        step = torch.zeros(len(siege), dtype=torch.int64, device=x.device)
        drawn = x.new_zeros(len(siege), 0, proposals.numbers)
        begun, kept, seen = 0, 1.0, 4.0
        while True:
            x, best, step, drawn, *rest = siege.settle(x, best, step, drawn, *memory)
            memory = tuple(rest)
            if not len(siege):
                return
            # Rows that kept something early in a scan are behind the others.
            first, last = torch.stack(torch.aminmax(step)).tolist()
            if last == self.steps:
                siege.leave(step == last)
                continue
            k = min(siege.ahead(kept / seen), self.steps - last)
            if k > 1 or first < last:
                draw = proposals.draw(siege.dice, step, k)
            else:
                if last >= begun + drawn.shape[1]:
                    begun, drawn = last, proposals.draw(siege.dice, step, BLOCK)
                draw = drawn[:, last - begun, None]
            groups = _groups(step, k, first, last, halvings)
            new = proposals.propose(siege.ball, x, memory, draw, groups)
            used, taken, loss = self._ask(siege, new, best)
            rows = (taken < k).nonzero()[:, 0]
            if len(rows):
                x[rows] = new[rows, taken[rows]]
                best[rows] = loss[rows]
            step = step + used
            many = len(step) if k == 1 else int(used.sum())
            kept, seen = _FADE * kept + len(rows), _FADE * seen + many

    def _ask(self, siege: Siege, new: Tensor, best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many of k proposals each row used, which it keeps (k for none), and its loss."""
        k = new.shape[1]
        if k == 1:
            answer = siege.logits(new[:, 0], loss=self.loss)
            taken = (answer.loss <= best).to(torch.int64)
            return torch.ones_like(taken), taken, answer.loss
        scan = siege.scan(new, lambda a: a.loss > best[:, None], self.loss, each=True)
        return (scan.choice + 1).clamp_max(k), scan.choice, scan.answer.loss


def _groups(step: Tensor, k: int, first: int, last: int, halvings: tuple[int, ...]) -> list[Group]:
    """The proposals of each size of window: almost always one size for all."""
    fewest, most = bisect_right(halvings, first), bisect_right(halvings, last + k - 1)
    if fewest == most:
        return [(most, None)]
    when = (step[:, None] + torch.arange(k, device=step.device)).flatten()
    halved = torch.bucketize(when, torch.tensor(halvings, device=step.device), right=True)
    return [(many, (halved == many).nonzero()[:, 0]) for many in range(fewest, most + 1)]


@dataclass(frozen=True)
class Window:
    """One size of window.

    Attributes
    ----------
    height, width : int
        Its sides.
    offsets : Tensor
        Its entries when it lies in the first corner, ``[channels, entries]``.
    room : Tensor
        How many rows and columns it can begin at.
    """

    height: int
    width: int
    offsets: Tensor
    room: Tensor


@dataclass(frozen=True)
class Lot:
    """Proposals of one size of window: their numbers, the rows they are for, their draws."""

    window: Window
    items: Tensor
    rows: Tensor
    draw: Tensor


class Proposals(ABC):
    """How a search in one norm starts and moves.

    Attributes
    ----------
    numbers : int
        Uniform draws of one proposal.
    """

    least: ClassVar[int]
    """The shortest side of a window, where the image has it."""
    numbers: int

    def __init__(self, ball: Ball, p_init: float) -> None:
        self.channels, self.height, self.width = ball.center.shape[1:]
        self.entries = ball.size
        self.device = ball.center.device
        self.p_init = p_init
        self._windows: dict[int, Window] = {}

    @abstractmethod
    def start(self, ball: Ball, dice: Dice, memory: Memory) -> Tensor:
        """Where every row begins."""

    @abstractmethod
    def alter(self, ball: Ball, x: Tensor, memory: Memory, new: Tensor, lot: Lot) -> None:
        """Write some proposals over copies of the points that they start from."""

    def remember(self, ball: Ball) -> Memory:
        """What is computed once per row."""
        return ()

    def land(self, ball: Ball, new: Tensor, window: Window) -> Tensor:
        """Proposals inside ball and box."""
        return new

    def draw(self, dice: Dice, step: Tensor, k: int) -> Tensor:
        """The uniforms of k steps of each row, ``[rows, k, numbers]``: of its dice and the step."""
        when = step[:, None] + torch.arange(k, device=step.device)
        return dice.uniform((self.numbers,), when)

    def propose(
        self, ball: Ball, x: Tensor, memory: Memory, draw: Tensor, groups: list[Group]
    ) -> Tensor:
        """So many proposals for each row, all from the same point, ``[rows, k, ...]``.

        `draw` holds the uniforms of each, ``[rows, k, numbers]``.
        """
        rows, k = draw.shape[:2]
        new, draw = x.repeat_interleave(k, 0), draw.flatten(0, 1)
        every = torch.arange(rows * k, device=self.device)
        for halved, some in groups:
            window, items = self.window(halved), every if some is None else some
            lot = Lot(window, items, items // k, draw if some is None else draw[some])
            self.alter(ball, x, memory, new, lot)
            if some is None:
                new = self.land(ball if k == 1 else ball.at(lot.rows), new, window)
            else:
                new[some] = self.land(ball.at(lot.rows), new[some], window)
        return new.view(rows, k, *x.shape[1:])

    def window(self, halved: int) -> Window:
        """The window whose area has been halved so many times."""
        if halved not in self._windows:
            a, b = self.sides(self.p_init / 2**halved)
            down, across, channel = (
                torch.arange(n, device=self.device) for n in (a, b, self.channels)
            )
            plane = (down[:, None] * self.width + across).flatten()
            offsets = channel[:, None] * self.height * self.width + plane
            room = torch.tensor([self.height - a + 1, self.width - b + 1], device=self.device)
            self._windows[halved] = Window(a, b, offsets, room)
        return self._windows[halved]

    def sides(self, share: float) -> tuple[int, int]:
        """Height and width of windows: of a square, or in a thin image of what has its area."""
        area = share * self.height * self.width
        side = max(self.whole(math.sqrt(area)), self.least)
        short, long = sorted((self.height, self.width))
        if side <= short:
            return side, side
        long = min(max(round(area / short), self.least, short), long)
        return (short, long) if self.height == short else (long, short)

    def whole(self, side: float) -> int:
        """The side of a square in pixels."""
        return round(side)

    def where(self, corner: Tensor, window: Window, images: Tensor) -> Tensor:
        """The entries of windows in a stack of images, ``[many, channels, entries]``."""
        begin = images * self.entries + corner[:, 0] * self.width + corner[:, 1]
        return begin[:, None, None] + window.offsets


def _corner(draw: Tensor, window: Window) -> Tensor:
    """The first row and column of windows, the last possible ones included, ``[many, 2]``."""
    return (draw * window.room).to(torch.int64)


class Corners(Proposals):
    """In linf every entry is at one of its bounds, and a window goes to one, by channel."""

    least = 1

    def __init__(self, ball: Ball, p_init: float) -> None:
        super().__init__(ball, p_init)
        self.numbers = 2 + 2 * self.channels

    def remember(self, ball: Ball) -> Memory:
        far = 2.0 * ball.scaled(ball.radius)
        return ball.confine(ball.center - far), ball.confine(ball.center + far)

    def start(self, ball: Ball, dice: Dice, memory: Memory) -> Tensor:
        # Stripes: whole columns up or down.
        up = dice.signs((self.channels, 1, self.width)) > 0
        return torch.where(up, memory[1], memory[0])

    def alter(self, ball: Ball, x: Tensor, memory: Memory, new: Tensor, lot: Lot) -> None:
        corner = _corner(lot.draw[:, :2], lot.window)
        there = self.where(corner, lot.window, lot.rows)
        low, high, now = memory[0].take(there), memory[1].take(there), x.take(there)
        lowest, highest = (now == low).all(2), (now == high).all(2)

        def idle(up: Tensor) -> Tensor:
            return torch.where(up, highest, lowest).all(1, keepdim=True)

        up, again = (lot.draw[:, 2:] < 0.5).chunk(2, 1)
        up = torch.where(idle(up), again, up)
        # If that changes nothing either, its opposite changes every channel.
        up = torch.where(idle(up), ~up, up)
        here = self.where(corner, lot.window, lot.items)
        new.view(-1)[here] = torch.where(up[:, :, None], high, low)


class Bumps(Proposals):
    """In l2 and l1 one window gives its change to another, which grows by a bump.

    A bump is two pyramids of opposite sign side by side. The sum of it and of the change that
    was there, both of size one, by channel, gets the size that spends the whole budget.
    """

    least = 3
    power: ClassVar[int]
    """Sizes to this power add up."""
    fall: ClassVar[int]
    """How fast the layers of a pyramid get thinner."""

    def __init__(self, ball: Ball, p_init: float) -> None:
        super().__init__(ball, p_init)
        self.numbers = 5 + self.channels
        self._bumps: dict[tuple[int, int], Tensor] = {}

    def whole(self, side: float) -> int:
        return round(side) // 2 * 2 + 1  # odd: there is a middle

    def start(self, ball: Ball, dice: Dice, memory: Memory) -> Tensor:
        side = max(min(self.height, self.width) // TILES, 1)
        down, across = self.height // side, self.width // side
        lying, upright = self.bumps(ball, side, side).view(2, side, 1, side)
        turn = dice.of("turn").signs((1, down, 1, across, 1)) > 0
        tiles = torch.where(turn, lying, upright) * dice.signs((self.channels, down, 1, across, 1))
        change = torch.zeros_like(ball.center)
        top, left = (self.height - down * side) // 2, (self.width - across * side) // 2
        middle = change[:, :, top : top + down * side, left : left + across * side]
        middle.copy_(tiles.reshape(middle.shape))
        # Not less than the radius; more is projected, which in l1 leaves the peaks.
        larger = (ball.radius / distances(change, ball.norm)).clamp_min(1.0)
        return ball.confine(ball.center + change * ball.scaled(larger))

    def alter(self, ball: Ball, x: Tensor, memory: Memory, new: Tensor, lot: Lot) -> None:
        window, draw = lot.window, lot.draw
        to, away = _corner(draw[:, :2], window), _corner(draw[:, 2:4], window)
        gains, gives = (self.where(corner, window, lot.rows) for corner in (to, away))
        clean, rest = ball.center.take(gains), ball.center.take(gives)
        change = x.take(gains) - clean
        size = self.sizes(change, ball)
        # What both windows share counts once.
        given = (x.take(gives) - rest) * ~_covered(to, away, window)[:, None]
        spent = size**self.power + self.sizes(given, ball) ** self.power
        spare = ball.radius**self.power - ball.distance(x) ** self.power
        whole = spent + (spare.clamp_min(0.0) / self.channels)[lot.rows, None]
        bump = self.bumps(ball, window.height, window.width)[(draw[:, 4] < 0.5).to(torch.int64)]
        sign = torch.where(draw[:, 5:] < 0.5, 1.0, -1.0)
        change = change / size.clamp_min(_TINY)[..., None].to(change) + bump * sign[..., None]
        grown = self.grown(whole) / self.sizes(change, ball).clamp_min(_TINY)
        flat = new.view(-1)
        flat[self.where(away, window, lot.items)] = rest
        flat[self.where(to, window, lot.items)] = clean + change * grown[..., None].to(change)

    def grown(self, whole: Tensor) -> Tensor:
        """The size of a channel's new window, of what can be spent in it to the power."""
        raise NotImplementedError

    def sizes(self, change: Tensor, ball: Ball) -> Tensor:
        """The size of each window's change, float64 ``[many, channels]``."""
        return distances(change.flatten(0, 1), ball.norm).view(change.shape[:2])

    def bumps(self, ball: Ball, height: int, width: int) -> Tensor:
        """A bump split across and one split down, ``[2, 1, entries]``, each of size one."""
        if (height, width) not in self._bumps:
            both = (
                _halves(height, width, self.fall, ball.norm),
                _halves(width, height, self.fall, ball.norm).T,
            )
            flat = torch.stack([one.flatten() for one in both])[:, None]
            self._bumps[height, width] = flat.to(ball.center)
        return self._bumps[height, width]


class Bumps2(Bumps):
    """Bumps of Euclidean size."""

    power, fall = 2, 2

    def grown(self, whole: Tensor) -> Tensor:
        return whole.sqrt()

    def land(self, ball: Ball, new: Tensor, window: Window) -> Tensor:
        # What the box takes from a window would be lost: the change grows until it is spent.
        flat = new.flatten(1)
        cut = ((flat.amin(1) < ball.box[0]) | (flat.amax(1) > ball.box[1])).nonzero()[:, 0]
        if len(cut):
            some = ball.at(cut)
            move = some.steepest(new[cut] - some.center, some.center, some.radius)
            new[cut] = some.center + move
        return ball.confine(new)


class Bumps1(Bumps):
    """Bumps of absolute size, larger than the budget by design: the projection thins the rest."""

    power, fall = 1, 4

    def grown(self, whole: Tensor) -> Tensor:
        # The original takes the number of channels, and is weak where there is one.
        return 3.0 * whole

    def land(self, ball: Ball, new: Tensor, window: Window) -> Tensor:
        # Few entries are changed: what they are projected to does not depend on the others.
        many = window.offsets.numel() + SPARSE
        if 2 * many > self.entries:
            return ball.confine(new)
        flat, center = new.flatten(1), ball.center.flatten(1)
        size, where = (flat - center).abs().topk(many, dim=1, sorted=False)
        few = type(ball)(center.gather(1, where), ball.radius, ball.box)
        landed = center.scatter(1, where, few.confine(flat.gather(1, where))).view_as(new)
        more = (size.amin(1) > 0).nonzero()[:, 0]
        if len(more):
            landed[more] = ball.at(more).confine(new[more])
        return landed


def _covered(to: Tensor, away: Tensor, window: Window) -> Tensor:
    """Which entries of the second windows lie in the first, ``[many, entries]``."""
    apart = away - to
    down = apart[:, :1] + torch.arange(window.height, device=to.device)
    across = apart[:, 1:] + torch.arange(window.width, device=to.device)
    inside = ((down >= 0) & (down < window.height))[:, :, None]
    return (inside & ((across >= 0) & (across < window.width))[:, None]).flatten(1)


def _halves(height: int, width: int, fall: int, norm: Norm) -> Tensor:
    """Two pyramids one above the other, of opposite sign and of equal size, together of size one.

    Each is a pile of rectangles about its middle, the k-th of thickness ``k ** -fall``.
    """

    def unit(change: Tensor) -> Tensor:
        return change / distances(change[None], norm).clamp_min(_TINY)

    def pyramid(height: int) -> Tensor:
        down = (torch.arange(height) - height // 2).abs()
        across = (torch.arange(width) - width // 2).abs()
        layers = torch.arange(1, max(height, width) // 2 + 2).double() ** -fall
        return unit(layers.flip(0).cumsum(0).flip(0)[torch.maximum(down[:, None], across)])

    return unit(torch.cat([pyramid(height // 2), -pyramid(height - height // 2)]))


PROPOSALS: Mapping[Norm, type[Proposals]] = MappingProxyType(
    {Linf: Corners, L2: Bumps2, L1: Bumps1}
)
