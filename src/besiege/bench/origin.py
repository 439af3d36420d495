"""When an evaluation was made, and from which commit of the user's repository."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime


def now() -> str:
    """The current time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit checked out in the current folder, with ``+`` if files differ; None without one.

    Models and data usually lie in such a folder, so the commit says which code an earlier result
    belongs to.
    """
    short = _git("rev-parse", "--short=10", "HEAD")
    if not short:
        return None
    return short + "+" if _git("status", "--porcelain", "--untracked-files=no") else short


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
