"""Models in disguise: natural digits networks that only look robust, each with its true accuracy.

They measure evaluations, of this library and of others: an evaluation that prints more than the
truth and warns of nothing has been deceived. Each is a natural network (under 10 % robust at
linf 0.15) behind one disguise: wrong gradients, steps, scales, stored images, memory, batches,
noise, values off the grid, members that disagree.

The truth is about the classifier as it is deployed: one image at a time, gradients off, a new copy
for every image. `besiege.testing.impostors.adaptive` attacks it, and knows the disguise.

Examples
--------
>>> from besiege.testing.impostors import IMPOSTORS
>>> IMPOSTORS["memory"].make().name
'memory'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.testing.impostors.adaptive import measure
    from besiege.testing.impostors.impostor import COUNT, THREAT, TRUTHS, Impostor, data
    from besiege.testing.impostors.listing import IMPOSTORS
    from besiege.testing.impostors.parts import BARE, bare

__all__ = [
    "BARE",
    "COUNT",
    "IMPOSTORS",
    "THREAT",
    "TRUTHS",
    "Impostor",
    "bare",
    "data",
    "measure",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "adaptive": "measure",
        "impostor": "COUNT THREAT TRUTHS Impostor data",
        "listing": "IMPOSTORS",
        "parts": "BARE bare",
    },
)
