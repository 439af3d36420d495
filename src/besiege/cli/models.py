"""``besiege models``: lists the models and architectures."""

from __future__ import annotations

from cyclopts import App
from rich.padding import Padding
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing

command = App(name="models", help_epilogue=examples("besiege models", "besiege models --json"))


@command.default
@flowing
def models(*, as_json: AsJson = False) -> None:
    """List the models and architectures, and how a model is written."""
    from besiege.models.catalogue import CATALOGUE, FORMS, listing

    found = listing()
    if as_json:
        screen.print_json(
            {
                "models": [
                    {**vars(row), "weights": None if row.weights is None else str(row.weights)}
                    for row in found
                ],
                "architectures": {name: vars(known) for name, known in CATALOGUE.items()},
                "forms": dict(FORMS),
            }
        )
        return
    console = screen.out()
    rows = screen.columns("model", "architecture", "data", "clean", "here")
    for row in found:
        clean = row.clean.partition(" [")[0]
        rows.add_row(
            Text(row.name, "bold"),
            row.architecture,
            row.data,
            clean,
            "yes" if row.present else "no",
        )
    console.print(rows)
    if not all(row.present for row in found):
        console.print(Text("Put missing weights into BESIEGE_DATA/weights.", "dim"))
    console.print()
    rows = screen.columns("architecture", "what it is")
    for name, known in CATALOGUE.items():
        rows.add_row(Text(name, "bold"), known.about)
    console.print(rows)
    console.print()
    console.print("How a model is written:")
    for form, about in (*FORMS.items(), ("MODEL+bits(depth=3)", "any of them with a defense")):
        console.print(Text(f"  {form}", "bold"))
        console.print(Padding(about, (0, 0, 0, 4)))
