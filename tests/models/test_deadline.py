"""Servers that never come to an end: one deadline holds for all of a request."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import torch
from tests.models.serving import CERTIFICATE

from besiege.core.errors import EndpointError
from besiege.core.oracle import Oracle
from besiege.core.threat import Access
from besiege.models import Endpoint, answers, transport

IMAGES = torch.zeros(2, 1, 8, 8)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT, DRIP = 0.3, 0.05
Act = Callable[[socket.socket, threading.Event], object]
"""What a server does with a connection until it is over."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def read(held: socket.socket) -> None:
    """All of a request: what is left unread when a connection is closed resets it."""
    with held.makefile("rb") as lines:
        length = 0
        while line := lines.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        lines.read(length)


@contextmanager
def acting(act: Act, *, reads: bool = True) -> Iterator[str]:
    """A server that does this with every connection, once it has read a request."""
    over, threads = threading.Event(), []

    def one(held: socket.socket) -> None:
        with held, suppress(OSError):
            held.settimeout(5.0)
            if reads:
                read(held)
            act(held, over)

    def serve() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                threads.append(threading.Thread(target=one, args=server.accept()[:1]))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            for thread in (serving, *threads):
                thread.join()


def drip(head: bytes, drop: bytes) -> Act:
    """Something now and then, for ten times as long as is allowed; then another error is said."""

    def act(held: socket.socket, over: threading.Event) -> None:
        held.sendall(head)
        for _ in range(round(10 * LIMIT / DRIP)):
            if over.wait(DRIP):
                return
            held.sendall(drop)

    return act


def flood(head: bytes, drop: bytes) -> Act:
    """As much as is taken, for ten times as long as is allowed."""

    def act(held: socket.socket, over: threading.Event) -> None:
        held.sendall(head)
        end = time.monotonic() + 10 * LIMIT
        while time.monotonic() < end and not over.is_set():
            held.sendall(drop)

    return act


def silence(held: socket.socket, over: threading.Event) -> None:
    over.wait(10 * LIMIT)


def asked(url: str, **about: object) -> str:
    """What is said of a server that is asked once."""
    model = Endpoint(url, format="raw", **{"timeout": LIMIT, "retries": 0, "patience": 0} | about)  # type: ignore[arg-type]
    with pytest.raises(EndpointError) as told:
        Oracle(model).logits(IMAGES)
    said = str(told.value)
    assert said.isprintable() and len(said) < 700
    return said


