"""How many candidate images an attack makes and sends at once."""

from __future__ import annotations

from besiege.core.ball import Ball

BLOCK = 128
"""Most candidates of one row that are made and sent at once."""
CPU_PIECE, GPU_PIECE = 2**22, 2**24
"""Most pixel values of these candidates: more would leave the caches and take gigabytes."""
CPU_BLOCK, GPU_BLOCK = (512, 64 * 3 * 32 * 32), (8192, 8192 * 3 * 32 * 32)
"""Most candidates of several rows that are made and sent at once, and their most pixel values: what
fits into a CPU's caches, and what keeps a GPU busy."""


def at_once(ball: Ball) -> int:
    """How many candidates of one row are made at once: `BLOCK`, and fewer of large images.

    Depends on image size and device only, never on the batch: a row's sums are reproducible.

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
    """How many rows with k candidates each are made and sent at once.

    `least` is the batch size that the victim declares, or 0.
    """
    most, entries = CPU_BLOCK if ball.center.device.type == "cpu" else GPU_BLOCK
    many = max(at_once(ball), min(most, entries // ball.size), least)
    return max(1, many // max(k, 1))
