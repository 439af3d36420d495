"""Where and with how many threads a command computes."""

from __future__ import annotations

import re

from besiege.core.errors import InputError, near

_KINDS = ("cpu", "cuda", "mps", "xpu")


def prepare(device: str | None, threads: int | None) -> str | None:
    """Let torch use so many threads; the device, checked, or a GPU where none was asked for."""
    if device is not None and not re.fullmatch(rf"({'|'.join(_KINDS)})(:\d+)?", device):
        raise InputError(f"the device is '{device}': {near(device.partition(':')[0], _KINDS)}")
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
