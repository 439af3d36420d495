"""The names of the files that samples were read from, kept beside the records.

``names/DIGEST.parquet`` in a run folder has the id and the file of every sample of the data with
that digest. Records do not have them: their keys and contents depend on images and ids only. Data
that are no files, and runs of earlier releases, have no names.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from besiege.bench.parquet import packed, unpacked
from besiege.bench.store import Store
from besiege.core.files import read_file
from besiege.metrics.rows import Column, Rows, places

FOLDER = "names"


def keep_file_names(store: Store, digest: str, ids: Column, files: Sequence[str]) -> None:
    """Write the names of the files of some samples; files that moved since have new names.

    Parameters
    ----------
    store : Store
        The run folder.
    digest : str
        The digest of the data.
    ids, files
        The id and the file of every sample.
    """
    # A name that is not UTF-8 could not be written to a file of text.
    shown = [name.encode("utf-8", "backslashreplace").decode() for name in files]
    (store.folder / FOLDER).mkdir(parents=True, exist_ok=True)
    content = packed({"sample": ids, "file": np.array(shown, object)})
    with suppress(OSError):
        if read_file(store.folder / _path(digest)) == content:
            return
    store.write_file(_path(digest), content)


def with_file_names(rows: Rows, store: Store, digest: str) -> Rows:
    """The rows with a column ``file`` after the sample, where names of these data are kept."""
    import duckdb  # slow to import

    try:
        known = unpacked([(digest, read_file(store.folder / _path(digest)))])
        ids, files = known["sample"], known["file"]
    except (OSError, KeyError, duckdb.Error):  # none were kept, or the file is damaged
        return rows
    where = places(ids, rows["sample"])
    found = np.where(where >= 0, files[where], "") if len(files) else np.full(rows.count, "")
    first = rows["sample"]
    return Rows({"sample": first, "file": found.astype(object), **rows.without("sample")})


def _path(digest: str) -> str:
    return f"{FOLDER}/{digest[:16]}.parquet"
