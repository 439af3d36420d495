"""The pages about cells: what each model withstood, its images, costs and parameters."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from besiege.bench.board import BoardCell
from besiege.bench.standings import strongest
from besiege.bench.sweeps import TOGETHER, end_of
from besiege.metrics.optimality import area
from besiege.metrics.strength import per_value
from besiege.metrics.values import EvaluationFigures
from besiege.report import answer
from besiege.report.formats import budget_unit, distance, each
from besiege.report.page import environment
from besiege.report.pictures import Pictures, Shown, gallery
from besiege.report.site.choices import Choice
from besiege.report.site.curves import CurvePages
from besiege.report.site.overview import IN_TURN, mark_of, together_cell, value_cell
from besiege.report.site.view import (
    EMPTY,
    Page,
    Site,
    attack_figures,
    goal_in_words,
    median_of,
    percent,
    shade,
    size,
    unit_of,
)

ROOM = 400_000
"""Largest size of the pictures of one model in a cell, in characters of their encoding."""
_FIRST = 6


class Album:
    """The pictures of a site as files, each once."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        self.files: dict[str, bytes] = {}

    def shown(self, figures: EvaluationFigures) -> list[Shown]:
        """The gallery of an evaluation with the addresses of its pictures."""
        made = gallery(figures.gallery, self.pictures, figures.threat.box, ROOM)
        return [
            replace(
                one,
                clean=self._file(one.clean),
                change=self._file(one.change),
                adversarial=self._file(one.adversarial),
            )
            for one in made
        ]

    def _file(self, url: str) -> str:
        if not url:
            return ""
        content = base64.b64decode(url.partition(",")[2])
        name = f"pictures/{hashlib.sha256(content).hexdigest()[:20]}.png"
        self.files[name] = content
        return f"../{name}"


def cell_pages(site: Site, album: Album, curves: CurvePages) -> Iterator[Page]:
    """The list of cells, and the page of each."""
    rows = []
    for cell in site.board.cells:
        found = [site.board.evaluation(cell, m) for m in range(len(cell.models))]
        lacking = [one for one in found if not one.complete]
        rows.append(
            {
                "cell": cell,
                "page": site.cell_page(cell.name),
                "goal": goal_in_words(cell.goal),
                "seconds": sum(one.cost.seconds for one in found),
                "state": f"{len(lacking)} of {len(found)} incomplete" if lacking else "complete",
            }
        )
    lead = "A cell is one threat with its attacks, for several models on the same images."
    yield Page("cells.html", "cells", {"title": "Cells", "lead": lead, "rows": rows})
    for place, cell in enumerate(site.board.cells):
        yield _page(site, cell, album, curves.page_of(place))


def _page(site: Site, cell: BoardCell, album: Album, curves: str) -> Page:
    first = site.board.evaluation(cell, 0)
    roots = cell.norm == "l2"
    values = {
        "title": cell.name,
        "lead": f"{cell.knowledge.capitalize()}, {goal_in_words(cell.goal)}, "
        f"{len(cell.models)} models on {answer.sample_choice(first)}.",
        "cell": cell,
        "threat": first.threat,
        "choices": [Choice.of("measure", "Measure", ("accuracy", "success rate"))],
        "views": _views(site, cell),
        "curves": curves,
        "galleries": [*_galleries(site, cell, album)],
        "costs": [*_costs(site, cell, roots)],
        "several": _several_passes(site, cell),
        "roots": roots,
        "data": f"{answer.sample_choice(first)}; {' × '.join(map(str, first.data.shape))}",
        "crafted": [
            {"model": name, "source": site.board.name_of(source)}
            for name, source in zip(cell.models, cell.sources, strict=True)
            if source
        ],
        "told": _told(site, cell),
    }
    return Page(site.cell_page(cell.name), "cell", values)


