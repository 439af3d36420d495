"""Computes ``figures.json`` from records: everything that a report shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from besiege.bench.next_steps import next_steps
from besiege.bench.overview import open_run
from besiege.bench.store import Store
from besiege.bench.summaries import Summary, comparison, differing, ordered, summary_of
from besiege.core.errors import DataError, Finding
from besiege.metrics.comparing import compared, difference
from besiege.metrics.paired import holm
from besiege.metrics.values import SCHEMA, Earlier, EvaluationFigures, RunFigures

FILE = "figures.json"


def summarise(folder: Path | str) -> RunFigures:
    """The figures of all evaluations of a run folder, from its judged records only.

    A complete evaluation is computed once and cached in the folder (`besiege.bench.summaries`).
    """
    store, run = open_run(folder)
    plans = run.histories()
    summaries = [summary_of(store, plan) for plan, _ in plans]
    histories = _corrected(
        [
            [_earlier(summary_of(store, old), mine) for old in before]
            for mine, (_, before) in zip(summaries, plans, strict=True)
        ]
    )
    evaluations = tuple(
        replace(complete_figures(mine, summaries, run.short_names), history=tuple(history))
        for mine, history in zip(summaries, histories, strict=True)
    )
    return RunFigures(
        SCHEMA,
        run.created,
        plans[-1][0].request.command if plans else "",
        run.versions,
        all(evaluation.complete for evaluation in evaluations),
        evaluations,
    )


def complete_figures(
    mine: Summary, others: list[Summary], names: Mapping[str, str]
) -> EvaluationFigures:
    """The figures of an evaluation with its date, and with findings from its run folder.

    `names` are those of models in the benchmark (`Run.short_names`).
    """
    warnings = ordered([*mine.figures.warnings, *compared(comparison(mine, others, names))])
    if any(one.level == "stop" for one in warnings):  # a wrong figure has no precision
        warnings = tuple(one for one in warnings if one.id != "W24")
    model, threat = mine.figures.model, mine.figures.threat
    examined = mine.figures.examination
    return replace(
        mine.figures,
        examination=examined and examined.beside(warnings),
        model=replace(model, declared=names.get(model.name)),
        threat=replace(threat, substitute=tuple(names.get(one, one) for one in threat.substitute)),
        made=mine.plan.made,
        commit=mine.plan.commit,
        warnings=warnings,
        next_steps=next_steps(mine.plan, warnings),
    )


def _corrected(histories: list[list[Earlier]]) -> list[list[Earlier]]:
    """The same histories with p-values corrected for the number of all their changes."""
    changes = [old.change for history in histories for old in history if old.change is not None]
    corrected = iter(holm([change.p for change in changes]))
    return [
        [
            old
            if old.change is None
            else replace(
                old, change=replace(old.change, p=next(corrected)), comparisons=len(changes)
            )
            for old in history
        ]
        for history in histories
    ]


def _earlier(old: Summary, mine: Summary) -> Earlier:
    """An earlier evaluation beside the current one, compared where only the model differs."""
    why_not = differing(old.plan, mine.plan)
    figures, curve = old.figures, old.figures.eps_curve
    return Earlier(
        figures.name,
        old.plan.made,
        old.plan.commit,
        figures.model.digest,
        figures.data.digest,
        figures.clean,
        figures.robust,
        None if curve is None or figures.threat.eps is not None else curve.median,
        figures.complete,
        None if why_not else difference(mine.outline, old.outline),
        why_not,
    )


def write_figures(folder: Path | str, figures: RunFigures | None = None) -> RunFigures:
    """Write ``figures.json`` into a run folder; without `figures` they are computed."""
    run = summarise(folder) if figures is None else figures
    # Without indentation: a large run has millions of numbers, which would take a line each.
    Store(folder).write_file(FILE, json.dumps(run.plain(), allow_nan=False).encode())
    return run


def typed(content: dict[str, Any]) -> RunFigures:
    """The figures as typed values, from the content of ``figures.json``.

    Figures that were registered outside the package stay plain dictionaries and lists.
    """
    if content.get("schema") != SCHEMA:
        raise DataError(
            f"the figures have schema {content.get('schema')!r}, but this version of besiege reads "
            f"schema {SCHEMA}: compute them again, or use the version that wrote them"
        )
    own = EvaluationFigures.__dataclass_fields__.keys()
    evaluations = [
        {
            **{n: v for n, v in one.items() if n in own},
            "warnings": [Finding.stored(warning) for warning in one["warnings"]],
            "others": {n: v for n, v in one.items() if n not in own},
        }
        for one in content["evaluations"]
    ]
    return TypeAdapter(RunFigures).validate_python({**content, "evaluations": evaluations})
