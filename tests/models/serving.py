"""The example server on loopback, for a while; and ways to have it misbehave."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.py"
_MADE: dict[str, Any] = {}


def made(**about: Any) -> Any:
    """A server that is not answering yet."""
    if not _MADE:
        _MADE.update(runpy.run_path(str(EXAMPLE), run_name="serve"))
    return _MADE["Server"](**about)


@contextmanager
def answering(server: Any) -> Iterator[Any]:
    """A server that answers for a while."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(**about: Any) -> Iterator[Any]:
    """A new server that answers for a while."""
    with answering(made(**about)) as server:
        yield server
