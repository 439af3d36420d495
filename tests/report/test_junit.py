"""JUnit XML of verdicts: valid, whatever the names and messages contain."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from tests.report.sample import MODEL, evaluation, four, threat
from tests.report.schema import Schema

from besiege.core.errors import Finding, Level
from besiege.metrics.gates import FailUnder, judged
from besiege.report.junit import junit, write_junit

SCHEMA = Schema(Path(__file__).with_name("junit.xsd"))
STOP: Level = get_args(Level)[0]
HOSTILE = "<&\"']]> \x00\x1b[31m \ud800 \ufffe\uffff é \n two"


def documents() -> dict[str, bytes]:
    passed = four().evaluations
    finding = Finding("W14", HOSTILE, HOSTILE, STOP)
    failed = Finding("FAILED", HOSTILE, HOSTILE, STOP)
    hostile = evaluation(model=replace(MODEL, name=HOSTILE), warnings=[finding], command=HOSTILE)
    other = threat("l2:1", 1.0)
    lacking = replace(hostile, complete=False, threat=other, warnings=(failed,))
    return {
        "passed": junit(passed, judged(passed, [FailUnder(0.01)])),
        "failed": junit(passed, judged(passed, [FailUnder(0.99)])),
        "hostile": junit([hostile, lacking], judged([hostile, lacking], [FailUnder(0.9)])),
        "nothing": junit([], []),
    }


@pytest.mark.parametrize(("name", "document"), documents().items())
def test_it_is_valid(name: str, document: bytes) -> None:
    assert SCHEMA.problems(document) == []
    assert document.startswith(b"<?xml version='1.0' encoding='utf-8'?>")


@pytest.mark.parametrize(
    ("pattern", "spoiled", "told"),
    [
        (rb' hostname="[^"]*"', b"", "lacks hostname"),
        (rb' name="besiege"', b' name=""', "name is ''"),
        (rb'tests="\d+"', b'tests="many"', "no xs:int"),
        (rb'time="[^"]*"', b'time="1 s"', "no xs:decimal"),
        (rb'timestamp="([^"]*)"', rb'timestamp="\1Z"', "timestamp is"),
        (rb"<testsuite ", b'<testsuite mood="good" ', "has mood"),
        (rb"<system-err />", b"", "0 system-err"),
        (rb"<properties>.*</properties>", b"", "0 properties"),
        (rb'(<failure) type="failed"', rb"\1", "failure lacks type"),
        (rb"(<failure.*?</failure>)", rb"\1\1", "failure, which is not expected"),
        (rb"testsuites", b"tests", "the root is tests"),
        (rb"(<testcase[^>]*>)", rb"\1text", "has text"),
    ],
)
def test_the_check_sees_what_is_wrong(pattern: bytes, spoiled: bytes, told: str) -> None:
    document, count = re.subn(pattern, spoiled, documents()["failed"], flags=re.DOTALL)
    assert count and told in "; ".join(SCHEMA.problems(document))


def test_every_check_is_a_case_with_its_reason() -> None:
    suite = ElementTree.fromstring(documents()["hostile"])[0]
    cases = suite.findall("testcase")
    shown = [[(problem.tag, problem.get("type")) for problem in case] for case in cases]
    assert shown == [
        [("error", "stop")],
        [("error", "incomplete")],
        [("failure", "failed")],
        [("error", "incomplete")],
    ]
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "time")]
    assert counts == ["4", "1", "3", "19.400"]
    assert r"\x00\x1b[31m \ud800 \ufffe\uffff é" in str(cases[0][0].get("message"))
    assert len({case.get("name") for case in cases}) == 4
    passed = ElementTree.fromstring(documents()["passed"])[0]
    assert [len(case) for case in passed.findall("testcase")] == [0] * 8


def test_folders_are_made_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "junit.xml"
    for _ in range(2):
        write_junit(path, [], [])
        assert SCHEMA.problems(path.read_bytes()) == []
    assert [one.name for one in path.parent.iterdir()] == ["junit.xml"]
