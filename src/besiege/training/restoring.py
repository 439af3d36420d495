"""Objectives of networks inside layers: models of images, and of what layers remove."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.errors import InputError
from besiege.core.fields import number
from besiege.training.objectives import Objective, Step, objective


@objective("likelihood")
@dataclass(frozen=True)
class Likelihood(Objective):
    """Mean negative log-likelihood of pixel values under a PixelCNN, in bits per dimension.

    A value at the share s of the box has the level ``round(s (levels - 1))``. The network sees the
    levels' values, and answers their logits ``[rows, channels, levels, height, width]``; the loss
    is ``-log2 p(level)``, averaged over pixel values and images.
    """

    classifies = False

    def __call__(self, step: Step) -> Tensor:
        assert step.network is not None
        logits = step.network(step.crafted).float()
        low, width = step.box[0], step.box[1] - step.box[0]
        level = ((step.crafted - low) / width * (logits.shape[2] - 1)).round().long()
        loss = functional.cross_entropy(logits.flatten(0, 1), level.flatten(0, 1))
        return loss / math.log(2)

    def check_answer(self, x: Tensor, answer: Tensor) -> None:
        shape = x.shape[:2] + answer.shape[2:3] + x.shape[2:]
        if answer.dim() != 5 or answer.shape != shape:
            raise InputError(
                f"'likelihood' trains a network that answers logits [rows, channels, levels, "
                f"height, width], and this one answers {list(answer.shape)} to images "
                f"{list(x.shape)}: choose an architecture such as pixelcnn"
            )


@objective("reconstruction")
@dataclass(frozen=True)
class Reconstruction(Objective):
    """A network that removes noise: the mean squared error of ``net(x + noise)`` (MagNet, 2017).

    With a guide it is HGD's loss (Liao et al. 2018), the mean absolute difference between the
    guide's logits of ``net(x + noise)`` and of x: a small error in pixels may be a large one to the
    model behind.

    Parameters
    ----------
    noise : float
        Standard deviation of Gaussian noise on the network's input, which is clipped to the box; as
        a share of the box. MagNet has 0.1 for MNIST and 0.025 for CIFAR-10.
    guide : str, optional
        The model whose logits are compared: ``zoo:NAME`` or ``ARCH:FILE``. It is not trained.
    """

    noise: float = number(0.1)
    guide: str | None = None
    classifies = False

    def __call__(self, step: Step) -> Tensor:
        assert step.network is not None
        x, (low, high) = step.crafted, step.box
        drawn = step.dice.of("noise").normal(tuple(x.shape[1:])).to(x)
        made = step.network((x + self.noise * (high - low) * drawn).clamp(low, high)).float()
        if step.guide is None:
            return functional.mse_loss(made, x)
        with torch.no_grad():
            wanted = step.guide(x)
        return functional.l1_loss(step.guide(made.clamp(low, high)), wanted)

    def check_answer(self, x: Tensor, answer: Tensor) -> None:
        if answer.shape != x.shape:
            raise InputError(
                f"'reconstruction' trains a network that answers images, and this one answers "
                f"{list(answer.shape)} to images {list(x.shape)}: choose an architecture such as "
                "autoencoder"
            )
