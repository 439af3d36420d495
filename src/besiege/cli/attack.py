"""``besiege attack``: reads images and writes adversarial images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import (
    AsJson,
    Count,
    Device,
    Flag,
    Model,
    Place,
    Seed,
    Threads,
    ThreatText,
    counted,
    examples,
    flowing,
    known_data,
)
from besiege.cli.image_options import AS_THEY_ARE, ImageOptions
from besiege.core.errors import InputError
from besiege.core.text import side
from besiege.core.threat import Threat
from besiege.report.progress import bar

if TYPE_CHECKING:
    from besiege.cli.crafting import Outcome

_SHOWN = 12

command = App(
    name="attack",
    help_epilogue=examples(
        "besiege attack zoo:digits-natural --images digits --count 20 \\",
        "  --attack pgd --threat linf:0.15 --out adversarial",
        "besiege attack model.py:make --images cat.png --labels 3 \\",
        '  --attack "pgd(steps=100)" --threat linf:8/255 --out adversarial',
        "besiege attack model.py:make --images path/to/images --attack pgd \\",
        "  --threat linf:8/255 --exact npz --out adversarial",
        written=True,
    ),
)


@command.default
@flowing
def attack(
    model: Model,
    /,
    *,
    images: Annotated[str, Parameter(metavar="PATH", completer=known_data)],
    out: Annotated[Place, Parameter(metavar="FOLDER")],
    attack: Annotated[str, Parameter(metavar="ATTACK")],
    threat: ThreatText,
    labels: Annotated[str | None, Parameter(metavar="LABELS")] = None,
    target: Annotated[int | None, counted(0), Parameter(metavar="CLASS")] = None,
    queries: Count = None,
    count: Count = None,
    seed: Seed = 0,
    split: str = "test",
    files: ImageOptions = AS_THEY_ARE,
    exact: Literal["npz", "safetensors"] | None = None,
    png: Annotated[bool | None, Parameter(show_default=False)] = None,
    every: Annotated[Flag, Parameter(name="--all")] = False,
    batch: Count = None,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Attack images and write the adversarial images.

    Writes a PNG for every image that the attack broke, and results.json for all of them. A PNG
    holds multiples of 1/255, so the images are rounded and then judged again as they are in the
    file. Inputs are never overwritten.

    Parameters
    ----------
    model
        Model to attack.
    images
        A folder of class folders, a folder of images, one image, an .npz file, or a data set.
    out
        Folder to write to: new or empty.
    attack
        Attack to run.
    threat
        What the attacker may do.
    labels
        Labels of images without class folders: numbers with commas in the order of the file names,
        or a text file of NAME LABEL lines. By default the model's own predictions.
    target
        Target class of every image; by default any wrong class counts.
    queries
        Query limit per image.
    count
        Number of images, chosen by the seed; all by default.
    seed
        Seed of the choice of images and of every random number.
    split
        Part of the data set.
    exact
        Also write the exact floating point images; the default for an .npz file.
    png
        Whether to write PNG files; by default yes, except for an .npz file.
    every
        Also write the images that were not broken, unchanged.
    batch
        Images per call of the model; changes no result.
    """
    arrays = images.lower().endswith(".npz")
    exact = exact or ("npz" if arrays else None)
    png = not arrays if png is None else png
    if not png and exact is None:
        raise InputError("nothing would be written: leave --no-png out, or add --exact npz")
    _check_out(out, Path(images).expanduser())
    sizes = {"resize": side(files.resize, "--resize"), "crop": side(files.crop, "--crop")}
    fit = {**vars(files), **sizes}
    with bar(model, screen.err()) as watch:  # first, because importing torch takes seconds
        from besiege.attacks import parse
        from besiege.cli.crafting import besieged, write
        from besiege.cli.machine import prepare
        from besiege.cli.pictures import read
        from besiege.core.presets import check_norms
        from besiege.defenses import load

        where = prepare(device, threads)
        allowed = Threat.parse(threat)  # cheap checks come first
        chosen = parse(attack, allowed)
        check_norms(attack, allowed)
        if chosen.needs_substitute:
            raise InputError(
                f"'{chosen}' needs a substitute, and this command has no option for one: use "
                "`besiege evaluate` with --substitute MODEL"
            )
        outcome = besieged(
            load(model, where),
            model,
            read(images, labels, split, count, seed, fit),
            chosen,
            allowed,
            target=target,
            seed=seed,
            queries=queries,
            batch=batch,
            watch=watch,
            written=attack,
        )
        summary = write(outcome, out, png=png, exact=exact, every=every)
    if as_json:
        screen.print_json(summary)
    else:
        _print(outcome, summary, out, png, exact)
    return 0


