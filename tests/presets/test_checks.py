"""Every check that a preset states is made by a peer test, and every comparison is stated."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from besiege.core.presets import PRESETS

FAMILIES = ("first_order", "minimum_norm", "weighted", "score", "decision")
LIBRARIES = ("adv_lib", "adv_lib.attacks", "adv_lib.attacks.carlini_wagner")


def cases(test: FunctionType) -> Iterator[dict[str, Any]]:
    """The arguments of a test, one dictionary for each of its cases."""
    marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in product(*(some for _, some in marks)):
        given: dict[str, Any] = {}
        for (names, _), value in zip(marks, values, strict=True):
            given |= (
                {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
            )
        if "float64" in inspect.signature(test).parameters:
            given["float64"] = lambda run: run
        yield given


def comparisons(module: ModuleType, patch: pytest.MonkeyPatch) -> set[tuple[str, str, str]]:
    """Presets, peers and what is compared, of all calls of `agree`; nothing is run."""
    made: set[tuple[str, str, str]] = set()

    def noted(preset: str, peer: str, *runs: object, about: str = "") -> None:
        made.add((preset, peer, about))

    patch.setattr(module, "agree", noted)
    if hasattr(module, "stand_in_for_adv_lib"):
        patch.setattr(module, "stand_in_for_adv_lib", lambda: None)
    for name, test in list(vars(module).items()):
        if name.startswith("test_") and {"agree", "compare"} & set(test.__code__.co_names):
            for given in cases(test):
                test(**given)
    return made


def test_every_stated_check_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # The libraries need not be installed: no attack of theirs is run.
    monkeypatch.setattr(pytest, "importorskip", lambda *given, **named: MagicMock())
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    made: set[tuple[str, str, str]] = set()
    for family in FAMILIES:
        made |= comparisons(import_module(f"tests.peers.test_{family}_presets"), monkeypatch)
    stated = {
        (name, check.peer, check.about) for name, one in PRESETS.items() for check in one.checks
    }
    assert made == stated
