"""``besiege history``, and several models and threats in one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.conftest import Besiege

from besiege.models.catalogue import ZOO

ASK = ("evaluate", "digits_cnn:mine.safetensors", "--data", "digits", "--threat", "linf:0.15")
SHORT = ("--attacks", "pgd(steps=5)", "--no-curve", "--count", "60")


def put(folder: Path, name: str) -> None:
    shutil.copy(ZOO / f"digits-{name}.safetensors", folder / "mine.safetensors")


def test_the_change_is_said_and_listed(besiege: Besiege, tmp_path: Path) -> None:
    put(tmp_path, "pgd-at")
    before = besiege(*ASK, *SHORT)  # into the default folder
    assert before.code == 0 and "was" not in before.out
    put(tmp_path, "natural")
    after = besiege(*ASK, *SHORT)
    assert "worse, p < 0.001 on the same 60 images" in " ".join(after.out.split())
    again = besiege(*ASK, *SHORT)
    assert "nothing is left to do" in again.err and "worse, p < 0.001" in " ".join(
        again.out.split()
    )
    (run,) = (tmp_path / "besiege-runs").iterdir()
    page = (run / "report.html").read_text()
    assert "Earlier results" in page and "worse, p &lt; 0.001 on the same 60 images" in page
    told = besiege("history", str(run))
    assert told.code == 0 and "current" in told.out and "worse" in told.out
    assert max(map(len, told.out.splitlines())) <= 80
    assert "made (UTC)" in told.out
    assert not [line for line in told.out.splitlines() if line.strip() == "UTC"], "a row wraps"
    (one,) = json.loads(besiege("history", str(run), "--json").out)
    assert one["history"][0]["change"]["p"] < 0.001 and one["made"] >= one["history"][0]["made"]


def test_a_folder_that_is_no_run_has_no_history(besiege: Besiege, tmp_path: Path) -> None:
    said = besiege("history", str(tmp_path))
    assert said.code == 2 and "is no run folder" in said.flat


def test_several_models_and_threats(besiege: Besiege, tmp_path: Path) -> None:
    words = ("zoo:digits-natural", "zoo:digits-pgd-at", "--data", "digits", "--threat", "linf:0.15")
    given = ("evaluate", *words, "--threat", "l2:1", *SHORT)
    said = besiege(*given)
    assert said.code == 0, said.err
    rows = [line.split() for line in said.out.splitlines() if line.startswith("zoo:")]
    assert [row[:2] for row in rows] == [
        ["zoo:digits-pgd-at", "linf:0.15"],
        ["zoo:digits-natural", "linf:0.15"],
        ["zoo:digits-pgd-at", "l2:1"],
        ["zoo:digits-natural", "l2:1"],
    ]
    again = besiege(*given, "--json")
    assert "nothing is left to do" in again.err
    found = json.loads(again.out)["evaluations"]
    assert len(found) == 4
    (run,) = (tmp_path / "besiege-runs").iterdir()
    assert all(f"--out besiege-runs/{run.name}" in one["command"] for one in found)
    cost = json.loads(besiege(*given, "--dry-run", "--json").out)
    assert len(cost) == 4
