"""A console for untrusted text, which cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable

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

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(harmless(text), style)
