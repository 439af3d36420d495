"""``besiege data``: lists the named data sets."""

from __future__ import annotations

from collections.abc import Mapping

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing

command = App(
    name="data", help_epilogue=examples("besiege data", "BESIEGE_DATA=~/data besiege data --json")
)


@command.default
@flowing
def data(*, as_json: AsJson = False) -> None:
    """List the named data sets, and where they are stored.

    Named sets are searched in the folder that BESIEGE_DATA names, then in the cache. A set that is
    in neither is downloaded when it is used, unless BESIEGE_OFFLINE is set. imagenet-sample is not
    downloaded.
    """
    from besiege.data.places import listing

    found = listing()
    if as_json:
        screen.print_json(
            [
                {
                    "name": line.entry.name,
                    "title": line.entry.title,
                    "images": dict(line.entry.images),
                    "shape": line.entry.shape,
                    "classes": line.entry.class_names,
                    "threats": line.entry.threats,
                    "where": dict(line.where),
                }
                for line in found
            ]
        )
        return
    console = screen.out()
    rows = screen.columns("name", "train", "test", "shape", "usual threats")
    for line in found:
        entry = line.entry
        rows.add_row(
            Text(entry.name, "bold"),
            *(_number(entry.images.get(split)) for split in ("train", "test")),
            "x".join(map(str, entry.shape)),
            " ".join(entry.threats),
        )
    console.print(rows)
    console.print()
    for line in found:
        screen.say(console, Text(f"{line.entry.name}: {_where(line.where)}", "dim"))
    console.print()
    console.print(
        "Your own data: a folder with one folder of images per class, or an .npz with x and y."
    )


def _where(places: Mapping[str, str]) -> str:
    if len(set(places.values())) == 1:
        return next(iter(places.values()))
    return ", ".join(f"{split} {place}" for split, place in places.items())


def _number(images: int | None) -> str:
    return "-" if images is None else f"{images:,}"
