"""The tables and lists of docs/architecture.md agree with the code."""

from __future__ import annotations

import re

import pytest
from tests.docs.blocks import DOCS
from tests.test_rooms import OTHERS, ROOMS

SOURCE = DOCS.parent / "src" / "besiege"
PAGE = (DOCS / "architecture.md").read_text("utf-8")
IMPORTED = {"Pillow": "PIL", "scikit-learn": "sklearn"}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def listed(cell: str) -> set[str]:
    return set() if cell == "nothing" else set(cell.split(", "))


def test_the_table_of_packages_is_that_of_the_tests() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \| (.*?) \|$", section("Packages"), re.M)
    assert {name: listed(ours) for name, ours, _ in rows} == ROOMS
    others = {name: {IMPORTED.get(o, o) for o in listed(other)} for name, _, other in rows}
    assert others == OTHERS


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_every_module_is_in_the_list_of_its_package(package: str) -> None:
    (text,) = re.findall(rf"^\*\*{package}\*\*(.*?)(?=^\*\*|\Z)", section("Modules"), re.M | re.S)
    named = set(re.findall(r"`(\w+)`", text))
    folder = SOURCE / package
    there = {p.stem for p in folder.rglob("*.py") if not p.stem.startswith("__")}
    there |= {p.parent.name for p in folder.rglob("*/__init__.py")}
    assert not there - named, "not in the list"
    # A list also names the functions that a module is for.
    assert not named - there - {"attack", "evaluate", "open"}, "no such module"


def test_files_that_a_change_touches_exist() -> None:
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", section("What a change costs"))
    assert len(paths) > 15
    for path in paths:
        places = (SOURCE / path, SOURCE / "bench" / path, DOCS.parent / path)
        assert any(p.exists() for p in places) or path == "bench/engines/", path
