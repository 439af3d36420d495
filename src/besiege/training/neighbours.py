"""New points for a substitute to learn from: a step from those it has, where it is least sure."""

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
    """How the points of a round get neighbours: how far, which way, and how many of them.

    Attributes
    ----------
    lam : float
        Length of the step in every pixel, as a share of the box.
    tau : int, optional
        Rounds after which the step changes its sign, again and again.
    reservoir : (int, int), optional
        ``(sigma, kappa)``: after the first sigma rounds only kappa points get one.
    seed : int
        Of the choice of those.
    """

    lam: float
    tau: int | None
    reservoir: tuple[int, int] | None
    seed: int

    def of(self, account: Account, substitute: Classifier, number: int) -> Tensor:
        """A step from every point, or from some, along the Jacobian's row of the victim's label."""
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
        # What a victim that quantises receives is what it labels, and what is learned from.
        return ball(Linf, x, torch.inf, account.victim.box, account.victim.grid).received(moved)

    def planned(self, account: Account, rounds: int) -> int:
        """Points trained on in all rounds together, if every neighbour is new."""
        points = total = len(account.labels)
        most = None if account.budget is None else account.budget - account.served + points
        for number in range(1, rounds + 1):
            points += self._parents(points, number)
            points = points if most is None else min(points, most)
            total += points
        return total

    def _chosen(self, points: int, number: int) -> Tensor:
        """Rows of the points that get a neighbour in a round."""
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
