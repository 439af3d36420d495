"""Functions of tensors as CUDA graphs: hundreds of launches become one."""

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
"""A call is captured when it has been made so often: sizes that only pass by are not worth it."""
FINEST = 8


def rounded(rows: int) -> int:
    """The number of rows a graph is made for: few sizes, each up to a sixteenth or 7 rows more."""
    step = max(FINEST, 1 << max(rows.bit_length() - 5, 0))
    return -(-rows // step) * step


class Captured:
    """A function of tensors of fixed shapes as one CUDA graph.

    What it gives back is overwritten by the next call.
    """

    def __init__(
        self,
        function: Function,
        given: tuple[Tensor, ...],
        pool: Any = None,
        warm: int = 3,
    ) -> None:
        self.given = given
        with torch.cuda.device(given[0].device):
            self._make(function, pool, warm)

    def _make(self, function: Function, pool: Any, warm: int) -> None:
        # Compiling and choosing algorithms must be over before anything is captured.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(warm):
                function(*self.given)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.answer = function(*self.given)

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The function of tensors of as many rows, or of fewer: then of those first."""
        rows = len(given[0])
        for held, new in zip(self.given, given, strict=True):
            (held if len(held) == len(new) else held[: len(new)]).copy_(new)
        with torch.cuda.device(given[0].device):
            self.graph.replay()
        return tuple(part if len(part) == rows else part[:rows] for part in self.answer)


class Captures:
    """The graphs of one victim: by what is computed and by how many rows.

    Attributes
    ----------
    seconds : float
        What making them has taken so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._made: dict[Hashable, dict[int, Captured | None]] = {}
        self._asked: Counter[tuple[int, int]] = Counter()
        self._pool: Any = None

    def __call__(
        self, what: Hashable, function: Function, given: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        """Copies of the function's tensors, or None where there is no graph of it (yet).

        All tensors have the rows first. `what` names the function and all that it depends on
        besides them.
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
        begin = time.perf_counter()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        short = rows - len(given[0])
        held = tuple(torch.cat([t, t[-1:].expand(short, *t.shape[1:])]) for t in given)
        try:
            # One pool for all: every answer is copied out before the next graph runs.
            made = Captured(function, held, self._pool, warm=1)
        except (
            RuntimeError,
            VictimError,
        ):  # a model that waits for the GPU itself cannot be captured
            made = None
        torch.cuda.synchronize()
        self.seconds += time.perf_counter() - begin
        return made
