"""The table in the terminal: the result, one row per attack, then the warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from besiege.bench.words import origin
from besiege.core.shell import wrapped
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import registered
from besiege.metrics.values import AttackFigures, RunFigures, Sizes, Spread, Stage
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import (
    Fall,
    counted_in,
    descent,
    elsewhere,
    errors,
    guards,
    headline,
    is_cascade,
    is_complete,
    is_minimal,
    median_change,
    robust,
    sample_choice,
    since,
    strongest,
    troubles,
    typical,
    without_guards,
)
from besiege.report.findings import Alike, example, following, next_steps, rules, summary
from besiege.report.formats import (
    broken_up,
    budget_unit,
    checked,
    distance,
    each,
    interval,
    listed,
    number,
    seconds,
    sentence,
    share,
)
from besiege.report.grouping import ranked

_STYLES = {"stop": "bold red", "warning": "yellow", "note": "dim"}
_NARROW = 76  # on narrower terminals the interval of an accuracy goes to a second line
_NAME = 12  # least width of the names of attacks; columns that leave less are left out
_NAMES = 3  # names of evaluations in a warning; more are counted
_STEPS = 3  # commands to run next in brief; more are counted
_NONE = "-"


def table(
    figures: RunFigures,
    page: Path | str | None = None,
    details: bool | None = None,
    head: RenderableType | None = None,
) -> RenderableType:
    """The result of evaluations, to be printed with rich.

    Parameters
    ----------
    figures : RunFigures
        The figures of a run, or of one evaluation: ``RunFigures.of(found.figures)``.
    page : path, optional
        The HTML page, named in the last line. Print with ``soft_wrap=True`` to keep a path that
        is longer than a line in one piece.
    details : bool, optional
        Whether to list the attacks of every evaluation, and all findings; by default the attacks
        only where there is one evaluation, and no findings that follow from a fault of the model.
    head : RenderableType, optional
        Stands in place of the table of several evaluations: the cells of a benchmark.

    Returns
    -------
    RenderableType
        The table, fitted to the width of the console; plain text if that is not a terminal.

    Examples
    --------
    >>> import besiege
    >>> from besiege.metrics import RunFigures
    >>> from rich.console import Console
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm", count=20
    ... )
    >>> Console(width=80).print(table(RunFigures.of(found.figures)))  # doctest: +ELLIPSIS
    zoo:digits-natural against linf:0.15
    on 20 of the 397 images of digits (test), chosen with seed 0
    ...
    """
    several = len(checked(figures).evaluations) > 1
    shown = not several if details is None else details
    return _Report(figures, None if page is None else str(page), shown, bool(details), head)


@dataclass(frozen=True)
class _Report:
    figures: RunFigures
    page: str | None
    details: bool
    every: bool
    head: RenderableType | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        evaluations = ranked(self.figures.evaluations)
        if not self.figures.complete:
            again = "Run the same command again to resume."
            yield Text(f"NOT COMPLETE: records are missing or damaged. {again}", "bold red")
            yield ""
        signs = [*_signs(evaluations)]
        if len(evaluations) > 1:
            yield from (*signs, "") if signs else ()
            if self.head is None:
                yield from _several(evaluations, options.max_width, brief=not self.details)
            else:
                yield self.head
            yield ""
        if self.details:
            above = signs if len(evaluations) == 1 else []
            for evaluation in evaluations:
                yield from _details(evaluation, options.max_width, above)
            yield Text(_legend(evaluations, options.max_width), "dim")
            yield ""
        if any(evaluation.warnings for evaluation in evaluations):
            yield from _warnings(evaluations, self.every)
            yield ""
        if steps := next_steps(evaluations):
            shown = steps if self.details else steps[:_STEPS]
            for ids, first, command in shown:
                yield Text(f"To run next ({ids}):" if not first else f"{first} ({ids}):")
                yield Text(wrapped(command, options.max_width), overflow="fold")
            if more := len(steps) - len(shown):
                yield Text(f"{more:,} more commands: besiege report RUN --details", "dim")
            yield ""
        if code := example(evaluations):
            yield Text(code, "dim", overflow="fold")
        if self.page is not None:
            yield from _page(self.page, options)


def _legend(evaluations: Sequence[Evaluation], width: int) -> str:
    """The explanation of the columns that are shown at this width."""
    evaluations = [without_guards(evaluation) for evaluation in evaluations]
    shown = {name for one in evaluations for name in _columns(one, width).headings}
    sizes = [evaluation.distances is not None for evaluation in evaluations]
    words = ["* smallest perturbations." if all(sizes) else "* broke most images."]
    limits = {one.threat.queries for one in evaluations if one.queries} - {None}
    most = f", at most {max(filter(None, limits)):,} each" if limits else ""
    meanings = {
        "broken": "broken: successful attacks on correctly classified images.",
        "before": "before: unbroken images before the attack.",
        "left": "left: unbroken images after it.",
        "alone": "alone: broken by this attack only.",
        "median": "median: perturbation size.",
        "passes": "passes: forward and backward passes per image.",
        "queries": f"queries: mean (median) per correctly classified image{most}.",
    }
    if {"before", "left"} <= shown:
        meanings["before"] = "before, left: unbroken images before the attack and after it."
        del meanings["left"]
    words += [meaning for name, meaning in meanings.items() if name in shown]
    suites = {e.suite: origin(e.suite) for e in evaluations if e.suite}
    words += [f"{name}: {text.split('. ')[0]}." for name, text in suites.items() if text]
    if any(attack.given for evaluation in evaluations for attack in evaluation.attacks):
        words.append("replay: images made elsewhere; accuracy on these only.")
    if any(descent(evaluation, "1") for evaluation in evaluations):
        words.append("median after: '-' where fewer than half of the images were broken.")
    return " ".join(words)


def _rows(width: int) -> Table:
    """A table without lines, with smaller gaps on a narrow terminal."""
    gap = 1 if width < _NARROW else 2
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")


def _page(path: str, options: ConsoleOptions) -> Iterator[RenderableType]:
    """The path of the page, in its own line if it is long.

    A console cuts lines wider than itself, so a longer path is folded, except where the console
    does not wrap lines.
    """
    if options.overflow == "ignore" or len("page  ") + cell_len(path) <= options.max_width:
        yield Text("page  ", "dim", no_wrap=True).append(path, "not dim underline")
        return
    yield Text("page", "dim")
    yield Text(path, "underline", no_wrap=cell_len(path) <= options.max_width, overflow="fold")


def _name(evaluation: Evaluation) -> str:
    return f"{evaluation.model.name} against {evaluation.threat.text}"


def _figure(evaluation: Evaluation) -> str:
    """The figure of an evaluation in the comparison: accuracy, or median perturbation."""
    median = median_change(evaluation)
    if is_minimal(evaluation) and median is not None:
        return f"median {distance(median, budget_unit(evaluation.threat))}"
    return share(robust(evaluation))


def _several(
    evaluations: Sequence[Evaluation], width: int, brief: bool
) -> Iterator[RenderableType]:
    """All evaluations in one table; in brief also what stands at the head of each otherwise."""
    samples = list(dict.fromkeys(map(sample_choice, evaluations)))
    if len(samples) == 1:
        yield Text(f"on {samples[0]}", "dim", overflow="fold")
        yield ""
    yield _comparison(evaluations, width)
    for evaluation in evaluations if brief else ():
        if stops := list(dict.fromkeys(error.id for error in errors(evaluation))):
            yield Text(f"DO NOT QUOTE {_name(evaluation)} ({', '.join(stops)})", "bold red")
        for trouble in troubles(evaluation):
            yield Text(f"NOT COMPLETE, {_name(evaluation)}: {trouble}", "bold red")
        if change := since(evaluation):
            yield Text(f"{_name(evaluation)} {change}", overflow="fold")


def _comparison(evaluations: Sequence[Evaluation], width: int) -> RenderableType:
    """One line per model and threat, with a mark where the figure must not be quoted."""
    longest = max(cell_len(evaluation.model.name) for evaluation in evaluations)
    least = {"model": min(longest, width // 3), "threat": 10}
    numbers = {
        "clean": [share(one.clean) for one in evaluations],
        "robust": [_figure(one) for one in evaluations],
        "95 %": ["" if is_minimal(one) else interval(robust(one)) for one in evaluations],
    }
    rows = _rows(width)
    for name, size in least.items():
        rows.add_column(name, overflow="fold", min_width=size)
    for name in numbers:
        rows.add_column(name, justify="right", no_wrap=True)
    taken = [*least.values(), *(max(map(cell_len, column)) for column in numbers.values())]
    named = width - sum(taken) - 2 * len(taken) - 1 >= _NAME
    if named:
        rows.add_column("strongest", overflow="fold")
    rows.add_column("", no_wrap=True)
    for one, clean, figure, range_ in zip(evaluations, *numbers.values(), strict=True):
        attack = broken_up("".join(attack.text for attack in strongest(one)[:1]), 17)
        rows.add_row(
            Text(one.model.name),
            Text(one.threat.text),
            clean,
            Text(figure, "bold"),
            range_,
            *([attack] if named else []),
            Text("!", "bold red") if errors(one) or not is_complete(one) else "",
        )
    return rows


def _details(
    evaluation: Evaluation, width: int, above: Sequence[RenderableType]
) -> Iterator[RenderableType]:
    """One evaluation; `above` is shown between its name and its result."""
    yield Text(_name(evaluation), "bold", overflow="fold")
    yield Text(f"on {sample_choice(evaluation)}", "dim", overflow="fold")
    if transfer := elsewhere(evaluation):
        yield Text(transfer, "bold", overflow="fold")
    yield from above
    if errors(evaluation):
        yield Text("DO NOT QUOTE THESE FIGURES", "bold red")
    for trouble in troubles(evaluation):
        yield Text(f"NOT COMPLETE: {trouble}", "bold red")
    yield ""
    yield _answer(evaluation)
    if change := since(evaluation):
        yield Text(change, "bold", overflow="fold")
    yield ""
    yield _attacks(without_guards(evaluation), width)
    if found := guards(evaluation):
        yield Text(found, overflow="fold")
    if evaluation.distances is not None:
        yield ""
        yield _sizes(evaluation, width)
        if (fall := descent(evaluation, "1")) is not None:
            yield ""
            yield _descent(evaluation, fall, width)
    for attack in evaluation.attacks:
        if attack.failure:
            yield Text(f"{attack.text} failed: {attack.failure}", "red", overflow="fold")
    yield ""


def _answer(evaluation: Evaluation) -> RenderableType:
    """The summary: a row for every figure that has one."""
    if robust(evaluation) is None:
        return Text(headline(evaluation), "bold red")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for figure in registered():
        row = None if figure.row is None else figure.row(evaluation)
        if row is not None:
            cells = (row.label, *_shown(row.value))
            grid.add_row(*(Text(cell, "bold" if row.bold else "") for cell in cells), row.words)
    if not is_minimal(evaluation):
        return grid
    return Group(Text(headline(evaluation), "bold"), grid)


def _shown(value: Rate | Spread | float | str) -> tuple[str, str]:
    """A value and its interval or deviation."""
    if isinstance(value, Rate):
        return share(value).rjust(7), interval(value)
    if isinstance(value, Spread):
        mean, deviation = str(value).rsplit(" ", 1)
        return mean.rjust(7), deviation
    return (value if isinstance(value, str) else number(value)).rjust(7), ""


@dataclass(frozen=True)
class _Columns:
    """The columns that fit beside the names of attacks, and the width left for these names."""

    headings: list[str]
    cells: list[list[str]]
    room: int


def _columns(evaluation: Evaluation, width: int) -> _Columns:
    """The columns of the table of attacks, with a row of cells for each attack."""
    narrow = width < _NARROW
    stages: Sequence[Stage | None] = [None] * len(evaluation.attacks)
    if is_cascade(evaluation):
        stages = evaluation.cascade
    middle = ["before", "broken", "left"] if any(stages) else ["broken", "alone", "median"]
    costs = _costs(evaluation)
    headings = ["accuracy", *([] if narrow else ["95 %"]), *middle, *costs, "time"]
    unit = budget_unit(evaluation.threat)
    cells = []
    for place, (attack, stage) in enumerate(zip(evaluation.attacks, stages, strict=True)):
        shown = _cells(attack, typical(evaluation, attack), stage, unit, narrow)
        spent = [column[place] for column in costs.values()]
        took = _NONE if attack.given else _short(seconds(attack.seconds))
        cells.append([*shown, *spent, took])
    return _fitting(headings, cells, width)


def _attacks(evaluation: Evaluation, width: int) -> Table:
    """One row per attack."""
    columns = _columns(evaluation, width)
    rows = _rows(width)
    rows.add_column("attack", overflow="fold")
    for heading in columns.headings:
        rows.add_column(heading, justify="right", no_wrap=True)
    most = strongest(evaluation)
    for attack, shown in zip(evaluation.attacks, columns.cells, strict=True):
        strong = attack in most
        name = broken_up(attack.text + (" *" if strong else ""), max(columns.room, 8))
        whole = attack.complete and not attack.failure
        rows.add_row(
            Text(name, "bold" if strong else ""),
            *(Text(text, "" if whole else "bold red") for text in shown),
        )
    return rows


def _costs(evaluation: Evaluation) -> dict[str, list[str]]:
    """The columns of costs: queries of query-based attacks, passes of the others."""
    asked = {one.text: one for one in evaluation.queries}
    passes, queries = [], []
    for attack in evaluation.attacks:
        rate, mine = attack.accuracy, asked.get(attack.text)
        spent = each(attack.forwards + attack.backwards, rate.count) if rate else _NONE
        passes.append(spent if mine is None and not attack.given else _NONE)
        queries.append(_NONE if mine is None else f"{number(mine.mean)} ({number(mine.median)})")
    columns = {"passes": passes, "queries": queries}
    return {name: cells for name, cells in columns.items() if {*cells} != {_NONE}}


def _sizes(evaluation: Evaluation, width: int) -> Table:
    """How large the smallest perturbations are, by each attack and by the best of all."""
    sizes, unit = evaluation.distances, budget_unit(evaluation.threat)
    assert sizes is not None
    several = len(sizes.attacks) > 1
    headings = ["median", "mean", "90 %", f"area to {distance(sizes.all.area_to, unit)}"]
    headings += ["optimality"] if several else []
    rows: list[tuple[str, Sizes, float]] = [(a.text, a, a.optimality) for a in sizes.attacks]
    rows += [("best of all", sizes.all, 1.0)] if several else []
    cells = []
    for name, one, optimality in rows:
        values = (one.median, one.mean, one.p90, one.area)
        shown = ["infinite" if value is None else distance(value, unit) for value in values]
        cells.append((name, [*shown, *([f"{optimality:.3f}"] if several else [])]))
    return _named("smallest perturbation", headings, cells, width)


def _descent(evaluation: Evaluation, fall: Fall, width: int) -> Table:
    """The median perturbation after numbers of passes, by each attack and by all in turn."""
    unit = budget_unit(evaluation.threat)
    headings = [*(f"{mark:,}" for mark in fall.marks), "in all"]
    cells = []
    for name, row in fall.rows.items():
        medians = [*(median for median, _ in row.cells), row.in_all]
        cells.append((name, [_NONE if m is None else distance(m, unit) for m in medians]))
    return _named(f"median after {counted_in(evaluation)}", headings, cells, width)


def _named(
    title: str, headings: list[str], cells: list[tuple[str, list[str]]], width: int
) -> Table:
    """A table of names and figures, in which long names are broken."""
    columns = _fitting(headings, [shown for _, shown in cells], width)
    rows = _rows(width)
    rows.add_column(title, overflow="fold")
    for heading in columns.headings:
        rows.add_column(heading, justify="right", no_wrap=True)
    for (name, _), shown in zip(cells, columns.cells, strict=True):
        rows.add_row(Text(broken_up(name, max(columns.room, 8))), *map(Text, shown))
    return rows


def _fitting(headings: list[str], cells: list[list[str]], width: int) -> _Columns:
    """The columns that fit beside the names: the first, and then each that leaves room for them."""
    gap = 1 if width < _NARROW else 2
    kept: list[int] = []
    room = width
    for place, column in enumerate(zip(headings, *cells, strict=True)):
        wide = gap + max(map(cell_len, "\n".join(column).split("\n")))
        if not place or room - wide >= _NAME:
            kept.append(place)
            room -= wide
    return _Columns(
        [headings[place] for place in kept], [[row[place] for place in kept] for row in cells], room
    )


def _cells(
    attack: AttackFigures, size: float | None, stage: Stage | None, unit: int | None, narrow: bool
) -> list[str]:
    """The figures of an attack; a failure replaces the interval."""
    rate = attack.accuracy
    sure = interval(rate)
    if attack.failure or not attack.complete:
        sure = "FAILED" if attack.failure else "unfinished"
    accuracy = share(rate) if rate else _NONE
    if rate is None:
        middle = [_NONE] * 3
    elif stage is not None:  # in a suite, of the images that were unbroken before it
        middle = [f"{count:,}" for count in (stage.before, stage.broken, stage.left)]
    else:
        middle = [f"{attack.broken:,}", f"{attack.alone:,}"]
        middle.append(_NONE if size is None else distance(size, unit))
    return [
        *([f"{accuracy}\n{sure}"] if narrow else [accuracy, sure]),
        *middle,
    ]


def _short(duration: str) -> str:
    """A duration without spaces: 12m05s."""
    return duration.replace(" min", "m").replace(" h", "h").replace(" s", "s").replace(" ", "")


def _warnings(evaluations: Sequence[Evaluation], every: bool) -> Iterator[RenderableType]:
    """Every rule once, with the names of its evaluations if it does not concern all.

    Rules that follow from a fault of the model are only named, unless `every` one is shown.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    found = rules(evaluations)
    folded = [] if every else following(found, evaluations)
    for rule in found:
        label = rule.label
        for group in rule.groups if rule not in folded else ():
            seen = f"{sentence(group.first.seen)}{group.likewise}"
            text = Text(f"{seen} {sentence(group.first.advice)}")
            if len(evaluations) > 1:
                text.append(_concerned(group, evaluations), "dim")
            grid.add_row(Text(label, _STYLES[rule.level]), text)
            label = ""
    yield grid
    if folded:
        ids = ", ".join(sorted(rule.id for rule in folded))
        yield Text(f"also: {ids} (besiege report RUN --details shows them)", "dim")


def _concerned(group: Alike, evaluations: Sequence[Evaluation]) -> str:
    """The evaluations of a finding, where it does not say the same of all."""
    names = [_name(evaluations[place]) for place in group.evaluations]
    if len(names) == len(evaluations) and not group.differ:
        return ""
    if len(names) == len(evaluations):
        others = "the other" if len(names) == 2 else "the others"
        return f" ({names[0]}; {others} with other numbers)"
    if len(names) > _NAMES:
        names = [*names[:_NAMES], f"{len(names) - _NAMES} more"]
    return f" ({listed(names)})"


def _signs(evaluations: Sequence[Evaluation]) -> Iterator[RenderableType]:
    """Which rules fired, in one line above the results."""
    found = rules(evaluations)
    if found:
        yield Text(f"{summary(found)} (explained below)", _STYLES[found[0].level])
