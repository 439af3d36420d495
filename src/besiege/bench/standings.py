"""Who is most robust: the models of a board ranked under each threat, with ranges of ranks.

Cells with the same norm, budget, goal and samples are one setting. Under it an image is robust if
it withstood every attack of every cell, so that the figure is that of the worst attack for each
image. Nothing is averaged over attacks, norms or goals. A rank is a range (`metrics/ranks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from besiege.bench.board import Board, BoardCell, Mask, images_in_words
from besiege.core.threat import written_unit
from besiege.metrics.comparing import Aligned
from besiege.metrics.crossings import Crossing, along_budget
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Ids, Numbers
from besiege.metrics.paired import ALPHA, Difference, samples_needed
from besiege.metrics.ranks import corrected_p, rank_ranges
from besiege.metrics.rows import places


@dataclass(frozen=True)
class Standing:
    """One model under a setting.

    Attributes
    ----------
    model : str
        Its name.
    low, high : int
        Its range of ranks: at least `low` - 1 models are better, and `high` - 1 may be.
    clean, robust : Rate, optional
        Accuracy without an attack, and under the worst attack for each image, over the images that
        were judged under every attack; None without such images.
    median : float, optional
        The median smallest perturbation, where the setting has no budget; infinite where fewer
        than half of the images were broken.
    worst : tuple of (int, int)
        The cells and attacks that broke most, by their places: several where they tie. Without a
        budget, those with the smallest median. Empty where they cannot be compared: several attacks
        of a suite broke images, each of what those before it left.
    missed : tuple of str
        Cells of the setting that the model was not evaluated in.
    stops : tuple of str
        Ids of the rules because of which its figures must not be quoted.
    complete : bool
        Whether all its records exist.
    """

    model: str
    low: int
    high: int
    clean: Rate | None
    robust: Rate | None
    median: float | None
    worst: tuple[tuple[int, int], ...]
    missed: tuple[str, ...]
    stops: tuple[str, ...]
    complete: bool


@dataclass(frozen=True)
class Versus:
    """Two models under a setting; the first is the more robust one.

    ``p`` is corrected for all pairs of the setting (`besiege.metrics.ranks.corrected_p`);
    ``needed`` is about how many images would show a difference of this size. ``crossing`` says
    whether the order of the two changes with the budget, where searches found the smallest
    perturbations of both.
    """

    first: str
    second: str
    change: Difference
    p: float
    needed: int | None = None
    crossing: Crossing | None = None

    @property
    def clear(self) -> bool:
        """Whether the images show that the first is more robust."""
        return self.p < ALPHA


@dataclass(frozen=True, eq=False)
class Setting:
    """What the attacker may do, over all cells with the same norm, budget, goal and samples.

    Attributes
    ----------
    norm, goal, data : str
        Norm, goal and data set.
    eps, eps_text
        The budget; None where attacks search for the smallest perturbation.
    samples : array
        Ids of the samples.
    cells : tuple of int
        Places of the cells in the board.
    standings : tuple of Standing
        The models, the most robust first; those that must not be quoted come last.
    pairs : tuple of Versus
        All pairs of models.
    common : int
        On how many samples the outcome of every model with an outcome is known: each pair is
        compared on these at least.
    """

    norm: str
    goal: str
    data: str
    eps: float | None
    eps_text: str | None
    samples: Ids
    cells: tuple[int, ...]
    standings: tuple[Standing, ...] = ()
    pairs: tuple[Versus, ...] = ()
    common: int = 0

    @property
    def title(self) -> str:
        """Norm and budget: ``linf 8/255``, or ``linf, smallest``."""
        return f"{self.norm}, smallest" if self.eps is None else f"{self.norm} {self.eps_text}"

    @property
    def alike(self) -> bool:
        """Whether all models were judged on the same images."""
        counts = {one.robust.count for one in self.standings if one.robust is not None}
        return counts == {self.common}

    @property
    def images(self) -> str:
        """The images that the models were judged on, in words."""
        counts = [one.robust.count for one in self.standings if one.robust is not None]
        return images_in_words(counts or [0], self.common)

    def pair(self, one: str, other: str) -> Versus | None:
        """The comparison of two models, whichever is the more robust one."""
        return self._pairs.get(frozenset((one, other)))

    @cached_property
    def _pairs(self) -> dict[frozenset[str], Versus]:
        return {frozenset((pair.first, pair.second)): pair for pair in self.pairs}


def settings_of(board: Board) -> tuple[Setting, ...]:
    """The settings of a board with their rankings, in the order of its cells."""
    return tuple(
        _ranked(board, one, names) for one in _settings(board) for names in _meeting(board, one)
    )


def _meeting(board: Board, setting: Setting) -> list[list[str]]:
    """The models of a setting in sets of which any two have images in common.

    Models that were judged on different images are not ranked among each other: the figures of
    both are of other images, and no test compares them.
    """
    cells = [board.cells[place] for place in setting.cells]
    found: list[tuple[list[str], list[Mask]]] = []
    for name in _names(board, cells):
        mine = _worst_case(setting, cells, name)[1]
        for names, theirs in found:
            # Where nothing is known yet a model stays: the figures will come.
            if all((mine & one).any() or not (mine.any() and one.any()) for one in theirs):
                names.append(name)
                theirs.append(mine)
                break
        else:
            found.append(([name], [mine]))
    return [names for names, _ in found]


def _names(board: Board, cells: Sequence[BoardCell]) -> list[str]:
    """The models of some cells, in the order of the board."""
    return [m.name for m in board.models if any(m.name in cell.models for cell in cells)]


def _settings(board: Board) -> list[Setting]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, cell in enumerate(board.cells):
        key = cell.norm, cell.eps, cell.goal, cell.data, cell.samples.tobytes()
        groups.setdefault(key, []).append(place)
    found = []
    for members in groups.values():
        one = board.cells[members[0]]
        about = one.norm, one.goal, one.data, one.eps, one.eps_text, one.samples
        found.append(Setting(*about, tuple(members)))
    return found


def _ranked(board: Board, setting: Setting, names: Sequence[str]) -> Setting:
    """The setting with some of its models ranked."""
    cells = [board.cells[place] for place in setting.cells]
    found = [_worst_case(setting, cells, name) for name in names]
    aligned = Aligned(
        setting.samples, np.array([v for v, _ in found]), np.array([k for _, k in found])
    )
    standings = [_standing(board, setting, name, aligned, m) for m, name in enumerate(names)]
    order = sorted(range(len(names)), key=lambda m: _place(standings[m]))
    pairs = _versus(aligned, names, order)
    where = [(names.index(pair.first), names.index(pair.second)) for pair in pairs]
    unit = written_unit(setting.norm, setting.eps_text) or 1
    crossed = along_budget(_searched(setting, cells, names), where, unit=unit)
    pairs = tuple(replace(pair, crossing=one) for pair, one in zip(pairs, crossed, strict=True))
    better = np.zeros((len(names), len(names)), bool)
    for pair in pairs:
        better[names.index(pair.first), names.index(pair.second)] = pair.clear
    low, high = rank_ranges(better)
    ranked = tuple(replace(standings[m], low=int(low[m]), high=int(high[m])) for m in order)
    known = aligned.known[aligned.known.any(1)]
    common = int(known.all(0).sum()) if len(known) else 0
    return replace(setting, standings=ranked, pairs=pairs, common=common)


def _versus(aligned: Aligned, names: Sequence[str], order: Sequence[int]) -> tuple[Versus, ...]:
    """All pairs that were judged on common images, the more robust one of each first."""
    found = []
    for one, other in combinations(order, 2):
        change = aligned.difference(one, other)
        if change is not None and change.value < 0:
            one, other = other, one
            change = aligned.difference(one, other)
        if change is not None:
            found.append((one, other, change))
    first, second = [one for one, _, _ in found], [other for _, other, _ in found]
    both = aligned.known[first] & aligned.known[second]
    # As `Aligned.difference`: without a budget, on which images the first needs more.
    signs = np.sign(_finite(aligned.values[first]) - _finite(aligned.values[second]))
    return tuple(
        Versus(names[one], names[other], change, float(p), samples_needed(change, len(found)))
        for (one, other, change), p in zip(found, corrected_p(signs, both), strict=True)
    )


def _finite(values: Numbers) -> Numbers:
    """Values whose differences are numbers: infinite ones are the largest."""
    return np.nan_to_num(values, posinf=np.finfo(np.float64).max)


def _worst_case(
    setting: Setting, cells: Sequence[BoardCell], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """How robust each sample is under the worst of all attacks, and whether that is known."""
    count = len(setting.samples)
    values, known = np.full(count, np.inf), np.ones(count, bool)
    for cell in cells:
        if name in cell.models:
            m = cell.models.index(name)
            mine = cell.smallest[m] if setting.eps is None else cell.withstood(setting.eps)[m]
            values = np.fmin(values, mine)
            known &= cell.known[m]
    return np.where(known, values, 0.0), known


def _searched(setting: Setting, cells: Sequence[BoardCell], names: Sequence[str]) -> Numbers:
    """The smallest perturbations that any search found, ``[models, samples]``; NaN without one."""
    found = np.full((len(names), len(setting.samples)), np.nan)
    for cell in cells:
        for m, name in enumerate(cell.models):
            if name not in names:
                continue
            mine = names.index(name)
            found[mine] = np.fmin(found[mine], cell.searched[m])
    return found


def _standing(board: Board, setting: Setting, name: str, aligned: Aligned, place: int) -> Standing:
    mine = [
        (number, cell, cell.models.index(name))
        for number in setting.cells
        if name in (cell := board.cells[number]).models
    ]
    values = aligned.values[place][aligned.known[place]]
    evaluations = [board.evaluation(cell, m) for _, cell, m in mine]
    withstood = np.isinf(values) if setting.eps is None else values > 0
    first, at = mine[0][1], mine[0][2]
    right = first.correct[at][aligned.known[place]]
    return Standing(
        name,
        1,
        1,
        Rate.of(int(right.sum()), len(right)) if len(right) else None,
        Rate.of(int(withstood.sum()), len(values)) if len(values) else None,
        quantile(values) if setting.eps is None and len(values) else None,
        strongest(mine, setting.eps),
        tuple(cell.name for n in setting.cells if _is_missed(board, cell := board.cells[n], name)),
        tuple(dict.fromkeys(w.id for e in evaluations for w in e.warnings if w.level == "stop")),
        all(one.complete for one in evaluations),
    )


def _is_missed(board: Board, cell: BoardCell, name: str) -> bool:
    """Whether a model was not evaluated in a cell, though it could be: not from itself."""
    texts = {model.name: model.text for model in board.models}
    return name not in cell.models and texts[name] not in cell.sources


def strongest(
    cells: Iterable[tuple[int, BoardCell, int]], eps: float | None
) -> tuple[tuple[int, int], ...]:
    """The attacks that leave the least of a model: all that tie, by cell and place in it.

    Each cell comes with the number that names it and the place of the model in it. None where
    several attacks of a suite broke images: later ones did not see what earlier ones broke.
    """
    left: dict[tuple[int, int], float] = {}
    for number, cell, m in cells:
        tried = [a for a in range(len(cell.attacks)) if cell.covered[m, a].any()]
        if cell.in_turn:
            breakers = [a for a in tried if (cell.success[m, a] & cell.correct[m]).any()]
            if len(breakers) > 1:
                return ()
            tried = breakers or tried
        left |= {(number, a): _left_by(cell, m, a, eps) for a in tried}
    least = min(left.values(), default=None)
    return tuple(key for key, value in left.items() if value == least)


def _left_by(cell: BoardCell, m: int, a: int, eps: float | None) -> float:
    """What an attack leaves of a model: the accuracy, or without a budget the median distance."""
    if eps is None:
        return float(cell.medians[m, a])
    return float(cell.left_by(a, eps)[m][cell.covered[m, a]].mean())


def _place(one: Standing) -> tuple[bool, bool, float, float]:
    """The most robust first, those that must not be quoted last, those without a figure at the end.

    As on the page of a run: a figure that must not be quoted may be far too high.
    """
    if one.robust is None:
        return True, bool(one.stops), 0.0, 0.0
    value = one.robust.value if one.median is None else one.median
    return False, bool(one.stops), -value, -(one.clean.value if one.clean else 0.0)


def medians_beside(board: Board, setting: Setting) -> dict[str, float]:
    """The median smallest perturbation of each model in searches of a setting's norm and goal.

    Of searches on the setting's samples; models without such a search are left out.
    """
    found: dict[str, np.ndarray] = {}
    for cell in board.cells:
        alike = cell.norm == setting.norm and cell.goal == setting.goal and cell.search
        if alike and (places(cell.samples, setting.samples) >= 0).all():
            for m, name in enumerate(cell.models):
                if cell.known[m].all():
                    before = found.get(name, np.full(len(cell.samples), np.inf))
                    found[name] = np.minimum(before, cell.smallest[m])
    return {name: quantile(values) for name, values in found.items() if len(values)}
