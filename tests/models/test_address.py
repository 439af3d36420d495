"""Where requests go: certificates, redirects, proxies, and keys that nobody is shown."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.serving import CERTIFICATE, Passing, answering, secured, serving

import besiege
from besiege.core.errors import EndpointError, InputError
from besiege.data import load as load_data
from besiege.defenses import load
from besiege.models import Endpoint, transport
from besiege.models.address import Address, Proxy, without_query

IMAGES = load_data("digits", count=6).images
LOGITS = load("zoo:digits-natural")(IMAGES).detach()
SECRET = "sk-not-for-others"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits, no proxy, and only the authorities of this machine."""
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)
    monkeypatch.setenv("OWN_KEY", SECRET)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def noting(server: Any, look: Callable[[Any], Any]) -> list[Any]:
    """What is seen of every request, which is answered as usual."""
    seen: list[Any] = []

    def trick(handler: Any, number: int) -> bool:
        seen.append(look(handler))
        return False

    server.trick = trick
    return seen


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


@pytest.mark.usefixtures("trusted")
def test_a_run_over_tls_is_counted_and_keeps_no_key(tmp_path: Path) -> None:
    with secured() as server:
        keys = noting(server, lambda handler: handler.headers["Authorization"])
        found = besiege.evaluate(
            f"{server.secure}(token=OWN_KEY, batch=4)",
            "digits",
            threat="linf:0.2",
            count=6,
            attacks="square",
            queries=15,
            out=tmp_path,
        )
        assert found.paid is not None
        assert sum(sent for _, sent in found.paid.values()) == server.images > 6
        assert found.paid["craft"][0] == int(found.rows["queries"].sum())
    assert set(keys) == {f"Bearer {SECRET}"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.suffix == ".sqlite" for file in files) and len(files) > 5
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert SECRET not in repr(found)


@pytest.mark.usefixtures("trusted")
def test_an_idle_connection_over_tls_is_used_again_or_seen_to_be_closed() -> None:
    with secured() as server:
        places = noting(server, lambda handler: handler.client_address)
        model = Endpoint(server.secure, batch=2, concurrency=1)
        assert torch.allclose(model(IMAGES), LOGITS, atol=1e-5)
        assert len(set(places)) == 1 and len(places) == 3

        def hang_up(handler: Any, number: int) -> bool:
            handler.close_connection = True  # without saying so
            return False

        server.trick = hang_up
        for _ in range(4):
            model(IMAGES[:1])
            _until_closed(model)
        # What went into a closed connection would count as sent.
        assert model.sent == model.asked == server.images == 10


def _until_closed(model: Endpoint) -> None:
    """Wait for the end that the server has sent."""
    (held,) = model.transport._idle
    held.sock.settimeout(5.0)
    assert held.sock.recv(1) == b""


@pytest.mark.parametrize(
    ("named", "advice"),
    [(None, "SSL_CERT_FILE names the authority's file"), ("no-file.pem", "which is no file")],
)
def test_a_stranger_is_not_trusted_and_not_asked_again(
    named: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is not None:
        monkeypatch.setenv("SSL_CERT_FILE", named)
    tried: list[float] = []
    connect = Address.connect

    def watched(self: Address, timeout: float) -> Any:
        tried.append(timeout)
        return connect(self, timeout)

    monkeypatch.setattr(Address, "connect", watched)
    with secured() as server:
        model = Endpoint(server.secure, token="OWN_KEY")
        with pytest.raises(EndpointError, match="is not trusted: self-signed cert") as problem:
            model(IMAGES)
        assert advice in str(problem.value) and SECRET not in str(problem.value)
        assert len(tried) == 1 and server.requests == model.sent == 0


def test_tls_where_there_is_none_stops_at_once() -> None:
    with serving() as server:
        model = Endpoint(server.url.replace("http:", "https:"), retries=50)
        with pytest.raises(EndpointError, match="Is it an http:// address"):
            model(IMAGES)
        assert model.sent == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_is_followed_to_another_address(status: int) -> None:
    with serving() as server, serving() as other:
        server.trick = lambda handler, number: (
            handler.say(status, {}, Location=f"{other.url}?session={SECRET}") is None
        )
        model = Endpoint(server.url, token="OWN_KEY")
        with pytest.raises(
            EndpointError, match=f"redirects to {other.url} .status {status}"
        ) as told:
            model(IMAGES)
        assert SECRET not in str(told.value)
        assert (server.requests, other.requests) == (1, 0)


def test_what_is_shown_of_an_address() -> None:
    assert without_query("https://u:p@h.test:8/a/b?key=1#x") == "https://h.test:8/a/b"
    assert without_query("/other?key=1") == "/other"
    assert without_query("http://h:port/") == without_query("?key=1") == "somewhere else"


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (403, {"error": f"the key {SECRET} is unknown"}),
        (400, {"headers": {"Authorization": f"Bearer {SECRET}"}}),
        (500, {"trace": SECRET}),
        (200, {"echo": SECRET}),
        (200, SECRET.encode()),
        (403, b"." * 190 + SECRET.encode()),  # where what is shown of an answer ends
    ],
)
def test_a_key_that_a_server_repeats_is_not_shown(status: int, content: object) -> None:
    with serving() as server:
        server.trick = lambda handler, number: handler.say(status, content) is None
        model = Endpoint(server.url, token="OWN_KEY", retries=1, patience=0)
        with pytest.raises(EndpointError) as told:
            model(IMAGES)
        assert "[key]" in str(told.value) and SECRET[:6] not in str(told.value)


