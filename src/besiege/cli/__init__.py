"""The command line: one file per command, which parses, calls and prints.

Help pages do not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.cli.app import main

__all__ = ["main"]

__getattr__, __dir__ = lazily(__name__, {"app": "main"})
