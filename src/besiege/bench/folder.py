"""Checks that a run folder can be written, and errors of the disk in words."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from besiege.core.errors import StoreError

_DEEPEST = Path("records", "0" * 64, "images.safetensors")


class FullError(StoreError):
    """The disk is full: the work is incomplete, and the same command resumes it."""


class ReadOnlyError(StoreError):
    """A folder that may be read, but not written."""


def run_folder(out: Path | str) -> Path:
    """The path of a run folder; one that cannot be written is refused before any work.

    Missing folders are created with the first record. A text may begin with ``~``.

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
            _probe(path)  # the system reports names that are too long
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


_STAYS = "Finished work is kept; run the same command again to resume"


@contextmanager
def telling(place: Path, advice: str = _STAYS) -> Iterator[None]:
    """Turn errors of the disk into a `StoreError` with an advice: by default how to resume."""
    try:
        yield
    except OSError as problem:
        refused = _refusal(place, problem)
        raise type(refused)(f"{refused}. {advice}" if advice else str(refused)) from problem


def _probe(path: Path) -> None:
    """Raise the system's error about a path, unless it only does not exist."""
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
