"""Pages read well where a repository is browsed: plain Markdown, links to stored files."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS

ROOT = DOCS.parent
SITE_ONLY = {"docs/index.md": "the front page of the site", "docs/api.md": "made of docstrings"}
_FILES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "decisions").glob("*.md")]
_FILES.append(ROOT / "benchmarks" / "README.md")
PAGES = sorted({str(path.relative_to(ROOT)) for path in _FILES} - set(SITE_ONLY))


@cache
def stored() -> frozenset[Path]:
    """Every file of the repository, and no other: a build leaves files beside them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git repository")
    return frozenset(ROOT / name for name in done.stdout.splitlines())


def prose(name: str) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", (ROOT / name).read_text("utf-8"), flags=re.M | re.S)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_plain_markdown(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    for mark in (r"^:::", r"^```\{", r"\{[a-z]+\}`", r"^: ", r"^\([\w-]+\)=$", "<a href"):
        assert not re.search(mark, text, re.M), mark


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as sites that show repositories make them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_of_the_repository(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(name)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = ((ROOT / name).parent / file).resolve() if file else ROOT / name
        inside = any(one == path or path in one.parents for one in stored())
        assert inside, f"{name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{name} links to {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set(), ["README.md"]
    while todo:
        name = todo.pop()
        if name in reached or not name.endswith(".md"):
            continue
        reached.add(name)
        for target in re.findall(r"\]\(([^)#\s]+)", prose(name)):
            path = ((ROOT / name).parent / target).resolve()
            if "://" not in target and path.is_relative_to(ROOT):
                todo.append(str(path.relative_to(ROOT)))
    assert set(PAGES) <= reached
    assert not set(SITE_ONLY) & reached
