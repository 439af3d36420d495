"""Work that resumes: what a command prints when it ends before it is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from besiege.cli import screen
from besiege.cli.exits import INCOMPLETE, INTERRUPTED
from besiege.cli.grammar import as_options
from besiege.core.errors import EndpointError, StoreError

T = TypeVar("T")


def resumable(work: Callable[[], T], folder: Path, command: Callable[..., Any]) -> T | int:
    """The result of some work into a run folder, or the exit code where the same command resumes.

    Errors that no second try would mend are raised.
    """
    try:
        return work()
    except KeyboardInterrupt:
        screen.note(
            f"Interrupted. Finished work is in {folder}; run the same command again to resume."
            if (folder / "run.json").exists()
            else "Interrupted before anything was finished; nothing was written."
        )
        return INTERRUPTED
    except EndpointError as problem:
        from besiege.models.black_box import Changed

        kept = (folder / "run.json").exists() and not isinstance(problem, Changed)
        screen.complain(
            as_options(str(problem), command),
            f"The answers are kept in {folder}; run the same command again to resume."
            if kept
            else "",
        )
        return INCOMPLETE
    except StoreError as problem:
        if isinstance(problem.__cause__, OSError) and (folder / "run.json").exists():
            screen.complain(str(problem))  # such as a disk that became full
            return INCOMPLETE
        raise
