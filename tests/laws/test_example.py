"""The attack of one's own in the examples is held to the laws like any other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import besiege
from besiege.attacks.attack import parse
from besiege.core.threat import Goal
from besiege.testing import cases, conform
from besiege.testing.trial import Shelf
from besiege.testing.victims import digits, natural

FILE = Path(__file__).parents[2] / "examples" / "my_attack.py"
SOURCE = f"{FILE}:MyAttack"


def test_it_obeys_every_law() -> None:
    shelf: Shelf = {}
    for case in cases(SOURCE):
        if case.goal is Goal.UNTARGETED:
            assert case.check(SOURCE, shelf=shelf) is None


@pytest.mark.slow
def test_it_conforms() -> None:
    assert conform(SOURCE) == list(cases(SOURCE))


def test_it_is_used_by_its_file_and_name() -> None:
    samples = digits(16)
    result = besiege.attack(
        SOURCE, natural(), samples.images, samples.labels, threat="linf:0.3", steps=10
    )
    assert result.success.float().mean() > 0.9
    assert str(result.attack) == "my_attack(steps=10)"
    # Once its file was read, its registered name is enough.
    again = besiege.attack(
        "my_attack(steps=10)", natural(), samples.images, samples.labels, threat="linf:0.3"
    )
    assert torch.equal(result.images, again.images)
    assert parse("minimal(my_attack)").minimal


def test_it_takes_twenty_lines_at_most() -> None:
    tree = ast.parse(FILE.read_text())
    (attack,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    first = min(decorator.lineno for decorator in attack.decorator_list)
    assert attack.end_lineno is not None
    assert attack.end_lineno - first + 1 <= 20
