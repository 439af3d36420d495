"""Queries per image: counted from the rows of the images that an attack ran on."""

from __future__ import annotations

import numpy as np
import pytest

import besiege
from besiege.metrics.attack_values import AttackQueries

NATURAL = "zoo:digits-natural"


@pytest.fixture(scope="module")
def suite() -> besiege.Evaluation:
    return besiege.evaluate(
        *(NATURAL, "digits"), threat="linf:0.15 score", suite="score", queries=300, count=60
    )


def test_they_are_those_of_the_images_that_each_attack_ran_on(suite: besiege.Evaluation) -> None:
    rows, fates = suite.rows, suite.by_sample
    right = fates["sample"][fates["fate"] != "wrong"]
    assert 0 < len(right) < 60, "some images are misclassified, and left out"
    square, nattack = suite.figures.queries
    for found, text in ((square, "square"), (nattack, "nattack")):
        mine = rows.where((rows["attack"] == text) & np.isin(rows["sample"], right))
        broken = mine["first_query"][mine["success"]]
        assert found == AttackQueries(
            text,
            mine.count,
            float(mine["queries"].mean()),
            float(np.median(mine["queries"])),
            float(np.median(broken)),
        )
    assert square.count == len(right) > nattack.count == suite.figures.cascade[1].before
    assert square.median < 300 and nattack.median == 300, "the limit holds"


def test_gradient_attacks_have_passes_and_no_queries() -> None:
    mixed = besiege.evaluate(
        *(NATURAL, "digits"),
        threat="linf:0.15",
        attacks="fgsm, square(steps=20)",
        count=20,
        curve=False,
    )
    assert [one.text for one in mixed.figures.queries] == ["square(steps=20)"]
    seeing = besiege.evaluate(
        NATURAL, "digits", threat="linf:0.15", attacks="fgsm", count=20, curve=False
    )
    assert seeing.figures.queries == ()
    assert seeing.figures.plain()["queries"] == []
