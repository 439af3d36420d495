"""The set of images an attack may reach: a norm ball around each clean image, cut by the box.

Only this file knows norms. Each norm is a class with exact joint operations on ball and box;
attacks call them and never branch on the norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import ThreatError
from besiege.core.fill import flood, forward_plane, greedy, never_alone, shrink, threshold
from besiege.core.threat import L0, L1, L2, Linf, Norm

TOLERANCE = 1e-6
"""How far, relatively, a distance may exceed its budget: what float32 arithmetic needs."""

_ORDER = {L2: 2.0, L1: 1.0, L0: 0.0}


def distances(change: Tensor, norm: Norm) -> Tensor:
    """The size of each row's change, float64 ``[rows]``: float32 differences summed in float64."""
    flat = change.flatten(1)
    if norm is Linf:
        # A maximum needs no wider type, and vector_norm takes fifteen times as long for it.
        return flat.abs().amax(1).double()
    size: Tensor = torch.linalg.vector_norm(
        never_alone(flat), _ORDER[norm], dim=1, dtype=torch.float64
    )
    return size[: len(flat)]


class Ball(ABC):
    """Centre, per-row radius, box and grid; all that depends on the norm.

    Parameters
    ----------
    center : Tensor
        The clean images, ``[rows, ...]``, inside the box.
    radius : Tensor
        float64 ``[rows]``; infinite when only the box limits the change.
    box : tuple of float
        Lowest and highest pixel value.
    grid : float, optional
        Step between the values the victim can receive, such as 1/255.
    """

    norm: ClassVar[Norm]

    def __init__(
        self,
        center: Tensor,
        radius: Tensor,
        box: tuple[float, float] = (0.0, 1.0),
        grid: float | None = None,
    ) -> None:
        self.center = center
        self.radius = radius
        self.box = box
        self.grid = grid

    # What each norm defines, on rows [rows, ...] without a grid.

    @abstractmethod
    def _project(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        """The move from `x` of at most `length` that gains most along `g` inside the box."""

    def stride(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        """The move of one step among many, before `project`: the steepest one, unless it is far
        from where the gradient holds.
        """
        return self.steepest(g, x, length)

    @abstractmethod
    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        """The smallest move d from `x` inside the box with ``<w, d> = c``.

        Where the box does not reach the plane, the corner nearest to it.
        """

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        """The change nearest to one of this size that is a share, ``[rows]``, as large."""
        return self.of(share * size).confine(self.center + change) - self.center

    @abstractmethod
    def dual(self, g: Tensor) -> Tensor:
        """The dual norm of each row, float64: how much a linear loss gains per unit of change."""

    @abstractmethod
    def _direction(self, dice: Dice, counter: int) -> Tensor:
        """A random direction of length one in this norm."""

    # What they share.

    def __len__(self) -> int:
        return len(self.center)

    @property
    def size(self) -> int:
        """Number of entries of one image."""
        return math.prod(self.center.shape[1:])

    def at(self, rows: Tensor) -> Self:
        """The balls of some rows."""
        return type(self)(self.center[rows], self.radius[rows], self.box, self.grid)

    def of(self, radius: Tensor) -> Self:
        """The same centres with other radii."""
        return type(self)(self.center, radius.to(self.radius), self.box, self.grid)

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of ball and box, on the grid if there is one.

        `x` may hold k candidates per row, ``[rows, k, ...]``.
        """
        landed = self.confine(x)
        return landed if self.grid is None else self.received(landed)

    def confine(self, x: Tensor) -> Tensor:
        """The nearest point of ball and box, off the grid.

        For the iterates of an attack: on the grid, moves smaller than half a step would be lost.
        """
        if x.dim() > self.center.dim():
            return self._each(x.shape[1]).confine(x.flatten(0, 1)).view_as(x)
        return self._project(x)

    def sample(self, dice: Dice, counter: int = 0) -> Tensor:
        """A point uniform in the ball, then brought into the box."""
        self._needs_radius("draw a point")
        drawn = dice.of("length").uniform((1,), counter)[:, 0].double()
        # Not as a power: torch rounds powers of the last rows another way than the others.
        share = torch.exp(torch.log(drawn) / self.size)
        return self._out(dice, counter, share)

    def shell(self, dice: Dice, counter: int = 0) -> Tensor:
        """A point on the surface of the ball, then brought into the box."""
        self._needs_radius("draw a point")
        return self._out(dice, counter, torch.ones_like(self.radius))

    def distance(self, x: Tensor) -> Tensor:
        """The size of each row's change as the victim receives it, float64."""
        if x.dim() > self.center.dim():
            return self._each(x.shape[1]).distance(x.flatten(0, 1)).view(x.shape[:2])
        if self.grid is None:
            return distances(x - self.center, self.norm)
        steps = self._steps(x) - self._steps(self.center)
        return distances(steps, self.norm) * (1.0 if self.norm is L0 else self.grid)

    def boxed(self, x: Tensor) -> Tensor:
        """Which images are finite, in the box and on the grid if there is one."""
        flat = x.flatten(x.dim() - self.center.dim() + 1)
        # Both are NaN where an entry is, and then false.
        boxed = (flat.amin(-1) >= self.box[0]) & (flat.amax(-1) <= self.box[1])
        if self.grid is not None:  # what lies between its values is no image the victim receives
            off = (x - self.snap(x)).abs().flatten(x.dim() - self.center.dim() + 1)
            boxed &= off.amax(-1) <= 1e-3 * self.grid
        return boxed

    def inside(self, x: Tensor) -> Tensor:
        """Which images are finite, in the box and within their row's radius."""
        distance = self.distance(x)
        limit = (self.radius * (1.0 + TOLERANCE)).view(-1, *[1] * (distance.dim() - 1))
        return self.boxed(x) & (distance <= limit)

    def snap(self, x: Tensor) -> Tensor:
        """The nearest images the victim can receive."""
        if self.grid is None:
            return x
        low, high = self.box
        levels = round((high - low) / self.grid)
        return (self._steps(x) / levels * (high - low) + low).to(x.dtype)

    def scaled(self, rows: Tensor) -> Tensor:
        """Per-row numbers shaped to multiply images, in the images' type."""
        return rows.to(self.center.dtype).view(-1, *[1] * (self.center.dim() - 1))

    def room(self, x: Tensor, toward: Tensor) -> Tensor:
        """How far each entry of `x` can move in the direction of `toward` before the box ends."""
        low, high = self.box
        # Between 0 and 1 lerp is exact, and unlike where it does not branch on every entry.
        up = torch.gt(toward, 0.0, out=torch.empty_like(toward))
        return torch.lerp(x - low, high - x, up).clamp_min_(0.0)

    def larger(self, radius: Tensor, share: float) -> Tensor:
        """A radius a share larger."""
        return radius * (1.0 + share)

    def smaller(self, radius: Tensor, share: float) -> Tensor:
        """A radius a share smaller."""
        return radius * (1.0 - share)

    def _each(self, k: int) -> Self:
        return self.at(torch.arange(len(self), device=self.center.device).repeat_interleave(k))

    def _steps(self, x: Tensor) -> Tensor:
        assert self.grid is not None
        return torch.round((x.double() - self.box[0]) / self.grid)

    def _needs_radius(self, what: str) -> None:
        if not torch.isfinite(self.radius).all():
            raise ThreatError(
                f"cannot {what} in a ball without a radius: give the threat a budget, for example "
                f"'{self.norm}:{'20' if self.norm is L0 else '0.5'}', or use minimal(...)"
            )

    def _out(self, dice: Dice, counter: int, share: Tensor) -> Tensor:
        move = self._direction(dice, counter) * self.scaled(self.radius * share)
        return self.project(self.center + move)

    def _over(self, x: Tensor) -> Tensor:
        """Which rows lie outside once cut to the box; what has landed does not, so it stays."""
        limit = self.radius * (1.0 + TOLERANCE / 2)
        return distances(x.clamp(*self.box) - self.center, self.norm) > limit

    def _land(self, change: Tensor, over: Tensor, x: Tensor) -> Tensor:
        """Rows of `x` cut to the box, or, where `over`, centre plus change, inside as float32.

        Rounding centre + change to float32 can push a row out again by a few units in the last
        place: such rows are measured and shrunk, and at last rounded towards the centre.
        """
        limit = self.radius * (1.0 + TOLERANCE / 2)
        landed = (self.center + change).clamp_(*self.box)
        for last in (False, False, True):
            distance = distances(landed - self.center, self.norm)
            outside = over & (distance > limit)
            if not outside.any():
                break
            change = torch.where(
                self._mask(outside), change * self.scaled(self.radius / distance), change
            )
            landed = (self.center + change).clamp_(*self.box)
            if last:
                beyond = self._mask(outside) & ((landed - self.center).abs() > change.abs())
                landed = torch.where(beyond, torch.nextafter(landed, self.center), landed)
        return torch.where(self._mask(over), landed, x.clamp(*self.box))

    def _mask(self, rows: Tensor) -> Tensor:
        return rows.view(-1, *[1] * (self.center.dim() - 1))

    def received(self, x: Tensor) -> Tensor:
        """What a victim with a grid receives: rounded, towards the centre where that leaves it."""
        if x.dim() > self.center.dim():
            return self._each(x.shape[1]).received(x.flatten(0, 1)).view_as(x)
        if self.grid is None:
            return x
        near = self.snap(x)
        start, steps = self._steps(self.center), self._steps(x)
        exact = (x.double() - self.box[0]) / self.grid
        short = torch.where(exact >= start, torch.floor(exact + 1e-6), torch.ceil(exact - 1e-6))
        outside = distances(steps - start, self.norm) * (
            1.0 if self.norm is L0 else self.grid or 1.0
        ) > self.radius * (1.0 + TOLERANCE)
        low, high = self.box
        levels = round((high - low) / (self.grid or 1.0))
        inward = (short / levels * (high - low) + low).to(x.dtype)
        return torch.where(self._mask(outside), inward, near)


class LinfBall(Ball):
    """Every entry may change by at most the radius."""

    norm = Linf
    _bounds: tuple[Tensor, Tensor] | None = None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest value of each entry, computed once, rounded inward.

        The nearest float32 to ``x + eps`` may lie beyond it by 1e-5 of a small eps.
        """
        if self._bounds is None:
            center, radius = (
                self.center.double(),
                self.radius.view(-1, *[1] * (self.center.dim() - 1)),
            )
            low, high = center - radius, center + radius
            lower, upper = low.to(self.center.dtype), high.to(self.center.dtype)
            lower = torch.where(lower < low, torch.nextafter(lower, self.center), lower)
            upper = torch.where(upper > high, torch.nextafter(upper, self.center), upper)
            self._bounds = (lower.clamp_(*self.box), upper.clamp_(*self.box))
        return self._bounds

    def at(self, rows: Tensor) -> Self:
        ball = super().at(rows)
        if self._bounds is not None:
            ball._bounds = (self._bounds[0][rows], self._bounds[1][rows])
        return ball

    def _project(self, x: Tensor) -> Tensor:
        lower, upper = self.bounds()
        return torch.minimum(torch.maximum(x, lower), upper)

    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        return torch.sign(g).mul_(self.scaled(length))

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        return torch.sign(w).mul_(flood(None, self.room(x, w), w.abs(), c, 1))

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        most = self.scaled(share * size)
        return change.clamp(-most, most)

    def dual(self, g: Tensor) -> Tensor:
        return distances(g, L1)

    def sample(self, dice: Dice, counter: int = 0) -> Tensor:
        self._needs_radius("draw a point")
        return self._out(dice, counter, torch.ones_like(self.radius))

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        return dice.uniform(self.center.shape[1:], counter).mul_(2.0).sub_(1.0).to(self.center)

    def shell(self, dice: Dice, counter: int = 0) -> Tensor:
        self._needs_radius("draw a point")
        inner = self._direction(dice, counter)
        outer = inner / self.scaled(distances(inner, Linf).clamp_min(1e-30))
        return self.project(self.center + outer * self.scaled(self.radius))


class L2Ball(Ball):
    """The Euclidean length of the change is at most the radius."""

    norm = L2

    def _project(self, x: Tensor) -> Tensor:
        change = x - self.center
        over = self._over(x)
        if not over.any():
            return x.clamp(*self.box)
        return self._land(self._fill(change, self.center, self.radius), over, x)

    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        # Box-filled: what the box takes from some entries is given to the others, so that the
        # move has the full length whenever there is room.
        largest = distances(g, Linf).clamp_min(torch.finfo(g.dtype).tiny)
        return self._fill(g / self.scaled(largest), x, length)

    def _fill(self, v: Tensor, x: Tensor, length: Tensor) -> Tensor:
        size = v.abs()
        filled = flood(size, self.room(x, v), torch.ones_like(v), length**2, 2)
        return torch.copysign(filled, v)

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        weight = w.abs()
        return torch.sign(w).mul_(flood(weight, self.room(x, w), weight, c, 1))

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        # The box is not in the way: between two points of it is a third.
        return change * self.scaled(share)

    def dual(self, g: Tensor) -> Tensor:
        return distances(g, L2)

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        direction = dice.normal(self.center.shape[1:], counter).to(self.center)
        return direction / self.scaled(distances(direction, L2).clamp_min(1e-30))


class L1Ball(Ball):
    """The absolute changes sum to at most the radius."""

    norm = L1

    def _project(self, x: Tensor) -> Tensor:
        change = x - self.center
        over = self._over(x)
        if not over.any():
            return x.clamp(*self.box)
        size, room = change.abs(), self.room(self.center, change)
        shrunk = shrink(size, room, torch.where(over, self.radius, torch.zeros_like(self.radius)))
        return self._land(torch.copysign(shrunk, change), over, x)

    def stride(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        # The steepest move takes one or two entries across the whole box. Along the gradient
        # instead, with Euclidean length, and the exact projection makes the change sparse.
        size = distances(g, L2).clamp_min(torch.finfo(g.dtype).tiny)
        return g * self.scaled(length / size)

    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        sign = torch.sign(g)
        room = self.room(x, g) * sign.abs()
        return sign * greedy(g.abs(), room, room, length)

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        weight, room = w.abs(), self.room(x, w)
        spent = greedy(weight, room * weight, room, c)
        return torch.sign(w) * spent

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        return torch.copysign(threshold(change.abs(), share * size), change)

    def dual(self, g: Tensor) -> Tensor:
        return distances(g, Linf)

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        shape = self.center.shape[1:]
        # The direction of a Laplace vector is uniform on the surface in the sense of the cone.
        size = dice.uniform(shape, counter).clamp_min_(2.0**-25).log_().neg_()
        direction = size * dice.of("signs").signs(shape, counter)
        return (direction / self.scaled(distances(direction, L1)).clamp_min(1e-30)).to(self.center)


class L0Ball(Ball):
    """At most `radius` entries change (entries, not pixels: a colour pixel has three)."""

    norm = L0

    def _project(self, x: Tensor) -> Tensor:
        cut = x.clamp(*self.box)
        wanted = x - self.center
        gain = wanted**2 - (x - cut) ** 2
        return torch.where(self._first(gain), cut, self.center)

    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        room = self.room(x, g)
        chosen = self._first(g.abs() * room, length)
        return torch.where(chosen, torch.sign(g) * room, torch.zeros_like(x))

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        weight, room = w.abs(), self.room(x, w)
        gain = weight * room
        return torch.sign(w) * greedy(gain, gain, room, c)

    def dual(self, g: Tensor) -> Tensor:
        # One entry can move across the box: the largest gain of a single change.
        return distances(g, Linf) * (self.box[1] - self.box[0])

    def larger(self, radius: Tensor, share: float) -> Tensor:
        return torch.maximum(torch.floor(radius * (1.0 + share)), radius + 1.0)

    def smaller(self, radius: Tensor, share: float) -> Tensor:
        return torch.minimum(torch.floor(radius * (1.0 - share)), radius - 1.0).clamp_min(0.0)

    def sample(self, dice: Dice, counter: int = 0) -> Tensor:
        return self.shell(dice, counter)

    def shell(self, dice: Dice, counter: int = 0) -> Tensor:
        self._needs_radius("draw a point")
        low, high = self.box
        value = low + (high - low) * self._direction(dice, counter)
        chosen = self._first(dice.of("entries").uniform(self.center.shape[1:], counter))
        return self.snap(torch.where(chosen, value, self.center))

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        return dice.uniform(self.center.shape[1:], counter).to(self.center)

    def _first(self, score: Tensor, count: Tensor | None = None) -> Tensor:
        """The `count` entries of the highest score in each row; ties go to the first entry."""
        count = self.radius if count is None else count
        order = score.flatten(1).argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(order)
        ranks = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank.scatter_(1, order, ranks)
        return (rank < torch.floor(count + TOLERANCE)[:, None]).view_as(score)


BALLS: dict[Norm, type[Ball]] = {ball.norm: ball for ball in (LinfBall, L2Ball, L1Ball, L0Ball)}


def ball(
    norm: Norm,
    center: Tensor,
    radius: Tensor | float,
    box: tuple[float, float] = (0.0, 1.0),
    grid: float | None = None,
) -> Ball:
    """The ball of a norm around some images."""
    if not isinstance(radius, Tensor):
        radius = torch.full((len(center),), float(radius), device=center.device)
    return BALLS[norm](center, radius.double(), box, grid)
