"""What an attacker may do: norm, budget, goal and access, as text that parses back exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import NamedTuple, TypeVar

from besiege.core.errors import Finding, InputError, ThreatError, near
from besiege.core.text import MOST, check_whole, number, short, whole

E = TypeVar("E", bound=Enum)


class Norm(Enum):
    """How the size of a perturbation is measured."""

    Linf = "linf"
    L2 = "l2"
    L1 = "l1"
    L0 = "l0"

    def __str__(self) -> str:
        return self.value

    @property
    def order(self) -> float:
        """Its order p: the norm is the p-th root of the sum of p-th powers, for 0 a count."""
        return _FACTS[self].order

    @property
    def spread(self) -> float:
        """The power of the number of pixel values by which an evenly spread perturbation grows."""
        return 1 / (self.order or 1)

    @property
    def example(self) -> str:
        """A usual threat in this norm."""
        return _FACTS[self].example

    def allowance(self, size: str, radius: float, box: tuple[float, float], values: int) -> str:
        """What a budget of this size allows, as a sentence about images of so many values."""
        low, high = box
        grey = 255 * radius / values**self.spread / (high - low)
        return _FACTS[self].allows.format(size=size, low=low, high=high, grey=grey)


class _Facts(NamedTuple):
    order: float
    example: str
    allows: str


_FACTS = {
    Norm.Linf: _Facts(
        math.inf,
        "linf:8/255",
        "Every pixel value may change by at most {size} (pixels range from {low:g} to {high:g}; "
        "that is about {grey:.3g} of 255 grey levels).",
    ),
    Norm.L2: _Facts(
        2.0,
        "l2:0.5",
        "The perturbation, a vector of all pixel values, may have an l2 norm of at most {size} "
        "(spread evenly, about {grey:.2g} of 255 grey levels per value).",
    ),
    Norm.L1: _Facts(1.0, "l1:12", "The changes of all pixel values may add up to at most {size}."),
    Norm.L0: _Facts(0.0, "l0:20", "At most {size} pixel values may change, each by any amount."),
}

Linf, L2, L1, L0 = Norm
ALL_NORMS = frozenset(Norm)


class Access(IntEnum):
    """What the victim answers: each level includes the ones before it."""

    DECISION = 1
    SCORE = 2
    GRADIENT = 3

    def __str__(self) -> str:
        return self.name.lower()


CLASS = "targeted:class="
"""The beginning of a goal that is one class for every image; its number follows."""


class Goal(Enum):
    """What counts as a success: any error, or one class chosen by a rule.

    `GIVEN` targets come with the images, or the threat names one class for all (`Threat.target`).
    """

    UNTARGETED = "untargeted"
    RANDOM = "targeted:random"
    LEAST_LIKELY = "targeted:least-likely"
    SECOND = "targeted:second"
    GIVEN = "targeted:given"

    @property
    def targeted(self) -> bool:
        return self is not Goal.UNTARGETED

    def __str__(self) -> str:
        return self.value


ALL_GOALS = frozenset(Goal)

_SMALLEST = Fraction(1, 2**126)
"""The smallest normal float32 number: no image can use a smaller budget."""
_BITS = 256
"""Bits of a budget's numerator and denominator: enough for every float32 number."""


