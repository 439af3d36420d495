"""``besiege import``: judges images made elsewhere as part of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE
from besiege.cli.grammar import AsJson, Place, examples, flowing

if TYPE_CHECKING:
    from besiege.bench.importing import Imported

command = App(
    name="import",
    help_epilogue=examples(
        "besiege import run adversarial.npz",
        "besiege import run other-run --model zoo:digits-pgd-at",
    ),
)


@command.default
@flowing
def import_(
    run: Annotated[Place, Parameter(metavar="RUN")],
    file: Annotated[Place, Parameter(metavar="FILE")],
    /,
    *,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    threat: Annotated[str | None, Parameter(metavar="THREAT")] = None,
    device: Annotated[str | None, Parameter(metavar="DEVICE")] = None,
    as_json: AsJson = False,
) -> int:
    """Judge adversarial images made elsewhere as part of a run.

    The images become an attack of every evaluation that has their samples. What they break within
    the threat counts for its robust accuracy, like the successes of any attack.

    Parameters
    ----------
    run
        Run folder that receives the images.
    file
        npz file with images (or x) and ids, the numbers of their samples; without ids, one image
        for each sample in order. Or another run folder, with the images that broke its models.
    model
        Only the evaluations of this model, by its name in the report.
    threat
        Only the evaluations against this threat.
    device
        Device of the model.
    """
    from besiege.bench.importing import import_images
    from besiege.bench.spec import Machine
    from besiege.cli.machine import prepare

    prepare(device, None)
    found = import_images(run, file, model=model, threat=threat, how=Machine(device))
    if as_json:
        screen.print_json({"taken": [asdict(one) for one in found.taken], "left": found.left_out})
        return FINE
    for one in found.taken:
        screen.say(screen.out(), Text(f"{one.model} against {one.threat}, {one.attack}", "bold"))
        screen.say(screen.out(), Text(sentence(one)))
    for reason in found.left_out:
        screen.note(f"Left out: {reason}.")
    screen.note(f"besiege report {run} writes the pages again.")
    return FINE


def sentence(one: Imported) -> str:
    """What images changed, in words."""
    if one.before is None or one.after is None:
        change = "no sample was judged under every attack yet"
    elif one.median_before is not None and one.median_after is not None:
        change = f"median {one.median_before:.4g} -> {one.median_after:.4g}"
    else:
        change = f"robust {100 * one.before.value:.1f} % -> {100 * one.after.value:.1f} %"
    more = "withstood every attack before"
    if one.median_before is not None:
        more = "have a smaller perturbation than any before"
    text = (
        f"{one.broken} of {one.images} images broke the model: {one.new} of them {more}; {change}"
    )
    if one.outside:
        text += f". {one.outside} are beyond the budget, and do not count"
    return f"{text}."
