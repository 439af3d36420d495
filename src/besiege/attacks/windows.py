"""What Square proposes: windows of each row's own, and what each norm puts into them.

All of it is arithmetic on whole images, without a branch on what they hold: on a GPU nobody waits
for an answer, and proposals for several steps, and windows of several sizes, are made at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.ball import Ball, LinfBall, distances
from besiege.core.dice import Dice
from besiege.core.threat import L1, L2, Linf, Norm

TILES = 5
"""How many tiles of the l2 and l1 start fit into the shorter side of an image."""

CUTS = 2
"""How often, in l2, what the box took is given to the rest of the change."""

ROUNDS = 5
"""Rounds of Newton's search for what l1 takes from every entry; a remaining excess of a percent or
two is scaled off."""

_TINY = 1e-30
_HALF_STEP = 2.0**-25
"""How far, for entries up to one, float32 lies from what was to be written."""

Draws = tuple[Tensor, ...]
"""What chance says about some steps of every row, each ``[rows, steps, ...]``."""


class Proposals(ABC):
    """How a search in one norm starts and moves.

    Parameters
    ----------
    ball : Ball
        Where the rows may go.
    share : float
        The share of an image that the first windows cover.
    halvings : sequence of int
        The first step of each halved size of window.
    """

    least: ClassVar[int]
    """The shortest side of a window, where the image has it."""
    numbers: int
    """Uniform draws of one proposal."""

    def __init__(self, ball: Ball, share: float, halvings: Sequence[int]) -> None:
        self.channels, *self.sides = ball.center.shape[1:]
        self.windows = [self.window(share / 2**n) for n in range(len(halvings) + 1)]
        device = ball.center.device
        self._halvings = torch.tensor(halvings, dtype=torch.int64, device=device)
        self._extents = torch.tensor(self.windows, device=device)
        self._places = [torch.arange(n, device=device) for n in self.sides]

    @abstractmethod
    def start(self, ball: Ball, dice: Dice) -> Tensor:
        """Where every row begins."""

    @abstractmethod
    def decide(self, draw: Tensor, size: Tensor) -> Draws:
        """What uniforms ``[rows, steps, numbers]`` say, for windows of these sizes."""

    @abstractmethod
    def propose(self, ball: Ball, x: Tensor, draws: Draws) -> Tensor:
        """One proposal per step drawn, ``[rows, steps, ...]``, all from the same point."""

    def draw(self, dice: Dice, step: Tensor, count: int) -> Draws:
        """The chances of the next steps of every row: of its dice and the number of the step."""
        when = step[:, None] + torch.arange(count, device=step.device)
        size = torch.bucketize(when, self._halvings, right=True)
        return self.decide(dice.uniform((self.numbers,), when), size)

    def window(self, share: float) -> tuple[int, int]:
        """Height and width of windows: of a square, or in a thin image of what has its area."""
        height, width = self.sides
        area = share * height * width
        side = max(self.whole(math.sqrt(area)), self.least)
        short, long = sorted((height, width))
        if side <= short:
            return side, side
        long = min(max(round(area / short), self.least, short), long)
        return (short, long) if height == short else (long, short)

    def whole(self, side: float) -> int:
        """The side of a square in pixels."""
        return round(side)

    def lay(self, draw: Tensor, size: Tensor) -> list[Tensor]:
        """Where rows and columns of pixels lie in random windows.

        One tensor ``[rows, steps, pixels]`` per axis: counted from 1, and 0 where outside.
        """
        laid = []
        for axis, place in enumerate(self._places):
            extent = self._extents[size, axis]
            room = len(place) - extent
            # The last place included; the product of numbers below one never rounds beyond it.
            corner = (draw[..., axis] * (room + 1)).to(torch.int64)
            offset = place - corner[..., None] + 1
            laid.append(offset * ((offset > 0) & (offset <= extent[..., None])))
        return laid


def _upright(down: Tensor) -> Tensor:
    return down[:, :, None, :, None]


def _lying(across: Tensor) -> Tensor:
    return across[:, :, None, None, :]


class Corners(Proposals):
    """In linf every entry is at one of its bounds, and a window goes to one, by channel."""

    least = 1

    def __init__(self, ball: Ball, share: float, halvings: Sequence[int]) -> None:
        super().__init__(ball, share, halvings)
        self.numbers = 2 + 2 * self.channels

    def start(self, ball: Ball, dice: Dice) -> Tensor:
        # Stripes: whole columns up or down.
        low, high = _bounds(ball)
        return torch.where(dice.signs((self.channels, 1, self.sides[1])) > 0, high, low)

    def decide(self, draw: Tensor, size: Tensor) -> Draws:
        down, across = self.lay(draw, size)
        up, turned = (draw[..., 2:, None, None] < 0.5).chunk(2, 2)
        # Where every channel is already there: others in some channels, at least in one.
        other = up ^ (turned | ~turned.any(2, keepdim=True))
        return _upright(down > 0), _lying(across > 0), up, other

    def propose(self, ball: Ball, x: Tensor, draws: Draws) -> Tensor:
        down, across, up, other = draws
        low, high = (bound[:, None] for bound in _bounds(ball))
        x, inside = x[:, None], down & across
        changes = (inside & ((x == high) ^ up)).flatten(2).any(2)
        up = torch.where(changes[..., None, None, None], up, other)
        return torch.where(inside, torch.where(up, high, low), x)


def _bounds(ball: Ball) -> tuple[Tensor, Tensor]:
    assert isinstance(ball, LinfBall)
    return ball.bounds()


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

    def __init__(self, ball: Ball, share: float, halvings: Sequence[int]) -> None:
        super().__init__(ball, share, halvings)
        self.numbers = 5 + self.channels
        # All bumps in one table, each with a border of zeros before it.
        both = [self.bumps(ball, *window) for window in self.windows]
        bordered = [functional.pad(bump, (1, 0, 1, 0)) for pair in both for bump in pair]
        self._table = torch.cat([bump.flatten() for bump in bordered])
        counts = torch.tensor([bump.numel() for bump in bordered], device=ball.center.device)
        self._begin = (counts.cumsum(0) - counts).view(-1, 2)
        self._known: tuple[Ball, Tensor, Tensor] | None = None

    def whole(self, side: float) -> int:
        return round(side) // 2 * 2 + 1  # odd: there is a middle

    def start(self, ball: Ball, dice: Dice) -> Tensor:
        height, width = self.sides
        side = max(min(height, width) // TILES, 1)
        down, across = height // side, width // side
        lying, upright = self.bumps(ball, side, side).view(2, side, 1, side)
        turn = dice.of("turn").signs((1, down, 1, across, 1)) > 0
        tiles = torch.where(turn, lying, upright) * dice.signs((self.channels, down, 1, across, 1))
        change = torch.zeros_like(ball.center)
        top, left = (height - down * side) // 2, (width - across * side) // 2
        middle = change[:, :, top : top + down * side, left : left + across * side]
        middle.copy_(tiles.reshape(middle.shape) * ball.width)
        # Not less than the radius; more is projected, which in l1 leaves the peaks.
        larger = (ball.radius / distances(change, ball.norm)).clamp_min(1.0)
        return ball.confine(ball.center + change * ball.scaled(larger))

    def decide(self, draw: Tensor, size: Tensor) -> Draws:
        down, across = self.lay(draw, size)
        gives = self.lay(draw[..., 2:], size)
        begin = self._begin[size, (draw[..., 4] < 0.5).to(torch.int64)]
        stride = self._extents[size, 1] + 1
        line = begin[..., None] + down * stride[..., None]
        sign = torch.where(draw[..., 5:] < 0.5, 1.0, -1.0)[..., None, None].to(self._table)
        return _upright(line), _lying(across), _upright(gives[0] > 0), _lying(gives[1] > 0), sign

    def propose(self, ball: Ball, x: Tensor, draws: Draws) -> Tensor:
        down, across, below, beside, sign = draws
        bump = self._table.take(down + across)
        gains = bump != 0
        change = (x - ball.center)[:, None]
        own = change * gains
        rest = torch.where(gains | (below & beside), 0.0, change)
        # What both windows hold, by channel, and an equal share of what nobody spends.
        spent, stays = (self.sizes(part, ball.norm) ** self.power for part in (change, rest))
        spare = (self.limits(ball)[1] - spent.sum(2, keepdim=True)).clamp_min_(0.0)
        grown = self.grown((spent - stays).add_(spare, alpha=1.0 / self.channels).clamp_min_(0.0))
        size = self.sizes(own, ball.norm).clamp_min(_TINY)
        new = torch.addcmul(bump * sign, own, _image(size.reciprocal(), x))
        size = self.sizes(new, ball.norm).clamp_min(_TINY)
        return self.land(ball, torch.addcmul(rest, new, _image(grown / size, x)))

    @abstractmethod
    def grown(self, whole: Tensor) -> Tensor:
        """The size of a channel's new window, of what can be spent in it to the power."""

    @abstractmethod
    def land(self, ball: Ball, change: Tensor) -> Tensor:
        """Images in ball and box, of changes ``[rows, steps, ...]``."""

    def limits(self, ball: Ball) -> tuple[Tensor, Tensor]:
        """How far a change may go, ``[rows, 1]``, and the radius to the power, ``[rows, 1, 1]``.

        The first is the radius less what writing the entries in float32 may add.
        """
        if self._known is None or self._known[0] is not ball:  # rows have left
            radius = ball.radius[:, None]
            slack = ball.size ** (1.0 / self.power) * _HALF_STEP * max(map(abs, ball.box))
            reach = torch.maximum(radius - slack, radius / 2)
            self._known = ball, reach, radius[:, None] ** self.power
        return self._known[1:]

    def sizes(self, change: Tensor, norm: Norm) -> Tensor:
        """The size of each channel's change, float64 ``[rows, steps, channels]``."""
        return distances(change.flatten(0, 2), norm).view(change.shape[:3])

    def bumps(self, ball: Ball, height: int, width: int) -> Tensor:
        """A bump split across and one split down, ``[2, height, width]``, each of size one."""
        across = _halves(height, width, self.fall, ball.norm)
        down = _halves(width, height, self.fall, ball.norm).T
        return torch.stack([across, down]).to(ball.center)


