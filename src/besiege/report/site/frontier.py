"""The frontier: accuracy without an attack against robustness."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from besiege.bench.standings import Setting
from besiege.metrics.intervals import Rate, round_numbers
from besiege.report.drawing import apart
from besiege.report.formats import distance, interval, listed, number, share
from besiege.report.site.overview import ROWS, by_setting
from besiege.report.site.view import Page, Site, size, unit_of
from besiege.report.strokes import symbol

EM = 7.0  # upper estimate of the width of a letter of 12 units
GAP = 17.0


class Spot(NamedTuple):
    """A model: clean accuracy, robustness with its interval where known, and its style."""

    model: str
    style: int
    clean: Rate
    value: float
    low: float
    high: float


def frontier(site: Site) -> Iterator[Page]:
    """A drawing and a table under every setting; of very many, one page for each."""
    lead = (
        "Joined: models that no other beats in both. Lines through a point are 95 % intervals, "
        "where known."
    )
    rows = sum(len(one.standings) for one in site.settings)
    for path, settings, about in by_setting(site, "frontier", rows > ROWS):
        parts = [{**_part(site, one), **data} for one, data in settings.items()]
        values = {"title": "Accuracy against robustness", "lead": lead, "parts": parts, **about}
        yield Page(path, "frontier", values)


def _part(site: Site, setting: Setting) -> dict[str, Any]:
    unit = unit_of(site.board.cells[setting.cells[0]])
    minimal = setting.eps is None
    measure = f"median smallest perturbation, {setting.norm}" if minimal else "under attack, %"
    spots = [*_spots(site, setting)]
    beaten = {one.model: [two.model for two in spots if _beats(two, one)] for one in spots}
    best = [one for one in spots if not beaten[one.model]]
    rates = {one.model: one.robust for one in setting.standings}
    rows = [
        {
            "model": one.model,
            "style": one.style,
            "clean": one.clean,
            "value": one.value,
            "robust": None if minimal else rates[one.model],
            "text": size(one.value, unit),
            "beaten": _listed(beaten[one.model]),
        }
        for one in spots
    ]
    names = _listed([one.model for one in best])
    text = f"{setting.title}, {setting.images}. Not beaten in both: {names}."
    return {
        "title": setting.title,
        "text": text,
        "measure": "Median size" if minimal else "Under the worst attack",
        "rows": rows,
        "wide": drawn(spots, best, measure, minimal, unit, 900) if spots else "",
        "narrow": drawn(spots, best, measure, minimal, unit, 340) if spots else "",
    }


def _listed(names: Sequence[str]) -> str:
    return listed([*names[:3], f"{len(names) - 3} others"] if len(names) > 4 else [*names])


def _spots(site: Site, setting: Setting) -> list[Spot]:
    found = []
    for one in setting.standings:
        if one.clean is None or one.robust is None:
            continue
        if setting.eps is not None:
            value, low, high = one.robust.value, one.robust.low, one.robust.high
        elif one.median is None or not math.isfinite(one.median):
            continue
        else:
            value = low = high = one.median
        found.append(Spot(one.model, site.style(one.model), one.clean, value, low, high))
    return found


def _beats(one: Spot, other: Spot) -> bool:
    """Whether a model is at least as good in both, and better in one."""
    mine, theirs = (one.clean.value, one.value), (other.clean.value, other.value)
    return mine != theirs and mine[0] >= theirs[0] and mine[1] >= theirs[1]


def drawn(
    spots: Sequence[Spot],
    best: Sequence[Spot],
    measure: str,
    minimal: bool,
    unit: int | None,
    width: int,
) -> str:
    """The drawing; names stand in a column at the right, where none covers another."""
    room = min(max(len(one.model) for one in spots) * EM + 14, 0.42 * width)
    left, right, top = 52.0, width - room - 16, 26.0
    bottom = top + max(300.0, GAP * (len(spots) + 1))
    low = min(one.clean.low for one in spots)
    start = max(0.0, math.floor(20 * low) / 20)
    high = 1.1 * max(one.high for one in spots) or 1.0
    ceiling = high if minimal else min(1.0, math.ceil(10 * high) / 10)

    def x(value: float) -> float:
        return left + (value - start) / (1.0 - start) * (right - left)

    def y(value: float) -> float:
        return bottom - value / ceiling * (bottom - top)

    parts = [*_grid(start, ceiling, minimal, unit, (left, right, top, bottom), measure)]
    chain = sorted(best, key=lambda one: (one.clean.value, -one.value))
    line = "L".join(f"{x(one.clean.value):.1f} {y(one.value):.1f}" for one in chain)
    parts.append(f'<path class="front" d="M{line}"/>')
    heights = apart([y(one.value) for one in spots], GAP, top + 6, bottom)
    for one, height in zip(spots, heights, strict=True):
        at, up = x(one.clean.value), y(one.value)
        cross = f"M{x(one.clean.low):.1f} {up:.1f}H{x(one.clean.high):.1f}"
        cross += f"M{at:.1f} {y(one.low):.1f}V{y(one.high):.1f}"
        most = max(int((width - right - 14) / EM), 4)
        name = one.model if len(one.model) <= most else one.model[: most - 1] + "…"
        words = f"{one.model}: clean {share(one.clean)} {interval(one.clean)}, {measure} "
        words += distance(one.value, unit) if minimal else f"{100 * one.value:.1f}"
        parts.append(
            f'<g class="m m{one.style}"><title>{escape(words)}</title>'
            f'<path class="cross" d="{cross}"/><path class="lead" d="M{at:.1f} {up:.1f}'
            f'L{right + 4:.1f} {height:.1f}"/>{symbol(one.style, at, up)}'
            f'<text x="{right + 8:.1f}" y="{height + 4:.1f}">{escape(name)}</text></g>'
        )
    return (
        f'<svg class="scatter" role="img" aria-label="Clean accuracy and {escape(measure)}" '
        f'viewBox="0 0 {width} {bottom + 44:.0f}">{"".join(parts)}</svg>'
    )


def _grid(
    start: float,
    ceiling: float,
    minimal: bool,
    unit: int | None,
    frame: tuple[float, float, float, float],
    measure: str,
) -> list[str]:
    left, right, top, bottom = frame
    parts = []
    scale = (unit or 1) if minimal else 100
    for tick in round_numbers(0, ceiling * scale, 5):
        up = bottom - tick / scale / ceiling * (bottom - top)
        label = f"{number(tick)}/{unit}" if minimal and unit and tick else number(tick)
        parts.append(f'<path class="grid" d="M{left} {up:.1f}H{right:.1f}"/>')
        parts.append(f'<text class="e" x="{left - 6}" y="{up + 4:.1f}">{label}</text>')
    for tick in round_numbers(100 * start, 100, 4 if right < 400 else 6):
        at = left + (tick / 100 - start) / (1 - start) * (right - left)
        parts.append(f'<path class="grid" d="M{at:.1f} {top}V{bottom:.1f}"/>')
        parts.append(f'<text class="c" x="{at:.1f}" y="{bottom + 16:.1f}">{number(tick)}</text>')
    middle = (left + right) / 2
    parts.append(
        f'<text class="c t" x="{middle:.1f}" y="{bottom + 36:.1f}">clean accuracy, %</text>'
    )
    parts.append(f'<text class="t" x="4" y="14">{escape(measure)}</text>')
    return parts
