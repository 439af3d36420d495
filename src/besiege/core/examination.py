"""The examination of a model and of its evaluation, as values: checks, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from besiege.core.errors import Finding, Level

Outcome = Literal["passed", "failed", "not applicable", "not run"]
Enough = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    Attributes
    ----------
    name : str
        What must hold, in a few words: ``gradients are those of the answers``.
    outcome : {"passed", "failed", "not applicable", "not run"}
        ``not applicable``: there is nothing to check, such as gradients of a black box.
    number : str
        The one number that the outcome rests on, in words: ``80 of 80 slopes``.
    seen : str
        A sentence: what is wrong where it failed, why it was not run otherwise.
    advice : str
        What to do next; commands can be pasted.
    rule : str
        The rule of ``docs/warnings.md`` that a failed check is a finding of; empty where a rule
        reports it by itself.
    level : {"stop", "warning", "note"}
        How serious it is if it failed.
    """

    name: str
    outcome: Outcome
    number: str = ""
    seen: str = ""
    advice: str = ""
    rule: str = ""
    level: Level = "stop"

    @property
    def finding(self) -> Finding | None:
        """The finding of a failed check."""
        if self.outcome != "failed" or not self.rule:
            return None
        return Finding(self.rule, self.seen, self.advice, self.level)


@dataclass(frozen=True)
class Examination:
    """All checks of an evaluation.

    Examples
    --------
    >>> passed = Check("one image, one answer", "passed", "16 of 16 images")
    >>> Examination((passed,)).enough
    'yes'
    >>> Examination((passed, Check("attacks are strong enough", "not run"))).enough
    'unknown'
    """

    checks: tuple[Check, ...]

    @property
    def findings(self) -> list[Finding]:
        """The findings of the failed checks."""
        return [one.finding for one in self.checks if one.finding is not None]

    @property
    def answer(self) -> str:
        """The outcome in a sentence."""
        return {
            "yes": "This evaluation is strong enough as far as the checks can tell.",
            "no": "This evaluation is not strong enough: its figures must not be quoted.",
            "unknown": "Whether this evaluation is strong enough is unknown.",
        }[self.enough]

    @property
    def counted(self) -> str:
        """How many checks had each outcome."""
        outcomes = [one.outcome for one in self.checks]
        counts = {outcome: outcomes.count(outcome) for outcome in get_args(Outcome)}
        listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        return f"{len(outcomes)} checks: {listed}."

    @property
    def enough(self) -> Enough:
        """Whether the evaluation is strong enough: yes if every check that applies passed.

        No where a failed check says that figures must not be quoted; unknown in between.
        """
        if any(one.outcome == "failed" and one.level == "stop" for one in self.checks):
            return "no"
        outcomes = {one.outcome for one in self.checks} - {"not applicable"}
        return "yes" if outcomes == {"passed"} else "unknown"
