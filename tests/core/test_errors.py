from __future__ import annotations

import inspect

import pytest

import besiege
from besiege.core import errors
from besiege.core.errors import Finding, near


def test_all_errors_are_one_tree() -> None:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception)
    ]
    assert len(kinds) >= 9
    for kind in kinds:
        assert issubclass(kind, besiege.BesiegeError)
        assert kind.__doc__
    assert issubclass(errors.AccessError, errors.AttackError)
    assert issubclass(errors.StochasticError, errors.VictimError)


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("pdg", ["pgd", "fgsm"], "did you mean 'pgd'?"),
        ("stepss", ["steps", "step"], "did you mean 'steps' or 'step'?"),
        ("qqq", ["b", "a", "b"], "known: a, b"),
        ("qqq", [], "none are known"),
    ],
)
def test_near_names(name: str, known: list[str], said: str) -> None:
    assert near(name, known) == said


def test_findings_read_as_a_sentence() -> None:
    finding = Finding("W28", "the budget is large.", "Use a smaller one.")
    assert str(finding) == "W28: the budget is large. Use a smaller one."
    assert finding == Finding("W28", "the budget is large.", "Use a smaller one.")


def test_findings_are_sorted_by_how_serious_they_are() -> None:
    given = [("W01", "note"), ("W02", "stop"), ("W03", "warning"), ("W00", "warning")]
    found = [Finding.stored({"id": i, "seen": "", "advice": "", "level": v}) for i, v in given]
    assert [f.id for f in sorted(found, key=lambda f: f.rank)] == ["W02", "W00", "W03", "W01"]


def test_stored_findings_of_earlier_versions_are_read() -> None:
    content = {"id": "W14", "seen": "it wavers.", "advice": "Fix it."}
    assert Finding.stored({**content, "level": "error"}).level == "stop"
    assert Finding.stored({**content, "level": "note"}).level == "note"
    assert Finding.stored(content).level == "warning"
