"""Writes the site of a run folder: its pages, one style sheet, one script, and the pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from besiege.bench.board import Board
from besiege.bench.board_reading import board_of
from besiege.bench.folder import telling
from besiege.bench.pictures import pictures
from besiege.bench.store import Store
from besiege.metrics.values import RunFigures
from besiege.report.page import environment, styles
from besiege.report.pictures import Pictures
from besiege.report.site.catalogue import attack_pages, model_pages
from besiege.report.site.cells import Album, cell_pages
from besiege.report.site.choices import rules
from besiege.report.site.curves import CurvePages
from besiege.report.site.frontier import frontier
from besiege.report.site.others import about_run, findings, transfer
from besiege.report.site.overview import overview
from besiege.report.site.studies import study_pages
from besiege.report.site.view import Page, Site
from besiege.report.strokes import COLOURS, dash_of, swatch

SITE = "site"
"""The folder of the site in a run folder."""
_HERE = Path(__file__).parents[1] / "templates" / "site"


def has_site(figures: RunFigures) -> bool:
    """Whether a run has a site: one with several models."""
    return len({(one.model.name, one.model.digest) for one in figures.evaluations}) > 1


def write_site(
    folder: Path | str, out: Path | str | None = None, figures: RunFigures | None = None
) -> Path:
    """Write the site of a run folder; by default into ``site`` inside it.

    Parameters
    ----------
    folder : path
        A run folder.
    out : path, optional
        The folder to write; one that exists is replaced as a whole.
    figures : RunFigures, optional
        The figures of the run, where they are known.

    Returns
    -------
    Path
        The first page, ``index.html``.
    """
    board = board_of(folder, figures)
    shown = [item for one in board.figures.evaluations for item in one.gallery]
    target = Path(folder) / SITE if out is None else Path(out)
    return write_pages(board, pictures(Store(folder), shown), target)


def write_pages(board: Board, read: Pictures, target: Path) -> Path:
    """Write the site of a board into a folder: the old one is replaced when all is written."""
    with telling(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".partial-{target.name}-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            for name, content in site_files(board, read):
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if target.exists():
                old = partial.with_name(partial.name + "-old")
                os.replace(target, old)
                os.replace(partial, target)
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target / "index.html"


def site_files(board: Board, read: Pictures) -> Iterator[tuple[str, bytes]]:
    """The files of a site, with their paths from its root."""
    site, album = Site(board), Album(read)
    for page in _pages(site, album):
        yield page.path, _rendered(site, page)
    yield "site.css", style_sheet(board).encode()
    yield "site.js", (_HERE / "site.js").read_bytes()
    yield from album.files.items()


def _pages(site: Site, album: Album) -> Iterator[Page]:
    yield from overview(site)
    yield from model_pages(site)
    yield from attack_pages(site)
    curves = CurvePages(site)
    yield from cell_pages(site, album, curves)
    yield from curves.pages()
    yield from transfer(site)
    yield from frontier(site)
    yield from study_pages(site)
    yield findings(site)
    yield about_run(site)


_TABS = {
    "overview": "Overview",
    "model": "Models",
    "attack": "Attacks",
    "cell": "Cells",
    "run": "The run",
    "study": "Study",
    "study_figure": "Study",
}


def _rendered(site: Site, page: Page) -> bytes:
    found = environment()
    found.filters.update(rules=rules, mark=swatch_of, short=shortened)
    root = "../" * page.path.count("/")
    name = page.template
    current = _TABS.get(name, name.capitalize())
    text = found.get_template(f"site/{name}.html").render(
        site=site, root=root, current=current, **page.values
    )
    return text.encode()


def swatch_of(style: int) -> str:
    """The line and the symbol of a model, for legends and tables."""
    return swatch(style)


def shortened(text: str, most: int) -> str:
    """A text of at most `most` letters, cut in the middle: names often differ at both ends.

    Examples
    --------
    >>> shortened("a_very_long_name_of_a_model", 12)
    'a_very…model'
    """
    if len(text) <= most:
        return text
    first = (most - 1 + 1) // 2
    return text[:first] + "…" + text[len(text) - (most - 1 - first) :]


def style_sheet(board: Board) -> str:
    """The style sheet: that of all pages, and a colour and a dash for every model."""
    lines = [styles("parts", "warnings", "page", "site/site")]
    for number in range(len(board.models)):
        which = number % len(COLOURS)
        dash = dash_of(number)
        lines.append(f".m{number}{{color:var(--series-{which + 1})}}")
        if dash:
            lines.append(f".m{number} .l{{stroke-dasharray:{dash}}}")
        lifted = (
            f':root[data-lift="{number}"],'
            f':root:has(.lifts [data-m="{number}"]:hover):not([data-lift])'
        )
        lines += [
            f":is({lifted}) .m:not(.m{number}){{opacity:.13}}",
            f":is({lifted}) .m{number} .b{{display:inline}}",
            f":is({lifted}) .m{number} .l{{stroke-width:2.6}}",
            f':root[data-lift="{number}"] tr[data-m="{number}"]{{box-shadow:inset 3px 0 0 '
            f"var(--series-{which + 1})}}",
        ]
    return "\n".join(lines)
