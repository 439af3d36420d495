"""The account of what a victim is asked: each image once, its label kept, up to a budget."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.oracle import Oracle, full_precision
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.data.dataset import Data


class Account:
    """The one account of all that is asked: the points and their labels, none asked about twice.

    Parameters
    ----------
    victim : Victim
        What is asked, for labels alone.
    seed : int
        Of the chances of a victim that answers by chance.
    budget : int, optional
        The most images it may be asked about.

    Attributes
    ----------
    images, labels : Tensor
        The points, in the order in which they were labelled.
    checks : (Tensor, Tensor), optional
        Images that are not trained on, and their labels.
    served : int
        Images asked about so far, both kinds together.
    """

    def __init__(self, victim: Victim, seed: int, budget: int | None) -> None:
        self.victim, self.seed, self.budget = victim, seed, budget
        # Without padding: what is served is what is charged.
        self.oracle = Oracle(victim, Access.DECISION, pad=False)
        self.served = 0
        self.images, self.labels = torch.empty(0), torch.empty(0, dtype=torch.int64)
        self.checks: tuple[Tensor, Tensor] | None = None
        self._known: set[bytes] = set()

    @property
    def classes(self) -> int:
        """How many classes the victim has, as it says or as its answers show."""
        assert self.oracle.classes is not None  # known from the first answer on
        return self.oracle.classes

    @property
    def missing(self) -> tuple[int, ...]:
        """Classes that no point has."""
        seen = set(self.labels.tolist())
        return tuple(label for label in range(self.classes) if label not in seen)

    def check(self, images: Tensor) -> None:
        """Have images labelled that are not trained on; what is a point already is left out."""
        fresh = images[self._fresh(images)]
        if len(fresh):
            self.checks = fresh, self._labels(fresh)

    def add(self, images: Tensor) -> int:
        """Have new points labelled, as many as can be paid for; how many they were."""
        fresh = images[self._fresh(images)]
        if self.budget is not None:
            fresh = fresh[: self.budget - self.served]
        if len(fresh):
            labels = self._labels(fresh)
            self.images = torch.cat([self.images, fresh]) if len(self.labels) else fresh
            self.labels = torch.cat([self.labels, labels])
        return len(fresh)

    def data(self) -> Data:
        """The points as data to train on."""
        return labelled("points", self.images, self.labels, self.classes)

    def _fresh(self, images: Tensor) -> list[int]:
        """The rows of images that were never met, and are known from now on."""
        rows = []
        for row, image in enumerate(images.numpy()):
            key = blake2b(image.tobytes(), digest_size=16).digest()
            if key not in self._known:
                self._known.add(key)
                rows.append(row)
        return rows

    def _labels(self, images: Tensor) -> Tensor:
        victim = self.victim
        with victim.held(), full_precision(victim.device):
            numbers = torch.arange(self.served, self.served + len(images), device=victim.device)
            self.served += len(images)  # before they are asked: a request that fails may be served
            chances = Dice.throw(self.seed, numbers) if victim.stochastic else None
            return self.oracle.logits(images.to(victim.device), chances).argmax(1).cpu()


def labelled(name: str, images: Tensor, labels: Tensor, classes: int) -> Data:
    """Images with labels that somebody gave them, as data; classes are called by their numbers."""
    names = tuple(map(str, range(classes)))
    return Data(name, "labelled", images, labels, torch.arange(len(labels)), classes, names)
