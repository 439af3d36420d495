"""The public function `evaluate`: models under threats, on one set of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload
from weakref import finalize

import numpy as np
from torch import nn

from besiege.attacks.attack import Attack
from besiege.bench import origin
from besiege.bench.answered import remember, stamp_of
from besiege.bench.command import command_of
from besiege.bench.context import context_of
from besiege.bench.folder import run_folder
from besiege.bench.plan import Plan
from besiege.bench.planning import plan_of
from besiege.bench.reading import gather
from besiege.bench.request import Objects, ResolvedRequest, check_numbers, requested, resolve
from besiege.bench.results import write_figures
from besiege.bench.run import Run, read_run, write_run
from besiege.bench.runner import Runner, versions
from besiege.bench.spec import Machine, Request
from besiege.bench.store import Store
from besiege.bench.work_estimate import Watch, WorkEstimate
from besiege.core.errors import Finding, InputError, VictimError, near
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.evaluation.transfer import Model
from besiege.metrics.cascade import fates, first_place
from besiege.metrics.distances import smallest
from besiege.metrics.intervals import Rate
from besiege.metrics.rows import Rows
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.models.black_box import black_box, paid
from besiege.models.endpoint import kept_below

if TYPE_CHECKING:
    from besiege.bench.comparison import PairedComparison


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The result of an evaluation, computed from judged records only.

    Attributes
    ----------
    clean, robust : Rate
        Accuracy on clean images, and accuracy under all attacks, each with a 95 % interval:
        ``value``, ``low``, ``high``, ``count``. Robust is over the samples that every attack was
        judged on, and None without such samples.
    by_attack : dict of str to Rate
        Accuracy under each attack, by its text; in a suite, under it and those before it. Failed
        attacks are left out. `by_sample` has the result of each sample.
    warnings : tuple of Finding
        Signs that a figure may be misleading.
    figures : EvaluationFigures
        All figures: curves, costs, the gallery. ``figures.plain()`` gives them as in
        ``figures.json``, in dictionaries and lists.
    folder : Path
        The run folder.
    paid : dict, optional
        For a black-box model ``(asked, sent)`` by account: queries, and images that were sent. The
        ledger answers images that were sent before; failed attempts count as sent.
    """

    clean: Rate
    robust: Rate | None
    by_attack: Mapping[str, Rate]
    warnings: tuple[Finding, ...]
    figures: EvaluationFigures
    folder: Path
    complete: bool
    _plan: Plan
    _run: RunFigures
    paid: Mapping[str, tuple[int, int]] | None = None
    _held: object = None
    """Keeps a temporary run folder."""

    @cached_property
    def rows(self) -> Rows:
        """One row per sample and attack: verdicts, distances, steps and costs.

        ``first`` says whether this attack was the first in the list to break the sample.
        """
        evidence = gather(Store(self.folder), self._plan).evidence
        samples, place = evidence.clean["sample"], first_place(evidence)
        tables = [
            trial.rows.having(
                attack=np.full(trial.rows.count, trial.text),
                first=np.isin(trial.rows["sample"], samples[place == number]),
            )
            for number, trial in enumerate(evidence.trials)
        ]
        return Rows.joined(tables)

    @cached_property
    def by_sample(self) -> Rows:
        """The result of each sample: the first attack that broke it, and the cost.

        ``fate`` is 'wrong' (misclassified when clean), 'broken', 'standing' or 'unknown';
        ``attack`` is the first that broke it, in the order of the list; ``queries``, ``forwards``
        and ``backwards`` are the cost up to then, earlier attacks included.
        """
        return fates(gather(Store(self.folder), self._plan).evidence)

    @cached_property
    def smallest(self) -> Rows:
        """The smallest perturbation found for each sample, and its size in every norm.

        ``distance`` is in the threat's norm: 0 where a sample was misclassified when clean,
        infinite where no attack succeeded. ``attack`` is the attack that found it. With a budget,
        the samples are those of the curve.
        """
        return smallest(gather(Store(self.folder), self._plan).evidence)

    def compare(
        self, other: Comparable, *others: Comparable, common: bool = False
    ) -> PairedComparison:
        """Compare this result with others, sample by sample: which model is more robust?

        Parameters
        ----------
        other, others : Evaluation, Evaluations or path
            Results of the same threat on the same samples, or run folders with such results.
        common : bool
            Compare results on other samples of the same data, on the samples that all have.

        Returns
        -------
        PairedComparison
            Printed, it says the result in sentences; ``pairs`` has the differences with intervals
            and p-values, and the ids of the samples on which two models differ.

        Examples
        --------
        >>> import besiege
        >>> one, two = besiege.evaluate(
        ...     ["zoo:digits-natural", "zoo:digits-pgd-at"],
        ...     "digits",
        ...     threat="linf:0.15",
        ...     attacks="pgd",
        ...     count=50,
        ...     curve=False,
        ... )
        >>> (pair,) = one.compare(two).pairs
        >>> pair.first, pair.clear
        ('zoo:digits-pgd-at', True)
        """
        return _compared((self, other, *others), common)

    def page(self, path: Path | str | None = None) -> Path:
        """Write the HTML page of the run; by default into its folder."""
        from besiege.report import write_page

        return Path(write_page(self.folder, path))

    def __repr__(self) -> str:
        figures = self.figures
        lines = [f"{figures.model.name} on {figures.data.name}, {figures.threat.text}"]
        lines.append(f"  clean     {self.clean}")
        known = self.robust or "unknown: no image was judged under every attack"
        lines.append(f"  robust    {known}")
        lines += [f"  {text}  {rate}" for text, rate in self.by_attack.items()]
        lines += [f"  {finding}" for finding in self.warnings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from besiege.report import fragment

        return str(fragment(RunFigures.of(self.figures)))


class Evaluations(Sequence[Evaluation]):
    """The results of several models or threats, in the order in which they were requested.

    Parameters
    ----------
    evaluations : sequence of Evaluation
        The results, of one run folder.

    Examples
    --------
    >>> import besiege
    >>> found = besiege.evaluate(
    ...     ["zoo:digits-natural", "zoo:digits-pgd-at"],
    ...     "digits",
    ...     threat="linf:0.15",
    ...     attacks="fgsm",
    ...     count=20,
    ...     curve=False,
    ... )
    >>> found.names
    ['zoo:digits-natural', 'zoo:digits-pgd-at']
    >>> found["zoo:digits-pgd-at"].robust > found[0].robust  # doctest: +SKIP
    True
    """

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self._evaluations = tuple(evaluations)

    @property
    def names(self) -> list[str]:
        """The model of each, with its threat where there are several threats."""
        figures = [one.figures for one in self]
        several = len({one.threat.text for one in figures}) > 1
        return [
            f"{one.model.name} against {one.threat.text}" if several else one.model.name
            for one in figures
        ]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self[0].folder

    @property
    def complete(self) -> bool:
        """Whether all their records exist."""
        return all(one.complete for one in self)

    @overload
    def __getitem__(self, which: int | str) -> Evaluation: ...

    @overload
    def __getitem__(self, which: slice) -> Evaluations: ...

    def __getitem__(self, which: int | str | slice) -> Evaluation | Evaluations:
        if isinstance(which, slice):
            return Evaluations(self._evaluations[which])
        if isinstance(which, int):
            return self._evaluations[which]
        names = self.names
        if names.count(which) != 1:
            known = f"{near(which, names)}" if which not in names else "use a number instead"
            problem = "several evaluations are" if which in names else "no evaluation is"
            raise InputError(f"{problem} called {which!r}: {known}")
        return self._evaluations[names.index(which)]

    def __len__(self) -> int:
        return len(self._evaluations)

    def page(self, path: Path | str | None = None) -> Path:
        """Write the HTML page of the run; by default into its folder."""
        return self[0].page(path)

    def compare(self, *others: Comparable, common: bool = False) -> PairedComparison:
        """Compare these results with each other, and with others (see `Evaluation.compare`)."""
        return _compared((self, *others), common)

    @property
    def figures(self) -> RunFigures:
        """The figures of all of them, as tables and pages take them."""
        every = tuple(one.figures for one in self)
        return replace(self[0]._run, evaluations=every, complete=self.complete)

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        from besiege.report import fragment

        return str(fragment(self.figures))


Comparable = Evaluation | Evaluations | Path | str
"""A result, several, or the run folder of some."""


def _compared(results: Sequence[Comparable], common: bool) -> PairedComparison:
    from besiege.bench.comparable import Candidate, candidate_of, candidates_of
    from besiege.bench.comparison import compare

    candidates: list[Candidate] = []
    for number, result in enumerate(results):
        if isinstance(result, (Path, str)):
            candidates += candidates_of([result])
        elif isinstance(result, (Evaluation, Evaluations)):
            for one in [result] if isinstance(result, Evaluation) else result:
                candidates.append(candidate_of(one.folder, one._plan, one.figures, number))
        else:
            raise InputError(
                "results of besiege.evaluate and run folders can be compared, but not "
                f"{type(result).__name__}"
            )
    return compare(candidates, common=common)


Several = list[Any] | tuple[Any, ...]
"""Several models, or several threats."""


class Options(TypedDict, total=False):
    """The options of `evaluate`, for type checkers; its docstring explains them."""

    attacks: str | Attack | Sequence[str | Attack] | None
    suite: str | Attack | Sequence[str | Attack] | None
    goal: str | None
    access: str | None
    queries: int | None
    curve: str | bool
    count: int | None
    seed: int
    out: Path | str | None
    split: str
    shard: int | None
    batch: int | None
    compile: bool
    device: str | None
    substitute: Model | Sequence[Model] | None
    fuse: str
    progress: bool
    watch: Watch | None
    command: str | None


@overload
def evaluate(
    model: str | nn.Module | Victim,
    data: str | Path | Data | tuple[Any, Any],
    *,
    threat: str | Threat,
    **options: Unpack[Options],
) -> Evaluation: ...


@overload
def evaluate(
    model: Several,
    data: str | Path | Data | tuple[Any, Any],
    *,
    threat: str | Threat | Several,
    **options: Unpack[Options],
) -> Evaluations: ...


@overload
def evaluate(
    model: Model,
    data: str | Path | Data | tuple[Any, Any],
    *,
    threat: Several,
    **options: Unpack[Options],
) -> Evaluations: ...


def evaluate(
    model: Model | Several,
    data: str | Path | Data | tuple[Any, Any],
    *,
    threat: str | Threat | Several,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    suite: str | Attack | Sequence[str | Attack] | None = None,
    goal: str | None = None,
    access: str | None = None,
    queries: int | None = None,
    curve: str | bool = "short",
    count: int | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    split: str = "test",
    shard: int | None = None,
    batch: int | None = None,
    compile: bool = False,
    device: str | None = None,
    substitute: Model | Sequence[Model] | None = None,
    fuse: str = "logits",
    progress: bool = False,
    watch: Watch | None = None,
    command: str | None = None,
) -> Evaluation | Evaluations:
    """Measure how robust a model is: attack it, judge every image again, keep the records.

    Parameters
    ----------
    model : str, nn.Module or Classifier, or a list of them
        ``zoo:NAME``, ``public:NAME``, ``ARCH(...):weights.safetensors``,
        ``path/to/file.py:factory``, ``path/file.onnx``, ``http://HOST/PATH``, any of them with
        ``+layer`` defenses, or the model itself. Several models are evaluated one after the other
        into one folder.
    data : str, path, Data or (images, labels)
        A name, a folder of class folders, an ``.npz`` with ``x`` and ``y``, or tensors.
    threat : str or Threat, or a list of them
        What the attacker may do: ``"linf:8/255"``, ``"l2:0.5"``, or ``"linf"`` for the smallest
        perturbation. Several threats are evaluated one after the other.
    attacks : str or sequence, optional
        Attacks to run, each on every sample. Without attacks and suite: one step, many steps, and
        many steps to each of the three likeliest wrong classes; the suite ``"score"`` or
        ``"decision"`` without access to gradients; ``"pgd, dim, sinifgsm"`` with a substitute.
    suite : str or sequence, optional
        Attacks that each run on the samples that withstood the ones before: ``"standard"`` and
        other names, or a list.
    goal : str, optional
        ``untargeted`` (the default), ``targeted:random``, ``targeted:least-likely`` or
        ``targeted:second``.
    access : str, optional
        ``gradient``, ``score`` or ``decision``; by default all that the model grants.
    queries : int, optional
        Query limit per sample.
    curve : {"short", "full", "none"} or bool
        Accuracy against the budget, by the strongest attack: with 20 steps on at most 200 samples,
        with its own steps on all of them, or none. The short one has distances precise to 1 %.
    count, seed, split
        Number of samples and part of the data set; the seed decides the choice of samples and all
        random numbers.
    out : path, optional
        The run folder. Its records are reused, so an interrupted evaluation resumes. Without a
        folder, records exist as long as the result.
    shard : int, optional
        Samples per record, the most that a killed run loses. 100 by default, 500 where the model
        runs on a GPU.
    batch, device
        Rows per call of the model, and its device; a model from a text uses a GPU if there is one.
    compile : bool
        On a GPU, compile the copy that attacks search on: up to a minute at first, then a third
        faster. Results change only by rounding.
    substitute : model or sequence of models, optional
        A model whose gradients the attacker has. Attacks that need gradients are crafted on it,
        keep their last point, and are judged on the victim (transfer); ``prgf`` uses its gradients
        as a prior. Several models form one ensemble.
    fuse : {"logits", "probabilities", "losses"}
        Outputs of the ensemble that are averaged.
    progress : bool
        Show a progress bar with the time left.
    watch : callable, optional
        Called with an event whenever the work has advanced.
    command : str, optional
        The command that the report names to reproduce it; by default derived from the arguments.

    Returns
    -------
    Evaluation or Evaluations
        One result, or a sequence of them where models or threats were given in a list.

    Examples
    --------
    >>> import besiege
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural", "digits", threat="linf:0.15", attacks="pgd", count=50, curve=False
    ... )
    >>> found.robust is not None and found.robust.value <= found.clean.value
    True
    """
    check_numbers(batch=batch)
    models, threats = listed(model, "model"), listed(threat, "threat")
    requests = [
        requested(
            one,
            data,
            threat=allowed,
            attacks=attacks,
            suite=suite,
            goal=goal,
            access=access,
            queries=queries,
            curve=curve,
            count=count,
            seed=seed,
            split=split,
            shard=shard,
            substitute=substitute,
            fuse=fuse,
            command=command or "",
        )
        for one in models
        for allowed in threats
    ]
    how = Machine(device, batch, compile)
    found = measure(requests, out=out, how=how, progress=progress, watch=watch)
    return found if is_several(model) or is_several(threat) else found[0]


def is_several(given: object) -> bool:
    """Whether models or threats were given in a list."""
    return isinstance(given, (list, tuple))


def listed(given: Any, what: str) -> list[Any]:
    """Models or threats as a list; an empty one is refused."""
    some = list(given) if is_several(given) else [given]
    if not some:
        raise InputError(f"no {what} is listed: give at least one")
    return some


Requests = Sequence[tuple[Request, Objects | None]]


def measure(
    requests: Requests,
    *,
    out: Path | str | None = None,
    how: Machine | None = None,
    progress: bool = False,
    watch: Watch | None = None,
    accept: Callable[[Plan], None] | None = None,
) -> Evaluations:
    """Run requests into one folder: the common path of `evaluate` and of the command line.

    All of them are read before the first runs, so that wrong input is found before any work.
    `accept` sees every plan before anything is written, and may raise an error.
    """
    how = how or Machine()
    check_numbers(batch=how.batch)
    folder = None if out is None else run_folder(out)
    stamps = [None if folder is None else stamp_of(request) for request, _ in requests]
    resolved = [_resolved(request, objects, folder, how) for request, objects in requests]
    store = Store(mkdtemp(prefix="besiege-") if folder is None else folder)
    try:
        for one in resolved:
            kept_below(black_box(one.victim), store.folder)
        plans = [plan_of(one) for one in resolved]
        _must_differ(plans)
        if accept is not None:
            for plan in plans:
                accept(plan)
        with _bar(plans[0].model.name, watch, progress) as shown:
            steps = _titled(plans, shown)
            done = [_run(store, *one, how) for one in zip(resolved, plans, steps, strict=True)]
        with store.writing():
            figures = write_figures(store.folder)
        results = [
            _evaluation(figures, store.folder, plan, paid(one.victim))
            for plan, one in zip(done, resolved, strict=True)
        ]
    except BaseException:
        if folder is None:
            rmtree(store.folder, ignore_errors=True)
        raise
    for result, stamp in zip(results, stamps, strict=True):
        if result.complete and result.paid is None:
            remember(store, stamp, result.figures.name)
    if folder is None:  # the results read from it as long as one of them exists
        held = _Held()
        finalize(held, rmtree, store.folder, ignore_errors=True)
        results = [replace(result, _held=held) for result in results]
    return Evaluations(results)


class _Held:
    """Keeps a temporary folder as long as a result refers to it."""


def _resolved(
    request: Request, objects: Objects | None, folder: Path | None, how: Machine
) -> ResolvedRequest:
    resolved = resolve(request, objects, how.device)
    if request.shard is None and folder is not None:
        resolved = replace(resolved, request=_as_begun(resolved.request, folder))
    asked = resolved.request
    return replace(
        resolved, request=asked.model_copy(update={"command": asked.command or command_of(asked)})
    )


def _must_differ(plans: Sequence[Plan]) -> None:
    """Refuse evaluations that are the same, or of which one would hide the other."""
    for number, plan in enumerate(plans):
        for other in plans[:number]:
            what = f"'{plan.model.name}' against {plan.threat}"
            if other.name == plan.name:
                raise InputError(f"{what} is listed twice")
            if other.series == plan.series:
                raise InputError(
                    f"two models are called {what}: give each a name, with "
                    "besiege.Classifier(module, name='...')"
                )


def _titled(plans: Sequence[Plan], watch: Watch | None) -> list[Watch | None]:
    """For each plan a watcher that shows its events as part of the whole work."""
    if watch is None or len(plans) == 1:
        return [watch] * len(plans)
    totals = [WorkEstimate(plan).total for plan in plans]

    def watcher(number: int, show: Watch) -> Watch:
        plan, before, after = plans[number], sum(totals[:number]), sum(totals[number + 1 :])
        title = f"{number + 1} of {len(plans)}: {plan.model.name} against {plan.threat}"
        return lambda event: show(
            replace(
                event, done=before + event.done, total=before + event.total + after, title=title
            )
        )

    return [watcher(number, watch) for number in range(len(plans))]


def _bar(
    title: str, watch: Watch | None, progress: bool
) -> AbstractContextManager[Callable[[Any], None] | None]:
    if not progress or watch is not None:
        return nullcontext(watch)
    from besiege.report import bar

    return bar(title)


def _as_begun(request: Request, folder: Path) -> Request:
    """The request with the shard size of the folder, so that it resumes on another device."""
    run = read_run(Store(folder))
    for plan in () if run is None else run.plans:
        begun = request.model_copy(
            update={"shard": plan.request.shard, "command": plan.request.command}
        )
        if begun == plan.request:
            return begun.model_copy(update={"command": request.command or begun.command})
    return request


def _run(
    store: Store, resolved: ResolvedRequest, plan: Plan, watch: Watch | None, how: Machine
) -> Plan:
    """Do the tasks of a plan that have no records; the plan with its curve."""
    with store.writing():
        run = read_run(store) or Run(created=origin.now(), versions=versions())
        run = run.model_copy(update={"versions": versions()})
        plan = _dated(plan, run)
        earlier = run.plan(plan.name)
        shown = plan
        if earlier is not None and not earlier.changed and plan.no_curve is None:
            shown = plan.model_copy(update={"curve": earlier.curve})
        write_run(store, run.with_plan(shown))
        runner = Runner(plan, context_of(store, resolved, plan, how), watch)
        return runner.run(lambda decided: write_run(store, run.with_plan(decided)))


def _dated(plan: Plan, run: Run) -> Plan:
    """The plan with its date and commit: those of now, or as written if it is the current one."""
    for old in run.current:
        if old.name == plan.name and not old.changed:
            return plan.model_copy(update={"made": old.made, "commit": old.commit})
    return plan.model_copy(update={"made": origin.now(), "commit": origin.commit()})


def _evaluation(
    run: RunFigures, folder: Path, plan: Plan, counts: Mapping[str, tuple[int, int]] | None
) -> Evaluation:
    mine = next(one for one in run.evaluations if one.name == plan.name)
    if mine.clean is None:
        failed = next((one.seen for one in mine.warnings if one.id == "FAILED"), "")
        raise VictimError(f"the model failed on all clean images. {failed}")
    return Evaluation(
        mine.clean,
        mine.robust,
        {one.text: one.accuracy for one in mine.attacks if one.accuracy is not None},
        mine.warnings,
        mine,
        folder,
        mine.complete,
        plan,
        run,
        counts,
    )
