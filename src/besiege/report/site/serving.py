"""Serves the pages of a run on this machine only, and builds them again when records arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from besiege.bench.board_reading import board_of
from besiege.bench.pictures import pictures
from besiege.bench.results import summarise
from besiege.bench.run import FILE
from besiege.bench.store import Store
from besiege.bench.summaries import about
from besiege.core.errors import BesiegeError, InputError
from besiege.report.page import rendered
from besiege.report.site.writing import has_site, site_files

ADDRESS = "127.0.0.1"
AGAIN = 10
"""Seconds after which a browser asks again, while the run is not complete."""
_PATIENCE = 2.0
"""Smallest number of seconds between two builds."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
}
_ALLOWED = (
    "default-src 'none'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self'"
)


@dataclass(frozen=True)
class Built:
    """The files of a site, and the state of the records they were made of."""

    files: Mapping[str, bytes]
    complete: bool
    state: object


class Live:
    """The pages of a run folder as they are now.

    Parameters
    ----------
    folder : Path
        A run folder; nothing but its cache of figures is written to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._last = 0.0
        self._took = 0.0
        self._built = self._build()

    def now(self) -> Built:
        """The pages; built again where records arrived since, but not without a pause."""
        with self._lock:
            pause = max(_PATIENCE, 2 * self._took)
            due = time.monotonic() - self._last >= pause
            if due and self._built.state != self._state():
                try:
                    self._built = self._build()
                except BesiegeError:  # written at this moment: the next request sees it whole
                    self._last = time.monotonic()
            return self._built

    def _state(self) -> object:
        """What changes with every record that is renamed into its place, and every new plan."""
        store = Store(self.folder)
        return about(store.records), about(store.folder / FILE)

    def _build(self) -> Built:
        started = time.monotonic()
        state = self._state()
        found = summarise(self.folder)
        items = [item for one in found.evaluations for item in one.gallery]
        read = pictures(Store(self.folder), items)
        if has_site(found):
            files = dict(site_files(board_of(self.folder, found), read))
        else:
            files = {"index.html": rendered(found, read).encode()}
        self._last = time.monotonic()
        self._took = self._last - started
        return Built(files, found.complete, state)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the files of a site, from this machine only."""

    live: ClassVar[Live]
    server_version = "besiege"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        # A page of another site may have this address under its own name.
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in (ADDRESS, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN, "this server answers 127.0.0.1 only")
            return
        built = self.live.now()
        name = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        content = built.files.get(name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND, "no such page")
            return
        kind = PurePosixPath(name).suffix
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _TYPES.get(kind, "application/octet-stream"))
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", _ALLOWED)
        if kind == ".html" and not built.complete:
            self.send_header("Refresh", str(AGAIN))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Requests are not printed."""


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of a run folder on this machine; port 0 takes a free one.

    Examples
    --------
    ``server(folder).serve_forever()``; its address is in ``server_address``.
    """
    live = Live(folder)
    handler = type("Handler", (_Handler,), {"live": live})
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except (OSError, OverflowError) as problem:
        raise InputError(
            f"port {port} cannot be used ({problem}): name another one, or 0 for a free one"
        ) from None
