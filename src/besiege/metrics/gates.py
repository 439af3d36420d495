"""Gates: what figures must reach, and whether they may be quoted at all.

A gate is a frozen value; `judged` applies gates to evaluations and gives verdicts, each with its
reason. The command line turns verdicts into an exit code, `besiege.report` into files for CI.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from besiege.core.errors import Finding, InputError, Level, near
from besiege.core.text import short
from besiege.metrics.intervals import AtLeast
from besiege.metrics.paired import Difference, holm, samples_needed
from besiege.metrics.values import EvaluationFigures

Outcome = Literal["passed", "failed", "stop", "incomplete"]
SIGNIFICANT = 0.05
STOPPING = (
    *("W01", "W08", "W09", "W10", "W11", "W12", "W14", "W15", "W16", "W17"),
    *("W22", "W30", "W32", "W35", "W36", "W45", "W46", "W47", "W48"),
)
"""The rules whose findings can say that figures must not be quoted."""
_STOP: Level = get_args(Level)[0]  # levels are listed from the gravest
FIGURES = "figures"
"""The check whether figures are complete and may be quoted."""
_INCOMPLETE = ("FAILED", "UNFINISHED", "DAMAGED")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check of one evaluation, with the reason in one line.

    Attributes
    ----------
    about : str
        The evaluation: its model and its threat.
    check : str
        ``figures`` (may they be quoted?), or the gate as its option is written.
    outcome : {"passed", "failed", "stop", "incomplete"}
        ``stop``: the figures must not be quoted. ``incomplete``: they are not final yet.
    reason : str
        Why.
    seconds : float
        The time of the attacks, for the check of the figures; a gate takes none.
    """

    about: str
    check: str
    outcome: Outcome
    reason: str
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the check was passed."""
        return self.outcome == "passed"

    @property
    def label(self) -> str:
        """The check and its outcome."""
        gate = "" if self.check.startswith(FIGURES) else f"{self.check} "
        return f"{gate}{self.outcome}"

    def __str__(self) -> str:
        return f"{self.label}: {self.about}: {self.reason}"


class Gate(Protocol):
    """What evaluations must reach: ``check`` is its name, as its option is written."""

    @property
    def check(self) -> str: ...

    def decide(self, evaluations: Sequence[EvaluationFigures]) -> list[tuple[bool, str]]:
        """For each evaluation, all complete, whether it passes, and why."""
        ...


@dataclass(frozen=True)
class FailUnder:
    """Robust accuracy must be at least `share`: the lower end of its interval, or its `point`.

    Examples
    --------
    >>> FailUnder(0.45).check, FailUnder(0.45, point=True).check
    ('fail-under 45', 'fail-under-value 45')
    """

    share: float
    point: bool = False

    @property
    def check(self) -> str:
        """Its name."""
        return f"fail-under{'-value' if self.point else ''} {100 * self.share:g}"

    def decide(self, evaluations: Sequence[EvaluationFigures]) -> list[tuple[bool, str]]:
        """Whether each evaluation reaches the share."""
        return [self._decided(one) for one in evaluations]

    def _decided(self, evaluation: EvaluationFigures) -> tuple[bool, str]:
        if evaluation.robust is None:
            return False, "no image was judged under every attack"
        reached = AtLeast(evaluation.robust, self.share, self.point)
        return bool(reached), f"robust accuracy {reached}"


@dataclass(frozen=True)
class NotWorse:
    """Robust accuracy must not be significantly lower than before, on the same samples.

    An evaluation fails if it withstands less and the exact McNemar test, corrected by Holm for the
    number of evaluations, has p below 0.05. The test decides, not the interval: it keeps its level
    with few differing samples, and it can be corrected. It is two-sided, as in a comparison, so a
    model that is as good as before fails at most once in forty times, as with `FailUnder`.

    Attributes
    ----------
    run : str
        The run it is compared with.
    differences : mapping
        By the name of each evaluation: its robust accuracy less that of the other run.
    """

    run: str
    differences: Mapping[str, Difference]

    @property
    def check(self) -> str:
        """Its name."""
        return f"not-worse-than {self.run}"

    def decide(self, evaluations: Sequence[EvaluationFigures]) -> list[tuple[bool, str]]:
        """Whether each evaluation is at least not significantly worse."""
        found = [self.differences[one.name] for one in evaluations]
        corrected = holm([one.p for one in found])
        return [_compared(one, p, len(found)) for one, p in zip(found, corrected, strict=True)]


def _compared(difference: Difference, p: float, comparisons: int) -> tuple[bool, str]:
    points, low, high = (100 * x for x in (difference.value, difference.low, difference.high))
    size = f"{points:+.1f} points [{low:+.1f}, {high:+.1f}] on the same {difference.count:,} images"
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    chance += f" (Holm, {comparisons} evaluations)" if comparisons > 1 else ""
    if difference.value < 0 and p < SIGNIFICANT:
        return False, f"worse: {size}, {chance}"
    if difference.value >= 0:
        return True, f"not worse: {size}, {chance}"
    needed = samples_needed(difference, comparisons)
    return True, f"not significantly worse: {size}, {chance}; about {needed:,} images could tell"


def judged(
    evaluations: Sequence[EvaluationFigures],
    gates: Sequence[Gate] = (),
    allowed: Collection[str] = (),
) -> list[Verdict]:
    """All verdicts: first whether the figures of each evaluation may be quoted, then the gates.

    Parameters
    ----------
    evaluations : sequence of EvaluationFigures
        The evaluations. Gates decide only those that are complete.
    gates : sequence of Gate
        What they must reach.
    allowed : collection of str
        Ids of rules whose findings do not stop the figures.
    """
    named = list(zip(titles(evaluations), evaluations, strict=True))
    verdicts = [verdict for about, one in named for verdict in _quotable(about, one, allowed)]
    for gate in gates:
        decided = iter(gate.decide([one for one in evaluations if one.complete]))
        for about, one in named:
            if not one.complete:
                why = "it cannot be decided: the evaluation is not complete"
                verdicts.append(Verdict(about, gate.check, "incomplete", why))
                continue
            passed, why = next(decided)
            verdicts.append(Verdict(about, gate.check, "passed" if passed else "failed", why))
    return verdicts


def titles(evaluations: Sequence[EvaluationFigures]) -> list[str]:
    """The names of evaluations in verdicts; equal ones are told apart by data and attacks."""
    names = [one.title for one in evaluations]
    count = Counter(names)
    return [
        name if count[name] == 1 else f"{name} on {one.data.name} by {_attacks(one)}"
        for name, one in zip(names, evaluations, strict=True)
    ]


def _attacks(evaluation: EvaluationFigures) -> str:
    return evaluation.suite or ", ".join(attack.text for attack in evaluation.attacks)


def stops(evaluation: EvaluationFigures, allowed: Collection[str] = ()) -> list[Finding]:
    """The findings because of which figures must not be quoted, but for those of allowed rules."""
    found = [one for one in evaluation.warnings if one.level == _STOP]
    return [one for one in found if one.id not in allowed]


def lacking(evaluation: EvaluationFigures) -> str:
    """What an incomplete evaluation lacks, and what to do about it."""
    found = [one for one in evaluation.warnings if one.id in _INCOMPLETE]
    sentences = [f"{one.seen.rstrip('.')}. {one.advice}" for one in found]
    return " ".join(sentences) or "records are missing: run the same command again"


def _quotable(
    about: str, evaluation: EvaluationFigures, allowed: Collection[str]
) -> Iterator[Verdict]:
    """One verdict about the figures, or one for every rule that stops them."""
    seconds = evaluation.cost.seconds
    if not evaluation.complete:
        yield Verdict(about, FIGURES, "incomplete", lacking(evaluation), seconds)
        return
    seen: dict[str, list[str]] = {}
    for one in stops(evaluation, allowed):
        seen.setdefault(one.id, []).append(one.seen)
    for place, (rule, sentences) in enumerate(seen.items()):
        why = f"the figures must not be quoted ({rule}): {' '.join(sentences)}"
        yield Verdict(about, f"{FIGURES} {rule}", "stop", why, 0.0 if place else seconds)
    if not seen:
        known = sorted({one.id for one in stops(evaluation)})
        why = f"{' and '.join(known)} allowed" if known else "complete, and no finding stops them"
        yield Verdict(about, FIGURES, "passed", why, seconds)


def checked_rules(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids of rules that may be allowed; any other is refused with the nearest ones."""
    for one in ids:
        if one in _INCOMPLETE:
            raise InputError(
                f"{one} cannot be allowed: the evaluation is not complete. Run the same command "
                "again to resume it"
            )
        if one not in STOPPING:
            raise InputError(
                f"'{short(one)}' is no rule that stops figures, and only those can be allowed "
                f"({', '.join(STOPPING)}): {near(one, STOPPING)}"
            )
    return tuple(dict.fromkeys(ids))
