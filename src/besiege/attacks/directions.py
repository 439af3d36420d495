"""Directions of `Ascent`: from gradients to a step, as links of a chain."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from besiege.attacks.attack import piece
from besiege.core.ball import Ball, distances
from besiege.core.dice import Dice
from besiege.core.fields import check_fields, checked, number, whole_number, yes_or_no
from besiege.core.resizing import random_resize_pad
from besiege.core.rowwise import rowwise
from besiege.core.threat import L2

Memory = tuple[Any, ...]


class Part:
    """One link of a direction. A link changes what it is about and passes on the rest."""

    __post_init__ = check_fields

    copies: int = 1
    """How many copies of a point its gradient is averaged over."""
    steers: bool = False
    """Whether gradients are asked at other points than the iterates."""
    leaves_box: bool = False
    """Whether those points may lie outside the box."""

    @property
    def moves(self) -> bool:
        """Whether it can make the move, and not only turn the gradient."""
        return type(self).move is not Part.move

    def init(self, x: Tensor) -> Memory:
        """What the link remembers before the first step."""
        return ()

    def ahead(self, x: Tensor, memory: Memory) -> Tensor:
        """The point whose gradient is asked."""
        return x

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        """A differentiable map in front of the victim, for images whose black is zero.

        `slot` numbers the copies of a point.
        """
        return image

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The gradient as the next link sees it."""
        return g, memory

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        """The move of the last link, of length `size` in its own sense."""
        raise NotImplementedError(f"{self} cannot end a direction: chain(..., steepest)")

    def moved(self, size: Tensor, memory: Memory, ball: Ball) -> Memory:
        """What is remembered of the move just made in a ball."""
        return memory


@piece("steepest")
@dataclass(frozen=True)
class Steepest(Part):
    """The step of largest first-order gain in the norm of the ball, inside the box."""

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return ball.steepest(g, x, size)


@piece("stride")
@dataclass(frozen=True)
class Stride(Part):
    """One step of many: the steepest step in linf and l2, along the gradient in l1."""

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return ball.stride(g, x, size)


@piece("unit")
@dataclass(frozen=True)
class Unit(Part):
    """Along the gradient, with Euclidean length `size` whatever the norm."""

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        length = distances(g, L2).clamp_min(torch.finfo(g.dtype).tiny)
        return g * ball.scaled(size / length)


@piece("top")
@dataclass(frozen=True)
class Top(Part):
    """Equal steps in the coordinates of largest gradient that are not at a bound (SLIDE).

    A fraction of the coordinates moves, together by `size` in l1 (Tramèr and Boneh 2019).
    """

    share: float = 0.01

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        useful = torch.where(ball.room(x, g) > 0, g, torch.zeros_like(g))
        count = max(1, round(self.share * ball.size))
        least = useful.flatten(1).abs().topk(count, dim=1).values[:, -1]
        chosen = (useful.abs() >= ball.scaled(least)) & (useful != 0)
        many = chosen.flatten(1).sum(1).clamp_min(1)
        return torch.sign(useful) * chosen * ball.scaled(size / many)


@piece("momentum")
@dataclass(frozen=True)
class Momentum(Part):
    """A decaying sum of gradients, each scaled to mean absolute value one (Dong et al. 2018)."""

    decay: float = 1.0

    def init(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x),)

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        size = g.flatten(1).abs().mean(1).clamp_min(torch.finfo(g.dtype).tiny)
        summed = self.decay * memory[0] + g / rowwise(size, g)
        return summed, (summed, *memory[1:])


@piece("adam")
@dataclass(frozen=True)
class Adam(Part):
    """Steps of Adam, with decays 0.9 and 0.999 (Kingma and Ba 2015).

    In linf a pixel value whose gradient keeps its sign moves by the whole step, and one whose
    gradient alternates moves less: unlike signs, such steps end between two losses that compete. In
    other norms the step is scaled to its length.
    """

    def init(self, x: Tensor) -> Memory:
        # In float64: squares of small gradients are zero in float32.
        still = torch.zeros_like(x, dtype=torch.float64)
        return still, still, still.new_zeros(len(x))

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        first, second, count = memory
        count = count + 1
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g.double().square()
        along, size = (
            part / rowwise(1 - decay**count, g) for part, decay in ((first, 0.9), (second, 0.999))
        )
        return (along / size.sqrt().clamp_min(1e-150)).to(g), (first, second, count)

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return ball.drift(g, size)


