"""Requests that arrive: with time limits, back-off, a rate that is kept, and several at once."""

from __future__ import annotations

import http.client
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Generic, TypeVar
from weakref import finalize

from besiege.core.errors import EndpointError, InputError
from besiege.models.address import Address, is_open, without_query
from besiege.models.deadline import allow
from besiege.models.secrecy import Veil

T = TypeVar("T")

CONNECT = 5.0
"""Seconds to wait for a connection, at most."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds before the second attempt, doubled before every further one, and at most."""
MALFORMED = 3
"""Attempts at an answer that can be read: a server that answers nonsense is not waited for."""
LARGEST = 1 << 28
"""Bytes of an answer, at most."""
_AGAIN = frozenset({408, 425, 429})
_MOVED = frozenset({301, 302, 303, 307, 308})
_SHOWN = 200


class Unreadable(Exception):
    """An answer that arrived and cannot be used; worth another attempt."""


class Foreign(Exception):
    """An answer of another kind than was declared; so would the next one be."""


class _Stopped(Exception):
    """Another request of the same call failed for good."""


@dataclass(frozen=True)
class Reply:
    """What a server said."""

    status: int
    kind: str
    body: bytes
    wait: float | None = None
    """Seconds after which to come again, where it says so."""
    elsewhere: str | None = None
    """The address it sends to instead."""

    @property
    def said(self) -> str:
        """The beginning of the body, as it is; `Transport` makes it fit to be shown."""
        return self.body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN].strip() or "nothing"


@dataclass(frozen=True)
class Job(Generic[T]):
    """One request: what is sent, and what is made of the answer.

    Attributes
    ----------
    body, headers
        What is sent.
    images : int
        How many images are in it.
    accept : callable
        Reads a reply of status 200, and raises `Unreadable` or `Foreign` where it cannot.
    """

    body: bytes
    headers: Mapping[str, str]
    images: int
    accept: Callable[[Reply], T]


class Bucket:
    """Lets so many things pass per second, and a second's worth at once.

    Parameters
    ----------
    rate : float
        How many per second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._room = max(1.0, rate)
        self._tokens = self._room
        self._then = time.monotonic()
        self._lock = threading.Lock()

    def take(self, amount: int, stop: threading.Event) -> None:
        """Wait until so many may pass; what is larger than a second's worth leaves a debt."""
        while True:
            with self._lock:
                now = time.monotonic()
                self._tokens = min(self._room, self._tokens + (now - self._then) * self.rate)
                self._then = now
                need = min(float(amount), self._room) - self._tokens
                if need <= 1e-9:
                    self._tokens -= amount
                    return
            if stop.wait(need / self.rate):
                raise _Stopped


