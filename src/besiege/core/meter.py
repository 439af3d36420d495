"""The cost of every sample: forward and backward passes, queries and requests."""

from __future__ import annotations

import torch
from torch import Tensor


class Meter:
    """What every sample has cost so far.

    ``forwards`` and ``backwards`` count images computed for the sample, ``queries`` the answers
    that the attack's decisions used, ``asked`` requests; the budget limits queries. Padding is
    charged to no sample.
    """

    def __init__(self, samples: int, device: torch.device, budget: int | None = None) -> None:
        # Columns of one tensor, so that one addition charges them all.
        self.tab = torch.zeros(samples, 4, dtype=torch.int64, device=device)
        self.forwards, self.backwards, self.queries, self.asked = self.tab.unbind(1)
        self.budget = budget
        self.padding = 0
        self._prices: dict[tuple[int, int], Tensor] = {}

    def price(self, forwards: int, backwards: int) -> Tensor:
        """What one request adds to the tab of a sample: ``[1, 4]``."""
        key = forwards, backwards
        if key not in self._prices:
            price = [forwards, backwards, forwards, 1]
            self._prices[key] = torch.tensor([price], device=self.tab.device)
        return self._prices[key]

    def left(self, samples: Tensor) -> Tensor:
        """How many queries each of the samples has left."""
        if self.budget is None:
            return torch.full_like(samples, torch.iinfo(torch.int64).max)
        return self.budget - self.queries[samples]
