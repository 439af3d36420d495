"""A console for untrusted text, which cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from besiege.core.text import harmless


class Harmless(Console):
    r"""A console that prints control characters as escape sequences.

    Names of files, classes and models, and messages, often come from others.

    Examples
    --------
    >>> from rich.text import Text
    >>> Harmless(width=40).print(Text("a \x1b]0;title"))
    a \x1b]0;title
    """

    def __init__(self, **options: Any) -> None:
        # In a notebook rich would put every line into markup of its own, wherever it should go.
        super().__init__(**{"force_jupyter": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(harmless(text), style)
