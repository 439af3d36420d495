"""Jacobian-based augmentation: new points to label, a step away from those labelled before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.ball import ball
from besiege.core.oracle import Oracle, full_precision
from besiege.core.threat import Linf
from besiege.models.classifier import Classifier
from besiege.training.labelling import Account


@dataclass(frozen=True)
class Neighbours:
    """How points get neighbours in a round: length and sign of the step, and how many points.

    Attributes
    ----------
    lam : float
        Length of the step in every pixel value, as a share of the box.
    tau : int, optional
        Number of rounds between changes of the step's sign.
    reservoir : (int, int), optional
        ``(sigma, kappa)``: after the first sigma rounds only kappa random points get one.
    seed : int
        Seed of that choice.
    """

    lam: float
    tau: int | None
    reservoir: tuple[int, int] | None
    seed: int

    def of(self, account: Account, substitute: Classifier, number: int) -> Tensor:
        """A step from the chosen points along the Jacobian's row of the victim's label."""
        rows = self._chosen(len(account.labels), number)
        x, label = account.images[rows], account.labels[rows]
        low, high = account.victim.box
        step = self.lam * (high - low)
        if self.tau is not None and (number - 1) // self.tau % 2:
            step = -step
        with substitute.held(), full_precision(substitute.device):
            place = substitute.device
            slope, _ = Oracle(substitute).gradients(x.to(place), label[:, None].to(place))
        moved = (x + step * slope[:, 0].cpu().sign()).clamp(low, high)
        # Quantised like the victim's input: the substitute learns from what the victim labels.
        return ball(Linf, x, torch.inf, account.victim.box, account.victim.grid).received(moved)

    def planned(self, account: Account, rounds: int) -> int:
        """Sum over all rounds of the points trained on, if every neighbour is new."""
        points = total = len(account.labels)
        most = None if account.budget is None else account.budget - account.served + points
        for number in range(1, rounds + 1):
            points += self._parents(points, number)
            points = points if most is None else min(points, most)
            total += points
        return total

    def _chosen(self, points: int, number: int) -> Tensor:
        """The rows of the points that get a neighbour in a round."""
        few = self._parents(points, number)
        if few == points:
            return torch.arange(points)
        order = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        return torch.randperm(points, generator=order)[:few].sort().values

    def _parents(self, points: int, number: int) -> int:
        """How many of so many points get a neighbour in a round."""
        if self.reservoir is None or number <= self.reservoir[0]:
            return points
        return min(points, self.reservoir[1])
