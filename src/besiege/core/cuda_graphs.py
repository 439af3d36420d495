"""CUDA graphs of functions of tensors: one launch instead of hundreds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from besiege.core.errors import VictimError

Function = Callable[..., tuple[Tensor, ...]]

AFTER = 1
"""Calls of one batch size before it is captured: a size that occurs once is not worth a graph."""
FINEST = 8
"""The finest step of captured batch sizes."""


def rounded(rows: int) -> int:
    """The batch size of a graph for so many rows: up to 7 or 1/16 more, so that few occur."""
    step = max(FINEST, 1 << max(rows.bit_length() - 5, 0))
    return -(-rows // step) * step


class Captured:
    """A function of tensors of fixed shapes as one CUDA graph.

    The next call overwrites the outputs of this one.
    """

    def __init__(
        self, function: Function, given: tuple[Tensor, ...], pool: Any = None, warm: int = 3
    ) -> None:
        self.given = given
        with torch.cuda.device(given[0].device):
            # Compilation and the choice of algorithms must be finished before the capture.
            side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                for _ in range(warm):
                    function(*given)
            torch.cuda.current_stream().wait_stream(side_stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
                self.answer = function(*given)

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The function's outputs for tensors of as many rows, or of fewer."""
        rows = len(given[0])
        for held, new in zip(self.given, given, strict=True):
            (held if len(held) == len(new) else held[: len(new)]).copy_(new)
        with torch.cuda.device(given[0].device):
            self.graph.replay()
        return tuple(part if len(part) == rows else part[:rows] for part in self.answer)


class Captures:
    """The graphs of one victim, by function and batch size.

    Attributes
    ----------
    seconds : float
        Time spent on capturing so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._made: dict[Hashable, dict[int, Captured | None]] = {}
        self._asked: Counter[tuple[int, int]] = Counter()
        self._pool: Any = None

    def __call__(
        self, what: Hashable, function: Function, given: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        """Copies of the function's outputs, or None where it has no graph (yet).

        All tensors have the rows first. `what` names the function and everything it depends on
        besides the tensors.
        """
        rows = rounded(len(given[0]))
        try:
            graphs = self._made.setdefault((what, *((t.shape[1:], t.dtype) for t in given)), {})
        except TypeError:  # a loss that cannot be hashed is not captured
            return None
        if rows not in graphs:
            self._asked[id(graphs), rows] += 1
            if self._asked[id(graphs), rows] <= AFTER:
                return None
            graphs[rows] = self._capture(function, given, rows)
        graph = graphs[rows]
        return None if graph is None else tuple(part.clone() for part in graph(*given))

    def _capture(self, function: Function, given: tuple[Tensor, ...], rows: int) -> Captured | None:
        started = time.perf_counter()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        short = rows - len(given[0])
        held = tuple(torch.cat([t, t[-1:].expand(short, *t.shape[1:])]) for t in given)
        try:
            # All graphs share a pool: every output is copied before the next graph runs.
            graph = Captured(function, held, self._pool, warm=1)
        except (RuntimeError, VictimError):  # a model that synchronises cannot be captured
            graph = None
        torch.cuda.synchronize()
        self.seconds += time.perf_counter() - started
        return graph
