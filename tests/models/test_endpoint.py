"""Endpoints against a real server on loopback: what is charged is what it counted."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.models.serving import answering, made, serving

import besiege
from besiege.core.errors import EndpointError, InputError
from besiege.core.oracle import Oracle
from besiege.core.threat import Access
from besiege.data import load as load_data
from besiege.defenses import load
from besiege.evaluation.preflight import preflight
from besiege.models import Endpoint, endpoint, transport
from besiege.models.transport import Bucket, Job, Transport
from besiege.models.wire import encoded, png

DATA = load_data("digits", count=12)
IMAGES = (DATA.images * 255).round() / 255
NET = load("zoo:digits-natural")
LOGITS = NET(IMAGES).detach()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are a hundredth as long."""
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)


def said(handler: Any, status: int, content: object, **headers: str) -> bool:
    handler.say(status, content, **headers)
    return True


def closed(handler: Any) -> bool:
    handler.connection.close()
    return True


def asleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def watching(seen: list[Any], look: Callable[[Any], Any]) -> Callable[[Any, int], bool]:
    """Note something of every request, and let it be answered."""

    def trick(handler: Any, number: int) -> bool:
        seen.append(look(handler))
        return False

    return trick


def first(count: int, act: Callable[[Any], bool]) -> Callable[[Any, int], bool]:
    """Do something in place of the answer to the first requests."""
    return lambda handler, number: number <= count and act(handler)


@pytest.mark.parametrize("form", ["json", "raw", "uint8", "png", "png(batch=5)"])
def test_every_format_says_the_same_and_is_charged_as_it_was_counted(form: str) -> None:
    with serving() as server:
        name, _, more = form.partition("(")
        model = load(f"{server.url}(format={name}, {more.removesuffix(')')})".replace(", )", ")"))
        assert isinstance(model, Endpoint)
        torch.testing.assert_close(model(IMAGES), LOGITS, rtol=1e-5, atol=1e-5)
        assert server.images == 12
        found = besiege.attack(
            "square", model, IMAGES, DATA.labels, threat="linf:0.1", queries=20, seed=3
        )
        assert server.images == 12 + int(found.queries.sum()) + found.verdicts.forwards
        assert model.asked == model.sent == server.images
        if name in ("uint8", "png"):
            assert model.grid == 1 / 255
            levels = found.images * 255
            assert bool(((levels - levels.round()).abs() < 1e-4).all())
            # What was sent is what is judged: the local net agrees on those very pixels.
            assert bool((NET(found.images).argmax(1) != DATA.labels)[found.success].all())


