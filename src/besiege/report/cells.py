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
from besiege.report.answer import UNKNOWN_MEANS, doubt, errors, is_complete
from besiege.report.formats import distance, interval, share

_WIDE = 22
"""Width of a column: an accuracy and its interval; a word after it folds."""
Column = tuple[str, dict[str, Text]]
"""A heading, and the values of models."""


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
        columns = [*self._columns(entries)]
        name = max((len(model) for model in models), default=0)
        fit = max(1, (options.max_width - min(name, options.max_width // 3)) // _WIDE)
        for first in range(0, len(columns), fit):
            yield _table(models, columns[first : first + fit])
            yield ""
        if any(self._mark(self.figures[one.plan]) for one in entries):
            yield Text("! must not be quoted, or is not complete", "bold red")
        if any(doubt(self.figures[one.plan]) for one in entries):
            yield Text(UNKNOWN_MEANS, "dim")
        for left in self.run.unfit:
            yield Text(f'not run: {left.model} in "{left.cell}": {left.reason}', "dim")
        for absent, why in self.benchmark.absent.items():
            yield Text(f"absent: {absent}: {why}", "dim")
        if others := len(self.figures) - len({one.plan for one in entries}):
            words = f"{others:,} more in this folder, not of the benchmark: besiege report RUN "
            yield Text(f"{words}--details", "dim")
        words = "Accuracy and its 95 % interval in percent, under all attacks of a cell together."
        yield Text(words, "dim")

    def _columns(self, entries: Sequence[RunEntry]) -> Iterator[Column]:
        """Clean accuracy, which is the same in all evaluations of a model, and every cell."""
        clean = {one.model: self.figures[one.plan].clean for one in reversed(entries)}
        counts = {_count(self.figures[one.plan].clean) for one in entries}
        yield _with_count("clean", counts), {m: Text(_rate(rate)) for m, rate in clean.items()}
        groups: dict[tuple[str, str | None, int], list[RunEntry]] = {}
        for one in entries:
            groups.setdefault((one.cell, one.budget, one.seed), []).append(one)
        for about, mine in groups.items():
            yield self._heading(*about, mine), {one.model: self._value(one) for one in mine}

    def _heading(
        self, cell: str, budget: str | None, seed: int, entries: Sequence[RunEntry]
    ) -> str:
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
        if not (mark := self._mark(figures)) and (word := doubt(figures)):
            return text.append(f" {word}", "yellow")
        return text.append(mark, "bold red")

    def _mark(self, figures: EvaluationFigures) -> str:
        return " !" if errors(figures) or not is_complete(figures) else ""


def _table(models: Sequence[str], columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("model", *(heading for heading, _ in columns)):
        table.add_column(heading, overflow="fold", vertical="bottom")
    for model in models:
        table.add_row(Text(model), *(values.get(model, Text("-")) for _, values in columns))
    return table


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
