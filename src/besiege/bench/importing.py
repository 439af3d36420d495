"""Adds images made elsewhere to the evaluations of a run, and judges them like those of attacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from besiege.bench.claims import Claims
from besiege.bench.context import Context, context_of
from besiege.bench.given import Given, Placed, must_fit, place, read_given
from besiege.bench.kinds.replay import image_task
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.preparing import prepare
from besiege.bench.reading import gather
from besiege.bench.recorded import must_answer_as_recorded
from besiege.bench.results import write_figures
from besiege.bench.run import Run, update_run
from besiege.bench.runner import run_all
from besiege.bench.spec import Machine, Replay, Request
from besiege.bench.store import Store
from besiege.bench.task import Task
from besiege.bench.working import attempt
from besiege.core.errors import (
    ChangedError,
    InputError,
    StoreError,
    ThreatError,
    UnknownNameError,
    VictimError,
    near,
)
from besiege.metrics.distances import quantile
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.figures import rate
from besiege.metrics.intervals import Rate


@dataclass(frozen=True)
class Imported:
    """What images made elsewhere changed in one evaluation.

    Attributes
    ----------
    model, threat, attack : str
        The evaluation, and what its tables call the images.
    images : int
        The number of images.
    broken : int
        Those that broke the model within the threat, of samples that it classifies correctly.
    new : int
        Of these, images of samples that withstood every attack before; without a budget, those
        with a smaller perturbation than any before.
    outside : int
        Images beyond the budget, which are no successes.
    before, after : Rate, optional
        Robust accuracy without and with them; None where no sample was judged under every attack.
        Of several in one import, the second is counted after the first.
    median_before, median_after : float, optional
        Without a budget, the median of the smallest perturbations.
    """

    model: str
    threat: str
    attack: str
    images: int
    broken: int
    new: int
    outside: int
    before: Rate | None
    after: Rate | None
    median_before: float | None = None
    median_after: float | None = None


@dataclass(frozen=True)
class Import:
    """The evaluations that took the images, and in words why others did not."""

    taken: tuple[Imported, ...]
    left_out: tuple[str, ...]


def import_images(
    folder: Path | str,
    source: Path | str,
    *,
    model: str | None = None,
    threat: str | None = None,
    how: Machine | None = None,
) -> Import:
    """Judge images made elsewhere as part of the evaluations of a run that have their samples.

    Everything is read and checked before anything is written. An import that was killed resumes.

    Parameters
    ----------
    folder : path
        The run folder.
    source : path
        An ``.npz`` file with ``images`` (or ``x``) and ``ids``, or another run folder.
    model, threat : str, optional
        Only the evaluations of this model, or against this threat.
    how : Machine, optional
        Where it is computed.

    Returns
    -------
    Import
        What the images broke.
    """
    how = how or Machine()
    store, run = open_run(folder)
    given = read_given(Path(source))
    plans = chosen_plans(run, model, threat)
    prepared = prepare([(asked_again(plan), None) for plan in plans], store.folder, run, how)
    work, left_out = [], []
    problems: list[InputError | ThreatError] = []
    for plan, fresh, resolved in zip(plans, prepared.plans, prepared.resolved, strict=True):
        if fresh.name != plan.name:
            raise ChangedError(
                f"the model '{plan.model.name}', its data or its attacks changed since the "
                f"evaluation against {plan.threat}: evaluate it again first"
            )
        context = context_of(store, resolved, plan, how)
        found, why = _placed(plan, given, context)
        if found:
            must_answer_as_recorded(store, plan, context)
            work.append((plan, context, found))
        else:
            problems += why
            left_out.append(f"{run.title_of(plan)} against {plan.threat}: {why[0]}")
    if not work:
        raise problems[0]
    taken: list[Imported] = []
    with store.writing(), Claims(store) as claims:
        for plan, context, found in work:
            plan = add_images(store, plan, context, found, claims)
            name = run.title_of(plan)
            taken += [replace(one, model=name) for one in _changes(store, plan, found)]
    write_figures(store.folder)
    return Import(tuple(taken), tuple(left_out))


def chosen_plans(run: Run, model: str | None, threat: str | None) -> list[Plan]:
    """The evaluations of a model and a threat; an error with near matches without any."""
    # Another request may have the same answer: it takes the images, too.
    plans = list({plan.name: plan for plan in run.current}.values())
    for what, name in (("model", model), ("threat", threat)):
        names = [run.title_of(plan) if what == "model" else plan.threat for plan in plans]
        name = run.short_names.get(name, name) if what == "model" and name else name
        if name is not None and name not in names:
            raise UnknownNameError(f"no {what} of this run is '{name}': {near(name, names)}")
        plans = [plan for plan, one in zip(plans, names, strict=True) if name in (None, one)]
    for plan in plans:
        if plan.changed:
            raise StoreError(f"{plan.damage[0]}: its own command writes it again")
        if not plan.request.textual:
            raise InputError(
                f"the model or the data of '{plan.model.name}' against {plan.threat} existed only "
                "in memory, so that the images cannot be judged: evaluate a model of a file"
            )
    return plans


def asked_again(plan: Plan) -> Request:
    """The request of a plan as it can be made again: a suite lists its attacks itself."""
    listed = plan.request.attacks if plan.request.suite is None else None
    return plan.request.model_copy(update={"attacks": listed})


def _placed(
    plan: Plan, given: Sequence[Given], context: Context
) -> tuple[list[Placed], list[InputError | ThreatError]]:
    """All images that belong to the samples of a plan; why not, if there are none."""
    found: list[Placed] = []
    why: list[InputError | ThreatError] = []
    for one in given:
        try:
            must_fit(plan, one)
            placed = place(plan, one, context)
        except (InputError, ThreatError) as problem:
            why.append(problem)
        else:
            found.append(placed)
            plan = plan.replaying([placed.replay])  # others must not take its name
    return found, why


def add_images(
    store: Store, plan: Plan, context: Context, found: Sequence[Placed], claims: Claims
) -> Plan:
    """Store the images, add them to the plan, and judge them; the plan with them."""
    return add_all(store, [(plan, context, found)], claims)[0]


def add_all(
    store: Store, work: Iterable[tuple[Plan, Context, Sequence[Placed]]], claims: Claims
) -> list[Plan]:
    """The same for several plans: ``run.json`` is written once for all.

    The images come first: a plan never names images that are not in the folder. `work` may make
    them one plan after the other, so that those of one are held at a time.
    """
    stored: list[tuple[Context, str, list[Replay]]] = []
    for plan, context, found in work:
        context.given = {digest: arrays for one in found for digest, arrays in one.arrays.items()}
        replays = [one.replay for one in found]
        images = [
            image_task(plan, replay, number)
            for replay in replays
            for number, digest in enumerate(replay.images)
            if digest
        ]
        run_all([_Tasks(images, context, claims)])
        stored.append((context, plan.name, replays))
    if not stored:
        return []
    wanted = {name: replays for _, name, replays in stored}

    def add(run: Run | None) -> Run:
        same = [] if run is None else [one for one in run.current if one.name in wanted]
        if run is None or {one.name for one in same} != wanted.keys():
            raise StoreError(f"an evaluation was removed from {store.folder} meanwhile")
        for one in same:
            run = run.with_plan(one.replaying(wanted[one.name]))
        return run

    now = {one.name: one for one in update_run(store, add).current}
    for context, name, replays in stored:
        texts = now[name].called(replays)
        stages = [stage for stage in now[name].stages_of("replay") if stage.name in texts]
        judging = [tasks[-1] for stage in stages for tasks in stage.parts]
        run_all([_Tasks(judging, context, claims)])
    return [now[name] for _, name, _ in stored]


class _Tasks:
    """Some tasks of a plan, without its attacks: they are done, or other processes do them."""

    def __init__(self, tasks: Sequence[Task], context: Context, claims: Claims) -> None:
        self._left = list(tasks)
        self._context = context
        self._claims = claims

    @property
    def over(self) -> bool:
        return not self._left

    def turn(self) -> bool:
        """Do what no other process does; False if there was nothing."""
        before = len(self._left)
        self._left = [task for task in self._left if not self._attempted(task)]
        return len(self._left) < before

    def _attempted(self, task: Task) -> bool:
        if attempt([task], self._context, self._claims)[task.key] == "held":
            return False
        record = self._context.store.read(task.key)
        if record is not None and record.failure is not None:
            raise VictimError(f"the images could not be judged: {record.failure['message']}")
        return True


def _changes(store: Store, plan: Plan, found: Sequence[Placed]) -> list[Imported]:
    """What images changed in an evaluation, each after all other attacks and those before it."""
    evidence = gather(store, plan).evidence
    mine = plan.called(one.replay for one in found)
    given = [trial for trial in evidence.trials if trial.text in mine]
    others = [trial for trial in evidence.trials if trial.text not in mine]
    return [
        _change(plan, evidence, [*others, *given[:number]], trial)
        for number, trial in enumerate(given)
    ]


def _change(plan: Plan, evidence: Evidence, others: Sequence[Trial], trial: Trial) -> Imported:
    known, broken = evidence.covered_by_all(), evidence.broken(trial)
    before, after = (
        rate(int(evidence.standing(some)[known].sum()), int(known.sum()))
        for some in (others, [*others, trial])
    )
    stood = evidence.clean["sample"][evidence.standing(others)]
    new = int(np.isin(evidence.broken_ids(trial), stood).sum())
    medians: list[float | None] = [None, None]
    if evidence.eps is None and evidence.curve is not None and known.any():
        sizes = [evidence.smallest(some)[1] for some in (others, [*others, trial])]
        new = int((sizes[1] < sizes[0]).sum())
        medians = [quantile(size) for size in sizes]
    rows = trial.rows
    return Imported(
        plan.model.name,
        plan.threat,
        trial.text,
        rows.count,
        int(broken.sum()),
        new,
        int((~(rows["valid"].astype(bool) & rows["within"].astype(bool))).sum()),
        before,
        after,
        *medians,
    )
