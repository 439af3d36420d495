"""Sockets with one deadline for all operations, until the deadline is set again.

A socket's own timeout restarts with every read: a server that sends a byte now and then, or one
``100 Continue`` after the other, would never exceed it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any


class Timed(socket.socket):
    """A socket whose reads and writes end at `end`, a time of `time.monotonic`."""

    end = float("inf")

    def hurry(self) -> None:
        """Limit the next operation to the time left."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == float("inf") else left)

    def recv_into(self, *where: Any) -> int:
        self.hurry()
        return super().recv_into(*where)

    def send(self, *what: Any) -> int:
        self.hurry()
        return super().send(*what)

    def sendall(self, *what: Any) -> None:
        self.hurry()
        super().sendall(*what)


class TimedTLS(Timed, ssl.SSLSocket):
    """The same over TLS."""


def reached(host: str, port: int, end: float) -> Timed:
    """A connection to the first of a host's addresses that answers; `end` limits all attempts.

    The name lookup has the time limit of the system's resolver.
    """
    problem: OSError = TimeoutError("timed out")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        held = Timed(family, kind, protocol)
        held.end = end
        try:
            held.hurry()
            held.connect(place)
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return held
        except OSError as error:
            problem = error
            held.close()
    raise problem


def passed_on(held: Timed, place: str, headers: Mapping[str, str]) -> None:
    """Tell a proxy to connect the socket to a place, ``HOST:PORT``."""
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    held.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    answer = http.client.HTTPResponse(held, method="CONNECT")
    try:
        answer.begin()
        if not 200 <= answer.status < 300:
            raise OSError(f"Tunnel connection failed: {answer.status} {answer.reason}")
    finally:
        answer.close()


def secured(held: Timed, trust: ssl.SSLContext, host: str) -> Timed:
    """TLS over a connection; the certificate must name the host."""
    held.hurry()  # the whole handshake counts as one operation
    trust.sslsocket_class = TimedTLS
    made = trust.wrap_socket(held, server_hostname=host)
    assert isinstance(made, Timed)
    return made


def allow(connection: http.client.HTTPConnection, end: float) -> None:
    """Set the deadline of a connection, a time of `time.monotonic`."""
    assert isinstance(connection.sock, Timed)
    connection.sock.end = end
