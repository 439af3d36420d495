"""The result in the terminal: the figures, one row per attack, then the warnings."""

from __future__ import annotations

from besiege.report.terminal.printing import table
from besiege.report.terminal.warnings import signs

__all__ = ["signs", "table"]
