"""The options of gates, and what becomes of their verdicts: lines, files, an exit code."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import code_of
from besiege.cli.grammar import Place
from besiege.core.errors import InputError
from besiege.core.text import number, short
from besiege.core.threat import Threat
from besiege.metrics.gates import FIGURES, FailUnder, Gate, Verdict, checked_rules, judged

if TYPE_CHECKING:
    from cyclopts import Token

    from besiege.bench.baseline import Baseline
    from besiege.bench.plan import Plan
    from besiege.metrics.values import EvaluationFigures

_STYLES = {"failed": "bold red", "stop": "bold red", "incomplete": "yellow", "passed": "green"}


def _read_percent(_: Any, tokens: Sequence[Token]) -> float:
    """Read a percentage as a share; 0.45, which would be 0.45 %, is refused."""
    (token,) = tokens
    option, text = token.keyword or "the percentage", token.value.strip().removesuffix("%").strip()
    try:
        percent = number(text)
    except InputError:
        percent = Fraction(-1)
    if 0 < percent < 1:
        raise InputError(
            f"{option} is '{short(token.value)}', but it is in percent: write "
            f"{float(100 * percent):g} for {float(100 * percent):g} %"
        )
    if not 0 <= percent <= 100:
        raise InputError(f"{option} is '{short(token.value)}': write percent, such as 45")
    return float(percent / 100)


Percent = Annotated[float | None, Parameter(converter=_read_percent, metavar="PERCENT")]
_GROUP = Group("Gates and CI", sort_key=10)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What figures must reach, and files for CI; the same for every command that has gates."""

    fail_under: Annotated[
        Percent,
        Parameter(
            help="Fail (exit code 1) if robust accuracy is lower: the lower end of its 95 % "
            "interval must be at least this many percent."
        ),
    ] = None
    fail_under_value: Annotated[
        Percent, Parameter(help="The same for robust accuracy itself, without its interval.")
    ] = None
    not_worse_than: Annotated[
        Place | None,
        Parameter(
            metavar="RUN",
            help="Fail if robust accuracy is significantly lower than in this run folder, on the "
            "same samples and under the same attacks.",
        ),
    ] = None
    allow: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="ID",
            negative="",
            show_default=False,
            help="Rule, such as W14, whose findings do not stop the figures (exit code 4 without "
            "it); can be repeated.",
        ),
    ] = ()
    junit: Annotated[
        Place | None,
        Parameter(metavar="FILE", help="Write the verdicts as JUnit XML."),
    ] = None
    summary: Annotated[
        Place | None,
        Parameter(
            metavar="FILE",
            help='Append a summary in Markdown, such as to "$GITHUB_STEP_SUMMARY".',
        ),
    ] = None


@dataclass(frozen=True)
class Gating:
    """The gates of a command, checked before any work starts."""

    options: GateOptions
    shares: tuple[FailUnder, ...]
    baseline: Baseline | None

    def accept(self, plan: Plan) -> None:
        """Refuse a plan that cannot be compared with the baseline."""
        if self.baseline is not None:
            self.baseline.counterpart(plan)

    def must_fit(self, folder: Path, evaluations: Sequence[EvaluationFigures]) -> None:
        """The same for evaluations that are done."""
        if self.baseline is not None:
            from besiege.bench.baseline import plans_of

            for plan in plans_of(folder, evaluations).values():
                self.baseline.counterpart(plan)

    def conclude(
        self, folder: Path, evaluations: Sequence[EvaluationFigures], page: Path | None = None
    ) -> int:
        """Decide all gates, print the reasons, write the files, and return the exit code."""
        gates: list[Gate] = [*self.shares]
        if self.baseline is not None:
            gates.append(self.baseline.gate(folder, evaluations))
        verdicts = judged(evaluations, gates, self.options.allow)
        _print(verdicts)
        if self.options.junit is not None:
            from besiege.report.junit import write_junit

            write_junit(self.options.junit, evaluations, verdicts)
        if self.options.summary is not None:
            from besiege.report.summary import append_summary

            append_summary(self.options.summary, evaluations, verdicts, page)
        return code_of(verdicts)


def gating(options: GateOptions | None, threats: Sequence[str], folder: Path) -> Gating:
    """The gates of a command; anything wrong with them is an error.

    Parameters
    ----------
    options : GateOptions, optional
        What was typed.
    threats : sequence of str
        The threats of the evaluations.
    folder : Path
        The run folder of the command.
    """
    given = options or GateOptions()
    checked_rules(given.allow)
    shares = [
        FailUnder(share, point)
        for share, point in ((given.fail_under, False), (given.fail_under_value, True))
        if share is not None
    ]
    if shares or given.not_worse_than is not None:
        for threat in threats:
            _must_have_budget(threat)
    for path in (given.junit, given.summary):
        if path is not None:
            _must_be_writable(path)
    baseline = None
    if given.not_worse_than is not None:
        from besiege.bench.baseline import Baseline

        baseline = Baseline.of(given.not_worse_than, elsewhere=[folder])
    return Gating(given, tuple(shares), baseline)


def _must_have_budget(text: str) -> None:
    threat = Threat.parse(text)
    if threat.eps is None:
        raise InputError(
            f"the threat '{text}' has no budget, so there is no robust accuracy for a gate: give "
            f"it one, such as {threat.norm.example}"
        )


def _must_be_writable(path: Path) -> None:
    """Refuse a file that cannot be written before the work, not after it."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file")
    above = path if path.exists() else path.absolute().parent
    while not above.exists():
        above = above.parent
    if not (path.exists() or above.is_dir()) or not os.access(above, os.W_OK):
        raise InputError(f"{path} cannot be written: choose another file")


def _print(verdicts: Sequence[Verdict]) -> None:
    """One line each: every gate, and every reason against the figures.

    What is not complete has one line with a count: an interrupted benchmark has hundreds.
    """
    stops: dict[str, list[str]] = {}
    lacking = Counter(one.label for one in verdicts if one.outcome == "incomplete")
    for one in verdicts:
        if count := lacking.pop(one.label, 0):
            all_ = sum(other.check == one.check for other in verdicts)
            first = f"{count} of {all_} evaluations, the first of them " if count > 1 else ""
            _print_line(one.label, _STYLES[one.outcome], f"{first}{one.about}: {one.reason}")
        elif one.outcome == "incomplete":
            continue
        elif one.outcome == "stop":  # the table says why
            stops.setdefault(one.about, []).append(one.check.split()[-1])
        elif not (one.passed and one.check == FIGURES):
            _print_line(one.label, _STYLES[one.outcome], f"{one.about}: {one.reason}")
    for about, ids in stops.items():
        words = f"{about}: the figures must not be quoted ({', '.join(dict.fromkeys(ids))})"
        _print_line("stop", _STYLES["stop"], words)
    if stops:
        screen.note("Exit code 4: docs/gates.md says how to accept single findings.")


def _print_line(label: str, style: str, words: str) -> None:
    text = Text(label, style).append(f": {words}", "not bold default")
    screen.verbatim(screen.err(), text)
