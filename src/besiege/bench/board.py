"""A run as arrays aligned by sample: models x attacks x samples, cell by cell, without torch.

A cell is one threat with its attacks, under which several models were evaluated on the same
samples. Rankings, matrices, curves and studies are functions of a `Board`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.results import summarise
from besiege.bench.run import Run
from besiege.bench.summaries import outcomes_of
from besiege.bench.words import told_apart
from besiege.core.errors import UnknownNameError, near
from besiege.core.threat import Threat
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import COUNTED, Counts, Ids, Numbers, Outcomes
from besiege.metrics.rows import places
from besiege.metrics.searches import ROUNDING
from besiege.metrics.values import EvaluationFigures, RunFigures

Mask = NDArray[np.bool_]

KNOWLEDGE = {"gradient": "white box", "score": "scores", "decision": "decisions"}
"""What the attacker knows, by the access of the threat; a substitute makes it a transfer."""
TRANSFER = "transfer"


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
        Ids, ascending, and their classes.
    models, attacks : tuple of str
        Names of the models ``[m]``, and texts of the attacks ``[a]``.
    sources : tuple of str
        For each model, what the attacks were crafted on; empty for the model itself.
    evaluations : tuple of int
        For each model, the place of its evaluation in ``Board.figures.evaluations``.
    correct, known, robust : array ``[m, n]``
        As in `Outcomes`. Samples that a model was not evaluated on are not known.
    covered, left, success, distance, first_step, first_query, queries_used, forwards, backwards
        Arrays ``[m, a, n]``, as in `Outcomes`.
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
    first_step: Counts
    first_query: Counts
    queries_used: Counts
    forwards: Counts
    backwards: Counts

    @property
    def knowledge(self) -> str:
        """What the attacker knows: white box, transfer, scores or decisions."""
        return TRANSFER if any(self.sources) else KNOWLEDGE.get(self.access, self.access)

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
            sizes = self.distance[m, a][self.covered[m, a]]
            found[m, a] = quantile(np.nan_to_num(sizes, nan=np.inf))
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
    """

    name: str
    models: tuple[BoardModel, ...]
    cells: tuple[BoardCell, ...]
    figures: RunFigures
    spec: str = ""
    unfit: tuple[tuple[str, str, str], ...] = ()

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


# Reading a run.


@dataclass(frozen=True)
class Grouped:
    """The evaluations of one cell, by their places among the current ones of a run.

    ``eps`` and ``eps_text`` are the budget that a specification names for a search.
    """

    name: str
    models: tuple[str, ...]
    plans: tuple[int, ...]
    eps: float | None = None
    eps_text: str | None = None


def board_of(folder: Path | str, figures: RunFigures | None = None) -> Board:
    """Read a run folder as a board, from its judged records only.

    Parameters
    ----------
    folder : path
        A run folder; its outcomes are cached there.
    figures : RunFigures, optional
        The figures of the run, where they are known.

    Returns
    -------
    Board
    """
    store, run = open_run(folder)
    found = summarise(folder) if figures is None else figures
    plans, groups = run.current, groups_of(run)
    models = {
        name: plans[place]
        for group in groups
        for name, place in zip(group.models, group.plans, strict=True)
    }
    outcomes = {place: outcomes_of(store, plans[place]) for g in groups for place in g.plans}
    benchmark = _benchmark(run)
    tags = {} if benchmark is None else benchmark.tags
    return Board(
        store.folder.resolve().name if benchmark is None else benchmark.name,
        tuple(_model(name, plan, tags) for name, plan in models.items()),
        tuple(_cell(group, plans, outcomes) for group in groups),
        found,
        "" if benchmark is None else benchmark.model_dump_json(indent=1, exclude_defaults=True),
        tuple((one.cell, one.model, one.reason) for one in getattr(run, "unfit", ())),
    )


def _benchmark(run: Run) -> Any:
    """The benchmark that a run was declared by; None for a plain run."""
    return getattr(run, "benchmark", None)


def is_benchmark(run: Run) -> bool:
    """Whether a run was declared by a benchmark."""
    return _benchmark(run) is not None


def groups_of(run: Run) -> list[Grouped]:
    """The cells of a run: those of its benchmark, or evaluations that differ in the model only."""
    return _alike_groups(run) if _benchmark(run) is None else _declared_groups(run)


def _declared_groups(run: Run) -> list[Grouped]:
    """The cells that a benchmark declares; every budget and every seed is one of its own."""
    benchmark = _benchmark(run)
    where = {plan.name: place for place, plan in enumerate(run.current)}
    groups: dict[tuple[str, str | None, int], dict[str, int]] = {}
    for entry in getattr(run, "entries", ()):
        if entry.plan in where:
            key = entry.cell, entry.budget, entry.seed
            groups.setdefault(key, {})[entry.model] = where[entry.plan]
    found = []
    for (name, budget, seed), group in groups.items():
        budgets = {other for cell, other, _ in groups if cell == name}
        seeds = {other for cell, _, other in groups if cell == name}
        words = [name]
        words += [f"{budget}"] if len(budgets) > 1 else []
        words += [f"seed {seed}"] if len(seeds) > 1 else []
        # The budget of a search is the one at which tables show it.
        threat = Threat.parse(next(c.threat for c in benchmark.cells if c.name == name))
        eps = None if threat.eps is None else float(threat.eps)
        places = tuple(group.values())
        found.append(Grouped(", ".join(words), tuple(group), places, eps, threat.written))
    return found


