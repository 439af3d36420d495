"""Reads a run folder as a `Board`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.bench.board import Across, Board, BoardCell, BoardModel
from besiege.bench.cell_groups import Grouped, groups_of
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.results import summarise
from besiege.bench.spec import Trained
from besiege.bench.store import Store
from besiege.bench.summaries import outcomes_of
from besiege.bench.utilities import clean_logits, clean_rows
from besiege.core.threat import Threat
from besiege.metrics.outcomes import COUNTED, Ids, Outcomes
from besiege.metrics.rows import places
from besiege.metrics.utility import CleanAnswers
from besiege.metrics.values import RunFigures


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
    benchmark = run.benchmark
    tags = {} if benchmark is None else benchmark.tags
    trained = {} if benchmark is None else benchmark.trained
    return Board(
        store.folder.resolve().name if benchmark is None else benchmark.name,
        tuple(_model(name, plan, tags, trained) for name, plan in models.items()),
        tuple(_cell(group, plans, outcomes) for group in groups),
        found,
        "" if benchmark is None else benchmark.model_dump_json(indent=1, exclude_defaults=True),
        tuple((one.cell, one.model, one.reason) for one in run.unfit),
        {} if benchmark is None else benchmark.absent,
        _Clean(store, _largest(groups, plans)),
    )


def _largest(groups: Sequence[Grouped], plans: Sequence[Plan]) -> dict[str, Plan]:
    """For every model its evaluation on the most samples."""
    found: dict[str, Plan] = {}
    for group in groups:
        for name, place in zip(group.models, group.plans, strict=True):
            if name not in found or plans[place].data.count > found[name].data.count:
                found[name] = plans[place]
    return found


class _Clean(Mapping[str, CleanAnswers]):
    """The clean answers of models, each read once, when it is asked for."""

    def __init__(self, store: Store, plans: Mapping[str, Plan]) -> None:
        self._store, self._plans = store, plans
        self._read: dict[str, CleanAnswers] = {}

    def __getitem__(self, model: str) -> CleanAnswers:
        if model not in self._read:
            plan = self._plans[model]
            rows = clean_rows(self._store, plan)
            logits, lacking = clean_logits(self._store, plan, rows["sample"])
            self._read[model] = CleanAnswers(rows, logits, lacking)
        return self._read[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)


def _model(
    name: str,
    plan: Plan,
    tags: Mapping[str, Mapping[str, str]],
    trained: Mapping[str, Trained],
) -> BoardModel:
    text = trained[name].text if name in trained else plan.request.model
    model, mine = plan.model, {tag: words[name] for tag, words in tags.items() if name in words}
    return BoardModel(name, text, model.digest, model.kind, model.parameters, mine)


def _cell(group: Grouped, plans: Sequence[Plan], outcomes: Mapping[int, Outcomes]) -> BoardCell:
    first = plans[group.plans[0]]
    mine = [outcomes[place] for place in group.plans]
    threat = Threat.parse(first.threat)
    own = None if threat.eps is None else float(threat.eps)
    samples, labels = _common(mine)
    attacks = tuple(dict.fromkeys(text for one in mine for text in one.attacks))
    where = [places(one.samples, samples) for one in mine]
    one_row = {
        name: np.stack([_placed(getattr(mine[m], name), at, empty) for m, at in enumerate(where)])
        for name, empty in _ROWS.items()
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
        **_descents(mine, where, attacks),
        values=tuple(prod(plans[place].data.shape) for place in group.plans),
        across=_across([plans[place] for place in group.plans], mine, where, attacks),
    )


_ROWS: Mapping[str, Any] = {
    **{"correct": False, "known": False, "robust": False},
    **{"searched": np.nan, "estimate": np.nan, "estimates": np.nan},
}
"""The arrays of samples, and what they hold where a model was not evaluated."""
_LAYERS: Mapping[str, Any] = {
    **dict.fromkeys(("covered", "left", "success"), False),
    **dict.fromkeys(("distance", "aimed"), np.nan),
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


def _descents(
    outcomes: Sequence[Outcomes], where: Sequence[Ids], attacks: Sequence[str]
) -> dict[str, Any]:
    """Numbers of passes, those of the longest search, and the best distances within each."""
    passes = max((one.passes for one in outcomes), key=len)
    best = np.full((len(outcomes), len(attacks), len(where[0]), len(passes)), np.nan, np.float32)
    for layer, one, at in zip(best, outcomes, where, strict=True):
        if len(one.passes):
            # A search that ended before finds no more.
            last = np.minimum(np.arange(len(passes)), len(one.passes) - 1)
            for table, text in zip(one.best, one.attacks, strict=True):
                layer[attacks.index(text)] = _placed(table[:, last], at, np.nan)
    return {"passes": passes, "best": best}


def _across(
    plans: Sequence[Plan],
    outcomes: Sequence[Outcomes],
    where: Sequence[Ids],
    attacks: Sequence[str],
) -> Across | None:
    """What the images of each model do to the others; None where these judged nothing."""
    if not any(one.fooled.shape[1] for one in outcomes):
        return None
    places_of = {plan.model.digest: place for place, plan in enumerate(plans)}
    shape = (len(plans), len(plans), len(attacks), len(where[0]))
    judged, fooled, rank = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape, np.int32)
    seen = np.zeros((*shape[:2], shape[3]), bool)
    for s, (plan, one, at) in enumerate(zip(plans, outcomes, where, strict=True)):
        digests = [plan.model.digest, *(other.model for other in plan.across)]
        for number, digest in enumerate(digests[: one.fooled.shape[1]]):
            if (t := places_of.get(digest)) is None:
                continue  # a model that is left out of this cell
            seen[s, t] = _placed(one.seen[number], at, False)
            for a, text in enumerate(one.attacks):
                place = s, t, attacks.index(text)
                judged[place] = _placed(one.judged_across[a, number], at, False)
                fooled[place] = _placed(one.fooled[a, number], at, False)
                rank[place] = _placed(one.rank[a, number], at, 0)
    return Across(judged, fooled, rank, seen)


def _placed(row: NDArray[Any], where: Ids, nothing: Any) -> NDArray[Any]:
    """The values of a row, one or several a sample, at the places of the cell's samples."""
    placed = np.full((len(where), *row.shape[1:]), nothing, row.dtype)
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
