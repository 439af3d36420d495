"""From an evaluation to its tasks: what is to be done, and under which key it will be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from besiege.bench.spec import AttackSpec, Plan, Shard
from besiege.bench.store import SCHEMA, key_of

Kind = Literal["clean", "craft", "judge"]


@dataclass(frozen=True)
class Task:
    """One piece of work on one shard.

    Attributes
    ----------
    kind : str
        'clean' (how the victim sees the clean images), 'craft' or 'judge'.
    identity : dict
        All that decides the result.
    attack : AttackSpec, optional
        With what; none for clean images.
    shard : int
        The number of the shard.
    curve : bool
        Whether the shard is one of the curve's.
    """

    kind: Kind
    identity: dict[str, Any]
    shard: int
    attack: AttackSpec | None = None
    curve: bool = False

    @cached_property
    def key(self) -> str:
        return key_of(self.identity)


def clean_tasks(plan: Plan) -> list[Task]:
    """How the victim sees the clean images, shard by shard."""
    return [
        Task("clean", {**_base(plan, "clean"), "shard": shard.digest}, number)
        for number, shard in enumerate(plan.shards)
    ]


def attack_tasks(plan: Plan) -> Iterator[list[tuple[Task, Task]]]:
    """For every attack its pairs of craft and judge, shard by shard.

    In a chain each attack comes after the verdicts on the ones before, on the same shard; what
    these left standing is therefore part of its identity.
    """
    before: list[list[str]] = [[] for _ in plan.shards]
    for spec in plan.attacks:
        pairs = [
            _pair(plan, spec, number, shard, before[number])
            for number, shard in enumerate(plan.shards)
        ]
        yield pairs
        if plan.chained:
            for number, (_, judged) in enumerate(pairs):
                before[number] = [*before[number], judged.key]


def curve_tasks(plan: Plan) -> list[tuple[Task, Task]]:
    """The search for the smallest change, shard by shard."""
    if plan.curve is None:
        return []
    return [
        _pair(plan, plan.curve.attack, number, shard, [], curve=True)
        for number, shard in enumerate(plan.curve.shards)
    ]


def all_keys(plan: Plan) -> set[str]:
    """The key of every record the evaluation is made of."""
    pairs = [pair for pairs in attack_tasks(plan) for pair in pairs] + curve_tasks(plan)
    return {task.key for task in clean_tasks(plan)} | {t.key for pair in pairs for t in pair}


def _base(plan: Plan, kind: Kind) -> dict[str, Any]:
    base = {
        "kind": kind,
        "schema": SCHEMA,
        "victim": plan.model.digest,
        "seed": plan.request.seed,
    }
    if plan.model.stochastic and kind != "craft":
        base["draws"] = plan.model.draws
    return base


def _pair(
    plan: Plan, spec: AttackSpec, number: int, shard: Shard, after: list[str], curve: bool = False
) -> tuple[Task, Task]:
    besides = {"advice": spec.advice, "starts": spec.starts}
    craft = Task(
        "craft",
        {
            **_base(plan, "craft"),
            # What was crafted on a substitute is the same for every victim it is tried on.
            **({} if spec.source is None else {"victim": spec.source}),
            **{name: digest for name, digest in besides.items() if digest is not None},
            "attack": spec.spelled,
            "text": spec.text,
            "threat": spec.threat,
            "keep": spec.keep,
            "leave": spec.leave,
            "queries": spec.queries,
            "shard": shard.digest,
            "after": list(after),
        },
        number,
        spec,
        curve,
    )
    judge = Task("judge", {**_base(plan, "judge"), "crafted": craft.key}, number, spec, curve)
    return craft, judge
