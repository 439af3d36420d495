"""Objectives that part what a network answers: members of a joint one, features of classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.errors import InputError
from besiege.core.fields import number
from besiege.training.objectives import Objective, Step, objective

# Added to the diagonal of ADP's matrix: identical members would have a determinant of zero.
_JITTER = 1e-6


@objective("diversity")
@dataclass(frozen=True)
class Diversity(Objective):
    """Adaptive diversity promoting for a ``joint`` network (Pang et al. 2019).

    ``sum_k CE_k - alpha H(mean p) - beta log det G``, where G holds the inner products of the
    members' probabilities without the true class, each scaled to length one.
    """

    alpha: float = number(2.0)
    beta: float = number(0.5)
    needs_members = True

    def __call__(self, step: Step) -> Tensor:
        logits = step.members.float()
        members, rows, classes = logits.shape
        each = functional.cross_entropy(logits.flatten(0, 1), step.y.repeat(members)) * members
        # From logarithms: probabilities of a confident member round to zero, where neither the
        # entropy nor a length has a gradient.
        mean = logits.log_softmax(2).logsumexp(0) - math.log(members)
        entropy = -(mean.exp() * mean).sum(1).mean()
        # By their places and not by a mask, whose number of elements a GPU would have to report.
        others = torch.arange(classes - 1, device=logits.device).expand(rows, -1)
        others = others + (others >= step.y[:, None])
        wrong = logits.transpose(0, 1).gather(2, others[:, None].expand(-1, members, -1))
        # The softmax without the true class has the direction of the probabilities without it.
        wrong = functional.normalize(wrong.softmax(2), dim=2)
        alike = wrong @ wrong.mT + _JITTER * torch.eye(members, device=logits.device)
        loss: Tensor = each - self.alpha * entropy - self.beta * torch.logdet(alike).mean()
        return loss

    def check(self, classes: int, members: int) -> None:
        if members > classes - 1:
            raise InputError(
                f"'diversity' needs at most classes - 1 members, and the model has {members} for "
                f"{classes} classes: the determinant would be zero; write members={classes - 1}"
            )


@objective("centres")
@dataclass(frozen=True)
class Centres(Objective):
    """Max-Mahalanobis centre loss (Pang et al. 2020): half the squared distance to a fixed centre.

    The outputs of the network are the features, one per class, and the centres a simplex of length
    `scale`: ``scale sqrt(L / (L - 1)) (e_k - 1 / L)``. Its centres have the inner products of the
    published ones, and the nearest centre is that of the largest output. The 256 features of the
    paper add directions that its classifier ignores.
    """

    scale: float = number(10.0, above=0)

    def __call__(self, step: Step) -> Tensor:
        centres = self.scale * simplex(step.seen.shape[1], step.seen.device)
        loss: Tensor = 0.5 * (step.seen - centres[step.y]).square().sum(1).mean()
        return loss


def simplex(classes: int, device: torch.device | None = None) -> Tensor:
    """Unit vectors ``[classes, classes]`` whose inner products are ``-1 / (classes - 1)``."""
    scale = math.sqrt(classes / (classes - 1))
    return scale * (torch.eye(classes, device=device) - 1 / classes)
