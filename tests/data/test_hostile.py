"""Files that are damaged, endless, or larger than they look: refused before they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzzing.files import fill

from besiege.core.errors import BesiegeError, DataError
from besiege.data import load


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    fill(folder)
    return folder


ARCHIVES = {
    "huge": "announces 400,000,000,000 bytes and has 0",
    "bomb": "unpacks .* bytes to 268,435,",
    "objects": "Python objects",
    "checksum": "damaged",
    "cut": "damaged",
    "void": "damaged",
    "noise": "damaged",
    "no_header": "damaged",
    "bad_header": "damaged",
    "version": "damaged",
    "single": "only one array",
    "long": "announces 256 bytes and has 1,000",
    "minus_shape": "announces",
    "wide": "damaged",
    "scalar": "shape",
    "structure": "not ndarray",
    "nan": "NaN",
    "pipe": "a named pipe",
    "zero": "a device",
    "loop": "does not exist",
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_refused_by_its_header(files: Path, name: str) -> None:
    with pytest.raises(DataError, match=ARCHIVES[name]):
        load(files / f"{name}.npz")


def test_an_array_must_fit_into_memory(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 1 if name == "SC_PHYS_PAGES" else 1024)
    with pytest.raises(DataError, match="GiB of memory, and this machine has"):
        load(files / "good.npz")


FOLDERS = {
    "pipe": "q.png is a named pipe",
    "socket": "q.png is a socket",
    "zero_device": "q.png is a device",
    "folder": "",
    "loop": "cannot be read",
    "large": "cannot be read as an image",
    "wide": "9000x9000 pixels",
    "cut": "cannot be read as an image",
    "noise": "cannot be read as an image",
    "void": "cannot be read as an image",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_no_image_is_refused_by_its_kind_or_header(files: Path, name: str) -> None:
    if not FOLDERS[name]:
        assert len(load(files / f"with_{name}")) == 4
        return
    with pytest.raises(DataError, match=FOLDERS[name]):
        load(files / f"with_{name}")


@pytest.mark.parametrize("options", [{"resize": 100_000}, {"resize": (10**6, 10**6), "crop": 8}])
def test_images_are_not_made_larger_than_memory(files: Path, options: dict[str, Any]) -> None:
    with pytest.raises(BesiegeError, match="pass a smaller resize"):
        load(files / "pictures", **options)


def test_a_list_of_long_lines_is_read_at_once(files: Path) -> None:
    with pytest.raises(DataError, match="lists"):
        load(files / "listed_long")
