"""The caller's settings of a siege, and the rows that it attacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from besiege.core.answer import Aim
from besiege.core.ball import Ball
from besiege.core.dice import Dice
from besiege.core.knowledge import Knowledge
from besiege.core.record import Keep, Leave, Record


@dataclass(frozen=True)
class Terms:
    """The caller's settings of a siege.

    Attributes
    ----------
    keep, leave : str
        Which image is kept of every row, and when a row leaves.
    queries : int, optional
        Most queries per sample.
    draws : int
        How many answers of a stochastic victim are averaged for one.
    watch : callable, optional
        Called after every answer, to show progress.
    knowledge : Knowledge
        What the attack may use besides the victim.
    """

    keep: Keep = "first"
    leave: Leave = "success"
    queries: int | None = None
    draws: int = 1
    watch: Callable[[Record], None] | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)


@dataclass(frozen=True)
class ActiveRows:
    """The rows that are still attacked.

    Attributes
    ----------
    samples : Tensor
        The position of each row in the batch. A view may hold a sample several times, side by
        side: one row for each of several aims.
    ball, aim, dice
        Where each row may go, where the loss steers it, and its random draws.
    """

    samples: Tensor
    ball: Ball
    aim: Aim
    dice: Dice

    def __len__(self) -> int:
        return self.samples.shape[0]  # len of a tensor is slow, and this is called often

    def at(self, rows: Tensor) -> ActiveRows:
        """Some of the rows, by their numbers."""
        return ActiveRows(
            self.samples[rows], self.ball.at(rows), self.aim.at(rows), self.dice.at(rows)
        )

    @cached_property
    def numbers(self) -> Tensor:
        """All row numbers: always the same tensor, which the methods below recognise."""
        return torch.arange(len(self), device=self.samples.device)

    def samples_at(self, rows: Tensor) -> Tensor:
        """The samples of some rows."""
        return self.samples if rows is self.numbers else self.samples[rows]

    def aim_at(self, rows: Tensor) -> Aim:
        """The aims of some rows."""
        return self.aim if rows is self.numbers else self.aim.at(rows)
