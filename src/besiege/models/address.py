"""The address of an endpoint: parsing, certificates, proxies, opening connections."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from besiege.core.errors import InputError
from besiege.models.deadline import passed_on, reached, secured
from besiege.models.secrecy import filled, must_hold_no_secret

_PASSING = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""TLS errors of a connection that ended too early; a new connection may work."""
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Proxy:
    """A proxy that the environment names."""

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: list[str] = field(default_factory=list, repr=False)

    @classmethod
    def towards(cls, scheme: str, host: str, port: int | None) -> Proxy | None:
        """The proxy that the environment names for an address; none for this machine."""
        given = getproxies().get(scheme)
        name = host if port is None else f"{host}:{port}"
        if not given or host in _HERE or proxy_bypass(name):
            return None
        try:
            parts = urlsplit(given if "://" in given else f"http://{given}")
            place, gate = parts.hostname, parts.port or 3128
        except ValueError:
            place, gate = None, 0
        if place is None or parts.scheme != "http":
            raise InputError(
                f"the environment's proxy for {scheme} cannot be used: write "
                f"{scheme.upper()}_PROXY=http://HOST:PORT, or NO_PROXY={host} to do without it"
            )
        if parts.username is None:
            return cls(place, gate)
        secret = unquote(parts.password or "")
        both = b64encode(f"{unquote(parts.username)}:{secret}".encode()).decode()
        return cls(place, gate, {"Proxy-Authorization": f"Basic {both}"}, [secret])


class Address:
    """The address that requests are sent to.

    Certificates are checked against the authorities of this machine, or those in the file that
    the environment variable ``SSL_CERT_FILE`` names. ``HTTP_PROXY``, ``HTTPS_PROXY`` and
    ``NO_PROXY`` choose the proxy.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``, a host, and optionally a port, a path and a query. The address
        is shown and kept in records, so a key in it is refused; ``{NAME}`` in the path or the
        query is replaced by the environment variable's value when a request is sent.

    Examples
    --------
    >>> Address("http://127.0.0.1:8000/predict").target
    '/predict'
    """

    def __init__(self, url: str) -> None:
        must_hold_no_secret(url)
        self.url = url
        self.scheme, self.host, self.port, target = _parts(url)
        self.target, self.secrets = _filled(target)
        self.proxy = Proxy.towards(self.scheme, self.host, self.port)
        self.headers: dict[str, str] = {}
        """Headers for the proxy, sent with every request."""
        if self.proxy is not None:
            self.secrets += self.proxy.secrets
        if self.proxy is not None and self.scheme == "http":
            self.headers = self.proxy.headers
            self.target = f"http://{_bracketed(self.host, self.port)}{self.target}"
        # Shared by all connections: loading the authorities takes longer than a handshake.
        self._trust = ssl.create_default_context() if self.scheme == "https" else None

    def connect(self, end: float) -> http.client.HTTPConnection:
        """A new open connection; with TLS, the certificate must name the host.

        `end` is the deadline, a time of `time.monotonic`.
        """
        proxy, trust = self.proxy, self._trust
        port = self.port or (80 if trust is None else 443)
        held = reached(*((self.host, port) if proxy is None else (proxy.host, proxy.port)), end)
        connection: http.client.HTTPConnection
        try:
            if trust is None:
                connection = http.client.HTTPConnection(self.host, port)
            else:
                connection = http.client.HTTPSConnection(self.host, port, context=trust)
                if proxy is not None:
                    passed_on(held, _bracketed(self.host, port), proxy.headers)
                held = secured(held, trust, self.host)
        except BaseException:
            held.close()
            raise
        connection.auto_open = 0  # reopening would bypass the proxy and the deadline
        connection.sock = held
        return connection

    def hopeless(self, error: Exception, answered: bool) -> str | None:
        """Why another attempt would fail the same way; None if it may succeed.

        `answered` is whether the server has ever answered.
        """
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"is not trusted: {error.verify_message}. {_advice(self.host)}"
        if isinstance(error, socket.gaierror) and not (
            answered or error.errno == socket.EAI_AGAIN  # a lookup may fail temporarily
        ):
            return f"cannot be reached: {error}"
        if isinstance(error, ssl.SSLError) and not isinstance(error, _PASSING) and not answered:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            return f"does not speak TLS as it should: {reason}. Is it an http:// address?"
        refused = str(error).partition("Tunnel connection failed: ")[2]
        if self.proxy is not None and refused.startswith("4"):
            return (
                f"is refused by the proxy {self.proxy.host}:{self.proxy.port}: {refused}. "
                f"Correct HTTPS_PROXY, or set NO_PROXY={self.host} to do without it"
            )
        return None


def is_open(held: socket.socket | None) -> bool:
    """Whether an idle connection is still open: if the server closed it, there is data to read."""
    if held is None:
        return False
    held.settimeout(0.0)
    try:
        # Below TLS, which cannot peek; any data on an idle connection means that it ends.
        socket.socket.recv(held, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def without_query(url: str) -> str:
    """An address that is safe to show: without a query, a user or a password."""
    try:
        parts = urlsplit(url)
        place = _bracketed(parts.hostname or "", parts.port)
    except ValueError:
        return "somewhere else"
    return f"{parts.scheme}://{place}{parts.path}" if place else parts.path or "somewhere else"


def _advice(host: str) -> str:
    named = os.environ.get("SSL_CERT_FILE")
    if named and not os.path.isfile(named):
        return f"SSL_CERT_FILE names {named}, which is no file"
    return (
        "A certificate of your own authority is trusted when SSL_CERT_FILE names the authority's "
        f"file, and must be one for '{host}'"
    )


def _bracketed(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _parts(url: str) -> tuple[str, str, int | None, str]:
    """Scheme, host, port, and path with query."""
    shown = "what was given" if "@" in url else f"'{url}'"  # before '@' may be a password
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as problem:
        raise InputError(
            f"{shown} is not an address: {'check the port' if '@' in url else problem}"
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(
            f"{shown} is not an address: write for example http://127.0.0.1:8000/predict"
        )
    query = f"?{parts.query}" if parts.query else ""
    return parts.scheme, host, port, (parts.path or "/") + query


def _filled(target: str) -> tuple[str, list[str]]:
    """The path and query with keys in place of ``{NAME}``, and the keys."""
    if not all("!" <= letter <= "~" for letter in target):
        raise InputError(
            f"'{target}' is not a path: write other characters than ASCII as %XX, a space as %20"
        )
    target, secrets = filled(target)
    if " " in target:
        raise InputError("a key in an address holds a space: write it as %20")
    return target, secrets
