"""``besiege evaluate``: one model, one data set, one threat; records, a table and a page."""

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

from besiege.bench.answered import answered
from besiege.bench.command import command_of
from besiege.bench.folder import run_folder
from besiege.bench.spec import Machine, Request
from besiege.cli import screen
from besiege.cli.grammar import (
    Accesses,
    AsJson,
    Channels,
    Count,
    Curves,
    DataSource,
    Device,
    Flag,
    Goals,
    Layout,
    Model,
    Place,
    Seed,
    Size,
    Threads,
    ThreatText,
    as_options,
    examples,
    flowing,
    known_suites,
)
from besiege.core.errors import EndpointError, InputError, StoreError
from besiege.report.progress import bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from besiege.bench.single import Evaluation
    from besiege.bench.work_estimate import Event
    from besiege.metrics.values import EvaluationFigures, RunFigures

RUNS = Path("besiege-runs")

command = App(
    name="evaluate",
    help_epilogue=examples(
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15",
        "besiege evaluate model.py:make --data path/to/images --threat linf:8/255",
        "besiege evaluate public:cifar10_resnet20 --data cifar10 --threat l2:0.5 \\",
        '  --attacks "pgd(steps=100, restarts=5), mim" --count 1000 --out my-run',
        written=True,
    ),
)


