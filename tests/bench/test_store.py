from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from besiege.bench import index, locking
from besiege.bench.store import DamagedError, Record, Store, key_of
from besiege.core.errors import Finding, StoreError
from besiege.core.owner import this

ROWS = {"sample": np.arange(3), "success": np.array([True, False, True])}
IMAGES = {"images": np.ones((2, 1, 2, 2), np.float32)}
FILES = {"images.safetensors": save(IMAGES)}


def record(number: int = 0, **more: object) -> Record:
    return Record(
        {"kind": "judge", "number": number},
        {"rows": 3, "correct": 3, "broken": 2},
        (Finding("W14", "seen", "advice", "stop"),),
        {"seconds": 1.5},
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run")


def test_a_record_reads_back_as_it_was_written(store: Store) -> None:
    key = store.commit(record(), ROWS, FILES)
    assert key == key_of({"number": 0, "kind": "judge"})
    found = store.read(key, whole=True)
    assert found is not None
    assert found.identity == record().identity
    assert found.totals == record().totals
    assert found.findings == record().findings
    rows = store.rows([key])
    assert rows["sample"].tolist() == [0, 1, 2]
    assert rows["success"].dtype == np.bool_
    assert rows["record"].tolist() == [key] * 3
    assert rows["row"].tolist() == [0, 1, 2]
    assert np.array_equal(store.images(key)["images"], IMAGES["images"])
    assert store.present() == {key}


def test_a_stop_that_was_written_as_an_error_is_a_stop(store: Store) -> None:
    written = Finding("W14", "seen", "advice", "error")  # type: ignore[arg-type]  # as before
    key = store.commit(replace(record(), findings=(written,)), ROWS)
    found = store.read(key, whole=True)
    assert found is not None and found.findings == record().findings
    path = store.records / key / "record.json"
    assert '"error"' in path.read_text(), "what is on the disk stays"
    path.write_text(path.read_text().replace('"error"', '"stop"'))
    with pytest.raises(DamagedError, match="changed"):
        store.read(key)


def test_rows_come_in_the_order_of_the_keys(store: Store) -> None:
    keys = [store.commit(record(n), {"sample": np.array([n, n + 100])}) for n in range(12)]
    some = [keys[n] for n in (7, 0, 11)]
    assert store.rows(some)["sample"].tolist() == [7, 107, 0, 100, 11, 111]


def test_not_finite_numbers_and_empty_tables_survive(store: Store) -> None:
    values = np.array([np.nan, np.inf, -np.inf])
    found = store.rows([store.commit(record(), {"x": values})])["x"]
    assert np.array_equal(found, values, equal_nan=True)
    empty = store.rows([store.commit(record(1), {"x": np.zeros(0, np.int64)})])
    assert empty.count == 0 and empty["x"].dtype == np.int64


def test_a_record_is_written_once_and_a_failure_gives_way(store: Store) -> None:
    failed = store.commit(record(failure={"type": "MemoryError", "message": "too large"}))
    assert store.read(failed).failure == {"type": "MemoryError", "message": "too large"}  # type: ignore[union-attr]
    assert store.commit(record(), ROWS) == failed
    assert store.read(failed).failure is None  # type: ignore[union-attr]
    # What is there stays, whoever comes later.
    store.commit(record(), {"sample": np.array([9])})
    assert store.rows([failed])["sample"].tolist() == [0, 1, 2]


def test_a_record_of_the_first_schema_is_read(tmp_path: Path) -> None:
    """The stored record of schema 1: it must stay readable for the whole major version."""
    old = Path(__file__).parent / "schema1"
    store = Store(old)
    (key,) = store.present()
    found = store.read(key, whole=True)
    assert found is not None
    assert found.identity["kind"] == "judge"
    assert found.totals["broken"] == 2
    assert (found.findings[0].id, found.findings[0].level) == ("W14", "stop")
    assert store.rows([key])["success"].tolist() == [True, False, True]
    assert store.images(key)["images"].shape == (2, 1, 2, 2)


@pytest.mark.parametrize("name", ["record.json", "rows.parquet", "images.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "removed"])
def test_a_damaged_record_is_noticed(store: Store, name: str, damage: str) -> None:
    key = store.commit(record(), ROWS, FILES)
    path = store.records / key / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    elif damage == "flipped":
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        path.write_bytes(content[:middle] + flipped + content[middle + 1 :])
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    with pytest.raises(DamagedError, match=key[:12]):
        store.read(key, whole=True)
    aside = store.set_aside(key)
    assert aside is not None and aside.is_dir() and store.read(key) is None


def test_every_bit_of_a_record_counts(store: Store) -> None:
    key = store.commit(record())
    path = store.records / key / "record.json"
    content = json.loads(path.read_text())
    content["totals"]["broken"] = 0
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedError, match="changed after it was written"):
        store.read(key)


def test_foreign_records_are_noticed(store: Store) -> None:
    key = store.commit(record())
    os.rename(store.records / key, store.records / ("0" * 64))
    with pytest.raises(DamagedError, match="another task"):
        store.read("0" * 64)
    (store.records / "notes").mkdir()
    with pytest.raises(DamagedError, match="incomplete"):
        store.read("notes")
    other = store.commit(record(2))
    path = store.records / other / "record.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(DamagedError, match="schema 99"):
        store.read(other)


def test_what_a_killed_writer_left_is_swept(store: Store) -> None:
    with store.writing():
        pass
    dead = replace(this(), birth="1")
    (store.records / ".partial-dead").mkdir()
    (store.records / f".partial-{dead}-12345678").mkdir()
    (store.folder / ".partial-file").write_text("x")
    with store.writing():
        assert not list(store.folder.rglob(".partial*"))


def test_what_others_are_writing_is_not_swept(store: Store) -> None:
    with store.writing():
        pass
    elsewhere = replace(this(), machine="0" * 12)
    mine, theirs = (store.records / f".partial-{one}-12345678" for one in (this(), elsewhere))
    mine.mkdir()
    theirs.mkdir()
    store.sweep()
    assert mine.exists() and theirs.exists()
    os.utime(theirs, (0, 0))  # nobody writes a record for an hour
    store.sweep()
    assert mine.exists() and not theirs.exists()


def test_two_processes_write_at_once(store: Store) -> None:
    code = (
        f"from besiege.bench.store import Store\nwith Store({str(store.folder)!r}).writing(): pass"
    )
    with store.writing():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_lock_of_a_folder_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "PATIENCE", 0.01)
    refused = pytest.raises(StoreError, match="another process holds")
    with store.updating(), refused, store.updating():
        pass
    with store.updating():
        pass


def test_a_result_that_arrives_meanwhile_survives(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process replaces a failure between our look at it and its removal."""
    key = store.commit(record(failure={"type": "E", "message": "m"}))
    take = Store._take

    def late(self: Store, key: str, target: Path) -> bool:
        monkeypatch.setattr(Store, "_take", take)
        Store(self.folder).commit(record(), ROWS)
        return take(self, key, target)

    monkeypatch.setattr(Store, "_take", late)
    store.commit(record(), {"sample": np.array([9])})
    assert store.rows([key])["sample"].tolist() == [0, 1, 2]
    monkeypatch.setattr(Store, "_take", late)
    assert store.set_aside("0" * 64) is None, "another process was faster"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(StoreError, match="is not a folder"), Store(tmp_path / "run").writing():
        pass


def test_the_index_follows_the_records(store: Store) -> None:
    keys = [store.commit(record(n), ROWS) for n in range(3)]
    assert set(index.lines(store)) == set(keys)
    more = store.commit(record(7, failure={"type": "E", "message": "m"}))
    assert index.lines(store)[more].failure == "E: m"
    store.commit(record(7), ROWS)
    assert index.lines(store)[more].failure is None
    store.set_aside(keys[0])
    assert set(index.lines(store)) == {*keys[1:], more}
    path = index.index_path(store.folder)
    assert path is not None and path.exists() and not (store.folder / "index.sqlite").exists()
    path.write_bytes(b"no database")
    assert set(index.lines(store)) == {*keys[1:], more} and not path.exists()
    assert set(index.lines(store)) == {*keys[1:], more}
    assert index.lines(store)[more].totals == {"rows": 3, "correct": 3, "broken": 2}


def test_a_damaged_record_stands_in_the_index_as_one(store: Store) -> None:
    key = store.commit(record(), ROWS)
    (store.records / key / "record.json").write_text("{")
    assert "cannot be read" in (index.lines(store)[key].damaged or "")
    store.set_aside(key)
    store.commit(record(), ROWS)
    assert index.lines(store)[key].damaged is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_reads_writes_and_ends(tmp_path: Path) -> None:
    script = (
        "import os, sys\nimport numpy as np\nfrom besiege.bench.parquet import packed, unpacked\n"
        "rows = {'sample': np.arange(5)}\nfile = packed(rows)\nchild = os.fork()\n"
        "assert unpacked([('k', packed(rows))])['sample'].tolist() == [0, 1, 2, 3, 4]\n"
        "sys.exit(0 if child == 0 else os.waitpid(child, 0)[1])"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
