"""Work that resumes: what a command prints when it begins, and ends before it is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import INCOMPLETE, INTERRUPTED
from besiege.cli.grammar import as_options
from besiege.core.errors import EndpointError, StoreError

if TYPE_CHECKING:  # slow to import
    from besiege.bench.plan import Plan
    from besiege.bench.work_estimate import Event

T = TypeVar("T")
NEW = "records are kept in"
DONE = "nothing is left to do: all records are in"


class Beginning:
    """Prints a line about the run folder at the first progress: before it, nothing is written.

    Parameters
    ----------
    folder : Path
        The run folder.
    watch : callable
        What shows progress.
    """

    def __init__(self, folder: Path, watch: Callable[[Event], None]) -> None:
        from besiege.bench.run import read_run
        from besiege.bench.store import Store

        self._folder, self._watch = folder, watch
        self._run = read_run(Store(folder))
        self._plans: list[Plan] = []
        self._state = ""

    def accept(self, plan: Plan) -> None:
        """Take notice of a plan."""
        self._plans.append(plan)

    def tell(self, event: Event) -> None:
        """Show progress."""
        if not self._state:
            self._state = self._found()
            for plan in self._run.plans if self._run else ():
                for one in plan.damage:
                    screen.say(
                        screen.err(), Text(f"{one}: its own command writes it again", "yellow")
                    )
            screen.verbatim(screen.err(), Text(f"{self._state} {self._folder}", "dim"))
            self._ask_for_normalisation()
        if self._state is not DONE:  # or what was done before would seem to be done now
            self._watch(event)

    def _ask_for_normalisation(self) -> None:
        """Name models that lack it, before hours are spent: W15 fires at chance only."""
        from besiege.models.sources import unnormalised

        texts = (plan.request.model for plan in self._plans if self._state == NEW)
        for text in dict.fromkeys(one for one in texts if one and unnormalised(one)):
            architecture, _, path = text.partition(":")
            written = f"{architecture.partition('(')[0]}(mean=..., std=...):{path}"
            screen.note(
                f"{text} takes images as they are, from 0 to 1. If its network was trained on "
                f'normalised images, write "{written}".'
            )

    def _found(self) -> str:
        """The state of the run folder: new, resumed, changed or complete."""
        if self._run is None:
            return NEW
        from besiege.bench.overview import status

        before = {plan.series: plan.name for plan in self._run.current}
        if any(before.get(plan.series, plan.name) != plan.name for plan in self._plans):
            return "model, data or attacks changed since the last time; evaluating again in"
        done = {one.plan.name for one in status(self._folder) if one.complete}
        return DONE if all(plan.name in done for plan in self._plans) else "resuming in"


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
