"""``besiege show``: all about one thing that has a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing

command = App(
    name="show",
    help_epilogue=examples(
        "besiege show pgd",
        'besiege show "minimal(pgd(steps=20))"',
        "besiege show zoo:digits-pgd-at",
    ),
)


@command.default
@flowing
def show(name: Annotated[str, Parameter(metavar="NAME")], /, *, as_json: AsJson = False) -> None:
    """All about one thing that has a name.

    Attacks and the pieces they are made of, suites, models, architectures, data sets, recipes and
    defenses.

    Parameters
    ----------
    name
        Its name; an attack may have parameters.
    """
    from besiege.cli.lookup import look_up

    found = look_up(name)
    if as_json:
        screen.print_json(vars(found))
        return
    console = screen.out()
    console.print(Text(found.name, "bold").append(f"  {found.kind}", "not bold dim"))
    if found.about:
        console.print(found.about)
    for title, values in (("", found.facts), ("parameters", found.parameters)):
        if values:
            console.print(f"\n{title}" if title else "")
            console.print(_grid(values))


def _grid(values: Mapping[str, Any]) -> Table:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in values.items():
        rows.add_row(f"  {name}", Text(_text(value)))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {part}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    return str(value)
