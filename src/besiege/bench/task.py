"""A task, which is a piece of work as data, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from besiege.bench.spec import AttackSpec
from besiege.bench.store import key_of
from besiege.core.errors import Finding
from besiege.metrics.rows import Column


@dataclass(frozen=True)
class Task:
    """One piece of work on one shard of the samples.

    Attributes
    ----------
    kind : str
        A name of `besiege.bench.kinds.KINDS`, whose object does the work.
    identity : dict
        All that decides the result, as JSON; the key of the record is its SHA-256.
    needs : tuple of str
        Keys of the records that it needs.
    shard : int
        The number of the shard.
    """

    kind: str
    identity: dict[str, Any]
    needs: tuple[str, ...] = ()
    shard: int = 0

    @cached_property
    def key(self) -> str:
        return key_of(self.identity)


@dataclass(frozen=True)
class Stage:
    """Tasks that belong together: the clean images, or one attack, shard by shard.

    Attributes
    ----------
    name : str
        The text of the attack, or the name of the kind.
    parts : tuple of tuple of Task
        The tasks of every shard, each before those that need it.
    counts : tuple of int
        Number of samples of every shard.
    attack : AttackSpec, optional
        The attack, if there is one.
    curve : bool
        Whether it is the search for the smallest perturbation.
    guard : bool
        Whether it is a guard: it tests the attacks on some of the samples that they left.
    given : bool
        Whether its images were made elsewhere. It has the shards of which there are images.
    """

    name: str
    parts: tuple[tuple[Task, ...], ...]
    counts: tuple[int, ...]
    attack: AttackSpec | None = None
    curve: bool = False
    guard: bool = False
    given: bool = False

    @property
    def partial(self) -> bool:
        """Whether it is meant for some of the samples only."""
        return self.guard or self.given


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: rows and files by name, sums and findings.

    ``provenance`` is added to the record's provenance.
    """

    rows: Mapping[str, Column]
    totals: Mapping[str, Any]
    findings: Sequence[Finding] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
