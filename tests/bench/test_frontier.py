from __future__ import annotations

from pathlib import Path

import pytest

from besiege.bench.frontier import Frontier
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.single import evaluate
from besiege.bench.store import Record, Store
from besiege.bench.work_estimate import Event

FAILURE = {"type": "E", "message": "out of order"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    ask = {"threat": "linf:0.1", "suite": ["fgsm", "bim(steps=3)"], "count": 8, "shard": 2}
    evaluate("zoo:digits-natural", "digits", out=folder, curve=False, **ask)  # type: ignore[call-overload]
    return folder


@pytest.fixture
def plan(done: Path) -> Plan:
    return open_run(done)[1].plans[0]


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(tmp_path / "run")


def copy(done: Path, store: Store, key: str) -> None:
    store.place(key, Store(done).files(key))


def test_a_complete_plan_is_over(done: Path, plan: Plan) -> None:
    events: list[Event] = []
    frontier = Frontier(plan, Store(done), events.append)
    assert frontier.over and not list(frontier.ready())
    assert events[-1].done == events[-1].total


def test_a_task_is_ready_when_its_needs_exist(done: Path, plan: Plan, empty: Store) -> None:
    frontier = Frontier(plan, empty)
    first = [task for task in plan.tasks() if not task.needs]
    assert list(frontier.ready()) == first
    craft = next(task for task in first if task.kind == "craft")
    copy(done, empty, craft.key)
    frontier.settle(craft.key, made=True)
    (judge,) = [task for task in frontier.ready() if task.kind == "judge"]
    assert judge.needs == (craft.key,)


def test_parts_begin_at_other_places(plan: Plan, empty: Store) -> None:
    firsts = [next(Frontier(plan, empty, start=n / 4).ready()).key for n in range(3)]
    assert len(set(firsts)) == 3  # the second attack of a suite waits


def test_what_needs_a_failure_is_over(done: Path, plan: Plan, empty: Store) -> None:
    """A suite's later attacks on the same shard are not tried; other shards are."""
    frontier = Frontier(plan, empty)
    craft = next(task for task in plan.tasks() if task.kind == "craft")
    empty.commit(Record(craft.identity, provenance={"started": ""}, failure=FAILURE))
    frontier.settle(craft.key, made=True)
    open_ = [task for task in plan.tasks() if task.key in frontier]
    assert len(open_) == len(list(plan.tasks())) - 4
    assert not [t for t in open_ if t.kind != "clean" and t.shard == craft.shard]


def test_failures_of_earlier_runs_are_tried_again(plan: Plan, empty: Store) -> None:
    craft = next(task for task in plan.tasks() if task.kind == "craft")
    empty.commit(Record(craft.identity, provenance={"started": "2020"}, failure=FAILURE))
    frontier = Frontier(plan, empty)
    frontier.refresh()
    assert craft in list(frontier.ready())
    empty.commit(Record(craft.identity, provenance={"started": "9999"}, failure=FAILURE))
    frontier.refresh()  # another process has failed at it meanwhile
    assert craft not in list(frontier.ready())


def test_what_others_have_finished_is_noticed(done: Path, plan: Plan, empty: Store) -> None:
    frontier = Frontier(plan, empty)
    for task in plan.tasks():
        copy(done, empty, task.key)
    frontier.refresh()
    assert frontier.over


def test_a_model_that_fails_on_all_clean_images_is_given_up(plan: Plan, empty: Store) -> None:
    frontier = Frontier(plan, empty)
    *first, last = [task for task in plan.tasks() if task.kind == "clean"]
    for task in (*first, last):
        empty.commit(Record(task.identity, provenance={"started": ""}, failure=FAILURE))
    for task in first:
        frontier.settle(task.key, made=True)
    assert not frontier.over
    frontier.settle(last.key, made=True)
    assert "out of order" in str(frontier.problem)
    assert not list(frontier.ready())
