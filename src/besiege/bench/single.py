"""The public function `evaluate`: models under threats, on one set of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypedDict, Unpack, overload
from weakref import finalize

from torch import nn

from besiege.attacks.attack import Attack
from besiege.bench.answered import remember, stamp_of
from besiege.bench.evaluations import Evaluation, Evaluations, evaluation_of
from besiege.bench.expanding import Declared
from besiege.bench.folder import run_folder
from besiege.bench.plan import Plan, Staged
from besiege.bench.preparing import Requests, prepare, prepare_benchmark
from besiege.bench.replaying import replay_declared
from besiege.bench.request import check_numbers, requested
from besiege.bench.results import write_figures
from besiege.bench.run import read_run, short_names
from besiege.bench.sharing import Work, as_texts, check_part, chosen_engine, started
from besiege.bench.spec import Machine
from besiege.bench.store import Store
from besiege.bench.training_plan import trained_text
from besiege.bench.work_estimate import Event, Watch, WorkEstimate
from besiege.core.errors import InputError, VictimError
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.evaluation.transfer import Model
from besiege.models.black_box import paid

Several = list[Any] | tuple[Any, ...]
"""Several models, or several threats."""


class Options(TypedDict, total=False):
    """The options of `evaluate`, for type checkers; its docstring explains them."""

    attacks: str | Attack | Sequence[str | Attack] | None
    suite: str | Attack | Sequence[str | Attack] | None
    goal: str | None
    access: str | None
    target_class: int | str | None
    queries: int | None
    curve: str | bool
    count: int | None
    seed: int
    out: Path | str | None
    split: str
    shard: int | None
    batch: int | None
    compile: bool | None
    device: str | None
    workers: int | None
    substitute: Model | Sequence[Model] | None
    fuse: str
    beside: str | Sequence[str]
    examine: str
    active_test: bool | int
    clever: bool | str
    certify: str | None
    certify_seconds: float
    progress: bool
    watch: Watch | None
    command: str | None


@overload
def evaluate(
    model: str | nn.Module | Victim,
    data: Any,
    *,
    threat: str | Threat,
    **options: Unpack[Options],
) -> Evaluation: ...


@overload
def evaluate(
    model: Several,
    data: Any,
    *,
    threat: str | Threat | Several,
    **options: Unpack[Options],
) -> Evaluations: ...


@overload
def evaluate(
    model: Model,
    data: Any,
    *,
    threat: Several,
    **options: Unpack[Options],
) -> Evaluations: ...


def evaluate(
    model: Model | Several,
    data: Any,
    *,
    threat: str | Threat | Several,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    suite: str | Attack | Sequence[str | Attack] | None = None,
    goal: str | None = None,
    target_class: int | str | None = None,
    access: str | None = None,
    queries: int | None = None,
    curve: str | bool = "short",
    count: int | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    split: str = "test",
    shard: int | None = None,
    batch: int | None = None,
    compile: bool | None = None,
    device: str | None = None,
    workers: int | None = None,
    substitute: Model | Sequence[Model] | None = None,
    fuse: str = "logits",
    beside: str | Sequence[str] = (),
    examine: str = "short",
    active_test: bool | int = False,
    clever: bool | str = False,
    certify: str | None = None,
    certify_seconds: float = 10.0,
    progress: bool = False,
    watch: Watch | None = None,
    command: str | None = None,
) -> Evaluation | Evaluations:
    """Measure how robust a model is: attack it, judge every image again, keep the records.

    Parameters
    ----------
    model : str, nn.Module or Classifier, or a list of them
        ``zoo:NAME``, ``public:NAME``, ``ARCH(...):weights.safetensors``,
        ``path/to/file.py:factory``, ``torchvision:NAME``, ``timm:NAME``, ``hf:REPO``,
        ``robustbench:DATA/THREAT/NAME``, ``path/file.onnx``, ``http://HOST/PATH``, any of them
        with ``+layer`` defenses, or the model itself. Several models are evaluated one after the
        other into one folder.
    data : str, path, Data, (images, labels), (files, labels), Dataset or DataLoader
        A name, a folder of class folders, an ``.npz`` with ``x`` and ``y``, tensors or arrays,
        image files, or a dataset or loader of torch that neither shuffles nor augments.
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
    target_class : int or str, optional
        The class that every image must become, by number or name. Images of that class are left
        out.
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
        The run folder. Its records are reused, so an interrupted evaluation resumes, and
        `besiege.open` reads it again. Without a folder records exist as long as the result, and
        nothing resumes: a library does not write into the working folder unasked, as the command
        line does, and a model in memory has no name by which its folder could be found again.
    shard : int, optional
        Samples per record; 100 by default, 500 where the model runs on a GPU. A killed run loses
        the record it works on; on a GPU several at once, about a minute of work.
    batch, device
        Rows per call of the model, and its device; a model from a text uses a GPU if there is one.
    workers : int, optional
        Number of processes that share the work, with one torch thread each; without it, this
        process does all of it. They read models and data by their texts, so that objects in memory
        are refused.
    compile : bool, optional
        On a GPU, compile the copy that attacks search on: up to a minute at first, then a third
        faster; by default where there is enough work to pay for it. Results change only by
        rounding.
    substitute : model or sequence of models, optional
        A model whose gradients the attacker has. Attacks that need gradients are crafted on it,
        keep their last point, and are judged on the victim (transfer); ``prgf`` uses its gradients
        as a prior. Several models form one ensemble.
    fuse : {"logits", "probabilities", "losses"}
        Outputs of the ensemble that are averaged.
    beside : str or sequence of str
        Models whose detectors were calibrated on images that are left out, too, so that figures
        compare with those of these models. Models in one call always leave out the same images.
    examine : {"short", "full", "none"}
        Examination of the model and of its evaluation, ``result.examination``: is it strong enough?
        ``"full"`` also examines black-box models, whose queries it counts.
    active_test : bool or int
        Whether to run the active test on 50 samples, or on how many (20 or more): which share of
        adversarial examples that are known to exist do the attacks find? The examination has one
        that ends after the first few if they are found.
    clever : bool or str
        Whether to estimate the distance of every image to the decision boundary by CLEVER, or how,
        such as ``"clever(batches=100, samples=256, radius=5)"``. An estimate is never a bound:
        ``result.figures.figure("clever")`` lists images whose score exceeds the smallest
        perturbation found.
    certify : str, optional
        Method that proves which samples no perturbation within the budget can break: ``"crown"``
        (or another one of `besiege certify --help`), for networks whose operations have bounds.
    certify_seconds : float
        Time limit for each sample, for the methods ``"complete"`` and ``"exact"``.
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
            target_class=target_class,
            access=access,
            queries=queries,
            curve=curve,
            count=count,
            seed=seed,
            split=split,
            shard=shard,
            substitute=substitute,
            fuse=fuse,
            beside=(beside,) if isinstance(beside, str) else tuple(beside),
            examine=examine,
            active_test=active_test,
            clever=clever,
            certify=certify,
            certify_seconds=certify_seconds,
            command=command or "",
        )
        for one in models
        for allowed in threats
    ]
    how = Machine(device, batch, compile)
    found = measure(requests, out=out, how=how, progress=progress, watch=watch, workers=workers)
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


