"""What it costs to look at a folder of several evaluations again: CPU time and record reads.

python benchmarks/folder.py [--trials 3]

Every command runs in a process of its own, with one thread: Python's start and all imports count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

THREATS = ("linf:0.05", "linf:0.1", "linf:0.15", "linf:0.2", "l2:0.5", "l2:1")
# The command line, counting the records that it reads.
COUNTED = """
import sys
from besiege.bench.store import Store
from besiege.cli.app import main
reads, found = [], Store.with_files
def counted(self, *given):
    reads.append(given)
    return found(self, *given)
Store.with_files = counted
code = main(sys.argv[2:])
open(sys.argv[1], "w").write(str(len(reads)))
sys.exit(code)
"""


def question(threat: str, folder: Path) -> list[str]:
    given = ["--data", "digits", "--threat", threat, "--attacks", "fgsm, pgd(steps=10)"]
    return ["evaluate", "zoo:digits-natural", *given, "--count", "200", "--out", str(folder)]


def cpu(*command: str) -> float:
    """Seconds of CPU of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def reads(folder: Path, *command: str) -> int:
    count = folder.with_suffix(".reads")
    cpu("-c", COUNTED, str(count), *command)
    return int(count.read_text())


def main(trials: int) -> None:
    found: dict[str, float] = {}

    def least(name: str, *command: str) -> None:
        found[f"{name}, s"] = round(min(cpu(*command) for _ in range(trials)), 2)

    with TemporaryDirectory() as place:
        folder = Path(place, "run")
        commands = {"evaluate again": question(THREATS[0], folder)}
        commands |= {"report": ["report", str(folder)], "status": ["status", str(folder)]}
        for count, threat in enumerate(THREATS, 1):
            cpu("-m", "besiege", *question(threat, folder))
            for name, command in commands.items() if count in (1, len(THREATS)) else ():
                least(f"{name}, {count}", "-m", "besiege", *command)
                found[f"{name}, {count}, reads"] = reads(folder, *command)
    least("import torch", "-c", "import torch")
    least("import besiege.bench.single", "-c", "import besiege.bench.single")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    main(parser.parse_args().trials)
