"""The panels of studies' figures, as the curves that most of them are."""

from __future__ import annotations

from besiege.bench.display import Figure
from besiege.bench.sweeps import Sweep


def sweeps(figure: Figure) -> list[Sweep]:
    """The panels of a figure that shows curves only."""
    found = [panel for panel in figure.panels if isinstance(panel, Sweep)]
    assert len(found) == len(figure.panels) > 0
    return found
