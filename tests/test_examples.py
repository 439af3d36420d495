"""What the documentation shows runs: docstring examples, the demo, links."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in (ROOT / "src").rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 0 and done.failed == 0


def test_the_demo_ends_in_a_table_that_fits_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "examples/demo.py"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for model in ("digits-natural", "digits-pgd-at"):
        assert done.stdout.count(model) == 2
    rows = {line.split()[1]: line for line in lines if line.startswith("│")}
    assert {"clean", "fgsm", "pgd", "mim", "all"} <= set(rows)
    for name in ("fgsm", "pgd", "mim"):
        assert len(re.findall(r"\d+\.\d \[\d+, \d+\]", rows[name])) == 4
    natural, robust = re.findall(r"(\d+\.\d) \[", rows["pgd"])[::2]
    assert float(natural) < 25 < 65 < float(robust)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    assert targets or page == "CONTRIBUTING.md"
    for target in targets:
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
