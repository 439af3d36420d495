"""The pages of curves: small multiples of all models, split where one page would be too large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from besiege.bench.sweeps import Sweep, sweeps_of
from besiege.report.site.choices import Choice, lacking, tokens
from besiege.report.site.panels import panel
from besiege.report.site.view import Page, Site, goal_in_words, unit_of

ROOM = 400_000
"""Largest number of characters of the drawings on one page."""
_FACETS = ("norm", "goal", "knowledge")
_LEGENDS = {"norm": "Norm", "goal": "Goal", "knowledge": "Knowledge of the attacker"}
_AGAINST = {"budget": "against budget", "strength": "against strength"}
_MEASURE = {"accuracy": "accuracy", "success": "success rate"}


@dataclass(frozen=True)
class Drawn:
    """A sweep and its drawing."""

    sweep: Sweep
    svg: str


@dataclass(frozen=True, eq=False)
class CurvePages:
    """The curves of a site, on as few pages as they fit on."""

    site: Site

    @cached_property
    def drawn(self) -> list[Drawn]:
        """All drawings."""
        found = []
        for sweep in sweeps_of(self.site.board):
            cell = self.site.board.cells[sweep.cell]
            svg = panel(sweep, self.site.board.styles, unit_of(cell), cell.eps)
            found.append(Drawn(sweep, svg))
        return found

    def _facets(self, place: int) -> tuple[str, ...]:
        cell = self.site.board.cells[place]
        return cell.norm, goal_in_words(cell.goal), cell.knowledge

    @cached_property
    def _level(self) -> int:
        """How many of the facets have pages of their own: as few as make all pages small."""
        for level in range(len(_FACETS) + 1):
            sizes: dict[object, int] = {}
            for one in self.drawn:
                key = self._facets(one.sweep.cell)[:level]
                sizes[key] = sizes.get(key, 0) + len(one.svg)
            if max(sizes.values(), default=0) <= ROOM:
                return level
        return len(_FACETS) + 1

    @cached_property
    def _parts(self) -> dict[tuple[int, str], int]:
        """The attacks of each cell, and on which of its pages they are; one page if all fit."""
        sizes: dict[tuple[int, str], int] = {}
        for one in self.drawn:
            key = one.sweep.cell, one.sweep.attack
            sizes[key] = sizes.get(key, 0) + len(one.svg)
        parts: dict[tuple[int, str], int] = {}
        filled: dict[int, tuple[int, int]] = {}
        for (cell, attack), size in sizes.items():
            part, used = filled.get(cell, (1, 0))
            part, used = (part + 1, 0) if used and used + size > ROOM else (part, used)
            parts[cell, attack], filled[cell] = part, (part, used + size)
        return parts

    def _key(self, sweep: Sweep) -> tuple[str, ...]:
        """The page of a sweep: facets that are split; beyond these its cell, and a part of that."""
        facets = self._facets(sweep.cell)
        if self._level <= len(_FACETS):
            return facets[: self._level]
        part = self._parts[sweep.cell, sweep.attack]
        more = () if part == 1 else (f"part {part}",)
        return (*facets, self.site.board.cells[sweep.cell].name, *more)

    @cached_property
    def _pages(self) -> dict[tuple[str, ...], str]:
        keys = [*dict.fromkeys(self._key(one.sweep) for one in self.drawn)]
        names = tokens(" ".join(key) for key in keys)
        return {
            key: "curves.html" if n == 0 else f"curves-{names[' '.join(key)]}.html"
            for n, key in enumerate(keys)
        }

    def page_of(self, place: int) -> str:
        """The address of a cell's curves; empty where it has none."""
        mine = next((one.sweep for one in self.drawn if one.sweep.cell == place), None)
        return "" if mine is None else f"{self._pages[self._key(mine)]}#{self._anchor(place)}"

    def _anchor(self, place: int) -> str:
        return f"cell-{place}"

    def pages(self) -> list[Page]:
        """All pages of curves."""
        return [self._page(key, path) for key, path in self._pages.items()] or [
            Page("curves.html", "curves", self._values([], (), ()))
        ]

    def _page(self, key: tuple[str, ...], path: str) -> Page:
        mine = [one for one in self.drawn if self._key(one.sweep) == key]
        left = min(self._level, len(_FACETS))
        return Page(path, "curves", self._values(mine, key, _FACETS[left:]))

    def _values(
        self, mine: Sequence[Drawn], key: tuple[str, ...], facets: Sequence[str]
    ) -> dict[str, Any]:
        groups: dict[tuple[int, str, str], list[Drawn]] = {}
        for one in mine:
            about = one.sweep
            groups.setdefault((about.cell, about.against, about.measure), []).append(one)
        there = [
            (_AGAINST[against], word, *(self._facets(cell)[_FACETS.index(n)] for n in facets))
            for cell, against, measure in groups
            for word in ([_MEASURE[measure]] if measure != "size" else _MEASURE.values())
        ]
        # At first the page shows curves that exist, against the budget where there are any.
        first = min(there, key=lambda one: one[0] != _AGAINST["budget"], default=("",) * 5)
        choices = [
            Choice.of("against", "Horizontal axis", _known(_AGAINST, there, 0), first[0]),
            Choice.of("measure", "Vertical axis", _known(_MEASURE, there, 1), first[1]),
        ]
        facet = [
            Choice.of(name, _LEGENDS[name], [one[2 + n] for one in there], first[2 + n])
            for n, name in enumerate(facets)
        ]
        shown = [self._group(*about, some, choices, facet) for about, some in groups.items()]
        every = [*choices, *facet]
        anchored: set[str] = set()
        for group in shown:  # a place that links lead to is there once
            group["anchor"] = "" if group["anchor"] in anchored else group["anchor"]
            anchored.add(group["anchor"])
        return {
            "title": "How they fall",
            "lead": "Accuracy of all images, and success rate on those classified correctly, "
            "against the size of the perturbation and the strength of the attack. The dashed line "
            "is the budget. Point at a model's name to lift it out; its band covers the whole "
            "curve with 95 % confidence.",
            "choices": every,
            "gaps": lacking(every, there),
            "groups": shown,
            "split": self._links(key),
        }

    def _group(
        self,
        place: int,
        against: str,
        measure: str,
        some: Sequence[Drawn],
        choices: Sequence[Choice],
        facet: Sequence[Choice],
    ) -> dict[str, Any]:
        cell = self.site.board.cells[place]
        axis, measured = choices
        both = measure == "size"
        data = {
            "against": axis.values[_AGAINST[against]],
            "measure": " ".join(measured.values.values())
            if both
            else measured.values[_MEASURE[measure]],
        }
        facets = dict(zip(_FACETS, self._facets(place), strict=True))
        data |= {one.name: one.values[facets[one.name]] for one in facet}
        counts = sorted({line.count for one in some for line in one.sweep.lines})
        among = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        words = {
            "accuracy": f"Share of {among} images that are classified correctly.",
            "success": f"Share of the images that were classified correctly, {among} by model, "
            "that are broken.",
            "size": f"Median of the smallest perturbations so far, of {among} images.",
        }
        axes = {
            "size": "The horizontal axis is the size of the perturbation, exact for every image.",
            "steps": "The horizontal axis counts the steps of the attack at its full budget.",
            "queries": "The horizontal axis counts queries at the full budget.",
            "passes": "The horizontal axis counts forward and backward passes"
            + ("." if both else f", at the budget {cell.norm} {cell.eps_text}."),
        }
        note = f"{cell.knowledge.capitalize()}, {goal_in_words(cell.goal)}. {words[measure]} "
        return {
            "anchor": self._anchor(place),
            "cell": cell.name,
            "page": self.site.cell_page(cell.name),
            "data": data,
            "note": note + axes[some[0].sweep.axis],
            "panels": [{"attack": one.sweep.attack, "svg": one.svg} for one in some],
        }

    def _links(self, key: tuple[str, ...]) -> list[list[dict[str, Any]]]:
        """The other pages, where there are several."""
        if len(self._pages) < 2:
            return []
        return [
            [
                {"text": ", ".join(other), "page": path, "here": other == key}
                for other, path in self._pages.items()
            ]
        ]


def _known(texts: Mapping[str, str], there: Sequence[Sequence[str]], place: int) -> list[str]:
    """Those of some texts that the curves of a page have, in their order."""
    return [text for text in texts.values() if any(one[place] == text for one in there)]
