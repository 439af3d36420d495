"""The set of images an attack may reach: a norm ball around each clean image, cut by the box.

Each norm is a class with exact joint operations on ball and box; attacks call them and never branch
on the norm. Their shared base class is in `besiege.core.region`.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.region import TOLERANCE, Ball, distances
from besiege.core.rowwise import rowwise
from besiege.core.solvers import flood, forward_plane, greedy, shrink, threshold
from besiege.core.threat import L0, L1, L2, Linf, Norm

__all__ = ["TOLERANCE", "Ball", "L0Ball", "L1Ball", "L2Ball", "LinfBall", "ball", "distances"]


class LinfBall(Ball):
    """Every pixel value may change by at most the radius."""

    norm = Linf
    _bounds: tuple[Tensor, Tensor] | None = None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest allowed pixel values, computed once, rounded inward.

        The nearest float32 to ``x + eps`` may lie beyond it by 1e-5 of a small eps.
        """
        if self._bounds is None:
            center, radius = self.center.double(), rowwise(self.radius, self.center)
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

    def closing(self, length: float, share: float) -> Tensor:
        return self.radius * (length * math.sqrt(self.size))

    def drift(self, g: Tensor, length: Tensor) -> Tensor:
        # Dividing by the largest value of `g`, as for other norms, would make the others tiny.
        return self.scaled(length) * g

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        return torch.sign(w).mul_(flood(None, self.room(x, w), w.abs(), c, 1))

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        most = self.scaled(share * size)
        return change.clamp(-most, most)

    def dual(self, g: Tensor) -> Tensor:
        return distances(g, L1)

    def sample(self, dice: Dice, counter: int = 0) -> Tensor:
        return super().shell(dice, counter)  # uniform in the cube already

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        return dice.uniform(self.center.shape[1:], counter).mul_(2.0).sub_(1.0).to(self.center)

    def shell(self, dice: Dice, counter: int = 0) -> Tensor:
        self._needs_radius()
        inner = self._direction(dice, counter)
        outer = inner / self.scaled(distances(inner, Linf).clamp_min(1e-30))
        return self.project(self.center + outer * self.scaled(self.radius))


class L2Ball(Ball):
    """The Euclidean norm of the perturbation is at most the radius."""

    norm = L2

    def _project(self, x: Tensor) -> Tensor:
        over = self._over(x)
        if not over.any():
            return x.clamp(*self.box)
        return self._land(self._fill(x - self.center, self.center, self.radius), over, x)

    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        # Where the box stops some pixel values, the others move further, so that the move has
        # the full length whenever there is room.
        largest = distances(g, Linf).clamp_min(torch.finfo(g.dtype).tiny)
        return self._fill(g / self.scaled(largest), x, length)

    def _fill(self, v: Tensor, x: Tensor, length: Tensor) -> Tensor:
        filled = flood(v.abs(), self.room(x, v), torch.ones_like(v), length**2, 2)
        return torch.copysign(filled, v)

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        weight = w.abs()
        return torch.sign(w).mul_(flood(weight, self.room(x, w), weight, c, 1))

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        # No projection is needed: the box is convex.
        return change * self.scaled(share)

    def dual(self, g: Tensor) -> Tensor:
        return distances(g, L2)

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        direction = dice.normal(self.center.shape[1:], counter).to(self.center)
        return direction / self.scaled(distances(direction, L2).clamp_min(1e-30))


class L1Ball(Ball):
    """The absolute values of the perturbation sum to at most the radius."""

    norm = L1

    def _project(self, x: Tensor) -> Tensor:
        over = self._over(x)
        if not over.any():
            return x.clamp(*self.box)
        change = x - self.center
        amount = torch.where(over, self.radius, torch.zeros_like(self.radius))
        shrunk = shrink(change.abs(), self.room(self.center, change), amount)
        return self._land(torch.copysign(shrunk, change), over, x)

    def stride(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        # The steepest move takes one or two pixel values across the whole box. Move along the
        # gradient with Euclidean length instead; the projection makes the perturbation sparse.
        size = distances(g, L2).clamp_min(torch.finfo(g.dtype).tiny)
        return g * self.scaled(length / size)

    def steepest(self, g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        sign = torch.sign(g)
        room = self.room(x, g) * sign.abs()
        return sign * greedy(g.abs(), room, room, length)

    def plane(self, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        w, c = forward_plane(w, c)
        weight, room = w.abs(), self.room(x, w)
        return torch.sign(w) * greedy(weight, room * weight, room, c)

    def retreat(self, change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        return torch.copysign(threshold(change.abs(), share * size), change)

    def dual(self, g: Tensor) -> Tensor:
        return distances(g, Linf)

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        shape = self.center.shape[1:]
        # A normalised Laplace vector follows the cone measure on the surface of the l1 ball.
        size = dice.uniform(shape, counter).clamp_min_(2.0**-25).log_().neg_()
        direction = size * dice.of("signs").signs(shape, counter)
        return (direction / self.scaled(distances(direction, L1)).clamp_min(1e-30)).to(self.center)


class L0Ball(Ball):
    """At most `radius` pixel values change (a colour pixel has three)."""

    norm = L0

    def _project(self, x: Tensor) -> Tensor:
        cut = x.clamp(*self.box)
        gain = (x - self.center) ** 2 - (x - cut) ** 2
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
        # One pixel value can move across the box: the largest gain of changing one.
        return distances(g, Linf) * self.width

    def larger(self, radius: Tensor, share: float) -> Tensor:
        return torch.maximum(torch.floor(radius * (1.0 + share)), radius + 1.0)

    def smaller(self, radius: Tensor, share: float) -> Tensor:
        return torch.minimum(torch.floor(radius * (1.0 - share)), radius - 1.0).clamp_min(0.0)

    def sample(self, dice: Dice, counter: int = 0) -> Tensor:
        return self.shell(dice, counter)

    def shell(self, dice: Dice, counter: int = 0) -> Tensor:
        self._needs_radius()
        value = self.box[0] + self.width * self._direction(dice, counter)
        chosen = self._first(dice.of("entries").uniform(self.center.shape[1:], counter))
        return self.snap(torch.where(chosen, value, self.center))

    def _direction(self, dice: Dice, counter: int) -> Tensor:
        return dice.uniform(self.center.shape[1:], counter).to(self.center)

    def _first(self, score: Tensor, count: Tensor | None = None) -> Tensor:
        """Which `count` pixel values of each row have the highest scores; ties go to the first."""
        count = self.radius if count is None else count
        order = score.flatten(1).argsort(dim=1, descending=True, stable=True)
        ranks = torch.arange(order.shape[1], device=order.device)
        first = ranks < torch.floor(count + TOLERANCE)[:, None]
        return torch.empty_like(first).scatter_(1, order, first).view_as(score)


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
