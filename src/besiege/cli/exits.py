"""The exit codes of every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import, and every command needs this module
    from besiege.metrics.gates import Verdict

FINE, GATE, USAGE, INCOMPLETE, STOP = 0, 1, 2, 3, 4
UNEXPECTED, INTERRUPTED, UNREAD = 70, 130, 141
"""The last is a shell's code for a closed pipe."""
TOLD = """\
Exit codes: 0 fine, 1 a gate failed, 2 wrong input, 3 incomplete, 4 figures that
must not be quoted, 70 an unexpected error, 130 interrupted. Of several, 3 comes
before 4 and 4 before 1."""


def code_of(verdicts: Sequence[Verdict]) -> int:
    """The exit code of verdicts: that of the first reason for which nothing else counts.

    Figures that are not complete are not final, so 3 comes before 4; figures that must not be
    quoted pass no gate and fail none, so 4 comes before 1.
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    codes = {"incomplete": INCOMPLETE, "stop": STOP, "failed": GATE}
    return next((code for outcome, code in codes.items() if outcome in outcomes), FINE)
