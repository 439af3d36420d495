"""``besiege models``: lists the models and architectures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cyclopts import App
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing

if TYPE_CHECKING:
    from besiege.models.catalogue import Listed

command = App(name="models", help_epilogue=examples("besiege models", "besiege models --json"))

_FIGURES = ("clean", "pgd20", "autoattack")
_UNBOUNDED = 10_000  # wider than any table: rich measures nothing beyond the width it is given
_LEGEND = (
    "Accuracies in per cent on test images: clean, under PGD with 20 steps and under AutoAttack "
    "(AA)."
)


@command.default
@flowing
def models(*, as_json: AsJson = False) -> None:
    """List the models and architectures, and how a model is written."""
    from besiege.models.catalogue import CATALOGUE, FORMS, layer_of, listing

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
    shipped = [row for row in found if row.name.startswith("zoo:")]
    _print_shipped(console, [row for row in shipped if layer_of(row.name) is None])
    console.print()
    networks = screen.columns("network of a layer", "architecture", "layer", "parameters")
    for row in shipped:
        if layer := layer_of(row.name):
            networks.add_row(
                Text(row.name, "bold"), row.architecture, layer, _short(row.parameters)
            )
    console.print(networks)
    console.print()
    _print_public(console, [row for row in found if row.name.startswith("public:")])
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


def _print_shipped(console: Console, rows: Sequence[Listed]) -> None:
    """The zoo, with as much about each model as fits into the width."""
    unbounded = console.options.update(width=_UNBOUNDED)

    def fits(table: Table) -> bool:
        return Measurement.get(console, unbounded, table).maximum <= console.width

    tables = list(_tables(rows))
    table, left_out = next((made for made in tables if fits(made[0])), tables[-1])
    console.print(table)
    more = f" Wider terminals and --json also show {left_out}." if left_out else ""
    console.print(Text(f"{_LEGEND}{more} `besiege show zoo:NAME` has the card.", "dim"))


def _tables(rows: Sequence[Listed]) -> Iterator[tuple[Table, str]]:
    """Tables of the zoo from the widest to the narrowest, and what each leaves out."""
    yield _table(rows, ("recipe", "threat", "parameters"), exact=True), ""
    yield _table(rows, ("recipe", "threat", "parameters")), "95 % intervals and arguments"
    left_out = "threats, numbers of parameters, 95 % intervals and arguments"
    yield _table(rows, ("recipe",)), left_out
    yield _table(rows, ()), f"recipes, {left_out}"


def _table(rows: Sequence[Listed], middle: Sequence[str], exact: bool = False) -> Table:
    """A table with these columns; `exact` adds intervals, and arguments of architectures."""
    names = {"autoattack": "AutoAttack" if exact else "AA"}
    headings = ("model", "architecture", *middle, *(names.get(name, name) for name in _FIGURES))
    table = screen.columns(*headings, right=("parameters", *headings[-3:]))
    for row in rows:
        about = {
            "recipe": row.recipe.partition("(")[0].partition("@")[0],
            "threat": row.threat,
            "parameters": _short(row.parameters),
        }
        figures = (getattr(row, name) for name in _FIGURES)
        table.add_row(
            Text(row.name, "bold"),
            row.built if exact else row.architecture,
            *(about[name] for name in middle),
            *(_percent(text, exact) for text in figures),
        )
    return table


_WIDE = 100
"""Columns of a terminal that has room for the data of public models."""


def _print_public(console: Console, rows: Sequence[Listed]) -> None:
    right = ("parameters", "clean")
    # Their names begin with the data, so that a narrow terminal can do without that column.
    data = ("data",) if console.width >= _WIDE else ()
    table = screen.columns("model", "architecture", *data, *right, right=right)
    for row in rows:
        size = _short(row.parameters) if row.present else "missing"
        about = (row.architecture, row.data)[: 1 + len(data)]
        table.add_row(Text(row.name, "bold"), *about, size, _percent(row.clean))
    console.print(table)
    if not all(row.present for row in rows):
        console.print(Text("Put missing weights into BESIEGE_DATA/weights.", "dim"))


def _percent(figure: str, exact: bool = False) -> str:
    """The number of a figure such as '78.6 % [77.8, 79.4], 10000 images', with its interval."""
    share, _, rest = figure.partition(" %")
    interval = rest.partition("]")[0]
    return f"{share}{interval}]" if exact and interval.startswith(" [") else share


def _short(parameters: int | None) -> str:
    """A number of parameters in thousands or millions."""
    if parameters is None:
        return ""
    return f"{parameters / 1e6:.2f} M" if parameters >= 1e5 else f"{parameters / 1e3:.1f} k"
