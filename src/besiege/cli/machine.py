"""Where and with how many threads a command computes."""

from __future__ import annotations

import os
import re

from besiege.core.errors import InputError, near
from besiege.core.text import short

_KINDS = ("cpu", "cuda", "mps", "xpu")
_THREADS = 64
"""So many threads are granted on any machine; more only where there are cores for them."""


def prepare(device: str | None, threads: int | None) -> str | None:
    """Let torch use so many threads; the device, checked, or a GPU where none was asked for."""
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
            "take the best there is"
        ) from None
    return device
