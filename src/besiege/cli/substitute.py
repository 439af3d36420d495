"""``besiege substitute``: trains a substitute model from a victim's labels, to craft on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import (
    AsJson,
    Count,
    DataSource,
    Device,
    FromZero,
    Layout,
    Model,
    Place,
    Real,
    Seed,
    Threads,
    Whole,
    as_options,
    counted,
    examples,
    flowing,
    known_architectures,
    laid_out,
)
from besiege.core.errors import EndpointError
from besiege.core.shell import broken, shell
from besiege.report.progress import bar

if TYPE_CHECKING:
    from besiege.core.victim import Victim
    from besiege.training.substitutes import Round

_USUAL = "linf:8/255"

command = App(
    name="substitute",
    help_epilogue=examples(
        "besiege substitute zoo:digits-natural --data digits --arch digits_cnn \\",
        "  --rounds 4 --out sub.safetensors",
        "besiege substitute my_model.py:make --data path/to/images --arch resnet20 \\",
        "  --count 150 --queries 5000 --reservoir 3 400 --out sub.safetensors",
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15 \\",
        "  --substitute digits_cnn:sub.safetensors --attacks mim",
    ),
)


@command.default
@flowing
def substitute(
    model: Model,
    *,
    data: DataSource,
    arch: Annotated[str, Parameter(metavar="ARCH", completer=known_architectures)],
    out: Annotated[Place, Parameter(metavar="FILE")],
    rounds: FromZero = 6,
    count: Whole = 100,
    check: FromZero = 200,
    queries: Count = None,
    epochs: Whole = 10,
    lam: Real = 0.1,
    tau: Count = 1,
    reservoir: Annotated[
        tuple[int, int] | None,
        counted(0, 1),
        Parameter(metavar="ROUNDS POINTS", negative=""),
    ] = None,
    split: str = "test",
    layout: Layout = None,
    seed: Seed = 0,
    resume: Annotated[bool, Parameter(show_default=False)] = True,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Train a substitute from a model's labels only, and write its weights with a card.

    The model labels some images. Every round adds a neighbour to each of them, along the
    substitute's Jacobian, and the model labels it too (Papernot et al. 2017). No image is sent
    twice. Attacks crafted on the substitute then need one query per image.

    Parameters
    ----------
    model
        Victim that gives the labels; a model behind HTTP may answer in any form.
    data
        Images to be labelled.
    arch
        Architecture to train: one of besiege, or path/to/file.py:factory.
    out
        File of the weights, ending in .safetensors; the card beside it ends in .json.
    rounds
        Number of rounds; each doubles the queries.
    count
        Number of seeds: images that are labelled first.
    check
        Number of other images on which the agreement is measured, which are queries too; 0 for
        none.
    queries
        Query limit in all.
    epochs
        Passes over all points in every round.
    lam
        Distance of a neighbour in every pixel value, as a share of the pixels' range.
    tau
        Number of rounds after which the step changes its sign.
    reservoir
        After ROUNDS rounds, only POINTS points get a neighbour in each round.
    split
        Part of the data set; use images that the model was not trained on.
    seed
        Seed of the choice of images, the initial weights and their order.
    resume
        Whether to keep what exists; --no-resume queries again and replaces it. Answers of a model
        behind HTTP are kept in ledgers beside the weights, and are not queried again.
    """
    given: dict[str, Any] = {"epochs": epochs, "lam": lam, "tau": tau, "queries": queries}
    given["reservoir"] = reservoir
    history: list[Round] = []
    console = screen.err()
    typed = _typed(model, data, arch, out, rounds, count, check, given, split, seed, layout)
    asked: Victim | None = None
    try:
        with bar(f"{arch} from {model}", console) as watch:  # first: importing torch takes seconds
            from besiege.bench.work_estimate import Event
            from besiege.cli.machine import prepare
            from besiege.defenses import load
            from besiege.training import fit_substitute

            where = prepare(device, threads)

            def tell(one: Round) -> None:
                history.append(one)
                screen.say(console, Text(_line(one), "dim"))

            asked = load(model, where)
            path = fit_substitute(
                asked,
                laid_out(data, split, layout),
                arch,
                out,
                rounds=rounds,
                count=count,
                check=check,
                split=split,
                seed=seed,
                resume=resume,
                about={"command": typed},
                watch=tell,
                tick=lambda done, total: watch(Event(done, total, "labels")),
                **given,
            )
    except KeyboardInterrupt:
        spent = history[-1].queries if history else 0
        lost = f"Nothing was written, and {spent} queries or more are lost."
        screen.note(f"Interrupted. {_kept(asked) or lost}")
        return 130
    except EndpointError as problem:
        from besiege.models.black_box import Changed

        # Where another model answers now, the same command would stop there again.
        again = "" if isinstance(problem, Changed) else _kept(asked)
        screen.complain(as_options(str(problem), substitute), again)
        return 3
    card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if as_json:
        screen.print_json(card)
        return 0
    if not history:
        console.print(Text("Nothing is left to do: this substitute is complete.", "dim"))
    screen.say(screen.out(), Text(_summary(card, path)))
    screen.verbatim(screen.out(), Text("\n".join(_next(card, model, data))))
    return 0


