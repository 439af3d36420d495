"""Lets the images of a benchmark go once nothing waits for them, except for those that pages show.

Verdicts, distances and costs stay. ``released.json`` beside a record says that its images were let
go on purpose; a task that needs them makes them again from the seed.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from safetensors.numpy import save

from besiege.bench.plan import Plan, is_done
from besiege.bench.reading import gather
from besiege.bench.run import Run
from besiege.bench.store import ReleasedError, Store
from besiege.bench.summaries import summary_of
from besiege.metrics.figures import gallery

SHOWN = 24
"""Images that stay of every evaluation, with ``images = "shown"``."""


class Releaser:
    """Releases images as evaluations of a benchmark end.

    Parameters
    ----------
    store : Store
        The records.
    run : Run
        The run with all its plans. Images that a plan outside the benchmark uses stay.
    """

    def __init__(self, store: Store, run: Run) -> None:
        self.store = store
        self.images = "all" if run.benchmark is None else run.benchmark.store.images
        mine = {entry.plan for entry in run.entries}
        self._users: dict[str, set[str]] = {}
        """Names of the plans that use the images of a record and are not finished."""
        self._rows: dict[str, set[int]] = {}
        """Rows to keep of each record."""
        for plan in run.plans if self.images != "all" else ():
            for key in _crafted(plan):
                name = plan.name if plan.name in mine else ""  # one that never ends
                self._users.setdefault(key, set()).add(name)

    def finished(self, plan: Plan) -> None:
        """Release what only this evaluation waited for, if it is done."""
        if self.images == "all" or plan.undecided:
            return
        if not all(is_done(task, self.store) for task in plan.tasks()):
            return  # an attack that failed is tried again, and verdicts on it need its images
        keys = _crafted(plan)
        summary_of(self.store, plan)  # figures of images are computed while there are images
        if self.images == "shown":
            self._note(plan, keys)
        for key in keys:
            users = self._users.setdefault(key, set())
            users.discard(plan.name)
            if not users and not self.store.released(key):
                with suppress(ReleasedError):  # another process has done it meanwhile
                    self.store.release(key, self._kept(key))

    def _note(self, plan: Plan, keys: set[str]) -> None:
        """Note the rows to keep: those shown of this plan, and those kept when it was released."""
        released = {key for key in keys if self.store.released(key)}
        for key in released:
            with suppress(ReleasedError):  # none was kept
                self._rows[key] = {*self.store.shown_images(key)["rows"].tolist()}
        for picture in gallery(gather(self.store, plan).evidence, SHOWN) if keys > released else ():
            record = picture.record.removeprefix("records/")
            self._rows.setdefault(record, set()).add(picture.row)

    def _kept(self, key: str) -> bytes | None:
        """The images of a record that pages show, as a file; None without any."""
        wanted = self._rows.get(key)
        if not wanted:
            return None
        arrays = self.store.images(key)
        here = np.isin(arrays["rows"], np.array(sorted(wanted)))
        kept = {name: np.ascontiguousarray(array[here]) for name, array in arrays.items()}
        return save(kept)


def _crafted(plan: Plan) -> set[str]:
    """The keys of all records of a plan that have adversarial images."""
    return {task.key for task in plan.tasks() if task.kind == "craft"}
