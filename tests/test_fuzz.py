"""A few hostile command lines and calls of every run of the suite; benchmarks/fuzz.py has more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


def test_hostile_input_is_answered_or_refused_in_one_sentence() -> None:
    words = [sys.executable, str(FUZZ), "--lines", "40", "--calls", "40", "--seed", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
