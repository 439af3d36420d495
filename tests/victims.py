"""Victims with a quirk each, for the tests of core and attacks.

Linear and counting ones are public: `besiege.testing.victims`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from besiege.attacks.attack import Attack
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.knowledge import Knowledge
from besiege.core.oracle import Oracle
from besiege.core.record import Keep, Leave, Record
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.terms import Terms
from besiege.core.threat import Access, Linf, Norm, Threat
from besiege.core.victim import Victim
from besiege.evaluation import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, images_of


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Uniforms in [0, 1) from a stream of their own."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normals from a stream of their own."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=dtype)


def affine(weight: Tensor, bias: Tensor) -> Classifier:
    """``z = W x + b`` with the weights given, ``[classes, entries]``."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return Classifier(nn.Sequential(nn.Flatten(), layer), classes=len(bias), name="affine")


class Curve(nn.Module):
    """Two classes of one pixel each: ``z = (0, height(pixel))``, wrong where the height is > 0."""

    def __init__(self, *knots: tuple[float, float]) -> None:
        super().__init__()
        places, heights = zip(*knots, strict=True)
        self.places: Tensor
        self.heights: Tensor
        self.register_buffer("places", torch.tensor(places))
        self.register_buffer("heights", torch.tensor(heights))

    def forward(self, x: Tensor) -> Tensor:
        """Straight lines between the knots, differentiable inside each piece."""
        pixel = x.flatten(1)[:, 0].contiguous()
        right = torch.searchsorted(self.places, pixel.detach(), right=True)
        right = right.clamp(1, len(self.places) - 1)
        a, b = self.places[right - 1], self.places[right]
        f, g = self.heights[right - 1], self.heights[right]
        height = f + (g - f) * (pixel - a) / (b - a)
        return torch.stack([torch.zeros_like(height), height], 1)


class Noisy(Victim):
    """Adds a random shift to every image before the victim sees it, from the dice it is given."""

    def __init__(self, victim: Classifier, size: float = 0.1) -> None:
        self.victim = self.adopt(victim)
        self.stochastic = True
        self.size = size
        self.shifts: list[Tensor] = []

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of the shifted images."""
        assert dice is not None and len(dice) == len(x)
        shift = dice.normal(tuple(x.shape[1:]))
        self.shifts.append(shift)
        return self.victim(x + self.size * shift)


class Spy(Victim):
    """Remembers how many images each call brought and, on demand, the images."""

    def __init__(self, victim: Classifier, access: Access = Access.GRADIENT) -> None:
        self.victim = self.adopt(victim)
        self.access = access
        self.calls: list[int] = []
        self.images: list[Tensor] = []

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits, noted."""
        self.calls.append(len(x))
        self.images.append(x.detach().clone())
        return self.victim(x, dice)

    def owned_by(self, centers: Tensor) -> Tensor:
        """How many images were nearest to each of some centres that are far apart."""
        seen = torch.cat(self.images).flatten(1)
        owner = torch.cdist(seen, centers.flatten(1)).argmin(1)
        return torch.bincount(owner, minlength=len(centers))


def points(
    attack: Attack,
    victim: Classifier,
    samples: Samples,
    threat: str,
    pad: bool = False,
    seed: int = 0,
) -> tuple[list[Tensor], Crafted]:
    """The images the victim was shown after the clean check, request by request."""
    spy = Spy(victim)
    crafted = craft(
        spy,
        attack,
        samples,
        Threat.parse(threat),
        keep="last",
        leave="end",
        pad=pad,
        batch=10**6,
        seed=seed,
    )
    return spy.images[1:], crafted


def siege(
    victim: Victim,
    images: Tensor,
    labels: Tensor,
    radius: float = 0.1,
    norm: Norm = Linf,
    *,
    access: Access = Access.GRADIENT,
    keep: Keep = "first",
    leave: Leave = "success",
    queries: int | None = None,
    targets: Tensor | None = None,
    pad: bool = False,
    seed: int = 0,
    survey: bool = False,
    starts: Samples | None = None,
    watch: Callable[[Record], None] | None = None,
) -> Siege:
    """A siege as craft lays it; without the clean check unless asked."""
    laid = Siege.start(
        Oracle(victim, access, pad=pad),
        ball(norm, images, radius, victim.box, victim.grid),
        labels,
        Dice.throw(seed, torch.arange(len(images))),
        Terms(keep, leave, queries, watch=watch, knowledge=Knowledge(starts)),
        targets=targets,
    )
    if survey:
        laid.survey()
        laid.settle()
    return laid


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many torch threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def saturated(victim: Linear, rows: int, share: float, seed: int = 0) -> Samples:
    """Images labelled as the victim sees them, a share of whose pixels are exactly 0 or 1."""
    images = 0.05 + 0.9 * images_of(victim.shape, rows, seed)
    draw = torch.rand(images.shape, generator=torch.Generator().manual_seed(seed + 1))
    images = torch.where(draw < share, images.round(), images)
    return Samples.of(images, victim(images).argmax(1))


def smallest(victim: Any, attack: Attack, samples: Samples, norm: Norm, **more: Any) -> Crafted:
    return craft(victim, attack, samples, Threat(norm, None), **more)
