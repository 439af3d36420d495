"""What run folders hold, to compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from besiege.bench.store import Store


def content(folder: Path) -> dict[str, Any]:
    """All that must be equal: everything but seconds and provenance."""
    store = Store(folder)
    found = {}
    for key in store.present():
        record = store.read(key, whole=True)
        assert record is not None
        rows = {name: column.tolist() for name, column in store.rows([key]).items()}
        images = store.images(key) if "images.safetensors" in record.files else {}
        images |= {} if (logits := store.logits(key)) is None else {"logits": logits}
        found[key] = (
            record.identity,
            record.totals,
            record.findings,
            record.failure,
            {n: [repr(v) for v in c] for n, c in rows.items()},
            {name: array.tobytes() for name, array in images.items()},
        )
    return found


def finished(folder: Path) -> dict[str, list[str]]:
    """The keys that every process has finished, from the journals."""
    return {
        path.stem: [json.loads(line)["key"] for line in path.read_text().splitlines()]
        for path in (folder / "journal").glob("*.jsonl")
    }
