"""A comparison of evaluations in sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from besiege.core.text import broken_up
from besiege.report.answer import UNKNOWN_MEANS, choice, doubt
from besiege.report.formats import (
    budget_unit,
    distance,
    interval,
    listed,
    p_value,
    points,
    sentence,
    share,
)
from besiege.report.utility import (
    UTILITY_LEGEND,
    lacking_sentences,
    utility_sentence,
    utility_table,
)

if TYPE_CHECKING:
    from besiege.bench.compared import Compared, Group, Pair, PairedComparison
    from besiege.metrics.comparing import Ids
    from besiege.metrics.crossings import Change

MOST = 6
"""With more evaluations in a group, a matrix shows the pairs, and sentences only neighbours."""
_NARROW = 76
_CELL = 8
"""Width of a cell of the matrix: a difference, a star and a gap."""


# Sentences.


def in_words(comparison: PairedComparison) -> str:
    """The comparison in sentences, as it is printed in Python."""
    lines = []
    for group in comparison.groups:
        several = len(comparison.groups) > 1
        lines += [f"{_threat(group)}:"] if several else []
        for pair in told(group):
            lines.append(pair_sentence(pair, group, comparison))
            lines += filter(None, [crossing_sentence(pair, group), utility_sentence(pair)])
        if rest := len(group.pairs) - len(told(group)):
            lines.append(f"Neighbours only; {rest} other pairs are in `pairs`.")
        lines += [*_troubles(group), *_doubts(group), *group.notes]
    lines += filter(None, [_declared(comparison)])
    lines += [f"Not compared: {name} ({why})." for name, why in comparison.left_out]
    return "\n".join(lines)


def _declared(comparison: PairedComparison) -> str:
    """Which pairs were tested, where a benchmark declares them; empty otherwise."""
    if not comparison.declared:
        return ""
    pairs = ", ".join(f"{one} and {other}" for one, other in comparison.declared)
    return (
        f"Only the pairs that the benchmark declares in [compare] are tested: {pairs}. Pairs are "
        "declared before a run: to test another, add it to `pairs` there, and run the benchmark "
        "into a new folder."
    )


def told(group: Group) -> Sequence[Pair]:
    """The pairs that have a sentence: all, or of many evaluations the neighbours in the ranking."""
    if len(group.evaluations) <= MOST:
        return group.pairs
    names = [one.name for one in group.evaluations]
    beside = {frozenset(names[place : place + 2]) for place in range(len(names) - 1)}
    return [pair for pair in group.pairs if {pair.first, pair.second} in beside]


def pair_sentence(pair: Pair, group: Group, comparison: PairedComparison) -> str:
    """Which of two models is more robust, by how much, and whether the images can tell.

    Examples
    --------
    "These 100 images cannot tell whether A withstands more than B; about 260 would. Observed: +6.0
    points [0.6, 12.9], p = 0.070."
    """
    quoted = {one.name for one in group.evaluations if one.stops}
    doubt = " (Not to be quoted.)" if quoted & {pair.first, pair.second} else ""
    change, minimal = pair.change, group.threat.eps is None
    images = f"{change.count:,} images"
    if change.only_first == change.only_second:
        return _equal(pair, minimal) + doubt
    more = "needs larger perturbations than" if minimal else "withstands more than"
    size = points(change)
    if minimal:
        larger = f"larger ones on {change.only_first:,} images"
        size = f"{larger}, smaller ones on {change.only_second:,}; {size}"
    sure = ("corrected " if len(comparison.pairs) > 1 else "") + p_value(pair.p)
    order = f"{pair.first} {more} {pair.second}"
    if pair.clear:
        return f"{order}: {size}, {sure} on the same {images}.{doubt}"
    enough = _enough(pair.needed, change.count, group)
    return f"These {images} cannot tell whether {order}{enough}. Observed: {size}, {sure}.{doubt}"


def crossing_sentence(pair: Pair, group: Group) -> str:
    """Whether the order of two models changes with the budget; empty where that is not known.

    Examples
    --------
    "A withstands more up to linf 0.05, B beyond 0.09: the order changes (certain)."
    """
    found = pair.crossing
    if found is None:
        return ""
    norm, unit = group.threat.norm, budget_unit(group.threat)
    last = f"{norm} {distance(float(found.x[-1]), unit)}"
    if found.verdict == "crossing":
        return f"{_stretches(pair, found.changes, norm, unit)}: the order changes (certain)."
    if found.verdict == "no crossing":
        return (
            f"The order of {pair.first} and {pair.second} does not change by a point or more, up "
            f"to {last} (certain)."
        )
    enough = _enough(found.needed, found.count, group)
    suggested = ""
    if found.suggested is not None:
        suggested = f" Observed: {_stretches(pair, (found.suggested,), norm, unit)}."
    return (
        f"These {found.count:,} images cannot tell whether the order of {pair.first} and "
        f"{pair.second} changes with the budget, up to {last}{enough}.{suggested}"
    )


def _stretches(pair: Pair, changes: Sequence[Change], norm: str, unit: int | None) -> str:
    """Which of two models withstands more from which budget to which."""
    names = (pair.first, pair.second) if changes[0].leader else (pair.second, pair.first)
    begin = changes[0].before
    words = f"up to {norm} {distance(begin, unit)}" if begin > 0 else "without an attack"
    found = [f"{names[0]} withstands more {words}"]
    for place, change in enumerate(changes):
        start, name = distance(change.after, unit), names[(place + 1) % 2]
        if place + 1 < len(changes):
            found.append(f"{name} from {start} to {distance(changes[place + 1].before, unit)}")
        else:
            found.append(f"{name} beyond {start}")
    return ", ".join(found)


def _equal(pair: Pair, minimal: bool) -> str:
    change = pair.change
    both, images = f"{pair.first} and {pair.second}", f"{change.count:,} images"
    if minimal:
        if change.only_first:
            equally = f"each needs the larger perturbation on {change.only_first:,} of {images}"
            return f"{both}: {equally}, so these cannot tell."
        return f"{both} need the same perturbations on all {images}."
    if change.only_first:
        return (
            f"{both} withstand equally many of {images}, each {change.only_first:,} that the other "
            f"does not: {points(change)}, so these cannot tell."
        )
    return f"{both} withstand the same images, {points(change)} of {images}."


def _enough(needed: int | None, count: int, group: Group) -> str:
    """About how many images would tell, where that is known."""
    if needed is None or needed <= count:
        return ""
    digits = 1 - math.floor(math.log10(needed))
    about, total = round(needed, digits), group.data.total
    short = total is not None and about > total
    where = f", but {_data(group)} has {total:,}" if short else ""
    return f"; about {about:,} would{where}"


def _threat(group: Group) -> str:
    limit = group.threat.queries
    words = f"against {group.threat.text}" + (f", {limit:,} queries" if limit is not None else "")
    return f"{words}, transfer" if group.transfer else words


def _data(group: Group) -> str:
    return f"{group.data.name} ({group.data.split})" if group.data.split else group.data.name


def _samples(group: Group) -> str:
    """The samples of a group in words."""
    if group.count == group.data.count:
        return choice(group.data, group.threat)
    return f"{group.count:,} images of {_data(group)}"


def _troubles(group: Group) -> Iterator[str]:
    """Sentences about figures that must not be quoted, and about missing results."""
    for one in group.evaluations:
        judged = 0 if one.robust is None else one.robust.count
        if not one.complete and judged < group.count:
            yield f"! {one.name} is not complete: {judged:,} of {group.count:,} images are judged."
    concerned: dict[str, list[tuple[str, str]]] = {}
    for one in group.evaluations:
        for finding in one.stops:
            concerned.setdefault(finding.id, []).append((one.name, finding.seen))
    for rule, about in concerned.items():
        names = listed([name for name, _ in about])
        seen = sentence(about[0][1]) if len(about) == 1 else "besiege report RUN says why."
        yield f"! Do not quote the figures of {names} ({rule}): {seen}"


def _doubts(group: Group) -> Iterator[str]:
    """A sentence about figures that must be quoted with the word unknown."""
    names = [one.name for one in group.evaluations if doubt(one.figures)]
    if names:
        yield f"{UNKNOWN_MEANS} This concerns {listed(names)}."


# The table.


@dataclass(frozen=True)
class ComparisonTable:
    """A comparison for the terminal; with `images`, the ids on which models differ."""

    comparison: PairedComparison
    images: bool = False

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        for group in self.comparison.groups:
            yield Text(_threat(group), "bold", overflow="fold")
            yield Text(f"on {_samples(group)}", "dim", overflow="fold")
            yield ""
            yield _standings(group, options.max_width)
            yield ""
            yield from self._pairs(group, options.max_width)
            for trouble in _troubles(group):
                yield Text(trouble, "bold red", overflow="fold")
            for note in (*_doubts(group), *group.notes):
                yield Text(note, "yellow", overflow="fold")
            if group.notes or any(_troubles(group)) or any(_doubts(group)):
                yield ""
        yield Text(self._legend(), "dim")
        if declared := _declared(self.comparison):
            yield Text(declared, "dim", overflow="fold")
        for name, why in self.comparison.left_out:
            yield Text(f"Not compared: {name} ({why}).", "dim", overflow="fold")

    def _pairs(self, group: Group, width: int) -> Iterator[RenderableType]:
        if len(group.evaluations) > MOST:
            yield from _matrix(group, width)
        elif len(group.pairs) > 1:
            yield _list(group)
            yield ""
        for pair in told(group):
            text = pair_sentence(pair, group, self.comparison)
            yield Text(text, "bold" if pair.clear else "", overflow="fold")
            if crossed := crossing_sentence(pair, group):
                sure = pair.crossing is not None and pair.crossing.verdict == "crossing"
                yield Text(crossed, "bold" if sure else "dim", overflow="fold")
            if self.images:
                yield from _ids(f"only {pair.first}", pair.only_first, group)
                yield from _ids(f"only {pair.second}", pair.only_second, group)
        yield ""
        measured = [pair for pair in told(group) if pair.utility is not None]
        if measured:
            yield Text("on the clean images", "dim")
            yield utility_table(group, measured)
            for why in lacking_sentences(measured):
                yield Text(why, "dim", overflow="fold")
            yield ""
        if self.images and len(group.evaluations) > 2:
            for one in group.evaluations:
                yield from _ids(f"{one.name} and no other", one.only, group)
                yield from _ids(f"all but {one.name}", one.all_but, group)
            yield ""

    def _legend(self) -> str:
        groups, pairs = self.comparison.groups, self.comparison.pairs
        minimal = [group.threat.eps is None for group in groups]
        words = []
        if not all(minimal):
            words.append(
                "only: images that no other withstands. all but: images that all others withstand."
            )
        if any(minimal):
            words.append("Without a budget: images with the largest and the smallest perturbation.")
        if any(len(group.evaluations) > MOST for group in groups):
            words.append("Matrix: points that the column withstands more than the row, * p < 0.05.")
        if len(pairs) > 1:
            count = f"{len(pairs)} comparisons"
            words.append(f"p is corrected for {count} (Holm), intervals are not.")
        if any(pair.utility is not None for group in groups for pair in told(group)):
            words.append(UTILITY_LEGEND)
        return " ".join(words)


def _rows(width: int) -> Table:
    gap = 1 if width < _NARROW else 2
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")


def _standings(group: Group, width: int) -> Table:
    """The evaluations, the most robust first."""
    minimal, rows = group.threat.eps is None, _rows(width)
    headings = ["median"] if minimal else ["robust", "95 %"]
    headings += [] if width < _NARROW else ["clean", "only", "all but"]
    rows.add_column("", justify="right", no_wrap=True)
    rows.add_column("model", overflow="fold")
    for heading in headings:
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    cells = [_cells(one, minimal)[: len(headings)] for one in group.evaluations]
    taken = [max(map(len, column)) + 2 for column in zip(headings, *cells, strict=True)]
    marked = max((len(doubt(one.figures)) for one in group.evaluations), default=0)
    for place, (one, shown) in enumerate(zip(group.evaluations, cells, strict=True), 1):
        name = broken_up(one.name, max(width - sum(taken) - 8 - marked, 12))
        wrong = one.stops or not one.complete
        mark = Text("!", "bold red") if wrong else Text(doubt(one.figures), "yellow")
        rows.add_row(str(place), Text(name), Text(shown[0], "bold"), *shown[1:], mark)
    return rows


def _cells(one: Compared, minimal: bool) -> list[str]:
    if minimal:
        median = math.inf if one.median is None else one.median
        first = [distance(median, budget_unit(one.figures.threat))]
    else:
        first = [share(one.robust), interval(one.robust)]
    return [*first, share(one.clean), f"{len(one.only):,}", f"{len(one.all_but):,}"]


def _list(group: Group) -> Table:
    """All pairs by the numbers of the ranking."""
    rank = {one.name: place for place, one in enumerate(group.evaluations, 1)}
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("pair", "points", "95 %", "p", "only first", "only second"):
        rows.add_column(heading, justify="right", no_wrap=True)
    for pair in group.pairs:
        change = pair.change
        value, ends = points(change).split(" points ")
        rows.add_row(
            f"{rank[pair.first]} - {rank[pair.second]}",
            value,
            ends,
            Text(p_value(pair.p).removeprefix("p = ").removeprefix("p "), "bold" * pair.clear),
            f"{change.only_first:,}",
            f"{change.only_second:,}",
        )
    return rows


def _matrix(group: Group, width: int) -> Iterator[RenderableType]:
    """The difference of every pair, in blocks of as many columns as fit."""
    names = [one.name for one in group.evaluations]
    cells: dict[tuple[str, str], str] = {}
    for pair in group.pairs:
        star = "*" if pair.clear else ""
        cells[pair.first, pair.second] = f"{100 * pair.change.value:+.1f}{star}"
        cells[pair.second, pair.first] = f"{-100 * pair.change.value:+.1f}{star}"
    fit = max((width - 4) // _CELL, 1)
    for begin in range(0, len(names) - 1, fit):
        columns = names[begin : begin + fit]
        rows = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        rows.add_column("", justify="right", no_wrap=True)
        for place in range(begin, begin + len(columns)):
            rows.add_column(str(place + 1), min_width=_CELL - 1, justify="right", no_wrap=True)
        for place in range(begin + 1, len(names)):
            row = [
                cells.get((column, names[place]), "-") if begin + offset < place else ""
                for offset, column in enumerate(columns)
            ]
            rows.add_row(Text(str(place + 1), "dim"), *row)
        yield rows
        yield ""


def _ids(title: str, ids: Ids, group: Group) -> Iterator[RenderableType]:
    """The samples by their ids, or by their files where images were read from files."""
    if len(ids):
        names = [group.files.get(sample, str(sample)) for sample in np.sort(ids).tolist()]
        names = sorted(names) if group.files else names
        text = f"{title} ({len(ids):,}): {', '.join(names)}"
        yield Padding(Text(text, overflow="fold"), (0, 0, 0, 2))
