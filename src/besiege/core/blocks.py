"""How many images are made and asked about at once."""

from __future__ import annotations

from besiege.core.ball import Ball

BLOCK = 128
"""Images of one row that are made and asked at once, at most."""
CPU_PIECE, GPU_PIECE = 2**22, 2**24
"""And how many entries these may have: more would leave the caches and take gigabytes."""
CPU_BLOCK, GPU_BLOCK = (512, 64 * 3 * 32 * 32), (8192, 8192 * 3 * 32 * 32)
"""Images of several rows that are made and asked at once, and how many entries they may have: what
stays in a CPU's caches, and what keeps a GPU from waiting for the next ones."""


def at_once(ball: Ball) -> int:
    """How many candidates of one row are made at once: a block, and fewer of large images.

    Depends on image size and device only, never on the batch, and so do the sums of a row.

    Examples
    --------
    >>> import torch
    >>> from besiege.core.ball import ball
    >>> from besiege.core.threat import L2
    >>> [at_once(ball(L2, torch.zeros(1, 3, side, side), 1.0)) for side in (32, 224)]
    [128, 24]
    """
    fit = CPU_PIECE if ball.center.device.type == "cpu" else GPU_PIECE
    return max(8, min(BLOCK, fit // ball.size // 8 * 8))


def together(ball: Ball, k: int, least: int) -> int:
    """How many rows with k candidates each are made and asked at once.

    `least` is how many images the victim takes at a time, where it says so.
    """
    most, entries = CPU_BLOCK if ball.center.device.type == "cpu" else GPU_BLOCK
    many = max(at_once(ball), min(most, entries // ball.size), least)
    return max(1, many // max(k, 1))
