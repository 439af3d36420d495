"""``besiege show``: explains one attack, model, data set or other named object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing

command = App(
    name="show",
    help_epilogue=examples(
        "besiege show pgd",
        "besiege show pgd@madry",
        'besiege show "minimal(pgd(steps=20))"',
        "besiege show zoo:digits-pgd-at",
        "besiege show W11",
    ),
)


@command.default
@flowing
def show(name: Annotated[str, Parameter(metavar="NAME")], /, *, as_json: AsJson = False) -> None:
    """Explain one attack, model, data set, warning rule or other name.

    Names are those of attacks and their pieces, suites, models, architectures, data sets, recipes
    and defenses, ids of warning rules, and Layer for a defense of your own.

    Parameters
    ----------
    name
        Name; an attack may have parameters.
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
    facts = {name: value for name, value in found.facts.items() if name != "code"}
    for title, values in (("", facts), ("parameters", found.parameters)):
        if values:
            console.print(f"\n{title}" if title else "")
            for line in _lines(values, console.width):
                screen.verbatim(console, line)
    if "code" in found.facts:
        screen.verbatim(console, Text(f"\n{found.facts['code'].rstrip()}"))


def _lines(values: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Names and values, wrapped between words only, since some values are paths."""
    margin = max(map(len, values)) + 4
    room = max(width - margin, 1)
    for name, value in values.items():
        wrapped = [
            part
            for line in _text(value).splitlines()
            for part in wrap(line, room, break_long_words=False, break_on_hyphens=False)
        ]
        for place, line in enumerate(wrapped or [""]):
            title = f"  {name}" if place == 0 else ""
            yield Text(title.ljust(margin), "dim").append(line, "not dim")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {part}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    return str(value)
