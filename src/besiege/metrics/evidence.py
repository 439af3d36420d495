"""What figures and warnings are made of: the judged rows of one evaluation, and their terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.rows import Rows

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Trial:
    """One attack and the judged rows of it.

    Attributes
    ----------
    text : str
        The attack.
    rows : Rows
        One row per sample it was tried on: ``sample``, ``correct``, ``success``, the distances,
        ``first_step`` and what it cost.
    steps : int, optional
        Steps of one climb.
    restarts : int
        How many climbs there are.
    plain : bool
        Whether it is climbs of one loss, so that ``loss_first``, ``loss_late`` and ``loss_best``
        can be compared.
    one_step : bool
        Whether it takes a single step.
    series : str
        What the attack is but for its number of steps and restarts: trials of one series differ
        in nothing else.
    """

    text: str
    rows: Rows
    steps: int | None = None
    restarts: int = 1
    plain: bool = False
    one_step: bool = False
    series: str = ""

    @property
    def broken(self) -> Mask:
        """Samples that were right when clean and are broken by a judged image, row by row."""
        broken: Mask = self.rows["correct"] & self.rows["success"]
        return broken

    def broken_ids(self) -> NDArray[np.int64]:
        """Their sample ids."""
        ids: NDArray[np.int64] = self.rows["sample"][self.broken]
        return ids


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was found out about one victim under one threat.

    Attributes
    ----------
    clean : Rows
        ``sample``, ``label``, ``prediction``, ``confidence``, ``correct`` of every sample seen.
    trials : sequence of Trial
        The attacks that ran, in order.
    chained : bool
        Whether each ran only on what the ones before left.
    norm, eps, box, pixels
        The threat, the range of a pixel, and how many values an image has.
    classes : int
        How many classes the victim answers with.
    curve : Trial, optional
        The search for the smallest change.
    standard : float, optional
        The budget usual for these data.
    elsewhere : mapping
        Accuracy of the same attacks at other budgets, by budget and text.
    """

    clean: Rows
    trials: Sequence[Trial]
    chained: bool
    norm: str
    eps: float | None
    box: tuple[float, float]
    pixels: int
    classes: int
    curve: Trial | None = None
    standard: float | None = None
    elsewhere: Mapping[float, Mapping[str, float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many samples were seen."""
        return self.clean.count

    def standing(self, trials: Sequence[Trial] | None = None) -> Mask:
        """Which samples are right when clean and broken by none of these attacks (or of all)."""
        stands: Mask = self.clean["correct"].astype(bool).copy()
        for trial in self.trials if trials is None else trials:
            stands &= ~np.isin(self.clean["sample"], trial.broken_ids())
        return stands

    def left_by(self, trial: Trial) -> Mask:
        """Which samples are right after an attack; in a chain, after those before it too."""
        if not self.chained:
            return self.standing([trial])
        return self.standing(self.trials[: list(self.trials).index(trial) + 1])

    def accuracy(self, trial: Trial) -> float:
        """The share of samples that is right after an attack."""
        return float(self.left_by(trial).mean()) if self.count else 0.0
