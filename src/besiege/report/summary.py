"""A summary in Markdown, for the page that a CI system shows for a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from besiege.bench.folder import telling
from besiege.core.errors import Finding
from besiege.core.text import harmless
from besiege.metrics.gates import FIGURES, Verdict, titles
from besiege.metrics.values import EvaluationFigures
from besiege.report.answer import is_minimal, median_change, robust, sample_choice
from besiege.report.formats import budget_unit, distance, interval, listed, sentence, share


def summary(
    evaluations: Sequence[EvaluationFigures],
    verdicts: Sequence[Verdict],
    page: Path | None = None,
) -> str:
    """A table of the evaluations, the verdicts of all gates, and the warnings, in Markdown."""
    names = titles(evaluations)
    bad = [one for one in verdicts if not one.passed]
    lines = [f"## Robustness: {_result(bad)}", "", *_table(evaluations), ""]
    shown = [one for one in verdicts if not (one.passed and one.check == FIGURES)]
    if shown:
        lines += ["### Gates", ""]
        lines += [f"- **{_text(v.label)}**: {_text(f'{v.about}: {v.reason}')}" for v in shown]
        lines.append("")
    concerned: dict[Finding, list[str]] = {}
    for name, evaluation in zip(names, evaluations, strict=True):
        for finding in evaluation.warnings:
            concerned.setdefault(finding, []).append(name)
    if concerned:
        lines += ["### Warnings", ""]
        for finding, about in concerned.items():
            whom = "" if len(about) == len(names) else f" ({_text(listed(about))})"
            said = _text(f"{sentence(finding.seen)} {sentence(finding.advice)}")
            lines.append(f"- **{finding.id}** {finding.level}: {said}{whom}")
        lines.append("")
    for evaluation in evaluations:
        lines += ["", *(f"    {line}" for line in harmless(evaluation.command).splitlines())]
    if page is not None:
        lines += ["", f"Page: {_text(str(page))}"]
    return "\n".join(lines) + "\n\n"


def append_summary(
    path: Path,
    evaluations: Sequence[EvaluationFigures],
    verdicts: Sequence[Verdict],
    page: Path | None = None,
) -> None:
    """Append the summary to a file, because a job may have several; folders are created."""
    text = summary(evaluations, verdicts, page)
    with telling(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def _result(bad: Sequence[Verdict]) -> str:
    if not bad:
        return "passed"
    words = {"incomplete": "not complete", "stop": "not to be quoted", "failed": "failed"}
    outcomes = {one.outcome for one in bad}
    return listed([word for outcome, word in words.items() if outcome in outcomes])


def _table(evaluations: Sequence[EvaluationFigures]) -> list[str]:
    """One row for each evaluation."""
    heads = ["model", "threat", "images", "clean", "robust", "95 %"]
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|--:|--:|--:|"]
    for one in evaluations:
        figure, sure = share(robust(one)), interval(robust(one))
        median = median_change(one)
        if is_minimal(one) and median is not None:
            figure, sure = f"median {distance(median, budget_unit(one.threat))}", ""
        cells = [
            one.model.title,
            one.threat.text,
            sample_choice(one),
            share(one.clean),
            figure,
            sure,
        ]
        rows.append(f"| {' | '.join(map(_text, cells))} |")
    return rows


def _text(text: str) -> str:
    """A text whose characters mean nothing in Markdown, on one line."""
    flat = " ".join(harmless(text).split())
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))
