"""The input of figures and warnings: the judged rows of one evaluation, and its threat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.chance import Apart
from besiege.metrics.rows import Rows, places

Mask = NDArray[np.bool_]
SPARED = "proved"
"""The column of attacks that says which samples they were not run on, because these are proved."""


class Origin(NamedTuple):
    """Where replayed images come from.

    Attributes
    ----------
    model, attack : str
        The model they were made on, and the attack.
    through : str
        The layer that they passed since then, if any.
    same : bool
        Whether they were made on the model that they are judged on.
    """

    model: str
    attack: str
    through: str
    same: bool

    def __str__(self) -> str:
        what = [self.attack] if self.same else [self.model, self.attack]
        what += [self.through] if self.through else []
        return f"{'replay' if self.same else 'transfer'}({', '.join(what)})"

    @property
    def passed(self) -> str:
        """The layer as tables name it: DEEPSEC compressed with another encoder."""
        guetzli = self.through.partition("(")[0].strip() == "jpeg"
        return f"{self.through} (not Guetzli)" if guetzli else self.through


@dataclass(frozen=True, eq=False)
class Trial:
    """One attack and its judged rows.

    Attributes
    ----------
    text : str
        The attack.
    rows : Rows
        One row per judged sample: ``sample``, ``success``, the distances, ``first_step`` and the
        cost. A sample that is missing here was not attacked, and never counts as robust.
    steps : int, optional
        Steps of one ascent.
    restarts : int
        Number of ascents.
    plain : bool
        Whether it consists of ascents of one loss without a query limit, so that ``first_step``,
        ``loss_first``, ``loss_late`` and ``loss_best`` describe one ascent.
    one_step : bool
        Whether it takes a single step.
    last : bool
        Whether only its last iterate is examined.
    series : str
        The attack without its steps and restarts: trials of one series differ in these only.
    access : str
        The access it uses: 'gradient', 'score', 'decision', or 'transfer' where it was crafted on
        another model.
    losses : frozenset of str
        The losses that it and its parts maximise.
    targets : int, optional
        Number of wrong classes it is set to try, where it tries several.
    probe : float, optional
        Distance, in widths of the box, between images whose scores it compares to estimate
        gradients.
    guard : bool
        Whether it only tests the attacks before it, on some of the samples that they left. Its
        successes count; samples that it was not tried on are not missing.
    random : bool
        Whether its points do not depend on the model: noise, and blends with other images.
    elsewhere : array, optional
        For images crafted on a substitute: which of them the substitute misclassifies.
    given : bool
        Whether its images were made elsewhere, of some of the samples: what they cost is not known.
    draws : int
        The number of draws of a stochastic model over which it averages every answer.
    oblivious : bool
        Whether it ignores the defense: it was crafted on the undefended model.
    origin : Origin, optional
        Where the images of a replay come from.
    longest : int, optional
        The largest number of steps that it or one of its parts takes; None where none has steps.
    """

    text: str
    rows: Rows
    steps: int | None = None
    restarts: int = 1
    plain: bool = False
    one_step: bool = False
    last: bool = False
    series: str = ""
    access: str = "gradient"
    losses: frozenset[str] = frozenset()
    targets: int | None = None
    probe: float | None = None
    guard: bool = False
    random: bool = False
    elsewhere: Mask | None = None
    given: bool = False
    draws: int = 1
    oblivious: bool = False
    origin: Origin | None = None
    longest: int | None = None

    @property
    def partial(self) -> bool:
        """Whether it was meant for some samples only: others are neither missing nor robust to it.

        Its successes count like those of any attack.
        """
        return self.guard or self.given

    @property
    def spared(self) -> Mask:
        """Which rows are of samples that it was not run on, because they are proved."""
        if SPARED not in self.rows:
            return np.zeros(self.rows.count, bool)
        spared: Mask = self.rows[SPARED].astype(bool)
        return spared

    @property
    def sees(self) -> bool:
        """Whether it is gradient-based."""
        return self.access == "gradient"

    @property
    def iterates(self) -> bool:
        """Whether it is gradient-based with ten steps or more; combined attacks count."""
        return self.sees and not self.one_step and (self.steps is None or self.steps >= 10)


class Calibrated(NamedTuple):
    """How the threshold of a victim that may reject images was set.

    Attributes
    ----------
    nominal : float
        The share of clean images that it was set to reject.
    images : int
        The number of clean images that it was set on; 0 if that is not known.
    here : int
        How many of these are evaluated here.
    """

    nominal: float
    images: int = 0
    here: int = 0


@dataclass(frozen=True, eq=False)
class Evidence:
    """The judged rows of one victim under one threat.

    Attributes
    ----------
    clean : Rows
        ``sample``, ``label``, ``prediction``, ``confidence``, ``correct`` of every clean sample.
    trials : sequence of Trial
        The attacks, in order.
    chained : bool
        Whether each attack ran only on the samples that withstood the ones before, as in a suite.
    norm, eps, box, pixels
        The threat, the range of a pixel value, and the number of pixel values of an image.
    classes : int
        The victim's number of classes.
    curve : Trial, optional
        The search for the smallest perturbation.
    standard : float, optional
        The budget usual for these data.
    undefended : bool
        Whether the victim is known to have no defense, and the threat restricts only the budget.
    total : int, optional
        The number of samples that the data set has, without those that are withheld.
    withheld : int
        Samples of the data set that were left out because a detector was calibrated on them.
    others : mapping
        Rows of other kinds of task, by stage.
    stochastic : bool
        Whether the victim is stochastic.
    surrogates : tuple of str
        The victim's layers whose gradient is that of a surrogate.
    pooled : int
        Draws that one answer of the victim pools.
    rejects : bool
        Whether the victim may reject images: rows then have ``rejected`` and ``suspicion``.
    calibration : Calibrated, optional
        How the victim's threshold was set, if it is known.
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
    total: int | None = None
    withheld: int = 0
    others: Mapping[str, Rows] = field(default_factory=dict)
    stochastic: bool = False
    surrogates: tuple[str, ...] = ()
    pooled: int = 1
    rejects: bool = False
    calibration: Calibrated | None = None

    @property
    def attacks(self) -> Sequence[Trial]:
        """The trials that were meant for all samples: without guards and images made elsewhere."""
        return [trial for trial in self.trials if not trial.partial]

    @property
    def count(self) -> int:
        """The number of clean samples."""
        return self.clean.count

    @property
    def right(self) -> Mask:
        """Which of them are classified correctly."""
        right: Mask = self.clean["correct"].astype(bool)
        return right

    def broken(self, trial: Trial) -> Mask:
        """Which rows of a trial are correctly classified samples that the attack broke."""
        right = np.isin(trial.rows["sample"], self.clean["sample"][self.right])
        broken: Mask = trial.rows["success"].astype(bool) & right
        return broken

    def broken_ids(self, trial: Trial) -> NDArray[np.int64]:
        """The ids of those samples."""
        ids: NDArray[np.int64] = trial.rows["sample"][self.broken(trial)]
        return ids

    def newly_broken(self, trial: Trial) -> Mask:
        """The same; in a suite without those that an attack before it broke.

        A suite attacks samples of a stochastic victim again that were broken in some draws.
        """
        mine = self.broken(trial)
        for other in self.before(trial):
            mine &= ~np.isin(trial.rows["sample"], self.broken_ids(other))
        return mine

    def standing(self, trials: Sequence[Trial] | None = None) -> Mask:
        """Which samples are classified correctly and broken by none of these attacks (or of all).

        It includes samples that were not attacked: see `covered`. In a suite, a clean image that
        the judge of an attack saw misclassified does not stand: later attacks left it out.
        """
        stands = self.right.copy()
        for trial in self.trials if trials is None else trials:
            fallen = trial.rows["success"].astype(bool)
            if self.chained and "correct" in trial.rows:
                fallen = fallen | ~trial.rows["correct"].astype(bool)
            stands &= ~np.isin(self.clean["sample"], trial.rows["sample"][fallen])
        return stands

    def before(self, trial: Trial) -> Sequence[Trial]:
        """The attacks of a suite, or those that a guard tests, before this one; none otherwise."""
        places = [place for place, other in enumerate(self.trials) if other is trial]
        return self.trials[: places[0]] if self._follows(trial) and places else ()

    def _follows(self, trial: Trial) -> bool:
        """Whether an attack is counted together with those before it."""
        return self.chained or trial.guard

    def covered(self, trial: Trial) -> Mask:
        """Which samples an attack was judged on; in a suite also those broken before it.

        Samples broken before count only in shards where the attack was judged on the unbroken
        ones: otherwise all samples of an unfinished shard would count as broken. A guard, or
        another partial attack after a suite, covers what the attacks before it cover.
        """
        if trial.partial and self._follows(trial):
            return self.covered_by_all()
        tried: Mask = np.isin(self.clean["sample"], trial.rows["sample"])
        earlier = self.before(trial)
        if not earlier:
            return tried
        stands = self.standing(earlier)
        broken: Mask = ~stands
        missed = stands & ~tried
        if "record" in self.clean and missed.any():
            broken &= ~np.isin(self._shard, self._shard[missed])
        return tried | broken

    @cached_property
    def _shard(self) -> NDArray[np.intp]:
        """A number for each sample, equal for samples of one record: texts compare slowly."""
        return np.unique(self.clean["record"], return_inverse=True)[1]

    def covered_by_all(self) -> Mask:
        """Which samples every attack was judged on: only these can be called robust."""
        known = np.full(self.count, bool(self.trials))
        for trial in self.attacks:
            known &= self.covered(trial)
        return known

    def left_by(self, trial: Trial) -> Mask:
        """Which samples withstand an attack; in a suite, also those before it."""
        return self.standing([*self.before(trial), trial])

    def accuracy(self, trial: Trial) -> float:
        """Accuracy under an attack, over the samples it was judged on."""
        covered = self.covered(trial)
        return float(self.left_by(trial)[covered].mean()) if covered.any() else 1.0

    def strongest(self, transfer: bool = True) -> Trial | None:
        """The attack with the lowest accuracy; in a suite, the one that broke most.

        It is the first of equal ones, over the samples that every attack was judged on. Without
        `transfer`, the strongest of the attacks on the model itself, if there is one.
        """
        tried = [trial for trial in self.attacks if trial.rows.count]
        own = [trial for trial in tried if trial.access != "transfer"]
        tried = own if own and not transfer else tried
        if self.chained:
            return max(tried, key=lambda trial: len(self.broken_ids(trial)), default=None)
        known = self.covered_by_all()
        return min(tried, key=lambda trial: int(self.left_by(trial)[known].sum()), default=None)

    def apart(self, one: Trial, other: Trial) -> Apart:
        """The samples on which two attacks differ, of those judged under both."""
        both = self.covered(one) & self.covered(other)
        mine, theirs = self.left_by(one)[both], self.left_by(other)[both]
        counts = ((mine & ~theirs).sum(), (theirs & ~mine).sum(), both.sum())
        return Apart(*map(int, counts))

    def gain(self, one: Trial, other: Trial) -> float:
        """How much lower accuracy is under the other attack, over samples judged under both."""
        return self.apart(one, other).gain

    def missed(self, trial: Trial, others: Sequence[Trial]) -> int:
        """The number of samples that an attack broke, some others tried, and none of them broke."""
        if not others:
            return 0
        mine = self.broken_ids(trial)
        tried = np.concatenate([other.rows["sample"] for other in others])
        broken = np.concatenate([self.broken_ids(other) for other in others])
        return int((np.isin(mine, tried) & ~np.isin(mine, broken)).sum())

    def searches(self) -> Sequence[Trial]:
        """The search for the smallest perturbation and the attacks, each once."""
        every = self.trials if self.curve is None else (self.curve, *self.trials)
        return [*{id(trial): trial for trial in every}.values()]

    def smallest(
        self, trials: Sequence[Trial] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The smallest perturbation of any attack, or any of `trials`, for samples of the curve.

        Ids and distances: 0 where a sample was misclassified when clean, infinite where no attack
        succeeded. Successes at a fixed budget count, too. Where every attack searches, the samples
        are those that all of them were judged on.
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
