"""The overview: the answer in a sentence, the leaderboard, and the matrix of models and attacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from besiege.bench.board import WHITE_BOX, BoardCell
from besiege.bench.standings import Setting, Standing, medians_beside
from besiege.bench.sweeps import TOGETHER
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.report.answer import doubt
from besiege.report.formats import interval, listed, p_value, points, share
from besiege.report.site.choices import Choice, lacking, tokens
from besiege.report.site.view import (
    EMPTY,
    Page,
    Site,
    goal_in_words,
    percent,
    shade,
    size,
    unit_of,
)

VALUES, ROWS = 2500, 200
"""Largest numbers of values in matrices, and of rows in leaderboards, on one page."""
LINKED = 1500
"""Largest number of values of which each links to its images; of more, the rows do."""
_KINDS = {WHITE_BOX: "white-box", "scores": "score-based", "decisions": "decision-based"}
"""Attacks by what the attacker knows, where a sentence names them."""
IN_TURN = (
    "Attacks of a suite ran one after the other: the value of each is what it and those above it "
    "leave, and none is outlined where several broke images."
)
"""How to read the rows of a suite in a matrix."""
_TOLD = 4
"""Largest number of models that a sentence names as equally good."""


def overview(site: Site) -> Iterator[Page]:
    """The first page; where it would be too large, one page for each setting."""
    board = site.board
    attacks = {attack for cell in board.cells for attack in cell.attacks}
    lead = (
        f"{len(board.models)} models, {len(attacks)} attacks, {len(board.cells)} cells, "
        f"{len(board.figures.evaluations)} evaluations"
    )
    lead += ", all complete." if site.complete else "."
    title = f"How robust are these {len(board.models)} models?"
    values = sum(_values(site, one) for one in site.settings)
    rows = sum(len(one.standings) for one in site.settings)
    for path, settings, about in by_setting(site, "index", values > VALUES or rows > ROWS):
        linked = sum(_values(site, one) for one in settings) <= LINKED
        parts = [{**_part(site, one, linked), **data} for one, data in settings.items()]
        yield Page(path, "overview", {"title": title, "lead": lead, "parts": parts, **about})


def by_setting(
    site: Site, name: str, split: bool
) -> Iterator[tuple[str, dict[Setting, dict[str, str]], dict[str, Any]]]:
    """The pages of parts that belong to one setting each: all on one page, or one page for each.

    Yields the address, the settings with their values of the choices, and what templates need.
    """
    told = {one: (site.threat_of(one), goal_in_words(one.goal)) for one in site.settings}
    words = tokens(", ".join(text) for text in told.values())
    paths = {
        one: f"{name}.html" if number == 0 or not split else f"{name}-{words[', '.join(text)]}.html"
        for number, (one, text) in enumerate(told.items())
    }
    for path in dict.fromkeys(paths.values()) or [f"{name}.html"]:
        mine = [one for one in site.settings if paths[one] == path]
        texts = [told[one] for one in mine]
        choices = [
            Choice.of("threat", "Norm and budget", [threat for threat, _ in texts]),
            Choice.of("goal", "Goal", [goal for _, goal in texts]),
        ]
        data = {
            one: {"threat": choices[0].values[threat], "goal": choices[1].values[goal]}
            for one, (threat, goal) in zip(mine, texts, strict=True)
        }
        links = [
            {"text": ", ".join(told[one]), "page": other, "here": other == path}
            for one, other in paths.items()
        ]
        about = {
            "choices": choices,
            "gaps": lacking(choices, texts),
            "split": [links] if split else [],
        }
        yield path, data, about


def _values(site: Site, setting: Setting) -> int:
    """The number of values of a setting's matrix."""
    rows = sum(len(site.board.cells[place].attacks) + 1 for place in setting.cells)
    return rows * len(setting.standings)


def _part(site: Site, setting: Setting, linked: bool) -> dict[str, Any]:
    cells = [site.board.cells[place] for place in setting.cells]
    minimal = setting.eps is None
    medians = {} if minimal else medians_beside(site.board, setting)
    unit = unit_of(cells[0])
    names = [one.model for one in setting.standings]
    counts = {_tried(site, setting, one.model) for one in setting.standings}
    among = f"{counts.pop()} attacks" if len(counts) == 1 else "the attacks that it ran"
    note = (
        "Models share ranks where these images cannot tell which of them is more robust. "
        f"{_tested(setting)}, corrected for all pairs of this threat."
    )
    if medians:
        note += " Median size: of the smallest perturbations found by searches in this norm."
    measured = (
        "Median of the smallest perturbations; clean errors count as 0."
        if minimal
        else f"Accuracy in percent of {setting.images}."
    )
    return {
        "title": setting.title,
        "minimal": minimal,
        "answer": sentence(site, setting),
        "rows": [_row(site, setting, one, medians, unit) for one in setting.standings],
        "medians": medians,
        "tags": [tag for tag in site.tags if any(tag in m.tags for m in site.board.models)],
        "note": note,
        "matrix_note": f"{measured} Outlined: the lowest of each model among {among}, "
        "and all that equal it. Together: an image counts as broken if any attack broke it."
        + (f" {IN_TURN}" if any(cell.in_turn for cell in cells) else "")
        + (" The values of attacks link to the images." if linked else ""),
        "models": names,
        "groups": [_group(site, setting, cell, linked) for cell in cells],
        "together": _all_cells(site, setting) if len(cells) > 1 else "",
    }


