"""Texts of others cannot steer the terminal that they are printed on."""

from __future__ import annotations

import io

from rich.table import Table
from rich.text import Text

from besiege.report.console import Harmless

HOSTILE = "a\x1b]0;title\x1b[2J\x9b31m\u202eb\u2066[red]c[/red]\x7f"
SPELLED = r"a\x1b]0;title\x1b[2J\x9b31m\u202eb\u2066[red]c[/red]\x7f"


def test_control_characters_are_spelled_out_and_styles_stay() -> None:
    page = io.StringIO()
    console = Harmless(file=page, force_terminal=True, width=200, markup=False, highlight=False)
    table = Table(HOSTILE)
    table.add_row(Text(HOSTILE, "red"))
    for one in (HOSTILE, Text(HOSTILE, "red"), table):
        console.print(one)
    shown = page.getvalue()
    assert shown.count(SPELLED) == 2 and "\x1b[31m" in shown
    for letter in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x7f"):
        assert letter not in shown


def test_ordinary_texts_are_printed_as_they_are() -> None:
    page = io.StringIO()
    Harmless(file=page, width=80).print(Text("Größe 30 µm\n中文 \U0001f600 \u0645\u06cc\u200c"))
    assert page.getvalue() == "Größe 30 µm\n中文 \U0001f600 \u0645\u06cc\u200c\n"
