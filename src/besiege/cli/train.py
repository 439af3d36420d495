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
    known_recipes,
    laid_out,
)
from besiege.core.shell import shell, wrapped
from besiege.report.progress import bar
from besiege.training.catalogue import CATALOGUE

if TYPE_CHECKING:
    from pathlib import Path

    from besiege.training import Epoch

_RECIPES = "Recipes:\n" + "\n".join(
    f"  {name:<13}{family.title}" for name, family in CATALOGUE.items()
)
command = App(
    name="train",
    help_epilogue=f"{_RECIPES}\n\n"
    + examples(
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
    recipe: Annotated[str, Parameter(metavar="RECIPE", completer=known_recipes)],
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
        Recipe by name, listed below, also with parameters: "pgd-at(epochs=30)". `besiege show
        pgd-at` lists them.
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
            if ".py:" in arch and not begun and not out.exists():
                screen.say(console, Text(_start(arch), "dim"))

            trained = ["model"]

            def tell_stage(role: str, file: Path) -> None:
                trained[0] = role
                screen.say(console, Text(_stage(role, file), "dim"))

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
                tick=lambda done, total: watch(Event(done, total, trained[0])),
                stage=tell_stage,
                resume=resume,
                half=half,
                every=every,
                about={"command": typed},
                **given,
            )
    except KeyboardInterrupt:
        screen.note(_interrupted(out))
        return 130
    card = path.with_suffix(".json")
    facts = json.loads(card.read_text(encoding="utf-8"))
    if as_json:
        screen.print_json(facts)
        return 0
    if not history:
        console.print(Text("Nothing is left to do: this training is complete.", "dim"))
    elif begun:
        console.print(Text(f"resumed after epoch {history[0].number - 1}", "dim"))
    if "ended" in facts:
        screen.say(console, Text(facts["ended"]))
    if (short := _short_ramp(facts["settings"])) is not None:
        screen.say(console, Text(short))
    results = screen.out()
    screen.verbatim(results, Text(f"weights  {path}\ncard     {card}"))
    if facts["source"] is not None:
        next_one = _evaluation(facts, data, layout)
        screen.verbatim(results, Text(f"evaluate it with\n{wrapped(next_one, results.width)}"))
    elif ".py:" in arch:
        screen.say(results, Text(_loading(arch, path)))
    return 0


def _start(arch: str) -> str:
    """Whose weights a training of a network in a file starts from: nothing draws them again."""
    return (
        f"The training starts from the weights that {arch} returns: if they are trained already, "
        "they are trained further."
    )


def _loading(arch: str, weights: Path) -> str:
    """How the weights of a network in a file are used: its function is what loads them."""
    return (
        f"To evaluate them, load them in the function that makes the network ({arch}):\n"
        f"net.load_state_dict(safetensors.torch.load_file({str(weights)!r}))"
    )


def _stage(role: str, file: Path) -> str:
    if role == "teacher":
        return f"A teacher is trained first: {file}"
    return f"The student learns from its answers: {file}"


def _short_ramp(settings: dict[str, Any]) -> str | None:
    """A note on a training that ended before its budget had grown to the full size."""
    epochs, ramp, threat = (settings[name] for name in ("epochs", "ramp", "threat"))
    if threat is None or ramp <= epochs:
        return None
    return (
        f"The budget grows over {ramp} epochs and the training has {epochs}, so that it reached "
        f"{100 * epochs / ramp:.0f} % of {threat}: train for longer, or write ramp={epochs} in the "
        "recipe."
    )


def _interrupted(out: Path) -> str:
    """What remains of an interrupted training, whose first half may be that of a teacher."""
    from besiege.training.fitting import teacher_file

    for weights in (out, teacher_file(out)):
        if (checkpoint := weights.with_suffix(".checkpoint")).exists():
            return f"Interrupted. Run the same command again to resume from {checkpoint}."
    if teacher_file(out).exists():
        return f"Interrupted. Run the same command again to resume after {teacher_file(out)}."
    return "Interrupted before the first checkpoint; nothing was written."


def _evaluation(card: dict[str, Any], data: str, layout: str | None) -> str:
    """The command that evaluates the weights, under the threat they were trained for."""
    from besiege.data.catalogue import CATALOGUE as DATA
    from besiege.defenses import load
    from besiege.models.catalogue import layer_of

    usual = DATA[data].threats[0] if data in DATA else "linf:8/255"
    words = ["--data", data, *(["--layout", layout] if layout else [])]
    words += ["--threat", card["settings"]["threat"] or usual]
    if layer := layer_of(card["source"]):
        model = f"MODEL+{layer}('{card['source']}')"
        return shell(["besiege", "evaluate", model, *words, "--suite", "adaptive"])
    if load(card["source"]).stochastic:
        words += ["--suite", "adaptive"]
    return shell(["besiege", "evaluate", card["source"], *words])


def _line(epoch: Epoch) -> str:
    line = f"epoch {epoch.number}: loss {epoch.loss:.{4 if epoch.accuracy is None else 3}f}"
    if epoch.accuracy is not None:
        # Perturbed, where the recipe attacks: they are not the clean images.
        line += f", {100 * epoch.accuracy:.1f} % correct of the training images as it saw them"
    for name, value in (("clean", epoch.clean), ("under attack", epoch.robust)):
        if value is not None:
            line += f", held out {100 * value:.1f} % {name}"
    if epoch.guarded is not None:
        line += f", guard {100 * epoch.guarded:.1f} %"
    return f"{line}, {epoch.seconds:.1f} s"