@dataclass(frozen=True)
class Threat:
    """Norm, budget, goal and access of one attacker.

    Parameters
    ----------
    norm : Norm
        How a perturbation is measured.
    eps : Fraction, float or None
        The largest perturbation allowed, kept as an exact fraction; None searches for the smallest
        one that succeeds.
    goal : Goal
        What counts as a success.
    access : Access
        What the victim answers.
    target : int, optional
        The class that every image must become; the goal is then `Goal.GIVEN`.

    Examples
    --------
    >>> str(Threat.parse("linf:8/255"))
    'linf:8/255'
    >>> Threat.parse("l2:0.5 targeted:random score")
    Threat('l2:0.5 targeted:random score')
    >>> Threat.parse("linf").eps is None
    True
    >>> Threat.parse("linf:8/255 targeted:class=3").target
    3
    """

    norm: Norm
    eps: Fraction | float | None = None
    goal: Goal = Goal.UNTARGETED
    access: Access = Access.GRADIENT
    written: str | None = field(default=None, compare=False, repr=False)
    """The budget as it was written; equal budgets may be written in several ways."""
    target: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", _member(Norm, self.norm, "norm"))
        object.__setattr__(self, "goal", _member(Goal, self.goal, "goal"))
        self._check_target()
        if not isinstance(self.access, Access):
            raise ThreatError(f"access is {self.access!r}, but one of {[*Access]} is expected")
        if self.eps is None:
            return
        eps = as_fraction(self.eps)
        object.__setattr__(self, "eps", eps)
        self._check_size(eps)
        if self.written is None or number(self.written) != eps:
            object.__setattr__(self, "written", _show(eps))
        if self.norm is L0 and eps.denominator != 1:
            raise ThreatError(
                f"the l0 budget is {_show(eps)}, but it counts changed pixel values: "
                "write a whole number, for example 'l0:20'"
            )

    def _check_target(self) -> None:
        """Refuse a target class beside another goal; it makes an untargeted goal a given one."""
        if self.target is None:
            return
        try:
            check_whole(self.target, "the target class", 0)
        except InputError as problem:
            raise ThreatError(str(problem)) from None
        if self.goal not in (Goal.UNTARGETED, Goal.GIVEN):
            raise ThreatError(
                f"the target class is {self.target}, but the goal is '{self.goal}': give one"
            )
        object.__setattr__(self, "goal", Goal.GIVEN)

    def _check_size(self, eps: Fraction) -> None:
        """Refuse a budget that is not positive, or that float32 images cannot use."""
        example = f"write for example '{self.norm}:{20 if self.norm is L0 else '8/255'}'"
        if eps <= 0:
            why = "but a budget cannot be negative" if eps else "which changes nothing"
        elif not _SMALLEST <= eps <= 1 / _SMALLEST:
            why = "which float32 pixels cannot hold"
        elif max(eps.numerator, eps.denominator).bit_length() > _BITS:
            why = "which has too many digits"
        else:
            return
        raise ThreatError(f"the budget is {_about(eps)}, {why}: {example}")

    @classmethod
    def parse(cls, text: str | Threat) -> Threat:
        """Parse ``NORM[:EPS] [GOAL] [ACCESS]``; the defaults are untargeted and gradient."""
        if isinstance(text, Threat):
            return text
        if not isinstance(text, str):
            raise ThreatError(f"a threat is text such as 'linf:8/255', not {type(text).__name__}")
        return _parsed(text)

    def __str__(self) -> str:
        text = str(self.norm) if self.eps is None else f"{self.norm}:{self.written}"
        if self.goal is not Goal.UNTARGETED:
            text += f" {self.aim}"
        if self.access is not Access.GRADIENT:
            text += f" {self.access}"
        return text

    def __repr__(self) -> str:
        return f"Threat('{self}')"

    @property
    def aim(self) -> str:
        """The goal as text, with the class where there is one."""
        return str(self.goal) if self.target is None else f"{CLASS}{self.target}"

    @property
    def radius(self) -> float:
        """The budget as a number, infinite when the smallest perturbation is searched for."""
        return float("inf") if self.eps is None else float(self.eps)

    def check_units(self, box: tuple[float, float], values: int) -> None:
        """Refuse a budget below float32 resolution, or one that turns any image into any other."""
        if self.eps is None or self.norm is L0:
            return
        width = box[1] - box[0]
        far = width * values ** {Linf: 0.0, L2: 0.5}.get(self.norm, 1.0)
        if self.radius < width * 2.0**-24:
            raise ThreatError(
                f"the budget of '{self}' is below {width * 2.0**-24:.1g}, the distance of float32 "
                f"numbers near {box[1]:g}: most pixels could not change; use a larger one"
            )
        if self.radius < far * (1 - 1e-9):
            return
        advice = "Use a smaller one"
        if self.norm is not L1:
            meant = Threat(self.norm, as_fraction(self.eps) / 255)
            advice = f"If it is in units of 1/255, write '{meant}'"
        raise ThreatError(
            f"the budget of '{self}' is {self.radius:g}, but {far:.4g} turns any image into any "
            f"other: pixels range from {box[0]:g} to {box[1]:g}. {advice}"
        )

    def findings(self, box: tuple[float, float]) -> list[Finding]:
        """A warning when the budget is probably a mistake: half the range, or meant for [0, 1]."""
        width = box[1] - box[0]
        if self.eps is None or self.norm is L0:
            return []
        if width > 16 and self.radius < 1:
            meant = _show(as_fraction(self.eps) * as_fraction(width))
            return [
                Finding(
                    "W28",
                    f"the budget {self} is {self.radius / width:.2g} of the range of a pixel value "
                    f"of this model, {box[0]:g} to {box[1]:g}.",
                    f"If it was meant for images in [0, 1], write '{self.norm}:{meant}'.",
                )
            ]
        if self.norm is not Linf or self.radius < 0.5 * width:
            return []
        seen = f"the budget {self} spans half of the pixel range {box} or more."
        advice = "Any image fits such a budget; use a smaller one."
        if self.radius >= width:
            meant = _show(as_fraction(self.eps) / 255)
            advice = f"If it is in units of 1/255, write 'linf:{meant}' instead."
        return [Finding("W28", seen, advice)]


