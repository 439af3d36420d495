"""The table of a benchmark in the terminal: models by cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from besiege.bench.benchmark import Benchmark
from besiege.bench.run import Run, RunEntry
from besiege.core.threat import Threat
from besiege.metrics.intervals import Rate
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.report.answer import errors, is_complete
from besiege.report.formats import distance, interval, share

_WIDE = 22
"""Width of a column: an accuracy and its interval."""
Column = tuple[str, str | None, int]
"""A cell, a budget and a seed."""


def cells_table(run: Run, figures: RunFigures) -> RenderableType:
    """Accuracy of every model in every cell of a benchmark, to be printed with rich.

    A figure is over all attacks of its cell: an image counts as broken if one of them broke it.
    Every column names the number of images its shares are of.
    """
    assert run.benchmark is not None, "only the run of a benchmark has cells"
    return _Cells(run, run.benchmark, {one.name: one for one in figures.evaluations})


@dataclass(frozen=True)
class _Cells:
    run: Run
    benchmark: Benchmark
    figures: dict[str, EvaluationFigures]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        entries = [one for one in self.run.entries if one.plan in self.figures]
        models = [m for m in self.benchmark.models if any(m == one.model for one in entries)]
        columns = list(dict.fromkeys((one.cell, one.budget, one.seed) for one in entries))
        name = max((len(model) for model in models), default=0)
        fit = max(1, (options.max_width - min(name, options.max_width // 3) - _WIDE) // _WIDE)
        for first in range(0, len(columns), fit):
            yield self._table(entries, models, columns[first : first + fit])
            yield ""
        if any(self._mark(self.figures[one.plan]) for one in entries):
            yield Text("! must not be quoted, or is not complete", "bold red")
        for left in self.run.unfit:
            yield Text(f'not run: {left.model} in "{left.cell}": {left.reason}', "dim")
        words = "Accuracy and its 95 % interval in percent, under all attacks of a cell together."
        yield Text(words, "dim")

    def _table(
        self, entries: Sequence[RunEntry], models: Sequence[str], columns: Sequence[Column]
    ) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("model", overflow="fold", vertical="bottom")
        table.add_column(self._clean_heading(entries), vertical="bottom")
        found = {(one.model, one.cell, one.budget, one.seed): one for one in entries}
        for column in columns:
            mine = [found[model, *column] for model in models if (model, *column) in found]
            table.add_column(self._heading(column, mine), overflow="fold", vertical="bottom")
        for model in models:
            some = next(one for one in entries if one.model == model)
            clean = self.figures[some.plan].clean
            row = [Text(model), Text(_rate(clean))]
            for column in columns:
                entry = found.get((model, *column))
                row.append(Text("-") if entry is None else self._value(entry))
            table.add_row(*row)
        return table

    def _clean_heading(self, entries: Sequence[RunEntry]) -> str:
        return _with_count("clean", {_count(self.figures[one.plan].clean) for one in entries})

    def _heading(self, column: Column, entries: Sequence[RunEntry]) -> str:
        cell, budget, seed = column
        declared = self.benchmark.cell(cell)
        eps = Threat.parse(declared.threat).written if declared.searches else budget
        words = [cell, *([f"at {eps}"] if eps else [])]
        words += [f"seed {seed}"] if len(self.benchmark.seeds(declared)) > 1 else []
        rates = [robust_at(self.figures[one.plan], declared.threat) for one in entries]
        return _with_count(", ".join(words), {_count(rate) for rate in rates})

    def _value(self, entry: RunEntry) -> Text:
        figures = self.figures[entry.plan]
        declared = self.benchmark.cell(entry.cell)
        rate = robust_at(figures, declared.threat)
        median = None if figures.eps_curve is None else figures.eps_curve.median
        if rate is None and median is not None:
            text = Text(f"median {distance(median)}")
        else:
            text = Text(_rate(rate), "bold")
        return text.append(self._mark(figures), "bold red")

    def _mark(self, figures: EvaluationFigures) -> str:
        return " !" if errors(figures) or not is_complete(figures) else ""


def robust_at(figures: EvaluationFigures, threat: str) -> Rate | None:
    """The accuracy of an evaluation at a threat's budget: its own, or from the curve of a search.

    None where neither is known.
    """
    if figures.threat.eps is not None:
        return figures.robust
    eps, curve = Threat.parse(threat).eps, figures.eps_curve
    if eps is None or curve is None:
        return None
    return curve.at(float(eps))


def _rate(rate: Rate | None) -> str:
    return f"{share(rate)} {interval(rate)}".strip()


def _count(rate: Rate | None) -> int | None:
    return None if rate is None else rate.count


def _with_count(words: str, counts: set[int | None]) -> str:
    """A heading with the number of images; several numbers are all named, since they differ."""
    known = sorted(count for count in counts if count is not None)
    return words if not known else f"{words}\nof {' or '.join(f'{one:,}' for one in known)}"
