"""A few hostile command lines and calls of every run of the suite; benchmarks/fuzz.py has more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize("many", ["6", pytest.param("40", marks=pytest.mark.slow)])
def test_hostile_input_is_answered_or_refused_in_one_sentence(many: str) -> None:
    words = [sys.executable, str(FUZZ), "--lines", many, "--calls", many, "--seed", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
