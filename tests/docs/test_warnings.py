"""The page of warnings and the rules in the code are the same list."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS

from besiege.cli.lookup import look_up
from besiege.core.rules import CODED, TITLES
from besiege.core.threat import Threat

SOURCE = DOCS.parent / "src" / "besiege"
_ID = re.compile(r"W\d\d")


def findings() -> Iterator[tuple[Path, ast.Call, set[str]]]:
    """Every place that makes a finding, and its levels: `weighed` makes a warning a note."""
    for path in sorted(SOURCE.rglob("*.py")):
        calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
        inside = [c.args[-1] for c in calls if getattr(c.func, "id", "") == "weighed"]
        for call in calls:
            if getattr(call.func, "id", "") == "Finding":
                given = call.args[3] if len(call.args) > 3 else None
                level = str(given.value) if isinstance(given, ast.Constant) else "warning"
                yield path, call, {level, "note"} if call in inside else {level}


def checks() -> Iterator[str]:
    """The rules of failed checks, which are findings too."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if "core.examination import Check" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and _ID.fullmatch(str(node.value)):
                    yield str(node.value)


def rules() -> dict[str, set[str]]:
    """The levels of every rule in the code."""
    found: dict[str, set[str]] = defaultdict(set)
    handed_on: list[tuple[Path, set[str]]] = []
    for path, call, levels in findings():
        if not call.args or path.name == "examination.py":  # read back, or that of a check
            continue
        if isinstance(call.args[0], ast.Constant):
            found[str(call.args[0].value)] |= levels
        else:
            handed_on.append((path, levels))
    for rule in checks():
        found[rule].add("stop")
    for path, levels in handed_on:  # made by a function that is given the id
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            given = node.value if isinstance(node, ast.Constant) else None
            if isinstance(given, str) and _ID.fullmatch(given):
                found[given] = found[given] or levels
    return found


def told() -> dict[str, str]:
    """The rules on the page, each with its section."""
    text = (DOCS / "warnings.md").read_text("utf-8")
    parts = re.findall(r"^### (W\d\d|[A-Z]{4,}) .*?\n(.*?)(?=^##)", text, re.M | re.S)
    return dict(parts)


def test_every_rule_is_on_the_page_and_every_rule_there_exists() -> None:
    assert set(told()) == set(rules())
    assert {"W01", "W07", "W11", "W18", "W28", "FAILED"} <= set(told())


def test_the_levels_agree() -> None:
    for rule, levels in rules().items():
        stated = told()[rule].partition("**Level:** ")[2].partition(".")[0]
        assert set(stated.split(", or ")) == levels, rule


def test_every_rule_says_when_it_fires_and_what_to_do() -> None:
    for rule, text in told().items():
        for part in ("**Level:**", "**Fires when**", "**What to do:**"):
            assert part in text, f"{rule} lacks {part}"
        assert "*Reference:" in text or not _ID.fullmatch(rule), rule


def test_references_are_listed() -> None:
    text = (DOCS / "warnings.md").read_text("utf-8")
    listed = text.partition("## References")[2]
    for cited in re.findall(r"\*Reference: (.*?)\.\*", text, re.S):
        for work in re.split(r";\s+", cited):
            name, year = work.split()[0], work.split()[-1]
            assert re.search(rf"{name}.*?{year}\.", listed.replace("\n", " ")), work


def test_a_threat_that_is_refused_in_an_evaluation_has_its_warning() -> None:
    (finding,) = Threat.parse("linf:0.6").findings((0.0, 1.0))
    assert finding.id in told()


def test_the_titles_of_the_page_are_those_of_the_rules() -> None:
    text = (DOCS / "warnings.md").read_text("utf-8")
    assert dict(re.findall(r"^### (W\d\d|[A-Z]{4,}) (.*)$", text, re.M)) == TITLES


@pytest.mark.parametrize("name", ["warnings.md", "own-defense.md"])
def test_the_package_has_the_pages_that_besiege_show_prints(name: str) -> None:
    shown = SOURCE / "cli" / "pages" / name
    assert shown.read_text("utf-8") == (DOCS / name).read_text("utf-8"), f"copy docs/{name} there"


@pytest.mark.parametrize("id", TITLES)
def test_every_rule_can_be_shown(id: str) -> None:
    found = look_up(id.lower())
    assert (found.kind, found.name) == ("rule", f"{id} {TITLES[id]}")
    assert {"level", "fires when", "what to do"} <= set(found.facts)
    text = " ".join([found.about, *map(str, found.facts.values())])
    assert not any(mark in text for mark in ("**", "](", "`")), "no markup"
    assert ("code" in found.facts) == (id in CODED)
