"""`BlackBox`, the base of query-based victims: sending images, counting and keeping answers."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import EndpointError, InputError, near
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.models.answers import Reader
from besiege.models.classifier import checked_box, checked_grid
from besiege.models.ledger import Ledger

Pixels = NDArray[Any]
Logits = NDArray[np.float32]
Kept = tuple[bytes, Pixels]
"""The key and the pixels of an image whose answer is in the ledger."""
Keep = Callable[[int, Logits], None]
"""Called with answers as they arrive: the row of the first image, and the logits."""

LEVELS = 255
CANARY = 500
"""After this many images, a kept one is sent again to check that the model is still the same."""
KNOWN = 8
"""Images sent again before a run resumes: on one image, two models may well agree."""
_CHANGED = 1e-3
"""Relative difference from a kept answer up to which the model counts as the same."""


class Changed(EndpointError):
    """The model differs from the one whose answers are kept, so trying again would not help."""


class BlackBox(ABC):
    """Base of query-based victims: sends images; reads, counts and keeps the answers.

    They grant scores or labels, never gradients. They are metered: only images that an attack
    queries are sent, none as padding and none ahead of a decision.

    Attributes
    ----------
    counts : dict
        For every account ``[asked, sent]``: images queried, and images sent to the model, failed
        attempts included. Images answered from the ledger count as asked, not as sent.
    """

    metered = True
    remote = False
    """Whether answers cost something to get, so that a run keeps a ledger."""

    @property
    def rate(self) -> float | None:
        """Limit of images per second; None without a limit."""
        return None

    def __init__(
        self,
        name: str,
        *,
        classes: int | None,
        access: str | Access,
        outputs: str | None,
        top_k: int | None,
        box: tuple[float, float],
        grid: float | None,
        stochastic: bool,
        as_bytes: bool = False,
        ledger: Path | str | None = None,
    ) -> None:
        self.name = name
        scores = "logits" if outputs is None else outputs
        self.reader = Reader(name, _access(access), scores, classes, top_k, outputs is None)
        self.access = self.reader.access
        self.box = checked_box(box)
        self.stochastic = bool(stochastic)
        self.as_bytes = as_bytes
        self.grid = self._grid(grid)
        # The judge checks that probabilities sum to 1, which top-k scores and labels do not.
        full = self.access is Access.SCORE and top_k is None
        self.outputs = scores if full else "logits"
        self.declared = classes
        self.ledger: Ledger | None = None
        self._kept_as: str | None = None
        self._since: int | None = None
        self._careful = False
        self.counts: dict[str, list[int]] = {}
        self._account, self._fresh = "asked", False
        self._lock = threading.Lock()
        self._device = torch.device("cpu")
        if ledger is not None:
            self.keep_in(ledger)

    @property
    def classes(self) -> int | None:
        """The number of classes, or None if it is not known."""
        return None if self.reader.supposed else self.reader.classes

    @classes.setter
    def classes(self, classes: int | None) -> None:
        self.reader.classes = self.declared = classes
        self._kept_as = None

    def declare(self, classes: int) -> None:
        """Set the number of classes, if it is not known yet."""
        if self.reader.classes is None:
            self.classes = classes

    @property
    def device(self) -> torch.device:
        """Where attacks compute; answers are moved there."""
        return self._device

    def to(self, device: str | torch.device) -> Self:
        """Set where attacks compute; the victim itself is not moved."""
        self._device = torch.device(device)
        return self

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of what identifies the victim, as hexadecimal text."""

    @abstractmethod
    def _answers(self, pixels: Pixels, keep: Keep | None) -> Logits:
        """Logits of one image or more, as sent; `keep` is called as soon as a batch is answered."""

    def _in_batches(
        self, pixels: Pixels, size: int, answer: Callable[[Pixels], object], keep: Keep | None
    ) -> Logits:
        """The same for a victim in this process, `size` images at a time."""
        batches = []
        for first in range(0, len(pixels), size):
            some = pixels[first : first + size]
            self._count(sent=len(some))
            batches.append(self.reader(answer(some), len(some)))
            if keep is not None:
                keep(first, batches[-1])
        return np.concatenate(batches)

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits float32 ``[rows, classes]``; minus infinity for classes an answer leaves out.

        A stochastic black-box victim has its own randomness: the dice are not used.
        """
        if self._careful:
            self._careful, few = False, x[:KNOWN]
            first = self(few, dice)
            self.reader.supposed = False
            return torch.cat([first, self(x[KNOWN:], dice)]) if len(x) > KNOWN else first
        pixels = self.pixels(x)
        self._count(asked=len(pixels))
        ledger = self.ledger if self.recalls else None
        if not len(pixels):
            logits = np.zeros((0, self.classes or 1), np.float32)
        elif ledger is not None and not self._fresh:
            logits = self._through(ledger, pixels)
        else:
            if ledger is not None and self._since is None:
                self._must_be_the_same(ledger, self._key())
            logits = self._answers(pixels, None)
        return torch.from_numpy(logits).to(x.device)

    def pixels(self, x: Tensor) -> Pixels:
        """Images in the form that is sent: float32 in the box, or bytes."""
        if x.dim() != 4:
            raise InputError(
                f"{self.name} was given images {list(x.shape)}: images are "
                "[rows, channels, height, width]"
            )
        values: Pixels = x.detach().cpu().to(torch.float32).contiguous().numpy()
        if not self.as_bytes:
            return values.copy()  # the model may overwrite it
        low, high = self.box
        levels = np.rint((values.astype(np.float64) - low) / (high - low) * LEVELS)
        return levels.clip(0, LEVELS).astype(np.uint8)

    def keep_in(self, path: Path | str) -> None:
        """Keep every answer in a ledger file, and answer repeated images from it."""
        if self.stochastic:
            raise InputError(f"{self.name} is stochastic: a ledger would repeat one random answer")
        self.ledger = Ledger(path)

    @contextmanager
    def account(self, name: str, *, fresh: bool = False) -> Iterator[None]:
        """Count queries under a name meanwhile; `fresh` queries never use the ledger."""
        before = self._account, self._fresh
        self._account, self._fresh = name, fresh
        try:
            yield
        finally:
            self._account, self._fresh = before

    @contextmanager
    def labels(self) -> Iterator[None]:
        """Use only the labels of answers meanwhile, whatever form they have.

        The kind of scores does not matter then. The number of classes need not be declared: full
        rows of scores show it. A few images are sent first, so that an answer that cannot be read
        costs no more than those.
        """
        reader, declared = self.reader, self.declared
        guess = reader.access is Access.SCORE and reader.classes is None
        self.reader = replace(reader, access=Access.DECISION, outputs="logits", supposed=guess)
        self._kept_as, self._careful = None, True
        try:
            yield
        finally:
            self.reader, self.declared = reader, declared
            self._kept_as, self._careful = None, False

    def afresh(self) -> AbstractContextManager[None]:
        """Take no answer from the ledger meanwhile; the account stays the same."""
        return self.account(self._account, fresh=True)

    @property
    def recalls(self) -> bool:
        """Whether repeated images are answered from the ledger."""
        return not (self.stochastic or self.ledger is None or self.ledger.distrusted)

    @property
    def asked(self) -> int:
        """Images queried so far."""
        return sum(asked for asked, _ in self.counts.values())

    @property
    def sent(self) -> int:
        """Images sent so far, failed attempts included."""
        return sum(sent for _, sent in self.counts.values())

    def _count(self, asked: int = 0, sent: int = 0) -> None:
        with self._lock:
            count = self.counts.setdefault(self._account, [0, 0])
            count[0] += asked
            count[1] += sent
        if self.ledger is not None:
            self.ledger.count(self._account, asked, sent)

    def _key(self) -> str:
        """The name under which answers are kept."""
        if self._kept_as is None:  # computed once: a function that counts its calls stays the same
            # Labels taken from a model that gives scores are kept apart from its scores.
            apart = "" if self.reader.access is self.access else " labels"
            self._kept_as = self.digest() + apart
        return self._kept_as

    def _through(self, ledger: Ledger, pixels: Pixels) -> Logits:
        """Answers from the ledger, or else from the victim; each image is sent once."""
        name = self._key()
        base = f"{name} {pixels.dtype} {pixels.shape[1:]}".encode()
        keys = [hashlib.sha256(base + row.tobytes()).digest() for row in pixels]
        known = ledger.read(keys)
        new: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key not in known:
                new.setdefault(key, row)
        if new:
            wanted = [*new]
            self._must_be_the_same(ledger, name)

            def keep(first: int, logits: Logits) -> None:
                some = wanted[first : first + len(logits)]
                ledger.write(some, logits)
                ledger.keep_latest(name, some, pixels[[new[key] for key in some]], KNOWN)

            answers = self._answers(pixels[[*new.values()]], keep)
            known |= dict(zip(wanted, answers, strict=True))
            ledger.keep_canary(name, wanted[0], pixels[new[wanted[0]]])
            self._since = (self._since or 0) + len(new)
        if known and (self.reader.classes is None or self.reader.supposed):
            self.reader.classes = len(next(iter(known.values())))
        return np.stack([known[key] for key in keys])

    def _must_be_the_same(self, ledger: Ledger, name: str) -> None:
        """Raise if the model no longer gives the answers in the ledger.

        Checked with several images before the first one is sent, then with one now and then.
        """
        if self._since is not None and self._since < CANARY:
            return
        held = ledger.latest(name, KNOWN) if self._since is None else []
        self._since, first = 0, ledger.canary(name)
        if first is not None and (not held or (len(held) < KNOWN and _fits(first, held))):
            held.append(first)
        known = ledger.read([key for key, _ in held])
        held = [one for one in held if one[0] in known]
        if not held:
            return
        with self.account("canary", fresh=True):
            self._count(asked=len(held))
            again = self._answers(np.stack([pixels for _, pixels in held]), None)
        if any(_differ(known[key], now) for (key, _), now in zip(held, again, strict=True)):
            raise Changed(
                f"{self.name} answers an image differently now than in the first query: the model "
                "there has changed, or it is stochastic. Declare version= (or stochastic=True), "
                "or use another folder"
            )

    def _grid(self, grid: float | None) -> float | None:
        grid, width = checked_grid(grid, self.box), self.box[1] - self.box[0]
        if not self.as_bytes:
            return grid
        if grid is not None and LEVELS % round(width / grid) != 0:
            raise InputError(
                f"grid is {grid!r}, but images are sent as bytes, of 255 steps: leave it out"
            )
        return width / LEVELS if grid is None else grid


def black_box(victim: Victim) -> BlackBox | None:
    """The black-box victim that a victim is or, behind its layers, contains."""
    source = victim.source
    return source if isinstance(source, BlackBox) else None


def accounted(victim: Victim, name: str, *, fresh: bool = False) -> AbstractContextManager[None]:
    """Count the queries of a black-box victim under a name meanwhile; no effect on others."""
    inner = black_box(victim)
    return nullcontext() if inner is None else inner.account(name, fresh=fresh)


def afresh(victim: Victim) -> AbstractContextManager[None]:
    """Take no answer from a victim's ledger meanwhile; the account stays the same."""
    inner = black_box(victim)
    return nullcontext() if inner is None else inner.afresh()