@lru_cache(maxsize=256)  # a run asks for the threats of its plans again and again
def _parsed(text: str) -> Threat:
    words = text.split()
    if not words:
        raise ThreatError("the threat is empty: write for example 'linf:8/255'")
    text = short(text)  # as messages quote it
    name, colon, budget = words[0].partition(":")
    _must_have_norm(words[0], text)
    norm = _member(Norm, name, "norm", f" in the threat '{text}'")
    eps = _parse_eps(budget, text) if colon else None
    goals = {g.value: g for g in Goal}
    levels = {str(a): a for a in Access}
    targets = {word: _class(word, text) for word in words[1:] if word.startswith(CLASS)}
    for word in words[1:]:
        if word not in goals and word not in levels and word not in targets:
            raise ThreatError(
                f"'{short(word)}' in the threat '{text}' is neither a goal nor an access: "
                + near(word, [*goals, f"{CLASS}3", *levels])
            )
    chosen = [goals.get(word, Goal.GIVEN) for word in words[1:] if word not in levels]
    granted = [levels[word] for word in words[1:] if word in levels]
    if len(chosen) > 1 or len(granted) > 1:
        raise ThreatError(f"the threat '{text}' names two goals or two accesses: choose one")
    goal, access = [*chosen, Goal.UNTARGETED][0], [*granted, Access.GRADIENT][0]
    target = next(iter(targets.values()), None)
    return Threat(norm, eps, goal, access, budget if colon else None, target)


def _member(kind: type[E], name: object, what: str, where: str = "") -> E:
    try:
        return kind(name)
    except ValueError:
        known = near(str(name), [str(member.value) for member in kind])
        raise ThreatError(f"'{short(str(name))}'{where} is not a {what}: {known}") from None


def _must_have_norm(word: str, text: str) -> None:
    """Refuse a budget without a norm with the threat that was probably meant."""
    try:
        number(word)
    except InputError:
        return
    raise ThreatError(
        f"the threat '{text}' is a budget without a norm: write 'linf:{word}', or 'l2:{word}'"
    )


def _class(word: str, text: str) -> int:
    try:
        return whole(word.removeprefix(CLASS), "the class", 0, MOST)
    except InputError:
        raise ThreatError(
            f"'{short(word)}' in the threat '{text}' does not name a class: write its number, for "
            f"example '{CLASS}3'; target_class= takes names, too"
        ) from None


def _parse_eps(budget: str, text: str) -> Fraction:
    try:
        return number(budget)
    except InputError:
        raise ThreatError(
            f"'{short(budget)}' in the threat '{text}' is not a budget: "
            "write a number or a fraction, for example 'linf:8/255' or 'l2:0.5'"
        ) from None


def as_fraction(eps: Fraction | float) -> Fraction:
    """A size as an exact fraction.

    Examples
    --------
    >>> as_fraction(8 / 255), as_fraction(0.3)
    (Fraction(8, 255), Fraction(3, 10))
    """
    if isinstance(eps, Fraction):
        return eps
    try:
        value = float(eps)
        # A float that equals a multiple of 1/255 means that fraction: 8/255 has no short decimal.
        pixels = round(value * 255)
        if pixels / 255 == value:
            return Fraction(pixels, 255)
        return Fraction(repr(value))
    except (TypeError, ValueError, OverflowError):
        raise ThreatError(
            f"the budget is {eps!r}, but a budget is a finite number such as 8/255"
        ) from None


def written_unit(norm: str, written: str | None) -> int | None:
    """The denominator of distances: 255 where the budget was written that way.

    Examples
    --------
    >>> written_unit("linf", "8/255"), written_unit("linf", "0.1"), written_unit("l2", "128/255")
    (255, None, None)
    """
    return 255 if norm == "linf" and (written or "").endswith("/255") else None


def _about(eps: Fraction) -> str:
    try:
        return f"{float(eps):.3g}"
    except OverflowError:
        return "beyond all numbers"


def _show(eps: Fraction) -> str:
    rest = eps.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest == 1:
        return f"{eps.numerator}" if eps.denominator == 1 else _decimal(eps)
    if 255 % eps.denominator == 0:
        return f"{eps * 255}/255"
    return f"{eps.numerator}/{eps.denominator}"


def _decimal(eps: Fraction) -> str:
    places = next(p for p in count(1) if (eps * 10**p).denominator == 1)
    scaled = str(abs((eps * 10**places).numerator)).rjust(places + 1, "0")
    return f"{'-' if eps < 0 else ''}{scaled[:-places]}.{scaled[-places:]}"
