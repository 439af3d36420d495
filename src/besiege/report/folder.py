"""Writes the page of a run folder, and the site of one with several models."""

from __future__ import annotations

from pathlib import Path

from besiege.bench.overview import open_run
from besiege.bench.pictures import pictures
from besiege.bench.results import summarise, write_figures
from besiege.bench.store import Store
from besiege.metrics.values import RunFigures
from besiege.report.page import write
from besiege.report.site import SITE, has_site, write_site


def write_page(
    folder: Path | str, path: Path | str | None = None, figures: RunFigures | None = None
) -> Path:
    """Write the page of a run folder; by default ``report.html`` inside it.

    Figures that are not given are computed from the records. The default also writes
    ``figures.json`` and, for several models, the site (`besiege.report.site`), which the page links
    to. A benchmark has the site only: its page would be too large.
    """
    run = summarise(folder) if figures is None else figures
    site = None
    if path is None:
        write_figures(folder, run)
        site = write_site(folder, figures=run) if has_site(run) else None
        if site is not None and open_run(folder)[1].benchmark is not None:
            return site
    target = Path(folder) / "report.html" if path is None else Path(path)
    shown = [item for evaluation in run.evaluations for item in evaluation.gallery]
    link = None if site is None else f"{SITE}/{site.name}"
    return write(run, pictures(Store(folder), shown), target, site=link)
