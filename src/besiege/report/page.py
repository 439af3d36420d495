"""The report as one HTML page without scripts, network access or other files."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from besiege.bench.folder import telling
from besiege.bench.words import origin
from besiege.core.files import replace_file
from besiege.metrics.registry import registered
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.report import answer, by_class, formats
from besiege.report.brackets import bracket_chart
from besiege.report.card import card_style
from besiege.report.charts import charts, roc_chart, together
from besiege.report.findings import counted, example, following, next_steps, rules
from besiege.report.grouping import Member, grouped
from besiege.report.pictures import ROOM, Pictures, gallery
from besiege.report.strokes import swatch

_TEMPLATES = Path(__file__).parent / "templates"
_FIRST = 6  # pictures shown at first; the others are folded

OPEN = 3
"""Largest number of evaluations that are all open; of more, one is open at a time."""


def write(
    figures: RunFigures, pictures: Pictures, path: Path | str, *, site: str | None = None
) -> Path:
    """Write the page atomically: a reader sees the old file or the new one.

    Parameters
    ----------
    figures : RunFigures
        The figures of the run.
    pictures : callable
        Returns the clean and the adversarial image of an item of a gallery, float arrays
        ``[channels, height, width]`` in the threat's box.
    path : path
        The file to write; a missing folder is created.
    site : str, optional
        The address of the site of the run, which the page links to.

    Returns
    -------
    Path
        The path of the file.

    Examples
    --------
    >>> import besiege
    >>> from besiege.bench.pictures import pictures
    >>> from besiege.bench.results import summarise
    >>> from besiege.bench.store import Store
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm", count=20
    ... )
    >>> folder = found.folder  # exists as long as `found`
    >>> figures = summarise(folder)
    >>> read = pictures(Store(folder), figures.evaluations[0].gallery)
    >>> write(figures, read, folder / "report.html").name
    'report.html'
    """
    return _written(Path(path), rendered(figures, pictures, site))


def write_leading(figures: RunFigures, path: Path | str, site: str) -> Path:
    """Write a small page that leads to the site of a run, whose own page would be too large."""
    text = environment().get_template("leading.html").render(figures=figures, site=site)
    return _written(Path(path), text)


def _written(target: Path, text: str) -> Path:
    with telling(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, text.encode())
    return target


def rendered(figures: RunFigures, pictures: Pictures, site: str | None = None) -> str:
    """The page as text."""
    evaluations = formats.checked(figures).evaluations
    room, order, single = ROOM // len(evaluations), count(1), len(evaluations) == 1
    groups: list[dict[str, Any]] = [
        {
            "anchor": f"threat-{number}",
            "title": group.title,
            "sections": [
                _illustrated(one, next(order), single, pictures, room) for one in group.members
            ],
            "charts": together(group.members),
        }
        for number, group in enumerate(grouped(evaluations), 1)
    ]
    sections = [one for group in groups for one in group["sections"]]
    return (
        environment()
        .get_template("page.html")
        .render(
            figures=figures,
            sections=sections,
            groups=groups,
            folded=len(sections) > OPEN,
            site=site,
            matrix=_matrix(sections),
            styles=styles("parts", "warnings", "page"),
            **_fired([section["e"] for section in sections]),
        )
    )


def fragment(figures: RunFigures) -> str:
    """The result, the attacks, the curves and the warnings as HTML for a notebook.

    Parameters
    ----------
    figures : RunFigures
        The figures of a run, or of one evaluation: ``RunFigures.of(found.figures)``.

    Returns
    -------
    str
        HTML with its own style, without pictures.

    Examples
    --------
    >>> import besiege
    >>> from besiege.metrics import RunFigures
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm", count=20
    ... )
    >>> "Under attack" in fragment(RunFigures.of(found.figures))
    True
    """
    evaluations = formats.checked(figures).evaluations
    members = [member for group in grouped(evaluations) for member in group.members]
    single = len(members) == 1
    sections = [_section(one, order, single, notebook=True) for order, one in enumerate(members, 1)]
    return (
        environment()
        .get_template("fragment.html")
        .render(
            figures=figures,
            sections=sections,
            matrix=_matrix(sections),
            styles=card_style(styles("parts", "warnings")),
            **_fired([section["e"] for section in sections]),
        )
    )


def _fired(evaluations: Sequence[EvaluationFigures]) -> dict[str, Any]:
    """The rules that fired on the page, and their number at each level in words."""
    found = rules(evaluations)
    folded = following(found, evaluations)
    return {
        "rules": found,
        "main_rules": [rule for rule in found if rule not in folded],
        "folded_rules": folded,
        "counted": counted(found),
        "steps": next_steps(evaluations),
        "example": example(evaluations),
    }


def _illustrated(
    member: Member, order: int, single: bool, pictures: Pictures, room: int
) -> dict[str, Any]:
    """The values of one evaluation, with its pictures."""
    one = member.evaluation
    shown = gallery(one.gallery, pictures, one.threat.box, room)
    pages = {"first": shown[:_FIRST], "rest": shown[_FIRST:], "explained": False}
    return _section(member, order, single, pictures=pages)


def _section(
    member: Member,
    order: int,
    single: bool,
    *,
    notebook: bool = False,
    pictures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The values of one evaluation that the templates use."""
    evaluation = member.evaluation
    section = {
        "anchor": f"evaluation-{order}",
        "name": member.name,
        "style": member.style,
        "e": evaluation,
        "unit": formats.budget_unit(evaluation.threat),
        "robust": answer.robust(evaluation),
        "minimal": answer.is_minimal(evaluation),
        "median": answer.median_change(evaluation),
        "headline": _held(answer.headline(evaluation)),
        "meaning": [(title, _held(text)) for title, text in answer.meaning(evaluation)],
        "complete": answer.is_complete(evaluation),
        "troubles": answer.troubles(evaluation),
        "errors": answer.errors(evaluation),
        "doubt": answer.doubt(evaluation),
        "ran_on": {stage.text: stage.ran_on for stage in evaluation.cascade}
        if answer.is_cascade(evaluation)
        else {},
        "most": [attack.text for attack in answer.strongest(evaluation)],
        "sample": answer.sample_choice(evaluation),
        "transfer": answer.elsewhere(evaluation),
        "since": _held(formats.sentence(answer.since(evaluation))),
        "verdicts": [answer.verdict(old) for old in evaluation.history],
        "charts": charts(evaluation),
        "roc": roc_chart(evaluation),
        "bracket": bracket_chart(evaluation),
        "single": single,
        **_fired([evaluation]),
        "sizes": {a.text: answer.typical(evaluation, a) for a in evaluation.attacks},
        "descent": answer.descent(evaluation),
        "in_turn": answer.IN_TURN,
        "classes": by_class.listing(evaluation),
        "confused": by_class.confused(evaluation),
        "counted_in": answer.counted_in(evaluation),
        "origin": origin(evaluation.suite, [one.text for one in evaluation.attacks]),
        "asked": {one.text: one for one in answer.without_guards(evaluation).queries},
        "guards": answer.guards(evaluation),
        **(pictures or {}),
    }
    return {**section, "parts": [*_parts(section, evaluation, notebook)]}


