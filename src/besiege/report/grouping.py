"""Several evaluations: their order, their names, and the groups that a page shows together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import errors, is_minimal, median_change, robust

_ATTACKS = 40  # letters of the attacks' texts in a name


@dataclass(frozen=True)
class Member:
    """An evaluation among others.

    Parameters
    ----------
    name : str
        The model, with as much more as tells it from the others.
    style : int
        The number of its colour and dash, the same for one model on the whole page.
    evaluation : EvaluationFigures
        Its figures.
    """

    name: str
    style: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Group:
    """The evaluations under one threat and on one data set, the most robust first."""

    title: str
    members: tuple[Member, ...]


def ranked(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The evaluations by threat, in the order of the run; under each, the most robust first.

    Evaluations that must not be quoted come last, since their figure may be wrong; those without
    any figure come at the very end.
    """
    threats = [*dict.fromkeys(one.threat.text for one in evaluations)]
    data = [*dict.fromkeys(one.data.name for one in evaluations)]

    def place(one: Evaluation) -> tuple[int, int, bool, bool, float]:
        rate = robust(one)
        value = median_change(one) if is_minimal(one) else None if rate is None else rate.value
        last = value is None, bool(errors(one)), -(value or 0.0)
        return threats.index(one.threat.text), data.index(one.data.name), *last

    return sorted(evaluations, key=place)


def grouped(evaluations: Sequence[Evaluation]) -> list[Group]:
    """The evaluations in groups of one threat and data set, ranked, each with name and style."""
    order = ranked(evaluations)
    names = names_of(order)
    styles = {name: style for style, name in enumerate(dict.fromkeys(names))}
    several = len({one.data.name for one in order}) > 1
    members: dict[str, list[Member]] = {}
    for name, one in zip(names, order, strict=True):
        title = f"{one.threat.text} on {one.data.name}" if several else one.threat.text
        members.setdefault(title, []).append(Member(name, styles[name], one))
    return [Group(title, tuple(some)) for title, some in members.items()]


def names_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """The model of each evaluation, with its attacks where it was evaluated twice under a threat.

    Evaluations that differ in neither are numbered.
    """
    names = [one.model.title for one in evaluations]
    shared = _shared(names, evaluations)
    names = [
        f"{name} ({_attacks(one)})" if name in shared else name
        for name, one in zip(names, evaluations, strict=True)
    ]
    shared, met = _shared(names, evaluations), Counter[tuple[str, str, str]]()
    numbered = []
    for name, one in zip(names, evaluations, strict=True):
        met[key := (name, one.threat.text, one.data.name)] += 1
        numbered.append(f"{name}, number {met[key]}" if name in shared else name)
    return numbered


def _shared(names: Sequence[str], evaluations: Sequence[Evaluation]) -> set[str]:
    """The names that several evaluations under one threat and on one data set have."""
    met = Counter(
        (name, one.threat.text, one.data.name) for name, one in zip(names, evaluations, strict=True)
    )
    return {name for (name, *_), count in met.items() if count > 1}


def _attacks(evaluation: Evaluation) -> str:
    """The suite or the attacks, cut where they are long."""
    text = evaluation.suite or ", ".join(attack.text for attack in evaluation.attacks)
    return text if len(text) <= _ATTACKS else text[: _ATTACKS - 1] + "…"
