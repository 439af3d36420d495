"""``besiege train``: trains an architecture on a data set by a recipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import (
    AsJson,
    Count,
    DataSource,
    Device,
    Flag,
    Layout,
    MaybeReal,
    Place,
    Seed,
    Threads,
    Whole,
    examples,
    flowing,
    known_architectures,
    laid_out,
)
from besiege.core.shell import shell
from besiege.report.progress import bar

if TYPE_CHECKING:
    from besiege.training import Epoch

command = App(
    name="train",
    help_epilogue=examples(
        "besiege train natural --data digits --arch digits_cnn --out mine.safetensors",
        "besiege train pgd-at --data digits --arch digits_cnn --threat linf:0.15 \\",
        "  --epochs 20 --out robust.safetensors",
        'besiege train "pgd-at(epochs=30, average=0.999)" --data cifar10 \\',
        '  --arch "preact_resnet18(width=32)" --out robust.safetensors',
        "besiege evaluate digits_cnn:robust.safetensors --data digits \\",
        "  --threat linf:0.15",
    ),
)


@command.default
@flowing
def train(
    recipe: Annotated[str, Parameter(metavar="RECIPE")],
    /,
    *,
    data: DataSource,
    arch: Annotated[str, Parameter(metavar="ARCH", completer=known_architectures)],
    out: Annotated[Place, Parameter(metavar="FILE")],
    epochs: Count = None,
    batch: Count = None,
    rate: MaybeReal = None,
    attack: Annotated[str | None, Parameter(metavar="ATTACK")] = None,
    threat: Annotated[str | None, Parameter(metavar="THREAT")] = None,
    layout: Layout = None,
    seed: Seed = 0,
    resume: Annotated[bool, Parameter(show_default=False)] = True,
    half: Flag = False,
    every: Whole = 1,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Train a model, naturally or adversarially, and write its weights with a card.

    A checkpoint is kept during training. Run the same command again to resume from it: the weights
    are then those of an uninterrupted training.

    Parameters
    ----------
    recipe
        Recipe: natural or pgd-at, also with parameters: "pgd-at(epochs=30)". `besiege show pgd-at`
        lists them.
    data
        Images to train on, and their labels.
    arch
        Architecture to train: one of besiege, or path/to/file.py:factory.
    out
        File of the weights, ending in .safetensors; the card beside it ends in .json.
    epochs
        Passes over the data.
    batch
        Images per step.
    rate
        Highest learning rate.
    attack
        Attack that crafts the training images.
    threat
        Threat of that attack.
    seed
        Seed of the initial weights, the order and every random number.
    resume
        Whether to resume from a checkpoint; --no-resume starts again and replaces it.
    half
        Write the weights in half precision: half the size.
    every
        Epochs between checkpoints.
    """
    changes = {"epochs": epochs, "batch": batch, "rate": rate, "attack": attack, "threat": threat}
    given: dict[str, Any] = {name: v for name, v in changes.items() if v is not None}
    words = {"data": data, "layout": layout, "arch": arch, **given, "seed": seed or None}
    words["out"] = out
    parts = [p for name, v in words.items() if v is not None for p in (f"--{name}", v)]
    typed = shell(["besiege", "train", recipe, *parts, *["--half"] * half])
    checkpoint = out.with_suffix(".checkpoint")
    history: list[Epoch] = []
    console = screen.err()
    try:
        with bar(f"{recipe} on {data}", console) as watch:  # first: importing torch takes seconds
            from besiege.bench.work_estimate import Event
            from besiege.cli.machine import prepare
            from besiege.training import fit

            where = prepare(device, threads)
            begun = checkpoint.exists() and resume

            def tell(epoch: Epoch) -> None:
                history.append(epoch)
                screen.say(console, Text(_line(epoch), "dim"))

            path = fit(
                recipe,
                laid_out(data, "train", layout),
                arch,
                out,
                seed=seed,
                device=where,
                watch=tell,
                tick=lambda done, total: watch(Event(done, total, recipe)),
                resume=resume,
                half=half,
                every=every,
                about={"command": typed},
                **given,
            )
    except KeyboardInterrupt:
        screen.note(
            f"Interrupted. Run the same command again to resume from {checkpoint}."
            if checkpoint.exists()
            else "Interrupted before the first checkpoint; nothing was written."
        )
        return 130
    card = path.with_suffix(".json")
    if as_json:
        screen.print_json(json.loads(card.read_text(encoding="utf-8")))
        return 0
    if not history:
        console.print(Text("Nothing is left to do: this training is complete.", "dim"))
    elif begun:
        console.print(Text(f"resumed after epoch {history[0].number - 1}", "dim"))
    screen.verbatim(screen.out(), Text(f"weights  {path}\ncard     {card}"))
    return 0


def _line(epoch: Epoch) -> str:
    line = f"epoch {epoch.number}: loss {epoch.loss:.3f}, {100 * epoch.accuracy:.1f} % correct"
    for name, value in (("clean", epoch.clean), ("under attack", epoch.robust)):
        if value is not None:
            line += f", held out {100 * value:.1f} % {name}"
    return f"{line}, {epoch.seconds:.1f} s"
