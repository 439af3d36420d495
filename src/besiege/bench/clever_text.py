"""The text of a CLEVER estimate, such as ``clever(batches=100, samples=256, radius=5)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from besiege.core.errors import InputError
from besiege.core.fields import check_fields, number, whole_number
from besiege.core.registry import Registry
from besiege.core.text import read
from besiege.core.vocabulary import Vocabulary
from besiege.metrics.extremes import LEAST

PUBLISHED = "clever@weng"
"""The batches and points of the publication."""
_RADII = {"l2": 5.0, "linf": 0.3}


@dataclass(frozen=True)
class Clever:
    """How gradients are sampled for CLEVER, an estimate of the distance to the decision boundary.

    Parameters
    ----------
    batches, samples : int
        Batches for every image, whose maxima are fitted, and points in each.
    radius : float, optional
        The radius of the ball around the image, and the largest score, in pixel values; by default
        5 in l2 and 0.3 in linf, times the width of the model's box.

    Examples
    --------
    >>> read_clever("clever(batches=50)").of("l2")
    Clever(batches=50, samples=256, radius=5.0)
    """

    batches: int = whole_number(100, LEAST)
    samples: int = whole_number(256)
    radius: float | None = number(None, above=0)

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, norm: str, width: float = 1.0) -> Clever:
        """The same with the radius usual in a norm and a box so wide, where none is given."""
        if self.radius is not None:
            return self
        if norm not in _RADII:
            raise InputError(
                f"CLEVER has no usual radius in {norm}: write one, such as clever(radius=20)"
            )
        return Clever(self.batches, self.samples, _RADII[norm] * width)

    @property
    def text(self) -> str:
        """The text that `read_clever` turns into an equal value."""
        return _WORDS.text(self)


_CLEVERS: Registry[Any] = Registry("estimate")
_CLEVERS.add("clever", Clever)
_WORDS = Vocabulary(_CLEVERS)


def read_clever(text: str) -> Clever:
    """The settings of a text; ``clever@weng`` has those of the publication.

    Examples
    --------
    >>> read_clever("clever@weng").text
    'clever(batches=500, samples=1024)'
    """

    def made(name: str, args: list[Any], given: dict[str, Any]) -> Any:
        if name == PUBLISHED:
            return _WORDS.make("clever", args, {"batches": 500, "samples": 1024, **given})
        if "@" in name:
            raise InputError(f"'{name}' is unknown: write clever, or {PUBLISHED}")
        return _WORDS.make(name, args, given)

    found = read(text, made)
    if not isinstance(found, Clever):
        raise InputError(f"'{text}' is no estimate: write clever, or clever(batches=100)")
    return found


def clever_of(given: bool | str) -> str | None:
    """The text of an estimate that is requested by a yes, by a text, or not at all.

    Examples
    --------
    >>> clever_of(True), clever_of("clever(radius=2)"), clever_of(False)
    ('clever', 'clever(radius=2)', None)
    """
    if given is False:
        return None
    return Clever().text if given is True else read_clever(given).text
