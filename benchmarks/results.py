"""What it costs to get results back: open and export a run of many rows, and print help.

python benchmarks/results.py [--rows 1000000] [--trials 3]

The records are written by the store itself, with rows of chance. Everything measured runs in a
process of its own, with one thread: CPU seconds, Python's start and all imports included, and peak
memory. `open` is measured without kept figures ("first") and with them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import besiege
from besiege.bench.run import Run, write_run
from besiege.bench.store import Store

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.store import fill, plan

ATTACKS = 10
OPEN = "import besiege; besiege.open(sys.argv[1]); assert 'torch' not in sys.modules"
ROWS = "import besiege; besiege.open(sys.argv[1]).rows"
COMMAND = "from besiege.cli import main; assert main(sys.argv[1:]) == 0"
IMPORT = "import besiege; assert 'torch' not in sys.modules"
# A process reports its own peak: what the system reports of a child includes the parent's.
REPORT = """
used = os.times()
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(used.user + used.system, int(peak) / 1024, file=sys.stderr)
"""


def written(folder: Path, rows: int) -> float:
    """Write a run of so many rows; the seconds it took."""
    asked = plan(rows // ATTACKS, ATTACKS)
    asked = asked.model_copy(update={"curve": None, "no_curve": "It was not requested."})
    begin, store = time.perf_counter(), Store(folder)
    with store.writing():
        run = Run(created="2026-01-01T00:00:00+00:00", versions={"besiege": besiege.__version__})
        write_run(store, run.with_plan(asked))
        fill(store, asked, (1, 2, 2))
    return time.perf_counter() - begin


def measured(code: str, *words: str) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of some code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import os, re, sys\n{code}\n{REPORT}", *words],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
    )
    seconds, memory = done.stderr.split()[-2:]
    return float(seconds), float(memory)


def main(rows: int, trials: int) -> None:
    found: dict[str, object] = {"rows": rows}

    def least(name: str, *words: str) -> None:
        tried = [measured(*words) for _ in range(trials)]
        found[f"{name}, CPU s"] = round(min(seconds for seconds, _ in tried), 2)
        found[f"{name}, MB"] = round(max(memory for _, memory in tried))

    with TemporaryDirectory() as place:
        folder = Path(place, "run")
        found["written in s"] = round(written(folder, rows), 1)
        found["records"] = len(Store(folder).present())
        first = []
        for _ in range(trials):
            shutil.rmtree(folder / "figures", ignore_errors=True)
            first.append(measured(OPEN, str(folder)))
        found["open, first, CPU s"] = round(min(seconds for seconds, _ in first), 2)
        found["open, first, MB"] = round(max(memory for _, memory in first))
        least("open", OPEN, str(folder))
        least("open and rows", ROWS, str(folder))
        for suffix in ("csv", "parquet", "json", "tex", "npz"):
            path = Path(place, f"out.{suffix}")
            least(f"export {suffix}", COMMAND, "export", str(folder), str(path), "--force")
            found[f"{path.name} on disk, MB"] = round(path.stat().st_size / 1e6, 2)
    least("--help", COMMAND, "--help")
    least("import besiege", IMPORT)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=3)
    given = parser.parse_args()
    main(given.rows, given.trials)
