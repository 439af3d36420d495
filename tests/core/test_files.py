from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from besiege.core.errors import DataError
from besiege.core.files import must_be_file, read_file


def test_a_file_has_a_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    os.symlink(tmp_path / "a", tmp_path / "link")
    assert must_be_file(tmp_path / "a") == must_be_file(tmp_path / "link") == 3


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind("socket")
        for path, kind in {
            "pipe": "a named pipe",
            "socket": "a socket",
            ".": "a folder",
            "/dev/zero": "a device",
            "nowhere": "cannot be read",
            "loop": "cannot be read",
            "x" * 5000: "cannot be read",
            "a\x00b": "cannot be read",
        }.items():
            with pytest.raises(DataError, match=kind):
                must_be_file(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    assert read_file(tmp_path / "file") == b"text"
    os.mkfifo(tmp_path / "pipe")
    for name, kind in {
        "pipe": "not a plain file",
        "nowhere": "No such file",
        ".": "not a plain",
    }.items():
        with pytest.raises(OSError, match=kind):
            read_file(tmp_path / name)
