"""A notebook as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .markup import block, joined


def cells(path: Path) -> list[tuple[str, str]]:
    """Kind and text of every cell of a notebook."""
    stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in stored["cells"]]


def notebook_page(path: Path) -> str:
    """The page of a notebook, with a link to the notebook itself."""
    title, *rest = [
        text if kind == "markdown" else block(text, "python") for kind, text in cells(path)
    ]
    link = f"This page is a notebook: {{download}}`download it <../notebooks/{path.name}>`."
    return joined(title, link, *rest)
