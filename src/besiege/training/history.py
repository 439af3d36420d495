"""The epochs of a training, and which of them gives the final weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Epoch:
    """Results of one pass over the data.

    Attributes
    ----------
    number : int
        Counted from 1.
    loss, accuracy : float
        Means over the training images, perturbed as the model saw them; without an accuracy where
        no classifier is trained.
    clean, robust : float, optional
        Accuracy on the held-out images: clean, and under the recipe's attack, or PGD-5 where that
        is a single step.
    guarded : float, optional
        Accuracy of the guard's batch of training images under PGD-5.
    seconds : float
        Duration.
    """

    number: int
    loss: float
    accuracy: float | None
    clean: float | None = None
    robust: float | None = None
    guarded: float | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def score(self) -> float | None:
        """The accuracy by which epochs are compared; None without held-out images."""
        return self.clean if self.robust is None else self.robust


def fall(history: Sequence[Epoch]) -> float:
    """How far the guard's accuracy is below that of its best epoch; 0 without a guard."""
    seen = [epoch.guarded for epoch in history if epoch.guarded is not None]
    return max(seen) - seen[-1] if seen else 0.0


def collapsed(history: Sequence[Epoch], guard: float) -> bool:
    """Whether the guard's accuracy has fallen by more than a recipe allows."""
    return guard > 0 and fall(history) > guard


def kept(history: Sequence[Epoch], guard: float) -> Epoch:
    """The epoch whose weights are the final ones: never one that collapsed.

    The best on the held-out images, in a tie the later one, which was trained for longer; without
    such images the last.
    """
    sound = history[:-1] if collapsed(history, guard) else history
    return max(sound, key=lambda epoch: (epoch.score or 0.0, epoch.number))
