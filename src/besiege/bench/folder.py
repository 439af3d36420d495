"""Which run folders can be written, and what a disk refuses, in words."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from besiege.core.errors import StoreError

_DEEPEST = Path("records", "0" * 64, "images.safetensors")


class FullError(StoreError):
    """A disk without room: the work is incomplete, and the same command resumes it."""


class ReadOnlyError(StoreError):
    """A folder that may be read, but not written."""


def run_folder(out: Path | str) -> Path:
    """The folder of a run; one that cannot be written is refused, before any work.

    What is missing of its path is made with the first record. A text may begin with ``~``.

    Examples
    --------
    >>> run_folder("exp/l2=0.5").as_posix()
    'exp/l2=0.5'
    """
    if not isinstance(out, (str, Path)):
        raise StoreError(f"the run folder is {out!r}: give a path")
    if not os.fspath(out):
        raise StoreError("the run folder has no name: name one, or '.' for the current folder")
    folder = Path(os.path.expanduser(out)) if isinstance(out, str) else Path(out)
    try:
        above = Path.cwd() / folder
    except FileNotFoundError:
        raise StoreError("the current folder no longer exists: change to another one") from None
    missing = []
    while not os.path.lexists(above):
        missing.append(above.name)
        above = above.parent
    try:
        for path in (folder / _DEEPEST, *(above / name for name in missing)):
            _probe(path)  # names that are too long are found where the folders are there
    except ValueError:  # a zero byte
        raise StoreError(f"{str(folder)!r} cannot be a folder: choose another name") from None
    except OSError as problem:
        raise _refusal(folder, problem) from None
    if not above.is_dir():
        typed = folder if not missing else folder.parents[len(missing) - 1]
        raise StoreError(f"{typed} is not a folder: choose another name")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _refusal(folder, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    return folder


@contextmanager
def telling(place: Path) -> Iterator[None]:
    """Say what the disk refuses: finished records stay, and the same command resumes."""
    try:
        yield
    except OSError as problem:
        refused = _refusal(place, problem)
        stays = "What was finished stays; the same command resumes from there"
        raise type(refused)(f"{refused}. {stays}") from problem


def _probe(path: Path) -> None:
    """Raise what the system has against a path, except that it is not there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _refusal(place: Path, problem: OSError) -> StoreError:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return FullError(f"the disk that holds {place} is full: free some space")
    if problem.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyError(
            f"{place} cannot be written ({problem.strerror}): choose another folder, or change "
            "its permissions"
        )
    if problem.errno in (errno.ENOTDIR, errno.EEXIST):
        return StoreError(f"{problem.filename or place} is not a folder: choose another name")
    return StoreError(f"{place} cannot be written ({problem.strerror or problem})")
