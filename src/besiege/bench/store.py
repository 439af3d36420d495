"""The store: a run folder of immutable records, each written atomically.

A record is a folder named by the SHA-256 of its identity. It is written under a temporary name,
flushed to the disk and renamed, so a reader never sees an incomplete one. Nothing here needs torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import load as read_arrays

from besiege.bench.folder import telling
from besiege.bench.locking import locked
from besiege.bench.parquet import packed, unpacked
from besiege.core.errors import Finding, StoreError
from besiege.core.files import partial_in, read_file, replace_file, sweep
from besiege.metrics.rows import Column, Rows

SCHEMA = 1
"""Increased when records change such that older ones must not be reused."""
_READABLE = frozenset({1})
RECORD, ROWS, IMAGES = "record.json", "rows.parquet", "images.safetensors"
LOGITS = "logits.safetensors"
RELEASED, KEPT = "released.json", "kept.safetensors"
"""Beside a record whose images were let go: that they were, and those that pages show."""


class ReleasedError(StoreError):
    """Images that were let go on purpose; the seed of their record makes them again."""


class DamagedError(StoreError):
    """A record that was changed after it was written."""


def key_of(identity: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of an identity."""
    return hashlib.sha256(canonical(identity)).hexdigest()


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces; equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


@dataclass(frozen=True)
class Record:
    """The stored result of a task.

    Attributes
    ----------
    identity : dict
        All that decides the result; its hash is the key.
    totals : dict
        Sums over the rows, for `status`.
    findings : tuple of Finding
        Warnings of craft and judge.
    provenance : dict
        How it was computed: seconds, device, versions. Not part of the identity.
    failure : dict, optional
        The error that was raised instead of a result: ``type`` and ``message``.
    files : dict
        SHA-256 of each other file of the record.
    """

    identity: Mapping[str, Any]
    totals: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    failure: Mapping[str, str] | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key_of(self.identity)

    def to_json(self) -> dict[str, Any]:
        """The content of ``record.json``, with a digest over all of it."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "key": self.key,
            "identity": self.identity,
            "totals": self.totals,
            "findings": [vars(finding) for finding in self.findings],
            "provenance": self.provenance,
            "failure": self.failure,
            "files": self.files,
        }
        return {**content, "digest": hashlib.sha256(canonical(content)).hexdigest()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Record:
        """Read the content that `to_json` wrote; anything else is damaged."""
        if content.get("schema") not in _READABLE:
            raise DamagedError(
                f"has the schema {content.get('schema')!r}, but this release reads "
                f"{', '.join(map(str, sorted(_READABLE)))}: it was written by another one"
            )
        digest = content.pop("digest", None)
        if digest != hashlib.sha256(canonical(content)).hexdigest():
            raise DamagedError("has a record.json that was changed after it was written")
        record = cls(
            content["identity"],
            content["totals"],
            tuple(map(Finding.stored, content["findings"])),
            content["provenance"],
            content["failure"],
            content["files"],
        )
        if record.key != content["key"]:
            raise DamagedError("does not have the key of its identity")
        return record


class Store:
    """The records of a run folder.

    Parameters
    ----------
    folder : path
        The run folder; it need not exist before the first commit.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.records = self.folder / "records"
        self._sound: dict[str, Record] = {}

    # Reading.

    def present(self) -> set[str]:
        """Keys of all committed records, sound or not."""
        try:
            return {e.name for e in os.scandir(self.records) if not e.name.startswith(".")}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def read(self, key: str, *, whole: bool = False, files: Iterable[str] = ()) -> Record | None:
        """The record of a key; None without one.

        `files` are compared with their digests now, with `whole` all of them; other files are
        compared when they are read.
        """
        found = self.with_files(key, None if whole else files)
        return None if found is None else found[0]

    def sound(self, key: str) -> Record | None:
        """The record of a key if all its files are unchanged and it is no failure, else None.

        A sound record is read only once.
        """
        if key not in self._sound:
            try:
                record = self.read(key, whole=True)
            except DamagedError:
                return None
            if record is None or record.failure is not None:
                return None
            self._sound[key] = record
        return self._sound[key]

    def files(self, key: str) -> dict[str, bytes]:
        """The content of all files of a record, ``record.json`` among them, for `place`."""
        folder = self.records / key
        names = [one.name for one in os.scandir(folder) if one.is_file()]
        return {name: read_file(folder / name) for name in names}

    def failed(self, key: str) -> bool:
        """Whether the record of a key is that of a failure."""
        if key in self._sound:
            return False
        try:
            record = self.read(key)
        except DamagedError:
            return False
        return record is not None and record.failure is not None

    def rows(self, keys: Iterable[str]) -> Rows:
        """The rows of some records, in the order of the keys.

        The columns ``record`` and ``row`` say where each row is stored.
        """
        tables = []
        for key in keys:
            found = self.with_files(key, [ROWS])
            if found is None:
                raise StoreError(f"there is no record {key[:12]} in {self.folder}")
            if ROWS in found[1]:
                tables.append((key, found[1][ROWS]))
        return Rows(unpacked(tables))

    def images(self, key: str) -> dict[str, Column]:
        """The image arrays of a record."""
        found = self.with_files(key, [IMAGES])
        if found is None or IMAGES not in found[0].files:
            raise StoreError(f"there are no images with the record {key[:12]} in {self.folder}")
        if IMAGES not in found[1]:
            raise ReleasedError(
                f"the images of the record {key[:12]} in {self.folder} were let go, as its "
                'benchmark says ([store] images): run it into another folder with images = "all", '
                "where the same seed makes the same images"
            )
        return dict(read_arrays(found[1][IMAGES]))

    def logits(self, key: str) -> Column | None:
        """The clean logits of a record; None without, as of records of earlier releases."""
        found = self.with_files(key, [LOGITS])
        return None if not found or not found[1] else read_arrays(found[1][LOGITS])["logits"]

    def shown_images(self, key: str) -> dict[str, Column]:
        """The image arrays of a record, or of its rows that were kept when others were let go."""
        try:
            return self.images(key)
        except ReleasedError:
            content = _kept(self.records / key)
            if content is None:
                raise
            return dict(read_arrays(content))

    def released(self, key: str) -> bool:
        """Whether the images of a record were let go."""
        folder = self.records / key
        return (folder / RELEASED).exists() and not (folder / IMAGES).exists()

    def with_files(
        self, key: str, files: Iterable[str] | None
    ) -> tuple[Record, dict[str, bytes]] | None:
        """A record and the content of some of its files, or of all, compared with their digests.

        Files that were let go are left out. None without a record.
        """
        return self._read_in(self.records / key, key, files)

    def _read_in(
        self, folder: Path, key: str, files: Iterable[str] | None
    ) -> tuple[Record, dict[str, bytes]] | None:
        about = f"the record {key[:12]} in {self.folder}"
        try:
            content = json.loads(read_file(folder / RECORD))
            if not isinstance(content, dict):
                raise DamagedError("has a record.json that is no record")
            record = Record.from_json(content)
            if content["key"] != key:
                raise DamagedError("is the record of another task")
            wanted = record.files if files is None else set(files).intersection(record.files)
            there = [name for name in wanted if not _is_released(folder, name, record)]
            return record, {name: _checked(folder, name, record) for name in there}
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if not os.path.lexists(folder):
                return None
            raise DamagedError(f"{about} is incomplete") from None
        except OSError as problem:
            kind = DamagedError if problem.errno == errno.EINVAL else StoreError
            raise kind(f"{about} cannot be read ({problem.strerror})") from None
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise DamagedError(f"{about} cannot be read ({type(problem).__name__})") from None
        except DamagedError as problem:
            raise DamagedError(f"{about} {problem}") from None

    # Writing.

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Prepare the folder for records; any number of processes may write at once.

        What killed processes left is removed, at the begin and at the end.
        """
        with telling(self.folder):
            self.records.mkdir(parents=True, exist_ok=True)
            _flush(self.folder)
        self.sweep()
        try:
            yield
        finally:
            self.sweep()

    def sweep(self) -> None:
        """Remove partial files of processes that have ended."""
        with suppress(OSError):
            inside = [Path(one.path) for one in os.scandir(self.folder) if one.is_dir()]
            sweep([self.folder, *inside])

    def updating(self) -> AbstractContextManager[None]:
        """Hold the lock of the folder for a moment: to read a file of it, and write it again."""
        return locked(self.folder)

    def commit(
        self,
        record: Record,
        rows: Mapping[str, Column] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> str:
        """Write a record atomically, with its rows and other files, and return its key.

        An existing failure is replaced; an existing result stays.
        """
        contents = dict(files or {}) | ({} if rows is None else {ROWS: packed(rows)})
        digests = {n: hashlib.sha256(contents[n]).hexdigest() for n in sorted(contents)}
        whole = Record(**{**vars(record), "files": digests})
        text = json.dumps(whole.to_json(), indent=1, sort_keys=True, allow_nan=False)
        return self.place(record.key, contents | {RECORD: text.encode()})

    def place(self, key: str, contents: Mapping[str, bytes]) -> str:
        """Write the files of a record atomically, ``record.json`` among them; as `commit` does."""
        final = self.records / key
        partial = partial_in(self.records)
        with telling(self.folder):
            try:
                partial.mkdir(parents=True)
                for name, content in contents.items():
                    (partial / name).write_bytes(content)
                for path in partial.iterdir():
                    _flush(path)
                _flush(partial)
                self._forget_failure(key)
                try:
                    os.rename(partial, final)
                except OSError as problem:
                    if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                _flush(self.records)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return key

    def _forget_failure(self, key: str) -> None:
        """Move a failure, or something damaged, out of the way of a result."""
        try:
            old, target = self.read(key, whole=True), partial_in(self.records)
            if old is None or old.failure is None:
                return
        except DamagedError:
            target = self._place_aside(key)
        if not self._take(key, target):
            return
        if self._is_result(target, key):  # another process has placed it meanwhile
            with suppress(OSError):  # an equal one may be there again
                os.rename(target, self.records / key)
        elif target.parent == self.records:
            shutil.rmtree(target)

    def discard(self, key: str) -> None:
        """Remove a record whose images are made again."""
        gone = partial_in(self.records)
        with telling(self.folder):
            self._sound.pop(key, None)
            if self._take(key, gone):
                shutil.rmtree(gone)

    def release(self, key: str, kept: bytes | None) -> None:
        """Let the images of a record go, and write down that they were; `kept` are some of them.

        Every step leaves a sound record: the images go last.
        """
        record = self.sound(key)
        if record is None or IMAGES not in record.files:
            return
        folder = f"records/{key}"
        with telling(self.folder):
            if kept is not None:
                self.write_file(f"{folder}/{KEPT}", kept)
            about: dict[str, Any] = {
                "files": {IMAGES: record.files[IMAGES]},
                "kept": None if kept is None else hashlib.sha256(kept).hexdigest(),
            }
            self.write_file(f"{folder}/{RELEASED}", json.dumps(about, indent=1).encode())
            (self.folder / folder / IMAGES).unlink(missing_ok=True)

    def set_aside(self, key: str) -> Path | None:
        """Move a record to ``damaged/``, so that its task can be done again; None if it is gone."""
        with telling(self.folder):
            self._sound.pop(key, None)
            target = self._place_aside(key)
            return target if self._take(key, target) else None

    def _place_aside(self, key: str) -> Path:
        aside = self.folder / "damaged"
        aside.mkdir(exist_ok=True)
        return aside / f"{key[:16]}-{os.urandom(3).hex()}"

    def _take(self, key: str, target: Path) -> bool:
        """Rename what is at a key, so that no reader sees it incomplete; False if it is gone."""
        try:
            os.rename(self.records / key, target)
        except FileNotFoundError:
            return False
        return True

    def _is_result(self, folder: Path, key: str) -> bool:
        try:
            found = self._read_in(folder, key, None)
        except DamagedError:
            return False
        return found is not None and found[0].failure is None

    def clear(self) -> None:
        """Remove all records: of a folder that holds them for a moment only."""
        self._sound.clear()
        shutil.rmtree(self.records, ignore_errors=True)

    def write_file(self, name: str, content: bytes) -> Path:
        """Replace a file of the run folder atomically."""
        path = self.folder / name
        with telling(self.folder):
            replace_file(path, content)
        return path


def _is_released(folder: Path, name: str, record: Record) -> bool:
    """Whether a file that is not there was let go on purpose."""
    if name != IMAGES or (folder / name).exists() or not (folder / RELEASED).exists():
        return False
    about = json.loads(read_file(folder / RELEASED))
    return bool(about["files"].get(name) == record.files[name])


def _kept(folder: Path) -> bytes | None:
    """The images that were kept when others were let go; None without any, or changed ones."""
    try:
        digest = json.loads(read_file(folder / RELEASED))["kept"]
        content = read_file(folder / KEPT)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def _checked(folder: Path, name: str, record: Record) -> bytes:
    content = read_file(folder / name)
    if hashlib.sha256(content).hexdigest() != record.files[name]:
        raise DamagedError(f"has a {name} that was changed after it was written")
    return content


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