@pytest.mark.parametrize("box", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_every_level_is_sent_as_itself(box: tuple[float, float]) -> None:
    model = Endpoint("http://h/p", format="uint8", box=box)
    levels = torch.arange(256)
    images = box[0] + (levels / 255) * (box[1] - box[0])
    sent = model.pixels(images.reshape(1, 1, 16, 16)).reshape(-1)
    assert sent.dtype == np.uint8 and np.array_equal(sent, levels.numpy())


def test_labels_alone_are_decision_access() -> None:
    with serving(labels_only=True) as server:
        model = load(f"{server.url}(access=decision, classes=10)")
        assert model.access is Access.DECISION
        assert torch.equal(model(IMAGES).argmax(1), LOGITS.argmax(1))
        unaware = Endpoint(server.url)
        with pytest.raises(EndpointError, match=r"only labels: declare access=decision$"):
            unaware(IMAGES)


def test_the_first_few_are_scores_of_those() -> None:
    with serving(top_k=3) as server:
        model = Endpoint(server.url, top_k=3, classes=10, outputs="probabilities", format="raw")
        logits = model(IMAGES)
        assert torch.equal((~torch.isinf(logits)).sum(1), torch.full((12,), 3))
        assert torch.equal(logits.argmax(1), LOGITS.argmax(1))
        found = besiege.attack("square", model, IMAGES, DATA.labels, threat="linf:0.3", queries=100)
        assert bool(found.success.any())


def test_probabilities_must_be_declared() -> None:
    with serving(probabilities=True) as server:
        with pytest.raises(EndpointError, match="declare outputs=probabilities"):
            Endpoint(server.url)(IMAGES)
        model = load(f"{server.url}(outputs=probabilities)")
        torch.testing.assert_close(model(IMAGES), LOGITS.log_softmax(1), rtol=1e-3, atol=1e-3)


def test_a_third_of_the_requests_fail_and_nothing_is_lost() -> None:
    with serving() as server:
        server.trick = lambda handler, n: n % 3 == 0 and said(handler, 500, {"error": "no"})
        model = Endpoint(server.url, batch=2, concurrency=3)
        assert Oracle(model).batch == 6, "all requests at once"
        torch.testing.assert_close(model(IMAGES), LOGITS, rtol=1e-5, atol=1e-5)
        # Every attempt was sent; the answers asked for are those that were counted.
        assert model.asked == server.images == 12
        assert model.sent == 2 * server.requests > 12


@pytest.mark.parametrize(
    "act",
    [
        lambda handler: said(handler, 503, {}, Retry_After="0"),
        lambda handler: said(handler, 200, b'{"logits": [[1.0, '),
        lambda handler: said(handler, 200, {"logits": [[float("nan")] * 10] * 12}),
        lambda handler: said(handler, 200, {"logits": [[0.0] * 10]}),
        lambda handler: said(handler, 200, {"other": 1}),
        lambda handler: closed(handler),
        lambda handler: asleep(0.3),
    ],
    ids=["503", "malformed", "nan", "rows", "other", "closed", "timeout"],
)
def test_a_bad_moment_is_waited_for(act: Callable[[Any], bool]) -> None:
    with serving() as server:
        server.trick = first(2, act)
        model = Endpoint(server.url, timeout=0.2, classes=10)
        torch.testing.assert_close(model(IMAGES), LOGITS, rtol=1e-5, atol=1e-5)
        assert server.requests == 3 and (model.asked, model.sent) == (12, 36)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"<html>", "'<html>' is not JSON"),
        ({"logits": [[float("nan")] * 10] * 12}, "NaN or infinite"),
        ({"logits": [[0.0] * 10] * 11}, "11 rows of scores to 12 images"),
        ({"message": "hello"}, "holds none of logits"),
    ],
)
def test_nonsense_stops_after_three_times(content: object, what: str) -> None:
    with serving() as server:
        server.trick = lambda handler, number: said(handler, 200, content)
        with pytest.raises(EndpointError, match="gave 3 malformed answers.*" + what):
            Endpoint(server.url, classes=10)(IMAGES)
        assert server.requests == 3


@pytest.mark.parametrize(("status", "advice"), [(400, "format"), (404, "path"), (413, "batch=")])
def test_a_refusal_stops_at_once(status: int, advice: str) -> None:
    with serving() as server:
        server.trick = lambda handler, number: said(handler, status, {"error": "not like that"})
        with pytest.raises(EndpointError, match=f"status {status}: .*not like that.*{advice}"):
            Endpoint(server.url)(IMAGES)
        assert server.requests == 1


def test_a_server_that_fails_for_good_stops_after_its_attempts() -> None:
    with serving() as server:
        server.trick = lambda handler, number: said(handler, 500, {"error": "always"})
        with pytest.raises(EndpointError, match=r"in 3 attempts .*status 500: .*always.*retries="):
            Endpoint(server.url, retries=2, patience=0)(IMAGES)
        assert server.requests == 3


def test_nobody_there() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/predict"
    model = Endpoint(url, retries=1, patience=600)  # it was never there: no patience
    with pytest.raises(EndpointError, match=r"2 attempts .*Connection refused"):
        model(IMAGES)
    assert (model.asked, model.sent) == (12, 0)  # nothing left


def away(seconds: float) -> None:
    """A server that is gone for a while, in the middle of a run."""
    server = made()
    port = server.server_address[1]
    model = Endpoint(server.url, format="raw", batch=4, timeout=5, retries=2, patience=60)
    open_ones: list[socket.socket] = []
    server.trick = watching(open_ones, lambda handler: handler.connection)
    with answering(server):
        model(IMAGES)
    for one in open_ones:  # a process that ends takes its connections with it
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    again: list[Any] = []

    def come_back() -> None:
        time.sleep(seconds)
        again.append(made(port=port))
        again[0].serve_forever(0.01)

    thread = threading.Thread(target=come_back, daemon=True)
    thread.start()
    torch.testing.assert_close(model(IMAGES), LOGITS, rtol=1e-5, atol=1e-5)
    assert again[0].images == 12 and model.asked == 24
    again[0].shutdown()
    again[0].server_close()
    thread.join()


def test_a_server_that_is_gone_for_a_while_is_waited_for() -> None:
    away(0.5)


@pytest.mark.slow
def test_a_server_that_is_gone_for_ten_seconds_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.5)
    away(10.0)


