"""``run.json``: all evaluations that were requested of a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from besiege.bench.benchmark import Benchmark
from besiege.bench.plan import Plan
from besiege.bench.spec import Value
from besiege.bench.store import Store, key_of
from besiege.bench.training_plan import TrainingPlan
from besiege.core.errors import StoreError
from besiege.core.files import read_file

SCHEMA = 1
FILE = "run.json"


class RunEntry(Value):
    """One evaluation of a benchmark, and the name of its plan."""

    cell: str
    model: str
    budget: str | None
    seed: int
    plan: str

    @property
    def key(self) -> tuple[str, str, str | None, int]:
        """What distinguishes it from the others of the benchmark."""
        return self.cell, self.model, self.budget, self.seed


def changed(entry: RunEntry, old: Plan, new: Plan) -> str:
    """What differs between two plans of an entry, in words; empty where both are the same."""
    if not _names(old).isdisjoint(_names(new)):
        return ""
    if old.model.digest != new.model.digest:
        return f"the model '{entry.model}' ({new.model.name})"
    what = "the data" if old.shards != new.shards else "the attacks"
    what += f' of the cell "{entry.cell}"'
    if old.request.beside != new.request.beside:
        what += " (its models now leave out the calibration images of other detectors)"
    return what


def _names(plan: Plan) -> set[str]:
    """The name of a plan, and that of the same one where no other had to be told apart.

    Earlier releases answered such a cell by another one's evaluation.
    """
    plain = plan.request.model_copy(update={"apart": ""})
    return {plan.name, plan.model_copy(update={"request": plain}).name}


class Unfit(Value):
    """A model that was left out of a cell, because its attacks do not fit it."""

    cell: str
    model: str
    reason: str


class Run(Value):
    """All requests of one run folder.

    ``benchmark``, ``entries`` and ``unfit`` are there only in the run of a benchmark, and
    ``trainings`` only if it trains models.
    """

    schema_number: int = SCHEMA
    created: str
    versions: dict[str, str]
    plans: tuple[Plan, ...] = ()
    benchmark: Benchmark | None = None
    entries: tuple[RunEntry, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    trainings: tuple[TrainingPlan, ...] = ()

    @property
    def current(self) -> tuple[Plan, ...]:
        """The newest evaluation of every request, in the order in which they were first made."""
        return tuple(plan for plan, _ in self.histories())

    def histories(self) -> list[tuple[Plan, tuple[Plan, ...]]]:
        """The newest evaluation of every request, and those before it, the newest first."""
        series: dict[object, list[Plan]] = {}
        for plan in self.plans:
            series.setdefault(plan.series, []).append(plan)
        return [
            (newest, tuple(old for old in reversed(before) if old.name != newest.name))
            for *before, newest in series.values()
        ]

    def earlier(self, plan: Plan) -> tuple[Plan, ...]:
        """Earlier evaluations of the same request, the newest first."""
        return next((before for one, before in self.histories() if one.series == plan.series), ())

    def with_plan(self, plan: Plan) -> Run:
        """The run with this evaluation as the current one of its request.

        It replaces one of the same name in its series, whose images made elsewhere stay, and one
        whose text was changed. Others are kept: another request may have the same answer, and goes
        on having it.
        """
        series = plan.series
        for old in self.plans:
            if (old.series, old.name) == (series, plan.name) and not old.changed:
                plan = plan.replaying(old.replays)
        kept = [
            old
            for old in self.plans
            if old.series != series or (old.name != plan.name and not old.changed)
        ]
        places = [number for number, old in enumerate(kept, 1) if old.series == series]
        before = [number for number, old in enumerate(self.plans) if old.series == series]
        place = places[-1] if places else before[0] if before else len(kept)
        return self.model_copy(update={"plans": (*kept[:place], plan, *kept[place:])})

    def training(self, benchmark: Benchmark, trainings: Sequence[TrainingPlan]) -> Run:
        """The run of a benchmark whose models are trained; its evaluations stay as they are."""
        new = {one.model.name: one for one in (*self.trainings, *trainings)}
        return self.model_copy(update={"benchmark": benchmark, "trainings": tuple(new.values())})

    def declaring(
        self,
        benchmark: Benchmark,
        entries: tuple[RunEntry, ...],
        unfit: tuple[Unfit, ...],
        plans: Sequence[Plan],
    ) -> Run:
        """The run of a benchmark with all its plans; those that are there already stay."""
        series = {plan.name: plan.series for plan in plans}
        # The same plan under another request: the benchmark was named by another path before.
        kept = [old for old in self.plans if series.get(old.name, old.series) == old.series]
        run = self.model_copy(
            update={
                "plans": tuple(kept),
                "benchmark": benchmark,
                "entries": entries,
                "unfit": unfit,
            }
        )
        for plan in plans:
            old = run.plan(plan.name)
            if old is None or old.changed:
                run = run.with_plan(plan)
        return run

    def compared(self) -> set[frozenset[str]] | None:
        """The pairs of plans that a benchmark compares; None without a benchmark.

        They are the declared pairs in every cell, or all pairs of models there.
        """
        if self.benchmark is None:
            return None
        declared = {frozenset(pair) for pair in self.benchmark.compare.pairs}
        return {
            frozenset((one.plan, other.plan))
            for one, other in combinations(self.entries, 2)
            if (one.cell, one.budget, one.seed) == (other.cell, other.budget, other.seed)
            and (not declared or frozenset((one.model, other.model)) in declared)
        }

    @property
    def short_names(self) -> Mapping[str, str]:
        """The names that a benchmark gives to its models, by their texts."""
        return short_names(self.entries, self.plans)

    def title_of(self, plan: Plan) -> str:
        """What the model of a plan is called: by its name in the benchmark, or by its text."""
        return self.short_names.get(plan.model.name, plan.model.name)

    def plan(self, name: str) -> Plan | None:
        """The evaluation of a name."""
        return next((plan for plan in self.plans if plan.name == name), None)


def short_names(entries: Iterable[RunEntry], plans: Iterable[Plan]) -> Mapping[str, str]:
    """The names of models in a benchmark, by the texts of their plans."""
    texts = {plan.name: {plan.model.name, plan.request.model} for plan in plans}
    return {text: entry.model for entry in entries for text in texts.get(entry.plan, ())}


def read_run(store: Store) -> Run | None:
    """The run of a folder; None without one.

    A plan whose digest does not match is marked `changed`. Plans of releases that wrote no digest
    are accepted.
    """
    path = store.folder / FILE
    try:
        content = json.loads(read_file(path))
        if content.get("schema_number") != SCHEMA:
            raise StoreError(
                f"{path} has the schema {content.get('schema_number')!r}, but this release reads "
                f"{SCHEMA}: it was written by another release"
            )
        for plan in content["plans"]:
            digest = plan.pop("digest", None)
            plan["changed"] = digest is not None and digest != _digest(content, plan)
        return Run.model_validate(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise StoreError(f"{path} cannot be read ({problem.strerror})") from None
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError) as problem:
        raise StoreError(
            f"{path} cannot be read ({type(problem).__name__}): move it away and run the "
            "evaluation again; its records are used again"
        ) from None


def write_run(store: Store, run: Run) -> None:
    """Replace ``run.json`` atomically; every plan has a digest.

    A changed plan stays marked until it is requested again.
    """
    # The round trip through JSON raises now for values that are not JSON.
    content = json.loads(json.dumps(run.model_dump(mode="json", by_alias=True), allow_nan=False))
    if run.benchmark is None:
        content = {n: v for n, v in content.items() if n not in ("benchmark", "entries", "unfit")}
    if not run.trainings:
        del content["trainings"]
    for plan, written in zip(run.plans, content["plans"], strict=True):
        written["digest"] = _CHANGED if plan.changed else _digest(content, written)
    store.write_file(FILE, json.dumps(content, indent=1).encode())


def update_run(store: Store, change: Callable[[Run | None], Run]) -> Run:
    """Change ``run.json`` such that no change by another process is lost, and return the run."""
    with store.updating():
        run = change(read_run(store))
        write_run(store, run)
    return run


_CHANGED = "changed after it was written"


def _digest(run: dict[str, Any], plan: dict[str, Any]) -> str:
    """SHA-256 of a plan as written, and of the fields of the whole run."""
    about = {name: value for name, value in run.items() if name != "plans"}
    return key_of({**about, "plan": plan})
