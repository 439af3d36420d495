"""Downloads published data sets into the user's cache and checks them. Needs no torch."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import Request, urlopen

from besiege.core.errors import DataError, InputError
from besiege.core.files import offline
from besiege.data.catalogue import Entry, Remote, check_split, entry
from besiege.data.places import Place, cache_root, data_root, expected, locate

Watch = Callable[[str, int, int], None]
_CHUNK = 1 << 20
_PATIENCE = 20.0
"""Seconds without a byte after which a download is given up."""


class _OutOfReach(Exception):
    """An address did not answer, or its answer is not the published file."""


def fetch(name: str, split: str = "test", watch: Watch | None = None) -> Path:
    """Make sure that a named data set is on this machine.

    Files that are neither in the data root (``BESIEGE_DATA``) nor in the cache are downloaded into
    the cache and checked against their published checksum. With ``BESIEGE_OFFLINE`` set, nothing
    is ever downloaded.

    Parameters
    ----------
    name : str
        Name of the data set.
    split : {"test", "train"}
        Part of the data set.
    watch : callable, optional
        Called now and then with the file's name, the bytes received and the bytes expected.

    Returns
    -------
    Path
        The folder that holds the files.

    Examples
    --------
    >>> folder = fetch("mnist")  # doctest: +SKIP
    >>> fetch("digits")
    Traceback (most recent call last):
        ...
    besiege.core.errors.InputError: digits comes with besiege: there is nothing to fetch
    """
    known = entry(name)
    if known.shipped:
        raise InputError(f"{name} comes with besiege: there is nothing to fetch")
    return found(known, check_split(known, split), watch).folder


def found(known: Entry, split: str, watch: Watch | None = None) -> Place:
    """The files of a split, downloaded if they are not on this machine."""
    place = locate(known, split)
    if place is None:
        _download(known, split, watch)
        place = locate(known, split)
    if place is None:
        raise _missing(known, split, "the download is not complete")
    return place


def _download(known: Entry, split: str, watch: Watch | None) -> None:
    if known.remotes is None:
        raise _missing(known, split, "besiege does not download it")
    if offline():
        raise _missing(known, split, "BESIEGE_OFFLINE is set, so it is not downloaded")
    root = cache_root()
    try:
        for remote in known.remotes[split]:
            target = root / remote.folder / remote.file
            if target.is_file() and not remote.members:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with _partial(target) as partial:
                _from_any(known, remote, partial, watch)
                if remote.members:
                    _unpack(partial, remote, root)
                else:
                    os.replace(partial, target)
    except _OutOfReach as error:
        raise _missing(known, split, f"it cannot be downloaded ({error})") from None
    except OSError as error:
        raise DataError(
            f"{known.name} was being downloaded to {root}, but writing failed "
            f"({error.strerror or error}): free disk space there, or set XDG_CACHE_HOME to another "
            "folder"
        ) from None


def _from_any(known: Entry, remote: Remote, partial: Path, watch: Watch | None) -> None:
    """Write the file from the first address that has the published file."""
    reasons = []
    for address in known.addresses:
        try:
            _from_one(address + remote.file, remote, partial, watch)
            return
        except _OutOfReach as error:
            reasons.append(str(error))
    raise _OutOfReach("; ".join(reasons))


def _from_one(address: str, remote: Remote, partial: Path, watch: Watch | None) -> None:
    # The authors published an MD5 checksum; it detects damage, not tampering.
    digest = hashlib.md5(usedforsecurity=False)
    received = 0
    with partial.open("wb") as file:
        for chunk in _chunks(address):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            if watch is not None:
                watch(remote.file, received, remote.bytes)
    if digest.hexdigest() != remote.md5:
        raise _OutOfReach(
            f"{address} gave {received} bytes with MD5 {digest.hexdigest()}, but the published "
            f"file has {remote.md5}"
        )


def _chunks(address: str) -> Iterator[bytes]:
    """The content at an address; every network error becomes `_OutOfReach`."""
    try:
        # Some servers refuse urllib's own user agent.
        request = Request(address, headers={"User-Agent": "besiege"})
        with urlopen(request, timeout=_PATIENCE) as answer:
            while chunk := answer.read(_CHUNK):
                yield chunk
    except URLError as error:
        raise _OutOfReach(f"{address}: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _OutOfReach(f"{address}: {str(error) or type(error).__name__}") from None


def _unpack(archive: Path, remote: Remote, root: Path) -> None:
    """Extract the wanted members of an archive in one pass, and nothing else."""
    wanted = set(remote.members)
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() else None
                if source is not None and member.name in wanted:
                    _write(root / member.name, source)
                    wanted.remove(member.name)
    except (tarfile.TarError, EOFError) as error:
        raise _OutOfReach(f"{remote.file} cannot be unpacked: {error}") from None
    if wanted:
        raise _OutOfReach(f"{remote.file} lacks {', '.join(sorted(wanted))}")


def _write(target: Path, source: IO[bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _partial(target) as partial:
        with partial.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
        os.replace(partial, target)


@contextlib.contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A temporary name until the file is complete; another one in every process."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _missing(known: Entry, split: str, reason: str) -> DataError:
    """The error for a data set that cannot be fetched: which file to put where."""
    named = data_root()
    root = cache_root() if named is None else named
    path = expected(root, known, split)
    looked = f"set BESIEGE_DATA to a data root that holds {path.relative_to(root).parent}/"
    if named is not None:
        absent = "" if named.is_dir() else ", a folder that does not exist"
        looked = f"set BESIEGE_DATA (now {named}{absent}) to a data root that has it"
    remotes = (known.remotes or {}).get(split)
    if remotes is None:
        advice = f"its images are published at {known.addresses[0]}; {looked}"
    else:
        addresses = " and ".join(known.addresses[0] + remote.file for remote in remotes)
        into = f"and unpack it in {root}" if remotes[0].members else f"into {path.parent}"
        advice = f"download {addresses} {into}, or {looked}"
    return DataError(
        f"{known.name} ({split}) needs {path}, which does not exist, and {reason}: {advice}"
    )
