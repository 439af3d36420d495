"""Reads the clean answers of evaluations, and measures the utility of one model against another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from besiege.bench.comparable import Candidate
from besiege.bench.plan import Plan
from besiege.bench.reading import gather
from besiege.bench.store import Store
from besiege.core.errors import StoreError
from besiege.metrics.resampling import Resampling
from besiege.metrics.rows import Rows, places
from besiege.metrics.utility import CleanAnswers, Utility, utility

LABELS_ONLY = "it returns labels only"
BEFORE = (
    "its clean images were recorded without logits, by an earlier release; evaluate it into "
    "another folder"
)


class Utilities:
    """The utilities of pairs of evaluations of a group; records are read when one is asked for.

    Parameters
    ----------
    candidates : sequence of Candidate
        The evaluations, in the order in which they were named.
    names : sequence of str
        Their names.
    samples : array
        Ids of the samples of the group. Of a pair, those that both have answered count.
    """

    def __init__(
        self, candidates: Sequence[Candidate], names: Sequence[str], samples: NDArray[np.int64]
    ) -> None:
        self.candidates = candidates
        self.names = names
        self.samples = samples
        self._answers: dict[int, CleanAnswers] = {}

    def of(self, one: int, other: int) -> Utility:
        """The utility of the later of two evaluations against the earlier, by their places."""
        base, model = min(one, other), max(one, other)
        first, second = self._answers_of(base), self._answers_of(model)
        ids = np.intersect1d(first.rows["sample"], second.rows["sample"])
        whole = len(ids) == len(self.samples)
        return utility(
            first.of(ids),
            second.of(ids),
            names=(self.names[base], self.names[model]),
            resampling=self._resampling if whole else None,
        )

    @cached_property
    def _resampling(self) -> Resampling:
        """The same resamples for all pairs: they take longer to draw than to use."""
        return Resampling.of(len(self.samples))

    def _answers_of(self, place: int) -> CleanAnswers:
        if place not in self._answers:
            one = self.candidates[place]
            rows = one.outline.outcomes
            rows = rows.where(places(self.samples, rows["sample"]) >= 0)
            logits, lacking = clean_logits(Store(one.folder), one.plan, rows["sample"])
            self._answers[place] = CleanAnswers(rows, logits, lacking)
        return self._answers[place]


def clean_rows(store: Store, plan: Plan) -> Rows:
    """The recorded rows of the clean images of an evaluation."""
    return gather(store, plan).evidence.clean


def clean_logits(
    store: Store, plan: Plan, samples: NDArray[np.int64]
) -> tuple[NDArray[np.float32] | None, str]:
    """The recorded logits of some clean images in their order, or None and why there are none."""
    ids, found = [], []
    for key in (task.key for stage in plan.stages_of("clean") for (task,) in stage.parts):
        try:
            record = store.read(key)
            if record is None or record.failure is not None:
                continue  # not there yet
            rows, logits = store.rows([key]), store.logits(key)
        except StoreError as problem:
            return None, str(problem)
        if logits is None:
            return None, LABELS_ONLY if np.isnan(rows["confidence"]).all() else BEFORE
        ids.append(rows["sample"])
        found.append(logits)
    where = places(np.concatenate(ids or [np.zeros(0, np.int64)]), samples)
    if (where < 0).any():
        return None, "not all of its clean images are recorded"
    return np.concatenate(found)[where], ""
