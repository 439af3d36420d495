"""A moving average of a module's weights and batch-norm statistics."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Average:
    """A copy of a module that holds a moving average of its tensors.

    ``copy = d copy + (1 - d) module`` with ``d = min(decay, (1 + t) / (10 + t))`` at update t, so
    that the initial weights are soon forgotten. Batch-norm statistics are averaged like weights;
    integers are copied.

    Parameters
    ----------
    module : nn.Module
        The module to average.
    decay : float
        Share of the average that remains at each update, from 0 to 1.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(module)
        self.module.requires_grad_(False)
        self.decay = decay
        pairs = list(zip(_tensors(self.module), _tensors(module), strict=True))
        moving = [pair for pair in pairs if pair[0].is_floating_point()]
        self._held, self._followed = [h for h, _ in moving], [f for _, f in moving]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after a training step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._held, self._followed, 1 - decay)
        for held, followed in self._copied:
            held.copy_(followed)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
