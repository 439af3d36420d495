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
