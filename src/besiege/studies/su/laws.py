"""Laws of the study: distortion against ln(error), over all images and those common to all models.

The publication takes the mean over an attack's successes. Beside it stands the median over all
images, with failures as infinity, on which the answers rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from besiege.bench.board import Board
from besiege.core.errors import InputError
from besiege.metrics.frontier import Law, law_of
from besiege.metrics.outcomes import Numbers
from besiege.studies.su.published import LINES
from besiege.studies.su.reading import Sizes, measured


@dataclass(frozen=True, eq=False)
class Fitted:
    """A law with what it is of.

    Attributes
    ----------
    sizes : Sizes
        The distances.
    law : Law
        The law.
    median : bool
        Whether of medians over all images, not of means over successes.
    control : bool
        Whether of the images that all models classify correctly only.
    successes, images : array ``[models]``
        The images where a distance was found, and all images of each model.
    printed : (float, float), optional
        Slope and intercept of the publication.
    """

    sizes: Sizes
    law: Law
    median: bool
    control: bool
    successes: Numbers
    images: Numbers
    printed: tuple[float, float] | None

    @property
    def kind(self) -> str:
        """What a model's distortion is, in words."""
        return "median of all images" if self.median else "mean of successes"


@lru_cache(maxsize=2)
def laws_of(board: Board) -> tuple[Fitted, ...]:
    """All laws of a board: each measure and goal, of all images and of the common ones."""
    return tuple(
        one
        for sizes in measured(board)
        for control in (False, True)
        for one in _fitted(sizes, control)
    )


def _fitted(sizes: Sizes, control: bool) -> Iterator[Fitted]:
    """Both laws of some distances; none where a model has no image or no success."""
    some = sizes.control if control else sizes
    found = some.among & np.isfinite(some.size)
    # The error is that over all images, also where the distances are those of common ones.
    wrong = sizes.known & ~sizes.correct
    for median in (False, True):
        try:
            law = law_of(wrong, some.size, some.among if median else found, median=median)
        except InputError:
            continue
        yield Fitted(
            some,
            law,
            median,
            control,
            found.sum(1).astype(float),
            some.among.sum(1).astype(float),
            LINES.get((sizes.name, sizes.goal, control)),
        )
