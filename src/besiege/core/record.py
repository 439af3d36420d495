"""The results and costs of a siege so far, for every sample of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from besiege.core import criterion
from besiege.core.dice import Dice
from besiege.core.meter import Meter

Keep = Literal["first", "smallest", "highest", "last"]
Leave = Literal["success", "end"]

_MARKS = 64
"""Most points of the loss curve that are kept; then every other one is dropped."""

COSTS = (
    *range(1, 10),
    *(m * 10**k for k in range(5) for m in (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)),
    10**6,
)
"""Passes at which the smallest distance so far is recorded: round numbers, ten per decade."""

ROUNDING = 64 * torch.finfo(torch.float32).eps
"""By which share of a row's largest logit a class must lead, so that rounding cannot change the
answer. On 20 networks, other batch sizes, a twin and float64 moved leads by at most 12 epsilons."""


class Record:
    """Kept images, successes and costs, in the order of the batch.

    Attributes
    ----------
    images : Tensor
        The kept image of every sample, the clean one where nothing was kept.
    success : Tensor
        Whether the kept image reached the goal inside the ball.
    distance : Tensor
        Its distance if it did, else infinite.
    first_step, first_query : Tensor
        Requests answered before the first success, and the number of the query that was the
        success; -1 without one. A run with that many queries has this success too.
    vanished : Tensor
        Whether a gradient was exactly zero.
    no_start : Tensor
        Whether an attack found no starting point.
    substitute_passes : Tensor
        Gradients of a substitute that were computed for the sample.
    best : Tensor
        The highest loss at which a gradient was requested, -inf where none was.
    best_by_cost : Tensor, optional
        ``[rows, marks]``, where the smallest perturbation is kept: the distance of the last one
        kept between one mark of `COSTS` and the next, infinite without one. See `descent`.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, targets: Tensor | None, meter: Meter, chances: Dice
    ) -> None:
        n, device = len(images), images.device
        self.clean = images
        self.labels = labels
        self.targets = targets
        self.meter = meter
        self.chances = chances
        self.logits: Tensor | None = None
        self.scale = torch.zeros(n, device=device)
        """The largest absolute logit of each clean image."""
        self.endless = False
        """Whether there is no budget."""
        self.images = images.clone()
        self.kept = torch.zeros(n, dtype=torch.bool, device=device)
        self.success = torch.zeros_like(self.kept)
        self.vanished = torch.zeros_like(self.kept)
        self.no_start = torch.zeros_like(self.kept)
        self.distance = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
        self.loss = torch.full((n,), -torch.inf, device=device)
        self.best = torch.full_like(self.loss, -torch.inf)
        self.best_by_cost: Tensor | None = None
        self._curve: list[Tensor] = []
        self._requests = 0
        self._stride = 1
        self.asked = meter.asked
        self.substitute_passes = torch.zeros_like(self.asked)
        self.first_step = torch.full_like(self.asked, -1)
        self.first_query = torch.full_like(self.asked, -1)
        self.zero_share: Tensor | None = None
        """Which share of each sample's first gradient is exactly zero; NaN without a gradient."""
        self.pending: Callable[[], bool] | None = None
        """Examines the latest answer, where that was deferred (`Oracle.deferred`)."""

    def catch_up(self) -> bool:
        """Examine the answer that is still pending; whether it held a new success."""
        pending, self.pending = self.pending, None
        return pending is not None and pending()

    def note_losses(self, samples: Tensor, loss: Tensor) -> None:
        """Record the losses of a request, for `ascent`; a sample may have several of them."""
        self.best.scatter_reduce_(0, samples, loss.to(self.best.dtype), "amax")
        if self._requests % self._stride == 0:
            self._curve.append(self.best.clone())
            if len(self._curve) == _MARKS:  # every other one, so that any length fits
                self._curve = self._curve[::2]
                self._stride *= 2
        self._requests += 1

    def ascent(self) -> Tensor | None:
        """The best loss at the first request, after three quarters of them and at the end.

        ``[rows, 3]``, or None where no gradient was requested.
        """
        if not self._curve:
            return None
        late = self._curve[min(len(self._curve) - 1, (3 * self._requests) // (4 * self._stride))]
        return torch.stack((self._curve[0], late, self.best), 1)

    def note_distances(self, samples: Tensor, spent: Tensor, distance: Tensor) -> None:
        """Record new smallest distances, and the passes spent up to each."""
        if self.best_by_cost is None:
            shape = (len(self.labels), len(COSTS) + 1)
            self.best_by_cost = torch.full(shape, torch.inf, device=distance.device)
            self._costs = torch.tensor(COSTS, device=distance.device)
        # Distances only fall, so the last write to a bucket is its minimum.
        self.best_by_cost[samples, torch.bucketize(spent, self._costs)] = distance.to(
            self.best_by_cost.dtype
        )

    def descent(self, wanted: bool = False) -> Tensor | None:
        """The smallest distance found within so many passes, for every mark of `COSTS` and in all.

        ``[rows, marks + 1]``, falling from left to right and infinite before the first success;
        None where there was no success and the curve is not `wanted`. Passes are the queries and
        backwards of the sample, up to the forward that showed the success.
        """
        if self.best_by_cost is None and wanted:
            shape = (len(self.labels), len(COSTS) + 1)
            return torch.full(shape, torch.inf, device=self.distance.device)
        return None if self.best_by_cost is None else self.best_by_cost.cummin(1).values

    def reached(self, samples: Tensor, labels: Tensor) -> Tensor:
        """Whether the classes answered reach the attacker's goal."""
        return criterion.reached(labels, self.labels, self.targets, samples)

    def sure(self, logits: Tensor, samples: Tensor) -> Tensor:
        """The classes answered, as `sure` counts them."""
        targets = None if self.targets is None else self.targets[samples]
        return sure(logits, self.labels[samples], targets, self.hair(logits, samples))

    def hair(self, logits: Tensor, samples: Tensor) -> Tensor:
        """How far rounding may move the leads of these answers.

        Depends on the clean image's logits too: at the boundary all logits may be nearly zero.
        """
        return ROUNDING * torch.maximum(largest(logits), self.scale[samples].to(logits))

    def note_first(self, samples: Tensor, asked: Tensor, queries: Tensor) -> None:
        """Record the first success of each of these samples; each is given once."""
        self.first_step[samples] = asked
        self.first_query[samples] = queries

    def keep(
        self,
        rule: Keep,
        x: Tensor,
        samples: Tensor,
        distance: Tensor,
        loss: Tensor | None,
        spent: Tensor | None = None,
    ) -> None:
        """Keep images by a rule; `distance` is infinite for failures.

        `spent` is the number of passes up to each image, for `descent`.
        """
        good = distance < torch.inf
        n = len(samples)
        if rule == "first" or (rule == "highest" and loss is None):
            new = good & ~self.success[samples]
            pick = _best(samples, new, -torch.arange(n, device=x.device))
        elif rule == "smallest":
            pick = _best(samples, good, -distance)
            pick = pick[distance[pick] < self.distance[samples[pick]]]
            if spent is not None and len(pick):
                self.note_distances(samples[pick], spent[pick], distance[pick])
        elif rule == "last":
            pick = _best(samples, torch.ones_like(good), torch.arange(n, device=x.device))
        else:  # highest: a success before any failure, then by loss
            assert loss is not None
            pick = _best(samples, torch.ones_like(good), _ranks(loss) + n * good)
            held, won = self.loss[samples[pick]], self.success[samples[pick]]
            higher = (good[pick] & ~won) | ((good[pick] == won) & (loss[pick] > held))
            pick = pick[higher | ~self.kept[samples[pick]]]
        if not len(pick):
            return
        chosen = samples[pick]
        self.images[chosen] = x.index_select(0, pick)
        self.kept[chosen] = True
        self.success[chosen] = good[pick]
        self.distance[chosen] = distance[pick]
        self.loss[chosen] = -torch.inf if loss is None else loss[pick].to(self.loss.dtype)


def sure(logits: Tensor, labels: Tensor, targets: Tensor | None, hair: Tensor) -> Tensor:
    """The classes answered, where the goal counts as reached only if rounding cannot undo it.

    A search for the smallest perturbation ends at the boundary itself, where the batch size would
    decide. An answer that reaches the goal by less than `hair` counts as the best other class.

    Examples
    --------
    >>> logits = torch.tensor([[1.0, 1.5], [1.0, 1.01]])
    >>> sure(logits, torch.zeros(2, dtype=torch.int64), None, torch.full((2,), 0.1))
    tensor([1, 0])
    """
    answered = logits.argmax(1)
    if targets is None:
        lead = logits.amax(1) - logits.gather(1, labels[:, None])[:, 0]
        return torch.where(lead < hair, labels, answered)
    top = logits.topk(2, dim=1)
    unsure = (answered == targets) & (top.values[:, 0] - top.values[:, 1] < hair)
    second = torch.where(top.indices[:, 1] == answered, top.indices[:, 0], top.indices[:, 1])
    return torch.where(unsure, second, answered)


def largest(logits: Tensor) -> Tensor:
    """The largest absolute logit of every row; classes that are ruled out (-inf) do not count."""
    return logits.abs().masked_fill(torch.isinf(logits), 0.0).amax(1)


def _ranks(score: Tensor) -> Tensor:
    """The rank of each score from below, from 1 to n; of equal ones the first ranks higher."""
    order = score.argsort(descending=True, stable=True)
    places = torch.arange(len(order), 0, -1, device=score.device)
    return torch.empty_like(order).scatter_(0, order, places)


def _best(samples: Tensor, among: Tensor, score: Tensor) -> Tensor:
    """The position of each sample's highest score among some positions; the first wins ties."""
    where = among.nonzero()[:, 0]
    owner = samples[where]
    if len(where) == 0 or not bool((owner[1:] == owner[:-1]).any()):
        return where  # the usual case: every sample at most once
    where = where[score[where].argsort(descending=True, stable=True)]
    where = where[samples[where].argsort(stable=True)]
    first = torch.ones_like(where, dtype=torch.bool)
    first[1:] = samples[where][1:] != samples[where][:-1]
    return where[first]
