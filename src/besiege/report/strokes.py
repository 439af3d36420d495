"""The pieces of a drawing as SVG: colours, dashes, lines, symbols and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

# Blue and orange come first: colour-blind readers distinguish this pair best.
COLOURS = ("#0b66b0", "#b85200", "#1b7f5c", "#8f4a8c", "#6b5b1e", "#5b6570")
DASHES = ("", "7 4", "2 4", "10 4 2 4", "5 2", "1 3")


def swatch(style: int) -> str:
    """The line of a style, for a legend beside the drawing."""
    return (
        '<svg class="swatch" width="34" height="10" viewBox="0 0 34 10" aria-hidden="true">'
        f'{stroke(style, "M0 5H34")}<g {colour(style)} fill="currentColor">'
        f"{symbol(style, 17, 5)}</g></svg>"
    )


def colour(style: int) -> str:
    """The attribute that sets the colour of a style; pages define it for light and dark."""
    which = style % len(COLOURS)
    return f'style="color:var(--series-{which + 1},{COLOURS[which]})"'


def dash_of(style: int) -> str:
    """The dash of a style; the seventh has the colour of the first, and another dash."""
    return DASHES[(style + style // len(COLOURS)) % len(DASHES)]


def stroke(style: int, along: str) -> str:
    """A line along a path in a style: with the symbol, no two of 36 are equal even in grey."""
    dash = dash_of(style)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="line" {colour(style)} fill="none" stroke="currentColor" stroke-width="2" '
        f'stroke-linejoin="round"{dashes} d="{along}"/>'
    )


def path(corners: Sequence[tuple[float, float]]) -> str:
    """An SVG path along these corners, with short commands for moves along one axis."""
    texts = [(f"{x:.1f}", f"{y:.1f}") for x, y in corners]
    commands = [f"M{texts[0][0]} {texts[0][1]}"]
    for (x, y), (right, down) in pairwise(texts):
        if x == right and y != down:
            commands.append(f"V{down}")
        elif x != right:
            commands.append(f"H{right}" if y == down else f"L{right} {down}")
    return "".join(commands)


def segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line of a kind: axis, grid or mark."""
    faint = ' opacity="0.15"' if kind == "grid" else ""
    dash = {"mark median": "2 3", "mark budget": "6 3", "mark chance": "2 3"}.get(kind)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" '
        f'fill="none"{faint}{dashes}/>'
    )


def text_at(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    """A text of a kind, escaped."""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'


def _shapes() -> tuple[Callable[[float, float], str], ...]:
    def polygon(*corners: tuple[float, float]) -> Callable[[float, float], str]:
        return lambda x, y: (
            '<path class="dot" d="M'
            + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners)
            + 'Z"/>'
        )

    return (
        lambda x, y: f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>',
        polygon((-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)),
        polygon((0, -3.8), (3.6, 2.6), (-3.6, 2.6)),
        polygon((0, -4), (4, 0), (0, 4), (-4, 0)),
        polygon((0, 3.8), (3.6, -2.6), (-3.6, -2.6)),
        polygon((-4, -1.6), (4, -1.6), (4, 1.6), (-4, 1.6)),
    )


_SHAPES = _shapes()


def symbol(style: int, x: float, y: float) -> str:
    """The symbol of a style."""
    return _SHAPES[style % len(_SHAPES)](x, y)
