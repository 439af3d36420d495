"""The device and the number of threads of a command."""

from __future__ import annotations

import os
import re

from besiege.core.allocating import keep_freed
from besiege.core.errors import InputError, near
from besiege.core.text import short

_KINDS = ("cpu", "cuda", "mps", "xpu")
_THREADS = 64
"""Number of threads that is allowed on any machine; machines with many cores allow more."""


def prepare(device: str | None, threads: int | None) -> str | None:
    """Set up the process to compute, and return the checked device: by default a GPU."""
    if device is not None and not re.fullmatch(rf"({'|'.join(_KINDS)})(:[0-9]{{1,3}})?", device):
        kind = device.partition(":")[0]
        raise InputError(f"the device is '{short(device)}': {near(kind, _KINDS)}")
    cores = os.cpu_count() or 1
    if threads is not None and threads > max(_THREADS, 4 * cores):
        raise InputError(
            f"--threads is {threads}, but this machine has {cores} cores: write 1 to "
            f"{max(_THREADS, 4 * cores)}"
        )
    import torch

    keep_freed()
    if threads is not None:
        torch.set_num_threads(threads)
    if device is None:
        return "cuda" if torch.cuda.is_available() else None
    if device.startswith("cpu"):
        return device
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(
            f"this machine has no device '{device}' that torch can use: leave --device out to "
            "use the best one"
        ) from None
    return device
