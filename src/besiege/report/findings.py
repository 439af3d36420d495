"""The warnings of a run: every rule once, with the evaluations it concerns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from besiege.core.errors import LEVELS, Finding, Level
from besiege.core.rules import CODED, FOLLOW, SURROGATE, TITLES, faults
from besiege.metrics.values import EvaluationFigures as Evaluation


@dataclass(frozen=True)
class Alike:
    """Findings of one rule that differ in their numbers only.

    Attributes
    ----------
    found : tuple of (int, Finding)
        Each finding, with the place of its evaluation in the run.
    """

    found: tuple[tuple[int, Finding], ...]

    @property
    def first(self) -> Finding:
        return self.found[0][1]

    @property
    def evaluations(self) -> tuple[int, ...]:
        """The places of the evaluations, ascending."""
        return tuple(dict.fromkeys(place for place, _ in self.found))

    @property
    def likewise(self) -> str:
        """What the rule saw of other attacks of the same evaluation, to follow the first."""
        place, first = self.found[0]
        others = {
            _QUOTED.findall(one.seen)[0]: _amount(one.seen)
            for where, one in self.found
            if where == place and one.seen != first.seen and _QUOTED.search(one.seen)
        }
        parts = [f"{amount} for {name}" if amount else name for name, amount in others.items()]
        return f" Likewise {', '.join(parts)}." if parts else ""

    @property
    def differ(self) -> bool:
        """Whether not all of them are the same, word for word."""
        return len({(one.seen, one.advice) for _, one in self.found}) > 1

    @property
    def numbers_differ(self) -> bool:
        """Whether they differ in more than the names of attacks."""
        return len({_QUOTED.sub("'", f"{one.seen} {one.advice}") for _, one in self.found}) > 1

    def attacks(self, *evaluations: int) -> tuple[str, ...]:
        """The attacks that the rule names first, in some of its evaluations, with their quotes."""
        named = [_QUOTED.findall(one.seen)[:1] for place, one in self.found if place in evaluations]
        return tuple(dict.fromkeys(name for names in named for name in names))


@dataclass(frozen=True)
class Rule:
    """A rule that fired, at the most serious level of its findings.

    Attributes
    ----------
    id, title : str
        Its id, and what it is about in a few words; empty for a rule of another package.
    level : str
        ``stop``, ``warning`` or ``note``.
    groups : tuple of Alike
        What it found.
    """

    id: str
    title: str
    level: Level
    groups: tuple[Alike, ...]

    @property
    def label(self) -> str:
        """Id and level; rules about missing records are named after what is the matter."""
        return f"{self.id} {self.level}" if self.id[-1:].isdigit() else self.id

    @property
    def anchor(self) -> str:
        """Its place on the page, for links."""
        return "rule-" + (re.sub(r"\W+", "-", self.id).strip("-") or "other")

    @property
    def evaluations(self) -> tuple[int, ...]:
        """The places of all evaluations it concerns, ascending."""
        return tuple(sorted({place for group in self.groups for place in group.evaluations}))


def rules(evaluations: Sequence[Evaluation]) -> list[Rule]:
    """The rules that fired in a run, the most serious first."""
    groups: dict[str, dict[str, list[tuple[int, Finding]]]] = {}
    for place, evaluation in enumerate(evaluations):
        for finding in evaluation.warnings:
            alike = groups.setdefault(finding.id, {})
            alike.setdefault(_pattern(finding), []).append((place, finding))
    found = [
        _rule(id, [Alike(tuple(one)) for one in alike.values()]) for id, alike in groups.items()
    ]
    return sorted(found, key=lambda rule: (LEVELS.index(rule.level), rule.id))


def next_steps(evaluations: Sequence[Evaluation]) -> list[tuple[str, str, str]]:
    """What to run next: rules, what to do first, and the command of their advice, each once."""
    found: dict[tuple[str, str], list[str]] = {}
    for evaluation in evaluations:
        for step in evaluation.next_steps:
            found.setdefault((step.first, step.command), []).extend(step.rules)
    return [(", ".join(sorted(set(ids))), *step) for step, ids in found.items()]


def following(found: Sequence[Rule], evaluations: Sequence[Evaluation]) -> list[Rule]:
    """The rules that fired only because a model has a fault."""
    broken = {place for place, one in enumerate(evaluations) if faults(one.warnings)}
    return [rule for rule in found if rule.id in FOLLOW and broken.issuperset(rule.evaluations)]


def example(evaluations: Sequence[Evaluation]) -> str:
    """The code that the advice of the findings comes down to; empty where there is none."""
    found = {id for one in evaluations for id in faults(one.warnings)}
    return SURROGATE if found.intersection(CODED) else ""


def _rule(id: str, groups: list[Alike]) -> Rule:
    ordered = sorted(groups, key=lambda group: group.first.rank)
    return Rule(id, TITLES.get(id, ""), ordered[0].first.level, tuple(ordered))


def _pattern(finding: Finding) -> str:
    """A finding without its numbers and the names of attacks."""
    return re.sub(r"\d[\d,.]*", "#", _QUOTED.sub("'", f"{finding.level} {finding.seen}"))


_QUOTED = re.compile(r"'[^']*'")


def _amount(seen: str) -> str:
    """The numbers of a sentence: ``7 of 29``; not those in the names of attacks."""
    numbers = re.findall(r"\d(?:[\d,.]*\d)?(?: %)?", _QUOTED.sub("'", seen).rstrip("."))
    return " of ".join(numbers) if len(numbers) < 3 else ", ".join(numbers)


_ASIDE = {"stop": " (not to be quoted)"}


def counted(found: Sequence[Rule]) -> list[tuple[str, list[Rule]]]:
    """The rules of each level, with their number in words: ``2 warnings``.

    Examples
    --------
    >>> rule = Rule("W11", "Vanished gradient", "warning", ())
    >>> [(words, [one.id for one in some]) for words, some in counted([rule])]
    [('1 warning', ['W11'])]
    """
    levels = {level: [rule for rule in found if rule.level == level] for level in LEVELS}
    return [
        (f"{len(some)} {level}{'s' if len(some) > 1 else ''}{_ASIDE.get(level, '')}", some)
        for level, some in levels.items()
        if some
    ]


def summary(found: Sequence[Rule]) -> str:
    """The rules that fired in one line: ``2 warnings: W05, W11; 1 note: W24``."""
    return "; ".join(
        f"{words}: {', '.join(rule.id for rule in some)}" for words, some in counted(found)
    )
