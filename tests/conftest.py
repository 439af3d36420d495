"""For every test: no network, one thread; and a finished run for those that need one."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# A test that downloads without being told to is a mistake; it must not depend on the weather.
os.environ.setdefault("BESIEGE_OFFLINE", "1")

# Indexes of temporary run folders do not belong into the user's cache.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="besiege-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# Eleven thousand tests are a million objects that stay: looking through them for garbage again and
# again takes as long as making them.
gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is collected from here on, among what tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """What was kept ends as usual."""
    gc.unfreeze()


SMALL_RUN: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "count": 12, "curve": False}
"""What `evaluated` was asked, of zoo:digits-natural and digits."""


@pytest.fixture(scope="session", autouse=True)
def unexamined() -> Iterator[pytest.MonkeyPatch]:
    """Evaluations are not examined: that takes longer than most tests. `examined` undoes it."""
    from besiege.bench.spec import Request

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "examined", property(lambda self: False))
        yield patch


@pytest.fixture(scope="session", autouse=True)
def buffered() -> Iterator[None]:
    """Files are not forced to the disk, which protects from a power cut only.

    An evaluation does that 26 times, and waits longer for the disk than it computes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations are examined, as those of users are."""
    from besiege.bench.spec import Request

    always = property(lambda self: self.examine != "none")
    monkeypatch.setattr(Request, "examined", always)


@pytest.fixture(scope="session")
def evaluated_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one run that `evaluated` copies."""
    from besiege.bench.single import evaluate  # not where no test needs it: it imports torch

    folder = tmp_path_factory.mktemp("evaluated") / "run"
    evaluate("zoo:digits-natural", "digits", out=folder, **SMALL_RUN)
    return folder


@pytest.fixture
def evaluated(evaluated_once: Path, tmp_path: Path) -> Path:
    """The folder of a short, finished evaluation: a copy, so that a test may change it."""
    return Path(shutil.copytree(evaluated_once, tmp_path / "evaluated"))
