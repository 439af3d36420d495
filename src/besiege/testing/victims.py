"""Small victims on which the laws are tried.

A linear victim's smallest perturbations are known in closed form, a counting victim counts the
images it is sent, an altered one transforms its logits, and the natural digits net was trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.oracle import Access
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Linf, Norm
from besiege.core.victim import Victim
from besiege.data import Data
from besiege.data import load as load_data
from besiege.models.classifier import Classifier
from besiege.models.sources import load

Array = NDArray[np.float64]
Shape = tuple[int, int, int]
_ORDER = {Linf: np.inf, L2: 2, L1: 1, L0: 0}


class Linear(Classifier):
    """``z = W x + b`` on images of one shape; every smallest perturbation is known.

    Parameters
    ----------
    shape : tuple of int
        Channels, height, width.
    classes, seed : int
        Of the layer; the same seed gives the same victim.
    """

    def __init__(self, shape: Shape = (1, 5, 5), classes: int = 5, seed: int = 0) -> None:
        entries = prod(shape)
        # nn.Linear, not x @ W: a bare product's rounding depends on the number of rows.
        # Its initial weights come from the global generator, which belongs to the caller.
        with torch.random.fork_rng(devices=[]):
            layer = nn.Linear(entries, classes)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(classes, entries, generator=generator))
            # Centred, so that the middle of the box is near every boundary.
            layer.bias.copy_(-0.5 * layer.weight.sum(1))
        super().__init__(nn.Sequential(nn.Flatten(), layer), classes=classes, name="linear")
        self.shape = shape
        self.weight = layer.weight.detach().double().numpy()
        self.bias = layer.bias.detach().double().numpy()

    def samples(self, rows: int, seed: int = 0) -> Samples:
        """Images labelled with the victim's predictions, as `images_of` draws them."""
        images = images_of(self.shape, rows, seed)
        return Samples.of(images, self(images).argmax(1))

    def nearest(self, norm: Norm, images: Tensor, labels: Tensor) -> Array:
        """The smallest perturbation of each image that reaches a boundary inside the box.

        Any error counts, so that the adversarial set is a union of half-spaces, and the result is
        the smallest over one problem per wrong class: ``min |d|`` with
        ``<w_t - w_y, d> = z_y - z_t``. Solved in float64 by a greedy choice (l1, l0) or bisection
        (l2, linf), independently of `Ball`.

        Returns
        -------
        ndarray
            ``[rows, pixel values]``; not finite where the box contains no error.
        """
        x = images.double().flatten(1).numpy()
        y = labels.numpy()
        logits = x @ self.weight.T + self.bias
        best = np.full(x.shape, np.inf)
        for target in range(len(self.bias)):
            w = self.weight[target] - self.weight[y]
            gap = logits[np.arange(len(y)), y] - logits[:, target]
            room = np.where(w > 0, 1.0 - x, x)
            change = np.sign(w) * _toward_plane(norm, np.abs(w), room, gap)
            reachable = (np.abs(w) * room).sum(1) >= gap
            closer = size(norm, change) < size(norm, best)
            better = (y != target) & reachable & closer
            best[better] = change[better]
        return best

    def distance(self, norm: Norm, images: Tensor, labels: Tensor) -> Array:
        """The distance of each image to the nearest error inside the box."""
        return size(norm, self.nearest(norm, images, labels))

    def equidistant(self, norm: Norm, rows: int = 16, seed: int = 0) -> tuple[Samples, Array]:
        """Samples that all have the same distance to the nearest error, and this distance.

        The farthest of four times as many samples are moved towards their errors, to the distance
        of the nearest of them. Along the smallest perturbation d, after a share s of the way, the
        distance is ``(1 - s) |d|`` by the triangle inequality. In l0 none is moved, and the
        largest distance that at least four samples reach is chosen.
        """
        samples = self.samples(4 * rows, seed)
        change = self.nearest(norm, samples.images, samples.labels)
        away = size(norm, change)
        if norm is L0:
            common = np.sort(away)[-4]
            samples = samples.at(torch.from_numpy(np.flatnonzero(away == common)[:rows]))
        else:
            far = np.argsort(-away, kind="stable")[:rows]
            gone = (1.0 - away[far].min() / away[far])[:, None] * change[far]
            samples = samples.at(torch.from_numpy(far))
            moved = samples.images.double().flatten(1).numpy() + gone
            images = torch.from_numpy(moved).float().clamp(*self.box).view_as(samples.images)
            samples = Samples(images, samples.labels, samples.ids)
        return samples, self.distance(norm, samples.images, samples.labels)


def linear(shape: Shape = (1, 5, 5), classes: int = 5, seed: int = 0) -> Linear:
    """A linear victim whose smallest perturbations are known."""
    return Linear(shape, classes, seed)


def size(norm: Norm, change: Array) -> Array:
    """The norm of each row of perturbations, in numpy and float64."""
    sizes: Array = np.linalg.norm(change, _ORDER[norm], axis=1)
    return sizes


def _toward_plane(norm: Norm, weight: Array, room: Array, gap: Array) -> Array:
    """The smallest moves within the rooms, without signs, that gain the gap in every row."""
    if norm in (L1, L0):
        # Pixel values in order of gain per cost: l0 pays per value changed, l1 per unit.
        order = np.argsort(-(weight if norm is L1 else weight * room), axis=1, kind="stable")
        gain = np.take_along_axis(weight * room, order, 1)
        before = np.cumsum(gain, axis=1) - gain
        share = np.clip((gap[:, None] - before) / np.maximum(gain, 1e-300), 0.0, 1.0)
        sorted_room = np.take_along_axis(room, order, 1)
        spent = np.empty_like(room)
        np.put_along_axis(spent, order, np.where(gain > 0, share * sorted_room, 0.0), 1)
        return spent
    speed = weight if norm is L2 else np.where(weight > 0, 1.0, 0.0)
    low, high = np.zeros(len(gap)), np.full(len(gap), 1e6)
    for _ in range(120):
        middle = 0.5 * (low + high)
        enough = (weight * np.minimum(middle[:, None] * speed, room)).sum(1) >= gap
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    moved: Array = np.minimum(high[:, None] * speed, room)
    return moved


