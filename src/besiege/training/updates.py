"""Updates: how one batch changes the weights, as frozen values with a text form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.fields import check_fields, number, whole_number
from besiege.core.registry import Registry
from besiege.core.threat import Goal, Linf, Threat
from besiege.core.vocabulary import Vocabulary
from besiege.training.objectives import Step

UPDATES: Registry[type[Update]] = Registry("update", ("besiege.training.updates",))
LANGUAGE = Vocabulary(UPDATES)
T = TypeVar("T", bound="type[Update]")

# Added to the norm of a gradient before it divides, as in the authors' code.
_NEVER_ZERO = 1e-20


@dataclass(frozen=True, eq=False)
class Batch:
    """Images of one step as they were augmented, their labels and random draws."""

    x: Tensor
    y: Tensor
    dice: Dice
    epoch: int
    number: int
    """The step, counted from 0 over the whole training."""
    progress: float = 0.0
    """The share of the whole training that is over."""


class Trainer(Protocol):
    """What an update may use of a training."""

    module: nn.Module
    optimiser: torch.optim.Optimizer
    memory: dict[str, Tensor]
    """Tensors that an update keeps between batches; checkpoints contain them."""
    box: tuple[float, float]

    def craft(self, batch: Batch) -> Tensor:
        """The adversarial images of a batch."""
        ...

    def take(self, batch: Batch, crafted: Tensor) -> Step:
        """The step of a batch, for which nothing has been computed yet."""
        ...

    def loss(self, step: Step) -> Tensor:
        """The objective's loss of a step."""
        ...

    def slopes(self, batch: Batch, crafted: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the number of correct predictions; weights have gradients."""
        ...

    def budget(self, epoch: int) -> float:
        """The largest radius of an epoch."""
        ...


class Update:
    """How one batch changes the weights."""

    crafts: bool = True
    """Whether adversarial images come from the recipe's attack."""

    __post_init__ = check_fields

    def check(self, threat: Threat | None) -> None:
        """Refuse a threat that this update cannot train for."""

    def __call__(self, trainer: Trainer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Train on one batch; returns its loss and the number of correct predictions."""
        raise NotImplementedError

    def __str__(self) -> str:
        return LANGUAGE.text(self)


def update(name: str) -> Callable[[T], T]:
    """Register an update under a name of the text form."""
    return UPDATES.register(name)


@update("plain")
@dataclass(frozen=True)
class Plain(Update):
    """One step of the optimiser."""

    def __call__(self, trainer: Trainer, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, correct = trainer.slopes(batch, trainer.craft(batch))
        trainer.optimiser.step()
        return loss, correct


@update("replay")
@dataclass(frozen=True)
class Replay(Update):
    """Free adversarial training (Shafahi et al. 2019): one backward for weights and images.

    Each batch is used m times in a row. Every time the weights take a step, and the perturbation
    a step of the whole budget along the sign of its gradient. The perturbation persists from batch
    to batch. An epoch costs m passes: divide the number of epochs by m.
    """

    m: int = whole_number(8)
    crafts = False

    def check(self, threat: Threat | None) -> None:
        if threat is None or threat.norm is not Linf:
            raise ValueError(f"'{self}' needs a threat in linf, and has {threat}")
        if threat.goal is not Goal.UNTARGETED:
            raise ValueError(f"'{self}' leaves the label, and the threat '{threat}' has a target")

    def __call__(self, trainer: Trainer, batch: Batch) -> tuple[Tensor, Tensor]:
        rows, eps = len(batch.x), trainer.budget(batch.epoch)
        kept = trainer.memory.get("perturbation")
        if kept is None or len(kept) < rows:
            # The first batch is the largest: later ones use the first rows.
            kept = trainer.memory["perturbation"] = torch.zeros_like(batch.x)
        for _ in range(self.m):
            change = kept[:rows].clamp(-eps, eps).requires_grad_(True)
            step = trainer.take(batch, (batch.x + change).clamp(*trainer.box))
            loss = trainer.loss(step)
            trainer.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            assert change.grad is not None
            kept[:rows] = (change.detach() + eps * change.grad.sign()).clamp_(-eps, eps)
            trainer.optimiser.step()
        return loss.detach(), step.correct()


@update("perturbed")
@dataclass(frozen=True)
class Perturbed(Update):
    """Adversarial weight perturbation (Wu et al. 2020).

    The loss is taken at weights moved up its gradient, each tensor by `gamma` of its own norm;
    biases and batch norm stay. The step is made from there, and the move is then undone.

    Parameters
    ----------
    gamma : float
        Length of the move, as a share of each tensor's norm.
    after : int
        Epochs before the first move.
    """

    gamma: float = number(0.01)
    after: int = whole_number(0, 0)

    def __call__(self, trainer: Trainer, batch: Batch) -> tuple[Tensor, Tensor]:
        if batch.epoch <= self.after:
            return Plain()(trainer, batch)
        crafted = trainer.craft(batch)
        parameters = trainer.module.parameters()
        weights: list[Tensor] = [p for p in parameters if p.dim() > 1 and p.requires_grad]
        buffers = list(trainer.module.buffers())
        before = [buffer.clone() for buffer in buffers]
        loss = trainer.loss(trainer.take(batch, crafted))
        # A weight that the loss does not depend on has a slope of zero, and stays.
        slopes = torch.autograd.grad(loss, weights, materialize_grads=True)
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)  # this pass only looks for the move
            moves = [
                self.gamma * weight.norm() / (slope.norm() + _NEVER_ZERO) * slope
                for weight, slope in zip(weights, slopes, strict=True)
            ]
            torch._foreach_add_(weights, moves)
        step = trainer.take(batch, crafted)
        loss = trainer.loss(step)
        trainer.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        trainer.optimiser.step()
        with torch.no_grad():
            torch._foreach_sub_(weights, moves)
        return loss.detach(), step.correct()


plain = Plain()
