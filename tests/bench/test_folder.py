from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest

import besiege
from besiege.bench.folder import FullError, ReadOnlyError, run_folder, telling
from besiege.bench.store import DamagedError, Record, Store
from besiege.core.errors import StoreError


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", "has no name"),
        ("file/below", "file is not a folder"),
        ("file", "file is not a folder"),
        ("nowhere/below", "nowhere is not a folder"),
        ("zero\0byte", "cannot be a folder"),
        ("a" * 256, "too long"),
        ("new/" + "a" * 256, "too long"),
        ("d/" * 2030 + "x", "too long"),
    ],
)
def test_folders_that_cannot_be_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "nowhere").symlink_to("gone")
    with pytest.raises(StoreError, match=said):
        besiege.evaluate("no model", "no data", threat="linf:0.1", out=out)
    assert sorted(os.listdir(tmp_path)) == ["file", "nowhere"]


def test_a_folder_below_one_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def access(path: object, mode: int) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(ReadOnlyError, match="Permission denied"):
        run_folder(tmp_path / "missing" / "below")
    assert asked == [tmp_path]


def test_no_folder_is_found_from_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreError, match="no longer exists"):
        run_folder("run")


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(StoreError, match="the run folder is 3: give a path"):
        run_folder(3)  # type: ignore[arg-type]  # a mistake


def test_a_text_is_expanded_and_a_path_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_folder("~/x") == tmp_path / "x"
    assert run_folder(Path("~/x")) == Path("~/x")
    assert run_folder("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_what_a_disk_refuses_has_a_type(tmp_path: Path) -> None:
    for number, kind in ((errno.ENOSPC, FullError), (errno.EROFS, ReadOnlyError)):
        with pytest.raises(kind, match="Finished work is kept"), telling(tmp_path):
            raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "instead", ["file", "link", "folder for its record.json", "pipe for its record.json"]
)
def test_what_lies_in_place_of_a_record_is_set_aside(tmp_path: Path, instead: str) -> None:
    store = Store(tmp_path / "run")
    record, rows = Record({"kind": "judge"}), {"sample": np.arange(3)}
    place = store.records / record.key
    store.records.mkdir(parents=True)
    if instead == "file":
        place.write_text("not a folder")
    elif instead == "link":
        place.symlink_to("nowhere")
    elif instead.startswith("pipe"):
        place.mkdir()
        os.mkfifo(place / "record.json")
    else:
        (place / "record.json").mkdir(parents=True)
    with pytest.raises(DamagedError, match=r"is incomplete|cannot be read"):
        store.read(record.key)
    store.commit(record, rows)
    assert store.rows([record.key])["sample"].tolist() == [0, 1, 2]
    assert len(list((store.folder / "damaged").iterdir())) == 1


def test_rows_need_no_open_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    keys = [store.commit(Record({"n": n}), {"sample": np.array([n])}) for n in range(40)]
    store.rows(keys[:1])  # what is imported is open by now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 4, hard))
    try:
        found = store.rows(keys)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found["sample"].tolist() == list(range(40))