def test_retry_after_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    pause = Transport._pause

    def watched(self: Transport, attempt: int, least: float | None) -> float:
        waited.append(pause(self, attempt, least))
        return 0.0

    monkeypatch.setattr(Transport, "_pause", watched)
    with serving() as server:
        server.trick = first(1, lambda handler: said(handler, 429, {}, Retry_After="7"))
        Endpoint(server.url)(IMAGES)
        server.requests, server.trick = 0, first(1, lambda handler: said(handler, 429, {}))
        Endpoint(server.url)(IMAGES)
    assert waited[0] == 7.0 and 0 < waited[1] < 0.01


def test_what_was_answered_before_a_failure_is_kept(tmp_path: Path) -> None:
    def trick(handler: Any, number: int) -> bool:
        if number == 4:
            time.sleep(0.1)
            return said(handler, 400, {"error": "that one"})
        return False

    with serving() as server:
        server.trick = trick
        model = Endpoint(server.url, batch=2, concurrency=2, ledger=tmp_path / "l.sqlite")
        with pytest.raises(EndpointError, match="that one"):
            model(IMAGES)
        paid = server.images
        assert 6 <= paid < 12 and model.ledger is not None and len(model.ledger) == paid
        server.trick = None
        again = Endpoint(server.url, batch=2, ledger=tmp_path / "l.sqlite")
        torch.testing.assert_close(again(IMAGES), LOGITS, rtol=1e-5, atol=1e-5)
        assert server.images == 12 + min(8, paid)  # each once, and known ones before it goes on


def test_several_are_on_their_way_at_once_but_not_more_than_allowed() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def trick(handler: Any, number: int) -> bool:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.03)
        with lock:
            now -= 1
        return False

    with serving() as server:
        server.trick = trick
        Endpoint(server.url, batch=1, concurrency=3)(IMAGES)
    assert 2 <= most <= 3


