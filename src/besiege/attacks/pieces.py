"""The values that fill the slots of `Ascent`: starts, directions, schedules, radii, places.

Each is small, frozen and without state of its own: what it must remember between steps is a
tuple of tensors with the rows first, which the loop settles together with everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from besiege.attacks.attack import piece
from besiege.core.answer import Answer
from besiege.core.ball import Ball, distances
from besiege.core.dice import Dice
from besiege.core.siege import Siege
from besiege.core.threat import L2
from besiege.core.warp import breadth, resize_pad

Memory = tuple[Tensor, ...]

# start: where the climb begins


class Start:
    """Where the climb begins."""

    def __call__(self, siege: Siege) -> Tensor:
        """The first point of every row."""
        raise NotImplementedError


@piece("origin")
@dataclass(frozen=True)
class Origin(Start):
    """The clean image."""

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.center


@piece("uniform")
@dataclass(frozen=True)
class Uniform(Start):
    """Uniform in the ball (Madry et al. 2018)."""

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.sample(siege.dice.of("start"))


@piece("sphere_start")
@dataclass(frozen=True)
class Sphere(Start):
    """On the surface of the ball."""

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.shell(siege.dice.of("start"))


@piece("signs")
@dataclass(frozen=True)
class Signs(Start):
    """Random signs times a share of the radius (Tramèr et al. 2018)."""

    share: float = 0.5

    def __call__(self, siege: Siege) -> Tensor:
        ball = siege.ball
        signs = siege.dice.of("start").signs(ball.center.shape[1:]).to(ball.center)
        return ball.project(ball.center + signs * ball.scaled(self.share * ball.radius))


@dataclass(frozen=True, eq=False)
class Given(Start):
    """Given points, one per sample of the batch, brought into ball and box."""

    points: Tensor

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.project(self.points[siege.rows].to(siege.ball.center))


# direction: from gradients to a move


class Part:
    """One link of a direction. A link changes what it is about and passes on the rest."""

    remembers: int = 0
    """How many tensors it remembers between steps."""
    copies: int = 1
    """How many copies of a point its gradient is averaged over."""
    steers: bool = False
    """Whether gradients are asked at other points than the iterates."""

    def init(self, x: Tensor) -> Memory:
        """What the link remembers before the first step."""
        return ()

    def ahead(self, x: Tensor, memory: Memory) -> Tensor:
        """The point whose gradient is asked."""
        return x

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        """A differentiable map in front of the victim; `slot` numbers the copies of a point."""
        return image

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The gradient as the next link sees it."""
        return g, memory

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        """The move of the last link, of length `size` in its own sense."""
        raise NotImplementedError(f"{self} cannot end a direction: chain(..., steepest)")

    def moved(self, size: Tensor, memory: Memory) -> Memory:
        """What is remembered of the move just made."""
        return memory


@piece("steepest")
@dataclass(frozen=True)
class Steepest(Part):
    """The move that gains most in the norm of the ball, inside the box."""

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return ball.steepest(g, x, size)


