"""``besiege evaluate``: measures models on one data set under threats."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.text import Text

from besiege.bench.clever_text import clever_of
from besiege.bench.command import command_of
from besiege.bench.folder import run_folder
from besiege.bench.spec import ACTIVE, EXAMINING, Machine, Request
from besiege.bench.target import goal_of
from besiege.cli import screen
from besiege.cli.gates import GateOptions, Gating, gating
from besiege.cli.grammar import (
    Accesses,
    AsJson,
    Choice,
    Count,
    Curves,
    DataSource,
    Device,
    Flag,
    Goals,
    MaybeCount,
    Model,
    Place,
    Real,
    Seed,
    Threads,
    ThreatText,
    examples,
    flowing,
    known_suites,
)
from besiege.cli.image_options import AS_THEY_ARE, ImageOptions
from besiege.cli.resuming import DONE, Beginning, resumable
from besiege.core.errors import InputError
from besiege.core.rules import FEW
from besiege.core.shell import shell
from besiege.core.text import whole
from besiege.report.progress import bar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from besiege.bench.estimating import Estimate
    from besiege.bench.evaluations import Evaluations
    from besiege.bench.plan import Plan
    from besiege.metrics.values import EvaluationFigures, RunFigures

RUNS = Path("besiege-runs")

command = App(
    name="evaluate",
    help_epilogue=examples(
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15",
        "besiege evaluate model.py:make --data path/to/images --threat linf:8/255",
        "besiege evaluate public:cifar10_resnet20 --data cifar10 --threat l2:0.5 \\",
        '  --attacks "pgd(steps=100, restarts=5), mim" --count 1000 --out my-run',
        "besiege evaluate model.py:make --data path/to/images --threat linf:8/255 \\",
        "  --fail-under 45 --not-worse-than my-run --junit robustness.xml",
        written=True,
    ),
)


@command.default
@flowing
def evaluate(
    model: Model,
    *models: Model,
    data: DataSource,
    threat: Annotated[tuple[ThreatText, ...], Parameter(metavar="THREAT", negative="")],
    attacks: Annotated[str | None, Parameter(metavar="A,B")] = None,
    suite: Annotated[str | None, Parameter(completer=known_suites, metavar="NAME")] = None,
    goal: Goals | None = None,
    target_class: Annotated[str | None, Parameter(metavar="CLASS")] = None,
    access: Accesses | None = None,
    queries: Count = None,
    substitute: Annotated[
        tuple[str, ...], Parameter(metavar="MODEL", negative="", show_default=False)
    ] = (),
    fuse: Literal["logits", "probabilities", "losses"] = "logits",
    beside: Annotated[
        tuple[str, ...], Parameter(metavar="MODEL", negative="", show_default=False)
    ] = (),
    curve: Curves | None = None,
    no_curve: Flag = False,
    examine: Literal["full", "short", "none"] = "short",
    active_test: MaybeCount = None,
    clever: Annotated[str | None, Parameter(metavar="HOW")] = None,
    certify: Annotated[str | None, Parameter(metavar="METHOD")] = None,
    certify_seconds: Real = 10.0,
    count: Count = None,
    seed: Seed = 0,
    split: str = "test",
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    files: ImageOptions = AS_THEY_ARE,
    shard: Count = None,
    batch: Count = None,
    compile: Choice = None,
    device: Device = None,
    threads: Threads = None,
    workers: Count = None,
    page: Annotated[bool, Parameter(show_default=False)] = True,
    dry_run: Flag = False,
    gates: GateOptions | None = None,
    as_json: AsJson = False,
) -> int:
    """Measure how robust a model is: attack it, judge every image again, keep the records.

    Prints a table and writes a page. Finished work is kept in a run folder: run the same command
    again to resume an interrupted run; a complete run has nothing left to do.

    Parameters
    ----------
    model
        Model to attack.
    models
        More models, evaluated under the same threats into the same folder.
    data
        Images and their labels.
    threat
        What the attacker may do; may be given several times.
    attacks
        Attacks to run, each on every image, separated by commas; by default
        "fgsm, pgd, each_target(pgd(loss=margin), 3)", the suite "score" or "decision" without
        access to gradients, and "pgd, dim, sinifgsm" with a substitute.
    suite
        Attacks that each run only on the images that withstood the ones before: quick, standard,
        standard@reference, plus, rand, adaptive, score, decision, minimum, or a list separated by
        commas.
    goal
        Goal of the attacker; by default any wrong class counts as a success.
    target_class
        Class that every image must become, by number or name; images of that class are left out.
    access
        Access of the attacker to the model; by default all that the model grants.
    queries
        Query limit per image.
    substitute
        Model that replaces the victim for attacks that need gradients: they are crafted on it and
        judged on the victim. Several substitutes form one ensemble.
    fuse
        Outputs of the ensemble that are averaged.
    beside
        Model whose detector was calibrated on images that are left out, too, so that both compare;
        models of one command always leave out the same images.
    curve
        Accuracy against the budget: short (20 steps, up to 200 images; the default), full or none.
    no_curve
        The same as --curve none.
    examine
        Examination of the model and of its evaluation: is it strong enough? full also examines
        black-box models, whose queries it counts; none leaves it out.
    active_test
        Run the active test on 50 images, or on N: which share of adversarial examples that are
        known to exist do the attacks find?
    clever
        Estimate the distance of every image to the decision boundary by CLEVER, such as
        "clever(batches=100)"; an estimate is never a bound.
    certify
        Prove which images no perturbation within the budget can break: crown, alpha, complete or
        exact, for networks whose operations have bounds (`besiege certify --help`).
    certify_seconds
        Time limit for each image, for complete and exact.
    count
        Number of images, chosen by the seed; all by default.
    seed
        Seed of the choice of images and of every random number.
    split
        Part of the data set.
    out
        Run folder; by default one in besiege-runs, named after model, data and threat.
    shard
        Images per record; 100, and 500 on a GPU. A killed run loses the record it works on; on a
        GPU several at once, about a minute of work.
    batch
        Images per call of the model; changes no result.
    compile
        On a GPU, search on a compiled copy of the model: up to a minute at first, then faster. By
        default where there is enough work to pay for it.
    workers
        Number of processes that share the work, one CPU thread each unless --threads says
        otherwise; by default this process does all of it.
    page
        Whether to write the page; yes by default.
    dry_run
        Send nothing; print the largest number of queries and how long they take at the rate limit.
    """
    if no_curve and curve not in (None, "none"):
        raise InputError(f"--curve {curve} and --no-curve disagree: give one")
    tested = None
    if active_test is not None:
        tested = whole(active_test[0], "--active-test", FEW) if active_test else ACTIVE
    requests = [
        Request.of(
            model=one,
            data=data,
            threat=allowed,
            attacks=attacks,
            suite=suite,
            goal=goal_of(goal, target_class),
            access=access,
            queries=queries,
            curve="none" if no_curve else curve or "short",
            count=count,
            seed=seed,
            split=split,
            shard=shard,
            substitute=substitute,
            fuse=fuse if substitute else "logits",
            beside=beside,
            examine=examine,
            active_test=tested,
            clever=clever_of(clever or False),
            certify=certify,
            certify_seconds=certify_seconds,
            **vars(files),
        )
        for one in (model, *models)
        for allowed in threat
    ]
    if dry_run:
        return _estimated(requests, device, as_json)
    run_folder(RUNS if out is None else out)
    folder = default_folder(requests) if out is None else out
    # Each is reproduced by a command of its own, into the same folder.
    named = None if out is None and len(requests) == 1 else folder
    requests = [one.model_copy(update={"command": command_of(one, named)}) for one in requests]
    checks = gating(gates, threat, folder)
    if (device, threads, batch, compile) == (None, None, None, None):
        from besiege.bench.answered import answered  # slow to import, for a help page

        known = [one for one in (answered(folder, asked) for asked in requests) if one is not None]
        if len(known) == len(requests):
            mine = [figures for _, figures in known]
            checks.must_fit(folder, mine)
            screen.verbatim(screen.err(), Text(f"{DONE} {folder}", "dim"))
            return _report(known[0][0], mine, {}, folder, page, as_json, checks)
    how = Machine(device, batch, compile, threads)
    results = resumable(lambda: _measured(requests, folder, how, workers, checks), folder, evaluate)
    if isinstance(results, int):
        return results
    paid: dict[str, tuple[int, int]] = {}
    for result in results:
        for account, (asked, sent) in (result.paid or {}).items():
            before = paid.get(account, (0, 0))
            paid[account] = (before[0] + asked, before[1] + sent)
    figures = [result.figures for result in results]
    return _report(results[0]._run, figures, paid, folder, page, as_json, checks)


def _measured(
    requests: Sequence[Request], folder: Path, how: Machine, workers: int | None, checks: Gating
) -> Evaluations:
    console = screen.err()
    with bar(requests[0].model, console) as watch:  # first, because importing torch takes seconds
        from besiege.bench.single import measure
        from besiege.cli.machine import prepare

        prepare(how.device, how.threads)
        beginning = Beginning(folder, watch)

        def accept(plan: Plan) -> None:
            checks.accept(plan)
            beginning.accept(plan)

        asked = [(one, None) for one in requests]
        tell = beginning.tell
        return measure(asked, out=folder, how=how, watch=tell, accept=accept, workers=workers)


def _estimated(requests: Sequence[Request], device: str | None, as_json: bool) -> int:
    """Print the cost of requests without running them."""
    from besiege.bench.estimating import price

    estimates = [price(request, device=device) for request in requests]
    if as_json:
        costs = [estimate.plain() for estimate in estimates]
        screen.print_json(costs if len(costs) > 1 else costs[0])
        return 0
    for request, estimate in zip(requests, estimates, strict=True):
        _print_cost(request, estimate)
    screen.say(screen.out(), Text("Nothing was sent."))
    return 0


def _print_cost(request: Request, estimate: Estimate) -> None:
    out = screen.out()
    title = f"{request.model} against {estimate.threat}, {estimate.images} images: at most"
    screen.say(out, Text(title))
    table = screen.columns("account", *_FIGURES, right=_FIGURES)
    for one in estimate.prices:
        each = "" if one.account in _SHARED else _count(one.each)
        table.add_row(one.account, each, _count(one.asked), _count(one.sent))
    table.add_row("in all", "", _count(estimate.asked), _count(estimate.sent))
    out.print(table)
    if estimate.passes > 1:
        total = "" if estimate.sent is None else f", {estimate.sent * estimate.passes:,} in all"
        screen.say(out, Text(f"A query takes {estimate.passes} passes of the network{total}."))
    if estimate.sent is None:
        screen.say(out, Text("--queries sets a limit where the cost of an attack is not known."))
    if estimate.seconds is not None:
        took = _duration(estimate.seconds)
        screen.say(out, Text(f"{took} at {estimate.rate:g} images per second"))


_SHARED = ("probe", "clean", "judge", "canary")
_FIGURES = ("per image", "queries", "sent")


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} seconds"


def _report(
    run: RunFigures,
    mine: Sequence[EvaluationFigures],
    paid: Mapping[str, tuple[int, int]],
    folder: Path,
    page: bool,
    as_json: bool,
    checks: Gating,
) -> int:
    # The folder may hold other evaluations; only the page shows them.
    complete = all(one.complete for one in mine)
    shown = replace(run, evaluations=tuple(mine), complete=complete)
    if paid:
        asked, sent = (sum(pair[k] for pair in paid.values()) for k in (0, 1))
        screen.note(f"{asked:,} queries were made, and {sent:,} images sent for them.")
    if as_json:
        figures = shown.plain()
        if paid:
            figures["paid"] = {n: {"asked": a, "sent": s} for n, (a, s) in paid.items()}
        screen.print_json(figures)
    else:
        from besiege.report import table

        screen.out().print(table(shown))
    written = None
    if page:
        from besiege.report import write_page

        written = write_page(folder, figures=run)
        if not as_json:
            screen.name_pages(folder, written)
    if not as_json and _comparable(mine):
        command = shell(["besiege", "compare", folder])
        screen.verbatim(screen.out(), Text(f"Which model is more robust: {command}"))
    return checks.conclude(folder, shown.evaluations, written)


def _comparable(evaluations: Sequence[EvaluationFigures]) -> bool:
    """Whether at least two models were evaluated under one threat."""
    models: dict[str, set[str]] = {}
    for one in evaluations:
        models.setdefault(one.threat.text, set()).add(one.model.name)
    return any(len(names) > 1 for names in models.values())


def default_folder(requests: Sequence[Request]) -> Path:
    """The run folder of requests where none is given; equal requests have the same one.

    Examples
    --------
    >>> request = Request(model="zoo:digits-natural", data="digits", threat="linf:8/255")
    >>> default_folder([request]).name
    'zoo-digits-natural-digits-linf-8-255-ce5f63fb'
    """
    if len(requests) > 1:
        models = dict.fromkeys(one.model for one in requests)
        each = " ".join(sorted(default_folder([one]).name for one in requests))
        name = f"{len(models)}-models" if len(models) > 1 else _file_name(next(iter(models)))
        data = _file_name(os.path.basename(os.path.abspath(requests[0].data)))
        return RUNS / f"{name}-{data}-{hashlib.sha256(each.encode()).hexdigest()[:8]}"
    (request,) = requests
    words = request.model_dump(mode="json", exclude={"command", "textual"})
    # Options that are newer than existing folders count only when given: names stay the same.
    later = {
        "layout": request.layout,
        "substitute": request.substitute,
        "fuse": request.substitute,
        "beside": request.beside,
        "across": request.across,
        "apart": request.apart,
        **dict.fromkeys(EXAMINING, False),  # it is a part of the same evaluation
    }
    named = {name: value for name, value in words.items() if later.get(name, True)}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    names = [
        _file_name(request.model.rsplit("/", 1)[-1]),
        _file_name(os.path.basename(os.path.abspath(request.data))),
        _file_name(request.threat),
        digest[:8],
    ]
    return RUNS / "-".join(name for name in names if name)


def _file_name(text: str) -> str:
    """A text as part of a file name, on every system."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:40].strip("-.")
