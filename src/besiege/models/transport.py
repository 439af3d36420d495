"""`Transport`: HTTP requests with time limits, retries, rate limits and concurrency."""

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
from besiege.core.text import check_whole
from besiege.models.address import Address, is_open, without_query
from besiege.models.deadline import allow
from besiege.models.secrecy import Veil

T = TypeVar("T")

CONNECT = 5.0
"""Time limit for opening a connection, in seconds."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds before the second attempt, doubled before each further one, and their maximum."""
MALFORMED = 3
"""Attempts after which a server that sends malformed answers is given up."""
LARGEST = 1 << 28
"""Largest answer, in bytes."""
_AGAIN = frozenset({408, 425, 429})
_MOVED = frozenset({301, 302, 303, 307, 308})
_SHOWN = 200


class Unreadable(Exception):
    """A malformed answer; worth another attempt."""


class Foreign(Exception):
    """An answer of another kind than was declared, which another attempt would not change."""


class _Stopped(Exception):
    """Another request of the same call failed for good."""


@dataclass(frozen=True)
class Reply:
    """A server's reply."""

    status: int
    kind: str
    body: bytes
    wait: float | None = None
    """Seconds to wait before another attempt (Retry-After)."""
    elsewhere: str | None = None
    """The address of a redirect (Location)."""

    @property
    def said(self) -> str:
        """The beginning of the body, unfiltered; `Transport` makes it safe to show."""
        return self.body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN].strip() or "nothing"


@dataclass(frozen=True)
class Job(Generic[T]):
    """One request, and the function that reads the answer.

    Attributes
    ----------
    body, headers
        Content of the request.
    images : int
        Number of images in it.
    accept : callable
        Reads a reply of status 200; raises `Unreadable` or `Foreign` if it cannot.
    """

    body: bytes
    headers: Mapping[str, str]
    images: int
    accept: Callable[[Reply], T]


class Bucket:
    """A token bucket: limits a rate, and allows a second's worth at once.

    Parameters
    ----------
    rate : float
        Number per second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._room = max(1.0, rate)
        self._tokens = self._room
        self._then = time.monotonic()
        self._lock = threading.Lock()

    def take(self, amount: int, stop: threading.Event) -> None:
        """Wait until so many may pass; more than a second's worth leaves a debt."""
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
    """Sends requests to one address, retries them, and returns what `Job.accept` made of replies.

    A request is repeated after no connection, no answer in time, and status 408, 425, 429 or 5xx,
    as long as the server has not been unavailable for longer than `patience`; after a malformed
    answer up to three times. An answer of another kind than was declared is an error at once.
    Waits double and are randomised, and are never shorter than the server's Retry-After; a
    Retry-After beyond the rest of `patience` is an error. So is any other status, and a server
    with an untrusted certificate. Redirects are not followed: the address identifies the model,
    and images and keys must not go elsewhere. No message shows a key.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``.
    timeout : float
        Seconds for one attempt: connecting, sending and the whole answer.
    retries : int
        Smallest number of further attempts; also the largest until the server answers once.
    patience : float
        Seconds that the server may be unavailable.
    rate, request_rate : float, optional
        Limits of images and of requests per second.
    concurrency : int
        Largest number of simultaneous requests.
    headers : mapping
        Sent with every request.
    note : callable, optional
        Called after every attempt that was sent: images, number of the attempt, how it ended,
        seconds.
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
        check_whole(concurrency, "concurrency")
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
        """Results of all jobs, several at once; if one fails, requests under way still finish."""
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

    def _insist(self, job: Job[T], stop: threading.Event) -> T:
        """Repeat one request until it is answered, or must be given up."""
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
            except Foreign as why:
                raise self._error(f"answered what was not declared: {why}") from None
            except Unreadable as why:
                unread, problem = unread + 1, str(why)
                if unread >= MALFORMED:
                    raise self._error(f"gave {unread} malformed answers: {problem}") from None
            except (OSError, http.client.HTTPException) as error:
                if (reason := self.address.hopeless(error, self._answered)) is not None:
                    raise self._error(reason) from None  # the cause may show a key
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
                    f"only {left:.0f} s are left: try again later, or allow more with patience="
                )
            if stop.wait(self._pause(attempt, pause)):
                raise _Stopped

    def _pause(self, attempt: int, least: float | None) -> float:
        usual = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 1, 20))
        return max(least or 0.0, usual * (0.5 + 0.5 * self._chance.random()))

    def _error(self, what: str) -> EndpointError:
        """An error that shows no secret: every server's message passes here."""
        return EndpointError(self._veil(f"{self.url} {what}"))

    def _refused(self, reply: Reply) -> EndpointError:
        if reply.status in _MOVED:
            where = "somewhere else" if reply.elsewhere is None else without_query(reply.elsewhere)
            return self._error(
                f"redirects to {where[:_SHOWN]} (status {reply.status}), and redirects are not "
                "followed: give that address, if you know it to be the same model"
            )
        advice = {
            401: "give the name of an environment variable that holds the key, token=NAME",
            403: "check the key, and whether you are allowed to query the model",
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
        """An open connection with the deadline `end`."""
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
        answer.close()  # otherwise the connection would not accept another request
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
    """The seconds of a Retry-After header, which holds a number or a date."""
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
    """The secrets in headers: the part after a word such as Bearer, or the whole value."""
    return [value.partition(" ")[2] or value for value in headers.values() if value]


def _is_number(value: object) -> bool:
    finite = isinstance(value, (int, float)) and not isinstance(value, bool)
    return finite and value == value and value != float("inf")