def measure(
    requests: Requests | Declared,
    *,
    out: Path | str | None = None,
    how: Machine | None = None,
    progress: bool = False,
    watch: Watch | None = None,
    accept: Callable[[Plan], None] | None = None,
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    ray: str | None = None,
    devices: str | None = None,
) -> Evaluations:
    """Run requests, or a benchmark, into one folder: the common path of all commands.

    All of them are read before the first runs, so that wrong input is found before any work.
    `accept` sees every plan before anything is written, and may raise an error. `workers`
    processes share the work, with ``devices="all"`` one for every GPU, or those of a Ray cluster,
    with its address in `ray`. `part` is the number of this process among several with the same
    requests and folder, and their number: each begins at another place, and all end when nothing
    is left.
    """
    how = how or Machine()
    check_numbers(batch=how.batch, workers=workers, threads=how.threads)
    check_part(part)
    engine = chosen_engine(workers, ray, devices)
    folder = None if out is None else run_folder(out)
    given = () if isinstance(requests, Declared) else requests
    stamps = [
        stamp_of(request) if folder is not None and (objects is None or objects.textual) else None
        for request, objects in given
    ]
    texts = [] if engine is None else [as_texts(*one) for one in given]
    store = Store(mkdtemp(prefix="besiege-") if folder is None else folder)
    try:
        with started(engine, store, how) as crew:  # now: to start takes as long as to read
            run = None if folder is None else read_run(store)
            if isinstance(requests, Declared):
                prepared = prepare_benchmark(requests, store.folder, run, how)
            else:
                prepared = prepare(requests, store.folder, run, how)
                # A request may leave out images of models beside it, or attacks that ignore the
                # defense which only those have: alone it is another one.
                for number, ((alone, _), among) in enumerate(
                    zip(given, prepared.requests, strict=True)
                ):
                    changed = {
                        name: getattr(among, name)
                        for name in ("beside", "attacks", "suite")
                        if getattr(among, name) != getattr(alone, name)
                    }
                    if changed:
                        stamps[number] = None
                    if texts:
                        update = {**changed, "command": among.command}
                        texts[number] = texts[number].model_copy(update=update)
            if accept is not None:
                for plan in prepared.plans:
                    accept(plan)
            with _bar(prepared.plans[0].model.name, watch, progress) as shown:
                given_up: dict[str, str] = {}
                names = short_names(prepared.entries, prepared.plans)
                first = [one.plan for one in prepared.trainings]
                awaited = any(trained_text(store, one.name) is None for one in first)
                if isinstance(requests, Declared) and awaited:
                    watchers = _titled([*first, *prepared.plans], shown, names)[: len(first)]
                    given_up = Work(store, prepared, watchers, how, part).train(crew)
                    run = read_run(store)
                    prepared = prepare_benchmark(requests, store.folder, run, how, given_up)
                    if not prepared.plans:
                        raise VictimError("\n".join(given_up.values()))
                resolved, plans = prepared.resolved, prepared.plans
                names = short_names(prepared.entries, plans)
                watchers = _titled([*first, *plans], shown, names, len(first))[len(first) :]
                work = Work(store, prepared, watchers, how, part)
                done = work.here() if crew is None else work.by(crew, texts or prepared.requests)
        replay_declared(store, prepared, how)
        if given_up:
            raise VictimError("\n".join(given_up.values()))
        figures = write_figures(store.folder)
        results = [
            evaluation_of(figures, store.folder, plan, paid(one.victim))
            for plan, one in zip(done, resolved, strict=True)
        ]
    except BaseException:
        if folder is None:
            rmtree(store.folder, ignore_errors=True)
        raise
    for result, stamp in zip(results, stamps or [None] * len(results), strict=True):
        if result.complete and result.paid is None:
            remember(store, stamp, result.figures.name)
    if folder is None:  # the results read from it as long as one of them exists
        held = _Held()
        finalize(held, rmtree, store.folder, ignore_errors=True)
        results = [replace(result, _held=held) for result in results]
    return Evaluations(results)


class _Held:
    """Keeps a temporary folder as long as a result refers to it."""


def _titled(
    plans: Sequence[Staged], watch: Watch | None, names: Mapping[str, str], over: int = 0
) -> list[Watch | None]:
    """For each plan a watcher that shows its events as part of the whole work.

    The first ones, as many as `over`, are done already.
    """
    if watch is None or len(plans) == 1:
        return [watch] * len(plans)
    totals = [WorkEstimate(plan).total for plan in plans]
    done = [total if number < over else 0.0 for number, total in enumerate(totals)]

    def watcher(number: int, show: Watch) -> Watch:
        text = plans[number].model.name
        words = plans[number].title.replace(text, names.get(text, text), 1)
        title = f"{number + 1} of {len(plans)}: {words}"

        def tell(event: Event) -> None:
            done[number], totals[number] = event.done, event.total
            show(replace(event, done=sum(done), total=sum(totals), title=title))

        return tell

    return [watcher(number, watch) for number in range(len(plans))]


def _bar(
    title: str, watch: Watch | None, progress: bool
) -> AbstractContextManager[Callable[[Any], None] | None]:
    if not progress or watch is not None:
        return nullcontext(watch)
    from besiege.report import bar

    return bar(title)
