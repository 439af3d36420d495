"""Runs cases in a process of its own: reads one JSON line each, answers one JSON line each."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

from benchmarks.fuzzing.calls import call, names
from benchmarks.fuzzing.lines import line

MEMORY = 12 << 30
"""Bytes of address space: what takes more is an error, and does not stop the machine."""


def serve(folder: Path, seed: int, answers: int) -> None:
    """Run what is asked on standard input; answers go to a file descriptor."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import torch

    reply = os.fdopen(answers, "w")
    for text in sys.stdin:
        kind, number = json.loads(text)
        torch.set_num_threads(1)
        found = run(folder, seed, kind, number)
        reply.write(json.dumps(found) + "\n")
        reply.flush()


def run(folder: Path, seed: int, kind: str, number: int) -> dict[str, Any]:
    """One case: what it ended with, what it said, and what it wrote."""
    before = listing(folder)
    begin = time.perf_counter()
    with kept(folder) as texts:
        ended = _line(line(seed, number)) if kind == "line" else _call(folder, call(seed, number))
    seconds = time.perf_counter() - begin
    after = listing(folder)
    changed = sorted(k for k in after.keys() | before.keys() if after.get(k) != before.get(k))
    for name in sorted(after.keys() - before.keys(), reverse=True):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return {**ended, **texts(), "seconds": seconds, "changed": changed}


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its size and time."""
    found = {}
    for place, inner, files in os.walk(folder):
        # Caches of Python, and of onnxruntime in the home folder, are not results.
        inner[:] = [name for name in inner if name not in ("__pycache__", ".cache")]
        for name in (*inner, *files):
            path = os.path.join(place, name)
            state = os.lstat(path)
            size = (0, 0) if os.path.isdir(path) else (state.st_size, state.st_mtime_ns)
            found[os.path.relpath(path, folder)] = size
    return found


@contextmanager
def kept(folder: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """Keep what is written to standard output and error, by Python or by anything else."""
    old = [os.dup(1), os.dup(2)]
    for number, name in ((1, "out"), (2, "err")):
        with (folder.parent / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    texts: dict[str, str] = {}
    try:
        yield lambda: texts
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(old[number - 1], number)
            os.close(old[number - 1])
            texts[name] = said(folder, name)


def said(folder: Path, name: str) -> str:
    """The end of what the last case wrote to standard output or error."""
    return (folder.parent / name).read_bytes()[-20_000:].decode(errors="replace")


def _line(words: list[str]) -> dict[str, Any]:
    from besiege.cli import main

    try:
        return {"code": main(words)}
    except BaseException as problem:
        return {"raised": _told(problem)}


def _call(folder: Path, expression: str) -> dict[str, Any]:
    from besiege import BesiegeError

    known = names(str(folder))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            eval(expression, known)
            ended: dict[str, Any] = {"code": 0}
        except BesiegeError as problem:
            ended = {"code": 2, "refused": str(problem)}
        except BaseException as problem:
            ended = {"raised": _told(problem)}
            # Python's own: the arguments do not fit the signature, or the expression itself failed.
            frames = traceback.extract_tb(problem.__traceback__)
            ended["ours"] = any(f"{os.sep}besiege{os.sep}" in frame.filename for frame in frames)
    return {**ended, "warned": sorted({f"{w.category.__name__}: {w.message}" for w in warned})}


def _told(problem: BaseException) -> dict[str, str]:
    """The kind of an error, what it says, and the last place of ours it came through."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [f for f in frames if f"{os.sep}besiege{os.sep}" in f.filename]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else ""
    return {"kind": type(problem).__name__, "said": str(problem)[:300], "place": place}
