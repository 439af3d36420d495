"""What all pages of a site share: the board, its rankings, and where each page is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from besiege.bench.benchmark import Benchmark
from besiege.bench.board import WHITE_BOX, Board, BoardCell
from besiege.bench.cell_groups import TRANSFER
from besiege.bench.standings import Setting, settings_of
from besiege.core.threat import written_unit
from besiege.metrics.intervals import Rate
from besiege.metrics.values import EvaluationFigures
from besiege.report import answer
from besiege.report.findings import Rule, rules
from besiege.report.formats import distance, share
from besiege.report.site.choices import tokens
from besiege.studies.study import STUDIES, Study, study_of


class Tab(NamedTuple):
    """A page that every page links to."""

    name: str
    path: str


class Page(NamedTuple):
    """A page of the site: its file, its template, and the values of the template."""

    path: str
    template: str
    values: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Site:
    """A board with its rankings, and the addresses of the pages about it."""

    board: Board

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The rankings under each threat."""
        return settings_of(self.board)

    @cached_property
    def tabs(self) -> list[Tab]:
        """The pages of the navigation."""
        names = ["Overview", "Models", "Attacks", "Cells", "Curves", "Transfer", "Frontier"]
        names += ["Study", "Findings", "The run"]
        paths = {"Overview": "index.html", "The run": "run.html"}
        transferred = any(cell.knowledge == TRANSFER for cell in self.board.cells)
        left_out = set() if transferred else {"Transfer"}
        left_out |= {"Study"} if self.study is None else set()
        return [
            Tab(name, paths.get(name, f"{name.lower()}.html"))
            for name in names
            if name not in left_out
        ]

    @cached_property
    def study(self) -> Study | None:
        """The study that the run belongs to, if any."""
        if not self.board.spec or self.board.name not in STUDIES:
            return None
        return study_of(Benchmark.model_validate_json(self.board.spec))

    @property
    def versions(self) -> Mapping[str, str]:
        return {"besiege": "", **self.board.figures.versions}

    @property
    def created(self) -> str:
        return self.board.figures.created

    @property
    def complete(self) -> bool:
        return self.board.figures.complete

    @property
    def unfinished(self) -> list[EvaluationFigures]:
        return [one for one in self.board.figures.evaluations if not one.complete]

    @cached_property
    def samples(self) -> str:
        """The data and the number of images, in words."""
        counts = sorted({len(cell.samples) for cell in self.board.cells})
        data = " and ".join(dict.fromkeys(cell.data for cell in self.board.cells))
        if not counts:
            return data
        range_ = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        return f"{data}, {range_} images"

    @cached_property
    def tags(self) -> list[str]:
        """The tags that some model has."""
        return [*dict.fromkeys(tag for model in self.board.models for tag in model.tags)]

    def style(self, model: str) -> int:
        """The number of a model's colour and dash."""
        return self.board.styles[model]

    # Addresses, from the root of the site.

    @cached_property
    def _models(self) -> dict[str, str]:
        return tokens(model.name for model in self.board.models)

    @cached_property
    def attacks(self) -> dict[str, str]:
        """The attacks of all cells, with the tokens of their pages."""
        return tokens(attack for cell in self.board.cells for attack in cell.attacks)

    @cached_property
    def cells(self) -> dict[str, str]:
        """The names of the cells, with the tokens of their pages."""
        return tokens(cell.name for cell in self.board.cells)

    def model_page(self, name: str) -> str:
        return f"models/{self._models[name]}.html"

    def attack_page(self, text: str) -> str:
        return f"attacks/{self.attacks[text]}.html"

    def cell_page(self, name: str) -> str:
        return f"cells/{self.cells[name]}.html"

    def threat_of(self, setting: Setting) -> str:
        """Norm and budget of a setting, weaker access, and as much more as tells it from others."""
        same = [
            one for one in self.settings if (one.title, one.goal) == (setting.title, setting.goal)
        ]
        words = [setting.title]
        known = self.knowledge_of(setting)
        if WHITE_BOX not in known:
            words += known
        if len({one.data for one in self.settings}) > 1:
            words.append(setting.data)
        if len({len(one.samples) for one in same}) > 1:
            words.append(f"{len(setting.samples):,} images")
        elif len(same) > 1 and len({one.data for one in same}) < len(same):
            words.append(f"sample {same.index(setting) + 1}")
        return ", ".join(words)

    def knowledge_of(self, setting: Setting) -> list[str]:
        """What the attacker knows in the cells of a setting, each once."""
        cells = (self.board.cells[place] for place in setting.cells)
        return [*dict.fromkeys(cell.knowledge for cell in cells)]

    # Warnings.

    @cached_property
    def rules(self) -> list[Rule]:
        """The rules that fired in any evaluation."""
        return rules(self.board.figures.evaluations)

    def warned(self, places: Sequence[int], notes: bool = False) -> list[Rule]:
        """The rules that fired in these evaluations, notes left out unless asked for."""
        return [
            rule
            for rule in self.rules
            if (notes or rule.level != "note") and not set(places).isdisjoint(rule.evaluations)
        ]


def unit_of(cell: BoardCell) -> int | None:
    """The denominator of distances: 255 where the budget was written that way."""
    return written_unit(cell.norm, cell.eps_text)


def goal_in_words(goal: str) -> str:
    """A goal as the choices show it."""
    return "any error" if goal == "untargeted" else goal


def size(value: float | None, unit: int | None) -> str:
    """A median distance; infinite where fewer than half of the images were broken."""
    if value is None:
        return ""
    return distance(value, unit) if math.isfinite(value) else "not reached"


def shade(value: float, text: str, page: str = "", lowest: bool = False, title: str = "") -> str:
    """A cell of a matrix: a number on a ground that is darker for a larger value."""
    kind = ' class="low"' if lowest else ""
    about = f' title="{title}"' if title else ""
    inner = f'<a href="{page}">{text}</a>' if page else text
    return f'<td{kind} style="--v:{100 * min(max(value, 0.0), 1.0):.0f}"{about}>{inner}</td>'


EMPTY = '<td class="nothing">–</td>'
"""The cell of an attack that was not run on a model."""


def percent(rate: Rate) -> str:
    """A percentage without its sign, which a matrix says once."""
    return share(rate).removesuffix(" %")


def attack_figures(
    board: Board, cell: BoardCell
) -> Iterator[tuple[int, EvaluationFigures, dict[str, Any]]]:
    """For each model of a cell: its place, its figures, and its attacks by their texts."""
    for m in range(len(cell.models)):
        figures = board.evaluation(cell, m)
        yield m, figures, {attack.text: attack for attack in figures.attacks}


def median_of(figures: EvaluationFigures, text: str) -> float | None:
    """The median size of an attack's perturbations, as on the page of an evaluation."""
    for attack in figures.attacks:
        if attack.text == text:
            return answer.typical(figures, attack)
    return None
