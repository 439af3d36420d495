"""The pages about models and attacks: a list of each, and a page for every one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from besiege.bench.board import BoardCell, BoardModel
from besiege.bench.standings import Setting, Versus
from besiege.report.formats import distance, each, interval, p_value, share
from besiege.report.site.choices import Choice
from besiege.report.site.overview import in_turn, worst_of
from besiege.report.site.view import (
    EMPTY,
    Page,
    Site,
    attack_figures,
    median_of,
    percent,
    shade,
    size,
    unit_of,
)


def model_pages(site: Site) -> Iterator[Page]:
    """The list of models, and the page of each."""
    rows = [_model_row(site, model) for model in site.board.models]
    settings = [{"label": _label(site, one)} for one in site.settings]
    values = {"title": "Models", "lead": "", "rows": rows, "settings": settings}
    yield Page("models.html", "models", values)
    for model in site.board.models:
        yield _model_page(site, model)


def _label(site: Site, setting: Setting) -> str:
    threat = site.threat_of(setting)
    return threat if setting.goal == "untargeted" else f"{threat} {setting.goal}"


def _model_row(site: Site, model: BoardModel) -> dict[str, Any]:
    cells = []
    for setting in site.settings:
        one = next((s for s in setting.standings if s.model == model.name), None)
        if one is None or one.robust is None:
            cells.append({"value": -1, "text": "", "rank": ""})
            continue
        unit = unit_of(site.board.cells[setting.cells[0]])
        minimal = setting.eps is None
        text = size(one.median, unit) if minimal else share(one.robust)
        value = min(one.median or 0.0, 1e9) if minimal else one.robust.value
        rank = str(one.low) if one.low == one.high else f"{one.low}–{one.high}"
        cells.append({"value": value, "text": text, "rank": rank})
    return {"model": model, "style": site.style(model.name), "cells": cells}


def _model_page(site: Site, model: BoardModel) -> Page:
    board, name = site.board, model.name
    mine = [(cell, cell.models.index(name)) for cell in board.cells if name in cell.models]
    standings = []
    for setting in site.settings:
        for one in setting.standings:
            if one.model == name:
                unit = unit_of(board.cells[setting.cells[0]])
                standings.append(
                    {
                        "setting": _label(site, setting),
                        "one": one,
                        "of": len(setting.standings),
                        "median": size(one.median, unit),
                        "worst": worst_of(site, one),
                        "in_turn": in_turn(site, setting, one),
                    }
                )
    attacks = [
        {
            "attack": attack,
            "attack_page": site.attack_page(attack),
            "cell": cell.name,
            "cell_page": site.cell_page(cell.name),
            "knowledge": cell.known_to(attack),
            "numbers": _numbers(site, cell, m, a),
        }
        for cell, m in mine
        for a, attack in enumerate(cell.attacks)
        if cell.covered[m, a].any()
    ]
    versus = [*_versus(site, name)]
    values = {
        "title": name,
        "lead": "",
        "model": model,
        "style": site.style(name),
        "rules": site.warned([cell.evaluations[m] for cell, m in mine], notes=True),
        "standings": standings,
        "versus": versus,
        "along": any(row["along"] for row in versus),
        "attacks": attacks,
    }
    return Page(site.model_page(name), "model", values)


def _versus(site: Site, name: str) -> Iterator[dict[str, Any]]:
    """The differences to all other models, under every setting."""
    for setting in site.settings:
        for pair in setting.pairs:
            if name not in (pair.first, pair.second):
                continue
            first = pair.first == name
            other, change = pair.second if first else pair.first, pair.change
            ends = (change.low, change.high) if first else (-change.high, -change.low)
            sure = "more robust" if first else "less robust"
            if not pair.clear:
                enough = pair.needed and pair.needed > change.count
                sure = "cannot tell" + (f"; about {pair.needed:,} images would" if enough else "")
            yield {
                "other": other,
                "style": site.style(other),
                "setting": _label(site, setting),
                "value": change.value if first else -change.value,
                "mine": change.only_first if first else change.only_second,
                "theirs": change.only_second if first else change.only_first,
                "low": ends[0],
                "high": ends[1],
                "p": pair.p,
                "p_text": p_value(pair.p).removeprefix("p = ").removeprefix("p "),
                "sure": sure,
                "along": _along(pair, unit_of(site.board.cells[setting.cells[0]])),
            }


def _along(pair: Versus, unit: int | None) -> str:
    """Whether the order of two models changes with the budget, in a few words."""
    found = pair.crossing
    if found is None:
        return ""
    if found.verdict == "crossing":
        return "changes near " + ", ".join(distance(one.at, unit) for one in found.changes)
    if found.verdict == "no crossing":
        return "does not change"
    if found.suggested is None:
        return "cannot tell"
    return f"cannot tell, perhaps near {distance(found.suggested.at, unit)}"


def _numbers(site: Site, cell: BoardCell, m: int, a: int) -> str:
    """Accuracy, success rate and median size as cells of a table."""
    budgeted = not cell.search or cell.eps is not None
    rates = (cell.accuracy(m, a), cell.success_rate(m, a)) if budgeted else (None, None)
    found = ""
    for rate in rates:
        value = -1 if rate is None else rate.value
        text = "" if rate is None else f"{share(rate)}<br>{_of(rate.hits, rate.count)}"
        found += f'<td class="n" data-v="{value}">{text}</td>'
    median = median_of(site.board.evaluation(cell, m), cell.attacks[a])
    value = -1 if median is None or not math.isfinite(median) else median
    return found + f'<td class="n" data-v="{value}">{size(median, unit_of(cell))}</td>'


def _of(hits: int, count: int) -> str:
    return f'<span class="soft">{hits:,} of {count:,}</span>'


# Attacks.


def attack_pages(site: Site) -> Iterator[Page]:
    """The list of attacks, and the page of each."""
    rows, pages = [], []
    for attack in site.attacks:
        cells = [cell for cell in site.board.cells if attack in cell.attacks]
        told = _told(site, cells[0], attack)
        links = [{"name": cell.name, "page": site.cell_page(cell.name)} for cell in cells]
        rows.append(
            {"attack": attack, "page": site.attack_page(attack), "told": told, "cells": links}
        )
        models = [m.name for m in site.board.models if any(m.name in c.models for c in cells)]
        choice = Choice.of("measure", "Measure", _VIEWS)
        values = {
            "title": attack,
            "lead": "",
            "told": told,
            "choices": [choice],
            "models": models,
            "views": [
                {
                    "measure": word,
                    "name": name.capitalize(),
                    "note": _VIEWS[name],
                    "rows": [_attack_row(site, cell, attack, models, name) for cell in cells],
                }
                for name, word in choice.values.items()
            ],
        }
        pages.append(Page(site.attack_page(attack), "attack", values))
    yield Page("attacks.html", "attacks", {"title": "Attacks", "lead": "", "rows": rows})
    yield from pages


_AT = " Of a search, at the budget of the cell, or at any size where it has none."
_VIEWS = {
    "accuracy": f"Percent of all images judged that are still right.{_AT}",
    "success rate": f"Percent of the images classified correctly before that it broke.{_AT}",
    "median size": "Median of its perturbations: of a search over all images, where clean errors "
    "count as 0; with a budget over those it broke. Norms differ between cells.",
    "cost": "Queries per image of query-based and transferred attacks, passes of others.",
}
"""What the page of an attack shows of every model and cell."""


def _told(site: Site, cell: BoardCell, attack: str) -> str:
    for _, _, attacks in attack_figures(site.board, cell):
        if attack in attacks:
            return str(attacks[attack].told)
    return ""


def _attack_row(
    site: Site, cell: BoardCell, attack: str, models: Sequence[str], view: str
) -> dict[str, str]:
    a = cell.attacks.index(attack)
    cells = [
        _attack_value(site, cell, cell.models.index(name), a, view)
        if name in cell.models
        else EMPTY
        for name in models
    ]
    page = site.cell_page(cell.name)
    return {"cell": cell.name, "page": page, "knowledge": cell.knowledge, "cells": "".join(cells)}


def _attack_value(site: Site, cell: BoardCell, m: int, a: int, view: str) -> str:
    figures = site.board.evaluation(cell, m)
    about = next((one for one in figures.attacks if one.text == cell.attacks[a]), None)
    rate = cell.accuracy(m, a) if view == "accuracy" else cell.success_rate(m, a)
    if about is None or rate is None:
        return EMPTY
    if view == "median size":
        return f"<td>{size(median_of(figures, about.text), unit_of(cell))}</td>"
    if view == "cost":
        judged = int((cell.forwards[m, a] >= 0).sum())
        asked = about.transfer or not about.backwards
        spent = about.queries if asked else about.forwards + about.backwards
        return f"<td>{each(spent, judged)}</td>"
    title = f"{interval(rate)}, {rate.hits:,} of {rate.count:,}"
    return shade(rate.value, percent(rate), title=title)
