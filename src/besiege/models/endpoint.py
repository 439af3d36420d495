"""A victim behind HTTP: images are posted, answers come back, and every one of them is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from besiege.core.errors import InputError, near
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.models.black_box import BlackBox, Keep, Logits, Pixels
from besiege.models.functions import checked_count
from besiege.models.secrecy import from_environment
from besiege.models.transport import Job, Reply, Transport
from besiege.models.wire import BYTES, FORMATS, SIZES, decoded, encoded

BATCH, LARGEST = 32, 1 << 23
"""Images in one request, and about how many bytes, where nobody says; one image where each is a
file of its own."""
HELD = 1 << 26
"""About how many bytes wait to be sent."""


class Endpoint(BlackBox, Victim):
    """A model that answers HTTP requests.

    Parameters
    ----------
    url : str
        Where images are posted to: ``http://127.0.0.1:8000/predict``. A key in it is refused;
        ``?code={NAME}`` sends the one that the environment variable holds.
    format : {"json", "raw", "uint8", "png"}
        How they are sent. Bytes and PNG files have 256 levels: then the model's `grid` is a
        255th of its box, and what is sent is what is judged.
    classes, access, outputs, top_k, box, grid, stochastic
        As for `besiege.function_model`.
    batch : int, optional
        The most images in one request; 32, fewer of large ones (8 MiB), and 1 for PNG files.
    concurrency : int
        The most requests on their way at once.
    timeout, retries, patience
        Seconds for one attempt (connecting, sending and the whole answer), attempts at one
        request, and seconds the server may be away.
    rate, request_rate : float, optional
        The most images, and the most requests, per second.
    version : str
        Which model answers there. When it changes, nothing of before is used again.
    token : str, optional
        Name of an environment variable with a key, sent as ``Authorization: Bearer``.
    ledger : path, optional
        A file that keeps every answer; `besiege.evaluate` keeps one in the run folder by itself.
    name : str, optional
        What reports call it; the address when not given.

    Examples
    --------
    >>> model = Endpoint("http://127.0.0.1:8000/predict", format="png", classes=10)
    >>> round(model.grid * 255), model.access.name
    (1, 'SCORE')
    """

    remote = True

    def __init__(
        self,
        url: str,
        *,
        format: str = "json",
        classes: int | None = None,
        access: str | Access = "score",
        outputs: str | None = None,
        top_k: int | None = None,
        box: tuple[float, float] = (0.0, 1.0),
        grid: float | None = None,
        stochastic: bool = False,
        batch: int | None = None,
        concurrency: int = 4,
        timeout: float = 30.0,
        retries: int = 5,
        patience: float = 60.0,
        rate: float | None = None,
        request_rate: float | None = None,
        version: str = "",
        token: str | None = None,
        ledger: Path | str | None = None,
        name: str | None = None,
    ) -> None:
        if format not in FORMATS:
            raise InputError(f"format is {format!r}: {near(str(format), FORMATS)}")
        self.format, self.version = format, str(version)
        self.transport = Transport(
            url,
            timeout=timeout,
            retries=retries,
            patience=patience,
            rate=rate,
            request_rate=request_rate,
            concurrency=concurrency,
            headers=_key(token),
            note=self._noted,
        )
        super().__init__(
            url if name is None else name,
            classes=classes,
            access=access,
            outputs=outputs,
            top_k=top_k,
            box=box,
            grid=grid,
            stochastic=stochastic,
            as_bytes=format in BYTES,
            ledger=ledger,
        )
        self.batch = checked_count("batch", batch) or (1 if format == "png" else None)
        self.together = (self.batch or BATCH) * concurrency

    @property
    def rate(self) -> float | None:
        """Images per second, at most."""
        return self.transport.rate

    def digest(self) -> str:
        """SHA-256 of address, version and how images are sent and answers read."""
        about = {
            "kind": "endpoint",
            "url": self.transport.url,
            "version": self.version,
            "format": self.format,
            "access": str(self.reader.access),
            "outputs": self.reader.outputs,
            "top_k": self.reader.top_k,
            "classes": self.declared,
            "box": self.box,
            "grid": self.grid,
            "stochastic": self.stochastic,
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _answers(self, pixels: Pixels, keep: Keep | None) -> Logits:
        entries = pixels[:1].size
        size = self.batch or fitting(self.format, entries)
        # Few are encoded ahead: as text, an image of 224 x 224 takes three megabytes.
        few = max(
            2 * self.transport.concurrency, HELD // (SIZES[self.format] * size * entries or 1)
        )
        found = [np.zeros((0, self.classes or 1), np.float32)]
        for begin in range(0, len(pixels), few * size):
            firsts = range(begin, min(len(pixels), begin + few * size), size)
            jobs = [self._job(pixels[first : first + size], first, keep) for first in firsts]
            found += self.transport.send(jobs)
        return np.concatenate(found[1:] or found)

    def _job(self, some: Pixels, first: int, keep: Keep | None) -> Job[Logits]:
        body, headers = encoded(self.format, some)
        if not self.stochastic and not self._fresh:
            # A server that knows it may answer an attempt that it has served before.
            headers["Idempotency-Key"] = hashlib.sha256(body).hexdigest()

        def accept(reply: Reply) -> Logits:
            logits = decoded(reply, len(some), self.reader)
            if keep is not None:
                keep(first, logits)  # at once: others of the same call may fail
            return logits

        return Job(body, headers, len(some), accept)

    def _noted(self, images: int, attempt: int, status: str, seconds: float) -> None:
        self._count(sent=images)
        if self.ledger is not None:
            self.ledger.note(self._account, images, attempt, status, seconds)


def fitting(form: str, entries: int) -> int:
    """How many images of so many entries go into one request.

    Examples
    --------
    >>> [fitting(form, 3 * 224 * 224) for form in ("json", "raw", "uint8")]
    [2, 13, 32]
    """
    return max(1, min(BATCH, LARGEST // (SIZES[form] * max(1, entries))))


def _key(token: str | None) -> Mapping[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {from_environment(str(token))}"}


def kept_below(victim: BlackBox | None, folder: Path) -> None:
    """Have a remote victim that has no ledger yet keep one below a folder."""
    if victim is None or not victim.remote or victim.stochastic or victim.ledger is not None:
        return
    place = folder / "ledgers" / f"{victim.digest()[:16]}.sqlite"
    victim.keep_in(place)
