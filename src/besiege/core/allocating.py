"""Memory that is freed stays with the process, on Linux with the GNU C library."""

from __future__ import annotations

import ctypes
import sys

_TRIM, _MAP = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of ``mallopt(3)``."""
_NEVER, _LARGEST = 2**31 - 1, 2**30


def keep_freed() -> bool:
    """Have ``malloc`` reuse what is freed, and not give it back to the system; says if it does.

    An attack allocates the same activations pass after pass. Given back and asked for again, each
    page is cleared by the system first: with the usual thresholds this took 16 % of the time of a
    long run, and a pass of a ResNet-20 1.53 instead of 1.18 ms an image. The memory of the process
    then stays at its peak, so this is for processes of our own: commands and workers.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_TRIM, _NEVER)) and bool(mallopt(_MAP, _LARGEST))