class Clock(threading.Event):
    """Time that passes where somebody waits, and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


def test_a_bucket_lets_a_rate_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    bucket = Bucket(10.0)
    for _ in range(30):
        bucket.take(4, clock)
    assert clock.now == pytest.approx((120 - 10) / 10, rel=0.01)
    bucket.take(50, clock)  # more than a second's worth passes at once, and is paid for after
    before = clock.now
    bucket.take(1, clock)
    assert clock.now - before == pytest.approx((50 - 10 + 1) / 10, rel=0.05)


def test_a_key_is_sent_and_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setenv("OWN_KEY", "secret")
    with serving() as server:
        server.trick = watching(seen, lambda handler: handler.headers["Authorization"])
        model = load(f"{server.url}(token=OWN_KEY)")
        model(IMAGES)
    assert seen == ["Bearer secret"]
    assert "secret" not in f"{model!r}{vars(model).keys()}"
    with pytest.raises(InputError, match="no environment variable"):
        Endpoint("http://127.0.0.1/", token="NOT_THERE")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("http://", "not an address"),
        ("http://u:p@h/", "holds a user name"),
        ("http://h:port/", "not an address"),
        ("http://h/(format=gif)", "format is 'gif'"),
        ("http://h/(fromat=png)", "did you mean 'format'"),
        ("http://h/(format=png", "does not close it"),
        ("http://h/(format=f(x=1))", "cannot be read"),
        ("http://h/(timeout=0)", "positive number"),
        ("http://h/(rate=-1)", "positive number"),
        ("http://h/(concurrency=0)", "whole number from 1"),
        ("http://h/(retries=-1)", "number from 0"),
        ("http://h/(format=png, grid=1/7)", "images are sent as bytes"),
    ],
)
def test_what_is_written_wrongly_is_said_before_anything_is_sent(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        load(text)


def test_the_digest_is_of_what_decides_answers() -> None:
    one = Endpoint("http://h/p").digest()
    assert one == Endpoint("http://h/p", batch=3, rate=5, timeout=1, name="n").digest()
    others: list[dict[str, Any]] = [
        {"version": "2"},
        {"format": "png"},
        {"top_k": 3},
        {"classes": 4},
    ]
    assert len({one, *(Endpoint("http://h/p", **given).digest() for given in others)}) == 5


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_loses_nothing(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    seen = np.asarray(Image.open(io.BytesIO(png(pixels))))
    expected = pixels[0] if channels == 1 else pixels.transpose(1, 2, 0)
    assert np.array_equal(seen, expected)
    body, headers = encoded("png", pixels[None])
    assert body == png(pixels) and headers["Content-Type"] == "image/png"
    with pytest.raises(InputError, match="5 channels"):
        png(np.zeros((5, 2, 2), np.uint8))


def test_a_pre_flight_notices_chance_and_company(tmp_path: Path) -> None:
    samples = besiege.core.samples.Samples.of(IMAGES, DATA.labels)
    with serving() as server:
        model = Endpoint(server.url, ledger=tmp_path / "l.sqlite")
        assert preflight(model, samples) == []
        assert model.counts == {"probe": [7, 7]} and server.images == 7
        answer = server.answer
        server.answer = lambda images: {
            "logits": [[n * len(images) for n in row] for row in answer(images)["logits"]]
        }
        (finding,) = preflight(model, samples)
        assert finding.id == "W41" and finding.level == "warning"
        draw = np.random.default_rng(0)
        server.answer = lambda images: {"logits": draw.normal(size=(len(images), 10)).tolist()}
        (finding,) = preflight(model, samples)
        assert finding.id == "W14" and finding.level == "stop"
        assert model.ledger is not None and model.ledger.distrusted
        assert preflight(NET, samples) == []


def test_one_failing_request_ends_those_that_wait() -> None:
    """A request that backs off does not hold up the end when another was refused."""
    with serving() as server:
        server.trick = lambda handler, number: said(handler, 400 if number > 3 else 500, {})
        sender = Transport(server.url, retries=9, patience=600, concurrency=4)
        jobs = [Job(b"{}", {}, 1, lambda reply: reply) for _ in range(4)]
        with pytest.raises(EndpointError, match="status 400"):
            sender.send(jobs)


def test_a_wait_beyond_the_patience_is_named_and_not_waited_for() -> None:
    with serving() as server:
        server.trick = lambda handler, number: said(handler, 429, {}, Retry_After="7200")
        begin = time.monotonic()
        with pytest.raises(EndpointError, match=r"asks to wait 7200 s .*patience=60 s"):
            Endpoint(server.url)(IMAGES)
        assert server.requests == 1 and time.monotonic() - begin < 5


@pytest.mark.parametrize(
    "content",
    [
        {"label": 1, "probabilities": [[0.1, 0.7, 0.2]]},
        {"classes": 3, "scores": [[0.1, 0.7, 0.2]]},
        {"classes": 3, "labels": [1]},
        {"logits": [0.1, 0.7, 0.2]},
        [0.1, 0.7, 0.2],
    ],
    ids=["both", "classes", "classes and labels", "flat", "list"],
)
def test_a_label_is_found_whatever_else_is_said(content: object) -> None:
    with serving() as server:
        server.trick = lambda handler, number: said(handler, 200, content)
        model = Endpoint(server.url, access="decision", classes=3)
        assert model(IMAGES[:1]).argmax(1).tolist() == [1]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"classes": 3}, "holds none of labels, label, predictions"),
        ({"logits": [[-float("inf")] * 3]}, "no finite score"),
    ],
)
@pytest.mark.parametrize("access", ["score", "decision"])
def test_what_tells_no_class_is_refused(content: object, what: str, access: str) -> None:
    with serving() as server:
        server.trick = lambda handler, number: said(handler, 200, content)
        if access == "score":
            what = what.replace("labels, label, predictions", "logits")
        with pytest.raises(EndpointError, match=what):
            Endpoint(server.url, access=access, classes=3)(IMAGES[:1])


@pytest.mark.parametrize(("form", "many"), [("json", [2, 2, 1]), ("raw", [5]), ("uint8", [5])])
def test_requests_of_large_images_stay_small(
    form: str, many: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    held: list[int] = []
    model = Endpoint("http://127.0.0.1/", format=form, classes=10, concurrency=1)

    def send(jobs: list[Job[Any]]) -> list[Any]:
        sent.extend((job.images, len(job.body)) for job in jobs)
        held.append(len(jobs))
        return [np.full((job.images, 10), job.images, np.float32) for job in jobs]

    model.transport.send = send  # type: ignore[assignment]
    told = model(torch.rand(5, 3, 224, 224))
    assert [images for images, _ in sent] == many and max(size for _, size in sent) < 1 << 23
    assert told[:, 0].tolist() == [images for images in many for _ in range(images)]
    monkeypatch.setattr(endpoint, "HELD", 1)
    held.clear()
    assert torch.equal(model(torch.rand(5, 3, 224, 224)), told)
    assert max(held) <= 2 and sum(held) == len(many)
    assert model(torch.rand(0, 3, 8, 8)).shape == (0, 10)
