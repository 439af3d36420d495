"""Claims, and several processes that share a run folder."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.records import content, finished
from tests.children import forked, from_a_child

import besiege
from besiege.bench import claims as module
from besiege.bench.claims import Claims
from besiege.bench.request import requested
from besiege.bench.run import Run, read_run, update_run
from besiege.bench.single import measure
from besiege.bench.store import Store
from besiege.bench.work_estimate import Event
from besiege.core.errors import InputError
from besiege.core.owner import Owner, this

KEY = "a" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run")


def left_by(store: Store, owner: Owner | str) -> Path:
    path = store.folder / "claims" / KEY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(owner))
    return path


def test_a_claim_excludes_others_until_it_is_released(store: Store) -> None:
    def take() -> str:
        with Claims(store) as claims:
            return str(claims.take(KEY))

    with Claims(store) as mine:
        assert mine.take(KEY)
        assert from_a_child(take) == "False"
        mine.release(KEY)
        assert from_a_child(take) == "True"
        assert mine.take(KEY)
    assert not list((store.folder / "claims").iterdir())


def test_a_claim_of_a_killed_process_is_taken_over(store: Store) -> None:
    def hold() -> None:
        with Claims(store) as claims:
            assert claims.take(KEY)
            os.write(ours, b"x")
            signal.pause()

    theirs, ours = os.pipe()
    child = forked(hold)
    os.read(theirs, 1)
    with Claims(store) as mine:
        assert not mine.take(KEY)
        os.kill(child, signal.SIGKILL)
        while not mine.take(KEY):  # also before its parent has waited for it
            time.sleep(0.001)
    os.waitpid(child, 0)


def test_another_process_with_the_same_number_is_another_one(store: Store) -> None:
    left_by(store, replace(this(), birth="1"))
    with Claims(store) as mine:
        assert mine.take(KEY)


@pytest.mark.parametrize("owner", [replace(this(), machine="0" * 12), ""])
def test_other_machines_are_judged_by_their_silence(store: Store, owner: Owner | str) -> None:
    path = left_by(store, owner)
    with Claims(store) as mine:
        assert not mine.take(KEY)
        long_ago = time.time() - module.SILENCE - 60
        os.utime(path, (long_ago, long_ago))
        assert mine.take(KEY)


def test_claims_that_were_left_are_swept(store: Store) -> None:
    path = left_by(store, replace(this(), birth="1"))
    with Claims(store):
        assert not path.exists()


def test_a_held_claim_is_touched(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.01)
    with Claims(store) as mine:
        mine.take(KEY)
        path = store.folder / "claims" / KEY
        os.utime(path, (0, 0))
        last = time.monotonic() + 30
        while path.stat().st_mtime == 0 and time.monotonic() < last:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


def test_a_claim_that_was_taken_over_is_not_released(store: Store) -> None:
    with Claims(store) as mine:
        mine.take(KEY)
        path = left_by(store, replace(this(), machine="0" * 12))
    assert path.exists()


def test_no_change_of_the_run_is_lost(store: Store, evaluated: Path) -> None:
    """Processes that change run.json at the same moment."""
    run = read_run(Store(evaluated))
    assert run is not None
    (plan,) = run.plans

    def add(seed: int) -> Callable[[], Run]:
        def change(old: Run | None) -> Run:
            time.sleep(0.02)  # between reading and writing
            request = plan.request.model_copy(update={"seed": seed})
            return (old or run).with_plan(plan.model_copy(update={"request": request}))

        return lambda: update_run(store, change)

    for child in [forked(add(seed)) for seed in range(1, 7)]:
        assert os.waitpid(child, 0)[1] == 0
    both = read_run(store)
    assert both is not None and {one.request.seed for one in both.plans} == set(range(7))


def siege(folder: Path, watch: Callable[[Event], None] | None = None) -> besiege.Evaluation:
    return besiege.evaluate(
        "zoo:digits-natural",
        "digits",
        threat="linf:0.1",
        attacks="fgsm, pgd(steps=8), mim, pgd(steps=12, loss=margin)",
        count=20,
        shard=4,
        curve=False,
        out=folder,
        watch=watch,
    )


def test_two_evaluations_at_once_share_the_work(tmp_path: Path) -> None:
    assert siege(tmp_path / "alone").complete
    folder = tmp_path / "run"
    children = [forked(lambda: siege(folder)) for _ in range(2)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert siege(folder).complete
    assert content(folder) == content(tmp_path / "alone")
    done = finished(folder)
    assert len(done) == 2 and all(len(keys) > 5 for keys in done.values()), "both worked"
    assert set(Counter(key for keys in done.values() for key in keys).values()) == {1}
    assert not list((folder / "claims").iterdir()) and not list(folder.rglob(".partial*"))


@pytest.mark.slow  # as below, with two of four
def test_one_of_two_is_killed_inside_a_task(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def kill(event: Event) -> None:
        if event.done > 0.3 * event.total:
            os.kill(os.getpid(), signal.SIGKILL)

    children = [forked(lambda watch=watch: siege(folder, watch)) for watch in (kill, None)]  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in children] == [signal.SIGKILL, 0]
    assert siege(folder).complete
    keys = Counter(key for keys in finished(folder).values() for key in keys)
    assert set(keys.values()) == {1}
    assert not list((folder / "claims").iterdir()) and not list(folder.rglob(".partial*"))


def test_the_journal_has_a_line_for_every_task(evaluated: Path) -> None:
    ((_, keys),) = finished(evaluated).items()
    assert sorted(keys) == sorted(Store(evaluated).present())
    (path,) = (evaluated / "journal").iterdir()
    assert json.loads(path.read_text().splitlines()[0])["seconds"] >= 0


def part(folder: Path, number: int, watch: Callable[[Event], None] | None = None) -> object:
    """One of four processes with the same requests; texts of two threats."""
    requests = [
        requested(
            "zoo:digits-natural",
            "digits",
            threat=threat,
            attacks="fgsm, pgd(steps=8)",
            count=24,
            shard=4,
            curve=False,
        )
        for threat in ("linf:0.1", "l2:0.5")
    ]
    return measure(requests, out=folder, part=(number, 4), watch=watch)


def test_four_parts_of_which_two_are_killed_and_started_again(tmp_path: Path) -> None:
    part(tmp_path / "alone", 1)
    folder = tmp_path / "run"

    def kill(event: Event) -> None:
        if event.done > 0.1 * event.total:
            os.kill(os.getpid(), signal.SIGKILL)

    fate = {1: kill, 2: None, 3: kill, 4: None}
    running = {n: forked(lambda n=n: part(folder, n, fate[n])) for n in fate}  # type: ignore[misc]
    for number in (1, 3):
        assert os.waitpid(running[number], 0)[1] == signal.SIGKILL
        running[number] = forked(lambda n=number: part(folder, n))  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in running.values()] == [0] * 4
    assert content(folder) == content(tmp_path / "alone")
    done = finished(folder)
    assert set(Counter(key for keys in done.values() for key in keys).values()) == {1}
    assert not list((folder / "claims").iterdir()) and not list(folder.rglob(".partial*"))
    firsts = [keys[0] for keys in done.values()]
    assert len(set(firsts)) == len(firsts) >= 4, "each begins at another place"


@pytest.mark.parametrize("wrong", [(5, 4), (0, 4), (1, 0), (-1, -1)])
def test_a_part_that_there_is_not_is_refused(tmp_path: Path, wrong: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="the part is"):
        measure([], out=tmp_path / "run", part=wrong)
