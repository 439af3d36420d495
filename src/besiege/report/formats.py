"""Formats of numbers and names, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from besiege.core.errors import DataError
from besiege.core.threat import written_unit
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import Difference
from besiege.metrics.values import RunFigures, ThreatFigures

NOTHING = "n/a"


def checked(figures: RunFigures) -> RunFigures:
    """The figures, or an error where they have no evaluation."""
    if not figures.evaluations:
        raise DataError("the figures have no evaluation: run one first, with besiege evaluate")
    return figures


def places(count: int) -> int:
    """Decimals of a percentage of `count` samples: enough to show one sample, and at least one.

    Examples
    --------
    >>> places(397), places(10_000)
    (1, 2)
    """
    return max(1, min(3, math.ceil(math.log10(max(count, 1))) - 2))


def percent(value: float | None, decimals: int = 1) -> str:
    """A share as a percentage.

    Examples
    --------
    >>> percent(0.0806)
    '8.1 %'
    """
    return NOTHING if value is None else f"{100 * value:.{decimals}f} %"


def share(rate: Rate | None) -> str:
    """The value of a rate as a percentage, with decimals for its number of samples."""
    return NOTHING if rate is None else percent(rate.value, places(rate.count))


def interval(rate: Rate | None) -> str:
    """The interval of a rate.

    Examples
    --------
    >>> interval(Rate.of(500, 1000))
    '[46.9, 53.1]'
    """
    if rate is None:
        return ""
    decimals = places(rate.count)
    return f"[{100 * rate.low:.{decimals}f}, {100 * rate.high:.{decimals}f}]"


def number(value: float | None) -> str:
    """A number with three significant digits, and an exponent only where it is very small.

    Examples
    --------
    >>> number(0.14912), number(1234567.0), number(12.04), number(0.00002)
    ('0.149', '1,234,567', '12', '2e-05')
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "infinite" if value == math.inf else NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def budget_unit(threat: ThreatFigures) -> int | None:
    """The denominator of printed distances: 255 if the budget was written that way."""
    return written_unit(threat.norm, threat.eps_text)


def distance(value: float | None, unit: int | None = None) -> str:
    """A distance, as a fraction if `unit` is given.

    Examples
    --------
    >>> distance(0.0314, 255), distance(0.149)
    ('8.01/255', '0.149')
    """
    if value is None or not math.isfinite(value) or unit is None:
        return number(value)
    return f"{number(round(value * unit, 6))}/{unit}"


def p_value(p: float) -> str:
    """A p-value with its sign.

    Examples
    --------
    >>> p_value(0.0004), p_value(0.0357), p_value(0.31)
    ('p < 0.001', 'p = 0.036', 'p = 0.31')
    """
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def points(change: Difference) -> str:
    """A difference of accuracies in percentage points, with its interval.

    Examples
    --------
    >>> points(Difference.counted(7, 1, 100))
    '+6.0 points [0.6, 12.9]'
    """
    ends = f"[{100 * change.low:.1f}, {100 * change.high:.1f}]"
    return f"{100 * change.value:+.1f} points {ends}"


def seconds(value: float | None) -> str:
    """A duration.

    Examples
    --------
    >>> seconds(3.24), seconds(125), seconds(7260)
    ('3.2 s', '2 min 05 s', '2 h 01 min')
    """
    if value is None:
        return NOTHING
    if value < 59.95:
        return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(value / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def each(total: float | None, count: int) -> str:
    """A total per sample.

    Examples
    --------
    >>> each(17500, 397)
    '44.1'
    """
    if total is None or not count:
        return NOTHING
    value = total / count
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def moment(text: str) -> str:
    """A date and time, to the minute.

    Examples
    --------
    >>> moment("2026-11-15T18:40:00+00:00")
    '2026-11-15 18:40 UTC'
    """
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return str(text)
    zone = found.strftime("%z")
    return found.strftime("%Y-%m-%d %H:%M") + (" UTC" if zone == "+0000" else f" {zone}").rstrip()


def class_name(names: Sequence[str] | None, label: int) -> str:
    """The name of a class, or its number if it has no name."""
    if names and 0 <= label < len(names):
        return str(names[label])
    return f"class {label}"


def sentence(text: str) -> str:
    """A text with a capital first letter.

    Examples
    --------
    >>> sentence("the loss was rising.")
    'The loss was rising.'
    """
    return text[:1].upper() + text[1:]


def listed(words: Sequence[str]) -> str:
    """Words joined with commas and "and".

    Examples
    --------
    >>> listed(["fgsm", "pgd", "mim"])
    'fgsm, pgd and mim'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
