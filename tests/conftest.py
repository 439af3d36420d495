"""For every test: no network, one thread; and a finished run for those that need one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

# A test that downloads without being told to is a mistake; it must not depend on the weather.
os.environ.setdefault("BESIEGE_OFFLINE", "1")

SMALL_RUN: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "count": 12, "curve": False}
"""What `evaluated` was asked, of zoo:digits-natural and digits."""


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
