"""Progress in a notebook: one line below the cell that is replaced while work advances.

Widgets would do the same, but need ``ipywidgets`` and are lost when a notebook is converted.
"""

from __future__ import annotations

import sys
import time
from html import escape
from importlib import import_module
from typing import Any

_PAUSE = 0.2
"""Seconds between two updates: more would slow down the work and the browser."""


class Line:
    """A line below the running cell.

    Parameters
    ----------
    display : callable
        IPython's ``display``.
    """

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._shown = -_PAUSE

    def show(self, text: str, share: float | None = None, *, last: bool = False) -> None:
        """Replace the line; `share` of the work is drawn as a bar. Only the `last` always shows."""
        now = time.monotonic()
        if now - self._shown < _PAUSE and not last:
            return
        self._shown = now
        style = "font: 13px/1.5 system-ui, sans-serif; opacity: 0.8"
        drawn = "" if share is None else f'<progress value="{share:.3f}"></progress> '
        lines = "<br>".join(map(escape, text.split("\n")))
        shown = {"text/plain": text, "text/html": f'<div style="{style}">{drawn}{lines}</div>'}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def line() -> Line | None:
    """A line below the running cell; None outside of a notebook."""
    if not in_notebook():
        return None
    return Line(import_module("IPython.display").display)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter, VS Code, Colab or nbconvert.

    Examples
    --------
    >>> in_notebook()
    False
    """
    # Whatever runs in a notebook has IPython imported already; a shell of it has no kernel.
    ipython = sys.modules.get("IPython")
    running = getattr(ipython, "get_ipython", lambda: None)()
    return getattr(running, "kernel", None) is not None
