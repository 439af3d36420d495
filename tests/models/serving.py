"""The example server on loopback, for a while; and ways to have it misbehave."""

from __future__ import annotations

import http.client
import runpy
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CERTIFICATE = Path(__file__).parent / "loopback.pem"
"""For 127.0.0.1 and victim.test, from 2020 to 2120, with its key; nobody trusts it."""
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


@contextmanager
def secured(**about: Any) -> Iterator[Any]:
    """A new server that answers over TLS for a while; its address is ``server.secure``."""
    server = made(**about)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.secure = server.url.replace("http://", "https://")
    with answering(server):
        yield server


class Passing(ThreadingHTTPServer):
    """A proxy that passes everything on to one server, whatever address is asked for."""

    daemon_threads = True

    def __init__(self, behind: Any) -> None:
        self.behind = behind.server_address
        self.asked: list[str] = []
        self.keys: list[str | None] = []
        self.refuses = False
        super().__init__(("127.0.0.1", 0), _Passed)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Passed(BaseHTTPRequestHandler):
    server: Passing
    protocol_version = "HTTP/1.1"

    def _noted(self) -> bool:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.keys.append(self.headers["Proxy-Authorization"])
        if self.server.refuses:
            self.send_error(407)
        return not self.server.refuses

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._noted():
            return
        onward = http.client.HTTPConnection(*self.server.behind)
        onward.request("POST", "/predict", body, dict(self.headers))
        answer = onward.getresponse()
        content = answer.read()
        onward.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_CONNECT(self) -> None:
        if not self._noted():
            return
        with socket.create_connection(self.server.behind) as onward:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pump, args=(onward, self.connection), daemon=True)
            back.start()
            _pump(self.connection, onward)
            back.join()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _pump(here: socket.socket, there: socket.socket) -> None:
    """Pass on what comes until nothing does."""
    with suppress(OSError):
        while some := here.recv(1 << 16):
            there.sendall(some)
    with suppress(OSError):
        there.shutdown(socket.SHUT_WR)
