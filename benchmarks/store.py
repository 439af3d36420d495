"""How long a large run takes to look at: 100,000 judged rows, status, page and memory.

python benchmarks/store.py [--rows 100000]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save

import besiege
from besiege.bench.plan import Plan
from besiege.bench.run import Run, write_run
from besiege.bench.spec import AttackSpec, Curve, DataSpec, ModelSpec, Request, Shard
from besiege.bench.store import IMAGES, Record, Store
from besiege.metrics.rows import Column

SIZE = 250
SHAPE = (3, 32, 32)


def weapon(text: str, threat: str = "linf:8/255") -> AttackSpec:
    return AttackSpec(
        text=text,
        described="a stand-in",
        spelled={"name": text},
        threat=threat,
        keep="first",
        leave="success",
        queries=None,
        steps=100,
        restarts=1,
        plain=True,
        one_step=False,
        passes=100,
    )


def shards_of(samples: int, size: int = SIZE) -> tuple[Shard, ...]:
    return tuple(Shard(digest=f"{n:064x}", count=size) for n in range(samples // size))


def plan(samples: int, attacks: int) -> Plan:
    shards = shards_of(samples)
    return Plan(
        request=Request(
            model="zoo:nobody",
            data="cifar10",
            split="test",
            threat="linf:8/255",
            attacks=tuple(f"attack{n}" for n in range(attacks)),
            suite=None,
            queries=None,
            curve="full",
            count=None,
            seed=0,
            shard=SIZE,
            command="besiege evaluate ...",
            textual=True,
        ),
        model=ModelSpec(
            name="zoo:nobody",
            digest="0" * 64,
            kind="Classifier",
            classes=10,
            parameters=1,
            box=(0.0, 1.0),
            stochastic=False,
            draws=1,
        ),
        data=DataSpec(
            name="cifar10",
            split="test",
            count=samples,
            total=samples,
            seed=None,
            digest="0" * 64,
            class_names=tuple("0123456789"),
            shape=SHAPE,
            scaled=False,
            standard=8 / 255,
        ),
        threat="linf:8/255",
        chained=False,
        attacks=tuple(weapon(f"attack{n}") for n in range(attacks)),
        shards=shards,
        curve=Curve(attack=weapon("minimal(attack0)", "linf"), shards=shards),
    )


def fill(
    store: Store,
    asked: Plan,
    shape: tuple[int, ...] = SHAPE,
    broken: float = 0.5,
    seed: int = 0,
    largest: float = 0.03,
) -> None:
    """Records as a real run leaves them, with rows, distances and images of chance."""
    about = {"versions": {"besiege": besiege.__version__}, "seconds": 1.0}
    chance = np.random.default_rng(seed)
    most = max(shard.count for shard in asked.shards)
    pictures = chance.integers(0, 256, (most, *shape), dtype=np.uint8)
    images = chance.random((most, *shape), dtype=np.float32)
    clean, *attacks = asked.stages()
    right = chance.random(sum(clean.counts)) < 0.9
    for (task,), size in zip(clean.parts, clean.counts, strict=True):
        ids = task.shard * size + np.arange(size)
        rows = {
            "sample": ids,
            "label": ids % 10,
            "prediction": ids % 10,
            "confidence": np.full(size, 0.9),
            "share": np.ones(size),
            "correct": right[ids],
        }
        totals = {"rows": size, "correct": int(right[ids].sum())}
        record = Record(task.identity, totals, provenance=about)
        store.commit(record, rows, {IMAGES: save({"images": pictures[:size]})})
    parts = [part for stage in attacks for part in zip(stage.parts, stage.counts, strict=True)]
    for (crafting, judging), size in parts:
        ids = crafting.shard * size + np.arange(size)
        won = (chance.random(size) < broken) | ~right[ids]
        crafted: dict[str, Column] = {
            "sample": ids,
            "claimed": won,
            "first_step": np.where(won, chance.integers(0, 100, size), -1),
            **{n: np.full(size, 100) for n in ("first_query", "forwards", "backwards", "queries")},
            "target": np.full(size, -1),
            "vanished": np.zeros(size, bool),
            **{f"loss_{when}": chance.random(size) for when in ("first", "late", "best")},
        }
        kept: dict[str, Column] = {"images": images[:size][won], "rows": np.flatnonzero(won)}
        craft = Record(crafting.identity, {"rows": size}, provenance=about)
        key = store.commit(craft, crafted, {IMAGES: save(kept)})
        made = store.read(key)
        assert made is not None
        judged: dict[str, Column] = {
            "sample": ids,
            "label": ids % 10,
            "correct": right[ids],
            "success": won,
            **{n: np.ones(size, bool) for n in ("valid", "within", "reached")},
            "share": won.astype(float),
            "prediction": (ids + 1) % 10,
            "confidence": chance.random(size),
            # A misclassified image needs no perturbation.
            **{n: chance.random(size) * largest * right[ids] for n in ("linf", "l2", "l1", "l0")},
        }
        totals = {"rows": size, "correct": int(right[ids].sum()), "broken": int(won.sum())}
        by = {**about, "judged": dict(made.files)}
        store.commit(Record(judging.identity, totals, provenance=by), judged)


def measured(*command: str) -> tuple[float, int]:
    """Seconds and peak memory of a process of its own."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "besiege", *command], check=True, capture_output=True)
    return time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def main(rows: int) -> None:
    with TemporaryDirectory() as folder:
        store = Store(folder)
        asked = plan(rows // 10, 9)
        begin = time.perf_counter()
        with store.writing():
            run = Run(
                created="2026-01-01T00:00:00+00:00", versions={"besiege": besiege.__version__}
            ).with_plan(asked)
            write_run(store, run)
            fill(store, asked)
        size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
        found: dict[str, object] = {
            "rows": rows,
            "records": len(store.present()),
            "written in s": round(time.perf_counter() - begin, 1),
            "on disk MB": round(size / 1e6),
        }
        for name, command in (
            ("status, first time", ("status", folder)),
            ("status", ("status", folder)),
            ("page", ("report", folder)),
        ):
            seconds, memory = measured(*command)
            found[f"{name} s"] = round(seconds, 2)
            found["peak memory so far MB"] = round(memory / 1024)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    main(parser.parse_args().rows)
