"""The public function `evaluate`: one model, one set of samples and one threat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
from torch import nn

from besiege.attacks.attack import Attack
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
from besiege.bench.work_estimate import Watch
from besiege.core.errors import Finding, VictimError
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.evaluation.transfer import Model
from besiege.metrics.cascade import fates, first_place
from besiege.metrics.distances import smallest
from besiege.metrics.intervals import Rate
from besiege.metrics.rows import Rows
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.models.black_box import black_box, paid
from besiege.models.endpoint import kept_below


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


def evaluate(
    model: str | nn.Module | Victim,
    data: Any,
    *,
    threat: str | Threat,
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
) -> Evaluation:
    """Measure how robust a model is: attack it, judge every image again, keep the records.

    Parameters
    ----------
    model : str, nn.Module or Classifier
        ``zoo:NAME``, ``public:NAME``, ``ARCH(...):weights.safetensors``,
        ``path/to/file.py:factory``, ``torchvision:NAME``, ``timm:NAME``, ``hf:REPO``,
        ``robustbench:DATA/THREAT/NAME``, ``path/file.onnx``, ``http://HOST/PATH``, any of them
        with ``+layer`` defenses, or the model itself.
    data : str, path, Data, (images, labels), (files, labels), Dataset or DataLoader
        A name, a folder of class folders, an ``.npz`` with ``x`` and ``y``, tensors or arrays,
        image files, or a dataset or loader of torch that neither shuffles nor augments.
    threat : str or Threat
        What the attacker may do: ``"linf:8/255"``, ``"l2:0.5"``, or ``"linf"`` for the smallest
        perturbation.
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
    Evaluation

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
    request, objects = requested(
        model,
        data,
        threat=threat,
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
    how = Machine(device, batch, compile)
    return measure(request, objects, out=out, how=how, progress=progress, watch=watch)


def measure(
    request: Request,
    objects: Objects | None = None,
    *,
    out: Path | str | None = None,
    how: Machine | None = None,
    progress: bool = False,
    watch: Watch | None = None,
) -> Evaluation:
    """Run a request: the common path of `evaluate` and of the command line."""
    how = how or Machine()
    check_numbers(batch=how.batch)
    folder = None if out is None else run_folder(out)
    stamp = None if folder is None else stamp_of(request)
    resolved = resolve(request, objects, how.device)
    if request.shard is None and folder is not None:
        resolved = replace(resolved, request=_as_begun(resolved.request, folder))
    asked = resolved.request
    resolved = replace(
        resolved, request=asked.model_copy(update={"command": asked.command or command_of(asked)})
    )
    store = Store(mkdtemp(prefix="besiege-") if folder is None else folder)
    try:
        kept_below(black_box(resolved.victim), store.folder)
        plan = plan_of(resolved)
        with _bar(plan.model.name, watch, progress) as shown:
            result = _run(store, resolved, plan, how, shown)
            if result.complete and result.paid is None:
                remember(store, stamp, plan.name)
    except BaseException:
        if folder is None:
            rmtree(store.folder, ignore_errors=True)
        raise
    if folder is None:  # the result reads from it as long as it exists
        finalize(result, rmtree, store.folder, ignore_errors=True)
    return result


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
    store: Store, resolved: ResolvedRequest, plan: Plan, how: Machine, watch: Watch | None
) -> Evaluation:
    """Do the tasks without records, and compute the figures."""
    with store.writing():
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        run = read_run(store) or Run(created=begun, versions=versions())
        run = run.model_copy(update={"versions": versions()})
        earlier = run.plan(plan.name)
        shown = plan
        if earlier is not None and not earlier.changed and plan.no_curve is None:
            shown = plan.model_copy(update={"curve": earlier.curve})
        write_run(store, run.with_plan(shown))
        runner = Runner(plan, context_of(store, resolved, plan, how), watch)
        plan = runner.run(lambda decided: write_run(store, run.with_plan(decided)))
        figures = write_figures(store.folder)
    return _evaluation(figures, store.folder, plan, paid(resolved.victim))


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
