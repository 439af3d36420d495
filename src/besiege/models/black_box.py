"""Victims behind a wall: they are asked, and nothing else is known of them."""

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
"""An image whose answer is known, by its key."""
Keep = Callable[[int, Logits], None]
"""Told of answers as they arrive: the first row they are about, and the logits."""

LEVELS = 255
CANARY = 500
"""After so many images a known one is asked about again: whether the model is still the same."""
KNOWN = 8
"""Before a run goes on, so many are: of one image, or of clean ones, other models say the same."""
_CHANGED = 1e-3
"""What a known answer may differ by, of its size, and still be the same model's."""


class Changed(EndpointError):
    """Another model answers than the one whose answers are kept: the same again would not help."""


class BlackBox(ABC):
    """What such victims share: what is sent, how answers are read, counted and kept.

    They grant scores or labels, never gradients. They are metered: no image is sent that nobody
    asked about, neither as padding nor ahead of a decision.

    Attributes
    ----------
    counts : dict
        For every account ``[asked, sent]``: images asked about, and images that left for the
        model, attempts that failed included. What the ledger knew was asked and not sent.
    """

    metered = True
    remote = False
    """Whether answers come from elsewhere and cost something, so that a run keeps a ledger."""

    @property
    def rate(self) -> float | None:
        """Images per second, at most; None without a limit."""
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
        # What the judge must know: of a few scores, or of labels, the sum says nothing.
        whole = self.access is Access.SCORE and top_k is None
        self.outputs = scores if whole else "logits"
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
        """How many classes there are, as far as that is known."""
        return None if self.reader.supposed else self.reader.classes

    @classes.setter
    def classes(self, classes: int | None) -> None:
        self.reader.classes = self.declared = classes
        self._kept_as = None

    def declare(self, classes: int) -> None:
        """Say how many classes there are, where nobody has said it yet."""
        if self.reader.classes is None:
            self.classes = classes

    @property
    def device(self) -> torch.device:
        """Where attacks compute; answers are brought there."""
        return self._device

    def to(self, device: str | torch.device) -> Self:
        """Have attacks compute elsewhere; the victim itself stays where it is."""
        self._device = torch.device(device)
        return self

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of what identifies the victim, as hexadecimal text."""

    @abstractmethod
    def _answers(self, pixels: Pixels, keep: Keep | None) -> Logits:
        """Ask about images as they are sent; `keep` is told of every piece at once."""

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits float32 ``[rows, classes]``; classes that are ruled out are minus infinity.

        Chances of a stochastic victim behind a wall are its own: the dice are not used.
        """
        if self._careful:
            self._careful, few = False, x[:KNOWN]
            first = self(few, dice)
            self.reader.supposed = False
            return torch.cat([first, self(x[KNOWN:], dice)]) if len(x) > KNOWN else first
        pixels = self.pixels(x)
        self._count(asked=len(pixels))
        if self.ledger is not None and self.recalls and not self._fresh:
            found = self._through(self.ledger, pixels)
        else:
            if self.ledger is not None and self.recalls and self._since is None:
                self._must_be_the_same(self.ledger, self._key())
            found = self._answers(pixels, None)
        return torch.from_numpy(found).to(x.device)

    def pixels(self, x: Tensor) -> Pixels:
        """Images as they are sent: float32 in the box, or bytes."""
        if x.dim() != 4:
            raise InputError(
                f"{self.name} was given images {list(x.shape)}: images are "
                "[rows, channels, height, width]"
            )
        values: Pixels = x.detach().cpu().to(torch.float32).contiguous().numpy()
        if not self.as_bytes:
            return values.copy()  # whoever answers may write over it
        low, high = self.box
        levels = np.rint((values.astype(np.float64) - low) / (high - low) * LEVELS)
        return levels.clip(0, LEVELS).astype(np.uint8)

    def keep_in(self, path: Path | str) -> None:
        """Keep every answer in a ledger of this file, and serve repeats from it."""
        if self.stochastic:
            raise InputError(f"{self.name} answers by chance: a ledger would repeat one draw")
        self.ledger = Ledger(path)

    @contextmanager
    def account(self, name: str, *, fresh: bool = False) -> Iterator[None]:
        """Count what is asked under a name for a while; `fresh` answers are not the ledger's."""
        before = self._account, self._fresh
        self._account, self._fresh = name, fresh
        try:
            yield
        finally:
            self._account, self._fresh = before

    @contextmanager
    def labels(self) -> Iterator[None]:
        """Ask for labels alone for a while, in whatever form they come.

        What the scores are does not matter then. Nobody need have said how many classes there are:
        where whole rows of scores come, they tell. A few images are asked about first, so that an
        answer that cannot be read costs no more.
        """
        said, declared = self.reader, self.declared
        guess = said.access is Access.SCORE and said.classes is None
        self.reader = replace(said, access=Access.DECISION, outputs="logits", supposed=guess)
        self._kept_as, self._careful = None, True
        try:
            yield
        finally:
            self.reader, self.declared = said, declared
            self._kept_as, self._careful = None, False

    def afresh(self) -> AbstractContextManager[None]:
        """Have no answer come from the ledger for a while; the account stays."""
        return self.account(self._account, fresh=True)

    @property
    def recalls(self) -> bool:
        """Whether an answer may be one that was given before."""
        return not (self.stochastic or self.ledger is None or self.ledger.distrusted)

    @property
    def asked(self) -> int:
        """Images asked about so far."""
        return sum(asked for asked, _ in self.counts.values())

    @property
    def sent(self) -> int:
        """Images sent so far, those of failed attempts included."""
        return sum(sent for _, sent in self.counts.values())

    def _count(self, asked: int = 0, sent: int = 0) -> None:
        with self._lock:
            count = self.counts.setdefault(self._account, [0, 0])
            count[0] += asked
            count[1] += sent
        if self.ledger is not None:
            self.ledger.count(self._account, asked, sent)

    def _key(self) -> str:
        """What answers are kept under."""
        if self._kept_as is None:  # once: what answers may count its calls, and be the same
            # Labels that are asked of what gives scores are no answers of the same kind.
            apart = "" if self.reader.access is self.access else " labels"
            self._kept_as = self.digest() + apart
        return self._kept_as

    def _through(self, ledger: Ledger, pixels: Pixels) -> Logits:
        """Answers from the ledger, and from the victim where it has none; each image once."""
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
        if not keys:
            return np.zeros((0, self.classes or 1), dtype=np.float32)
        return np.stack([known[key] for key in keys])

    def _must_be_the_same(self, ledger: Ledger, name: str) -> None:
        """Stop where another model answers than the one whose answers the ledger holds.

        Looked at before the first image that is sent, and now and then, by one, after it.
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
                f"{self.name} answers an image differently now than when it was first asked: "
                "another model answers there, or it answers by chance. Say version= (or "
                "stochastic=True), or use another folder"
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
    """The victim behind a wall that a victim is or, under its layers, has."""
    source = victim.source
    return source if isinstance(source, BlackBox) else None


@contextmanager
def accounted(victim: Victim, name: str, *, fresh: bool = False) -> Iterator[None]:
    """Count what a victim is asked under a name, where anybody counts."""
    inner = black_box(victim)
    with nullcontext() if inner is None else inner.account(name, fresh=fresh):
        yield


@contextmanager
def afresh(victim: Victim) -> Iterator[None]:
    """Have a victim answer itself for a while, on the same account; its ledger serves nothing."""
    inner = black_box(victim)
    with nullcontext() if inner is None else inner.afresh():
        yield


@contextmanager
def labels_alone(victim: Victim) -> Iterator[None]:
    """Have a victim behind a wall asked for labels alone for a while; others grant what they do."""
    inner = black_box(victim)
    with nullcontext() if inner is None else inner.labels():
        yield


def know_classes(victim: Victim, classes: int, labels: Tensor) -> None:
    """Tell a victim that answers labels, or the first few, how many classes its data have."""
    inner = black_box(victim)
    if inner is None:
        return
    if inner.reader.access is Access.DECISION or inner.reader.top_k is not None:
        inner.declare(max(classes, int(labels.max()) + 1, 2))


def paid(victim: Victim) -> dict[str, tuple[int, int]] | None:
    """What a victim behind a wall was asked and sent, by account: in all runs with its ledger."""
    inner = black_box(victim)
    if inner is None:
        return None
    if inner.ledger is not None:
        return inner.ledger.accounts()
    return {name: (asked, sent) for name, (asked, sent) in inner.counts.items()}


def _fits(one: Kept, others: list[Kept]) -> bool:
    """Whether an image is not among others, and can be sent with them."""
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
    if isinstance(access, Access):
        return access
    levels = {str(level): level for level in Access}
    if access not in levels:
        raise InputError(f"access is {access!r}: {near(str(access), levels)}")
    return levels[access]
