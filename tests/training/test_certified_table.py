"""The table of certified training in the documentation: shares of all test images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.bounded import MARK, RECIPES, row

IMAGES = 397
DOCS = Path(__file__).parents[2] / "docs" / "training.md"
RATE = re.compile(r"(\d+\.\d) % \[(\d+\.\d), (\d+\.\d)\]")


def shares(line: str) -> list[float]:
    """The shares of a row in percent, each inside its interval and of whole images."""
    found = [[float(one) for one in rate.groups()] for rate in RATE.finditer(line)]
    assert len(found) == 3, line
    for share, low, high in found:
        assert low <= share <= high
        assert min(abs(share - 100 * hits / IMAGES) for hits in range(IMAGES + 1)) <= 0.051
    return [share for share, _, _ in found]


def test_the_table_has_every_recipe_and_the_better_bound_counts() -> None:
    _, table, _ = DOCS.read_text(encoding="utf-8").split(MARK)
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in rows] == list(RECIPES)
    for clean, ibp, crown in map(shares, rows):
        assert ibp <= crown <= clean


@pytest.mark.parametrize("recipe", ["natural(epochs=2)", "crown-ibp(epochs=15)"])
def test_a_row_is_measured_on_all_test_images(recipe: str) -> None:
    line = row(recipe, "digits_mlp")
    clean, ibp, crown = shares(line)
    assert line.startswith(f"| `{recipe}` |") and ibp <= crown <= clean and clean > 30
