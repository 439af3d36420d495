"""Prepares requests: reads and plans all of them before the first is run.

Each model and each data set is loaded once. Of a benchmark all problems are collected, and models
that the attacks of a cell do not fit are left out with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from besiege.bench.benchmark import Benchmark
from besiege.bench.benchmark_files import must_be_sound, must_continue
from besiege.bench.command import command_of
from besiege.bench.expanding import Declared, Entry
from besiege.bench.ignoring import each_fitting
from besiege.bench.model_spec import read_victim
from besiege.bench.plan import Plan
from besiege.bench.planning import plan_of
from besiege.bench.request import Objects, ResolvedRequest, resolve
from besiege.bench.run import Run, RunEntry, Unfit, changed
from besiege.bench.shards import Read
from besiege.bench.spec import EXAMINING, Machine, Request
from besiege.bench.store import Store
from besiege.bench.training_plan import trained_text
from besiege.bench.trainings import Training, read_training
from besiege.bench.withheld import beside, same_data, with_others
from besiege.core.errors import (
    AttackError,
    BesiegeError,
    ChangedError,
    GradientError,
    InputError,
    StochasticError,
    ThreatError,
)
from besiege.core.samples import Withheld
from besiege.core.unchanged import unchanged
from besiege.core.victim import Victim
from besiege.data.sources import is_in_box
from besiege.models.black_box import black_box
from besiege.models.endpoint import kept_below

T = TypeVar("T")
Requests = Sequence[tuple[Request, Objects | None]]
_DOES_NOT_FIT = (AttackError, ThreatError, StochasticError, GradientError)
"""Errors that say that an attack does not fit a model, rather than that something is missing."""


@dataclass
class Prepared:
    """Requests as plans, and the live objects of each.

    Attributes
    ----------
    requests, resolved, plans : list
        One for every evaluation; those of a benchmark that are the same are there once. The
        requests are as they were given, for workers that read them again.
    benchmark : Benchmark, optional
        The benchmark, if they are one.
    entries : tuple of RunEntry
        For every evaluation of a benchmark the name of its plan.
    unfit : tuple of Unfit
        The models that were left out of cells.
    trainings : tuple of Training
        The models of a benchmark that are trained, and not given up. Where one is not trained yet,
        its untrained model stands in for it: such plans are not to be run.
    """

    requests: list[Request] = field(default_factory=list)
    resolved: list[ResolvedRequest] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    benchmark: Benchmark | None = None
    entries: tuple[RunEntry, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    trainings: tuple[Training, ...] = ()


def prepare(requests: Requests, folder: Path, run: Run | None, how: Machine) -> Prepared:
    """Read and plan requests; the first problem is raised."""
    trainings = () if run is None else run.trainings
    texts = {one.model.name: trained_text(Store(folder), one.name) for one in trainings}
    read = Read({name: text for name, text in texts.items() if text is not None})
    requests, resolved = each_fitting(
        requests, lambda request, objects: _resolved(request, objects, run, how, read)
    )
    requests = _side_by_side(requests, resolved)
    resolved = [
        one if one.request.beside == request.beside else _resolved(request, objects, run, how, read)
        for one, (request, objects) in zip(resolved, requests, strict=True)
    ]
    for one in resolved:
        kept_below(black_box(one.victim), folder)
    plans = [plan_of(one) for one in resolved]
    _must_differ(plans)
    return Prepared([request for request, _ in requests], resolved, plans)


def _side_by_side(requests: Requests, resolved: Sequence[ResolvedRequest]) -> Requests:
    """The requests, of which those on the same data leave out the same calibration images."""
    if all(one.victim.withheld is None for one in resolved):
        return requests
    sources = [None if objects is None else objects.data for _, objects in requests]
    asked = [request for request, _ in requests]
    found = list(requests)
    for number, (request, objects) in enumerate(requests):
        if is_in_box(sources[number]):
            continue  # nothing is left out of the caller's own tensors
        mine = same_data(request, sources[number])
        alike = {
            place: (other.model, resolved[place].victim.withheld)
            for place, other in enumerate(asked)
            if same_data(other, sources[place]) == mine
        }
        others = beside(alike)[number]
        known = {text: held for text, held in alike.values() if held is not None and text in others}
        found[number] = (
            with_others(request, others),
            replace(objects or Objects(), beside=known) if others else objects,
        )
    return found


def prepare_benchmark(
    declared: Declared,
    folder: Path,
    run: Run | None,
    how: Machine,
    given_up: Mapping[str, str] | None = None,
) -> Prepared:
    """Read and plan a benchmark; one error has all problems, before anything is written.

    `given_up` says why models could not be trained, by their names: they are left out.
    """
    with unchanged():
        return _prepared(declared, folder, run, how, given_up or {})


def _prepared(
    declared: Declared, folder: Path, run: Run | None, how: Machine, given_up: Mapping[str, str]
) -> Prepared:
    if run is not None and run.benchmark is not None:
        must_continue(run.benchmark, declared.benchmark, str(folder))
    read, collector = Read(), _Collector(declared)
    prepared = Prepared(benchmark=declared.benchmark)
    entries: list[RunEntry] = []
    names: set[str] = set()
    trainings = collector.trainings(how, read, given_up)
    texts = {one.name: trained_text(Store(folder), one.plan.name) for one in trainings}
    read.trained |= {name: text for name, text in texts.items() if text is not None}
    live = {one.name: one.victim for one in trainings if texts[one.name] is None}
    used = {entry.model for entry in declared.entries}
    ready = {
        name: text for name, text in declared.models.items() if name in used or declared.problems
    }
    sound = collector.load({**ready, **read.trained}, how, read) | live.keys()
    shared = collector.beside()
    for entry in declared.entries:
        if collector.lacks(entry, sound, given_up):
            continue

        request = with_others(entry.request, shared[entry.cell].get(entry.model, ()))

        def made(request: Request = request) -> tuple[ResolvedRequest, Plan]:
            one = _resolved(request, _stand_ins(request, live), run, how, read)
            kept_below(black_box(one.victim), folder)
            return one, plan_of(one)

        found = collector.attempt(entry, made)
        # Names of a run that was begun stay, wherever other cells are inserted.
        known = [*(() if run is None else run.plans), *prepared.plans]
        if found is not None and (apart := found[1].named_apart(known)):
            request = request.model_copy(update={"apart": apart})
            found = collector.attempt(entry, partial(made, request))
        if found is None:
            continue
        resolved, plan = found
        cell, model, budget, seed = entry.key
        entries.append(RunEntry(cell=cell, model=model, budget=budget, seed=seed, plan=plan.name))
        if plan.name not in names:
            names.add(plan.name)
            prepared.requests.append(request)
            prepared.resolved.append(resolved)
            prepared.plans.append(plan)
    collector.must_be_sound(entries)
    prepared.entries = tuple(entries)
    prepared.unfit = (*collector.unfit.values(), *collector.given_up.values())
    prepared.trainings = tuple(trainings)
    _must_be_other_models(declared, prepared)
    if run is not None:
        _must_be_as_planned(run, prepared, live)
    return prepared


def _stand_ins(request: Request, live: Mapping[str, Victim]) -> Objects | None:
    """The untrained models that stand in for those of a request; None without any."""
    if live.keys().isdisjoint(_models(request)):
        return None
    others, targets = (
        tuple(live.get(one, one) for one in some) for some in (request.substitute, request.across)
    )
    return Objects(model=live.get(request.model), substitute=others, across=targets)


def _models(request: Request) -> tuple[str, ...]:
    """The names of all models that a request needs."""
    return request.model, *request.substitute, *request.across


class _Collector:
    """Collects the problems of a benchmark's evaluations, and the models that do not fit."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.problems = list(declared.problems)
        self.unfit: dict[tuple[str, str], Unfit] = {}
        self.given_up: dict[tuple[str, str], Unfit] = {}
        self.withheld: dict[str, Withheld | None] = {}

    def trainings(self, how: Machine, read: Read, given_up: Mapping[str, str]) -> list[Training]:
        """The trainings that can begin."""
        found = []
        for name, given in self.declared.trainings.items():
            if name in given_up:
                continue
            try:
                found.append(read_training(name, given, how, read))
            except BesiegeError as problem:
                self.problems.append(f"models.{name}: {problem}")
        return found

    def lacks(self, entry: Entry, sound: set[str], given_up: Mapping[str, str]) -> bool:
        """Whether an evaluation lacks a model: one with a problem, or that was given up."""
        asked = (*entry.request.substitute, *entry.request.across)
        others = [one for one in asked if one in self.declared.trainings]
        needed = [entry.model, *others]
        for name in needed:
            if name in given_up:
                left = Unfit(cell=entry.cell, model=entry.model, reason=given_up[name])
                self.given_up[entry.cell, entry.model] = left
                return True
        return not sound.issuperset(needed)

    def load(self, models: Mapping[str, str], how: Machine, read: Read) -> set[str]:
        """The names of the models that can be loaded; a problem of one is told once."""
        sound = set()
        for name, text in models.items():
            try:
                self.withheld[name] = read_victim(text, how.device, None, read).withheld
                sound.add(name)
            except BesiegeError as problem:
                self.problems.append(f"models.{name}: {problem}")
        return sound

    def beside(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """For each cell and model the models beside it whose calibration images it leaves out."""
        cells: dict[str, dict[str, tuple[str, Withheld | None]]] = {}
        for entry in self.declared.entries:
            about = entry.request.model, self.withheld.get(entry.model)
            cells.setdefault(entry.cell, {})[entry.model] = about
        texts = self.declared.models
        for cell in self.declared.benchmark.cells:
            for name in (one for one in cell.beside if cell.name in cells and one in texts):
                cells[cell.name][name] = texts[name], self.withheld.get(name)
        return {cell: beside(models) for cell, models in cells.items()}

    def attempt(self, entry: Entry, work: Callable[[], T]) -> T | None:
        """The result of some work for an evaluation; None where it has a problem."""
        listed = self.declared.benchmark.cell(entry.cell).models is not None
        try:
            return work()
        except BesiegeError as problem:
            if isinstance(problem, _DOES_NOT_FIT) and not listed:
                left = Unfit(cell=entry.cell, model=entry.model, reason=str(problem))
                self.unfit[entry.cell, entry.model] = left
            else:
                self.problems.append(f"{self.declared.place(entry)}: {problem}")
            return None

    def must_be_sound(self, entries: Sequence[RunEntry]) -> None:
        """Raise all problems, among them cells that no model fits."""
        there = {entry.cell for entry in entries}
        wrong = {one.cell for one in self.unfit.values()} - there
        first = {entry.cell: entry for entry in reversed(self.declared.entries)}
        self.problems += [
            f"{self.declared.place(first[cell]).partition(', model')[0]}: no model fits: "
            + next(one.reason for one in self.unfit.values() if one.cell == cell)
            for cell in first
            if cell in wrong
        ]
        must_be_sound(self.declared.source, self.problems)


def _must_be_other_models(declared: Declared, prepared: Prepared) -> None:
    """Refuse two names of one model: a comparison of both would mean nothing."""
    digests = {plan.name: plan.model.digest for plan in prepared.plans}
    names: dict[str, str] = {}
    problems = []
    for entry in prepared.entries:
        other = names.setdefault(digests[entry.plan], entry.model)
        if other != entry.model:
            problems.append(f"models.{entry.model}: it is the same model as '{other}'")
    must_be_sound(declared.source, problems)


def _must_be_as_planned(run: Run, prepared: Prepared, live: Collection[str]) -> None:
    """Refuse models, data or attacks that changed since the run began.

    Models that are `live` are to be trained: what stands in for them is no change.
    """
    plans = {plan.name: plan for plan in prepared.plans}
    before = {entry.key: run.plan(entry.plan) for entry in run.entries}
    for entry in prepared.entries:
        old, new = before.get(entry.key), plans[entry.plan]
        if old is None or not set(live).isdisjoint(_models(new.request)):
            continue
        if not (what := changed(entry, old, new)):
            continue
        raise ChangedError(
            f"{what} changed since this run was planned, and results of both would stand in one "
            "table: choose another folder, or declare the new model under another name"
        )


def _resolved(
    request: Request, objects: Objects | None, run: Run | None, how: Machine, read: Read
) -> ResolvedRequest:
    resolved = resolve(request, objects, how.device, read)
    if request.shard is None and run is not None:
        resolved = replace(resolved, request=_as_begun(resolved.request, run))
    asked = resolved.request
    return replace(
        resolved, request=asked.model_copy(update={"command": asked.command or command_of(asked)})
    )


def _as_begun(request: Request, run: Run) -> Request:
    """The request with the shard size of the run, so that it resumes on another device."""
    for plan in run.plans:
        begun = request.model_copy(
            update={
                "shard": plan.request.shard,
                "command": plan.request.command,
                **{name: getattr(plan.request, name) for name in EXAMINING},
            }
        )
        if begun == plan.request:
            wanted = {name: getattr(request, name) for name in EXAMINING}
            return begun.model_copy(update={**wanted, "command": request.command or begun.command})
    return request


def _must_differ(plans: Sequence[Plan]) -> None:
    """Refuse evaluations that are the same, or of which one would hide the other."""
    for number, plan in enumerate(plans):
        for other in plans[:number]:
            what = f"'{plan.model.name}' against {plan.threat}"
            if other.name == plan.name:
                same = "is listed twice"
                if other.model.name != plan.model.name:
                    same = f"is the same model as '{other.model.name}': evaluate it once"
                raise InputError(f"{what} {same}")
            if other.series == plan.series:
                raise InputError(
                    f"two models are called {what}: give each a name, with "
                    "besiege.Classifier(module, name='...')"
                )
