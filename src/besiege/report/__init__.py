"""Shows figures: a table for the terminal, an HTML page, HTML for notebooks.

It computes nothing: it shows the values of ``figures.json``. It does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.report.folder import write_page
    from besiege.report.page import fragment, write
    from besiege.report.progress import bar
    from besiege.report.terminal import table

__all__ = ["bar", "fragment", "table", "write", "write_page"]

__getattr__, __dir__ = lazily(
    __name__,
    {"folder": "write_page", "page": "fragment write", "progress": "bar", "terminal": "table"},
)