class Counting(Victim):
    """A victim that counts the images it is sent and the gradients it gives.

    An image does not show from which sample it was made: for accounts per sample, attack one
    sample at a time.

    Attributes
    ----------
    forwards, backwards : int
        Images it answered, and images a gradient went back to.
    vanished : bool
        Whether one of those gradients was exactly zero.
    """

    def __init__(
        self, victim: Victim, access: Access = Access.GRADIENT, metered: bool = False
    ) -> None:
        self.victim = self.adopt(victim)
        self.access = min(access, victim.access)
        self.metered = metered
        self.levels, self.cells = victim.levels, victim.cells  # what it is sent goes on as it is
        self.forwards = self.backwards = 0
        self.vanished = False

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of images, counted."""
        self.forwards += len(x)
        if x.requires_grad:
            x = x.view_as(x)  # a hook on the attack's own tensor would outlive the call
            x.register_hook(self._back)  # type: ignore[no-untyped-call]  # torch declares no types here
        return self.victim(x, dice)

    def digest(self) -> str:
        """The digest of the victim: counting changes no answer."""
        return self.victim.digest()

    def _back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        self.vanished |= bool((gradient.flatten(1).abs().amax(1) == 0).any())


class Altered(Victim):
    """A victim whose logits are transformed."""

    def __init__(self, victim: Victim, change: Callable[[Tensor], Tensor]) -> None:
        self.victim = self.adopt(victim)
        self.levels, self.cells = victim.levels, victim.cells
        self.change = change

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Transformed logits."""
        return self.change(self.victim(x, dice))


class Boxed(Victim):
    """The same victim with another box, whose images are mapped to the victim's box (0, 1).

    Attributes
    ----------
    sent : list of Tensor
        The images of the first `keeps` calls, in the box (0, 1).
    """

    def __init__(self, victim: Victim, low: float, width: float, keeps: int = 0) -> None:
        self.victim = self.adopt(victim)
        self.box = (low, low + width)
        self.keeps = keeps
        self.sent = list[Tensor]()

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of images."""
        low, high = self.box
        x = (x - low) / (high - low)
        if len(self.sent) < self.keeps:
            self.sent.append(x.detach())
        return self.victim(x, dice)


class Likeness(Victim):
    """A substitute: the sum of a victim's logits and those of an untrained net.

    Wrappers that count or alter the victim's answers are left out: they must not be queried.
    """

    def __init__(self, victim: Victim, shape: Shape) -> None:
        while isinstance(victim, (Counting, Altered)):
            victim = victim.victim
        self.victim = self.adopt(victim)
        assert victim.classes is not None
        self.stranger = untrained(shape, victim.classes, seed=1)

    @property
    def parts(self) -> tuple[Victim, ...]:
        """The victim and the untrained net."""
        return self.victim, self.stranger

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of images."""
        low, high = self.box
        return self.victim(x, dice) + self.stranger((x - low) / (high - low))


def scaled(victim: Victim, factor: float) -> Altered:
    """The same victim with its logits times a factor."""
    return Altered(victim, lambda logits: logits * factor)


class Failure(Exception):
    """What a `Failing` module raises."""


class Failing(nn.Module):
    """A module that raises in its n-th call."""

    def __init__(self, module: nn.Module, call: int) -> None:
        super().__init__()
        self.module = module
        self.left = call

    def forward(self, x: Tensor) -> Tensor:
        """Logits, until the call that fails."""
        self.left -= 1
        if self.left == 0:
            raise Failure("this module fails on purpose")
        logits: Tensor = self.module(x)
        return logits


def images_of(shape: Shape, rows: int, seed: int = 0) -> Tensor:
    """Uniform images, a sixth of whose pixels are exactly 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, *shape, generator=generator) * 1.2 - 0.1).clamp(0.0, 1.0)


def module_of(shape: Shape, classes: int, seed: int = 0, width: int = 16) -> nn.Module:
    """An untrained convolutional net with every kind of state: batch norm, dropout, buffers."""
    channels = shape[0]
    # Layers draw their initial weights from the global generator, which belongs to the caller.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(width * shape[1] * shape[2], classes),
        )
        norm = net[1]
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.uniform_(-0.1, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
    return net.eval()


@cache
def untrained(shape: Shape, classes: int, seed: int = 0) -> Classifier:
    """An untrained victim for any image shape and number of classes."""
    return Classifier(module_of(shape, classes, seed), classes=classes, name="untrained")


@cache
def digits(rows: int) -> Samples:
    """Digits of the test split that the natural net classifies correctly, and two others."""
    data: Data = load_data("digits")
    with torch.no_grad():
        right = natural()(data.images).argmax(1) == data.labels
    good, bad = right.nonzero()[:, 0], (~right).nonzero()[:2, 0]
    chosen = torch.cat([good[: rows - len(bad)], bad]).sort().values
    return Samples.of(data.images[chosen], data.labels[chosen], ids=data.ids[chosen])


@cache
def natural() -> Classifier:
    """The zoo's net that was trained naturally on digits."""
    return load("zoo:digits-natural")
