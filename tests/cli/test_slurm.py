from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.bench.records import content, finished

from besiege.bench.overview import status
from besiege.cli import main
from besiege.cli.slurm import script

SPEC = """
name = "two-models"
data = "digits"
count = 16
shard = 4
[models]
natural = "zoo:digits-natural"
pgd-at = "zoo:digits-pgd-at"
[[cells]]
name = "white linf"
threat = "linf:0.1"
attacks = ["fgsm", "bim"]
examine = "none"
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "a spec.toml"
    path.write_text(SPEC)
    return path


def written(spec: Path, *more: str) -> str:
    file = spec.with_name("job.sh")
    assert (
        main(["slurm", str(spec), "--file", str(file), "--out", str(spec.parent / "run"), *more])
        == 0
    )
    return file.read_text()


def test_the_script_has_the_array_and_the_time(spec: Path) -> None:
    text = written(spec, "--parts", "3", "--sbatch=--gres=gpu:1", "--sbatch=--partition=long")
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --array=1-3" in lines and "#SBATCH --job-name=besiege-two-models" in lines
    assert "#SBATCH --gres=gpu:1" in lines and "#SBATCH --partition=long" in lines
    assert "#SBATCH --time=00:15:00" in lines, "the forecast is seconds"
    assert "#SBATCH --time=30:30:00" in written(spec, "--hours", "30.5")
    assert not (spec.parent / "run").exists()


def test_the_script_is_sound(spec: Path, tmp_path: Path) -> None:
    text = script("x' y", 4, 90, ["run", "it's a spec.toml"], 2)
    (tmp_path / "job.sh").write_text(text)
    assert subprocess.run(["bash", "-n", str(tmp_path / "job.sh")]).returncode == 0
    checker = os.environ.get("SHELLCHECK") or shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([checker, str(tmp_path / "job.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_its_parts_run_the_benchmark(spec: Path, tmp_path: Path) -> None:
    """A stand-in for SLURM: every part of the array at once."""
    written(spec, "--parts", "3", "--hours", "1")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            ["bash", str(tmp_path / "job.sh")],
            env={**environment, "SLURM_ARRAY_TASK_ID": str(number)},
        )
        for number in (1, 2, 3)
    ]
    assert [one.wait() for one in running] == [0, 0, 0]
    assert all(one.complete for one in status(tmp_path / "run"))
    keys = Counter(key for keys in finished(tmp_path / "run").values() for key in keys)
    assert set(keys.values()) == {1} and set(keys) == set(content(tmp_path / "run"))


def test_wrong_options_are_refused(spec: Path) -> None:
    for wrong in (["--sbatch", "partition"], ["--hours", "0"], ["--parts", "0"]):
        assert main(["slurm", str(spec), *wrong]) == 2
    assert main(["slurm", "nowhere.toml"]) == 2
