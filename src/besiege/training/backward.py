"""`Backward`: the loss of a training step and its gradients, on a GPU as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from besiege.core.cuda_graphs import Captured
from besiege.core.dice import Dice
from besiege.training.objectives import Objective, Step
from besiege.training.updates import Batch

Take = Callable[[Batch, Tensor, Dice, Dice], Step]
"""Makes a step of a batch, what was crafted from it, and the dice of the step and of the epoch."""


class Backward:
    """Puts the gradients of a step's loss into the weights.

    A forward and a backward of a small network are hundreds of kernels, and launching them takes
    longer than computing them: on a GPU they are captured once and replayed. Only what depends on
    tensors alone may be captured, as the objectives and networks that come with besiege do.

    Parameters
    ----------
    module : nn.Module
        The network that is trained.
    objective : Objective
        The loss.
    take : callable
        Makes the step of a batch.
    """

    def __init__(self, module: nn.Module, objective: Objective, take: Take) -> None:
        self.objective, self.take = objective, take
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.buffers = list(module.buffers())
        self.captures = (
            bool(self.parameters)
            and self.parameters[0].device.type == "cuda"
            and not objective.proves  # its budget grows from step to step
            and _ours(objective)
            and all(_ours(part) for part in module.modules())
        )
        self._made: dict[tuple[object, ...], _Graph | None] = {}

    def __call__(
        self, batch: Batch, crafted: Tensor, dice: Dice, during: Dice
    ) -> tuple[Tensor, Tensor]:
        """The loss of a step and the number of correct predictions; weights have gradients."""
        graph = None
        if self.captures:
            # Losses treat images that nothing was crafted from in their own way.
            given = [batch.x, batch.y, dice.key, during.key]
            given += [] if crafted is batch.x else [crafted]
            shapes = tuple(tensor.shape for tensor in given)
            if shapes not in self._made:
                self._made[shapes] = self._capture(batch, given)
            graph = self._made[shapes]
        if graph is None:
            return self._slopes(self.take(batch, crafted, dice, during))
        return graph(given)

    def _slopes(self, step: Step) -> tuple[Tensor, Tensor]:
        loss = self.objective(step)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), step.correct()

    def _capture(self, batch: Batch, given: list[Tensor]) -> _Graph | None:
        def slopes(
            x: Tensor, y: Tensor, own: Tensor, noise: Tensor, *crafted: Tensor
        ) -> tuple[Tensor, ...]:
            held = replace(batch, x=x, y=y)
            step = self.take(held, crafted[0] if crafted else x, Dice(own), Dice(noise))
            return tuple(part.view(1) for part in self._slopes(step))

        # The passes before a capture change running statistics and random state: as it was, after.
        before = [buffer.clone() for buffer in self.buffers]
        try:
            with torch.random.fork_rng([given[0].device]):
                made = Captured(slopes, tuple(tensor.clone() for tensor in given))
        except RuntimeError:  # what synchronises with the GPU cannot be captured
            return None
        finally:
            for buffer, value in zip(self.buffers, before, strict=True):
                buffer.copy_(value)
        return _Graph(made, self.parameters)


class _Graph:
    """A captured step, and the gradients that it writes."""

    def __init__(self, made: Captured, parameters: list[nn.Parameter]) -> None:
        self.made, self.parameters = made, parameters
        self.slopes = [parameter.grad for parameter in parameters]

    def __call__(self, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        loss, correct = (part[0].clone() for part in self.made(*given))
        for parameter, slope in zip(self.parameters, self.slopes, strict=True):
            parameter.grad = slope
        return loss, correct


def _ours(part: object) -> bool:
    """Whether a part depends on tensors alone: it comes with besiege or with torch."""
    return type(part).__module__.startswith(("besiege.", "torch.nn."))