@pytest.mark.parametrize(
    ("held", "what"),
    [("sk-a\nb", "which no key does"), ("ké", "not ASCII"), (" \n", "no env")],
)
def test_a_key_that_cannot_be_sent_is_refused_unseen(
    held: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", held)
    with pytest.raises(InputError, match=what) as told:
        Endpoint("http://h/", token="OWN_KEY")
    assert held.strip() == "" or held not in str(told.value)
    monkeypatch.setenv("OWN_KEY", f"{SECRET}\n")  # as files end
    assert Endpoint("http://h/", token="OWN_KEY").transport.headers == {
        "Authorization": f"Bearer {SECRET}"
    }
    with pytest.raises(InputError, match="token is no name") as told:
        Endpoint("http://h/", token=SECRET)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("https://h/p?api_key=12345", "holds a key .'api_key='"),
        ("https://h/p?v=1&Access-Token=12345", "holds a key"),
        ("https://u:12345@h/p", "a user name or a password"),
        ("http://h/a b", "a space as %20"),
        ("http://h/\u00e9", "than ASCII"),
        ("ftp://h/", "is not an address"),
    ],
)
def test_addresses_that_are_refused(url: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as told:
        Address(url)
    assert "12345" not in str(told.value)
    assert Address("https://h:8/p?version=3&tokens=5").target == "/p?version=3&tokens=5"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.usefixtures("trusted")
def test_a_proxy_of_the_environment_passes_on(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = serving if scheme == "http" else secured
    with start() as server, answering(Passing(server)) as proxy:
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://me:p%40ss@{proxy.place}")
        model = Endpoint(f"{scheme}://victim.test/predict", batch=3, concurrency=1)
        assert torch.allclose(model(IMAGES), LOGITS, atol=1e-5)
        assert model.sent == server.images == 6
        once = ["CONNECT victim.test:443"]
        assert proxy.asked == (once if scheme == "https" else 2 * ["POST " + model.name])
        assert set(proxy.keys) == {"Basic bWU6cEBzcw=="}
        # This machine, and what is excepted, is reached without one.
        assert Address(server.url.replace("http:", f"{scheme}:")).proxy is None
        monkeypatch.setenv("NO_PROXY", "victim.test")
        assert Address(model.name).proxy is None


@pytest.mark.usefixtures("trusted")
def test_a_proxy_that_refuses_and_a_name_that_is_not_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with secured() as server, answering(Passing(server)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:12345@{proxy.place}")
        with pytest.raises(EndpointError, match="is not trusted: Hostname mismatch"):
            Endpoint("https://other.test/predict")(IMAGES)
        proxy.refuses = True
        with pytest.raises(EndpointError, match=f"the proxy {proxy.place}: 407") as told:
            Endpoint("https://victim.test/predict")(IMAGES)
        assert "12345" not in str(told.value) and len(proxy.asked) == 2
    for given in ("socks5://me:12345@h:1080", "http://:port"):
        monkeypatch.setenv("HTTPS_PROXY", given)
        with pytest.raises(InputError, match="HTTPS_PROXY=http://HOST:PORT") as refused:
            Proxy.towards("https", "victim.test", None)
        assert "12345" not in str(refused.value)


@pytest.mark.parametrize(
    ("number", "answered", "final"),
    [
        (socket.EAI_NONAME, False, True),
        (socket.EAI_NONAME, True, False),
        (socket.EAI_AGAIN, False, False),
    ],
)
def test_names_that_are_not_found_for_a_while_are_waited_for(
    number: int, answered: bool, final: bool
) -> None:
    address = Address("http://somewhere.example/predict")
    said = address.hopeless(socket.gaierror(number, "not known"), answered)
    assert (said is not None) == final
