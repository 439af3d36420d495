"""The notebook runs from top to bottom, and was stored without what it printed."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import DOCS

NOTEBOOK = DOCS / "notebooks" / "start.ipynb"


def show(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; the value of its last line."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


@pytest.mark.slow
def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = importlib.import_module("pages.notebook").cells(NOTEBOOK)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [show(text, names) for kind, text in cells if kind == "code"]
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) >= 2, "the result and the attack show themselves"
    assert "<svg" in pages[0] and "Under attack" in pages[0]
    assert (tmp_path / "report.html").read_text("utf-8").count("data:image/png") > 3


def test_it_holds_no_outputs() -> None:
    stored = json.loads(NOTEBOOK.read_text("utf-8"))
    for cell in stored["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    assert stored["nbformat"] == 4


def test_its_page_holds_all_of_it() -> None:
    module = importlib.import_module("pages.notebook")
    page = module.notebook_page(NOTEBOOK)
    assert page.startswith("# ")
    for _, text in module.cells(NOTEBOOK):
        assert text.strip() in page
    assert "../notebooks/start.ipynb" in page