def _tested(setting: Setting) -> str:
    """On which images pairs of models are tested."""
    if setting.alike:
        return f"Paired tests on the same {setting.common:,} images"
    return (
        "Paired tests on the images that both models of a pair were judged on, "
        f"{setting.common:,} of which all models have in common"
    )


def sentence(site: Site, setting: Setting) -> str:
    """Which model is most robust under a setting, and how sure that is, as markup."""
    cells = [site.board.cells[place] for place in setting.cells]
    ranked = [one for one in setting.standings if one.robust is not None]
    if not ranked:
        return f"No image was judged at {escape(setting.title)} yet."
    first = ranked[0]
    attacks = _tried(site, setting, first.model)
    title = f"<b>{escape(first.model)}</b>"
    kinds = site.knowledge_of(setting)
    kind = "" if kinds == [WHITE_BOX] else listed([_KINDS.get(one, one) for one in kinds]) + " "
    under = f"the {kind}attack" if attacks == 1 else f"the worst of {attacks} {kind}attacks"
    goal = "" if setting.goal == "untargeted" else f" ({escape(setting.goal)})"
    if setting.eps is None:
        median = size(first.median, unit_of(cells[0]))
        text = (
            f"Largest perturbations needed in {setting.norm}{goal}: {title}, with a median size of "
            f"{median} under {under}, over {setting.images}."
        )
    else:
        assert first.robust is not None
        text = (
            f"Most robust at {escape(setting.title)}{goal}: {title}, {share(first.robust)} of "
            f"{first.robust.count:,} images are classified correctly under {under} "
            f"{interval(first.robust)}."
        )
    if first.stops:
        text += f" <b>Not to be quoted ({', '.join(first.stops)}).</b>"
    elif doubt_of(site, setting, first.model):
        text += " <b>Whether this is strong enough is unknown: quote it with that word.</b>"
    return f"{text} {_beside(setting, ranked)} All figures are upper bounds."


def _tried(site: Site, setting: Setting, name: str) -> int:
    """The number of attacks that a model was judged under."""
    cells = [site.board.cells[place] for place in setting.cells]
    rows = [cell.covered[cell.models.index(name)] for cell in cells if name in cell.models]
    return sum(int(row.any(1).sum()) for row in rows)


def _beside(setting: Setting, ranked: list[Standing]) -> str:
    """How sure it is that the first is above the others."""
    first = ranked[0]
    tied = []
    for one in ranked[1:]:
        pair = setting.pair(first.model, one.model)
        if pair is None or not pair.clear or pair.first != first.model:
            tied.append(one.model)
    if tied:
        names = [f"<b>{escape(name)}</b>" for name in tied[:_TOLD]]
        if len(tied) > _TOLD:
            names = [*names[: _TOLD - 1], f"{len(tied) - _TOLD + 1} others"]
        return f"These images cannot tell it from {listed(names)}."
    if len(ranked) < 2:
        return ""
    pair = setting.pair(first.model, ranked[1].model)
    assert pair is not None
    by = points(pair.change).removeprefix("+")
    if setting.eps is None:
        more = f"It needs larger ones than <b>{escape(pair.second)}</b> on more images, by {by}"
    else:
        more = f"It is above <b>{escape(pair.second)}</b> by {by}"
    return f"{more}, {p_value(pair.p).replace('<', '&lt;')} after correction."


def _row(
    site: Site, setting: Setting, one: Standing, medians: dict[str, float], unit: int | None
) -> dict[str, Any]:
    model = next(m for m in site.board.models if m.name == one.model)
    median = one.median if setting.eps is None else medians.get(one.model)
    return {
        "one": one,
        "style": site.style(one.model),
        "tags": model.tags,
        "median": size(median, unit),
        "median_value": -1 if median is None else min(median, 1e9),
        "worst": worst_of(site, one),
        "in_turn": in_turn(site, setting, one),
        "images": _images_of(site, setting, one.model),
        "warnings": site.warned([*_evaluations(site, setting, one.model)]),
        "doubt": doubt_of(site, setting, one.model),
    }


