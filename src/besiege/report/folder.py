"""Writes the page of a run folder, and the site of one with several models."""

from __future__ import annotations

from pathlib import Path

from besiege.bench.overview import open_run
from besiege.bench.pictures import pictures
from besiege.bench.results import summarise, write_figures
from besiege.bench.store import Store
from besiege.metrics.values import RunFigures
from besiege.report.page import write, write_leading
from besiege.report.site import SITE, has_site, write_site

MOST = 12
"""Largest number of evaluations that one page shows, where the run has a site, too."""


def write_page(
    folder: Path | str, path: Path | str | None = None, figures: RunFigures | None = None
) -> Path:
    """Write the page of a run folder; by default ``report.html`` inside it.

    Figures that are not given are computed from the records. The default also writes
    ``figures.json`` and, for several models, the site (`besiege.report.site`), which the page links
    to. Of a benchmark, and of more than `MOST` evaluations, the page only leads to the site, whose
    first page is returned.
    """
    run = summarise(folder) if figures is None else figures
    target = Path(folder) / "report.html" if path is None else Path(path)
    link = None
    if path is None:
        write_figures(folder, run)
        if has_site(run):
            site = write_site(folder, figures=run)
            link = f"{SITE}/{site.name}"
            if len(run.evaluations) > MOST or open_run(folder)[1].benchmark is not None:
                write_leading(run, target, link)
                return site
    shown = [item for evaluation in run.evaluations for item in evaluation.gallery]
    return write(run, pictures(Store(folder), shown), target, site=link)
