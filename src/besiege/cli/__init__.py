"""The command line: one file per command, which parses, calls and prints.

Help pages do not import torch.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence

__all__ = ["main"]

_SPINS = "3000"
"""How often an idle thread of torch looks for work before it sleeps, by default 300,000 times. On
idle cores this takes no longer; where other programs keep the cores busy, an evaluation of a small
network takes seconds instead of minutes."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: `besiege.cli.app.main`, and nothing escapes it.

    Python itself would end with 1, which means that a gate failed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # read when torch is imported
    try:
        from besiege.cli.app import main as run

        return run(tokens)
    except Exception:  # such as an installation with a missing package
        traceback.print_exc()
        return 70
