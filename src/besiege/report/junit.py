"""Verdicts as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from besiege.bench.folder import telling
from besiege.core.files import replace_file
from besiege.core.text import harmless
from besiege.metrics.gates import Verdict
from besiege.metrics.values import EvaluationFigures

_PROBLEMS = {"failed": "failure", "stop": "error", "incomplete": "error"}


def junit(evaluations: Sequence[EvaluationFigures], verdicts: Sequence[Verdict]) -> bytes:
    """Verdicts as JUnit XML: one test case for each check of each evaluation.

    A gate that failed is a failure; figures that are incomplete or must not be quoted are errors.
    The elements and their order are those of the schema of Apache Ant, the strictest in use.
    """
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        id="0",
        package="besiege",
        name="besiege",
        timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        hostname="localhost",
        tests=str(len(verdicts)),
        failures=str(sum(one.outcome == "failed" for one in verdicts)),
        errors=str(sum(one.outcome in ("stop", "incomplete") for one in verdicts)),
        time=f"{sum(one.seconds for one in verdicts):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for one in evaluations:
        _property(properties, "command", one.command)
        _property(properties, "robust", f"{one.title}: {one.robust}")
    for verdict in verdicts:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            name=_clean(f"{verdict.about}: {verdict.check}"),
            classname="besiege.evaluate",
            time=f"{verdict.seconds:.3f}",
        )
        if not verdict.passed:
            reason = _clean(verdict.reason)
            problem = ElementTree.SubElement(
                case, _PROBLEMS[verdict.outcome], type=verdict.outcome, message=reason
            )
            problem.text = reason
    ElementTree.SubElement(suite, "system-out").text = _clean("\n".join(map(str, verdicts)))
    ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def write_junit(
    path: Path, evaluations: Sequence[EvaluationFigures], verdicts: Sequence[Verdict]
) -> None:
    """Write verdicts as a file of JUnit XML; missing folders are created."""
    with telling(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, junit(evaluations, verdicts))


def _property(parent: ElementTree.Element, name: str, value: str) -> None:
    ElementTree.SubElement(parent, "property", name=name, value=_clean(value))


def _clean(text: str) -> str:
    """A text without the characters that XML forbids: they are spelled out."""
    spelled = harmless(text).encode("utf-8", "backslashreplace").decode()
    return spelled.replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")