def _image(numbers: Tensor, x: Tensor) -> Tensor:
    """Numbers by channel, or by proposal, to multiply images."""
    return numbers.view(*numbers.shape, *[1] * (5 - numbers.dim())).to(x.dtype)


class Bumps2(Bumps):
    """Bumps of Euclidean size."""

    power, fall = 2, 2

    def grown(self, whole: Tensor) -> Tensor:
        return whole.sqrt()

    def land(self, ball: Ball, change: Tensor) -> Tensor:
        center, radius = ball.center[:, None], self.limits(ball)[0]
        landed = (center + change).clamp_(*ball.box)
        for _ in range(CUTS):
            change = landed - center
            size = distances(change.flatten(0, 1), L2).view(change.shape[:2]).clamp_min(_TINY)
            landed = torch.addcmul(center, change, _image(radius / size, change)).clamp_(*ball.box)
        return landed


class Bumps1(Bumps):
    """Bumps of absolute size, larger than the budget by design: the projection thins the rest."""

    power, fall = 1, 4

    def grown(self, whole: Tensor) -> Tensor:
        # The original takes the number of channels, and is weak where there is one.
        return 3.0 * whole

    def land(self, ball: Ball, change: Tensor) -> Tensor:
        # The exact projection, min(max(size - less, 0), room), but for a few rounds.
        size, radius = change.abs().flatten(2), self.limits(ball)[0]
        room = ball.room(ball.center[:, None], change).flatten(2)
        less = torch.zeros_like(size[..., 0])
        for _ in range(ROUNDS):
            left = (size - less[..., None]).clamp_min_(0.0).minimum(room)
            over = (self._sum(left) - radius).to(less.dtype)
            moves = ((left > 0) & (left < room)).sum(2).clamp_min_(1)
            less = (less + over / moves).clamp_min_(0.0)
        left = (size - less[..., None]).clamp_min_(0.0).minimum(room)
        share = radius / self._sum(left).clamp_min(_TINY)
        left = (left * share[..., None].to(left.dtype)).minimum(room)
        change = torch.copysign(left.view_as(change), change)
        return (ball.center[:, None] + change).clamp_(*ball.box)

    def _sum(self, sizes: Tensor) -> Tensor:
        return distances(sizes.flatten(0, 1), L1).view(sizes.shape[:2])


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
