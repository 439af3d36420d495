"""From a run folder to its page."""

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
    """Write the page of a run folder; ``report.html`` inside it where no path is given.

    The figures are computed again from the records where they are not given, so that the page is
    true of what is there. Beside ``report.html`` they are written, too.
    """
    found = summarise(folder) if figures is None else figures
    if path is None:
        write_figures(folder, found)
    target = Path(folder) / "report.html" if path is None else Path(path)
    shown = [item for evaluation in found.evaluations for item in evaluation.gallery]
    return write(found, pictures(Store(folder), shown), target)
