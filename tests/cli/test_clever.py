"""``besiege clever``: estimates, and the attacks that refute them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Besiege

ASK = ("--data", "digits", "--count", "3", "--attacks", "fmn(steps=10)")
HOW = ("--how", "clever(batches=10, samples=4, radius=1)", "--goal", "targeted:random")


def test_estimates_are_printed_and_kept(besiege: Besiege, tmp_path: Path) -> None:
    asked = ("clever", "zoo:digits-natural", *ASK, *HOW, "--out", str(tmp_path / "run"))
    said = besiege(*asked)
    assert said.code == 0, said.err
    assert "estimate by CLEVER, no bound" in said.out and "refuted by an attack" in said.out
    found = json.loads(besiege(*asked, "--json").out)
    assert found["count"] + found["without"] == 3 and found["gradients"] % 40 == 0
    status = besiege("status", str(tmp_path / "run"))
    assert status.code == 0


def test_what_does_not_fit_is_refused(besiege: Besiege) -> None:
    said = besiege("clever", "zoo:digits-natural", *ASK, "--norm", "l1")
    assert said.code == 2 and "no usual radius in l1" in said.flat
    said = besiege("clever", "zoo:digits-natural", *ASK, "--how", "clever(batches=2)")
    assert said.code == 2 and "batches is 2" in said.flat
