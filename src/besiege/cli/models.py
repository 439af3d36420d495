"""``besiege models``: the models and architectures there are."""

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
    """The models and architectures there are, and how a model is written."""
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
        console.print(Text("Weights that are not here belong into BESIEGE_DATA/weights.", "dim"))
    console.print()
    rows = screen.columns("architecture", "what it is")
    for name, known in CATALOGUE.items():
        rows.add_row(Text(name, "bold"), known.about)
    console.print(rows)
    console.print()
    console.print("How a model is written:")
    for form, told in (*FORMS.items(), ("MODEL+bits(depth=3)", "any of them behind a defense")):
        console.print(Text(f"  {form}", "bold"))
        console.print(Padding(told, (0, 0, 0, 4)))
