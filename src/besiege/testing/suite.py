"""The conformance suite: every law for every norm and goal an attack declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import shorten
from typing import NamedTuple

from besiege.attacks.attack import Attack, parse
from besiege.attacks.combine import Combined
from besiege.core.attack_registry import ATTACKS
from besiege.core.errors import AccessError
from besiege.core.threat import Goal, Norm
from besiege.testing.allowances import EXCEPTIONS, Exceptions, excused
from besiege.testing.law_violation import LawViolation
from besiege.testing.laws import LAWS
from besiege.testing.trial import Shelf


class Case(NamedTuple):
    """A law by name, and the norm and goal it is tried with; prints as a readable id."""

    law: str
    norm: Norm
    goal: Goal

    def __str__(self) -> str:
        return f"{LAWS[self.law].number}-{self.law}-{self.norm}-{self.goal}"

    def check(
        self, attack: str | Attack, exceptions: Exceptions | None = None, shelf: Shelf | None = None
    ) -> str | None:
        """Try the law, or return the reason for which the attack is excepted from it.

        Parameters
        ----------
        attack : str or Attack
            What is tried.
        exceptions : mapping, optional
            Attack name to law or ``law:part`` to a written reason, besides `EXCEPTIONS`.
        shelf : dict, optional
            Empty at first, and the same one for all cases of an attack: results that several laws
            need are then crafted once. Without it a case shares nothing.
        """
        attack = parse(attack)
        _well_formed(attack)
        granted = {**EXCEPTIONS, **(exceptions or {})}
        reason = excused(attack, self.law, granted)
        if reason is not None:
            return reason
        law = LAWS[self.law]
        without = [p for p in law.parts if excused(attack, f"{self.law}:{p}", granted) is not None]
        law(attack, self.norm, self.goal, without=without, shelf=shelf)
        return None


class Conformance(list[Case]):
    """The cases an attack was tried on; prints as a sentence.

    Attributes
    ----------
    attack : Attack
        What was tried.
    excepted : tuple of str
        Laws it was not held to, because of a written reason.
    """

    def __init__(self, attack: Attack, tried: Iterable[Case], excepted: Iterable[str]) -> None:
        super().__init__(tried)
        self.attack = attack
        self.excepted = tuple(excepted)

    def __repr__(self) -> str:
        held = [case.law for case in self if case.law not in self.excepted]
        but = f", and is excepted from {', '.join(self.excepted)}" if self.excepted else ""
        return f"{self.attack} obeys {len(set(held))} laws in {len(held)} cases{but}"


def cases(attack: str | Attack) -> Iterator[Case]:
    """The cases of an attack: every law, in every norm, for every goal it declares.

    The first goal is tried with every norm, and every other goal with one norm in turn, so that the
    suite stays fast: a law that holds for a norm and for a goal holds for the pair.

    Examples
    --------
    >>> from besiege.testing import cases
    >>> str(next(iter(cases("pgd"))))
    '1-feasible-linf-untargeted'
    """
    attack = parse(attack)
    norms = [norm for norm in Norm if norm in attack.norms]
    goals = [goal for goal in Goal if goal in attack.goals]
    pairs = [(norm, goals[0]) for norm in norms]
    pairs += [(norms[turn % len(norms)], goal) for turn, goal in enumerate(goals[1:])]
    for law in LAWS:
        for norm, goal in pairs:
            yield Case(law, norm, goal)


def conform(attack: str | Attack, exceptions: Exceptions | None = None) -> Conformance:
    """Hold an attack to all laws; raises one `AssertionError` that lists every law it breaks.

    An exception of the attack itself ends the trial at once, with the line it came from.

    Parameters
    ----------
    attack : str or Attack
        Such as ``"pgd"`` or ``"path/to/file.py:MyAttack"``. Parameters called ``steps``,
        ``restarts`` and the like are reduced where a law is about bookkeeping. An attack that
        calls them otherwise is tried as it is, so pass a short one.
    exceptions : mapping, optional
        Attack name to law, or ``law:part``, to a written reason.

    Returns
    -------
    Conformance
        A list of what was tried.

    Examples
    --------
    >>> from besiege.testing import conform
    >>> conform("path/to/file.py:MyAttack")  # doctest: +SKIP
    """
    attack = parse(attack)
    _well_formed(attack)
    tried, excepted = list(cases(attack)), dict[str, str]()
    breaches: dict[str, list[tuple[Case, str]]] = {}
    shelf: Shelf = {}
    for case in tried:
        try:
            reason = case.check(attack, exceptions, shelf)
        except LawViolation as breach:
            problem = breach.__cause__
            if problem is not None and not _is_breach(case, problem):
                raise AssertionError(
                    f"{attack} could not be tried ({case.norm} {case.goal}): {breach.seen}"
                ) from problem
            breaches.setdefault(case.law, []).append((case, breach.seen))
        else:
            if reason is not None:
                excepted[case.law] = reason
    if breaches:
        many = sum(map(len, breaches.values()))
        lines = [_line(law, seen) for law, seen in breaches.items()]
        raise AssertionError(
            "\n".join([f"{attack} breaks the laws in {many} of {len(tried)} cases:", *lines])
        )
    return Conformance(attack, tried, excepted)


def _well_formed(attack: Attack) -> None:
    """Demand what every law needs: a frozen dataclass with a docstring."""
    kind = type(attack)
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise AssertionError(
            f"{kind.__name__} is not a frozen dataclass: write @dataclass(frozen=True) above it"
        )
    doc = (kind.__doc__ or "").strip()
    # Where there is no docstring, `dataclass` writes the signature.
    if not doc or doc.startswith(f"{kind.__name__}("):
        raise AssertionError(
            f"{kind.__name__} has no docstring: say what it does and where it comes from"
        )


def _is_breach(case: Case, problem: BaseException) -> bool:
    """Whether an exception breaks a law: too much access, or an unusual shape refused."""
    return isinstance(problem, AccessError) or case.law == "scale_and_classes"


def _line(law: str, breaches: list[tuple[Case, str]]) -> str:
    """The first violation of a law, and the cases with violations."""
    places = [f"{case.norm} {case.goal}" for case, _ in breaches]
    shown = ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")
    many = f"{len(places)} case{'s' if len(places) > 1 else ''}"
    seen = shorten(breaches[0][1], 300, placeholder=" ...")
    return f"law {LAWS[law].number} ({law}): {seen} ({many}: {shown})"


def registered() -> list[Attack]:
    """Every registered attack that can be built by its bare name and attacks any victim.

    Left out are combinators, and attacks of a victim behind a certain layer (`Attack.needs_layer`),
    whose laws are tried on such victims in tests of their own.
    """
    alone = [
        parse(name)
        for name, thing in ATTACKS.items()
        if not (isinstance(thing, type) and issubclass(thing, Combined))
    ]
    return [attack for attack in alone if not attack.needs_layer]
