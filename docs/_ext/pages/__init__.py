"""Pages generated from the library when the documentation is built.

They agree with ``besiege show``, because they call the same function. Every example on them has
been run. The folders ``attacks`` and ``reference`` are written by every build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import torch

from .attacks import attack_pages
from .catalogue import catalogue_pages
from .commands import commands_page
from .examples import run, write_report
from .notebook import notebook_page

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDERS = ("attacks", "reference")
OUTSIDE = {
    "CONTRIBUTING.md": "reference/contributing",
    "benchmarks/README.md": "reference/benchmarks",
}
"""Pages outside of the documentation that other pages link to, and their places on the site."""
PAGE = "reference/report.html"
"""The report of the example evaluation."""


def written(pages: Mapping[str, str], source: Path) -> None:
    """Write pages that changed below a folder, and remove those that no longer exist."""
    for name, text in pages.items():
        path = source / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    for folder in FOLDERS:
        for path in (source / folder).glob("*.md"):
            if f"{folder}/{path.stem}" not in pages:
                path.unlink()


def _generate(app: Sphinx) -> None:
    source = Path(app.srcdir)
    torch.set_num_threads(1)  # fastest for networks as small as those of the examples
    examples = bool(app.config.besiege_examples)
    pages = {
        **attack_pages(run if examples else lambda code: "(not run)"),
        **catalogue_pages(),
        "reference/commands": commands_page(),
        "reference/notebook": notebook_page(source / "notebooks" / "start.ipynb"),
    }
    for path, name in OUTSIDE.items():
        pages[name] = (source.parent / path).read_text("utf-8")
    written(pages, source)
    if examples:
        write_report(source / PAGE)


def on_the_site(text: str) -> str:
    """A page whose links to files of the repository lead to the pages of the site instead."""
    for path, name in OUTSIDE.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(path)}", f"](/{name}.md", text)
    return re.sub(r"\]\((?:\.\./)*docs/", "](/", text)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = on_the_site(source[0])


def _publish(app: Sphinx, problem: Exception | None) -> None:
    page = Path(app.srcdir) / PAGE
    if problem is None and app.builder.format == "html" and page.exists():
        copyfile(page, Path(app.outdir) / "example-report.html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx lists its sources."""
    app.add_config_value(
        "besiege_examples", True, "", types=[bool], description="Whether examples are run."
    )
    app.connect("builder-inited", _generate)
    app.connect("source-read", _read)
    app.connect("build-finished", _publish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
