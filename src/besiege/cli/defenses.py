"""``besiege defenses``: lists the layers that a model can be put behind."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.attacks import first_line
from besiege.cli.grammar import AsJson, examples, flowing

if TYPE_CHECKING:
    from besiege.defenses.layers import Layer

command = App(
    name="defenses",
    help_epilogue=examples(
        "besiege defenses",
        "besiege show bits",
        'besiege evaluate "zoo:digits-natural+bits(depth=3)" --data digits \\',
        "  --threat linf:0.15",
    ),
)


@command.default
@flowing
def defenses(*, as_json: AsJson = False) -> None:
    """List the defenses: layers that transform an image before the model sees it."""
    from besiege.defenses.detecting import DETECTORS
    from besiege.defenses.layers import LAYERS
    from besiege.defenses.presets import FORMS

    detectors = {name: first_line(kind).replace("``", "`") for name, kind in DETECTORS.items()}
    found = [described(name, kind) for name, kind in LAYERS.items()]
    if as_json:
        forms = [asdict(form) for form in FORMS.values()]
        screen.print_json({"defenses": found, "forms": forms, "detectors": detectors})
        return
    console = screen.out()
    rows = screen.columns("defense", "randomness", "gradient", "parameters")
    for line in found:
        values = [f"{name}={value}" for name, value in line["parameters"].items()]
        random = "stochastic" if line["stochastic"] else "none"
        text = screen.Spelled(", ".join(values))
        rows.add_row(Text(line["name"], "bold"), random, line["gradient"], text)
    console.print(rows)
    console.print()
    rows = screen.columns("defense", "what it does")
    for line in found:
        rows.add_row(Text(line["name"], "bold"), line["about"])
    console.print(rows)
    console.print()
    rows = screen.columns("detector", "what it finds suspicious")
    for name, about in detectors.items():
        rows.add_row(Text(name, "bold"), about)
    console.print(rows)
    console.print()
    rows = screen.columns("published form", "stands for")
    for form in FORMS.values():
        rows.add_row(Text(form.name, "bold"), screen.Spelled(form.text))
    console.print(screen.whole_names(rows, console.width))
    console.print()
    screen.say(
        console,
        Text(
            "Defenses are written after a model with plus signs, and applied to the image in this "
            'order: "MODEL+bits(depth=3)+resize_pad". --suite adaptive attacks through them, and '
            'a stochastic one on average, as --attacks "averaged(pgd, 20)" does. Last may stand '
            "pooled(draws=20), which makes one answer of several draws: their mean logits, "
            "of='probabilities' or of='votes'. A detector is made by `besiege detector` and "
            "rejects images: \"MODEL+detector('FILE')\". `besiege show NAME` explains one."
        ),
    )


def described(name: str, kind: type[Layer]) -> dict[str, Any]:
    """A registered layer as plain values."""
    from besiege.cli.lookup import defaults
    from besiege.defenses.layers import Layer

    values = defaults(kind)
    if "required" in values.values():
        stands_in = kind.surrogate is not Layer.surrogate
    else:
        stands_in = kind().has_surrogate
    return {
        "name": name,
        "stochastic": bool(getattr(kind, "stochastic", False)),
        "gradient": "of a surrogate" if stands_in else "its own",
        "parameters": values,
        "about": first_line(kind).replace("``", "`"),
    }
