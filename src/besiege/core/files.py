"""Reading plain files only, writing files atomically, and removing what the killed have left."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from besiege.core.errors import DataError
from besiege.core.owner import Owner, this

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def offline() -> bool:
    """Whether the environment variable ``BESIEGE_OFFLINE`` forbids downloads."""
    return os.environ.get("BESIEGE_OFFLINE", "0") != "0"


def cache_folder() -> Path | None:
    """The folder of besiege in the user's cache; None for a user without a home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG standard ignores relative paths.
    if base and Path(base).is_absolute():
        return Path(base) / "besiege"
    try:
        return Path.home() / ".cache" / "besiege"
    except RuntimeError:
        return None


def must_be_file(path: str | os.PathLike[str]) -> int:
    """The size of a plain file in bytes; anything else is refused.

    Reading a pipe would wait for a writer, and reading a device may never end.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{os.fspath(path)} cannot be read ({why}): check the path") from None
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise DataError(f"{os.fspath(path)} is {kind}, not a file: remove it, or name a file")
    return status.st_size


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a plain file; a pipe or a device is refused without waiting for it.

    Raises
    ------
    OSError
        As opening does; with EINVAL for a path that is neither a file nor a folder.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "not a plain file", os.fspath(path))
    with open(handle, "rb") as file:
        return file.read()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash or power cut it has its old or its new content.

    Raises
    ------
    OSError
        Where it cannot be written; the file then has its old content.
    """
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write it atomically: its new content appears when the block has ended.

    Raises
    ------
    OSError
        Where it cannot be written; the file then has its old content.
    """
    partial = partial_in(path.parent)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # The rename survives a power cut only once the folder is flushed, where folders can be.
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


PARTIAL = ".partial-"
"""How the names of files and folders begin that are not complete yet."""
FORGOTTEN = 3600.0
"""Seconds after which a partial file of another machine counts as left behind."""


def partial_in(folder: Path) -> Path:
    """A new name in a folder for something that is renamed once it is whole.

    It is unique, and names the process that writes, so that others know when that one is gone.
    """
    return folder / f"{PARTIAL}{this()}-{os.urandom(4).hex()}"


def sweep(folders: Iterable[Path]) -> None:
    """Remove the partial files and folders in some folders whose processes have ended."""
    for folder in folders:
        for left in folder.glob(f"{PARTIAL}*"):
            owner = Owner.parse(left.name.removeprefix(PARTIAL).partition("-")[0])
            gone = True if owner is None else owner.gone  # earlier releases named none
            if age_of(left) > FORGOTTEN if gone is None else gone:
                shutil.rmtree(left, ignore_errors=True)
                with suppress(OSError):
                    left.unlink(missing_ok=True)


def age_of(path: Path) -> float:
    """Seconds since a file was changed, by the clock of its file system; 0 where unknown.

    Machines that share a disk do not share a clock.
    """
    probe = partial_in(path.parent)
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