def _views(site: Site, cell: BoardCell) -> list[dict[str, Any]]:
    """The matrix of accuracies, or of medians, and that of success rates."""
    searched = cell.search and cell.eps is None
    budget = f" at {cell.norm} {cell.eps_text}" if cell.search and cell.eps is not None else ""
    lowest = [strongest([(0, cell, m)], cell.eps) for m in range(len(cell.models))]
    accuracy = [
        _matrix_row(
            site,
            cell,
            a,
            [
                value_cell(cell, m, a, f"#images-{site.style(name)}", (0, a) in lowest[m])
                for m, name in enumerate(cell.models)
            ],
        )
        for a in range(len(cell.attacks))
    ]
    if len(cell.attacks) > 1:
        cells = [together_cell(cell, m) for m in range(len(cell.models))]
        row = {"attack": TOGETHER, "page": "", "cells": "".join(cells)}
        accuracy.append(row)
    success = [
        _matrix_row(
            site,
            cell,
            a,
            [
                EMPTY
                if (rate := cell.success_rate(m, a)) is None
                else shade(rate.value, percent(rate), title=f"{rate.hits:,} of {rate.count:,}")
                for m in range(len(cell.models))
            ],
        )
        for a in range(len(cell.attacks))
    ]
    right = [int(row.sum()) for row in cell.correct]
    among = f"{min(right):,}" if min(right) == max(right) else f"{min(right):,} to {max(right):,}"
    return [
        {
            "measure": "accuracy",
            "name": "Median size" if searched else f"Accuracy{budget}",
            "note": (
                "The median of the smallest perturbations found; clean errors count as 0."
                if searched
                else f"In percent of {cell.images}."
            )
            + " Outlined: the lowest of a model, and all that equal it."
            + (f" {IN_TURN}" if cell.in_turn else ""),
            "rows": accuracy,
        },
        {
            "measure": "success-rate",
            "name": f"Success rate{budget}",
            "note": f"In percent of the images classified correctly before, {among} of "
            f"{cell.images}." + (" At any size." if searched else ""),
            "rows": success,
        },
    ]


def _matrix_row(site: Site, cell: BoardCell, a: int, cells: Sequence[str]) -> dict[str, Any]:
    attack = cell.attacks[a]
    page = site.attack_page(attack)
    mark = mark_of(cell, attack)
    return {"attack": attack, "page": page, "cells": "".join(cells), "mark": mark}


def _galleries(site: Site, cell: BoardCell, album: Album) -> Iterator[dict[str, Any]]:
    template = environment().get_template("sections/gallery.html")
    for m, name in enumerate(cell.models):
        figures = site.board.evaluation(cell, m)
        shown = album.shown(figures)
        section = {
            "first": shown[:_FIRST],
            "rest": shown[_FIRST:],
            "unit": budget_unit(figures.threat),
            "explained": True,  # once, above the galleries of all models
        }
        body = template.render(section=section, e=figures)
        yield {"model": name, "style": site.style(name), "count": len(shown), "body": body}


def _several_passes(site: Site, cell: BoardCell) -> str:
    """Which models take several passes of their networks for one answer, in words."""
    models = [site.board.evaluation(cell, m).model for m in range(len(cell.models))]
    many = [f"{one.title} {one.passes}" for one in models if one.passes > 1]
    return f"{', '.join(many)} passes of the network" if many else ""


def _costs(site: Site, cell: BoardCell, roots: bool) -> Iterator[dict[str, Any]]:
    unit = unit_of(cell)
    for m, figures, attacks in attack_figures(site.board, cell):
        pixels = math.prod(figures.data.shape)
        for a, text in enumerate(cell.attacks):
            one = attacks.get(text)
            if one is None:
                continue
            median = median_of(figures, text)
            judged = int((cell.forwards[m, a] >= 0).sum())
            yield {
                "attack": text,
                "mark": mark_of(cell, text),
                "model": cell.models[m],
                "style": site.style(cell.models[m]),
                "failure": one.failure,
                "wide": 6 + roots + 2 * cell.search,
                "broken": one.broken,
                "alone": _ran_on(figures, text) if cell.in_turn else one.alone,
                "size": -1 if median is None else min(median, 1e9),
                "median": size(median, unit),
                "root": ""
                if median is None
                else distance(float(per_value(median, cell.norm, pixels))),
                **_searched(cell, m, a, unit),
                "passes": each(one.forwards + one.backwards, judged),
                "queries": each(one.queries, judged),
                "seconds": one.seconds,
                "given": one.given,
            }


def _ran_on(figures: EvaluationFigures, attack: str) -> int:
    """How many images an attack of a suite ran on."""
    return next((stage.ran_on for stage in figures.cascade if stage.text == attack), 0)


def _searched(cell: BoardCell, m: int, a: int, unit: int | None) -> dict[str, str]:
    """The area under accuracy against size with its end, and the images that were never broken."""
    if not cell.search or not cell.covered[m, a].any():
        return {"area": "", "unbroken": ""}
    sizes, end = cell.sizes(m, a), end_of(cell)
    ends = f"{distance(area(sizes, end), unit)} to {distance(end, unit)}"
    return {"area": ends, "unbroken": f"{int(np.isinf(sizes).sum()):,}"}


def _told(site: Site, cell: BoardCell) -> list[dict[str, str]]:
    """What each attack does, in words."""
    found: dict[str, str] = {}
    for _, _, attacks in attack_figures(site.board, cell):
        for text in cell.attacks:
            if text in attacks:
                found.setdefault(text, attacks[text].told)
    return [{"attack": text, "told": told} for text, told in found.items()]
