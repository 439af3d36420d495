"""The table of results for a paper or a README: LaTeX with booktabs, and Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from besiege.bench.board import Board
from besiege.bench.display import Grid
from besiege.bench.exports import EXPORTS, Export
from besiege.bench.standings import Setting, settings_of
from besiege.core.attack_registry import OBLIVIOUS
from besiege.core.text import harmless
from besiege.core.threat import written_unit
from besiege.metrics.intervals import Rate
from besiege.metrics.values import EvaluationFigures
from besiege.report import answer
from besiege.report.formats import budget_unit, distance, interval, listed, places

NONE = "--"
"""The cell of an attack that was not run on a model."""


@dataclass(frozen=True)
class Markup:
    """How a language writes a plain text, and the text of a threat."""

    text: Callable[[str], str]
    threat: Callable[[str], str]


@dataclass(frozen=True)
class Results:
    """A table in some markup; the first `words` columns are words, the others numbers."""

    heads: tuple[str, ...]
    words: int
    rows: tuple[tuple[str, ...], ...]
    caption: str


@EXPORTS.register("tex")
def to_tex(wanted: Export, file: BinaryIO) -> None:
    """Tables for LaTeX, with the rules of the package booktabs."""
    evaluations = [one.figures for one in wanted.evaluations]
    lines = ["% Put \\usepackage{booktabs} into the preamble."]
    lines += [f"% {line}" for line in _commands(evaluations)]
    lines += [f"% Not to be quoted. {line}" for line in _troubles(evaluations)]
    for table in _wanted(wanted, _TEX):
        columns = "l" * table.words + "r" * (len(table.heads) - table.words)
        heads, *rows = (" & ".join(row) + " \\\\" for row in (table.heads, *table.rows))
        lines += ["\\begin{table}", "  \\centering", f"  \\caption{{{table.caption}}}"]
        lines.append(f"  \\begin{{tabular}}{{{columns}}}")
        body = ["\\toprule", heads, "\\midrule", *rows, "\\bottomrule"]
        lines += [f"    {line}" for line in body]
        lines += ["  \\end{tabular}", "\\end{table}"]
    file.write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))


@EXPORTS.register("md")
def to_markdown(wanted: Export, file: BinaryIO) -> None:
    """Tables for Markdown."""
    evaluations = [one.figures for one in wanted.evaluations]
    troubles = map(_MARKDOWN.text, _troubles(evaluations))
    lines = [f"**Not to be quoted.** {line}\n" for line in troubles]
    for table in _wanted(wanted, _MARKDOWN):
        heads, *rows = (f"| {' | '.join(row)} |" for row in (table.heads, *table.rows))
        rule = "|" + "---|" * table.words + "--:|" * (len(table.heads) - table.words)
        lines += [heads, rule, *rows, "", table.caption, ""]
    lines += [f"    {line}" for line in _commands(evaluations)]
    file.write(("\n".join(lines).rstrip() + "\n").encode("utf-8", "backslashreplace"))


def _wanted(wanted: Export, markup: Markup) -> list[Results]:
    """The tables of the evaluations, or of the board of their run, or the one that is wanted."""
    if wanted.table is not None:
        return [_given(wanted.table, markup)]
    if wanted.board is None:
        return results([one.figures for one in wanted.evaluations], markup)
    return [_ranking(wanted.board, one, markup) for one in settings_of(wanted.board)]


def _given(table: Grid, markup: Markup) -> Results:
    """A table of a study: its first column are words."""
    rows = tuple(tuple(map(markup.text, row)) for row in table.rows)
    caption = markup.text(". ".join(filter(None, (table.title, table.note))))
    return Results(tuple(map(markup.text, table.columns)), 1, rows, caption)


def _ranking(board: Board, setting: Setting, markup: Markup) -> Results:
    """The models under a setting, ranked, with the accuracy under every attack of every cell."""
    cells = [board.cells[place] for place in setting.cells]
    several = len(cells) > 1
    columns = [(cell, a) for cell in cells for a in range(len(cell.attacks))]
    short = short_names([attack for cell in cells for attack in cell.attacks])
    heads = [
        f"{short[cell.attacks[a]]} ({cell.knowledge})" if several else short[cell.attacks[a]]
        for cell, a in columns
    ]
    minimal = setting.eps is None
    unit = written_unit(setting.norm, setting.eps_text)
    rows = []
    for one in setting.standings:
        numbers = [_share(one.clean)]
        for cell, a in columns:
            m = cell.models.index(one.model) if one.model in cell.models else None
            if m is None or not cell.covered[m, a].any():
                numbers.append(NONE)
            elif minimal:
                numbers.append(distance(float(cell.medians[m, a]), unit))
            else:
                numbers.append(_share(cell.accuracy(m, a)))
        last = [distance(one.median, unit)] if minimal else [_share(one.robust)]
        last += [] if minimal else [interval(one.robust) or NONE]
        rank = str(one.low) if one.low == one.high else f"{one.low}-{one.high}"
        rows.append(tuple(markup.text(word) for word in (one.model, rank, *numbers, *last)))
    what = (
        "Median smallest perturbation under each attack, and of the smallest of all"
        if minimal
        else "Accuracy (%) under each attack, and under the worst for each image with its exact "
        "95 % interval"
    )
    goal = "" if setting.goal == "untargeted" else f" {setting.goal}"
    budget = "" if minimal else f":{setting.eps_text}"
    caption = markup.text(f"{what}; {setting.images} of {setting.data}")
    known = " and ".join(dict.fromkeys(cell.knowledge for cell in cells))
    caption += f"; {markup.threat(setting.norm + budget + goal)}, {markup.text(known)}"
    spelled = [f"{head} is {text}" for text, head in short.items() if head != text]
    tail = ". Ranks are 95 % ranges" + (f". {listed(spelled)}." if spelled else ".")
    end = ("Median",) if minimal else ("Worst", "95 % interval")
    return Results(
        tuple(map(markup.text, ("Model", "Rank", "Clean", *heads, *end))),
        2,
        tuple(rows),
        caption + markup.text(tail),
    )


def results(evaluations: Sequence[EvaluationFigures], markup: Markup) -> list[Results]:
    """A row for each evaluation: one table of accuracies, one of smallest perturbations."""
    minimal = [one for one in evaluations if answer.is_minimal(one)]
    bounded = [one for one in evaluations if not answer.is_minimal(one)]
    return [_table(some, markup) for some in (bounded, minimal) if some]


def _table(evaluations: Sequence[EvaluationFigures], markup: Markup) -> Results:
    text = markup.text
    attacks = list(dict.fromkeys(attack.text for one in evaluations for attack in one.attacks))
    heads = short_names(attacks)
    about: dict[str, Callable[[EvaluationFigures], str]] = {
        "Model": lambda one: text(one.model.title)
    }
    if len({answer.sample_choice(one) for one in evaluations}) > 1:
        about["Data"] = lambda one: text(answer.sample_choice(one))
    if len({_threat(one, markup) for one in evaluations}) > 1:
        about["Threat"] = lambda one: _threat(one, markup)
    last = ("Median",) if answer.is_minimal(evaluations[0]) else ("Robust", "95 % interval")
    rows = []
    for one in evaluations:
        numbers = (_share(one.clean), *_cells(one, attacks), *_end(one))
        rows.append((*(write(one) for write in about.values()), *map(text, numbers)))
    return Results(
        tuple(map(text, (*about, "Clean", *heads.values(), *last))),
        len(about),
        tuple(rows),
        _caption(evaluations, heads, about.keys(), markup),
    )


def _threat(evaluation: EvaluationFigures, markup: Markup) -> str:
    """The threat, and whether the attacks were crafted on a substitute."""
    crafted = markup.text(", transfer" if answer.elsewhere(evaluation) else "")
    return f"{markup.threat(evaluation.threat.text)}{crafted}"


def _cells(evaluation: EvaluationFigures, texts: Sequence[str]) -> list[str]:
    """The figure of every attack: the accuracy under it, or its median perturbation."""
    attacks = {one.text: one for one in answer.counted(evaluation)}
    if not answer.is_minimal(evaluation):
        return [_share(attacks[text].accuracy) if text in attacks else NONE for text in texts]
    unit = budget_unit(evaluation.threat)
    return [
        distance(answer.typical(evaluation, attacks[text]), unit) if text in attacks else NONE
        for text in texts
    ]


def _end(evaluation: EvaluationFigures) -> tuple[str, ...]:
    """The figure of all attacks together."""
    if answer.is_minimal(evaluation):
        return (distance(answer.median_change(evaluation), budget_unit(evaluation.threat)),)
    robust = answer.robust(evaluation)
    return _share(robust), interval(robust) or NONE


def _share(rate: Rate | None) -> str:
    """A percentage without its sign, which the caption has."""
    return NONE if rate is None else f"{100 * rate.value:.{places(rate.count)}f}"


def short_names(texts: Sequence[str]) -> dict[str, str]:
    """Heads of columns: the attack without its parameters, and a number where that is ambiguous.

    Examples
    --------
    >>> list(short_names(["fgsm", "pgd(steps=5)", "pgd(steps=9)"]).values())
    ['fgsm', 'pgd 1', 'pgd 2']
    """
    bare = {text: text.partition("(")[0].rsplit(":", 1)[-1] for text in texts}
    bare |= {text: f"{name} (transfer)" for text, name in bare.items() if name == OBLIVIOUS}
    several = Counter(bare.values())
    seen: Counter[str] = Counter()
    names = {}
    for text, name in bare.items():
        seen[name] += 1
        names[text] = f"{name} {seen[name]}" if several[name] > 1 else name
    return names


def _caption(
    evaluations: Sequence[EvaluationFigures],
    heads: Mapping[str, str],
    columns: Collection[str],
    markup: Markup,
) -> str:
    """What the table shows; data and threat are named here where all rows have the same."""
    if answer.is_minimal(evaluations[0]):
        what = (
            "Clean accuracy (%), and the median of the smallest perturbations that each attack "
            "found, and the best of all attacks for each image"
        )
    else:
        what = (
            "Accuracy (%) on clean images, under each attack, and under all of them (robust), "
            "with the exact 95 % interval of the last"
        )
    if "Data" not in columns:
        what += f"; {answer.sample_choice(evaluations[0])}"
    first = markup.text(what)
    if "Threat" not in columns:
        first += f"; {_threat(evaluations[0], markup)}"
    others = []
    if any(answer.is_cascade(one) for one in evaluations):
        others.append("Each attack ran on the images that the ones before it left")
    spelled = [f"{head} is {text}" for text, head in heads.items() if head != text]
    if spelled:
        others.append(listed(spelled))
    return ". ".join([first, *map(markup.text, others)]) + "."


def _commands(evaluations: Sequence[EvaluationFigures]) -> list[str]:
    """The commands that reproduce the results, each on one line."""
    every = dict.fromkeys(" ".join(harmless(one.command).split()) for one in evaluations)
    return [line for line in every if line]


def _troubles(evaluations: Sequence[EvaluationFigures]) -> list[str]:
    """Why figures must not be quoted."""
    found = []
    for one in evaluations:
        seen = [finding.seen for finding in answer.errors(one)] + answer.troubles(one)
        found += [f"{one.title}: {text}" for text in seen]
    return [" ".join(harmless(text).split()) for text in found]


_SIGNS = {
    "\\": "\\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "\\textquotedbl{}",
    "[": "{[}",  # at the start of a row it would be read as a length
}
_NORMS = {
    "linf": "$\\ell_\\infty$",
    **{f"l{order}": f"$\\ell_{order}$" for order in "012"},
}


def _tex(text: str) -> str:
    """A text whose characters mean nothing in LaTeX, on one line."""
    return "".join(_SIGNS.get(sign, sign) for sign in " ".join(harmless(text).split()))


def _tex_threat(text: str) -> str:
    """A threat with its norm as a formula: the budget is what follows the colon."""
    norm, colon, rest = text.partition(":") if ":" in text else text.partition(" ")
    formula = _NORMS.get(norm, _tex(norm))
    return f"{formula} {_tex(rest)}".rstrip() if colon else formula


def _markdown(text: str) -> str:
    """A text whose characters mean nothing in Markdown, on one line."""
    flat = " ".join(harmless(text).split())
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))


_TEX, _MARKDOWN = Markup(_tex, _tex_threat), Markup(_markdown, _markdown)