def labels_alone(victim: Victim) -> AbstractContextManager[None]:
    """Use only the labels of a black-box victim meanwhile; no effect on others."""
    inner = black_box(victim)
    return nullcontext() if inner is None else inner.labels()


def know_classes(victim: Victim, classes: int, labels: Tensor) -> None:
    """Give the data's number of classes to a victim that returns labels or top-k scores."""
    inner = black_box(victim)
    if inner is not None and (
        inner.reader.access is Access.DECISION or inner.reader.top_k is not None
    ):
        inner.declare(max(classes, int(labels.max()) + 1, 2))


def paid(victim: Victim) -> dict[str, tuple[int, int]] | None:
    """Images queried and sent of a black-box victim, by account; over all runs with its ledger."""
    inner = black_box(victim)
    if inner is None:
        return None
    if inner.ledger is not None:
        return inner.ledger.accounts()
    return {name: (asked, sent) for name, (asked, sent) in inner.counts.items()}


def _fits(one: Kept, others: list[Kept]) -> bool:
    """Whether an image is not among the others, and has their type and shape."""
    key, pixels = one
    alike = pixels.dtype == others[0][1].dtype and pixels.shape == others[0][1].shape
    return alike and key not in {other for other, _ in others}


def _differ(once: Logits, again: Logits) -> bool:
    there = np.isfinite(once)
    if once.shape != again.shape or not np.array_equal(there, np.isfinite(again)):
        return True
    apart, size = (float(np.linalg.norm(v)) for v in (once[there] - again[there], once[there]))
    return apart > _CHANGED * max(size, 1e-6)


def _access(access: str | Access) -> Access:
    levels = {str(level): level for level in Access}
    if str(access) not in levels:
        raise InputError(f"access is {access!r}: {near(str(access), levels)}")
    return levels[str(access)]
