"""The pages about transfer, findings and the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from besiege.bench.board import BoardCell
from besiege.bench.cell_groups import TRANSFER
from besiege.metrics.intervals import Rate
from besiege.report.site.choices import Choice, lacking
from besiege.report.site.view import EMPTY, Page, Site, goal_in_words, percent, shade

_COMMANDS = 24
"""Largest number of commands that are listed."""
_SENTENCES = 3
"""Largest number of findings of one evaluation that differ in their numbers only."""


def transfer(site: Site) -> Iterator[Page]:
    """The matrix of sources and targets, where attacks were crafted on substitutes."""
    found = [*_matrices(site)]
    if not found:
        return
    choices = [
        Choice.of("attack", "Attack", [one["text"] for one in found]),
        Choice.of("threat", "Norm and budget", [one["title"] for one in found]),
        Choice.of("goal", "Goal", [one["goal"] for one in found]),
    ]
    there = [(one["text"], one["title"], one["goal"]) for one in found]
    for one in found:
        one["attack"] = choices[0].values[one["text"]]
        one["threat"] = choices[1].values[one["title"]]
        one["goal"] = choices[2].values[one["goal"]]
    values = {
        "title": "What fools one, fools which others?",
        "lead": "The share of the images that the judged model classified correctly, and that "
        "images crafted on another model broke.",
        "choices": choices,
        "gaps": lacking(choices, there),
        "parts": found,
    }
    yield Page("transfer.html", "transfer", values)


def _matrices(site: Site) -> Iterator[dict[str, Any]]:
    board = site.board
    rates: dict[tuple[str, str, str], dict[tuple[str, str], Rate]] = {}
    for cell in board.cells:
        for m, target in enumerate(cell.models):
            source = board.name_of(cell.sources[m])
            for a, attack in enumerate(cell.attacks):
                rate = cell.success_rate(m, a)
                if rate is not None and (source or cell.knowledge != TRANSFER):
                    key = attack, _title(cell), goal_in_words(cell.goal)
                    rates.setdefault(key, {})[source or target, target] = rate
    for (attack, title, goal), table in rates.items():
        crossed = [(source, target) for source, target in table if source != target]
        if not crossed:
            continue
        names = [model.name for model in board.models]
        sources = [*dict.fromkeys(source for source, _ in crossed)]
        sources.sort(key=lambda name: names.index(name) if name in names else len(names))
        targets = [name for name in names if any(name == target for _, target in crossed)]
        counts = sorted({table[pair].count for pair in crossed})
        among = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        yield {
            "text": attack,
            "title": title,
            "goal": goal,
            "targets": targets,
            "rows": [
                {
                    "source": source,
                    "cells": "".join(_crossed(table, source, target) for target in targets),
                }
                for source in sources
            ],
            "note": f"In percent of the images that the judged model classified correctly, {among} "
            "by model. Outlined: crafted on the model itself. A dash: not run.",
        }


def _title(cell: BoardCell) -> str:
    return cell.norm if cell.eps is None else f"{cell.norm} {cell.eps_text}"


def _crossed(table: dict[tuple[str, str], Rate], source: str, target: str) -> str:
    rate = table.get((source, target))
    if rate is None:
        return EMPTY
    title = f"{rate.hits:,} of {rate.count:,}"
    return shade(rate.value, percent(rate), "", source == target, title)


def findings(site: Site) -> Page:
    """All warnings, rule by rule."""
    homes = {
        place: (cell, m) for cell in site.board.cells for m, place in enumerate(cell.evaluations)
    }
    shown = []
    for rule in site.rules:
        groups = []
        for group in rule.groups:
            found: dict[int, list[str]] = {}
            for place, finding in group.found:
                found.setdefault(place, []).append(finding.seen)
            places = []
            for place, seen in found.items():
                if place in homes:
                    cell, m = homes[place]
                    places.append(
                        {
                            "model": cell.models[m],
                            "cell": cell.name,
                            "page": site.cell_page(cell.name),
                            "style": site.style(cell.models[m]),
                            "seen": seen[:_SENTENCES] if group.differ else [],
                            "more": len(seen) - _SENTENCES if group.differ else 0,
                        }
                    )
            groups.append(
                {"seen": group.first.seen, "advice": group.first.advice, "places": places}
            )
        shown.append(
            {
                "id": rule.id,
                "level": rule.level,
                "title": rule.title,
                "anchor": rule.anchor,
                "groups": groups,
            }
        )
    lead = "Every rule that fired, the most serious first, with the evaluations it concerns."
    return Page("findings.html", "findings", {"title": "Findings", "lead": lead, "rules": shown})


def about_run(site: Site) -> Page:
    """Specification, commands, versions, and what each evaluation cost."""
    found = site.board.figures.evaluations
    commands = [*dict.fromkeys(one.command for one in found if one.command)]
    rows = [
        {
            "model": cell.models[m],
            "style": site.style(cell.models[m]),
            "cell": cell.name,
            "e": site.board.evaluation(cell, m),
        }
        for cell in site.board.cells
        for m in range(len(cell.models))
    ]
    more = len(commands) - _COMMANDS
    values = {
        "title": "The run",
        "lead": "What was asked for, with what it was computed, and what it cost.",
        "commands": commands[:_COMMANDS],
        "more": f"and {more:,} more, in run.json." if more > 0 else "",
        "rows": rows,
    }
    return Page("run.html", "run", values)
