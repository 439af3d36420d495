"""Images that are let go: verdicts stay, pages find theirs, and tasks that need them make them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import besiege
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.evaluations import Evaluations
from besiege.bench.expanding import declared
from besiege.bench.overview import status
from besiege.bench.pictures import pictures
from besiege.bench.results import summarise
from besiege.bench.run import read_run
from besiege.bench.single import measure
from besiege.bench.store import IMAGES, KEPT, RELEASED, DamagedError, ReleasedError, Store
from besiege.core.errors import StoreError
from besiege.report import write_page

CELLS = [
    {"name": "white", "threat": "linf:0.2", "attacks": ["fgsm", "bim(steps=3)"]},
    {"name": "search", "threat": "l2:1", "attacks": ["ddn(steps=5)"], "budget": "search"},
    {
        "name": "transfer",
        "threat": "linf:0.2",
        "attacks": ["bim(steps=3)"],
        "substitute": "zoo:digits-natural+bits(depth=4)",
    },
]
MODELS = {"natural": "zoo:digits-natural", "pgd-at": "zoo:digits-pgd-at"}


def run_into(folder: Path, images: str, **changes: Any) -> Store:
    content: dict[str, Any] = {"name": "small", "data": "digits", "count": 40, "shard": 20}
    content |= {"models": MODELS, "cells": CELLS, "store": {"images": images}}
    measure(declared(benchmark_of({**content, **changes}), Path()), out=folder)
    return Store(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    for images in ("all", "shown", "none"):
        run_into(base / images, images)
    return {images: base / images for images in ("all", "shown", "none")}


@pytest.fixture
def shown(runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["shown"], tmp_path / "shown"))


def crafted(store: Store) -> list[str]:
    records = {key: store.read(key) for key in sorted(store.present())}
    return [
        key
        for key, record in records.items()
        if record is not None and record.identity["kind"] == "craft" and IMAGES in record.files
    ]


def test_images_go_and_everything_else_stays(runs: dict[str, Path]) -> None:
    whole, some, none = (Store(runs[name]) for name in ("all", "shown", "none"))
    assert whole.present() == some.present() == none.present()
    keys = crafted(whole)
    assert keys and not any(whole.released(key) for key in keys)
    for store in (some, none):
        for key in keys:
            assert store.released(key) and store.sound(key) is not None
            assert store.rows([key]).count == whole.rows([key]).count
            with pytest.raises(ReleasedError, match="the same seed makes the same images"):
                store.images(key)
    assert not [*none.records.glob(f"*/{KEPT}")] and [*some.records.glob(f"*/{KEPT}")]
    for one, other in zip(*(summarise(runs[n]).evaluations for n in ("all", "none")), strict=True):
        assert one.robust == other.robust and one.complete and other.complete
    assert all(one.complete for one in status(runs["none"]))
    first = next(iter(whole.records.glob(f"*/{IMAGES}")))
    assert first.parent.name and not (first.parent / RELEASED).exists()


def test_galleries_find_their_images(runs: dict[str, Path], shown: Path) -> None:
    (shown / "figures" / "pictures.safetensors").unlink(missing_ok=True)
    items = [item for one in summarise(shown).evaluations for item in one.gallery]
    assert len(items) > 20
    mine, theirs = pictures(Store(shown), items), pictures(Store(runs["all"]), items)
    for item in items:
        for one, other in zip(mine(item), theirs(item), strict=True):
            assert np.array_equal(one, other)
    assert write_page(shown).stat().st_size > 10_000
    # Of a search 24 stay, of each of the other evaluations as many as were broken.
    store = Store(shown)
    kept = sum(
        len(store.shown_images(path.parent.name)["rows"]) for path in shown.glob(f"*/*/{KEPT}")
    )
    assert 24 * 2 < kept <= 24 * 6


def test_other_readers_get_a_clear_error(shown: Path, tmp_path: Path) -> None:
    found = besiege.open(shown)
    assert isinstance(found, Evaluations)
    with pytest.raises(StoreError, match="were let go"):
        found[0].export(tmp_path / "images.npz")


def test_a_verdict_that_is_lost_makes_its_images_again(runs: dict[str, Path], shown: Path) -> None:
    store = Store(shown)
    judge = next(
        key for key in sorted(store.present()) if _kind(store, key) == "judge" and _rows(store, key)
    )
    record = store.read(judge)
    assert record is not None
    shutil.rmtree(store.records / judge)
    run_into(shown, "shown")
    again = Store(shown)
    assert again.present() == Store(runs["all"]).present()
    one, other = again.read(judge), Store(runs["all"]).read(judge)
    assert one is not None and other is not None and one.files == other.files
    assert again.released(record.identity["crafted"])  # and let go again
    assert not (shown / "damaged").exists()


def _kind(store: Store, key: str) -> str:
    record = store.read(key)
    assert record is not None
    return str(record.identity["kind"])


def _rows(store: Store, key: str) -> int:
    return store.rows([key]).count


def test_a_new_target_makes_the_images_of_its_source_again(shown: Path) -> None:
    models = {**MODELS, "coarse": "zoo:digits-natural+bits(depth=2)"}
    store = run_into(shown, "shown", models=models)
    assert all(one.complete for one in status(shown))
    assert all(store.released(key) for key in crafted(store))
    run = read_run(store)
    assert run is not None and len(run.entries) == 9


def test_images_that_are_missing_or_changed_are_still_damage(shown: Path) -> None:
    store = Store(shown)
    key = crafted(store)[0]
    about = json.loads((store.records / key / RELEASED).read_text())
    (store.records / key / RELEASED).write_text(json.dumps({**about, "files": {IMAGES: "0"}}))
    with pytest.raises(DamagedError, match="incomplete"):
        store.read(key, whole=True)
    (store.records / key / RELEASED).unlink()
    assert Store(shown).sound(key) is None
    with_kept = next(path.parent for path in store.records.glob(f"*/{KEPT}"))
    (with_kept / KEPT).write_bytes(b"changed")
    with pytest.raises(ReleasedError):
        store.shown_images(with_kept.name)


def test_a_release_that_was_interrupted_is_finished(shown: Path, runs: dict[str, Path]) -> None:
    """A kill between the sidecar and the removal leaves a sound record with its images."""
    store = Store(shown)
    key = crafted(store)[0]
    shutil.copy(runs["all"] / "records" / key / IMAGES, store.records / key / IMAGES)
    assert not store.released(key) and store.images(key) and store.sound(key) is not None
    run_into(shown, "shown")
    assert store.released(key)


def test_a_plain_evaluation_keeps_the_images_that_it_uses(tmp_path: Path) -> None:
    words: dict[str, Any] = {"threat": "linf:0.2", "curve": False, "count": 40, "shard": 20}
    besiege.evaluate("zoo:digits-natural", "digits", attacks="fgsm", out=tmp_path, **words)
    run = read_run(Store(tmp_path))
    assert run is not None
    mine = {task.key for task in run.plans[0].tasks() if task.kind == "craft"}
    store = run_into(tmp_path, "none")
    assert mine < set(crafted(store)), "the benchmark has the same attack"
    assert not any(store.released(key) for key in mine)
    assert any(store.released(key) for key in set(crafted(store)) - mine)
