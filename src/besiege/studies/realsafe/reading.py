"""Reads a board by what the attacker knows: where each attack breaks each image of each model.

Cells are found by their norm, goal and knowledge, never by the names of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.bench.board import Board, BoardCell, Mask
from besiege.core.errors import UnknownNameError
from besiege.metrics.outcomes import Ids, Numbers
from besiege.metrics.rows import places
from besiege.metrics.searches import ROUNDING
from besiege.metrics.strength import broken_at

WHITE, TRANSFER, SCORES, DECISIONS = "white box", "transfer", "scores", "decisions"
UNTARGETED, TARGETED = "untargeted", "targeted:random"
WORDS = {WHITE: "white", TRANSFER: "transfer", SCORES: "score", DECISIONS: "decision"}
ORDER = {
    WHITE: ("fgsm", "bim", "mim", "deepfool", "cw"),
    TRANSFER: ("fgsm", "bim", "mim", "dim"),
    SCORES: ("nes", "spsa", "nattack", "zoo"),
    DECISIONS: ("boundary", "evolutionary"),
}
"""The 15 attacks by what the attacker knows."""
_FAMILY = re.compile(
    rf"(?<![\w@-])({'|'.join(sorted({a for some in ORDER.values() for a in some}))})(?![\w-])"
)
_PROBES = re.compile(r"sigma=")


def family(text: str) -> str:
    """The attack of the 15 that a text is about.

    Examples
    --------
    >>> family("minimal(averaged(bim@realsafe, 10), bisections=8)"), family("square")
    ('bim', '')
    """
    found = _FAMILY.search(text)
    return found[1] if found else ""


@dataclass(frozen=True, eq=False)
class Ends:
    """Where an attack breaks each image: the distance, or the step or query of the first success.

    Attributes
    ----------
    attack : str
        The attack as it was written for most models.
    cell : int
        The place of its first cell in the board.
    models, samples
        Names ``[m]``, and ids ``[n]``.
    correct, known : array ``[m, n]``
        Classified correctly without an attack; judged.
    ends : array ``[m, n]``
        0 where the clean image is misclassified, infinite where it was never broken.
    aimed : array ``[m, n]``
        Where the image is classified as the target, also if the clean image is misclassified: 0
        where that is classified as the target already. NaN without a target.
    """

    attack: str
    cell: int
    models: tuple[str, ...]
    samples: Ids
    correct: Mask
    known: Mask
    ends: Numbers
    aimed: Numbers

    def held(self, at: float) -> Mask:
        """The known images that are classified correctly and not broken within `at`."""
        return self.known & (self.ends > at * (1 + ROUNDING))

    def of(self, model: str) -> int:
        """The place of a model."""
        if model not in self.models:
            raise UnknownNameError(f"the model '{model}' was not evaluated under {self.attack}")
        return self.models.index(model)


def budget(board: Board, norm: str) -> tuple[float, str]:
    """The standard budget in a norm, as a number and as it is written."""
    for cell in board.cells:
        if cell.norm == norm and cell.search and cell.eps is not None:
            return cell.eps, cell.eps_text or f"{cell.eps:g}"
    raise UnknownNameError(f"no cell of this run searches in {norm}")


def cells_of(
    board: Board, knowledge: str, norm: str, goal: str, *, strength: bool = False
) -> list[tuple[int, BoardCell]]:
    """The cells with this knowledge, norm and goal, and their places.

    Cells against strength have a budget only and say so in their names.
    """
    return [
        (place, cell)
        for place, cell in enumerate(board.cells)
        if (cell.knowledge, cell.norm, cell.goal) == (knowledge, norm, goal)
        and ("strength" in cell.name) == strength
    ]


def distances(board: Board, knowledge: str, attack: str, norm: str, goal: str) -> Ends:
    """The smallest perturbations of an attack: of a search, else of the budgets that were run.

    Of several budgets an image's distance is that of the image of the smallest budget that fooled
    the model, never the budget itself.
    """
    found: dict[str, list[tuple[int, BoardCell, int, int]]] = {}
    for place, cell in cells_of(board, knowledge, norm, goal):
        for a, text in enumerate(cell.attacks):
            if family(text) != attack or _PROBES.search(text) or cell.known_to(text) != knowledge:
                continue
            for m, model in enumerate(cell.models):
                if cell.covered[m, a].any():
                    found.setdefault(model, []).append((place, cell, m, a))
    if not found:
        raise UnknownNameError(f"'{attack}' ({knowledge}) was not run in {norm}, {goal}")
    rows = {model: _nearest(some) for model, some in found.items()}
    some = next(iter(found.values()))
    with suppress(UnknownNameError):  # figures mark the standard budget
        standard = budget(board, norm)[0]
        some = [one for one in some if one[1].eps == standard] or some
    place, cell, _, a = some[0]
    return _aligned(board, cell.attacks[a], place, rows)


Row = tuple[Ids, Mask, Mask, Numbers, Numbers]
"""Samples, which are correct and known, where they end, and where they reach their target."""


def _nearest(some: list[tuple[int, BoardCell, int, int]]) -> Row:
    """The ends of one model: those of a search if there is one."""
    searched = [one for one in some if one[1].search]
    parts = [_row(cell, m, a) for _, cell, m, a in searched[:1] or some]
    samples = parts[0][0]
    if any(not np.array_equal(samples, part[0]) for part in parts):
        raise UnknownNameError("budgets of one attack were run on different images")
    known = np.logical_and.reduce([part[2] for part in parts])
    ends, aimed = (np.minimum.reduce([part[place] for part in parts]) for place in (3, 4))
    return samples, parts[0][1], known, ends, aimed


def _row(cell: BoardCell, m: int, a: int) -> Row:
    sizes = cell.distance[m, a]
    # With a budget there is a distance only where the attack succeeded.
    ends = np.where(np.isnan(sizes), np.inf, sizes)
    ends = np.where(cell.correct[m], ends, 0.0)
    return cell.samples, cell.correct[m], cell.covered[m, a], ends, cell.aimed[m, a]


def _aligned(board: Board, attack: str, place: int, rows: dict[str, Row]) -> Ends:
    """The rows of several models on all their samples, in the order of the board."""
    samples = np.unique(np.concatenate([row[0] for row in rows.values()]))
    names = tuple(model.name for model in board.models if model.name in rows)
    correct, known = (np.zeros((len(names), len(samples)), bool) for _ in range(2))
    ends, aimed = (np.full((len(names), len(samples)), np.nan) for _ in range(2))
    for m, name in enumerate(names):
        mine, right, there, sizes, reached = rows[name]
        at = places(samples, mine)
        correct[m, at], known[m, at], ends[m, at] = right, there, sizes
        aimed[m, at] = reached
    known &= ~np.isnan(ends)
    return Ends(attack, place, names, samples, correct, known, np.where(known, ends, 0.0), aimed)


def progress(board: Board, attack: str, norm: str, goal: str) -> Ends:
    """The query of the first success of a score attack at the standard budget."""
    for place, cell in cells_of(board, SCORES, norm, goal, strength=True):
        for a, text in enumerate(cell.attacks):
            if family(text) != attack or "(steps=" in text or not cell.covered[:, a].any():
                continue
            known, left = cell.covered[:, a], cell.left[:, a]
            ends = broken_at(cell.first_query[:, a], cell.success[:, a], left)
            nothing = np.full_like(ends, np.nan)
            return Ends(text, place, cell.models, cell.samples, cell.correct, known, ends, nothing)
    raise UnknownNameError(f"'{attack}' was not run at the budget alone in {norm}, {goal}")


def by_steps(
    board: Board, knowledge: str, attack: str, norm: str, goal: str
) -> tuple[int, BoardCell, Numbers, NDArray[np.bool_], Mask]:
    """Attacks that are run again for every number of steps.

    Returns
    -------
    place, cell, steps ``[k]``, left ``[m, k, n]`` and known ``[m, n]``
    """
    for place, cell in cells_of(board, knowledge, norm, goal, strength=True):
        steps = {
            int(found[1]): a
            for a, text in enumerate(cell.attacks)
            if family(text) == attack and (found := re.search(r"\(steps=(\d+)", text))
        }
        if steps:
            order = [steps[n] for n in sorted(steps)]
            known: Mask = np.asarray(cell.covered[:, order].all(1))
            return place, cell, np.array(sorted(steps), float), cell.left[:, order], known
    raise UnknownNameError(f"'{attack}' ({knowledge}) was not run for several numbers of steps")


def attacks_of(board: Board, norm: str, goal: str) -> Iterator[tuple[str, str, Ends]]:
    """All of the 15 attacks that were run: what the attacker knows, the attack, its distances."""
    for knowledge, attacks in ORDER.items():
        for attack in attacks:
            try:
                yield knowledge, attack, distances(board, knowledge, attack, norm, goal)
            except UnknownNameError:
                continue


def worst(
    board: Board, norm: str, goal: str, knowledge: Iterable[str] = tuple(ORDER)
) -> dict[str, tuple[Ids, Numbers]]:
    """The smallest perturbation of any attack, by model, on the images judged under all of them.

    Runs at the standard budget against strength count too: within it they may break other images.
    """
    wanted, rows = set(knowledge), dict[str, list[tuple[Ids, Numbers]]]()
    for known_to, _, found in attacks_of(board, norm, goal):
        for m, model in enumerate(found.models):
            if known_to in wanted:
                there = found.known[m]
                mine = found.samples[there], found.ends[m][there]
                rows.setdefault(model, []).append(mine)
    for known_to in wanted:
        for model, ids, ends in _at_budget(board, known_to, norm, goal):
            rows.setdefault(model, []).append((ids, ends))
    best = {}
    for model, some in rows.items():
        common = some[0][0]
        for ids, *_ in some[1:]:
            common = np.intersect1d(common, ids)
        best[model] = (common, np.minimum.reduce([e[places(i, common)] for i, e in some]))
    return best


def _at_budget(
    board: Board, knowledge: str, norm: str, goal: str
) -> Iterator[tuple[str, Ids, Numbers]]:
    """What runs against strength broke: by model the images, and the distances of successes."""
    standard = {cell.eps for cell in board.cells if cell.norm == norm and cell.search}
    for _, cell in cells_of(board, knowledge, norm, goal, strength=True):
        if cell.eps in standard:
            for m, model in enumerate(cell.models):
                for a, text in enumerate(cell.attacks):
                    samples, _, there, ends, _ = _row(cell, m, a)
                    if there.any() and cell.known_to(text) == knowledge:
                        yield model, samples[there], ends[there]


def tagged(board: Board, *values: str) -> list[str]:
    """The models whose defense has one of these tags."""
    return [model.name for model in board.models if model.tags.get("defense") in values]


def bare_of(board: Board, model: str) -> str:
    """The model behind the layers of another one."""
    texts = {one.name: one.text for one in board.models}
    inner = texts[model].partition("+")[0]
    for name, text in texts.items():
        if text == inner and name != model:
            return name
    raise UnknownNameError(f"the net behind '{model}' ({inner}) was not evaluated")