class _Part(NamedTuple):
    """A registered section of an evaluation, rendered."""

    name: str
    title: str
    body: Markup


def _parts(
    section: dict[str, Any], evaluation: EvaluationFigures, notebook: bool
) -> Iterator[_Part]:
    """The registered sections that are not empty."""
    templates = environment()
    for figure in registered():
        part = figure.section
        if part is None or (notebook and not part.notebook):
            continue
        if part.template:
            template = templates.get_template(f"sections/{part.template}")
        else:
            template = templates.from_string(part.markup)
        body = template.render(
            value=evaluation.figure(figure.name), e=evaluation, section=section, notebook=notebook
        )
        title = part.title if isinstance(part.title, str) else part.title(evaluation)
        if body.strip():
            yield _Part(figure.name, title, Markup(body))  # templates escape their values


def _matrix(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """Models as rows and threats as columns, with the sections of each cell."""
    several = len({section["e"].data.name for section in sections}) > 1
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for section in sections:
        row = section["e"].model.title
        if several:
            row += f" on {section['e'].data.name}"
        column = section["e"].threat.text
        cells.setdefault(row, {}).setdefault(column, []).append(section)
    columns = dict.fromkeys(section["e"].threat.text for section in sections)
    return {"columns": list(columns), "rows": cells}


def styles(*names: str) -> str:
    """The content of style sheets, one after the other."""
    return "\n".join((_TEMPLATES / f"{name}.css").read_text("utf-8") for name in names)


def _joined(show: Callable[..., str]) -> Callable[..., str]:
    """The same function with non-breaking spaces."""
    return lambda *given, **named: show(*given, **named).replace(" ", "\u00a0")


def _held(text: str) -> str:
    """A sentence with a non-breaking space before every percent sign."""
    return text.replace(" %", "\u00a0%")


def _breakable(name: str) -> str:
    """A name as markup that a narrow page breaks after punctuation only, and not inside numbers."""
    return re.sub(r"([/:,_(+]+|\.(?!\d))(?=\w)", r"\1<wbr>", html.escape(name))


_CODE = re.compile(
    r"`([^`]+)`"
    r"|((?<![\w-])--(?:suite|curve|examine|access|allow) [a-z0-9W]+|(?<![\w-])--[a-z][\w-]*"
    r"|\bbesiege (?:show|compare|report RUN --details)(?: (?:W\d\d|Layer))?\b|MODEL\+\w+\([^)]*\))"
)
"""What is code in a sentence: quoted, an option with its value, or a command."""


def _prose(text: str) -> str:
    """A sentence as markup, in which code is not broken."""
    marked = r'<code class="whole">\g<1>\g<2></code>'
    return _CODE.sub(marked, html.escape(formats.sentence(text)))


def _struck(text: str) -> str:
    """A sentence as markup, in which what stands between pairs of tildes is crossed out."""
    return re.sub(r"~~(.+?)~~", r"<s>\1</s>", html.escape(text))


def _percentage(value: float) -> str:
    """A share as a CSS length."""
    return f"{100 * min(max(value, 0.0), 1.0):.2f}%"


@cache
def environment() -> Environment:
    """The environment of all templates, with the filters for numbers and names."""
    found = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    unbroken = (
        formats.share,
        formats.percent,
        formats.interval,
        formats.number,
        formats.distance,
        formats.seconds,
        formats.each,
        formats.moment,
        formats.points,
    )
    found.filters.update({show.__name__: _joined(show) for show in unbroken})
    found.filters.update(
        grouped=lambda value: f"{value:,}",
        named=lambda label, names: formats.class_name(names, label),
        percentage=_percentage,
        prose=_prose,
        breakable=_breakable,
        struck=_struck,
        first=lambda text: re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0],
        listed=formats.listed,
        spread=_joined(str),
        swatch=lambda style: Markup(swatch(style)),
    )
    return found