def _kept(victim: Victim | None) -> str:
    """Where the answers of a model behind HTTP are kept, if there are any."""
    from besiege.models.black_box import black_box

    inner = None if victim is None else black_box(victim)
    if inner is None or inner.ledger is None or not len(inner.ledger):
        return ""
    kept = inner.ledger.path.parent
    return f"The answers are kept in {kept}; run the same command again to resume."


def _typed(
    model: str,
    data: str,
    arch: str,
    out: Path,
    rounds: int,
    count: int,
    check: int,
    given: dict[str, Any],
    split: str,
    seed: int,
    layout: str | None,
) -> str:
    """The command that reproduces the substitute, for the card."""
    words = {"data": data, "arch": arch, "rounds": rounds, "count": count, "check": check, **given}
    words |= {"split": split if split != "test" else None, "layout": layout}
    words |= {"seed": seed or None, "out": out}
    parts: list[object] = ["besiege", "substitute", model]
    for name, value in words.items():
        if value is not None:
            values = value if isinstance(value, tuple) else (value,)
            parts += [f"--{name}", *values]
    return shell(parts)


def _line(one: Round) -> str:
    line = f"round {one.number}: {one.points:,} points, {one.queries:,} queries"
    if one.agreement is not None:
        line += f", agrees with the model on {100 * one.agreement:.1f} % of held-out images"
    return line


def _summary(card: dict[str, Any], path: Path) -> str:
    lines = [f"queries    {card['queries']:,} in all"]
    if card["checks"]:
        lines[0] += f", {card['checks']:,} of them to measure the agreement"
        share = 100 * card["agreement"]
        lines.append(f"agreement  {share:.1f} % of {card['checks']:,} held-out images")
    if card["missing"]:
        lines.append(
            f"missing    the model never answered class {', '.join(map(str, card['missing']))}, so "
            "the substitute does not know them: add images of them to the data"
        )
    lines += [f"weights    {path}", f"card       {path.with_suffix('.json')}"]
    return "\n".join(lines)


def _next(card: dict[str, Any], model: str, data: str) -> list[str]:
    """The command to run next."""
    from besiege.data.catalogue import CATALOGUE

    if card["source"] is None:  # only the user can build a network of their own
        return [f"Load the weights into {card['arch']} to craft on it."]
    known = CATALOGUE[data].threats if data in CATALOGUE else ()
    threat = next((text for text in known if text.startswith("linf:")), _USUAL)
    command = broken(
        ["besiege", "evaluate", model],
        ["--data", data],
        ["--threat", threat],
        ["--substitute", card["source"]],
        ["--attacks", "mim"],
        *([["--access", "decision"]] if model.startswith(("http://", "https://")) else []),
    )
    return ["Craft on it, and judge on the model:", *(f"  {x}" for x in command.splitlines())]
