"""Data sets: images, labels, stable ids and a digest of the content.

`load` takes a name, a folder of class folders, an ``.npz`` file, arrays, image files, or a dataset
or loader of torch; `NAMES`, `entry`, `listing` and `fetch` work without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.data.catalogue import NAMES, Entry, entry
    from besiege.data.dataset import Data, Pixels
    from besiege.data.fetching import fetch
    from besiege.data.places import Listing, listing
    from besiege.data.sources import load

__all__ = ["NAMES", "Data", "Entry", "Listing", "Pixels", "entry", "fetch", "listing", "load"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "catalogue": "NAMES Entry entry",
        "dataset": "Data Pixels",
        "fetching": "fetch",
        "places": "Listing listing",
        "sources": "load",
    },
)
