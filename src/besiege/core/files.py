"""Files: whether one can be read, found out before it is opened, and writing one as a whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from besiege.core.errors import DataError

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def must_be_file(path: str | os.PathLike[str]) -> int:
    """The size of a file in bytes; what is no plain file is refused.

    Reading a pipe waits for somebody to write, and a device may never end.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{os.fspath(path)} cannot be read ({why}): check the path") from None
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise DataError(f"{os.fspath(path)} is {kind}, not a file: remove it, or name a file")
    return found.st_size


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a plain file; a pipe or a device is refused, never waited for.

    Raises
    ------
    OSError
        As opening does; with EINVAL for what is neither a file nor a folder.
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
    """Write a file so that it is there as a whole or not at all, a power cut included.

    Raises
    ------
    OSError
        Where it cannot be written; the file is then what it was before.
    """
    # Named after the process, so that two never write the same one.
    partial = path.with_name(f".partial-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # The new name is only safe once its folder is, where the system can say so of folders.
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
