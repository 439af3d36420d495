"""From a run folder to its page."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from besiege.bench.results import picture, summarise, write_figures
from besiege.report.page import write


def write_page(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write the page of a run folder; ``report.html`` inside it where no path is given.

    The figures are computed again from the records, so that the page is true of what is there.
    """
    if path is None:
        return write(write_figures(folder), partial(picture, folder), Path(folder) / "report.html")
    return write(summarise(folder), partial(picture, folder), Path(path))
