"""The site builds without a warning, needs no network, and fits a desk and a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS
from tests.report.browser import CHROMIUM, Browser

from besiege.attacks.attack import names

MISSING = [n for n in ("sphinx", "furo", "myst_parser", "numpydoc") if find_spec(n) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install '.[docs]'"
)
WRITTEN = ("_build", "attacks", "reference", "__pycache__")
SHOWN = ("index", "start", "concepts", "report", "attacks/pgd", "reference/models")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of its sources, with warnings as errors."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, place / "docs", ignore=shutil.ignore_patterns(*WRITTEN))
    shutil.copytree(DOCS.parent / "examples", place / "examples")
    for outside in ("CONTRIBUTING.md", "benchmarks/README.md"):  # pages link there
        (place / outside).parent.mkdir(exist_ok=True)
        shutil.copy(DOCS.parent / outside, place / outside)
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "docs", "out"],
        cwd=place,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return place / "out"


@pytest.mark.slow
def test_it_builds_with_every_page(site: Path) -> None:
    wanted = [
        *(path.relative_to(DOCS).with_suffix("") for path in DOCS.glob("*.md")),
        *(path.relative_to(DOCS).with_suffix("") for path in (DOCS / "decisions").glob("*.md")),
        *(Path("attacks", name) for name in names() if name != "my_attack"),
    ]
    for page in wanted:
        assert (site / page).with_suffix(".html").exists(), page
    assert "on zoo:digits-natural, seed 0" in (site / "attacks" / "pgd.html").read_text("utf-8")
    assert "besiege.evaluate" in (site / "api.html").read_text("utf-8")


@pytest.mark.slow
def test_it_shows_a_real_report(site: Path) -> None:
    assert "Under attack" in (site / "example-report.html").read_text("utf-8")
    assert "example-report.html" in (site / "index.html").read_text("utf-8")


@pytest.mark.slow
def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loads = r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="((?:https?:)?//[^"]*)"'
        assert not re.findall(loads, path.read_text("utf-8")), path.name


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_it_fits_a_desk_and_a_phone(site: Path, tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    try:
        for page in SHOWN:
            for width, scheme in ((1280, "light"), (375, "dark")):
                browser.open(site / f"{page}.html", width, scheme)
                assert browser.logged() == [], page
                assert all(url.startswith("file:") for url in browser.requested()), page
                wide = browser.value("document.documentElement.scrollWidth")
                assert wide <= width, f"{page} is {wide} wide on {width}"
    finally:
        browser.close()
