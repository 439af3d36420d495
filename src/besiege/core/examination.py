"""The examination of a model and of its evaluation, as values: checks, and what they amount to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from besiege.core.errors import Finding, Level

Outcome = Literal["passed", "failed", "not applicable", "not run"]
Enough = Literal["yes", "no", "unknown", "not asked"]

MEANINGS: Final[Mapping[str, str]] = {
    "gradients match finite differences": "Slopes that the gradient promises are compared with "
    "how the answers change when an image is moved a little; they must correlate to 0.95.",
    "gradients lower the margin within the budget": "Images are moved along the gradient by a "
    "quarter and by half of the budget. One of these moves must lower the margin at least twice as "
    "much as a random move does, or by 15 % of what the gradient promises.",
    "an image gets one answer": "The same images are sent alone, in other batches, again, and to a "
    "fresh copy of the model; all answers must be the same up to rounding.",
    "scores near the images are finite and vary": "Scores along a segment from each image to the "
    "edge of the budget must be finite. On more than three quarters of the segments, they must "
    "change everywhere and not in steps.",
    "attacks without gradients break no more": "Guards and other attacks without gradients may "
    "break at most one in fifty of the images that the gradient-based attacks left; a single "
    "image is allowed, however few there are.",
    "attacks that know the defense break no less": "An attack that ignores the defense (oblivious) "
    "may break at most one in fifty of the images that the attacks on the model itself left; a "
    "single image is allowed, however few there are.",
    "answers are the same after the attacks": "The model that all attacks queried must answer as "
    "a fresh copy does.",
    "the attacks find known adversarial examples": "The last layer is replaced such that an "
    "adversarial example of each image is known. The attacks must find 95 % of these examples; a "
    "lower share passes if its 95 % interval contains 95 %.",
}
"""What each check does, and what is enough to pass it."""


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    Attributes
    ----------
    name : str
        What must hold, in a few words: ``gradients match finite differences``.
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
    def meaning(self) -> str:
        """What it does, and what is enough; empty for a check of another package."""
        return MEANINGS.get(self.name, "")

    @property
    def finding(self) -> Finding | None:
        """The finding of a failed check."""
        if self.outcome != "failed" or not self.rule:
            return None
        return Finding(self.rule, self.seen, self.advice, self.level)


@dataclass(frozen=True)
class Examination:
    """All checks of an evaluation.

    Attributes
    ----------
    checks : tuple of Check
        The checks.
    not_asked : str
        Why no check can say whether the attacks are strong enough; empty where some can.
    stops : tuple of str
        Rules that say that the figures must not be quoted, those of failed checks included.
    doubts : tuple of str
        Rules whose warnings are open: the robust accuracy may be too good to be true.

    Examples
    --------
    >>> passed = Check("an image gets one answer", "passed", "16 of 16 images")
    >>> Examination((passed,)).enough
    'yes'
    >>> Examination((passed, Check("attacks are strong enough", "not run"))).enough
    'unknown'
    >>> Examination((passed,)).beside([Finding("W05", "it gained.", "More steps.")]).enough
    'unknown'
    """

    checks: tuple[Check, ...]
    not_asked: str = ""
    stops: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def beside(self, findings: Iterable[Finding]) -> Examination:
        """The same checks, weighed together with all findings about the evaluation."""
        leveled: dict[Level, dict[str, None]] = {"stop": {}, "warning": {}, "note": {}}
        for one in findings:
            leveled[one.level][one.id] = None
        return replace(self, stops=tuple(leveled["stop"]), doubts=tuple(leveled["warning"]))

    @property
    def findings(self) -> list[Finding]:
        """The findings of the failed checks."""
        return [one.finding for one in self.checks if one.finding is not None]

    @property
    def answer(self) -> str:
        """The outcome in a sentence."""
        return {
            "yes": "This evaluation is strong enough as far as the checks can tell.",
            "no": "This evaluation is not strong enough: its figures must not be quoted."
            if self._refuted
            else f"The figures of this evaluation must not be quoted: {', '.join(self.stops)}.",
            "unknown": "Whether this evaluation is strong enough is unknown: its figures may be "
            f"quoted with that word, and with {self._why}.",
            "not asked": f"Whether this evaluation is strong enough was not asked: "
            f"{self.not_asked}. Its figures say nothing about other attacks on this model.",
        }[self.enough]

    @property
    def summary(self) -> str:
        """How many checks had each outcome, and the names of those that failed or did not run."""
        named = [f"{outcome}: {self._named(outcome)}" for outcome in ("failed", "not run")]
        named = [words for words in named if not words.endswith(": ")]
        reason = [self.not_asked] if self.enough == "not asked" else []
        named += [f"stop: {', '.join(self.stops)}"] if self.stops and not self._refuted else []
        named += [f"open: {', '.join(self.doubts)}"] if self.doubts else []
        return "; ".join([*reason, self.counted.rstrip("."), *named])

    @property
    def _why(self) -> str:
        """What is to be named beside figures whose strength is unknown."""
        missing = not self._all_passed
        parts = ["the names of the checks that did not pass"] if missing else []
        if self.doubts:
            what = "warnings that are open" if len(self.doubts) > 1 else "warning that is open"
            parts.append(f"the {what}: {', '.join(self.doubts)}")
        return " and ".join(parts)

    @property
    def _refuted(self) -> bool:
        """Whether a failed check says that the figures must not be quoted."""
        return any(one.outcome == "failed" and one.level == "stop" for one in self.checks)

    @property
    def _all_passed(self) -> bool:
        """Whether every check that applies has passed."""
        return {one.outcome for one in self.checks} - {"not applicable"} == {"passed"}

    def _named(self, outcome: Outcome) -> str:
        """The names of the checks with an outcome."""
        return ", ".join(one.name for one in self.checks if one.outcome == outcome)

    @property
    def counted(self) -> str:
        """How many checks had each outcome."""
        outcomes = [one.outcome for one in self.checks]
        counts = {outcome: outcomes.count(outcome) for outcome in get_args(Outcome)}
        listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        return f"{len(outcomes)} checks: {listed}."

    @property
    def enough(self) -> Enough:
        """Whether the evaluation is strong enough: yes if nothing speaks against it.

        No where a failed check or a rule says that figures must not be quoted. Yes if every check
        that applies has passed and no warning about the robust accuracy is open; unknown in
        between. Not asked where no check is about such attacks.
        """
        if self.stops or self._refuted:
            return "no"
        if self.not_asked:
            return "not asked"
        return "yes" if self._all_passed and not self.doubts else "unknown"
