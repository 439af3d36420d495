"""Writes the page of a run folder."""

from __future__ import annotations

from pathlib import Path

from besiege.bench.pictures import pictures
from besiege.bench.results import summarise, write_figures
from besiege.bench.store import Store
from besiege.metrics.values import RunFigures
from besiege.report.page import write


def write_page(
    folder: Path | str, path: Path | str | None = None, figures: RunFigures | None = None
) -> Path:
    """Write the page of a run folder; by default ``report.html`` inside it.

    Figures that are not given are computed from the records. The default also writes
    ``figures.json``.
    """
    run = summarise(folder) if figures is None else figures
    if path is None:
        write_figures(folder, run)
    target = Path(folder) / "report.html" if path is None else Path(path)
    shown = [item for evaluation in run.evaluations for item in evaluation.gallery]
    return write(run, pictures(Store(folder), shown), target)