@piece("stride")
@dataclass(frozen=True)
class Stride(Part):
    """One step of many: the steepest move in linf and l2, along the gradient in l1."""

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
    """Equal moves of the entries of the largest gradient that are not at a bound (SLIDE).

    A share of the entries moves, together by `size` in l1 (Tramèr and Boneh 2019).
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
    """A decaying sum of gradients, each scaled to mean size one (Dong et al. 2018)."""

    decay: float = 1.0
    remembers = 1

    def init(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x),)

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        size = g.flatten(1).abs().mean(1).clamp_min(torch.finfo(g.dtype).tiny)
        summed = self.decay * memory[0] + g / size.view(-1, *[1] * (g.dim() - 1))
        return summed, (summed, *memory[1:])


@piece("nesterov")
@dataclass(frozen=True)
class Nesterov(Momentum):
    """Momentum whose gradient is asked one momentum step ahead (Lin et al. 2020)."""

    steers = True
    remembers = 2

    def init(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x), torch.zeros_like(x))

    def ahead(self, x: Tensor, memory: Memory) -> Tensor:
        return x + memory[1]

    def moved(self, size: Tensor, memory: Memory) -> Memory:
        step = (self.decay * size).to(memory[0].dtype).view(-1, *[1] * (memory[0].dim() - 1))
        return (memory[0], step * memory[0])


@piece("scale_copies")
@dataclass(frozen=True)
class ScaleCopies(Part):
    """The mean gradient over copies ``x / 2**i`` (Lin et al. 2020)."""

    count: int = 5
    steers = True

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the number of copies is {self.count}, but it must be 1 or more")

    @property
    def copies(self) -> int:  # type: ignore[override]  # a class attribute elsewhere
        return self.count

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        return image * torch.exp2(-slot.to(image.dtype)).view(-1, *[1] * (image.dim() - 1))


@piece("diverse")
@dataclass(frozen=True)
class Diverse(Part):
    """Random resize and zero padding, drawn anew for every image and step (Xie et al. 2019).

    The image shrinks to between `least` and all of its height and is padded back to its size at a
    random place, with the given probability.
    """

    least: float = 0.9
    probability: float = 0.5
    steers = True

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        smallest = min(height, max(1, math.ceil(self.least * height)))
        dice = dice.counted(slot)
        chance = dice.of("apply").uniform((1,))[:, 0] < self.probability
        drawn = smallest + dice.of("size").integers(height - smallest + 1)
        size = torch.where(chance, drawn, torch.full_like(drawn, height))
        across = breadth(size, height, width)
        top = dice.of("top").integers(height - size + 1)
        left = dice.of("left").integers(width - across + 1)
        return resize_pad(image, size, top, left)


@piece("translation")
@dataclass(frozen=True)
class Translation(Part):
    """Gradients smoothed by a Gaussian kernel: an average over shifted images (Dong et al. 2019).

    A ``size x size`` Gaussian over ``linspace(-reach, reach, size)``, the same for every channel.
    """

    size: int = 15
    reach: float = 3.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise ValueError(f"the kernel size is {self.size}, but it must be odd")

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        line = torch.linspace(-self.reach, self.reach, self.size, device=g.device, dtype=g.dtype)
        line = torch.exp(-0.5 * line**2) if self.size > 1 else torch.ones_like(line)
        line = line / line.sum()
        # Separable, and as sums of shifted images: conv2d rounds a lone image another way than
        # one of many, and is ten times slower on one channel.
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
    """Links one after the other; the last makes the move."""

    links: tuple[Part, ...] = field(default=(), metadata={"each": True})

    def __post_init__(self) -> None:
        if not self.links:
            raise ValueError("a chain needs links: chain(momentum(1.0), steepest)")

    @property
    def remembers(self) -> int:  # type: ignore[override]  # a class attribute elsewhere
        return sum(link.remembers for link in self.links)

    @property
    def copies(self) -> int:  # type: ignore[override]  # a class attribute elsewhere
        return math.prod(link.copies for link in self.links)

    @property
    def steers(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return any(link.steers for link in self.links)

    def _spans(self, memory: Memory) -> list[Memory]:
        """Each link's part of the memory."""
        ends = list(accumulate(link.remembers for link in self.links))
        return [memory[b:e] for b, e in zip([0, *ends], ends, strict=False)]

    def init(self, x: Tensor) -> Memory:
        return tuple(part for link in self.links for part in link.init(x))

    def ahead(self, x: Tensor, memory: Memory) -> Tensor:
        for link, own in zip(self.links, self._spans(memory), strict=True):
            x = link.ahead(x, own)
        return x

    def through(self, image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        for link in self.links:
            image = link.through(image, dice, slot)
        return image

    def turn(self, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        kept: Memory = ()
        for link, own in zip(self.links, self._spans(memory), strict=True):
            g, own = link.turn(g, own)
            kept += own
        return g, kept

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return self.links[-1].move(g, x, ball, size)

    def moved(self, size: Tensor, memory: Memory) -> Memory:
        spans = zip(self.links, self._spans(memory), strict=True)
        return tuple(part for link, own in spans for part in link.moved(size, own))


# schedule: how far to move


class Schedule:
    """How far each step moves, and whether a row returns to its best point."""

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        """The length of the next move, the point it starts from and the answer there."""
        return self.length(step, steps) * ball.radius, x, answer, memory

    def length(self, step: int, steps: int) -> float:
        """The length of a step in radii, where it does not depend on the row."""
        raise NotImplementedError


@piece("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """Every step the same share of the radius."""

    step: float = 0.15

    def length(self, step: int, steps: int) -> float:
        return self.step


@piece("spread")
@dataclass(frozen=True)
class Spread(Schedule):
    """Equal steps that add up to `path` radii."""

    path: float = 2.5

    def length(self, step: int, steps: int) -> float:
        return self.path / steps


@piece("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Steps from `first` radii down to `last` along half a cosine."""

    first: float = 0.5
    last: float = 0.0

    def length(self, step: int, steps: int) -> float:
        share = 0.5 * (1.0 + math.cos(math.pi * step / steps))
        return self.last + (self.first - self.last) * share


# radius: the ball each row moves in


class Radius:
    """The ball of each row while it climbs."""

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        """The ball of the next move."""
        return ball, memory


@piece("fixed")
@dataclass(frozen=True)
class Fixed(Radius):
    """The radius the threat allows."""


# place: how a move lands


class Place:
    """How a move lands."""

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The next point of every row."""
        raise NotImplementedError


@piece("within")
@dataclass(frozen=True)
class Within(Place):
    """At the nearest point of ball and box."""

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return ball.project(x + move), memory
