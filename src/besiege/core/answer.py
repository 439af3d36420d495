"""What is asked for and what comes back: aims, answers, and answers of rows that were not sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.dice import Dice


@dataclass(frozen=True)
class Aim:
    """Where the loss steers each row: away from its label, or towards a target.

    ``clean`` holds the logits of the clean images where they are known: losses take scales and
    rankings from there.
    """

    labels: Tensor
    targets: Tensor | None = None
    clean: Tensor | None = None

    def at(self, rows: Tensor | slice) -> Aim:
        """The aims of some rows."""
        return Aim(
            self.labels[rows],
            None if self.targets is None else self.targets[rows],
            None if self.clean is None else self.clean[rows],
        )


Loss = Callable[[Tensor, Aim], Tensor]
Through = Callable[[Tensor, Dice, Tensor], Tensor]
"""A differentiable map of images, given each image's dice and its number among its row's copies."""


@dataclass(frozen=True)
class Answer:
    """What the victim said, one entry per row, or ``[rows, k]`` for k candidates.

    A row that has left or spent its budget is not sent: its hit is false, its loss -inf, its
    gradient and logits 0.
    """

    hit: Tensor
    labels: Tensor
    logits: Tensor | None = None
    loss: Tensor | None = None
    gradient: Tensor | None = None

    def at(self, rows: Tensor) -> Answer:
        """The answers of some rows."""

        def some(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[rows]

        return Answer(
            self.hit[rows],
            self.labels[rows],
            some(self.logits),
            some(self.loss),
            some(self.gradient),
        )


@dataclass(frozen=True)
class Scan:
    """Which of k candidates was accepted first (k where none was), and what was said of it."""

    choice: Tensor
    answer: Answer


def _parts(answer: Answer) -> dict[str, Tensor | None]:
    return {
        "hit": answer.hit,
        "labels": answer.labels,
        "logits": answer.logits,
        "loss": answer.loss,
        "gradient": answer.gradient,
    }


def map_parts(answer: Answer, change: Callable[[str, Tensor], Tensor]) -> Answer:
    """The answer with every part it has changed."""
    return Answer(**{k: None if v is None else change(k, v) for k, v in _parts(answer).items()})  # type: ignore[arg-type]  # hit and labels are never None


_ABSENT = {"hit": 0.0, "labels": -1.0, "logits": 0.0, "loss": -torch.inf, "gradient": 0.0}


def blank(answer: Answer, rows: int) -> Answer:
    """The answer of rows that were not sent."""
    return map_parts(answer, lambda k, v: v.new_full((rows, *v.shape[1:]), _ABSENT[k]))


def put(into: Answer, rows: Tensor, answer: Answer) -> Answer:
    """The first answer with some rows from the second."""
    new = _parts(answer)
    return map_parts(into, lambda k, v: v.index_copy(0, rows, new[k]))  # type: ignore[arg-type]  # both have the same parts


def shaped(answer: Answer, shape: tuple[int, int]) -> Answer:
    """An answer of ``rows * k`` images as ``[rows, k]``."""
    return map_parts(answer, lambda _, v: v.view(*shape, *v.shape[1:]))


def choose(answer: Answer, pick: Tensor) -> Answer:
    """One of each row's k answers."""
    rows = torch.arange(len(pick), device=pick.device)
    return map_parts(answer, lambda _, v: v[rows, pick])
