"""Several evaluations in one table, a line for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from besiege.core.attack_registry import ignores_defense
from besiege.core.text import broken_up
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import (
    UNKNOWN_MEANS,
    doubt,
    errors,
    is_complete,
    is_minimal,
    median_change,
    robust,
    sample_choice,
    since,
    strongest,
    troubles,
)
from besiege.report.formats import budget_unit, distance, interval, share
from besiege.report.terminal.layout import _NAME, plain_table


def compared(
    evaluations: Sequence[Evaluation], width: int, brief: bool
) -> Iterator[RenderableType]:
    """All evaluations in one table; in brief also what stands at the head of each otherwise."""
    samples = list(dict.fromkeys(map(sample_choice, evaluations)))
    if len(samples) == 1:
        yield Text(f"on {samples[0]}", "dim", overflow="fold")
        yield ""
    yield _comparison(evaluations, width)
    if any(map(doubt, evaluations)):
        yield Text(UNKNOWN_MEANS, "dim", overflow="fold")
    for evaluation in evaluations:
        if evaluation.defense is not None:
            yield Text(f"{evaluation.title}: {evaluation.defense}", overflow="fold")
        if words := evaluation.model.counted:
            yield Text(f"{evaluation.title}: an image counts where it is {words}", "dim")
    for line in _spared(evaluations):
        yield Text(line, overflow="fold")
    for evaluation in evaluations if brief else ():
        if stops := list(dict.fromkeys(error.id for error in errors(evaluation))):
            yield Text(f"DO NOT QUOTE {evaluation.title} ({', '.join(stops)})", "bold red")
        for trouble in troubles(evaluation):
            yield Text(f"NOT COMPLETE, {evaluation.title}: {trouble}", "bold red")
        if change := since(evaluation):
            yield Text(f"{evaluation.title} {change}", overflow="fold")


def _comparison(evaluations: Sequence[Evaluation], width: int) -> RenderableType:
    """One line per model and threat, with a mark where the figure must not be quoted."""
    longest = max(cell_len(evaluation.model.title) for evaluation in evaluations)
    least = {"model": min(longest, width // 3), "threat": 10}
    numbers = {
        "clean": [share(one.clean) for one in evaluations],
        "robust": [_figure(one) for one in evaluations],
        "95 %": ["" if is_minimal(one) else interval(robust(one)) for one in evaluations],
    }
    rows = plain_table(width)
    for name, size in least.items():
        rows.add_column(name, overflow="fold", min_width=size)
    for name in numbers:
        rows.add_column(name, justify="right", no_wrap=True)
    taken = [*least.values(), *(max(map(cell_len, column)) for column in numbers.values())]
    marks = [_mark(one) for one in evaluations]
    named = width - sum(taken) - 2 * len(taken) - max(1, *map(len, marks)) >= _NAME
    named &= any(map(strongest, evaluations))
    if named:
        rows.add_column("strongest", overflow="fold")
    rows.add_column("", no_wrap=True)
    for one, clean, figure, range_, mark in zip(evaluations, *numbers.values(), marks, strict=True):
        attack = broken_up("".join(attack.text for attack in strongest(one)[:1]), 17)
        rows.add_row(
            Text(one.model.title),
            Text(one.threat.text),
            clean,
            Text(figure, "bold"),
            range_,
            *([attack] if named else []),
            mark,
        )
    return rows


def _spared(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Names models without a defense that ran without the attacks that ignore one."""
    ignoring: dict[str, list[str]] = {}
    for one in evaluations:
        texts = [attack.text for attack in one.attacks if ignores_defense(attack.text)]
        ignoring.setdefault(one.threat.text, []).extend(texts)
    for one in evaluations:
        texts = list(dict.fromkeys(ignoring[one.threat.text]))
        plain = one.model.kind == "Classifier" and "+" not in one.model.name
        if texts and plain and not any(ignores_defense(attack.text) for attack in one.attacks):
            yield f"{one.title} has no defense to ignore, so it ran without {', '.join(texts)}"


def _mark(evaluation: Evaluation) -> Text:
    """A mark where a figure must not be quoted, or the word that it must be quoted with."""
    if errors(evaluation) or not is_complete(evaluation):
        return Text("!", "bold red")
    return Text(doubt(evaluation), "yellow")


def _figure(evaluation: Evaluation) -> str:
    """The figure of an evaluation in the comparison: accuracy, or median perturbation."""
    median = median_change(evaluation)
    if is_minimal(evaluation) and median is not None:
        return f"median {distance(median, budget_unit(evaluation.threat))}"
    return share(robust(evaluation))
