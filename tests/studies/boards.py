"""A board of made-up distances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import UnknownNameError


@dataclass(frozen=True, eq=False)
class MadeCell:
    name: str
    models: tuple[str, ...]
    smallest: NDArray[np.float64]
    known: NDArray[np.bool_]

    def withstood(self, eps: float | None = None) -> NDArray[np.bool_]:
        return np.asarray(self.known & (self.smallest > (np.inf if eps is None else eps)))


@dataclass(frozen=True, eq=False)
class MadeBoard:
    cells: tuple[MadeCell, ...]

    def cell(self, name: str) -> MadeCell:
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise UnknownNameError(f"no cell of this run is '{name}'")


def made(count: int, gain: float, names: tuple[str, ...] = ("white linf", "white l2")) -> MadeBoard:
    """Two models, of which the second needs perturbations `gain` times as large."""
    generator = np.random.default_rng(count)
    hard = generator.lognormal(-2.5, 0.5, count)
    own = generator.lognormal(0, 0.2, (2, count))
    smallest = hard * own * np.array([[1.0], [gain]])
    known = np.ones(smallest.shape, bool)
    scale = {"white l2": 5.0}
    return MadeBoard(
        tuple(
            MadeCell(name, ("natural", "pgd-at"), smallest * scale.get(name, 1.0), known)
            for name in names
        )
    )