def doubt_of(site: Site, setting: Setting, name: str) -> str:
    """The word that a model's figure under a setting must be quoted with; empty without one."""
    found = (site.board.figures.evaluations[e] for e in _evaluations(site, setting, name))
    return next(filter(None, map(doubt, found)), "")


def _evaluations(site: Site, setting: Setting, name: str) -> Iterator[int]:
    for place in setting.cells:
        cell = site.board.cells[place]
        if name in cell.models:
            yield cell.evaluations[cell.models.index(name)]


def worst_of(site: Site, one: Standing) -> dict[str, Any] | None:
    """The attack that broke most, with its pages, and how many others broke as many."""
    if not one.worst:
        return None
    (number, place), *others = one.worst
    cell = site.board.cells[number]
    attack = cell.attacks[place]
    return {
        "attack": attack,
        "attack_page": site.attack_page(attack),
        "cell_page": site.cell_page(cell.name),
        "knowledge": cell.known_to(attack),
        "others": len(others),
    }


def in_turn(site: Site, setting: Setting, one: Standing) -> bool:
    """Whether a model's attacks cannot be compared, because they ran one after the other."""
    cells = [site.board.cells[place] for place in setting.cells]
    mine = [cell for cell in cells if one.model in cell.models]
    return not one.worst and any(cell.in_turn for cell in mine)


def _images_of(site: Site, setting: Setting, name: str) -> str:
    """The page with a model's images where no single attack leads to one; empty without one."""
    cells = [site.board.cells[place] for place in setting.cells]
    mine = [cell for cell in cells if name in cell.models]
    return site.cell_page(mine[0].name) if mine else ""


def mark_of(cell: BoardCell, attack: str) -> str:
    """What an attack used, where that is not what the cell says of all of them."""
    known = cell.known_to(attack)
    return "" if known == cell.knowledge else known


def _group(site: Site, setting: Setting, cell: BoardCell, linked: bool) -> dict[str, Any]:
    page = site.cell_page(cell.name)
    number = site.board.cells.index(cell)
    places = {name: m for m, name in enumerate(cell.models)}
    rows = []
    for a, attack in enumerate(cell.attacks):
        cells = []
        for one in setting.standings:
            there = f"{page}#images-{site.style(one.model)}" if linked else ""
            m, lowest = places.get(one.model), (number, a) in one.worst
            cells.append(EMPTY if m is None else value_cell(cell, m, a, there, lowest))
        row = {"attack": attack, "page": site.attack_page(attack), "cells": "".join(cells)}
        rows.append({**row, "mark": mark_of(cell, attack)})
    if len(cell.attacks) > 1:
        found = [places.get(one.model) for one in setting.standings]
        cells = [EMPTY if m is None else together_cell(cell, m) for m in found]
        rows.append({"attack": TOGETHER, "page": "", "cells": "".join(cells)})
    return {
        "cell": cell.name,
        "page": page,
        "knowledge": cell.knowledge,
        "rows": rows,
        "in_turn": cell.in_turn,
    }


def _all_cells(site: Site, setting: Setting) -> str:
    """The figures of the leaderboard, as a row of the matrix."""
    cells = [site.board.cells[place] for place in setting.cells]
    unit, most = unit_of(cells[0]), max(map(largest, cells))
    return "".join(_shaded(one.robust, one.median, unit, most) for one in setting.standings)


def value_cell(cell: BoardCell, m: int, a: int, page: str, lowest: bool) -> str:
    """The accuracy of a model under an attack, or the median perturbation of a search."""
    if not cell.covered[m, a].any():
        return EMPTY
    median = float(cell.medians[m, a]) if cell.eps is None else None
    return _shaded(cell.accuracy(m, a), median, unit_of(cell), largest(cell), page, lowest)


def together_cell(cell: BoardCell, m: int) -> str:
    """The same under all attacks of a cell: the worst of them for each image."""
    known = cell.known[m]
    if not known.any():
        return EMPTY
    rate = Rate.of(int(cell.withstood(cell.eps)[m].sum()), int(known.sum()))
    median = quantile(cell.smallest[m][known]) if cell.eps is None else None
    return _shaded(rate, median, unit_of(cell), largest(cell))


def _shaded(
    rate: Rate | None,
    median: float | None,
    unit: int | None,
    most: float,
    page: str = "",
    lowest: bool = False,
) -> str:
    """An accuracy, or where it is known the median, shaded by its part of the largest."""
    if median is not None:
        part = median / most if math.isfinite(median) else 1.0
        return shade(part, size(median, unit), page, lowest)
    return EMPTY if rate is None else shade(rate.value, percent(rate), page, lowest)


def largest(cell: BoardCell) -> float:
    """The largest median of a search's attacks, by which its matrix is shaded."""
    return float(cell.medians[np.isfinite(cell.medians)].max(initial=0.0)) or 1.0
