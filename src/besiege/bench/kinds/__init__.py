"""The kinds of task: one file each, with its columns, identity, estimate and work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

from besiege.core.registry import Registry

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan
    from besiege.bench.store import Record
    from besiege.bench.task import Stage, Task, TaskResult

KINDS: Registry[Kind] = Registry(
    "kind of task",
    tuple(f"{__name__}.{module.name}" for module in iter_modules(__path__)),
    group="besiege.kinds",
)


class Kind:
    """One kind of task.

    A kind is an object registered under its name, ``KINDS.add(kind.name, kind)``. Reading a run
    needs no torch, so only `run` may import it.

    Attributes
    ----------
    name : str
        The name of the kind in identities.
    columns : mapping
        The columns of its rows and their types.
    order : int
        Kinds with a lower number come first: clean 0, attacks 10, those of other packages 50.
    """

    name: ClassVar[str]
    columns: ClassVar[Mapping[str, type]]
    order: ClassVar[int] = 50

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """The stages that this kind adds to a plan, in which each task follows those it needs."""
        return ()

    def estimate(self, task: Task, stage: Stage) -> float:
        """Estimated forward passes for one sample that is not broken."""
        return 0.0

    def is_of(self, record: Record, needed: Sequence[Record]) -> bool:
        """Whether a record was computed from the records that exist now."""
        return True

    def most_together(self, task: Task, context: Context) -> int:
        """The most samples of tasks of one stage that are done together; 0 for one at a time.

        Their records must be those of tasks done one by one.
        """
        return 0

    def run(self, task: Task, context: Context) -> TaskResult:
        """Do the work."""
        raise NotImplementedError

    def run_together(self, tasks: Sequence[Task], context: Context) -> list[TaskResult]:
        """Do the work of several tasks of one stage, which differ in their shards."""
        return [self.run(task, context) for task in tasks]


def base_identity(kind: str, victim: str, seed: int) -> dict[str, Any]:
    """The fields that every identity has."""
    from besiege.bench.store import SCHEMA

    return {"kind": kind, "schema": SCHEMA, "victim": victim, "seed": seed}


def kinds() -> list[Kind]:
    """All kinds, in the order of their stages."""
    return sorted((kind for _, kind in KINDS.items()), key=lambda kind: kind.order)