def _alike_groups(run: Run) -> list[Grouped]:
    """The cells of a plain run folder."""
    plans = run.current
    names = _model_names(plans)
    groups: dict[tuple[Any, ...], dict[str, int]] = {}
    for place, plan in enumerate(plans):
        # Of two evaluations of one model that differ only in what is not compared, the newer one.
        key = plan.request.substitute, _alike(plan)
        groups.setdefault(key, {})[names[place]] = place
    merged = _merged(groups)
    # A single cell is not told from any other: it is called by its threat.
    traits = [[*_traits([plans[place] for place in group.values()])] for group in merged]
    titles = told_apart(traits) if len(merged) > 1 else [one[0] for one in traits]
    return [
        Grouped(title, tuple(group), tuple(group.values()))
        for title, group in zip(titles, merged, strict=True)
    ]


def _merged(groups: Mapping[tuple[Any, ...], dict[str, int]]) -> list[dict[str, int]]:
    """The groups, with transfers from several substitutes joined where no model has two of them.

    A model is not attacked from itself, so that a transfer to all models has several substitutes.
    """
    transfers: dict[Any, list[dict[str, int]]] = {}
    for (substitute, alike), group in groups.items():
        transfers.setdefault((bool(substitute), alike), []).append(group)
    found = []
    for members in transfers.values():
        names = [name for group in members for name in group]
        if len(set(names)) == len(names):
            members = [{name: place for group in members for name, place in group.items()}]
        found += members
    return found


def _alike(plan: Plan) -> tuple[Any, ...]:
    """What the evaluations of one cell have in common."""
    request, data = plan.request, plan.data
    attacks = tuple(spec.title for spec in plan.attacks)
    asked = (plan.threat, attacks, plan.chained, request.queries, request.seed)
    return (*asked, data.name, data.split, data.count)


def _model_names(plans: Sequence[Plan]) -> list[str]:
    """The model of each plan; different models of one name have their digest added."""
    digests: dict[str, set[str]] = {}
    for plan in plans:
        digests.setdefault(plan.model.name, set()).add(plan.model.digest)
    return [
        name if len(digests[name := plan.model.name]) == 1 else f"{name} ({plan.model.digest[:8]})"
        for plan in plans
    ]


def _traits(plans: Sequence[Plan]) -> Iterator[str]:
    plan = plans[0]
    request = plan.request
    yield plan.threat
    yield TRANSFER if request.substitute else ""
    yield "from " + ", ".join(dict.fromkeys(name for p in plans for name in p.request.substitute))
    yield f"{request.queries:,} queries" if request.queries is not None else ""
    yield plan.data.name
    yield f"seed {request.seed}"
    yield f"{plan.data.count:,} images"
    attacks = ", ".join(spec.title for spec in plan.attacks)
    yield f"suite {request.suite}" if request.suite else attacks


def _model(name: str, plan: Plan, tags: Mapping[str, Mapping[str, str]]) -> BoardModel:
    model, mine = plan.model, {tag: words[name] for tag, words in tags.items() if name in words}
    return BoardModel(name, plan.request.model, model.digest, model.kind, model.parameters, mine)


def _cell(group: Grouped, plans: Sequence[Plan], outcomes: Mapping[int, Outcomes]) -> BoardCell:
    first = plans[group.plans[0]]
    mine = [outcomes[place] for place in group.plans]
    threat = Threat.parse(first.threat)
    own = None if threat.eps is None else float(threat.eps)
    samples, labels = _common(mine)
    attacks = tuple(dict.fromkeys(text for one in mine for text in one.attacks))
    where = [places(one.samples, samples) for one in mine]
    one_row = {
        name: np.stack([_placed(getattr(mine[m], name), at, False) for m, at in enumerate(where)])
        for name in ("correct", "known", "robust")
    }
    return BoardCell(
        group.name,
        first.threat,
        str(threat.norm),
        threat.aim,
        str(threat.access),
        group.eps if own is None else own,
        group.eps_text if own is None else threat.written,
        own is None,
        first.request.queries,
        first.chained,
        first.request.seed,
        first.data.name,
        samples,
        labels,
        group.models,
        attacks,
        tuple(" and ".join(plans[place].request.substitute) for place in group.plans),
        group.plans,
        **one_row,
        **_stacked(mine, where, attacks),
    )


_LAYERS: Mapping[str, Any] = {
    **dict.fromkeys(("covered", "left", "success"), False),
    "distance": np.nan,
    **dict.fromkeys(COUNTED, -1),
}
"""The arrays of attacks and samples, and what they hold where an attack was not run."""


def _stacked(
    outcomes: Sequence[Outcomes], where: Sequence[Ids], attacks: Sequence[str]
) -> dict[str, Any]:
    """The arrays of all models, ``[m, a, n]``, by the names that a cell gives them."""
    found = {}
    for name, nothing in _LAYERS.items():
        kind = getattr(outcomes[0], name).dtype
        stack = np.full((len(outcomes), len(attacks), len(where[0])), nothing, kind)
        for layer, one, at in zip(stack, outcomes, where, strict=True):
            for row, text in zip(getattr(one, name), one.attacks, strict=True):
                layer[attacks.index(text)] = _placed(row, at, nothing)
        found["queries_used" if name == "queries" else name] = stack
    return found


def _placed(row: NDArray[Any], where: Ids, nothing: Any) -> NDArray[Any]:
    """The values of a row at the places of the cell's samples."""
    placed = np.full(len(where), nothing, row.dtype)
    placed[where >= 0] = row[where[where >= 0]]
    return placed


def _common(outcomes: Sequence[Outcomes]) -> tuple[Ids, Ids]:
    """The samples of any model, ascending, that have the same label in all that have them."""
    ids = np.concatenate([one.samples for one in outcomes])
    labels = np.concatenate([one.labels for one in outcomes])
    samples, first, where = np.unique(ids, return_index=True, return_inverse=True)
    agree = np.ones(len(samples), bool)
    agree[where[labels != labels[first][where]]] = False
    return samples[agree], labels[first][agree]
