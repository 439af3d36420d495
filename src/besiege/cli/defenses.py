"""``besiege defenses``: lists the layers that a model can be put behind."""

from __future__ import annotations

from typing import Any

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.attacks import first_line
from besiege.cli.grammar import AsJson, examples, flowing

command = App(
    name="defenses",
    help_epilogue=examples(
        "besiege defenses",
        "besiege show bits",
        'besiege evaluate "zoo:digits-natural+bits(depth=3)" --data digits --threat linf:0.15',
    ),
)


@command.default
@flowing
def defenses(*, as_json: AsJson = False) -> None:
    """List the defenses: layers that transform an image before the model sees it."""
    from besiege.defenses.layers import LAYERS

    found = [described(name, kind) for name, kind in LAYERS.items()]
    if as_json:
        screen.print_json({"defenses": found})
        return
    console = screen.out()
    rows = screen.columns("defense", "randomness", "gradient", "parameters")
    for line in found:
        values = [f"{name}={value}" for name, value in line["parameters"].items()]
        random = "stochastic" if line["stochastic"] else "none"
        rows.add_row(Text(line["name"], "bold"), random, line["gradient"], ", ".join(values))
    console.print(rows)
    console.print()
    rows = screen.columns("defense", "what it does")
    for line in found:
        rows.add_row(Text(line["name"], "bold"), line["about"])
    console.print(rows)
    console.print()
    screen.say(
        console,
        Text(
            "Defenses are written after a model with plus signs, and applied to the image in this "
            'order: "MODEL+bits(depth=3)+resize_pad". --suite adaptive attacks through them, and '
            'a stochastic one on average, as --attacks "averaged(pgd, 20)" does. Last may stand '
            "pooled(draws=20), which makes one answer of several draws: their mean logits, "
            "of='probabilities' or of='votes'. `besiege show NAME` explains one."
        ),
    )


def described(name: str, kind: type) -> dict[str, Any]:
    """A registered layer as plain values."""
    from besiege.cli.lookup import defaults
    from besiege.defenses.layers import Layer

    own = getattr(kind, "surrogate", None) is Layer.surrogate
    return {
        "name": name,
        "stochastic": bool(getattr(kind, "stochastic", False)),
        "gradient": "its own" if own else "of a surrogate",
        "parameters": defaults(kind),
        "about": first_line(kind).replace("``", "`"),
    }
