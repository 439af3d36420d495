"""The command line as one page, from the commands themselves."""

from __future__ import annotations

import re

from besiege.cli.app import loaded
from besiege.cli.grammar import WRITTEN

from .markup import block, joined


def commands_page() -> str:
    """Every command with its parameters and examples."""
    # Sphinx greys lines of "console" blocks that have no prompt.
    app = loaded()
    whole = app.generate_docs(output_format="markdown").replace("```console", "```text")
    overview, *parts = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    # The text after the list of contents groups the commands and explains each.
    groups = parts[0].partition("\n\n**")
    exit_codes = (app.help_epilogue or "").rpartition("\n\n")[2]
    return joined(
        "# The command line",
        overview.partition("\n")[2],
        f"**{groups[2]}",
        exit_codes,
        "(written)=\n## How things are written",
        block(WRITTEN.partition("\n")[2]),
        *(_command(part) for part in parts if part.startswith("## besiege ")),
    )


def _command(text: str) -> str:
    """One command, with the examples of its help page."""
    name = text.split()[2]
    # Commands of a command have no sections of their own.
    text = re.sub(r"\[(`\w+`)\]\(#besiege-\w+-\w+\)", r"\1", text)
    text = re.sub(r"\n\*\*Always\*\*:.*", "\n", text, flags=re.DOTALL)
    examples = (loaded([name])[name].help_epilogue or "").rpartition("Examples:\n")[2]
    shown = "\n".join(line.removeprefix("  ") for line in examples.splitlines())
    return joined(text, "**Examples**:", block(shown, "sh"))
