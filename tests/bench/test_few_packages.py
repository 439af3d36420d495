"""A benchmark runs where only torch, numpy, scipy, safetensors, pydantic and duckdb are installed.

Its folder is merged and reported elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from besiege.bench.merging import merge
from besiege.bench.results import summarise
from besiege.data import load

SCRIPT = """
import sys

MISSING = {"rich", "cyclopts", "jinja2", "markupsafe", "PIL", "sklearn", "pandas", "pyarrow"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from pathlib import Path

from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.expanding import declared
from besiege.bench.single import measure

spec = Path(sys.argv[1])
measure(declared(read_benchmark(spec), spec.parent), out=sys.argv[2])
"""
SPEC = """
name = "few"
data = "digits.npz"

[models]
natural = "zoo:digits-natural"
pgd-at = "zoo:digits-pgd-at"

[[cells]]
name = "white"
threat = "linf:0.1"
attacks = ["fgsm", "pgd"]
"""


@pytest.mark.slow
def test_a_run_with_few_packages_is_reported_elsewhere(tmp_path: Path) -> None:
    data = load("digits", count=20)
    np.savez(tmp_path / "digits.npz", x=data.images.numpy(), y=data.labels.numpy())
    (tmp_path / "spec.toml").write_text(SPEC)
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "spec.toml"), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(words, check=True, env=environment)
    merge(tmp_path / "here", [tmp_path / "run"])
    figures = summarise(tmp_path / "here")
    assert figures.complete and len(figures.evaluations) == 2
