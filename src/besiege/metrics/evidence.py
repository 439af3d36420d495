"""What figures and warnings are made of: the judged rows of one evaluation, and their terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.rows import Rows, places

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Trial:
    """One attack and the judged rows of it.

    Attributes
    ----------
    text : str
        The attack.
    rows : Rows
        One row per sample it was tried on and judged for: ``sample``, ``success``, the distances,
        ``first_step`` and what it cost. A sample that is missing here was not attacked, and is
        never counted as robust.
    steps : int, optional
        Steps of one climb.
    restarts : int
        How many climbs there are.
    plain : bool
        Whether it is climbs of one loss with as many answers as it likes, so that its trace can be
        read as one: ``first_step``, ``loss_first``, ``loss_late`` and ``loss_best``.
    one_step : bool
        Whether it takes a single step.
    series : str
        What the attack is but for its number of steps and restarts: trials of one series differ
        in nothing else.
    access : str
        What it asks of the victim: 'gradient', 'score', 'decision', or 'transfer' where it was
        crafted on a substitute.
    losses : frozenset of str
        The losses it climbs, of all its parts.
    targets : int, optional
        How many wrong classes it means to try, where it tries several.
    probe : float, optional
        How far apart, in widths of the box, images are whose scores it compares to estimate
        gradients.
    """

    text: str
    rows: Rows
    steps: int | None = None
    restarts: int = 1
    plain: bool = False
    one_step: bool = False
    series: str = ""
    access: str = "gradient"
    losses: frozenset[str] = frozenset()
    targets: int | None = None
    probe: float | None = None

    @property
    def sees(self) -> bool:
        """Whether it follows gradients."""
        return self.access == "gradient"

    @property
    def iterates(self) -> bool:
        """Whether it follows gradients for ten steps or more; one made of attacks counts."""
        return self.sees and not self.one_step and (self.steps is None or self.steps >= 10)


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
    undefended : bool
        Whether the victim is known to have no defense, and the attacks were free to break it.
    others : mapping
        Rows of other kinds of task, by stage.
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
    undefended: bool = False
    others: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many samples were seen clean."""
        return self.clean.count

    @property
    def right(self) -> Mask:
        """Which of them were right when clean."""
        right: Mask = self.clean["correct"].astype(bool)
        return right

    def broken(self, trial: Trial) -> Mask:
        """Which rows of a trial are samples that were right when clean and are broken now."""
        right = np.isin(trial.rows["sample"], self.clean["sample"][self.right])
        broken: Mask = trial.rows["success"].astype(bool) & right
        return broken

    def broken_ids(self, trial: Trial) -> NDArray[np.int64]:
        """The ids of those samples."""
        ids: NDArray[np.int64] = trial.rows["sample"][self.broken(trial)]
        return ids

    def standing(self, trials: Sequence[Trial] | None = None) -> Mask:
        """Which samples are right when clean and broken by none of these attacks (or of all).

        Says nothing of samples that were not attacked: see `covered`.
        """
        stands = self.right.copy()
        for trial in self.trials if trials is None else trials:
            stands &= ~np.isin(self.clean["sample"], self.broken_ids(trial))
        return stands

    def before(self, trial: Trial) -> Sequence[Trial]:
        """The attacks of a chain that came before this one; none outside a chain."""
        places = [place for place, other in enumerate(self.trials) if other is trial]
        return self.trials[: places[0]] if self.chained and places else ()

    def covered(self, trial: Trial) -> Mask:
        """Which samples an attack was judged on; in a chain also those that had fallen before.

        What had fallen counts where the attack was judged on what stood beside it: of a part of
        the samples that it has not reached yet, the fallen alone would say that all fell.
        """
        tried: Mask = np.isin(self.clean["sample"], trial.rows["sample"])
        earlier = self.before(trial)
        if not earlier:
            return tried
        stands = self.standing(earlier)
        fallen: Mask = ~stands
        if "record" in self.clean:
            late = np.unique(self.clean["record"][stands & ~tried])
            fallen &= ~np.isin(self.clean["record"], late)
        return tried | fallen

    def covered_by_all(self) -> Mask:
        """Which samples every attack was judged on: only these can be called robust."""
        known = np.full(self.count, bool(self.trials))
        for trial in self.trials:
            known &= self.covered(trial)
        return known

    def left_by(self, trial: Trial) -> Mask:
        """Which samples are right after an attack; in a chain, after those before it too."""
        return self.standing([*self.before(trial), trial])

    def accuracy(self, trial: Trial) -> float:
        """The share that is right after an attack, of the samples it was judged on."""
        covered = self.covered(trial)
        return float(self.left_by(trial)[covered].mean()) if covered.any() else 1.0

    def strongest(self) -> Trial | None:
        """The attack that leaves fewest samples correct; in a chain, the one that broke most.

        Of equal ones the first, over the samples that every attack was judged on.
        """
        tried = [trial for trial in self.trials if trial.rows.count]
        if self.chained:
            return max(tried, key=lambda trial: len(self.broken_ids(trial)), default=None)
        known = self.covered_by_all()
        return min(tried, key=lambda trial: int(self.left_by(trial)[known].sum()), default=None)

    def gain(self, one: Trial, other: Trial) -> float:
        """How much less the other attack leaves right, of the samples both were judged on."""
        both = self.covered(one) & self.covered(other)
        if not both.any():
            return 0.0
        fewer = int(self.left_by(one)[both].sum()) - int(self.left_by(other)[both].sum())
        return fewer / int(both.sum())

    def missed(self, trial: Trial, others: Sequence[Trial]) -> int:
        """How many samples an attack broke that some of the others tried, and none broke."""
        if not others:
            return 0
        mine = self.broken_ids(trial)
        tried = np.concatenate([other.rows["sample"] for other in others])
        found = np.concatenate([self.broken_ids(other) for other in others])
        return int((np.isin(mine, tried) & ~np.isin(mine, found)).sum())

    def searches(self) -> Sequence[Trial]:
        """The search for the smallest change and the attacks, each once."""
        every = self.trials if self.curve is None else (self.curve, *self.trials)
        return [*{id(trial): trial for trial in every}.values()]

    def smallest(
        self, trials: Sequence[Trial] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The smallest change that any attack found, or any of these, for samples of the curve.

        Ids and distances: 0 where a sample was wrong when clean, infinite where nothing was found.
        Successes at a fixed budget count as well as those of the search. Where every attack
        searches, the samples are those that all of them were judged on.
        """
        if self.curve is None:
            return np.zeros(0, np.int64), np.zeros(0)
        searched = self.covered_by_all() if self.eps is None else self.covered(self.curve)
        ids = self.clean["sample"][searched]
        ends = np.where(self.right[searched], np.inf, 0.0)
        for trial in self.searches() if trials is None else trials:
            won = trial.rows.where(trial.rows["success"].astype(bool))
            where = places(ids, won["sample"])
            np.minimum.at(ends, where[where >= 0], won[self.norm][where >= 0])
        return ids, ends
