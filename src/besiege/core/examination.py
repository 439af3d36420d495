"""The examination of a model and of its evaluation, as values: checks, and what they amount to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from besiege.core.errors import Finding

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
        The rule of ``docs/warnings.md`` that a failed check is a finding of.
    """

    name: str
    outcome: Outcome
    number: str = ""
    seen: str = ""
    advice: str = ""
    rule: str = ""

    @property
    def finding(self) -> Finding | None:
        """The finding of a failed check: its figures must not be quoted."""
        if self.outcome != "failed":
            return None
        return Finding(self.rule, self.seen, self.advice, "stop")


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
    def enough(self) -> Enough:
        """Whether the evaluation is strong enough: no with a failed check, yes if all passed."""
        outcomes = {check.outcome for check in self.checks}
        if "failed" in outcomes:
            return "no"
        return "unknown" if "not run" in outcomes or "passed" not in outcomes else "yes"


def findings(checks: Iterable[Check]) -> list[Finding]:
    """The findings of the failed checks."""
    return [one.finding for one in checks if one.finding is not None]
