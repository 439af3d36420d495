"""The table of attacks, one row for each, and the legend of its columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from besiege.bench.words import origin
from besiege.core.text import broken_up
from besiege.metrics.attack_values import AttackFigures, Stage
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import descent, is_cascade, strongest, typical, without_guards
from besiege.report.formats import (
    budget_unit,
    distance,
    each,
    interval,
    number,
    seconds,
    share,
)
from besiege.report.terminal.layout import NARROW, NONE, Columns, fitting, plain_table


def attack_table(evaluation: Evaluation, width: int) -> Table:
    """One row per attack."""
    columns = _columns(evaluation, width)
    rows = plain_table(width)
    rows.add_column("attack", overflow="fold")
    for heading in columns.headings:
        rows.add_column(heading, justify="right", no_wrap=True)
    most = strongest(evaluation)
    for attack, shown in zip(evaluation.attacks, columns.cells, strict=True):
        strong = attack in most
        marks = (", transfer" if attack.transfer else "") + (" *" if strong else "")
        name = broken_up(attack.text + marks, max(columns.room, 8))
        whole = attack.complete and not attack.failure
        rows.add_row(
            Text(name, "bold" if strong else ""),
            *(Text(text, "" if whole else "bold red") for text in shown),
        )
    return rows


def _columns(evaluation: Evaluation, width: int) -> Columns:
    """The columns of the table of attacks, with a row of cells for each attack."""
    narrow = width < NARROW
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
        took = NONE if attack.given else _short(seconds(attack.seconds))
        cells.append([*shown, *spent, took])
    return fitting(headings, cells, width)


def _cells(
    attack: AttackFigures, size: float | None, stage: Stage | None, unit: int | None, narrow: bool
) -> list[str]:
    """The figures of an attack; a failure replaces the interval."""
    rate = attack.accuracy
    sure = interval(rate)
    if attack.failure or not attack.complete:
        sure = "FAILED" if attack.failure else "unfinished"
    accuracy = share(rate) if rate else NONE
    if rate is None:
        middle = [NONE] * 3
    elif stage is not None:  # in a suite, of the images that were unbroken before it
        middle = [f"{count:,}" for count in (stage.before, stage.broken, stage.left)]
    else:
        middle = [
            f"{attack.broken:,}",
            NONE if attack.alone is None else f"{attack.alone:,}",
            NONE if size is None else distance(size, unit),
        ]
    return [
        *([f"{accuracy}\n{sure}"] if narrow else [accuracy, sure]),
        *middle,
    ]


def _costs(evaluation: Evaluation) -> dict[str, list[str]]:
    """The columns of costs: queries of query-based attacks, passes of the others."""
    asked = {one.text: one for one in evaluation.queries}
    passes, queries = [], []
    for attack in evaluation.attacks:
        rate, mine = attack.accuracy, asked.get(attack.text)
        spent = each(attack.forwards + attack.backwards, rate.count) if rate else NONE
        passes.append(spent if mine is None and not attack.given else NONE)
        queries.append(NONE if mine is None else f"{number(mine.mean)} ({number(mine.median)})")
    columns = {"passes": passes, "queries": queries}
    return {name: cells for name, cells in columns.items() if {*cells} != {NONE}}


def _short(duration: str) -> str:
    """A duration without spaces: 12m05s."""
    return duration.replace(" min", "m").replace(" h", "h").replace(" s", "s").replace(" ", "")


def _passes_of_an_answer(evaluation: Evaluation) -> str:
    """A sentence about a model whose answers take several passes; empty for others."""
    each = evaluation.model.passes
    return f"One answer counts once and takes {each} passes of the network." if each > 1 else ""


def _draws(evaluation: Evaluation) -> str:
    """When an image of a stochastic model is broken; empty for other models."""
    if not evaluation.model.stochastic:
        return ""
    text = f"An image is broken where half of {evaluation.model.draws} draws or more are successes"
    if is_cascade(evaluation):
        text += "; the suite attacks those again that were broken in some, counted with the first"
    return f"{text}."


def legend(evaluations: Sequence[Evaluation], width: int) -> str:
    """The explanation of the columns that are shown at this width."""
    evaluations = [without_guards(evaluation) for evaluation in evaluations]
    shown = {name for one in evaluations for name in _columns(one, width).headings}
    sizes = [evaluation.distances is not None for evaluation in evaluations]
    words = ["* smallest perturbations." if all(sizes) else "* broke most images."]
    if not any(map(strongest, evaluations)):
        words = []
    if any(is_cascade(one) and not strongest(one) for one in evaluations):
        words.append("The attacks ran one after the other, so none is called the strongest.")
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
    words += dict.fromkeys(text for one in evaluations if (text := _draws(one)))
    words += [text for one in evaluations if (text := _passes_of_an_answer(one))]
    told = [(e.suite, origin(e.suite, [a.text for a in e.attacks])) for e in evaluations if e.suite]
    words += [
        f"{name}: {text.split('. ')[0].rstrip('.')}." for name, text in dict.fromkeys(told) if text
    ]
    if any(attack.transfer for evaluation in evaluations for attack in evaluation.attacks):
        words.append("transfer: crafted on another model, judged on this one.")
    if any(attack.given for evaluation in evaluations for attack in evaluation.attacks):
        words.append("replay: images made elsewhere; accuracy on these only.")
    if any(descent(evaluation, "1") for evaluation in evaluations):
        words.append("median after: '-' where fewer than half of the images were broken.")
    return " ".join(words)
