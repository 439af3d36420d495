"""The warnings: one line above the results, and every rule below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.findings import Alike, following, rules, summary
from besiege.report.formats import listed, sentence

_STYLES = {"stop": "bold red", "warning": "yellow", "note": "dim"}
_NAMES = 3
"""Largest number of evaluations that a warning names; more are counted."""


def signs(evaluations: Sequence[Evaluation], where: str = "below") -> list[Text]:
    """Which rules fired, in one line that says where they are explained; nothing if none did."""
    found = rules(evaluations)
    words = f"{summary(found)} (explained {where})"
    return [Text(words, _STYLES[found[0].level])] if found else []


def explained(evaluations: Sequence[Evaluation], every: bool) -> Iterator[RenderableType]:
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
    """The evaluations of a finding, where it does not say the same of all.

    The text is about the first of them: attacks and numbers that differ in the others are said.
    """
    first, *others = group.evaluations
    everywhere = len(group.evaluations) == len(evaluations)
    if everywhere and not group.differ:
        return ""

    def words(name: str, *places: int) -> str:
        same = set(group.attacks(*places)) == set(group.attacks(first))
        return name if same else f"{listed(group.attacks(*places))} of {name}"

    if everywhere:
        told = [words("the other" if len(others) == 1 else "the others", *others)]
    else:
        rest = others[_NAMES - 1 :]
        told = [words(evaluations[place].title, place) for place in others[: _NAMES - 1]]
        told += [words(f"{len(rest)} more", *rest)] if rest else []
    if not group.differ or not others:
        return f" ({listed([evaluations[first].title, *told])})"
    numbers = ", with other numbers" if group.numbers_differ else ""
    return f" ({evaluations[first].title}; likewise {listed(told)}{numbers})"