@command.default
@flowing
def evaluate(
    model: Model,
    *,
    data: DataSource,
    threat: ThreatText,
    attacks: Annotated[str | None, Parameter(metavar="A,B")] = None,
    suite: Annotated[str | None, Parameter(completer=known_suites, metavar="NAME")] = None,
    goal: Goals | None = None,
    access: Accesses | None = None,
    queries: Count = None,
    substitute: Annotated[
        tuple[str, ...], Parameter(metavar="MODEL", negative="", show_default=False)
    ] = (),
    fuse: Literal["logits", "probabilities", "losses"] = "logits",
    curve: Curves | None = None,
    no_curve: Flag = False,
    count: Count = None,
    seed: Seed = 0,
    split: str = "test",
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    resize: Size = None,
    crop: Size = None,
    channels: Channels = None,
    layout: Layout = None,
    shard: Count = None,
    batch: Count = None,
    compile: Flag = False,
    device: Device = None,
    threads: Threads = None,
    page: Annotated[bool, Parameter(show_default=False)] = True,
    dry_run: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Measure how robust a model is: attack it, judge every image afresh, keep the records.

    Prints a table and writes a page. What is finished is kept in a run folder: the same command
    again goes on where it was interrupted, and has nothing to do when all is done.

    Parameters
    ----------
    model
        What is attacked.
    data
        The images and their labels.
    threat
        What the attacker may do.
    attacks
        Attacks to run, each on every image, separated by commas; by default
        "fgsm, pgd, each_target(pgd(loss=margin), 3)", without gradients the suite of the access,
        and with a substitute "pgd, dim, sinifgsm".
    suite
        Attacks that each run on what the ones before left: quick, standard, plus, rand, score,
        decision, minimum, or a list separated by commas.
    goal
        What counts as a success; any error by default.
    access
        What the attacker sees; what the model grants by default.
    queries
        The most answers an attack may use for one image.
    substitute
        A model of your own for the victim's gradients: attacks that need gradients are crafted on
        it and judged on the victim. Given several times, all of them are one ensemble.
    fuse
        What an ensemble takes the mean of.
    curve
        Accuracy against the budget: short (20 steps, up to 200 images; the default), full or none.
    no_curve
        The same as --curve none.
    count
        Take so many images, chosen by the seed; all by default.
    seed
        Decides the choice of images and every draw.
    split
        Which part of the data.
    out
        The run folder; one below besiege-runs, named after what is asked, by default.
    resize
        Of a folder's images: the length of the shorter side, or height and width, in pixels.
    crop
        Of a folder's images: the middle part that is kept, after resizing.
    channels
        Of a folder's images: 1 makes all grey, 3 all colour; grey if they are by default.
    shard
        Images per record: what is lost at most when a run is killed; 100, and 500 on a GPU.
    batch
        Images per call of the model; changes no result.
    compile
        On a GPU, search on a compiled copy of the model: up to a minute at first, then faster.
    page
        Whether the page is written; it is by default.
    dry_run
        Ask nothing; say what would be asked at most, and how long that takes at the rate allowed.
    """
    if no_curve and curve not in (None, "none"):
        raise InputError(f"--curve {curve} and --no-curve disagree: give one")
    request = Request.of(
        model=model,
        data=data,
        threat=threat,
        attacks=attacks,
        suite=suite,
        goal=goal,
        access=access,
        queries=queries,
        curve="none" if no_curve else curve or "short",
        count=count,
        seed=seed,
        split=split,
        shard=shard,
        substitute=substitute,
        fuse=fuse if substitute else "logits",
        resize=resize,
        crop=crop,
        channels=channels,
        layout=layout,
    )
    if dry_run:
        return _estimated(request, device, as_json)
    run_folder(RUNS if out is None else out)
    folder = default_folder(request) if out is None else out
    request = request.model_copy(update={"command": command_of(request, out)})
    if (device, threads, batch, compile) == (None, None, None, False):
        known = answered(folder, request)
        if known is not None:
            screen.verbatim(screen.err(), Text(f"{_DONE} {folder}", "dim"))
            return _told(*known, None, folder, page, as_json)
    try:
        found = _measured(request, folder, threads, Machine(device, batch, compile))
    except KeyboardInterrupt:
        begun = (folder / "run.json").exists()
        screen.note(
            f"Interrupted. What is finished stays in {folder}; the same command goes on."
            if begun
            else "Interrupted before anything was finished; nothing was written."
        )
        return 130
    except EndpointError as problem:
        from besiege.models.black_box import Changed

        kept = (folder / "run.json").exists() and not isinstance(problem, Changed)
        screen.complain(
            as_options(str(problem), evaluate),
            f"What was answered is kept in {folder}; the same command goes on." if kept else "",
        )
        return 3
    except StoreError as problem:
        if isinstance(problem.__cause__, OSError) and (folder / "run.json").exists():
            screen.complain(str(problem))  # a disk that filled up on the way, say
            return 3
        raise
    return _told(found._run, found.figures, found.paid, folder, page, as_json)


def _measured(request: Request, folder: Path, threads: int | None, how: Machine) -> Evaluation:
    console = screen.err()
    with bar(request.model, console) as watch:  # first, because importing torch takes seconds
        from besiege.bench.run import read_run
        from besiege.bench.single import measure
        from besiege.bench.store import Store
        from besiege.cli.machine import prepare

        prepare(how.device, threads)
        again = (folder / "run.json").exists()
        run = read_run(Store(folder))
        damage = [one for plan in run.plans for one in plan.damage] if run else []
        said = False

        def told(event: Event) -> None:
            nonlocal said
            if not said:  # not before the input is known to be right
                said = True
                for one in damage:
                    screen.say(console, Text(f"{one}: its own command writes it again", "yellow"))
                screen.verbatim(console, Text(f"{_state(folder, again)} {folder}", "dim"))
            watch(event)

        return measure(request, out=folder, how=how, watch=told)


def _state(folder: Path, again: bool) -> str:
    """What a folder has to do with the work that begins."""
    if not again:
        return "records are kept in"
    from besiege.bench.overview import status

    done = all(evaluation.complete for evaluation in status(folder))
    return _DONE if done else "goes on in"


_DONE = "nothing is left to do: all records are in"


def _estimated(request: Request, device: str | None, as_json: bool) -> int:
    """Say what it would cost."""
    from besiege.bench.estimating import price

    found = price(request, device=device)
    if as_json:
        screen.print_json(found.plain())
        return 0
    out = screen.out()
    screen.say(out, Text(f"{request.model} against {found.threat}, {found.images} images: at most"))
    table = screen.columns("account", "an image", "asked", "sent", right=_FIGURES)
    for one in found.prices:
        each = "" if one.account in _SHARED else _count(one.each)
        table.add_row(one.account, each, _count(one.asked), _count(one.sent))
    table.add_row("in all", "", _count(found.asked), _count(found.sent))
    out.print(table)
    if found.sent is None:
        screen.say(out, Text("--queries sets a limit where the cost of an attack is not known."))
    if found.seconds is not None:
        screen.say(out, Text(f"{_duration(found.seconds)} at {found.rate:g} images per second"))
    screen.say(out, Text("Nothing was sent."))
    return 0


_SHARED = ("probe", "clean", "judge", "canary")
_FIGURES = ("an image", "asked", "sent")


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} seconds"


def _told(
    run: RunFigures,
    mine: EvaluationFigures,
    paid: Mapping[str, tuple[int, int]] | None,
    folder: Path,
    page: bool,
    as_json: bool,
) -> int:
    # The folder may hold other evaluations; their place is the page.
    shown = replace(run, evaluations=(mine,), complete=mine.complete)
    if paid is not None:
        asked, sent = (sum(pair[k] for pair in paid.values()) for k in (0, 1))
        screen.note(f"{asked:,} answers were asked for, and {sent:,} images sent for them.")
    if as_json:
        figures = shown.plain()
        if paid is not None:
            figures["paid"] = {n: {"asked": a, "sent": s} for n, (a, s) in paid.items()}
        screen.print_json(figures)
    else:
        from besiege.report import table

        screen.out().print(table(shown))
    if page:
        from besiege.report import write_page

        written = write_page(folder, figures=run)
        if not as_json:
            screen.verbatim(screen.out(), Text(f"page  {written}"))
    return 0 if mine.complete else 3


def default_folder(request: Request) -> Path:
    """The folder of a request's records: the same request, the same folder.

    Examples
    --------
    >>> request = Request(model="zoo:digits-natural", data="digits", threat="linf:8/255")
    >>> default_folder(request).name
    'zoo-digits-natural-digits-linf-8-255-ce5f63fb'
    """
    words = request.model_dump(mode="json", exclude={"command", "textual"})
    # Folders made before these options existed keep their names.
    later = {"layout": request.layout, "substitute": request.substitute, "fuse": request.substitute}
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
