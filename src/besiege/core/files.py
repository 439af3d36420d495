"""Reading plain files only, and writing files atomically."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from besiege.core.errors import DataError

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def offline() -> bool:
    """Whether the environment variable ``BESIEGE_OFFLINE`` forbids downloads."""
    return os.environ.get("BESIEGE_OFFLINE", "0") != "0"


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
    # The name is unique, so that two processes never write the same partial file.
    partial = path.with_name(f".partial-{os.getpid()}-{os.urandom(4).hex()}")
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