@pytest.mark.parametrize(
    "act",
    [
        drip(b"HTTP/1.1 2", b"0"),
        drip(OK, b"X: y\r\n"),
        drip(OK + b"X: y", b"y"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        flood(b"", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 100),
        drip(OK + b"Content-Length: 1000\r\n\r\n[", b"1"),
        drip(CHUNKED, b"1\r\n[\r\n"),
        drip(CHUNKED + b"1", b"0"),
        drip(CHUNKED + b"0\r\n", b"X: y\r\n"),
        flood(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000),
        silence,
    ],
    ids=[
        *("status line", "headers", "a header", "continue", "continue at once", "body", "chunks"),
        *("a chunk's size", "trailers", "trailers at once", "silence"),
    ],
)
def test_whatever_takes_too_long_ends_in_time(act: Act) -> None:
    with acting(act) as place:
        assert f"within {LIMIT:g} s" in asked(f"http://{place}/p")


def test_each_attempt_has_its_own_time() -> None:
    with acting(drip(OK, b"X: y\r\n")) as place:
        said = asked(f"http://{place}/p", retries=2, timeout=0.15)
    assert "did not answer in 3 attempts and 0 s: no answer within 0.15 s" in said


def test_a_server_that_reads_nothing_ends_in_time() -> None:
    with acting(silence, reads=False) as place:
        model = Endpoint(f"http://{place}/p", format="raw", timeout=LIMIT, retries=0, batch=400)
        with pytest.raises(EndpointError, match="no answer within"):
            model(torch.zeros(400, 3, 80, 80))


def test_a_connection_that_is_not_made_ends_in_time() -> None:
    with acting(drip(b"\x16\x03\x03\x40\x00", b"\x02"), reads=False) as place:
        assert f"no connection within {LIMIT:g} s" in asked(f"https://{place}/p")


def test_a_proxy_that_takes_too_long_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for act in (drip(OK, b"X: y\r\n"), drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n")):
        with acting(act) as place:
            monkeypatch.setenv("HTTPS_PROXY", f"http://{place}")
            assert "no connection within" in asked("https://victim.test/p")
            monkeypatch.setenv("HTTP_PROXY", f"http://{place}")
            assert "no answer within" in asked("http://victim.test/p")


def test_headers_over_tls_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def act(held: socket.socket, over: threading.Event) -> None:
        with context.wrap_socket(held, server_side=True) as safe:
            read(safe)
            drip(OK, b"X: y\r\n")(safe, over)

    with acting(act, reads=False) as place:
        assert f"within {LIMIT:g} s" in asked(f"https://{place}/p", timeout=LIMIT)


def test_a_connection_that_is_used_again_has_a_new_deadline() -> None:
    def act(held: socket.socket, over: threading.Event) -> None:
        for number in range(2):
            if number:
                read(held)
            time.sleep(0.4)
            held.sendall(OK + b"Content-Length: 13\r\n\r\n[[1,2],[3,4]]")

    with acting(act) as place:
        model = Endpoint(f"http://{place}/p", format="raw", timeout=0.75, retries=0, patience=0)
        for _ in range(2):
            assert model(IMAGES).tolist() == [[1, 2], [3, 4]]


def _once(content: bytes) -> Act:
    return lambda held, over: held.sendall(content)


def _body(content: bytes, *headers: bytes) -> Act:
    head = b"\r\n".join([*headers, b"Content-Length: %d" % len(content), b"", b""])
    return _once(OK + head + content)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (_body(b"[" * 100_000), "the answer is nested too deeply"),
        (_body(b'{"a":' * 900 + b"1" + b"}" * 900), "holds none of logits"),
        (_body(b'{"logits":' + b"[" * 500 + b"1" + b"]" * 500 + b"}"), "an array of numbers"),
        (_once(OK + b"X: y\r\n" * 200 + b"\r\n"), "more than 100 headers"),
        (_once(OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n"), "got more than 65536 bytes"),
        (_once(b"y" * 60_000 + b"\r\n\r\n"), "yyy"),
        (_once(OK + b"Content-Length: \xb2\r\n\r\n1"), "answered an array []"),
        (_once(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n1"), "answered an array []"),
        (_body(gzip.compress(b"[" + b" " * (1 << 24)), b"Content-Encoding: gzip"), "is not JSON"),
        (_body(b"[[1e300,2],[3,4]]"), "NaN or infinite"),
        (_body(b"[[-1e300,-1e300],[3,4]]"), "no finite score"),
        (_once(b"HTTP/1.1 403 \x1b[31m\r\nContent-Length: 5\r\n\r\n\x1b[2J\x07"), "403: [2J ("),
        (
            _once(b"HTTP/1.1 302 a\r\nLocation: /\x1b" + b"x" * 9000 + b"\r\n\r\n"),
            "redirects to /xxx",
        ),
        (
            _once(b"HTTP/1.1 503 a\r\nRetry-After: Mon, 01 Jan 2024 00:00:00 +9999999999\r\n\r\n"),
            "status 503: nothing",
        ),
    ],
    ids=range(14),
)
def test_nonsense_is_said_in_one_short_line(act: Act, what: str) -> None:
    with acting(act) as place:
        said = asked(f"http://{place}/p", timeout=2.0)
    assert what in said and "take images" not in said


def test_a_label_beyond_all_numbers_is_refused() -> None:
    reader = answers.Reader("it", Access.DECISION, classes=3)
    for label in (1e30, float("inf"), float("nan"), -1e19):
        with pytest.raises(answers.Undeclared, match="labels are whole numbers"):
            reader([label], 1)


def test_a_redirect_to_itself_is_not_followed() -> None:
    seen: list[int] = []

    def act(held: socket.socket, over: threading.Event) -> None:
        seen.append(1)
        held.sendall(b"HTTP/1.1 307 a\r\nLocation: /p\r\nContent-Length: 0\r\n\r\n")

    with acting(act) as place:
        assert "redirects are not followed" in asked(f"http://{place}/p", retries=5)
    assert len(seen) == 1
