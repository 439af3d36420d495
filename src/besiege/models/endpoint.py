"""`Endpoint`: a black-box victim that answers HTTP requests; every answer is kept in a ledger."""

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
"""Default limits of one request, in images and in bytes; a PNG request holds one image."""
HELD = 1 << 26
"""About how many bytes are encoded ahead of sending."""


class Endpoint(BlackBox, Victim):
    """A model that answers HTTP requests.

    Parameters
    ----------
    url : str
        Address that images are posted to: ``http://127.0.0.1:8000/predict``. A key in it is
        refused; ``?code={NAME}`` sends the value of that environment variable.
    format : {"json", "raw", "uint8", "png"}
        How images are sent. Bytes and PNG files have 256 levels: `grid` is then 1/255 of the box,
        and exactly the images sent are judged.
    classes, access, outputs, top_k, box, grid, stochastic
        As for `besiege.function_model`.
    batch : int, optional
        Largest number of images in one request. By default 32, fewer large ones (8 MiB), and 1
        for PNG files.
    concurrency : int
        Largest number of simultaneous requests.
    timeout, retries, patience
        Seconds for one attempt (connecting, sending and the whole answer), attempts at one
        request, and seconds the server may be unavailable.
    rate, request_rate : float, optional
        Limits of images and of requests per second.
    version : str
        Version of the model there. After a change, earlier answers and records are not reused.
    token : str, optional
        Name of an environment variable with a key, sent as ``Authorization: Bearer``.
    ledger : path, optional
        A file that keeps every answer; `besiege.evaluate` keeps one in the run folder by default.
    name : str, optional
        Name in reports; the address when not given.

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
        """Limit of images per second; None without a limit."""
        return self.transport.rate

    def digest(self) -> str:
        """SHA-256 of the address, the version, and how images are sent and answers read."""
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
        values = pixels[0].size
        size = self.batch or fitting(self.format, values)
        # Few requests are encoded ahead: as text, an image of 224 x 224 takes three megabytes.
        few = max(2 * self.transport.concurrency, HELD // (SIZES[self.format] * size * values or 1))
        logits: list[Logits] = []
        for begin in range(0, len(pixels), few * size):
            firsts = range(begin, min(len(pixels), begin + few * size), size)
            jobs = [self._job(pixels[first : first + size], first, keep) for first in firsts]
            logits += self.transport.send(jobs)
        return np.concatenate(logits)

    def _job(self, some: Pixels, first: int, keep: Keep | None) -> Job[Logits]:
        body, headers = encoded(self.format, some)
        if not self.stochastic and not self._fresh:
            # A server that supports the header can answer a repeated attempt from its cache.
            headers["Idempotency-Key"] = hashlib.sha256(body).hexdigest()

        def accept(reply: Reply) -> Logits:
            logits = decoded(reply, len(some), self.reader)
            if keep is not None:
                keep(first, logits)  # now: other requests of the same call may fail
            return logits

        return Job(body, headers, len(some), accept)

    def _noted(self, images: int, attempt: int, status: str, seconds: float) -> None:
        self._count(sent=images)
        if self.ledger is not None:
            self.ledger.note(self._account, images, attempt, status, seconds)


def fitting(form: str, values: int) -> int:
    """How many images of so many pixel values go into one request.

    Examples
    --------
    >>> [fitting(form, 3 * 224 * 224) for form in ("json", "raw", "uint8")]
    [2, 13, 32]
    """
    return max(1, min(BATCH, LARGEST // (SIZES[form] * max(1, values))))


def _key(token: str | None) -> Mapping[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {from_environment(str(token))}"}


def kept_below(victim: BlackBox | None, folder: Path) -> None:
    """Give a remote victim without a ledger one below a folder."""
    if victim is None or not victim.remote or victim.stochastic or victim.ledger is not None:
        return
    victim.keep_in(folder / "ledgers" / f"{victim.digest()[:16]}.sqlite")
