"""What counts as success: the only place that compares answers with the goal."""

from __future__ import annotations

from torch import Tensor


def correct(labels: Tensor, truth: Tensor) -> Tensor:
    """Whether the classes answered are the true ones."""
    return labels == truth


def reached(
    labels: Tensor, truth: Tensor, targets: Tensor | None, samples: Tensor | None = None
) -> Tensor:
    """Whether the classes answered reach the attacker's goal.

    The goal is any class but the true one or, where there are targets, the target.

    Parameters
    ----------
    labels : Tensor
        The classes answered.
    truth, targets : Tensor
        The true classes and, for a targeted goal, the classes to reach.
    samples : Tensor, optional
        Which elements of `truth` and `targets` the labels belong to; all in order by default.

    Examples
    --------
    >>> import torch
    >>> labels, truth = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0])
    >>> reached(labels, truth, None)
    tensor([False,  True,  True])
    >>> reached(labels, truth, torch.tensor([2, 2, 2]))
    tensor([False, False,  True])
    """
    decisive = truth if targets is None else targets
    if samples is not None:
        decisive = decisive[samples]
    return labels != decisive if targets is None else labels == decisive


def accepted(answers: Tensor, classes: int) -> Tensor:
    """Whether answers are classes: a victim that rejects an image answers the number after them."""
    return answers < classes


def mostly_rejected(share: Tensor) -> Tensor:
    """Whether an image that is rejected in these shares of the draws counts as rejected."""
    return share > 0.5


def mostly_correct(share: Tensor) -> Tensor:
    """Whether a victim that is correct in these shares of its draws counts as correct."""
    return share > 0.5


def mostly_reached(share: Tensor) -> Tensor:
    """Whether a goal that is reached in these shares of the draws counts as reached: a tie does."""
    return share >= 0.5
