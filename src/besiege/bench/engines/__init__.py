"""Engines: they start workers and carry jobs to them. The same records come out of every one.

A job and its outcome are small dictionaries of plain values. A **job** has the ``request`` (or the
training), the name of its ``plan`` and of its ``model``, the keys of ``trained`` models that the
request names, the ``task`` (kind, identity, needs, shard) and what the progress of its
``attack`` is measured by. An **outcome** has the ``key`` of the task and its ``state``:

- ``during``: it goes on (``share``, ``claimed``, ``seconds``);
- ``made``, ``kept`` or ``held``: done now, done before, or done by another process now;
- ``refused``: it cannot be done, and why (``type``, ``message``, ``errno``);
- ``died``: the worker died of it, or while it did it (``message``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from besiege.core.registry import Registry

Job = dict[str, Any]
Outcome = dict[str, Any]


class Engine(Protocol):
    """Starts workers, and carries jobs to them and outcomes back.

    Attributes
    ----------
    slots : collection of int
        The slots that take jobs now, of which each does one at a time. A slot is a worker, or its
        successor: it keeps the models it has used. Slots may come and go.
    """

    @property
    def slots(self) -> Collection[int]: ...

    def submit(self, slot: int, job: Job) -> None:
        """Give a job to a slot that has none."""

    def completed(self, timeout: float) -> list[tuple[int, Outcome]]:
        """The outcomes since the last call, each with its slot; it waits for one, or a new slot."""

    def close(self) -> None:
        """End all workers, also those that are busy; again has no effect."""


ENGINES: Registry[Callable[..., Engine]] = Registry(
    "engine",
    (f"{__name__}.local", f"{__name__}.ray_cluster"),
    group="besiege.engines",
)
"""Functions that return an engine, by name: of the store, the `Machine`, and options of theirs."""
