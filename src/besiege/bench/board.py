"""A run as arrays aligned by sample: models x attacks x samples, cell by cell, without torch.

A cell is one threat with its attacks, under which several models were evaluated on the same
samples. Rankings, matrices, curves and studies are functions of a `Board`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from besiege.bench.cell_groups import TRANSFER
from besiege.core.attack_registry import ignores_defense
from besiege.core.errors import UnknownNameError, near
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Counts, Ids, Numbers, Single
from besiege.metrics.searches import ROUNDING
from besiege.metrics.utility import CleanAnswers
from besiege.metrics.values import EvaluationFigures, RunFigures

Mask = NDArray[np.bool_]

WHITE_BOX = "white box"
"""What the attacker knows where attacks use the gradients of the model itself."""
KNOWLEDGE = {"gradient": WHITE_BOX, "score": "scores", "decision": "decisions"}
"""What the attacker knows, by the access of the threat; a substitute makes it a transfer."""


@dataclass(frozen=True)
class BoardModel:
    """A model of a run.

    Attributes
    ----------
    name : str
        Its name in the run, unique.
    text : str
        How it was requested, such as ``zoo:digits-pgd-at+bits(depth=3)``.
    digest, kind, parameters
        Its digest, what it is, and the number of its parameters where known.
    tags : mapping
        Words about it from the specification, by tag.
    """

    name: str
    text: str
    digest: str
    kind: str
    parameters: int | None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Across:
    """What the images crafted on each model of a cell do to all its models.

    Attributes
    ----------
    judged, fooled, rank : array ``[sources, targets, attacks, n]``
        Which images were judged; where the answer is wrong; the place of the target class, 0 where
        it is not known. On the diagonal a model judges its own images.
    seen : array of bool ``[sources, targets, n]``
        Which clean images the target classifies correctly, at the size of the source.
    """

    judged: Mask
    fooled: Mask
    rank: Counts
    seen: Mask


@dataclass(frozen=True, eq=False)
class BoardCell:
    """One threat and its attacks, for several models on the same samples.

    Attributes
    ----------
    name : str
        Its name, unique in the run.
    threat, norm, goal, access : str
        The threat as text, and its parts.
    eps : float, optional
        The budget; in a search, the budget that the specification names, if any.
    eps_text : str, optional
        The budget as it was written.
    search : bool
        Whether the attacks search for the smallest perturbation.
    queries : int, optional
        Query limit per image.
    suite : bool
        Whether each attack ran only on the samples that withstood those before it.
    seed : int
        The seed.
    data : str
        The name of the data set.
    samples, labels : array ``[n]``
        Ids, ascending, and their classes: the samples of any model. Not every model need have been
        judged on all of them (`known`).
    models, attacks : tuple of str
        Names of the models ``[m]``, and texts of the attacks ``[a]``.
    sources : tuple of str
        For each model, what the attacks were crafted on; empty for the model itself.
    evaluations : tuple of int
        For each model, the place of its evaluation in ``Board.figures.evaluations``.
    correct, known, robust : array ``[m, n]``
        As in `Outcomes`. Samples that a model was not evaluated on are not known.
    covered, left, success, distance, aimed, first_step, first_query, queries_used, forwards,
    backwards
        Arrays ``[m, a, n]``, as in `Outcomes`.
    searched : array ``[m, n]``
        As in `Outcomes`.
    passes, best : array ``[k]`` and ``[m, a, n, k]``
        As in `Outcomes`: the smallest perturbations within numbers of passes.
    values : tuple of int
        For each model the number of pixel values of its images.
    estimate, estimates : array ``[m, n]`` and ``[m, n, k]``
        CLEVER scores, and those after fewer batches; NaN where there is none.
    across : Across, optional
        What the images do to the other models, where they judged them.
    """

    name: str
    threat: str
    norm: str
    goal: str
    access: str
    eps: float | None
    eps_text: str | None
    search: bool
    queries: int | None
    suite: bool
    seed: int
    data: str
    samples: Ids
    labels: Ids
    models: tuple[str, ...]
    attacks: tuple[str, ...]
    sources: tuple[str, ...]
    evaluations: tuple[int, ...]
    correct: Mask
    known: Mask
    robust: Mask
    covered: Mask
    left: Mask
    success: Mask
    distance: Numbers
    aimed: Numbers
    first_step: Counts
    first_query: Counts
    queries_used: Counts
    forwards: Counts
    backwards: Counts
    searched: Numbers
    passes: Ids
    best: Single
    values: tuple[int, ...] = ()
    estimate: Numbers = field(default_factory=lambda: np.full((0, 0), np.nan))
    estimates: Numbers = field(default_factory=lambda: np.full((0, 0, 0), np.nan))
    across: Across | None = None

    @property
    def knowledge(self) -> str:
        """What the attacker knows: white box, transfer, scores or decisions."""
        return TRANSFER if any(self.sources) else KNOWLEDGE.get(self.access, self.access)

    @property
    def in_turn(self) -> bool:
        """Whether the accuracy under an attack includes the attacks before it."""
        return self.suite and not self.search and len(self.attacks) > 1

    def known_to(self, attack: str) -> str:
        """The same of one attack: one that ignores the defense transfers in any cell."""
        return TRANSFER if ignores_defense(attack) else self.knowledge

    @property
    def images(self) -> str:
        """The images that the models were judged on, in words."""
        counts = [int(row.sum()) for row in self.known if row.any()]
        common = self.known[self.known.any(1)].all(0).sum() if counts else 0
        return images_in_words(counts or [0], int(common))

    @cached_property
    def smallest(self) -> Numbers:
        """The smallest perturbation of any attack, ``[m, n]``; NaN where that is not known.

        With a budget: of the successes, 0 where the clean sample is misclassified, else infinite.
        """
        found = np.where(np.isnan(self.distance), np.inf, self.distance).min(1, initial=np.inf)
        found = np.where(self.correct, found, 0.0)
        return np.where(self.known, found, np.nan)

    @cached_property
    def medians(self) -> Numbers:
        """The median distance of every attack on every model, ``[m, a]``; NaN where not run.

        Infinite where fewer than half of the samples were broken.
        """
        found = np.full(self.covered.shape[:2], np.nan)
        for m, a in np.argwhere(np.any(self.covered, 2)).tolist():
            found[m, a] = quantile(self.sizes(m, a))
        return found

    def withstood(self, eps: float | None = None) -> Mask:
        """Which samples are classified correctly and withstood all attacks, ``[m, n]``.

        Of a search, within the budget `eps`; without one, of any size.
        """
        if not self.search or eps is None:
            return self.robust
        return self.known & (np.nan_to_num(self.smallest, nan=0.0) > eps * (1 + ROUNDING))

    def left_by(self, attack: int, eps: float | None = None) -> Mask:
        """Which samples withstood one attack, ``[m, n]``, of a search within a budget."""
        if not self.search or eps is None:
            return self.left[:, attack]
        beyond = np.nan_to_num(self.distance[:, attack], nan=0.0) > eps * (1 + ROUNDING)
        return self.covered[:, attack] & beyond

    def sizes(self, model: int, attack: int) -> Numbers:
        """The perturbations of a search, over the samples that it was judged on."""
        found = self.distance[model, attack][self.covered[model, attack]]
        return np.where(np.isnan(found), np.inf, found)

    def accuracy(self, model: int, attack: int) -> Rate | None:
        """Accuracy under an attack over the samples it was judged on; None without any."""
        count = int(self.covered[model, attack].sum())
        eps = self.eps if self.search else None
        return Rate.of(int(self.left_by(attack, eps)[model].sum()), count) if count else None

    def success_rate(self, model: int, attack: int) -> Rate | None:
        """Of the correctly classified samples it was judged on, the share that an attack broke.

        In a suite, those that an earlier attack broke count as broken. Of a search, within the
        cell's budget.
        """
        right = self.covered[model, attack] & self.correct[model]
        eps = self.eps if self.search else None
        broken = right & ~self.left_by(attack, eps)[model]
        return Rate.of(int(broken.sum()), int(right.sum())) if right.any() else None


@dataclass(frozen=True, eq=False)
class Board:
    """A run of several models as arrays.

    Attributes
    ----------
    name : str
        The name of the specification, or of the run folder.
    models, cells
        The models, and the cells in the order of the run.
    figures : RunFigures
        The figures of all evaluations: warnings, galleries, costs.
    spec : str
        The specification as text; empty for a run without one.
    unfit : tuple of (str, str, str)
        Cells, models that were left out of them, and why.
    absent : mapping
        Models that the specification lists as absent, and why.
    clean : mapping
        By model, its answers to clean images, with its logits; records are read when one is asked
        for.
    """

    name: str
    models: tuple[BoardModel, ...]
    cells: tuple[BoardCell, ...]
    figures: RunFigures
    spec: str = ""
    unfit: tuple[tuple[str, str, str], ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    clean: Mapping[str, CleanAnswers] = field(default_factory=dict)

    def cell(self, name: str) -> BoardCell:
        """The cell of a name."""
        names = [cell.name for cell in self.cells]
        if name not in names:
            raise UnknownNameError(f"no cell of this run is '{name}': {near(name, names)}")
        return self.cells[names.index(name)]

    def evaluation(self, cell: BoardCell, model: int) -> EvaluationFigures:
        """The figures of a model in a cell, by its place there."""
        return self.figures.evaluations[cell.evaluations[model]]

    @cached_property
    def styles(self) -> Mapping[str, int]:
        """The number of each model's colour and dash, the same wherever it is drawn."""
        return {model.name: number for number, model in enumerate(self.models)}

    def name_of(self, text: str) -> str:
        """The name of the model of this text, such as a substitute; the text of any other model."""
        return next((model.name for model in self.models if model.text == text), text)


def images_in_words(counts: Sequence[int], common: int) -> str:
    """The numbers of images of several models, and how many of them all have in common.

    Examples
    --------
    >>> images_in_words([300, 300], 300)
    '300 images'
    >>> images_in_words([300, 200], 100)
    '200 to 300 images by model, 100 in common'
    """
    if set(counts) == {common}:
        return f"{common:,} images"
    least, most = min(counts), max(counts)
    each = (
        f"{least:,} images for each model"
        if least == most
        else (f"{least:,} to {most:,} images by model")
    )
    return f"{each}, {common:,} in common"
