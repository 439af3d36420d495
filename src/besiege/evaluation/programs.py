"""A network as a mixed-integer program, whose optimum is the exact smallest perturbation in linf.

Every ReLU reads an affine function of the image and of the ReLUs before it. One whose sign is known
is affine itself; each other one has a binary variable (Tjeng et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from besiege.bounds.graph import Graph
from besiege.bounds.operations import Affine, Constant, MaxPool, Rectifier
from besiege.bounds.relaxing import Bounds
from besiege.core.errors import BoundError

GAP = 1e-5
"""The share by which what is found may exceed the optimum."""


@dataclass(frozen=True, eq=False)
class Layer:
    """What one node reads, as a function of the image and of ReLUs: ``sum of W v + b``.

    ``weights`` are float64 matrices by the node of their source: 0 for the image, or a ReLU.
    """

    weights: dict[int, Tensor]
    bias: Tensor


def layer_of(graph: Graph, number: int) -> Layer:
    """The values of a node as functions of the image and of ReLUs."""
    size = prod(graph.nodes[number].shape)
    kind = next(t.dtype for t in _weights(graph))
    units = torch.eye(size, dtype=kind).reshape(size, *graph.nodes[number].shape)
    waiting, weights = {number: units}, dict[int, Tensor]()
    bias = torch.zeros(size, dtype=kind)
    for at in range(number, -1, -1):
        here = waiting.pop(at, None)
        if here is None:
            continue
        node = graph.nodes[at]
        operation = node.operation
        if isinstance(operation, MaxPool):
            raise BoundError(
                f"the max pooling at {node.place} has no exact program: the certificate 'complete' "
                "bounds it"
            )
        if operation is None or isinstance(operation, Rectifier):
            weights[at] = here.flatten(1).double()
        elif isinstance(operation, Constant):
            bias = bias + (here * operation.value).flatten(1).sum(1)
        elif isinstance(operation, Affine):
            shapes = [graph.nodes[parent].shape for parent in node.parents]
            constant = operation.constant(here, shapes)
            bias = bias if constant is None else bias + constant
            before = operation.transposed(here, shapes)
            for parent, function in zip(node.parents, before, strict=True):
                old = waiting.get(parent)
                waiting[parent] = function if old is None else old + function
    return Layer(weights, bias.double())


def _weights(graph: Graph) -> Sequence[Tensor]:
    found = [getattr(node.operation, "weight", None) for node in graph.nodes]
    return [one for one in found if isinstance(one, Tensor)] or [torch.zeros(1)]


@dataclass(frozen=True, eq=False)
class Program:
    """The layers of a network: what every ReLU reads, and the logits.

    Its variables are the image, the size of the perturbation, the answers of all ReLUs, and one
    binary variable for each ReLU whose sign is not known.
    """

    graph: Graph
    read: dict[int, Layer]
    logits: Layer

    @classmethod
    def of(cls, graph: Graph) -> Program:
        """The program of a network without max-pooling."""
        with torch.no_grad():
            read = {n: layer_of(graph, graph.nodes[n].parents[0]) for n in graph.bent}
            return cls(graph, read, layer_of(graph, len(graph.nodes) - 1))

    def solve(
        self,
        image: Tensor,
        label: int,
        other: int,
        radius: float,
        box: tuple[float, float],
        bounds: dict[int, Bounds],
        seconds: float,
    ) -> tuple[float, float, Tensor | None]:
        """The smallest perturbation within a radius with which another class has the larger logit.

        Parameters
        ----------
        image : Tensor
            ``[channels, height, width]``.
        label, other : int
            The classes.
        radius : float
            The largest perturbation searched.
        box : (float, float)
            The range of pixel values.
        bounds : dict
            Bounds of what every ReLU reads within the radius, of this image alone.
        seconds : float
            Time limit.

        Returns
        -------
        tuple
            A lower bound of its size, infinite if there is none within the radius; the size of the
            best one found, infinite without one; and the perturbed image.
        """
        import numpy as np
        from scipy import sparse
        from scipy.optimize import Bounds as Limits
        from scipy.optimize import LinearConstraint, milp

        x0 = image.flatten().double().numpy()
        pixels = len(x0)
        places, count = {0: 0}, pixels + 1
        for number in self.graph.bent:
            places[number] = count
            count += prod(self.graph.nodes[number].shape)
        low = np.full(count, -np.inf)
        high = np.full(count, np.inf)
        low[:pixels] = np.maximum(x0 - radius, min(box[0], x0.min()))
        high[:pixels] = np.minimum(x0 + radius, max(box[1], x0.max()))
        low[pixels], high[pixels] = 0.0, radius
        rows = _Rows(count)
        unit = sparse.identity(pixels, format="csr")
        one = np.ones(pixels)
        rows.add({0: unit, pixels: -one}, -np.inf, x0)
        rows.add({0: -unit, pixels: -one}, -np.inf, -x0)
        for number in self.graph.bent:
            layer, node = self.read[number], self.graph.nodes[number]
            slope = getattr(node.operation, "slope", 0.0)
            b = bounds[node.parents[0]]
            least, most = (
                v.flatten().double().numpy() - w for v, w in ((b.low, 1e-6), (b.high, -1e-6))
            )
            parts = {places[n]: sparse.csr_matrix(w.numpy()) for n, w in layer.weights.items()}
            rows.rectify(parts, layer.bias.numpy(), places[number], least, most, slope)
            ends = [np.where(v > 0, v, slope * v) for v in (least, most)]
            low[places[number] : places[number] + len(least)] = ends[0]
            high[places[number] : places[number] + len(least)] = ends[1]
        difference = {
            places[n]: sparse.csr_matrix((w[label] - w[other]).numpy()[None])
            for n, w in self.logits.weights.items()
        }
        apart = float(self.logits.bias[label] - self.logits.bias[other])
        rows.add(difference, -np.inf, np.array([-apart]))
        matrix, lower, upper = rows.finished()
        binary = rows.count - count
        cost = np.zeros(rows.count)
        cost[pixels] = 1.0
        done = milp(
            cost,
            integrality=np.r_[np.zeros(count), np.ones(binary)],
            bounds=Limits(np.r_[low, np.zeros(binary)], np.r_[high, np.ones(binary)]),
            constraints=LinearConstraint(matrix, lower, upper),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )
        if done.status == 2:  # infeasible
            return np.inf, np.inf, None
        below = getattr(done, "mip_dual_bound", None)
        proved = 0.0 if below is None else max(0.0, float(below))
        if done.x is None:
            return proved, np.inf, None
        if done.status == 0:  # solved; without splits the solver reports no bound of its own
            proved = max(proved, float(done.fun) * (1 - GAP))
        found = torch.from_numpy(done.x[:pixels].copy()).reshape(image.shape)
        return proved, float(done.fun), found


class _Rows:
    """Rows of constraints, as sparse blocks by the first variable of each block."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._data: list[Any] = []
        self._low: list[Any] = []
        self._high: list[Any] = []

    def add(self, blocks: dict[int, Any], low: Any, high: Any) -> None:
        """Rows ``low <= sum of blocks <= high``; a vector is one column."""
        import numpy as np
        from scipy import sparse

        made = {
            at: sparse.csr_matrix(np.reshape(block, (-1, 1)))
            if isinstance(block, np.ndarray)
            else block
            for at, block in blocks.items()
        }
        size = next(iter(made.values())).shape[0]
        self._data.append((size, made))
        self._low.append(np.broadcast_to(low, size))
        self._high.append(np.broadcast_to(high, size))

    def rectify(
        self,
        parts: dict[int, Any],
        bias: Any,
        place: int,
        least: Any,
        most: Any,
        slope: float,
    ) -> None:
        """``y = max(z, slope z)`` for ``z = sum of parts + bias`` between `least` and `most`."""
        import numpy as np
        from scipy import sparse

        low, high, offset = (np.asarray(v) for v in (least, most, bias))
        units = sparse.identity(len(low), format="csr")

        def some(rows: Any, times: float) -> dict[int, Any]:
            chosen = {at: -times * w[rows] for at, w in parts.items()}
            chosen[place] = units[rows] + chosen.get(place, 0)
            return chosen

        active, inactive = low >= 0, (high <= 0) & (low < 0)
        for rows, times in ((active, 1.0), (inactive, slope)):
            if rows.any():
                self.add(some(rows, times), times * offset[rows], times * offset[rows])
        rows = ~(active | inactive)
        if not rows.any():
            return
        for times in (1.0, slope):
            self.add(some(rows, times), times * offset[rows], np.inf)
        first = self.count
        self.count += int(rows.sum())
        rest = 1 - slope
        # Active (1): y <= z; inactive (0): y <= slope z. The other side is loose by its bound.
        upper = some(rows, 1.0)
        upper[first] = sparse.diags(-rest * low[rows])
        self.add(upper, -np.inf, offset[rows] - rest * low[rows])
        upper = some(rows, slope)
        upper[first] = sparse.diags(-rest * high[rows])
        self.add(upper, -np.inf, slope * offset[rows])

    def finished(self) -> tuple[Any, Any, Any]:
        """The matrix and the limits of its rows."""
        import numpy as np
        from scipy import sparse

        blocks = []
        for size, made in self._data:
            columns: list[Any] = []
            at = 0
            for start in sorted(made):
                if start > at:
                    columns.append(sparse.csr_matrix((size, start - at)))
                columns.append(made[start])
                at = start + made[start].shape[1]
            if at < self.count:
                columns.append(sparse.csr_matrix((size, self.count - at)))
            blocks.append(sparse.hstack(columns))
        return (
            sparse.vstack(blocks, format="csr"),
            np.concatenate(self._low),
            np.concatenate(self._high),
        )
