"""The exceptions of besiege, and findings: warnings that are recorded, not raised."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Level = Literal["stop", "warning", "note"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels of findings, the most serious first."""


class BesiegeError(Exception):
    """Base class of everything besiege raises on purpose."""


# The text of this class is part of the digest of the layer `adapt`: an edit changes keys.
class InputError(BesiegeError):
    """Images, labels, targets or ids that cannot be attacked as given."""


class ThreatError(BesiegeError):
    """A threat, goal or budget that cannot be read or does not fit the attack."""


class UnknownNameError(BesiegeError):
    """A name that is not registered."""


class AttackError(BesiegeError):
    """An attack that cannot be built, or that breaks the contract of the siege."""


class AccessError(AttackError):
    """An attack that needs more access to the victim than the threat grants."""


class VictimError(BesiegeError):
    """A victim whose answers cannot be used: not logits, not finite, wrong shape."""


class UndefendedError(AttackError):
    """An attack that ignores a defense, on a model that has none."""


class StochasticError(VictimError):
    """A gradient attack on a stochastic victim without averaging over its randomness."""


class GradientError(VictimError):
    """A victim whose answer does not depend differentiably on the image."""


class ChangedError(VictimError):
    """A victim that changed during its evaluation."""


class EndpointError(VictimError):
    """A black-box victim that cannot be queried any more: gone, refusing, or answering nonsense.

    Its earlier answers are kept; the same run resumes from there.
    """


class BoundError(VictimError):
    """A victim whose answers cannot be bounded: an operation without a bound, or no network."""


class TrainingError(BesiegeError):
    """A training that cannot go on: its loss is not finite."""


class DataError(BesiegeError):
    """Data or weights that are missing, damaged or not what their digest says."""


class StoreError(BesiegeError):
    """A run folder that cannot be read or written as it must be."""


class GateError(BesiegeError):
    """Figures that no gate can be decided on: not complete, or not to be quoted."""


class ComparisonError(BesiegeError):
    """Evaluations that cannot be compared: other samples, other threats, or only one of them."""


@dataclass(frozen=True)
class Finding:
    """A warning about a result: which rule fired, what was seen, what to do about it.

    The ids are those of the rules in ``docs/warnings.md``. A ``stop`` means that a figure must not
    be quoted, a ``warning`` that it may be overstated; a ``note`` is for information.

    Examples
    --------
    >>> print(Finding("W13", "the model returns probabilities.", "Return logits."))
    W13: the model returns probabilities. Return logits.
    """

    id: str
    seen: str
    advice: str
    level: Level = "warning"

    @classmethod
    def stored(cls, content: Mapping[str, Any]) -> Finding:
        """A finding from a record or a figures file.

        Earlier versions wrote ``error`` for ``stop``.
        """
        level = content.get("level", "warning")
        return cls(**{**content, "level": "stop" if level == "error" else level})

    @property
    def rank(self) -> tuple[int, str]:
        """The key to sort findings by: the most serious first, then by id."""
        return LEVELS.index(self.level), self.id

    def __str__(self) -> str:
        return f"{self.id}: {self.seen} {self.advice}"


def described(problem: BaseException) -> str:
    """The type of an exception and the first line of its message, on one printable line."""
    try:
        message = (str(problem).strip().splitlines() or [""])[0]
    except Exception:  # `__str__` of another package's exception may raise, too
        message = ""
    message = "".join(letter if letter.isprintable() else " " for letter in message)
    message = message if len(message) <= 300 else message[:299] + "…"
    return f"{type(problem).__name__}: {message}" if message else type(problem).__name__


def get_close_matches(word: str, known: Iterable[str], n: int, cutoff: float) -> list[str]:
    """Known words like this one; of a long text the comparison would take seconds."""
    return difflib.get_close_matches(word[:200], list(known), n, cutoff)


# The text of this function is part of the digest of the layer `adapt`: an edit changes keys.
def near(name: str, known: Iterable[str]) -> str:
    """A half-sentence with the nearest known names, or with all of them when none is near."""
    names = sorted(set(known))
    folded = {n.casefold(): n for n in names}
    close = [folded[n] for n in get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "known: " + ", ".join(names) if names else "none are known"
