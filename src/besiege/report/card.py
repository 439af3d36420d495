"""The style of the card that a notebook shows: that of the page, made to hold in a foreign page.

A notebook has rules of its own for tables, lists and code, a root font size of its own, and a
light or dark theme that need not be that of the system.
"""

from __future__ import annotations

import re
from functools import cache

CARD = ".besiege"
_DARK = re.compile(
    r"@media screen and \(prefers-color-scheme: dark\)\s*\{\s*\.besiege\s*\{(?P<dark>.*?)\}\s*\}",
    re.S,
)
_LIGHT = re.compile(r"^\.besiege\s*\{(?P<light>.*?)\}", re.S | re.M)
_IN_LIGHT = ('[data-jp-theme-light="true"]', "body.vscode-light", "body.vscode-high-contrast-light")
_IN_DARK = (
    '[data-jp-theme-light="false"]',
    "body.vscode-dark",
    "body.vscode-high-contrast:not(.vscode-high-contrast-light)",
    'html[theme="dark"]',  # Google Colab
)


_RESET = """
.besiege { all: initial; display: block; }
.besiege :where(:not(svg, svg *)), .besiege :where(:not(svg, svg *))::before,
.besiege :where(:not(svg, svg *))::after { all: revert; }
"""
"""Nothing of a notebook's own rules is left inside; drawings have attributes that would be lost."""


@cache
def card_style(style: str) -> str:
    r"""The style of the page for a card inside a notebook.

    Parameters
    ----------
    style : str
        The rules of the page, all below the class ``besiege``, whose first rule has the colours of
        a light page and whose first media query has those of a dark one.

    Returns
    -------
    str
        The same rules, all below the class ``besiege``, such that they win over those of a
        notebook; lengths do not depend on the notebook's root; the colours are those of the
        notebook's theme, or of the system where the notebook has none.

    Examples
    --------
    >>> print(
    ...     card_style(
    ...         ".besiege { --ink: black; }\n"
    ...         "@media screen and (prefers-color-scheme: dark) { .besiege { --ink: white; } }\n"
    ...         ".besiege p { margin: 1rem; }"
    ...     ).splitlines()[-1]
    ... )
    .besiege:not(#none) p { margin: calc(1 * var(--unit)); }
    """
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.S).strip()
    light, dark = _LIGHT.search(style), _DARK.search(style)
    if light is None or dark is None:
        raise ValueError("the style has no rule '.besiege' with the colours of both themes")
    themes = "\n".join(
        f"{', '.join(f'{place} {CARD}' for place in places)} {{ {_colours(found)} }}"
        for places, found in ((_IN_LIGHT, light["light"]), (_IN_DARK, dark["dark"]))
    )
    unit = f"{CARD} {{ --unit: 15px; font-size: 15px; }}"
    first, rest = style[: dark.end()], style[dark.end() :]
    whole = "\n".join([_RESET.strip(), first, unit, themes, rest.strip()])
    # A selector with an id wins over a notebook's own rules for what is inside an output.
    stronger = re.sub(r"\.besiege(?![\w-])", f"{CARD}:not(#none)", whole)
    return re.sub(r"(?<![\w.])(\d*\.?\d+)rem\b", r"calc(\1 * var(--unit))", stronger)


def _colours(rule: str) -> str:
    """The colours of a rule: its custom properties."""
    return " ".join(f"{one.strip()};" for one in re.findall(r"--[\w-]+:[^;]*", rule))
