"""Whether a share of few images is above a limit, or may be so by the choice of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from besiege.core.errors import Finding
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.paired import paired_interval

Above = Literal["no", "cannot tell", "yes"]


class Apart(NamedTuple):
    """The images on which two attacks differ, of those that both were judged on.

    Attributes
    ----------
    fewer, more : int
        Images that only the second attack broke, and that only the first broke.
    judged : int
        Images that both were judged on.
    """

    fewer: int
    more: int
    judged: int

    @property
    def gain(self) -> float:
        """How much lower accuracy is under the second attack."""
        return (self.fewer - self.more) / self.judged if self.judged else 0.0

    @property
    def reversed(self) -> Apart:
        """The same with the first attack as the second."""
        return Apart(self.more, self.fewer, self.judged)


def share_above(hits: int, count: int, limit: float) -> Above:
    """Whether the share ``hits / count`` of all such images is above a limit.

    Yes if the exact 95 % interval lies above, for more than a single image, which is no pattern. No
    if the share itself is not above. Otherwise the choice of images may be the reason.

    Examples
    --------
    >>> [share_above(hits, 60, 0.01) for hits in (0, 1, 3)]
    ['no', 'cannot tell', 'yes']
    """
    if not count or hits <= limit * count:
        return "no"
    return "yes" if hits > 1 and clopper_pearson(hits, count)[0] > limit else "cannot tell"


def gain_above(apart: Apart, limit: float) -> Above:
    """Whether the second attack lowers accuracy by more than a limit, on all such images.

    Yes if the 95 % interval of the paired difference lies above (Tango's score interval). No if the
    difference itself is not above.

    Examples
    --------
    >>> [gain_above(Apart(fewer, 0, 60), 0.05) for fewer in (3, 4, 9)]
    ['no', 'cannot tell', 'yes']
    """
    if not apart.judged or apart.fewer - apart.more <= limit * apart.judged:
        return "no"
    return "yes" if paired_interval(*apart)[0] > limit else "cannot tell"


def weighed(above: Above, count: int, finding: Finding) -> Iterator[Finding]:
    """A finding, as a note where so many images cannot tell it from chance.

    What is a note anyway is then left out: it is about one attack's own figure.
    """
    if above == "yes":
        yield finding
    elif above == "cannot tell" and finding.level != "note":
        seen = f"{finding.seen} On {count:,} images, that may be chance."
        yield replace(finding, seen=seen, level="note")
