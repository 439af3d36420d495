"""The base class of all balls: centre, radius, box and grid, and projection onto them.

The balls of each norm are in `besiege.core.ball`, which attacks import.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import ThreatError
from besiege.core.rowwise import pick, rowwise
from besiege.core.solvers import never_alone
from besiege.core.threat import L0, Linf, Norm

TOLERANCE = 1e-6
"""By which share a distance may exceed its budget: what float32 arithmetic needs."""


def distances(change: Tensor, norm: Norm) -> Tensor:
    """The norm of each row's perturbation, float64 ``[rows]``: float32 values summed in float64."""
    flat = change.flatten(1)
    if norm is Linf:
        # A maximum needs no float64, and vector_norm takes fifteen times as long for it.
        return flat.abs().amax(1).double()
    size: Tensor = torch.linalg.vector_norm(
        never_alone(flat), norm.order, dim=1, dtype=torch.float64
    )
    return size[: len(flat)]


class Ball(ABC):
    """Centre, per-row radius, box and grid, and every operation that depends on the norm.

    Parameters
    ----------
    center : Tensor
        The clean images, ``[rows, ...]``, inside the box.
    radius : Tensor
        float64 ``[rows]``; infinite when only the box limits the perturbation.
    box : tuple of float
        Lowest and highest pixel value.
    grid : float, optional
        Step between the pixel values the victim can receive, such as 1/255.
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

    # Defined by each norm, on images [rows, ...] and without a grid.

    @abstractmethod
    def _project(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        """The move from `x` of at most `length` that gains most along `g` inside the box."""

    def stride(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        """The move of one step of many, to be projected: the steepest one by default.

        A norm whose steepest move leaves the region where the gradient is valid has another one.
        """
        return self.steepest(g, x, length)

    def drift(self, g: Tensor, length: Tensor) -> Tensor:
        """A move of this length along `g`, whose values are about one, regardless of the box."""
        size = distances(g, self.norm).clamp_min(torch.finfo(g.dtype).tiny)
        return g * self.scaled(length / size)

    @abstractmethod
    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        """The smallest move d from `x` inside the box with ``<w, d> = c``.

        Where the box does not reach the plane, the move to the corner nearest to it.
        """

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        """The nearest perturbation to `change`, whose norm is `size`, of norm ``share * size``."""
        return self.of(share * size).confine(self.center + change) - self.center

    @abstractmethod
    def dual(self, g: Tensor) -> Tensor:
        """The dual norm of each row, float64: what a linear loss gains per unit of perturbation."""

    @abstractmethod
    def _direction(self, dice: Dice, counter: int) -> Tensor:
        """A random direction of length one in this norm."""

    # Shared by all norms.

    def __len__(self) -> int:
        return len(self.center)

    @property
    def size(self) -> int:
        """Number of pixel values of one image."""
        return math.prod(self.center.shape[1:])

    @property
    def width(self) -> float:
        """The width of the box: the unit of lengths that are not shares of a radius."""
        return self.box[1] - self.box[0]

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
        drawn = dice.of("length").uniform((1,), counter)[:, 0].double()
        # exp(log), not a power: torch rounds powers of the last rows differently from the others.
        share = torch.exp(torch.log(drawn) / self.size)
        return self._out(dice, counter, share)

    def shell(self, dice: Dice, counter: int = 0) -> Tensor:
        """A point on the surface of the ball, then brought into the box."""
        return self._out(dice, counter, torch.ones_like(self.radius))

    def distance(self, x: Tensor) -> Tensor:
        """The norm of each row's perturbation as the victim receives it, float64."""
        if x.dim() > self.center.dim():
            return self._each(x.shape[1]).distance(x.flatten(0, 1)).view(x.shape[:2])
        if self.grid is None:
            return distances(x - self.center, self.norm)
        return self._length(self._steps(x) - self._steps(self.center))

    def boxed(self, x: Tensor) -> Tensor:
        """Which images are finite, in the box and on the grid if there is one."""
        flat = x.flatten(x.dim() - self.center.dim() + 1)
        # Minimum and maximum are NaN where a pixel value is, and comparisons with NaN are false.
        boxed = (flat.amin(-1) >= self.box[0]) & (flat.amax(-1) <= self.box[1])
        if self.grid is not None:  # the victim cannot receive values between grid points
            off = (x - self.snap(x)).abs().flatten(x.dim() - self.center.dim() + 1)
            boxed &= off.amax(-1) <= 1e-3 * self.grid
        return boxed

    def inside(self, x: Tensor) -> Tensor:
        """Which images are finite, in the box and within their row's radius."""
        distance = self.distance(x)
        limit = rowwise(self.radius * (1.0 + TOLERANCE), distance)
        return self.boxed(x) & (distance <= limit)

    def snap(self, x: Tensor) -> Tensor:
        """The nearest images the victim can receive."""
        return x if self.grid is None else self._values(self._steps(x)).to(x.dtype)

    def received(self, x: Tensor) -> Tensor:
        """Images on the grid: rounded, towards the centre where nearest would leave the ball."""
        if self.grid is None:
            return x
        if bool((self.radius == torch.inf).all()):
            return self.snap(x)  # rounding cannot leave an infinite ball
        if x.dim() > self.center.dim():
            return self._each(x.shape[1]).received(x.flatten(0, 1)).view_as(x)
        start, near = self._steps(self.center), self._steps(x)
        exact = (x.double() - self.box[0]) / self.grid
        short = torch.where(exact >= start, torch.floor(exact + 1e-6), torch.ceil(exact - 1e-6))
        outside = self._length(near - start) > self.radius * (1.0 + TOLERANCE)
        return self._values(pick(outside, short, near)).to(x.dtype)

    def scaled(self, rows: Tensor) -> Tensor:
        """Per-row numbers shaped to multiply images, clamped to the range of the images' type.

        Dividing by the norm of a vanishing gradient overflows, and infinity times zero is NaN.
        """
        most = torch.finfo(self.center.dtype).max
        return rowwise(rows.to(self.center.dtype).clamp(-most, most), self.center)

    def room(self, x: Tensor, toward: Tensor) -> Tensor:
        """How far each pixel value of `x` can move in the direction of `toward` inside the box."""
        low, high = self.box
        # lerp is exact for weights 0 and 1 and, unlike where, does not branch on every value.
        up = torch.gt(toward, 0.0, out=torch.empty_like(toward))
        return torch.lerp(x - low, high - x, up).clamp_min_(0.0)

    def closing(self, length: float, share: float) -> Tensor:
        """A step length for attacks that shrink the radius: ``length * share`` of the box's width.

        In linf, `length` is in units of the distance to a corner of the ball instead.
        """
        return torch.full_like(self.radius, length * (share * self.width))

    def larger(self, radius: Tensor, share: float) -> Tensor:
        """A radius a share larger."""
        return radius * (1.0 + share)

    def smaller(self, radius: Tensor, share: float) -> Tensor:
        """A radius a share smaller."""
        return radius * (1.0 - share)

    def _each(self, k: int) -> Self:
        return self.at(torch.arange(len(self), device=self.center.device).repeat_interleave(k))

    def _steps(self, x: Tensor) -> Tensor:
        """How many grid steps above the box's low end each pixel value is."""
        assert self.grid is not None
        return torch.round((x.double() - self.box[0]) / self.grid)

    def _values(self, steps: Tensor) -> Tensor:
        """Pixel values so many steps above the low end, exactly as the victim has them."""
        assert self.grid is not None
        return steps / round(self.width / self.grid) * self.width + self.box[0]

    def _length(self, steps: Tensor) -> Tensor:
        """The norm of a perturbation given in grid steps."""
        assert self.grid is not None
        return distances(steps, self.norm) * (1.0 if self.norm is L0 else self.grid)

    def _needs_radius(self) -> None:
        if not torch.isfinite(self.radius).all():
            raise ThreatError(
                "cannot draw a point in a ball without a radius: give the threat a budget, for "
                f"example '{self.norm}:{'20' if self.norm is L0 else '0.5'}', or use minimal(...)"
            )

    def _out(self, dice: Dice, counter: int, share: Tensor) -> Tensor:
        """The point in a random direction at a share of the radius, brought into the box."""
        self._needs_radius()
        move = self._direction(dice, counter) * self.scaled(self.radius * share)
        return self.project(self.center + move)

    def _over(self, x: Tensor) -> Tensor:
        """Which rows lie outside the ball once clamped to the box; a projected point never does."""
        limit = self.radius * (1.0 + TOLERANCE / 2)
        return distances(x.clamp(*self.box) - self.center, self.norm) > limit

    def _land(self, change: Tensor, over: Tensor, x: Tensor) -> Tensor:
        """Rows of `x` clamped to the box or, where `over`, centre + change, inside in float32.

        Rounding centre + change to float32 can push a row out again by a few units in the last
        place: such rows are measured and shrunk, and in the last round rounded towards the centre.
        """
        limit = self.radius * (1.0 + TOLERANCE / 2)
        landed = (self.center + change).clamp_(*self.box)
        for last in (False, False, True):
            distance = distances(landed - self.center, self.norm)
            outside = over & (distance > limit)
            if not outside.any():
                break
            change = pick(outside, change * self.scaled(self.radius / distance), change)
            landed = (self.center + change).clamp_(*self.box)
            if last:
                longer = (landed - self.center).abs() > change.abs()
                beyond = rowwise(outside, longer) & longer
                landed = torch.where(beyond, torch.nextafter(landed, self.center), landed)
        return pick(over, landed, x.clamp(*self.box))
