"""Values that attacks and sieges exchange: aims, answers and scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import AttackError


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

    def to(self, device: torch.device) -> Aim:
        """The same aims on another device."""
        parts = (self.labels, self.targets, self.clean)
        labels, *rest = (None if part is None else part.to(device) for part in parts)
        assert labels is not None
        return Aim(labels, *rest)


Loss = Callable[[Tensor, Aim], Tensor]
Through = Callable[[Tensor, Dice, Tensor], Tensor]
"""A differentiable map of images, given each image's dice and its number among its row's copies."""


class Answer:
    """The victim's answer: one value per row, or ``[rows, k]`` for k candidates.

    ``hit`` and ``labels`` are always there; ``logits``, ``loss`` and ``gradient`` where they were
    requested (``"logits" in answer``). A row that has left or spent its budget is not sent: its
    hit is false, its label -1, its loss -inf, its gradient and logits 0.
    """

    def __init__(
        self, hit: Tensor | Callable[[], Tensor], labels: Tensor, **parts: Tensor | None
    ) -> None:
        present = {name: part for name, part in parts.items() if part is not None}
        self._parts: dict[str, Tensor] = {"labels": labels, **present}
        # Lazy: computing `hit` forces a device synchronisation, and few attacks read it.
        self._hit = hit

    @property
    def parts(self) -> dict[str, Tensor]:
        """All parts by name."""
        if "hit" not in self._parts:
            self._parts["hit"] = self._hit if isinstance(self._hit, Tensor) else self._hit()
        return self._parts

    def __contains__(self, name: str) -> bool:
        return name == "hit" or name in self._parts

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def hit(self) -> Tensor:
        """Whether the goal was reached inside the ball."""
        return self.parts["hit"]

    @property
    def labels(self) -> Tensor:
        """The predicted classes, -1 for rows not sent."""
        return self._parts["labels"]

    @property
    def logits(self) -> Tensor:
        """The logits, ``[rows, classes]``."""
        return self._requested("logits")

    @property
    def loss(self) -> Tensor:
        """The loss."""
        return self._requested("loss")

    @property
    def gradient(self) -> Tensor:
        """The gradient of the loss, or of chosen logits."""
        return self._requested("gradient")

    def _requested(self, name: str) -> Tensor:
        if name not in self._parts:
            raise AttackError(
                f"this answer has no {name}: only {', '.join(self.parts)} were requested"
            )
        return self._parts[name]

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Answer:
        """The answer with a function of name and value applied to every part."""
        return Answer(**{name: change(name, part) for name, part in self.parts.items()})

    def at(self, rows: Tensor) -> Answer:
        """The answers of some rows."""
        return self.map(lambda _, part: part[rows])

    def put(self, rows: Tensor, answer: Answer) -> Answer:
        """The answer with some rows replaced by those of another answer with the same parts."""
        return self.map(lambda name, part: part.index_copy(0, rows, answer.parts[name]))

    def blank(self, rows: int) -> Answer:
        """An answer with the same parts for rows that were not sent."""
        return self.map(lambda name, part: part.new_full((rows, *part.shape[1:]), _ABSENT[name]))

    def shaped(self, rows: int, k: int) -> Answer:
        """An answer of ``rows * k`` images as ``[rows, k]``."""
        return self.map(lambda _, part: part.view(rows, k, *part.shape[1:]))

    def choose(self, pick: Tensor) -> Answer:
        """One of each row's k answers."""
        rows = torch.arange(len(pick), device=pick.device)
        return self.map(lambda _, part: part[rows, pick])


_ABSENT = {"hit": 0.0, "labels": -1.0, "logits": 0.0, "loss": -torch.inf, "gradient": 0.0}


@dataclass(frozen=True)
class Scan:
    """Which of k candidates was accepted first (k if none), and the answer to the last one used."""

    choice: Tensor
    answer: Answer
