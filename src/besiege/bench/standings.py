"""Who is most robust: the models of a board ranked under each threat, with ranges of ranks.

Cells with the same norm, budget, goal and samples are one setting. Under it an image is robust if
it withstood every attack of every cell, so that the figure is that of the worst attack for each
image. Nothing is averaged over attacks, norms or goals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from besiege.bench.board import Board, BoardCell
from besiege.metrics.comparing import Aligned
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Ids
from besiege.metrics.paired import LEVEL, Difference, holm, samples_needed
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
    worst : tuple of (int, int), optional
        The cell and the attack that broke most, by their places; without a budget, with the
        smallest median.
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
    worst: tuple[int, int] | None
    missed: tuple[str, ...]
    stops: tuple[str, ...]
    complete: bool


@dataclass(frozen=True)
class Versus:
    """Two models under a setting; the first is the more robust one.

    ``p`` is corrected for all pairs of models of the board (Holm); ``needed`` is about how many
    images would show a difference of this size.
    """

    first: str
    second: str
    change: Difference
    p: float
    needed: int | None = None

    @property
    def clear(self) -> bool:
        """Whether the images show that the first is more robust."""
        return self.p < 1 - LEVEL


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

    @property
    def title(self) -> str:
        """Norm and budget: ``linf 8/255``, or ``linf, smallest``."""
        return f"{self.norm}, smallest" if self.eps is None else f"{self.norm} {self.eps_text}"

    def pair(self, one: str, other: str) -> Versus | None:
        """The comparison of two models, whichever is the more robust one."""
        return self._pairs.get(frozenset((one, other)))

    @cached_property
    def _pairs(self) -> dict[frozenset[str], Versus]:
        return {frozenset((pair.first, pair.second)): pair for pair in self.pairs}


def settings_of(board: Board) -> tuple[Setting, ...]:
    """The settings of a board with their rankings, in the order of its cells."""
    made = [_ranked(board, one) for one in _settings(board)]
    pairs = [pair for one in made for pair in one.pairs]
    corrected = iter(
        replace(pair, p=p, needed=samples_needed(pair.change, len(pairs)))
        for pair, p in zip(pairs, holm([pair.change.p for pair in pairs]), strict=True)
    )
    return tuple(_with_ranges(one, [next(corrected) for _ in one.pairs]) for one in made)


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


def _ranked(board: Board, setting: Setting) -> Setting:
    cells = [board.cells[place] for place in setting.cells]
    names = [m.name for m in board.models if any(m.name in cell.models for cell in cells)]
    found = [_worst_case(setting, cells, name) for name in names]
    aligned = Aligned(
        setting.samples, np.array([v for v, _ in found]), np.array([k for _, k in found])
    )
    standings = [_standing(board, setting, name, aligned, m) for m, name in enumerate(names)]
    order = sorted(range(len(names)), key=lambda m: _place(standings[m]))
    pairs = []
    for one, other in combinations(order, 2):
        change = aligned.difference(one, other)
        if change is not None and change.value < 0:
            one, other = other, one
            change = aligned.difference(one, other)
        if change is not None:
            pairs.append(Versus(names[one], names[other], change, change.p))
    return replace(setting, standings=tuple(standings[m] for m in order), pairs=tuple(pairs))


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
    sizes = {
        (number, a): left_by(cell, m, a, setting.eps)
        for number, cell, m in mine
        for a in range(len(cell.attacks))
        if cell.covered[m, a].any()
    }
    return Standing(
        name,
        1,
        1,
        Rate.of(int(right.sum()), len(right)) if len(right) else None,
        Rate.of(int(withstood.sum()), len(values)) if len(values) else None,
        quantile(values) if setting.eps is None and len(values) else None,
        min(sizes, key=lambda key: sizes[key], default=None),
        tuple(cell.name for n in setting.cells if _is_missed(board, cell := board.cells[n], name)),
        tuple(dict.fromkeys(w.id for e in evaluations for w in e.warnings if w.level == "stop")),
        all(one.complete for one in evaluations),
    )


def _is_missed(board: Board, cell: BoardCell, name: str) -> bool:
    """Whether a model was not evaluated in a cell, though it could be: not from itself."""
    texts = {model.name: model.text for model in board.models}
    return name not in cell.models and texts[name] not in cell.sources


def left_by(cell: BoardCell, m: int, a: int, eps: float | None) -> float:
    """What an attack leaves of a model: the accuracy, or without a budget the median distance."""
    covered = cell.covered[m, a]
    if eps is None:
        return float(cell.medians[m, a])
    return float(cell.left_by(a, eps)[m][covered].mean())


def _place(one: Standing) -> tuple[bool, bool, float, float]:
    """The most robust first, those that must not be quoted last, those without a figure at the end.

    As on the page of a run: a figure that must not be quoted may be far too high.
    """
    if one.robust is None:
        return True, bool(one.stops), 0.0, 0.0
    value = one.robust.value if one.median is None else one.median
    return False, bool(one.stops), -value, -(one.clean.value if one.clean else 0.0)


def _with_ranges(setting: Setting, pairs: list[Versus]) -> Setting:
    """The setting with corrected pairs; a rank is sure where pairs are clear.

    At least as many models are better than one as are clearly better, and at most all but those
    that are clearly worse. Ranges made of corrected pairs hold for all models at once (Mogstad,
    Romano, Shaikh and Wilhelm 2024).
    """
    names = [one.model for one in setting.standings]
    better = np.zeros((len(names), len(names)), bool)
    for pair in pairs:
        if pair.clear:
            better[names.index(pair.first), names.index(pair.second)] = True
    low, high = 1 + better.sum(0), len(better) - better.sum(1)
    standings = tuple(
        replace(one, low=int(low[m]), high=int(high[m])) for m, one in enumerate(setting.standings)
    )
    return replace(setting, standings=standings, pairs=tuple(pairs))


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
