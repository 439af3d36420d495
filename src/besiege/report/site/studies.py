"""The pages of a study on the site of its run: answers and tables, and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from besiege.bench.display import HeatMap, Scatter
from besiege.bench.sweeps import Sweep
from besiege.report.site.choices import token
from besiege.report.site.panels import panel
from besiege.report.site.scatter import heat_rows, in_words, plotted, visible
from besiege.report.site.view import Page, Site, unit_of
from besiege.report.study import size_in_words
from besiege.studies.answers import Answer


def study_pages(site: Site) -> Iterator[Page]:
    """One page with answers and tables, and one for each figure."""
    study = site.study
    if study is None:
        return
    board = site.board
    drawn = {
        f"study/figure-{token(one.name or str(number))}.html": one
        for number, one in enumerate(study.figures(board), 1)
    }
    answers = study.answers(board)
    values: dict[str, Any] = {
        "title": study.title,
        "lead": f"{study.source}. {size_in_words(board)}",
        "answers": [{"it": one, "effect": _effect(one)} for one in answers],
        "level": f"{100 * study.level:.4g} %",
        "tables": study.shown(board),
        "folded": study.shown(board, long=True),
        "readings": study.readings(board),
        "figures": drawn,
    }
    yield Page("study.html", "study", values)
    for path, figure in drawn.items():
        shown = {
            "title": figure.heading,
            "lead": size_in_words(board),
            "panels": [_panel(site, sweep) for sweep in figure.panels],
            "note": figure.note,
        }
        yield Page(path, "study_figure", shown)


def _panel(site: Site, one: Sweep | HeatMap | Scatter) -> dict[str, Any]:
    if isinstance(one, HeatMap):
        return {"kind": "heat", "it": one, "rows": heat_rows(one)}
    if isinstance(one, Scatter):
        wide, narrow = (plotted(one, site.board.styles, width) for width in (900, 340))
        words = [in_words(one, spot) for spot in one.spots]
        shown = {"wide": wide, "narrow": narrow, "words": words, "lines": visible(one)}
        return {"kind": "scatter", "it": one, **shown}
    return {"kind": "curves", **_curves(site, one)}


def _curves(site: Site, sweep: Sweep) -> dict[str, str]:
    cell = site.board.cells[sweep.cell]
    svg = panel(sweep, site.board.styles, unit_of(cell), cell.eps)
    return {"attack": sweep.attack, "svg": svg}


def _effect(answer: Answer) -> str:
    if answer.effect is None:
        return ""
    one = answer.effect
    value, low, high = (100 * each for each in (one.value, one.low, one.high))
    return f"{value:+.1f} points [{low:.1f}, {high:.1f}], {one.count:,} {one.unit}"