def _check_out(out: Path, source: Path) -> None:
    """Refuse a folder with files to overwrite, or inside the folder of the inputs."""
    from besiege.bench.folder import run_folder

    if os.path.lexists(out) and not os.path.isdir(out):
        raise InputError(f"{out} is a file: name a new folder")
    inside = Path(os.path.realpath(out)).is_relative_to(os.path.realpath(source))
    if os.path.isdir(source) and inside:  # os.path tolerates loops of links, Path does not
        raise InputError(
            f"{out} is inside the folder of the images, so its files would be inputs next time: "
            "name a folder elsewhere"
        )
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty, and nothing is overwritten: name a new folder")
    run_folder(out)


def _print(
    outcome: Outcome, summary: dict[str, Any], out: Path, png: bool, exact: str | None
) -> None:
    console = screen.out()
    console.print(Text(f"{outcome.attack} on {outcome.model}, {outcome.threat}", "bold"))
    n, broken = outcome.count, outcome.broken
    wrong = n - summary["correct"]
    facts = {"labels": outcome.inputs.labelled, "broken": f"{broken} of {n} images"}
    if wrong and not outcome.threat.goal.targeted:
        facts["broken"] += f", {wrong} of them misclassified before the attack"
    if broken:
        sizes = outcome.rows["distance"][outcome.rows["success"]]
        facts["distance"] = (
            f"median {float(sizes.median()):.4g}, largest {float(sizes.max()):.4g} "
            f"({outcome.threat.norm})"
        )
        facts["as PNG"] = f"{outcome.survived} of {broken} are still successes after rounding"
    cost = float((outcome.rows["forwards"] + outcome.rows["backwards"]).double().mean())
    facts["cost"] = f"{cost:.1f} forward and backward passes per image; {outcome.seconds:.2f} s"
    for name, value in facts.items():
        screen.say(console, Text(f"  {name:<9} {value}"))
    console.print()
    names = outcome.inputs.data.class_names
    rows = screen.columns("image", "label", "before", "after", "confidence", "distance", "PNG")
    for line in summary["images"][:_SHOWN]:
        classes = [_named(line[key], names) for key in ("labels", "before", "after")]
        size = "-" if line["distance"] is None else f"{line['distance']:.4g}"
        state = ("yes" if line["rounded"] else "no") if line["success"] else "not broken"
        sure = "-" if line["confidence"] is None else f"{100 * line['confidence']:.0f} %"
        rows.add_row(line["name"], *classes, sure, size, state)
    console.print(rows)
    if n > _SHOWN:
        console.print(Text(f"... and {n - _SHOWN} more in results.json", "dim"))
    console.print()
    for finding in outcome.findings:
        console.print(Text(f"{finding.level} {finding}", "yellow"))
    written = [f"{sum(line['file'] is not None for line in summary['images'])} PNG files"] * png
    written += [f"adversarial.{exact}"] * (exact is not None)
    screen.verbatim(console, Text(f"{', '.join([*written, 'results.json'])} in {out}"))


def _named(number: int, names: tuple[str, ...]) -> str:
    return names[number] if number < len(names) else str(number)
