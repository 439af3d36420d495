"""Proposals of the Square attack: windows of each row's own, and their content in each norm.

All of it is arithmetic on whole images without data-dependent branches: a GPU never synchronises,
and proposals for several steps, and windows of several sizes, are computed at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.ball import Ball, LinfBall, distances
from besiege.core.dice import Dice
from besiege.core.threat import L1, L2, Linf, Norm

TILES = 5
"""Tiles of the l2 and l1 start along the shorter side of an image."""

CUTS = 2
"""How often, in l2, what the box clipped is redistributed to the rest of the perturbation."""

ROUNDS = 5
"""Newton iterations of the l1 projection; a remaining excess of one or two per cent is scaled
off."""

_TINY = 1e-30
_HALF_STEP = 2.0**-25
"""Rounding error of float32 values up to one."""

Draws = tuple[Tensor, ...]
"""Random decisions for some steps of every row, each ``[rows, steps, ...]``."""


class Form(NamedTuple):
    """What differs between published forms of the search; the parameters of the same names."""

    redraw: bool = True
    edge: bool = True
    compat: bool = False


class Proposals(ABC):
    """Start and proposals of the search in one norm.

    Parameters
    ----------
    ball : Ball
        The balls of the rows.
    share : float
        Fraction of an image that the first windows cover.
    halvings : sequence of int
        The first step of each halved window size.
    form : Form
        The form of the search.
    """

    least: ClassVar[int]
    """Shortest side of a window, if the image allows it."""
    numbers: int
    """Uniform draws of one proposal."""

    def __init__(
        self,
        ball: Ball,
        share: float,
        halvings: Sequence[int],
        form: Form = Form(),  # noqa: B008  # immutable
    ) -> None:
        self.form = form
        self.channels, *self.sides = ball.center.shape[1:]
        self.windows = [self.window(share / 2**n) for n in range(len(halvings) + 1)]
        device = ball.center.device
        self._halvings = torch.tensor(halvings, dtype=torch.int64, device=device)
        self._extents = torch.tensor(self.windows, device=device)
        self._places = [torch.arange(n, device=device) for n in self.sides]

    @abstractmethod
    def start(self, ball: Ball, dice: Dice) -> Tensor:
        """The first point of every row."""

    @abstractmethod
    def decide(self, draw: Tensor, size: Tensor) -> Draws:
        """The decisions made by uniforms ``[rows, steps, numbers]``, for windows of these sizes."""

    @abstractmethod
    def propose(self, ball: Ball, x: Tensor, draws: Draws) -> Tensor:
        """One proposal per step drawn, ``[rows, steps, ...]``, all from the same point."""

    def draw(self, dice: Dice, step: Tensor, count: int) -> Draws:
        """The decisions for the next steps of every row, from its dice and the step number."""
        when = step[:, None] + torch.arange(count, device=step.device)
        size = torch.bucketize(when, self._halvings, right=True)
        return self.decide(dice.uniform((self.numbers,), when), size)

    def window(self, share: float) -> tuple[int, int]:
        """Height and width of windows: a square, or in a thin image a rectangle of its area."""
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

        One tensor ``[rows, steps, pixels]`` per axis: counted from 1, and 0 outside.
        """
        laid = []
        for axis, place in enumerate(self._places):
            extent = self._extents[size, axis]
            room = len(place) - extent
            # The last position included; the product of numbers below one never rounds beyond it.
            corner = (draw[..., axis] * (room + self.form.edge)).to(torch.int64)
            offset = place - corner[..., None] + 1
            laid.append(offset * ((offset > 0) & (offset <= extent[..., None])))
        return laid


def _upright(down: Tensor) -> Tensor:
    return down[:, :, None, :, None]


def _lying(across: Tensor) -> Tensor:
    return across[:, :, None, None, :]


