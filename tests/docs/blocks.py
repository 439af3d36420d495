"""The commands and the code of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Block:
    """What stands between two fences, and in which language."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name its first line gives it, if it is a file to be written."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found else None

    def commands(self) -> list[str]:
        """The commands of a shell block, each on one line."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line for line in joined.splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    """All blocks of a page in their order."""
    text = (DOCS / page).read_text("utf-8")
    return [
        Block(*found) for found in re.findall(r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.M | re.S)
    ]