class Transport:
    """Sends requests to one address and brings back what its answers were made into.

    Tried again: no connection, no answer in time, 408, 425, 429 and 5xx, as long as the server has
    not been away for longer than `patience`; and three times an answer that cannot be read. One of
    another kind than was declared is not: the next one would be of the same. Waits
    double and are drawn at random, and are never shorter than the server's Retry-After; one that
    is longer than what is left of `patience` stops. Any other status stops, and so does a server
    that is not trusted. Nobody is followed to another address: the address is which model answers,
    and images and keys are for nobody else. No message shows a key.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``.
    timeout : float
        Seconds for one attempt: connecting, sending and the whole answer.
    retries : int
        Attempts after the first, at least; before the server has ever answered, at most.
    patience : float
        Seconds that the server may be away.
    rate, request_rate : float, optional
        The most images, and the most requests, per second.
    concurrency : int
        The most requests on their way at once.
    headers : mapping
        Sent with every request.
    note : callable, optional
        Told of every attempt that left: images, which attempt, how it ended, seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        retries: int = 5,
        patience: float = 60.0,
        rate: float | None = None,
        request_rate: float | None = None,
        concurrency: int = 4,
        headers: Mapping[str, str] | None = None,
        note: Callable[[int, int, str, float], None] | None = None,
    ) -> None:
        for name, value in (("timeout", timeout), ("rate", rate), ("request_rate", request_rate)):
            if value is not None and not (_is_number(value) and value > 0):
                raise InputError(f"{name} is {value!r}, but a positive number is needed")
        for name, value in (("retries", retries), ("patience", patience)):
            if not (_is_number(value) and value >= 0):
                raise InputError(f"{name} is {value!r}, but a number from 0 is needed")
        if type(concurrency) is not int or concurrency < 1:
            raise InputError(f"concurrency is {concurrency!r}, but a whole number from 1 is needed")
        self.url, self.address = url, Address(url)
        self.timeout, self.retries, self.patience = float(timeout), retries, float(patience)
        self.rate, self.concurrency = rate, concurrency
        self.headers = {**self.address.headers, **(headers or {})}
        self._veil = Veil([*self.address.secrets, *_secrets(self.headers)])
        self._note = note or (lambda *_: None)
        self._limits = [
            (Bucket(float(limit)), per_image)
            for limit, per_image in ((rate, True), (request_rate, False))
            if limit is not None
        ]
        self._idle: list[http.client.HTTPConnection] = []
        finalize(self, _hang_up, self._idle)
        self._lock = threading.Lock()
        self._answered = False
        self._chance = random.Random()

    def send(self, jobs: Sequence[Job[T]]) -> list[T]:
        """Do all jobs, several at once; when one fails for good, those on their way still end."""
        stop = threading.Event()
        if len(jobs) <= 1 or self.concurrency == 1:
            return [self._insist(job, stop) for job in jobs]
        with ThreadPoolExecutor(min(self.concurrency, len(jobs))) as pool:
            futures = [pool.submit(self._insist, job, stop) for job in jobs]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                failed = [f for f in done if f.exception() is not None]
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            if failed:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        for future in futures:
            problem = None if future.cancelled() else future.exception()
            if problem is not None and not isinstance(problem, _Stopped):
                raise problem
        return [future.result() for future in futures]

    def close(self) -> None:
        """Let idle connections go."""
        with self._lock:
            _hang_up(self._idle)

    def _insist(self, job: Job[T], stop: threading.Event) -> T:
        """One request until it is answered, or will not be."""
        failing, attempt, unread = None, 0, 0
        while True:
            if stop.is_set():
                raise _Stopped
            attempt += 1
            for bucket, per_image in self._limits:
                bucket.take(job.images if per_image else 1, stop)
            begin, pause = time.monotonic(), None
            try:
                reply = self._once(job, attempt)
                if reply.status == 200:
                    self._answered = True
                    return job.accept(reply)
                if reply.status not in _AGAIN and reply.status < 500:
                    raise self._refused(reply)
                problem, pause = f"status {reply.status}: {reply.said}", reply.wait
            except Foreign as said:
                raise self._error(f"answered what was not declared: {said}") from None
            except Unreadable as said:
                unread += 1
                if unread >= MALFORMED:
                    raise self._error(
                        f"answered {unread} times what cannot be used: {said}"
                    ) from None
                problem = str(said)
            except (OSError, http.client.HTTPException) as error:
                if (why := self.address.hopeless(error, self._answered)) is not None:
                    raise self._error(why) from None  # it holds what the server said
                problem = str(error)[:_SHOWN] or type(error).__name__
                if isinstance(error, TimeoutError):
                    problem = f"no answer within {self.timeout:g} s"
            failing = begin if failing is None else failing
            away = time.monotonic() - failing
            patient = self._answered and away < self.patience
            if attempt > self.retries and not patient:
                raise self._error(
                    f"did not answer in {attempt} attempts and {away:.0f} s: {problem}. "
                    "Start it again, or allow more with retries= and patience="
                )
            left = max(0.0, self.patience - away)
            if pause is not None and pause > left:
                raise self._error(
                    f"asks to wait {pause:.0f} s ({problem}), but of patience={self.patience:g} s "
                    f"{left:.0f} s are left: come again later, or allow more with patience="
                )
            if stop.wait(self._pause(attempt, pause)):
                raise _Stopped

    def _pause(self, attempt: int, least: float | None) -> float:
        usual = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 1, 20))
        return max(least or 0.0, usual * (0.5 + 0.5 * self._chance.random()))

    def _error(self, what: str) -> EndpointError:
        """What went wrong, in words that may be kept: all that a server says passes here."""
        return EndpointError(self._veil(f"{self.url} {what}"))

    def _refused(self, reply: Reply) -> EndpointError:
        if reply.status in _MOVED:
            where = "somewhere else" if reply.elsewhere is None else without_query(reply.elsewhere)
            where = where[:_SHOWN]
            return self._error(
                f"sends to {where} (status {reply.status}), and nobody is followed to another "
                "address: give the right one, if you know it to be the same model"
            )
        advice = {
            401: "give the name of an environment variable that holds the key, token=NAME",
            403: "check the key, and whether you may ask it at all",
            404: "check the path",
            413: "send fewer images at once, batch=",
        }.get(reply.status, "check the format and the address")
        return self._error(f"refused with status {reply.status}: {reply.said} ({advice})")

    def _once(self, job: Job[T], attempt: int) -> Reply:
        end = time.monotonic() + self.timeout
        connection = self._connected(end)
        begin, how = time.monotonic(), "no answer"
        try:
            headers = {**self.headers, **job.headers}
            connection.request("POST", self.address.target, job.body, headers)
            reply, reusable = self._read(connection)
            how = str(reply.status)
        except BaseException:
            connection.close()
            raise
        finally:
            self._note(job.images, attempt, how, time.monotonic() - begin)
        if reusable:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        return reply

    def _connected(self, end: float) -> http.client.HTTPConnection:
        """An open connection, whose next reads and writes are over at `end`."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if is_open(connection.sock):
                    allow(connection, end)
                    return connection
                connection.close()
        limit = min(CONNECT, self.timeout)
        try:
            connection = self.address.connect(min(end, time.monotonic() + limit))
        except TimeoutError:
            raise ConnectionError(f"no connection within {limit:g} s") from None
        allow(connection, end)
        return connection

    def _read(self, connection: http.client.HTTPConnection) -> tuple[Reply, bool]:
        answer = connection.getresponse()
        pieces, size = [], 0
        while piece := answer.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST:
                raise Unreadable(f"more than {LARGEST >> 20} MiB")
        answer.close()  # or the connection would take itself for busy
        wanted = answer.getheader("Content-Length", "")
        if re.fullmatch(r"[0-9]{1,18}", wanted) and size < int(wanted):
            raise http.client.IncompleteRead(b"".join(pieces))
        kind = answer.getheader("Content-Type", "").partition(";")[0].strip().lower()
        wait_for = _seconds(answer.getheader("Retry-After"))
        where = answer.getheader("Location")
        reply = Reply(answer.status, kind, b"".join(pieces), wait_for, where)
        return reply, not answer.will_close


def _hang_up(idle: list[http.client.HTTPConnection]) -> None:
    while idle:
        idle.pop().close()


def _seconds(text: str | None) -> float | None:
    """Seconds of a Retry-After, which is a number or a date."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds)


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """What no message may show: what stands behind a word such as Bearer, or the whole."""
    return [value.partition(" ")[2] or value for value in headers.values() if value]


def _is_number(value: object) -> bool:
    finite = isinstance(value, (int, float)) and not isinstance(value, bool)
    return finite and value == value and value != float("inf")
