"""``besiege detector``: fits a detector to a model, and calibrates it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

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
    Model,
    Place,
    Real,
    Seed,
    Threads,
    Whole,
    examples,
    flowing,
    laid_out,
)
from besiege.core.shell import broken, shell
from besiege.report.progress import bar

command = App(
    name="detector",
    help_epilogue=examples(
        "besiege detector squeezing --model zoo:digits-natural --data digits \\",
        "  --out squeezing.safetensors",
        "besiege detector lid --model public:cifar10_resnet20 --data cifar10 \\",
        "  --out lid.safetensors",
        "besiege detector \"magnet(reform('autoencoder:reformer.safetensors'))\" \\",
        "  --model zoo:mnist-natural --data mnist --out magnet.safetensors",
        "besiege evaluate \"zoo:digits-natural+detector('squeezing.safetensors')\" \\",
        "  --data digits --threat linf:0.15",
    ),
)


@command.default
@flowing
def detector(
    kind: Annotated[str, Parameter(metavar="KIND")],
    /,
    *,
    model: Model,
    data: DataSource,
    out: Annotated[Place, Parameter(metavar="FILE")],
    fpr: Real = 0.05,
    count: Count = None,
    split: str = "test",
    chosen: Literal["last", "random"] = "last",
    fit_on: Whole = 1000,
    layout: Layout = None,
    seed: Seed = 0,
    force: Flag = False,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Fit a detector to a model, calibrate it, and write it with a card.

    A detector rejects suspicious images. Its threshold is set once, on clean images that the model
    was not trained on; evaluations of the model with its detector leave these images out.

    Parameters
    ----------
    kind
        Kind of detector: squeezing, lid or magnet, also with parameters: "lid(k=30)".
    model
        Model to guard.
    data
        Data set: its training images are used to fit, and its last test images to calibrate.
    out
        File to write, ending in .safetensors; the card beside it ends in .json.
    fpr
        Nominal false positive rate: the share of clean images that are rejected.
    count
        Number of images to calibrate on; by default 2000, but at most half of the split.
    split
        Part of the data set to calibrate on.
    chosen
        Which of its images: the last ones, or random ones where a data set is sorted, as MNIST is.
    fit_on
        Number of images to fit on; squeezing needs none.
    seed
        Seed of the choice of images, and of noise.
    force
        Calibrate even on the images that the model was trained on.
    """
    words: dict[str, Any] = {"model": model, "data": data, "layout": layout, "fpr": fpr}
    words |= {"count": count, "split": None if split == "test" else split}
    words |= {"chosen": None if chosen == "last" else chosen}
    words |= {"fit-on": None if fit_on == 1000 else fit_on, "seed": seed or None, "out": out}
    parts = [p for name, v in words.items() if v is not None for p in (f"--{name}", v)]
    typed = shell(["besiege", "detector", kind, *parts, *["--force"] * force])
    console = screen.err()
    with bar(f"{kind} for {model}", console) as watch:  # first: importing torch takes seconds
        from besiege.bench.work_estimate import Event
        from besiege.cli.machine import prepare
        from besiege.training import fit_detector

        path = fit_detector(
            kind,
            model,
            laid_out(data, split, layout),
            out,
            fpr=fpr,
            count=count,
            split=split,
            chosen=chosen,
            fit_on=fit_on,
            seed=seed,
            force=force,
            device=prepare(device, threads),
            tick=lambda done, total: watch(Event(done, total, "images")),
            about={"command": typed},
        )
    card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if as_json:
        screen.print_json(card)
        return 0
    where = card["calibration"]
    results = screen.out()
    screen.say(
        results,
        Text(
            f"Rejects scores above {card['threshold']:.6g}: {100 * card['fpr']:g} % of "
            f"{where['count']:,} clean images of {where['data']} ({where['split']}), which "
            "evaluations leave out."
        ),
    )
    screen.verbatim(results, Text(f"detector  {path}\ncard      {path.with_suffix('.json')}"))
    screen.verbatim(results, Text("\n".join(_next(model, data, str(path)))))
    return 0


def _next(model: str, data: str, file: str) -> list[str]:
    """The command that attacks model and detector together, and the model alone."""
    from besiege.data.catalogue import CATALOGUE

    usual = CATALOGUE[data].threats[0] if data in CATALOGUE else "linf:8/255"
    command = broken(
        ["besiege", "evaluate", f"{model}+detector({file!r})"],
        ["--data", data],
        ["--threat", usual],
        ["--attacks", "oblivious(pgd), pgd(loss=margin), opgd"],
    )
    return ["Attack both together:", *(f"  {line}" for line in command.splitlines())]
