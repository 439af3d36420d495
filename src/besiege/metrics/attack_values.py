"""What attacks did, as frozen values: accuracies, curves, costs, distances and successes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from besiege.metrics.intervals import Rate

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class AttackCurve:
    """Accuracy under one attack: ``value[i]`` from ``x[i]`` up to ``x[i + 1]``."""

    attack: str
    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    count: int


@dataclass(frozen=True)
class BudgetCurve:
    """Accuracy against the budget, the median distance, and the number of unbroken images."""

    attack: str
    norm: str
    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    count: int
    median: float | None
    unbroken: int

    def at(self, budget: float) -> Rate:
        """The accuracy at a budget, with its interval: that of the last point up to it."""
        place = max(bisect_right(self.x, budget) - 1, 0)
        return Rate.of(round(self.value[place] * self.count), self.count)


@dataclass(frozen=True)
class AttackFigures:
    """Result and cost of one attack; ``accuracy`` is None where no image was judged.

    ``broken`` are correctly classified images; in a suite those that it was the first to break.
    ``alone`` are those that no other attack broke, and None in a suite, whose attacks do not see
    the images that earlier ones broke.

    A ``guard`` tests the other attacks on some of the images that they left: ``tried`` images.
    Images that were ``given`` were made elsewhere, of some samples, and nothing is known about
    their cost.
    """

    text: str
    told: str
    steps: int | None
    transfer: bool
    accuracy: Rate | None
    broken: int
    alone: int | None
    median_distance: float | None
    forwards: int
    backwards: int
    queries: int
    seconds: float
    complete: bool
    failure: str | None
    guard: bool = False
    given: bool = False
    tried: int | None = None


@dataclass(frozen=True)
class AttackQueries:
    """Queries per image of one query-based attack, over the ``count`` images that it attacked.

    ``to_break`` is the median number up to the first success, over the images it broke.
    """

    text: str
    count: int
    mean: float
    median: float
    to_break: float | None


@dataclass(frozen=True)
class Stage:
    """One attack of the list: ``before`` is ``broken + left + unknown``.

    It did not run on ``spared`` of them, which are proved.
    """

    text: str
    before: int
    broken: int
    left: int
    unknown: int
    queries_to_break: float | None
    queries: int
    forwards: int
    backwards: int
    seconds: float
    spared: int = 0

    @property
    def ran_on(self) -> int:
        """How many images it ran on: not broken by an attack before it, and not proved."""
        return self.before - self.spared


@dataclass(frozen=True)
class AttackUtility:
    """What the successes of one attack on one model look like, and what they cost (DEEPSEC).

    Everything but `mr` and the cost is a mean over the successes, of `count` or, where images are
    compared, of `measured` of them. None is a value that is not known; `lacking` says why.

    Attributes
    ----------
    text : str
        The attack.
    transfer : bool
        Whether it was crafted on another model, or its images were made elsewhere.
    mr : Rate, optional
        The share of successes, of all images that are classified correctly when clean.
    count : int
        The number of successes.
    acac, actc, nte, entropy : float, optional
        Probability of the predicted class, of the true class, the lead of the former over the
        second largest, and entropy in natural logarithms.
    measured : int
        The number of successes whose images were compared, the first by their samples.
    l0, l2, linf : float, optional
        Average distortion as in DEEPSEC's code: norms of values from 0 to 1, for l0 the share of
        values that differ after rounding to 8 bits.
    l0_relative, l2_relative, linf_relative : float, optional
        As in its paper: norms of the perturbation over those of the clean image.
    ass, ass_published : float, optional
        Average structural similarity with the data range 255, and with 2 as DEEPSEC published it.
    psd, psd_paper : float, optional
        Perturbation sensitivity distance with ``1 - std``, as its code, and ``1 / std``, its paper.
    seconds, passes : float, optional
        Time, and forward and backward passes, for each attacked image.
    lacking : mapping
        Why values are None: sentences by ``mr``, ``probabilities``, ``images``, ``window`` and
        ``cost``.
    """

    text: str
    transfer: bool
    mr: Rate | None
    count: int
    acac: float | None = None
    actc: float | None = None
    nte: float | None = None
    entropy: float | None = None
    measured: int = 0
    l0: float | None = None
    l2: float | None = None
    linf: float | None = None
    l0_relative: float | None = None
    l2_relative: float | None = None
    linf_relative: float | None = None
    ass: float | None = None
    ass_published: float | None = None
    psd: float | None = None
    psd_paper: float | None = None
    seconds: float | None = None
    passes: float | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayFigures:
    """What images do that were made on another model, or passed a transformation since then.

    Attributes
    ----------
    text : str
        What tables call them: ``transfer(MODEL, ATTACK)`` or ``replay(ATTACK, LAYER)``.
    model, attack, through : str
        The model they were made on, the attack, and the layer they passed, if any.
    same : bool
        Whether they were made on the model that judges them.
    still : Rate, optional
        The share that still reaches the goal, of all replayed images, whatever their distance.
    right : Rate, optional
        The share that the model classifies correctly. It is no robustness.
    adaptive : Rate, optional
        The share of the same samples that withstands every attack on the model itself.
    same_attack : Rate, optional
        The same for the one attack that made the images, run on this model; in a suite, for it
        and those before it, which decide where it runs.
    """

    text: str
    model: str
    attack: str
    through: str
    same: bool
    still: Rate | None
    right: Rate | None
    adaptive: Rate | None
    same_attack: Rate | None


@dataclass(frozen=True)
class Descent:
    """The median of the best distances within numbers of passes and in all, and the mean passes."""

    passes: tuple[int, ...]
    median: tuple[float | None, ...]
    in_all: float | None
    spent: float


@dataclass(frozen=True)
class Sizes:
    """Sizes of the smallest perturbations; None where infinite."""

    median: float | None
    mean: float | None
    p90: float | None
    area: float
    area_to: float
    unbroken: int
    cost: Descent | None


@dataclass(frozen=True)
class AttackSizes(Sizes):
    """The sizes of one attack.

    ``best`` counts the images for which it found the smallest perturbation of all;
    ``optimality`` is `local_optimality`.
    """

    text: str
    best: int
    optimality: float


@dataclass(frozen=True)
class Distances:
    """The sizes of each attack and of the best of all, over the same samples."""

    count: int
    broken: int
    all: Sizes
    attacks: tuple[AttackSizes, ...]