@piece("nesterov")
@dataclass(frozen=True)
class Nesterov(Momentum):
    """Momentum with the gradient at one momentum step ahead, inside the box (Lin et al. 2020).

    In linf as published: ``x + decay * size * m``, where m is the sum of gradients of mean
    absolute value one, whose components are about as large as those of a step. In other norms m is
    scaled to the length of a step: otherwise it would be ``sqrt(d)`` times too long in l2.

    Parameters
    ----------
    decay : float
        Weight of the sum so far.
    boxed : bool
        False asks at the point ahead even outside the box, as published.
    """

    boxed: bool = yes_or_no(True, added=True)
    steers = True

    @property
    def leaves_box(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return not self.boxed

    def init(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x), torch.zeros_like(x))

    def ahead(self, x: Tensor, memory: Memory) -> Tensor:
        step: Tensor = memory[1]
        return x + step

    def moved(self, size: Tensor, memory: Memory, ball: Ball) -> Memory:
        return (memory[0], ball.drift(memory[0], self.decay * size))


@piece("scale_copies")
@dataclass(frozen=True)
class ScaleCopies(Part):
    """The mean gradient over copies ``x / 2**i`` (Lin et al. 2020)."""

    count: int = whole_number(5)
    steers = True

    @property
    def copies(self) -> int:  # type: ignore[override]  # a class attribute elsewhere
        return self.count

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        return image * rowwise(torch.exp2(-slot.to(image.dtype)), image)


@piece("diverse")
@dataclass(frozen=True)
class Diverse(Part):
    """Random resizing and zero padding, drawn for every image and step (Xie et al. 2019).

    With the given probability the image shrinks to between `least` and all of its height and is
    padded back to its size at a random position.
    """

    least: float = number(0.9, above=0, most=1)
    probability: float = number(0.5, most=1)
    steers = True

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        return random_resize_pad(image, dice.counted(slot), self.least, self.probability)


@piece("translation")
@dataclass(frozen=True)
class Translation(Part):
    """Gradients smoothed by a Gaussian kernel, an average over shifts (Dong et al. 2019).

    A ``size x size`` Gaussian over ``linspace(-reach, reach, size)``, the same for every channel.
    """

    size: int = checked(15, lambda size: size > 0 and size % 2 == 1, "but it must be odd")
    reach: float = 3.0

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        line = torch.linspace(-self.reach, self.reach, self.size, device=g.device, dtype=g.dtype)
        line = torch.exp(-0.5 * line**2) if self.size > 1 else torch.ones_like(line)
        line = line / line.sum()
        # Separable, as sums of shifted images: the rounding of conv2d depends on the batch size,
        # and it is ten times slower on one channel.
        for dim in (-2, -1):
            length, smooth = g.shape[dim], torch.zeros_like(g)
            for shift, weight in enumerate(line.tolist(), -(self.size // 2)):
                first, count = max(0, -shift), length - abs(shift)
                if count > 0:
                    moved = g.narrow(dim, first + shift, count)
                    smooth.narrow(dim, first, count).add_(moved, alpha=weight)
            g = smooth
        return g, memory


@piece("chain")
@dataclass(frozen=True)
class Chain(Part):
    """Links applied one after the other; the last one makes the step."""

    links: tuple[Part, ...] = field(default=(), metadata={"each": True})

    def __post_init__(self) -> None:
        if not self.links or not all(isinstance(link, Part) for link in self.links):
            raise ValueError("a chain needs links: chain(momentum(1.0), steepest)")

    @property
    def moves(self) -> bool:
        return self.links[-1].moves

    @property
    def copies(self) -> int:  # type: ignore[override]  # a class attribute elsewhere
        return math.prod(link.copies for link in self.links)

    @property
    def steers(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return any(link.steers for link in self.links)

    @property
    def leaves_box(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return any(link.leaves_box for link in self.links)

    def init(self, x: Tensor) -> Memory:
        return tuple(link.init(x) for link in self.links)

    def ahead(self, x: Tensor, memory: Memory) -> Tensor:
        for link, own in zip(self.links, memory, strict=True):
            x = link.ahead(x, own)
        return x

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        for link in self.links:
            image = link.through(image, dice, slot)
        return image

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        kept = []
        for link, own in zip(self.links, memory, strict=True):
            g, own = link.turn(g, own)
            kept.append(own)
        return g, tuple(kept)

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return self.links[-1].move(g, x, ball, size)

    def moved(self, size: Tensor, memory: Memory, ball: Ball) -> Memory:
        each = zip(self.links, memory, strict=True)
        return tuple(link.moved(size, own, ball) for link, own in each)
