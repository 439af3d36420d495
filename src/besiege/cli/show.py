"""``besiege show``: explains one attack, model, data set or other named object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent, wrap
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing
from besiege.core.shell import wrapped

command = App(
    name="show",
    help_epilogue=examples(
        "besiege show pgd",
        "besiege show pgd@madry",
        'besiege show "minimal(pgd(steps=20))"',
        "besiege show zoo:digits-pgd-at",
        "besiege show trades@cifar10",
        "besiege show objective:trades",
        "besiege show W11",
    ),
)
# Facts that are printed last, so that they can be copied.
_VERBATIM = ("code", "run it")
# Facts that only --json prints: the text of a recipe has what its settings have.
_LONG = ("settings", "identity")


@command.default
@flowing
def show(name: Annotated[str, Parameter(metavar="NAME")], /, *, as_json: AsJson = False) -> None:
    """Explain one attack, model, data set, warning rule or other name.

    Names are those of attacks and their pieces, suites, models, architectures, data sets, defenses,
    recipes and their objectives, radii and updates, ids of warning rules, and Layer for a defense
    of your own. KIND:NAME chooses where several kinds have the same name.

    Parameters
    ----------
    name
        Name; an attack, a recipe or a defense may have parameters.
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
    facts = {name: value for name, value in found.facts.items() if name not in _VERBATIM + _LONG}
    for title, values in (("", facts), ("parameters", found.parameters)):
        if values:
            console.print(f"\n{title}" if title else "")
            for line in _lines(values, console.width):
                screen.verbatim(console, line)
    for name in _VERBATIM:
        if name in found.facts:
            text = found.facts[name].rstrip()
            if name == "run it":
                text = f"{name}\n{indent(wrapped(text, console.width - 2), '  ')}"
            screen.verbatim(console, Text(f"\n{text}"))


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
        return "\n".join(f"{key}: {part}" for key, part in value.items() if part is not None)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    return str(value)
