"""Law 10: interrupted at any moment and run again, the same records."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.bench.records import content
from tests.children import forked

import besiege
from besiege.bench.overview import open_run, status
from besiege.bench.store import Store
from besiege.bench.work_estimate import Event
from besiege.core.errors import StoreError

ATTACKS = ["fgsm", "pgd(steps=4)", "mim(steps=4)", "pgd(steps=3, loss=margin)"]


def siege(folder: Path, watch: Callable[[Event], None] | None = None) -> besiege.Evaluation:
    """Four attacks on three shards, and the curve."""
    return besiege.evaluate(
        "zoo:digits-natural",
        "digits",
        threat="linf:0.1",
        attacks=ATTACKS,
        count=24,
        shard=8,
        out=folder,
        watch=watch,
    )


CHAIN = [
    "apgd(steps=5)",
    "apgdt(steps=4, targets=3)",
    "fabt(steps=4, targets=2)",
    "square(steps=60)",
]


def chain(folder: Path, watch: Callable[[Event], None] | None = None) -> besiege.Evaluation:
    """Four attacks on two shards, each on what the ones before left."""
    return besiege.evaluate(
        "zoo:digits-natural",
        "digits",
        threat="linf:0.06",
        suite=CHAIN,
        count=16,
        shard=8,
        curve=False,
        out=folder,
        watch=watch,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    folder = tmp_path_factory.mktemp("whole")
    begin = time.perf_counter()
    assert siege(folder).complete
    return folder, time.perf_counter() - begin


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in (folder / "records").glob("*/record.json"):
        if not path.parent.name.startswith("."):
            about = path.stat()
            found[path.parent.name] = (about.st_ino, about.st_mtime_ns)
    return found


@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(whole: tuple[Path, float], tmp_path: Path, times: int) -> None:
    reference, seconds = whole
    chance = random.Random(0)
    seen: dict[str, tuple[int, int]] = {}
    kills = turn = 0
    while kills < times:
        folder = tmp_path / f"run{turn}"
        child = forked(lambda folder=folder: siege(folder))  # type: ignore[misc]
        time.sleep(chance.uniform(0.02, seconds / 6))
        os.kill(child, signal.SIGKILL)
        _, ended = os.waitpid(child, 0)
        now = stamps(folder)
        assert {key: now[key] for key in seen} == seen, "a finished record was done again"
        seen = now
        if os.WIFEXITED(ended):  # it had finished: kill another one
            assert content(folder) == content(reference)
            turn, seen = turn + 1, {}
        else:
            kills += 1
    assert siege(folder).complete
    now = stamps(folder)
    assert {key: now[key] for key in seen} == seen
    assert content(folder) == content(reference)
    assert not [p for p in folder.rglob("*") if ".partial" in p.name]
    assert not (folder / "damaged").exists()
    _, run = open_run(folder)
    assert Store(folder).present() == {task.key for task in run.plans[0].tasks()}


def test_a_suite_killed_inside_every_attack(tmp_path: Path) -> None:
    """What a later attack is sent depends on what was finished before the kill: the same."""
    begin = time.perf_counter()
    reference = chain(tmp_path / "whole")
    seconds = time.perf_counter() - begin
    rows = reference.rows
    tried = [int((rows["attack"] == text).sum()) for text in CHAIN]
    assert reference.complete and tried == sorted(tried, reverse=True) and 0 < tried[-1] < tried[0]

    def killed(at: str, share: float) -> Callable[[], object]:
        def watch(event: Event) -> None:
            if event.stage and event.stage.attack == at and event.stage.share >= share:
                os.kill(os.getpid(), signal.SIGKILL)

        return lambda: chain(folder, watch)

    folder, chance = tmp_path / "run", random.Random(1)
    seen: dict[str, tuple[int, int]] = {}
    for at in (*CHAIN[:2], "", *CHAIN[2:], ""):
        child = forked(killed(at, 0.2))
        if not at:  # at any moment
            time.sleep(chance.uniform(0.02, seconds / 4))
            os.kill(child, signal.SIGKILL)
        _, ended = os.waitpid(child, 0)
        assert os.WIFSIGNALED(ended) or not at
        now = stamps(folder)
        assert {key: now[key] for key in seen} == seen, "a finished record was done again"
        seen = now
    again = chain(folder)
    assert {key: stamps(folder)[key] for key in seen} == seen
    assert again.complete and content(folder) == content(tmp_path / "whole")
    assert again.robust == reference.robust and again.figures.cascade[-1].left >= 0
    for name in reference.by_sample:
        np.testing.assert_array_equal(again.by_sample[name], reference.by_sample[name])
    assert not (folder / "damaged").exists()
    _, run = open_run(folder)
    assert Store(folder).present() == {task.key for task in run.plans[0].tasks()}


def test_a_finished_evaluation_computes_nothing(whole: tuple[Path, float]) -> None:
    before = stamps(whole[0])
    again = siege(whole[0])
    assert stamps(whole[0]) == before
    assert again.complete


def test_ctrl_c_leaves_what_is_finished(whole: tuple[Path, float], tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.done > 100:
            os.kill(os.getpid(), signal.SIGINT)

    child = forked(lambda: siege(tmp_path / "run", interrupt))
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 130
    done = stamps(tmp_path / "run")
    assert done and not list((tmp_path / "run").rglob(".partial*"))
    assert not status(tmp_path / "run")[0].complete
    siege(tmp_path / "run")
    assert content(tmp_path / "run") == content(whole[0])
    assert {key: stamps(tmp_path / "run")[key] for key in done} == done


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", pytest.param("foreign", marks=pytest.mark.slow)]
)
def test_damaged_records_are_done_again(
    whole: tuple[Path, float], tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", str(whole[0]), str(folder)], check=True)
    first, sound, *others = sorted((folder / "records").iterdir())
    chosen = [first, *others[::7]]
    for path in chosen:
        file = path / ("rows.parquet" if damage == "flipped" else "record.json")
        old = file.read_bytes()
        if damage == "truncated":
            file.write_bytes(old[:-9])
        elif damage == "flipped":
            file.write_bytes(old[:50] + bytes([old[50] ^ 4]) + old[51:])
        else:
            file.write_bytes((sound / "record.json").read_bytes())
    assert not status(folder)[0].complete or damage == "flipped"  # the index counts, figures look
    summary = besiege.bench.results.summarise(folder)
    assert not summary.complete
    assert any(w.id == "DAMAGED" for w in summary.evaluations[0].warnings)
    assert siege(folder).complete
    assert content(folder) == content(whole[0])
    assert len(list((folder / "damaged").iterdir())) == len(chosen)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 kB of our own."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(place)], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(whole: tuple[Path, float], small_disk: Path) -> None:
    with pytest.raises(StoreError, match=r"is full: free some space.*Finished work is kept"):
        siege(small_disk / "run")
    done = stamps(small_disk / "run")
    assert done and not list((small_disk / "run").rglob(".partial*"))
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert siege(small_disk / "run").complete
    assert {key: stamps(small_disk / "run")[key] for key in done} == done
    assert content(small_disk / "run") == content(whole[0])


def test_a_read_only_folder(whole: tuple[Path, float], small_disk: Path) -> None:
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="cannot be written"):
        siege(small_disk / "run")


def test_a_run_folder_can_be_read_where_nothing_can_be_written(
    whole: tuple[Path, float], small_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    subprocess.run(["cp", "-r", str(whole[0]), str(small_disk / "run")], check=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert status(small_disk / "run")[0].complete
    assert besiege.bench.results.summarise(small_disk / "run").complete


def test_status_while_it_runs(tmp_path: Path) -> None:
    done: list[int] = []

    def watch(event: Event) -> None:
        told = status(tmp_path / "run")[0]
        done.append(sum(p.done for p in told.attacks))

    siege(tmp_path / "run", watch)
    assert done == sorted(done) and len(set(done)) > 10
    assert status(tmp_path / "run")[0].complete
