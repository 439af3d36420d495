"""`Account`: images labelled by a victim, each queried once, up to a budget."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.data.dataset import Data


class Account:
    """The points labelled so far with their labels, and the number of queries they cost.

    Parameters
    ----------
    victim : Victim
        The victim, of which only labels are used.
    seed : int
        Seed of the randomness of a stochastic victim.
    budget : int, optional
        Largest number of queries.

    Attributes
    ----------
    images, labels : Tensor
        The points, in the order in which they were labelled.
    checks : (Tensor, Tensor), optional
        Images that are not trained on, and their labels.
    served : int
        Queries so far, for points and checks together.
    """

    def __init__(self, victim: Victim, seed: int, budget: int | None) -> None:
        if victim.rejects:
            raise InputError(
                f"'{victim.name}' rejects images, and a rejection is no label that a substitute "
                "could be trained on: steal the model without its detector"
            )
        self.victim, self.seed, self.budget = victim, seed, budget
        # Without padding, since every image that is sent is charged.
        self.oracle = Oracle(victim, Access.DECISION, pad=False)
        self.served = 0
        self.images, self.labels = torch.empty(0), torch.empty(0, dtype=torch.int64)
        self.checks: tuple[Tensor, Tensor] | None = None
        self._known: set[bytes] = set()

    @property
    def classes(self) -> int:
        """Number of classes, as the victim declares it or its answers show."""
        assert self.oracle.classes is not None  # known after the first answer
        return self.oracle.classes

    @property
    def missing(self) -> tuple[int, ...]:
        """Classes that no point was labelled with."""
        seen = set(self.labels.tolist())
        return tuple(label for label in range(self.classes) if label not in seen)

    def check(self, images: Tensor) -> None:
        """Label images that are not trained on, leaving out those that are points already."""
        fresh = images[self._fresh(images)]
        if len(fresh):
            self.checks = fresh, self._labels(fresh)

    def add(self, images: Tensor) -> int:
        """Label new points within the budget; returns how many were labelled."""
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
        """The rows of images not seen before; they count as seen from now on."""
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
            self.served += len(images)  # before the query, which may be charged even if it fails
            dice = Dice.throw(self.seed, numbers) if victim.stochastic else None
            return self.oracle.logits(images.to(victim.device), dice).argmax(1).cpu()


def labelled(name: str, images: Tensor, labels: Tensor, classes: int) -> Data:
    """Images with given labels as data; classes are named by their numbers."""
    names = tuple(map(str, range(classes)))
    return Data(name, "labelled", images, labels, torch.arange(len(labels)), classes, names)
