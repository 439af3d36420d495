"""The command line: one file per command, which parses, calls and prints.

Help pages do not import torch.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

__all__ = ["main"]


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: `besiege.cli.app.main`, and nothing escapes it.

    Python itself would end with 1, which means that a gate failed.
    """
    try:
        from besiege.cli.app import main as run

        return run(tokens)
    except Exception:  # such as an installation with a missing package
        traceback.print_exc()
        return 70
