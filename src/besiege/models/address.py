"""An address that requests go to: whom to trust there, and by which way to get there."""

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
"""What TLS says when a connection ends too early, which a new one may mend."""
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Proxy:
    """Who passes requests on, as the environment says."""

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: list[str] = field(default_factory=list, repr=False)

    @classmethod
    def towards(cls, scheme: str, host: str, port: int | None) -> Proxy | None:
        """The proxy that the environment names for an address; nobody passes on to this machine."""
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
                f"the proxy of the environment for {scheme} is none that is understood: write "
                f"{scheme.upper()}_PROXY=http://HOST:PORT, or NO_PROXY={host} to do without it"
            )
        headers = {}
        secrets = []
        if parts.username is not None:
            secrets = [unquote(parts.password or "")]
            both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {b64encode(both.encode()).decode()}"
        return cls(place, gate, headers, secrets)


class Address:
    """Where requests go.

    Certificates are checked against the authorities of this machine, or those in the file that
    the environment variable ``SSL_CERT_FILE`` names. A proxy is the one that ``HTTP_PROXY``,
    ``HTTPS_PROXY`` and ``NO_PROXY`` say.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``, a host, and perhaps a port, a path and a query. The address
        is shown and kept in records, so one that holds a key is refused; in place of ``{NAME}``
        in the path or the query, what the environment variable holds is sent.

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
        """What a proxy is told with every request."""
        if self.proxy is not None:
            self.secrets += self.proxy.secrets
        if self.proxy is not None and self.scheme == "http":
            self.headers = self.proxy.headers
            self.target = f"http://{_bracketed(self.host, self.port)}{self.target}"
        # One for all connections: reading the authorities takes longer than greeting a server.
        self._trust = ssl.create_default_context() if self.scheme == "https" else None

    def connect(self, end: float) -> http.client.HTTPConnection:
        """A new connection, open; over TLS it is one to the server that the certificate names.

        `end` is the moment of `time.monotonic` until which all of that may take.
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
        connection.auto_open = 0  # it would go another way
        connection.sock = held
        return connection

    def hopeless(self, error: Exception, answered: bool) -> str | None:
        """Why another attempt would end the same way; None where it may not.

        `answered` is whether the server has ever answered.
        """
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"is not trusted: {error.verify_message}. {_advice(self.host)}"
        if isinstance(error, socket.gaierror) and not (
            answered or error.errno == socket.EAI_AGAIN  # names are not found for a while, too
        ):
            return f"cannot be reached: {error}"
        if isinstance(error, ssl.SSLError) and not isinstance(error, _PASSING) and not answered:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            return f"does not speak TLS as it should: {reason}. Is it an http:// address?"
        refused = str(error).partition("Tunnel connection failed: ")[2]
        if self.proxy is not None and refused.startswith("4"):
            return (
                f"is not passed on to by the proxy {self.proxy.host}:{self.proxy.port}: {refused}. "
                f"Mend HTTPS_PROXY, or set NO_PROXY={self.host} to do without it"
            )
        return None


def is_open(held: socket.socket | None) -> bool:
    """Whether an idle connection is still there: a server that closed it has sent an end."""
    if held is None:
        return False
    held.settimeout(0.0)
    try:
        # Below TLS, which has no way to look: what it sends to an idle connection is the end too.
        socket.socket.recv(held, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def without_query(url: str) -> str:
    """An address as it may be shown to anybody: without a query, a user or a password."""
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
    """Scheme, host, port and what comes after them."""
    shown = "what was given" if "@" in url else f"'{url}'"  # it may be a password after all
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as problem:
        raise InputError(
            f"{shown} is no address: {'check the port' if '@' in url else problem}"
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{shown} is no address: write for example http://127.0.0.1:8000/predict")
    return (
        parts.scheme,
        host,
        port,
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def _filled(target: str) -> tuple[str, list[str]]:
    """What is asked for, with keys in their places, and these."""
    if not all("!" <= letter <= "~" for letter in target):
        raise InputError(
            f"'{target}' is no path: it is written in ASCII without spaces, others as %20"
        )
    target, secrets = filled(target)
    if " " in target:
        raise InputError("a key in an address holds a space: write it as %20")
    return target, secrets
