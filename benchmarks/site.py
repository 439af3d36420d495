"""What the site of a benchmark costs: CPU time, memory and size for a million rows.

python benchmarks/site.py [--rows 1000000] [--trials 2]

Sixteen models with names of forty letters, four cells of five attacks. Records are written by the
store itself, with rows of chance; a command runs in a process of its own, Python's start included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import besiege
from besiege.bench.plan import Plan
from besiege.bench.run import Run, write_run
from besiege.bench.store import Store

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.results import COMMAND, measured
from benchmarks.store import fill, plan, shards_of, weapon

MODELS, ATTACKS = 16, 5
THREATS = ("linf:8/255", "linf", "l2:0.5", "l2")
SIZE = 625


def evaluation(model: int, threat: str, samples: int) -> Plan:
    """One evaluation of the benchmark."""
    asked = plan(samples, ATTACKS)
    name = f"defense_{model:02d}_of_a_paper_with_a_long_title_{model:02d}"[:40]
    texts = [f"attack{n}" for n in range(ATTACKS)]
    return asked.model_copy(
        update={
            "model": asked.model.model_copy(update={"name": name, "digest": f"{model:064x}"}),
            "request": asked.request.model_copy(update={"model": name, "threat": threat}),
            "threat": threat,
            "attacks": tuple(weapon(text, threat) for text in texts),
            "shards": shards_of(samples, SIZE),
            "curve": None,
            "no_curve": "It was not requested.",
        }
    )


def written(folder: Path, rows: int) -> None:
    """Write a run of so many rows."""
    store, samples = Store(folder), rows // (MODELS * len(THREATS) * ATTACKS)
    run = Run(created="2026-01-01T00:00:00+00:00", versions={"besiege": besiege.__version__})
    with store.writing():
        for model in range(MODELS):
            for threat in THREATS:
                asked = evaluation(model, threat, samples)
                run = run.with_plan(asked)
                fill(store, asked, (1, 2, 2), broken=model / MODELS, seed=model)
        write_run(store, run)


def main(rows: int, trials: int) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place, "run")
        written(folder, rows)
        first, again = [], []
        for _ in range(trials):
            shutil.rmtree(folder / "figures", ignore_errors=True)
            first.append(measured(COMMAND, "report", str(folder)))
            again.append(measured(COMMAND, "report", str(folder)))
        pages = [path.stat().st_size for path in (folder / "site").rglob("*.html")]
        found = {
            "rows": rows,
            "records": len(Store(folder).present()),
            "report, first, CPU s": round(min(seconds for seconds, _ in first), 2),
            "report, first, MB": round(max(memory for _, memory in first)),
            "report, again, CPU s": round(min(seconds for seconds, _ in again), 2),
            "report, again, MB": round(max(memory for _, memory in again)),
            "site without pictures, MB": round(sum(pages) / 1e6, 2),
            "largest page, kB": round(max(pages) / 1e3),
            "overview, kB": round((folder / "site" / "index.html").stat().st_size / 1e3),
            "report.html, MB": round((folder / "report.html").stat().st_size / 1e6, 2),
            "figures.json, MB": round((folder / "figures.json").stat().st_size / 1e6, 2),
        }
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=2)
    given = parser.parse_args()
    main(given.rows, given.trials)