class Corners(Proposals):
    """In linf every pixel value is at a bound; a window is set to one bound per channel."""

    least = 1

    def __init__(
        self,
        ball: Ball,
        share: float,
        halvings: Sequence[int],
        form: Form = Form(),  # noqa: B008  # immutable
    ) -> None:
        super().__init__(ball, share, halvings, form)
        self.numbers = 2 + 2 * self.channels

    def start(self, ball: Ball, dice: Dice) -> Tensor:
        # Vertical stripes: whole columns at one bound.
        low, high = _bounds(ball)
        return torch.where(dice.signs((self.channels, 1, self.sides[1])) > 0, high, low)

    def decide(self, draw: Tensor, size: Tensor) -> Draws:
        down, across = self.lay(draw, size)
        up, turned = (draw[..., 2:, None, None] < 0.5).chunk(2, 2)
        # If nothing would change: the other bound in some channels, at least in one.
        other = up ^ (turned | ~turned.any(2, keepdim=True)) if self.form.redraw else up
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
    """In l2 and l1 one window gives its perturbation to another, to which a bump is added.

    A bump is two pyramids of opposite sign side by side. The sum of the bump and the perturbation
    there, both of size one per channel, is scaled to spend the whole budget.
    """

    least = 3
    power: ClassVar[int]
    """Sizes to this power are additive."""
    fall: ClassVar[int]
    """Exponent by which the layers of a pyramid get thinner."""

    def __init__(
        self,
        ball: Ball,
        share: float,
        halvings: Sequence[int],
        form: Form = Form(),  # noqa: B008  # immutable
    ) -> None:
        super().__init__(ball, share, halvings, form)
        self.numbers = 5 + self.channels
        # All bumps in one table, each preceded by a border of zeros.
        both = [self.bumps(ball, *window) for window in self.windows]
        bordered = [functional.pad(bump, (1, 0, 1, 0)) for pair in both for bump in pair]
        self._table = torch.cat([bump.flatten() for bump in bordered])
        counts = torch.tensor([bump.numel() for bump in bordered], device=ball.center.device)
        self._begin = (counts.cumsum(0) - counts).view(-1, 2)
        self._known: tuple[Ball, Tensor, Tensor] | None = None

    def whole(self, side: float) -> int:
        return round(side) // 2 * 2 + 1  # odd, so that it has a middle

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
        if self.form.compat:
            return self.land(ball, change[:, None])[:, 0]
        # At least the radius; more is projected, which in l1 leaves the peaks.
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
        # The budget in both windows, by channel, and an equal part of the unspent budget.
        spent, stays = (self.sizes(part, ball.norm) ** self.power for part in (change, rest))
        spare = (self.limits(ball)[1] - spent.sum(2, keepdim=True)).clamp_min_(0.0)
        grown = self.grown((spent - stays).add_(spare, alpha=1.0 / self.channels).clamp_min_(0.0))
        size = self.sizes(own, ball.norm).clamp_min(_TINY)
        new = torch.addcmul(bump * sign, own, _image(size.reciprocal(), x))
        size = self.sizes(new, ball.norm).clamp_min(_TINY)
        return self.land(ball, torch.addcmul(rest, new, _image(grown / size, x)))

    @abstractmethod
    def grown(self, whole: Tensor) -> Tensor:
        """The size of a channel's new window, from its budget to the power."""

    @abstractmethod
    def land(self, ball: Ball, change: Tensor) -> Tensor:
        """Images in ball and box, from perturbations ``[rows, steps, ...]``."""

    def limits(self, ball: Ball) -> tuple[Tensor, Tensor]:
        """The largest perturbation, ``[rows, 1]``, and the radius to the power, ``[rows, 1, 1]``.

        The first is the radius less what rounding to float32 may add.
        """
        if self._known is None or self._known[0] is not ball:  # rows have left
            radius = ball.radius[:, None]
            slack = ball.size ** (1.0 / self.power) * _HALF_STEP * max(map(abs, ball.box))
            reach = torch.maximum(radius - slack, radius / 2)
            self._known = ball, reach, radius[:, None] ** self.power
        return self._known[1:]

    def sizes(self, change: Tensor, norm: Norm) -> Tensor:
        """The size of each channel's perturbation, float64 ``[rows, steps, channels]``."""
        return distances(change.flatten(0, 2), norm).view(change.shape[:3])

    def bumps(self, ball: Ball, height: int, width: int) -> Tensor:
        """A bump split across and one split down, ``[2, height, width]``, each of size one."""
        across = _halves(height, width, self.fall, ball.norm)
        down = _halves(width, height, self.fall, ball.norm).T
        return torch.stack([across, down]).to(ball.center)


def _image(numbers: Tensor, x: Tensor) -> Tensor:
    """Numbers per channel, or per proposal, shaped to multiply images."""
    return numbers.view(*numbers.shape, *[1] * (5 - numbers.dim())).to(x.dtype)


class Bumps2(Bumps):
    """Bumps of Euclidean size."""

    power, fall = 2, 2

    def grown(self, whole: Tensor) -> Tensor:
        return whole.sqrt()

    def land(self, ball: Ball, change: Tensor) -> Tensor:
        center, radius = ball.center[:, None], self.limits(ball)[0]
        if self.form.compat:
            size = distances(change.flatten(0, 1), L2).view(change.shape[:2]).clamp_min(_TINY)
            return torch.addcmul(center, change, _image(radius / size, change)).clamp_(*ball.box)
        landed = (center + change).clamp_(*ball.box)
        for _ in range(CUTS):
            change = landed - center
            size = distances(change.flatten(0, 1), L2).view(change.shape[:2]).clamp_min(_TINY)
            landed = torch.addcmul(center, change, _image(radius / size, change)).clamp_(*ball.box)
        return landed


class Bumps1(Bumps):
    """Bumps of l1 size, larger than the budget by design: the projection thins the rest."""

    power, fall = 1, 4

    def grown(self, whole: Tensor) -> Tensor:
        # The original uses the number of channels, which is weak for grey images.
        return (self.channels if self.form.compat else 3.0) * whole

    def land(self, ball: Ball, change: Tensor) -> Tensor:
        if self.form.compat:
            return ball.confine(ball.center[:, None] + change)
        # The exact projection is min(max(size - less, 0), room); a few Newton steps find less.
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
    """Two pyramids one above the other, of opposite sign and equal size, together of size one.

    Each is a stack of centred rectangles, the k-th of thickness ``k ** -fall``.
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
