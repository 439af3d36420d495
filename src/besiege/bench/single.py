"""The public `evaluate`: the bench with one model, one set of samples and one threat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from besiege.bench.command import command_of
from besiege.bench.folder import run_folder
from besiege.bench.knowledge import Knowledge, each, read_fuse, read_knowledge
from besiege.bench.model_spec import name_of
from besiege.bench.planning import plan_of, with_curve
from besiege.bench.reading import gather
from besiege.bench.request import ResolvedRequest, check_numbers, read_curve, resolve
from besiege.bench.results import write_figures
from besiege.bench.runner import Runner, versions
from besiege.bench.shards import shards_of, usual_size
from besiege.bench.spec import Plan, Request, Run, read_run, write_run
from besiege.bench.store import Store
from besiege.bench.work_estimate import Watch
from besiege.core.errors import Finding, VictimError
from besiege.core.oracle import Victim
from besiege.core.threat import Threat
from besiege.data.dataset import Data
from besiege.evaluation.transfer import Model
from besiege.metrics.cascade import fates, first_place
from besiege.metrics.distances import smallest
from besiege.metrics.intervals import Rate
from besiege.metrics.rows import Rows
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.models.black_box import black_box, paid
from besiege.models.classifier import Classifier
from besiege.models.endpoint import kept_below


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """What an evaluation found, from judged records alone.

    Attributes
    ----------
    clean, robust : Rate
        Accuracy on clean images, and the share of samples that no attack broke, each with a 95 %
        interval: ``value``, ``low``, ``high``, ``count``. Robust is of the samples that every
        attack was judged on, and None where there are none: what was not attacked is not robust.
    by_attack : dict of str to Rate
        Accuracy under each attack, by its text; in a suite, after it and those before it. An
        attack that failed is not in it. What became of each sample is in `by_sample`.
    warnings : tuple of Finding
        Signs that a figure may not mean what it seems to.
    figures : EvaluationFigures
        All figures: curves, costs, the gallery. ``figures.plain()`` gives them as ``figures.json``
        has them, in dictionaries and lists.
    folder : Path
        The run folder.
    paid : dict, optional
        Of a model behind a wall, ``(asked, sent)`` by account: images asked about, and images that
        were sent to it. What the ledger knew was not sent again; attempts that failed were sent.
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
        """What became of each sample: which attack broke it first, and what that took.

        ``fate`` is 'wrong' (when clean already), 'broken', 'standing' or 'unknown'; ``attack`` is
        the first that broke it, in the order of the list; ``queries``, ``forwards`` and
        ``backwards`` are what had been spent on it by then, earlier attacks included.
        """
        return fates(gather(Store(self.folder), self._plan).evidence)

    @cached_property
    def smallest(self) -> Rows:
        """The smallest change found for each sample, and what that image is in every norm.

        ``distance`` is in the threat's norm: 0 where a sample was wrong when clean, infinite where
        nothing was found. ``attack`` is what found it. With a budget, the samples are those that
        the curve was made of.
        """
        return smallest(gather(Store(self.folder), self._plan).evidence)

    def page(self, path: Path | str | None = None) -> Path:
        """Write the HTML page of the run; into its folder where no path is given."""
        from besiege.report import write_page

        return Path(write_page(self.folder, path))

    def __repr__(self) -> str:
        found = self.figures
        lines = [f"{found.model.name} on {found.data.name}, {found.threat.text}"]
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
    data: str | Path | Data | tuple[Any, Any],
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
    """Measure how robust a model is: attack it, judge every image afresh, keep the records.

    Parameters
    ----------
    model : str, nn.Module or Classifier
        ``zoo:NAME``, ``public:NAME``, ``ARCH(...):weights.safetensors``,
        ``path/to/file.py:factory``, ``path/file.onnx``, ``http://HOST/PATH``, any of them with
        ``+layer`` defenses, or the thing itself.
    data : str, path, Data or (images, labels)
        A name, a folder of class folders, an ``.npz`` with ``x`` and ``y``, or tensors.
    threat : str or Threat
        What the attacker may do: ``"linf:8/255"``, ``"l2:0.5"``, or ``"linf"`` for the smallest
        change.
    attacks : str or sequence, optional
        Attacks to run, each on every sample; one step, many steps, and many steps
        to each of the three likeliest wrong classes when neither attacks nor a suite are given;
        without gradients the suite of the access; with a substitute ``"pgd, dim, sinifgsm"``.
    suite : str or sequence, optional
        Attacks that each run on what the ones before left: ``"standard"`` and other names, or a
        list of one's own.
    goal : str, optional
        ``untargeted`` (the default), ``targeted:random``, ``targeted:least-likely`` or
        ``targeted:second``.
    access : str, optional
        ``gradient``, ``score`` or ``decision``; what the model grants by default.
    queries : int, optional
        The most answers an attack may use for one sample.
    curve : {"short", "full", "none"} or bool
        Accuracy against the budget, by the strongest attack: with 20 steps on at most 200 samples,
        with its own steps on all of them, or not at all. The short one knows each distance to 1 %.
    count, seed, split
        How many samples of which part of the data, chosen by the seed; the seed also decides
        every draw.
    out : path, optional
        The run folder. Records in it are used again, so that an interrupted evaluation goes on.
        Without one, records live as long as the result.
    shard : int, optional
        Samples per record: what is lost at most when a run is killed. 100 by default, 500 where
        the model runs on a GPU.
    batch, device
        Rows per call of the model, and where it runs; a named model goes to a GPU where there is
        one.
    compile : bool
        On a GPU, have the copy that attacks search on compiled: up to a minute at first, then a
        third faster. It changes no verdict but by rounding.
    substitute : model or sequence of models, optional
        A model of one's own for the victim's gradients. Attacks that need gradients are crafted on
        it, keep their last point, and are judged on the victim (transfer); ``prgf`` takes its
        advice. Several are one ensemble.
    fuse : {"logits", "probabilities", "losses"}
        What such an ensemble takes the mean of.
    progress : bool
        Show a progress bar with the time left.
    watch : callable, optional
        Told how far the work is.
    command : str, optional
        What the report says reproduces it; made up from the arguments when not given.

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
    check_numbers(queries=queries, count=count, seed=seed, shard=shard, batch=batch)
    out = None if out is None else run_folder(out)
    resolved = resolve(
        model,
        data,
        threat,
        attacks=attacks,
        suite=suite,
        goal=goal,
        access=access,
        split=split,
        count=count,
        seed=seed,
        device=device,
        alone=substitute is None,
    )
    victim, chosen, suite = resolved.victim, resolved.attacks, resolved.suite
    request = Request(
        model=model if isinstance(model, str) else name_of(victim),
        data=str(data) if isinstance(data, (str, Path)) else resolved.data.name,
        split=split,
        threat=str(resolved.threat),
        attacks=tuple(chosen),
        suite=suite if suite is None or isinstance(suite, str) else ", ".join(chosen),
        queries=queries,
        curve=read_curve(curve),
        count=count,
        seed=seed,
        shard=shard or usual_size(victim),
        command="",
        substitute=_named(substitute),
        fuse=read_fuse(fuse),
        textual=command is not None or (isinstance(model, str) and isinstance(data, (str, Path))),
    )
    if shard is None and out is not None:
        request = _as_begun(request, out)
    request = request.model_copy(update={"command": command or command_of(request)})
    knowledge = read_knowledge(substitute, request.fuse, victim, resolved.data)
    store = Store(mkdtemp(prefix="besiege-") if out is None else out)
    how: dict[str, Any] = {"batch": batch, "compiled": compile}
    try:
        found = _measured(store, resolved, request, knowledge, progress, watch, **how)
    except BaseException:
        if out is None:
            rmtree(store.folder, ignore_errors=True)
        raise
    if out is None:  # as long as somebody may read from it
        finalize(found, rmtree, store.folder, ignore_errors=True)
    return found


def _measured(
    store: Store,
    resolved: ResolvedRequest,
    request: Request,
    knowledge: Knowledge,
    progress: bool,
    watch: Watch | None,
    **how: Any,
) -> Evaluation:
    """Plan the work and do it, under a progress bar where one is wanted."""
    kept_below(black_box(resolved.victim), store.folder)
    plan = plan_of(resolved, request, knowledge)
    if not progress or watch is not None:
        return _run(store, resolved, plan, knowledge, watch=watch, **how)
    from besiege.report import bar

    with bar(plan.model.name) as shown:
        return _run(store, resolved, plan, knowledge, watch=shown, **how)


def _named(substitute: Model | Sequence[Model] | None) -> tuple[str, ...]:
    """What reports call each model that stands in for the victim."""
    if substitute is None:
        return ()
    return tuple(
        one if isinstance(one, str) else name_of(Classifier.of(one)) for one in each(substitute)
    )


def _as_begun(request: Request, out: Path | str) -> Request:
    """The resolved with the shards in which the folder holds it: on another device it goes on."""
    run = read_run(Store(out))
    for plan in () if run is None else run.plans:
        begun = request.model_copy(
            update={"shard": plan.request.shard, "command": plan.request.command}
        )
        if begun == plan.request:
            return begun
    return request


def _run(
    store: Store, resolved: ResolvedRequest, plan: Plan, knowledge: Knowledge, **how: Any
) -> Evaluation:
    """Do what is planned, but for what the store holds already, and compute the figures."""
    victim, shards = resolved.victim, shards_of(resolved.data, plan.request.shard)
    with store.writing():
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        run = read_run(store) or Run(created=begun, versions=versions())
        earlier = run.plan(plan.name)
        if earlier is not None and not earlier.changed and plan.no_curve is None:
            plan = plan.model_copy(update={"curve": earlier.curve})
        run = run.model_copy(update={"versions": versions()}).with_plan(plan)
        write_run(store, run)
        by_text = {str(attack): attack for attack in resolved.attacks.values()}
        runner = Runner(store, victim, plan, by_text, shards, knowledge=knowledge, **how)
        runner.clean()
        runner.attack()
        plan, searcher, fewer = with_curve(store, resolved, plan, by_text, knowledge)
        write_run(store, run.with_plan(plan))
        if searcher is not None:
            by_text[str(searcher)] = searcher
            runner.extend(plan, fewer)
            runner.search()
        found = write_figures(store.folder)
    return _evaluation(found, store.folder, plan, paid(victim))


def _evaluation(
    run: RunFigures, folder: Path, plan: Plan, counts: Mapping[str, tuple[int, int]] | None
) -> Evaluation:
    found = next(one for one in run.evaluations if one.name == plan.name)
    if found.clean is None:
        failed = next((one.seen for one in found.warnings if one.id == "FAILED"), "")
        raise VictimError(f"the model answered none of the clean images. {failed}")
    return Evaluation(
        found.clean,
        found.robust,
        {one.text: one.accuracy for one in found.attacks if one.accuracy is not None},
        found.warnings,
        found,
        folder,
        found.complete,
        plan,
        run,
        counts,
    )
