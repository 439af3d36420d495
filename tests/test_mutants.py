"""Every mutant of `benchmarks/mutants.py` changes one place of the code, which is there."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_every_mutant_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    mutants = runpy.run_path(str(ROOT / "benchmarks" / "mutants.py"))["MUTANTS"]
    places = [
        ((ROOT / "src" / "besiege" / one.file).read_text().count(one.old), one.what)
        for one in mutants
    ]
    assert len(places) > 150 and [what for count, what in places if count != 1] == []
    names = {name.partition("::")[0] for one in mutants for name in one.tests}
    files = {name for name in names if name.endswith(".py")}
    assert len(files) > 20 and all((ROOT / name).exists() for name in files)
