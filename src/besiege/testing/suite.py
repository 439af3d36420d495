"""The conformance suite: every law for every norm and goal an attack declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from besiege.attacks.attack import Attack, parse
from besiege.attacks.combine import Combined
from besiege.core.siege import ATTACKS
from besiege.core.threat import Goal, Norm
from besiege.testing.allowances import EXCEPTIONS, Exceptions, excused
from besiege.testing.laws import LAWS


class Case(NamedTuple):
    """A law by name, and the norm and goal it is tried with; prints as a readable id."""

    law: str
    norm: Norm
    goal: Goal

    def __str__(self) -> str:
        return f"{LAWS[self.law].number}-{self.law}-{self.norm}-{self.goal}"

    def check(self, attack: str | Attack, exceptions: Exceptions | None = None) -> str | None:
        """Try the law, or give back the reason for which the attack is excepted from it.

        Parameters
        ----------
        attack : str or Attack
            What is tried.
        exceptions : mapping, optional
            Attack name to law or ``law:part`` to a written reason, besides `EXCEPTIONS`.
        """
        attack = parse(attack)
        granted = {**EXCEPTIONS, **(exceptions or {})}
        reason = excused(attack, self.law, granted)
        if reason is not None:
            return reason
        law = LAWS[self.law]
        without = [p for p in law.parts if excused(attack, f"{self.law}:{p}", granted) is not None]
        law(attack, self.norm, self.goal, without=without)
        return None


def cases(attack: str | Attack) -> Iterator[Case]:
    """What an attack is tried on: every law, in every norm, for every goal it declares.

    The first goal meets every norm, and every other goal one norm in turn: laws that hold for
    each of both do not fail for a pair, and the suite stays quick.

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


def conform(attack: str | Attack, exceptions: Exceptions | None = None) -> list[Case]:
    """Hold an attack to all laws; raises one `AssertionError` that tells every breach.

    Parameters
    ----------
    attack : str or Attack
        Such as ``"pgd"`` or ``"path/to/file.py:MyAttack"``. Parameters called ``steps``,
        ``restarts`` and the like are cut where a law is about bookkeeping; an attack that calls
        them otherwise is tried as it is, so hand in a short one.
    exceptions : mapping, optional
        Attack name to law, or ``law:part``, to a written reason.

    Returns
    -------
    list of Case
        What was tried.

    Examples
    --------
    >>> from besiege.testing import conform
    >>> conform("path/to/file.py:MyAttack")  # doctest: +SKIP
    """
    attack = parse(attack)
    tried, breaches = list(cases(attack)), []
    for case in tried:
        try:
            case.check(attack, exceptions)
        except AssertionError as breach:
            breaches.append(str(breach))
    if breaches:
        raise AssertionError(
            f"{attack} breaks the laws in {len(breaches)} of {len(tried)} cases:\n"
            + "\n".join(breaches)
        )
    return tried


def registered() -> list[Attack]:
    """Every registered attack that can be built by its bare name: all but the combinators."""
    return [
        parse(name)
        for name, thing in ATTACKS.items()
        if not (isinstance(thing, type) and issubclass(thing, Combined))
    ]
