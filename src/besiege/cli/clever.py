"""``besiege clever``: estimates the distance of images to the decision boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE, INCOMPLETE
from besiege.cli.grammar import (
    AsJson,
    Count,
    DataSource,
    Device,
    Goals,
    Model,
    Place,
    Seed,
    examples,
    flowing,
)
from besiege.cli.image_options import AS_THEY_ARE, ImageOptions

if TYPE_CHECKING:
    from besiege.metrics.clever import CleverFigures

command = App(
    name="clever",
    help_epilogue=examples(
        "besiege clever zoo:digits-natural --data digits --norm l2 --count 100",
        "besiege clever public:cifar10_resnet20 --data cifar10 --norm linf \\",
        '  --goal targeted:random --how "clever(batches=500, samples=1024)" --count 100',
    ),
)
_LISTED = 10


@command.default
@flowing
def clever(
    model: Model,
    /,
    *,
    data: DataSource,
    norm: Literal["l2", "linf", "l1"] = "l2",
    how: Annotated[str, Parameter(metavar="HOW")] = "clever",
    goal: Goals | None = None,
    attacks: Annotated[str, Parameter(metavar="A,B")] = "fmn",
    count: Count = None,
    seed: Seed = 0,
    split: str = "test",
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    files: ImageOptions = AS_THEY_ARE,
    device: Device = None,
    as_json: AsJson = False,
) -> int:
    """Estimate the distance of images to the decision boundary by CLEVER.

    An estimate, never a bound: masked gradients make it too large. Attacks search the smallest
    perturbation of the same images, and images whose estimate exceeds it are listed.

    Parameters
    ----------
    model
        Model, written as for evaluate.
    data
        Data set, folder or file.
    norm
        Norm of the distance.
    how
        Batches, points in each, and the radius, such as "clever(batches=100, samples=256,
        radius=5)"; clever@weng has those of the publication.
    goal
        Class to which the distance is; by default the nearest wrong one, with ten classes at most.
    attacks
        Attacks that search the smallest perturbation, which the estimates are compared with.
    count
        Number of images, chosen by the seed; all by default.
    seed
        Seed of the choice of images and of every random number.
    split
        Part of the data set.
    out
        Run folder; run the same command again to resume. By default nothing is kept.
    device
        Device of the model.
    """
    from besiege.bench.clever_text import clever_of
    from besiege.bench.single import measure
    from besiege.bench.spec import Machine, Request
    from besiege.cli.machine import prepare

    prepare(device, None)
    request = Request.of(
        model=model,
        data=data,
        threat=norm,
        attacks=attacks,
        goal=goal,
        curve="none",
        count=count,
        seed=seed,
        split=split,
        **vars(files),
        clever=clever_of(how),
    )
    (found,) = measure([(request, None)], out=out, how=Machine(device))
    value: CleverFigures | None = found.figures.figure("clever")
    if value is None:
        screen.say(screen.err(), Text("No image has an estimate: see the run folder."))
        return INCOMPLETE
    if as_json:
        screen.print_json(found.figures.plain()["clever"])
    else:
        _print(value, norm)
    return FINE if found.complete else INCOMPLETE


def _print(value: CleverFigures, norm: str) -> None:
    """The estimates, and those that attacks refute."""
    console = screen.out()
    table = screen.columns("estimate by CLEVER, no bound", "")
    for name, shown in (
        (f"median ({norm})", value.median),
        (f"mean ({norm})", value.mean),
        ("images", value.count),
        ("of these misclassified, at 0", value.misclassified),
        ("without an estimate: no end point", value.without),
        ("as large as the radius", value.capped),
        ("poor fits (p below 0.05)", value.poor),
        ("gradients", value.gradients),
        ("refuted by an attack", f"{len(value.refuted):,} of {value.attacked:,}"),
    ):
        form = "-" if shown is None else f"{shown:.4g}" if isinstance(shown, float) else f"{shown}"
        table.add_row(name, form)
    console.print(table)
    for one in value.refuted[:_LISTED]:
        screen.say(
            console,
            Text(f"sample {one.sample}: {one.score:.4g}, but found at {one.distance:.4g}", "red"),
        )
    if len(value.refuted) > _LISTED:
        screen.say(console, Text(f"and {len(value.refuted) - _LISTED:,} more"))
