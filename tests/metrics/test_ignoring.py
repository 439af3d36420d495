"""What a defense is worth against an attacker who ignores it, and against one who knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from besiege.metrics.defense_values import DefenseFigures
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.ignoring import defense_figures
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows

IDS = np.arange(20)
IGNORANT: dict[str, Any] = {"oblivious": True, "access": "transfer"}


def _trial(text: str, broken: list[int], ran: Any = IDS, **changes: Any) -> Trial:
    rows = Rows({"sample": ran, "success": np.isin(ran, broken)})
    return replace(Trial(text, rows), **changes)


def _figures(*trials: Trial, chained: bool = False) -> DefenseFigures | None:
    clean = Rows({"sample": IDS, "correct": IDS < 18})
    given = Evidence(clean, trials, chained, "linf", 0.1, (0.0, 1.0), 64, 10)
    return defense_figures(Case(given))


def test_both_shares_are_of_the_same_images() -> None:
    found = _figures(_trial("oblivious(pgd)", [0, 1], **IGNORANT), _trial("pgd", [1, 2, 3, 4]))
    assert found is not None
    assert (found.ignored.hits, found.known.hits, found.known.count) == (16, 13, 20)
    assert str(found) == "80.0 % if the defense is ignored, 65.0 % if it is known"


def test_in_a_suite_the_oblivious_attack_must_have_seen_all_images() -> None:
    oblivious = _trial("oblivious(pgd)", [0, 1], **IGNORANT)
    later = _trial("pgd", [2], np.arange(2, 18))
    found = _figures(oblivious, later, chained=True)
    assert found is not None and (found.ignored.hits, found.known.hits) == (16, 15)
    first = _trial("pgd", [2])
    second = _trial("oblivious(pgd)", [0], np.delete(IDS[:18], 2), **IGNORANT)
    assert _figures(first, second, chained=True) is None


@pytest.mark.parametrize("kind", [IGNORANT, {}], ids=["ignored", "known"])
def test_one_kind_of_attacker_says_nothing_about_the_other(kind: dict[str, Any]) -> None:
    assert _figures(_trial("pgd", [1], **kind)) is None
    # A transfer from a substitute knows nothing of the defense, either.
    assert _figures(_trial("pgd", [1], **kind), _trial("dim", [2], access="transfer")) is None
