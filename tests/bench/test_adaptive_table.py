"""The table of defenses is read from records: each attack on every image beside the suite."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from benchmarks.adaptive_table import (
    PGD,
    SQUARE,
    Row,
    answers,
    cells,
    compared,
    digest_of,
    evaluated,
    opened,
    printed,
    withstood,
)

ROW = Row("zoo:digits-natural+bits(depth=1)", 8, 5)
BARE = Row("zoo:digits-natural", 8, 5)
MISSING = Row("zoo:none+bits", 8, 5, zoo="none")


@pytest.mark.slow
def test_lines_are_read_from_records_and_models_compared_by_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = argparse.Namespace(out=[tmp_path / "run"])
    for row in (ROW, BARE):
        evaluated(row, given, "linf:0.15", "digits")
    found = opened(tmp_path / "run")
    line = cells(ROW, digest_of(ROW.text), found)
    suite = next(one for one in found if one.figures.suite and "bits" in one.figures.model.name)
    assert line[:3] == [f"`{ROW.text}`", "8", str(suite.clean)]
    assert line[3] == str(suite.by_attack["oblivious(pgd)"]) and line[7] == f"**{suite.robust}**"
    assert line[4].endswith("/ 8") and line[5].endswith("/ 5")
    assert cells(BARE, digest_of(BARE.text), found)[3] == "none"

    # Rows of another model are not taken for this one's, nor the suite's for those of an attack.
    stood = withstood(found, digest_of(ROW.text), PGD)
    assert len(stood) == 8 and line[4].startswith(f"{100 * sum(stood.values()) / 8:.1f} %")
    assert withstood(found, digest_of(ROW.text), "apgdt") == {}
    assert " of 5 images" in compared(found, (ROW.text, BARE.text), (SQUARE, SQUARE))
    assert compared(found, (ROW.text, BARE.text), ("apgdt", SQUARE)) == ""

    printed((ROW, BARE, MISSING), found, "linf:0.15")
    answers(found)  # nothing to say about models that are not there
    said = capsys.readouterr().out
    assert said.count(f"| `{ROW.text}` | 8 |") == 1 and "not there yet: `zoo:none`" in said
    assert "- F" not in said and "seed 0" in said
