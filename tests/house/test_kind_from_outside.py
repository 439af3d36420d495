"""A kind of task is one file: planned, run, resumed, counted and read like the shipped ones."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from tests.children import from_a_child

SCRIPT = """
import json, sys
import numpy as np
import besiege
from besiege.bench.frontier import Frontier
from besiege.bench.overview import open_run, status
from besiege.bench.reading import gather
from tests.house import kind_from_outside

folder, events = sys.argv[1], []
ask = dict(threat="linf:0.1", attacks="fgsm", count=12, shard=6, out=folder, examine="none")
found = besiege.evaluate("zoo:digits-natural", "digits", watch=events.append, **ask)
store, run = open_run(folder)
(plan,) = run.plans
before = store.present()
assert before == {task.key for task in plan.tasks()}
(stage,) = plan.stages_of("margins")
record = store.sound(stage.parts[0][0].key)
(store.records / stage.parts[1][0].key / "record.json").unlink()
broken = status(folder)[0].complete
besiege.evaluate("zoo:digits-natural", "digits", **ask)
rows = gather(store, plan).evidence.others["margins"]
clean = gather(store, plan).evidence.clean
print(json.dumps({
    "same": store.present() == before,
    "files": sorted(record.files),
    "rows": rows.count,
    "aligned": rows["sample"].tolist() == clean["sample"].tolist(),
    "above": bool((rows["margin"] >= 0).all()),
    "stages": [(p.attack, p.done, p.shards) for p in status(folder)[0].attacks],
    "whole": [broken, status(folder)[0].complete],
    "told": list(dict.fromkeys(event.text for event in events)),
    "last": events[-1].done == events[-1].total,
    "waiting": len(list(Frontier(plan, store).ready())),
}))
"""


def test_a_kind_of_task_is_one_file(tmp_path: Path) -> None:
    # In a process of its own: a registered kind is part of every plan from then on.
    def run() -> str:
        sys.argv[1:] = [str(tmp_path / "run")]
        with redirect_stdout(io.StringIO()) as said:
            exec(SCRIPT, {})
        return said.getvalue()

    found = json.loads(from_a_child(run, forget=["tests.house.kind_from_outside"]))
    assert found["same"] and found["aligned"] and found["above"] and found["last"]
    assert found["files"] == ["note.txt", "rows.parquet"]
    assert found["rows"] == 12
    *stages, (search, done, shards) = found["stages"]
    assert stages == [["clean", 2, 2], ["fgsm", 2, 2], ["margins", 2, 2]]
    assert search.startswith("minimal(fgsm") and done == shards > 0
    assert found["whole"] == [False, True]
    assert found["told"] == ["clean images", "fgsm", "margins", search]
    assert found["waiting"] == 0
