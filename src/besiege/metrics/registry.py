"""The registry of figures: how each is computed, where it is on the page, its terminal row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Any

from besiege.core.errors import InputError
from besiege.core.registry import Registry
from besiege.metrics.defense_values import Spread
from besiege.metrics.evidence import Evidence
from besiege.metrics.intervals import Rate
from besiege.metrics.rows import Rows
from besiege.metrics.similarity import Pairs
from besiege.metrics.values import EvaluationFigures


@dataclass(frozen=True, eq=False)
class Case:
    """The input of figures: the judged rows of an evaluation, and their cost.

    Attributes
    ----------
    evidence : Evidence
        The judged rows and the terms of the threat.
    draws : int
        Queries of a stochastic model per judged image; 0 for other models.
    judged : int
        Number of images that the judge sent to the model.
    seconds, failures, described : mapping
        By the text of an attack: its time, the error it raised, and its description.
    unfinished : set of str
        The attacks with missing records.
    images : callable, optional
        From rows and the clean rows of their samples to both images, with values from 0 to 1; None
        where images are not there any more. Without it no figure reads images.
    """

    evidence: Evidence
    draws: int = 0
    judged: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)
    unfinished: AbstractSet[str] = frozenset()
    images: Callable[[Rows, Rows], Pairs | None] | None = None


@dataclass(frozen=True)
class Section:
    """A section of an evaluation's page; left out where its template prints nothing.

    Attributes
    ----------
    title : str or callable
        The heading, or a function from the evaluation's figures to it.
    template : str
        A file of ``report/templates/sections``.
    markup : str
        A Jinja template as text instead. Templates get ``value``, this figure, ``e``, all figures
        of the evaluation, and ``section``, values that the shipped templates share.
    notebook : bool
        Whether notebooks also show it.
    """

    title: str | Callable[[EvaluationFigures], str]
    template: str = ""
    markup: str = ""
    notebook: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the terminal's summary; a rate is printed with its interval."""

    label: str
    value: Rate | Spread | float | str
    words: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation.

    Attributes
    ----------
    name : str
        Its name in ``figures.json``.
    compute : callable, optional
        From a `Case` to a number, a text, a frozen dataclass or None. Its return annotation is
        used to read the figure back. None for values that follow from the plan.
    place : float
        Its position on the page and in the terminal, ascending.
    section : Section, optional
        Its section of the page.
    row : callable, optional
        From the figures of the evaluation to its row in the terminal, or None.
    """

    name: str
    compute: Callable[[Case], Any] | None
    place: float = 100.0
    section: Section | None = None
    row: Callable[[EvaluationFigures], Row | None] | None = None


_FIGURES: Registry[Figure] = Registry(
    "figure", ("besiege.metrics.shipped",), group="besiege.figures"
)


def register(figure: Figure) -> Figure:
    """Add a figure to ``figures.json``, to the page and to the terminal.

    Examples
    --------
    See ``tests/house/figure_from_outside.py`` for a whole one.

    >>> register(Figure("clean", lambda case: 1.0))
    Traceback (most recent call last):
        ...
    besiege.core.errors.InputError: figures.json has a 'clean' already; choose another name
    """
    if figure.name in {one.name for one in fields(EvaluationFigures)}:
        raise InputError(f"figures.json has a '{figure.name}' already; choose another name")
    _FIGURES.add(figure.name, figure)
    return figure


def registered() -> list[Figure]:
    """All figures in the order of their places."""
    return sorted((figure for _, figure in _FIGURES.items()), key=lambda figure: figure.place)
