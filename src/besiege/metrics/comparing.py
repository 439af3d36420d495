"""Evaluations beside each other: aligned by sample, and the warning rules that need several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import Finding
from besiege.metrics.distances import NORMS
from besiege.metrics.evidence import Evidence
from besiege.metrics.intervals import Rate
from besiege.metrics.kinds import breaks_undefended, too_many
from besiege.metrics.paired import Difference
from besiege.metrics.rows import Rows, places
from besiege.metrics.searches import ROUNDING, beyond
from besiege.metrics.warnings import TOLERANCE

Ids = NDArray[np.int64]
GOALS = 0.002
"""Share of the samples that only targeted attacks may break."""


@dataclass(frozen=True, eq=False)
class Outline:
    """The part of an evaluation that comparisons with others need.

    Attributes
    ----------
    threat, norm, eps
        Its threat, as text and in parts.
    accuracy : mapping
        The accuracy under each attack that was judged on some sample; without images made
        elsewhere, whose name says little about them.
    searched : bool
        Whether an attack searched for the smallest perturbation.
    smallest : Rows
        ``sample`` and ``distance``: the smallest perturbation found for each searched sample.
    nearest : Rows
        Per sample with a success, the smallest distance of any success in every norm.
    outcomes : Rows
        Per clean sample: ``sample``, ``label``, ``correct`` when clean, ``robust`` (it withstood
        every attack), and ``known`` (every attack was judged on it).
    left, count : int
        Samples that withstood every attack, of those that every attack was judged on.
    breaks_undefended : bool
        Whether such attacks are known to break models without a defense.
    """

    threat: str
    norm: str
    eps: float | None
    accuracy: Mapping[str, float]
    searched: bool
    smallest: Rows
    nearest: Rows
    outcomes: Rows
    left: int
    count: int
    breaks_undefended: bool

    @classmethod
    def of(cls, evidence: Evidence, threat: str) -> Outline:
        """The outline of an evaluation."""
        known = evidence.covered_by_all()
        ids, ends = evidence.smallest()
        trials = [trial for trial in evidence.trials if trial.rows.count and not trial.given]
        return cls(
            threat,
            evidence.norm,
            evidence.eps,
            {trial.text: evidence.accuracy(trial) for trial in trials},
            evidence.curve is not None,
            Rows({"sample": ids, "distance": ends}),
            _nearest(evidence),
            outcomes_of(evidence),
            int(evidence.standing()[known].sum()),
            int(known.sum()),
            breaks_undefended(evidence),
        )


def outcomes_of(evidence: Evidence) -> Rows:
    """The outcome of every clean sample, by which two evaluations are compared sample by sample."""
    clean, known = evidence.clean, evidence.covered_by_all()
    return Rows(
        {
            "sample": clean["sample"],
            "label": clean["label"],
            "correct": evidence.right,
            "robust": evidence.standing() & known,
            "known": known,
        }
    )


def _nearest(evidence: Evidence) -> Rows:
    won = [trial.rows.where(trial.rows["success"].astype(bool)) for trial in evidence.searches()]
    samples = np.concatenate([rows["sample"] for rows in won]) if won else np.zeros(0, np.int64)
    ids, where = np.unique(samples, return_inverse=True)
    found = {}
    for norm in (norm for norm in NORMS if all(norm in rows for rows in won)):
        found[norm] = np.full(len(ids), np.inf)
        distances = np.concatenate([rows[norm] for rows in won]) if won else np.zeros(0)
        np.minimum.at(found[norm], where, distances.astype(np.float64))
    return Rows({"sample": ids, **found})


@dataclass(frozen=True, eq=False)
class Aligned:
    """Several evaluations of one threat, aligned by sample.

    Attributes
    ----------
    samples : array
        Ids of the samples, ascending: each has the same label in all evaluations that have it.
    values : array of shape (evaluations, samples)
        With a budget, 1 where an image withstood every attack, and 0 where not. Without one, the
        smallest perturbation. Larger is more robust.
    known : array of shape (evaluations, samples)
        Whether the image was judged under every attack.
    """

    samples: Ids
    values: NDArray[np.float64]
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, outlines: Sequence[Outline], common: bool = False) -> Aligned:
        """The samples of any of these evaluations, or those that all of them have."""
        tables = [one.outcomes for one in outlines]
        ids = np.concatenate([table["sample"] for table in tables])
        labels = np.concatenate([table["label"] for table in tables])
        samples, first, where, count = np.unique(ids, True, True, True)
        agree = np.ones(len(samples), bool)
        agree[where[labels != labels[first][where]]] = False
        if common:
            agree &= count == len(outlines)
        samples = samples[agree]
        found = [_valued(one, samples) for one in outlines]
        values = np.array([values for values, _ in found])
        return cls(samples, values, np.array([known for _, known in found]))

    def difference(self, first: int, second: int) -> Difference | None:
        """The difference of two evaluations by their places; None without common samples."""
        both = self.known[first] & self.known[second]
        one, other = self.values[first][both], self.values[second][both]
        return Difference.of(one > other, other > one) if both.any() else None

    def better(self, first: int, second: int) -> Ids:
        """Ids of the samples on which the first of two evaluations is the more robust one."""
        both = self.known[first] & self.known[second]
        ids: Ids = self.samples[both & (self.values[first] > self.values[second])]
        return ids

    def alone(self, place: int, best: bool = True) -> Ids:
        """Ids of the samples on which one evaluation is the most, or the least, robust of all."""
        others = np.delete(self.values, place, 0)
        most, least = others.max(0), others.min(0)
        extreme = self.values[place] > most if best else self.values[place] < least
        ids: Ids = self.samples[self.known.all(0) & extreme]
        return ids


def distances_of(outline: Outline, samples: Ids) -> NDArray[np.float64]:
    """The smallest perturbations that searches found for some samples; NaN where none was made."""
    found = np.full(len(samples), np.nan)
    where = places(samples, outline.smallest["sample"])
    found[where[where >= 0]] = outline.smallest["distance"][where >= 0]
    return found


def _valued(outline: Outline, samples: Ids) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values of some samples, and whether they are known."""
    if outline.eps is None:
        sizes = distances_of(outline, samples)
        return np.where(np.isnan(sizes), 0.0, sizes), ~np.isnan(sizes)
    table = outline.outcomes
    values, known = np.zeros(len(samples)), np.zeros(len(samples), bool)
    where = places(samples, table["sample"])
    there = where >= 0
    values[where[there]] = table["robust"][there]
    known[where[there]] = table["known"][there]
    return values, known


def difference(mine: Outline, other: Outline) -> Difference | None:
    """The difference between two evaluations on the samples that both were judged on.

    With a budget it is that of the images that withstood every attack. Without one it is that of
    the images whose smallest perturbation is larger in the one than in the other. None without
    common samples, which have the same ids and labels.
    """
    if (mine.eps is None) != (other.eps is None):
        return None
    return Aligned.of((mine, other)).difference(0, 1)


@dataclass(frozen=True, eq=False)
class Comparison:
    """An evaluation among others of the same victim and samples.

    Attributes
    ----------
    mine : Outline
        The evaluation.
    elsewhere : mapping
        Accuracy of the same attacks at other budgets, by budget and text.
    beside : sequence of Outline
        Evaluations in other norms, or with other budgets.
    counterpart : (str, Rate), optional
        A victim without a defense, and its accuracy under the same attacks.
    targeted : sequence of Outline
        For an untargeted evaluation, targeted ones within the same budget, or without one.
    """

    mine: Outline
    elsewhere: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    beside: Sequence[Outline] = ()
    counterpart: tuple[str, Rate] | None = None
    targeted: Sequence[Outline] = ()


def compared(comparison: Comparison) -> list[Finding]:
    """The findings of all rules that compare evaluations."""
    return [finding for rule in COMPARING for finding in rule(comparison)]


def w02_monotone_budget(comparison: Comparison) -> Iterator[Finding]:
    """The same attack must not be weaker with a larger budget."""
    mine = comparison.mine
    for text, here in mine.accuracy.items() if mine.eps is not None else ():
        for eps, accuracies in sorted(comparison.elsewhere.items()):
            there = accuracies.get(text)
            if there is not None and eps < (mine.eps or 0.0) and here > there + TOLERANCE:
                yield Finding(
                    "W02",
                    f"accuracy under '{text}' is {100 * here:.1f} % at {mine.eps:.4g}, but only "
                    f"{100 * there:.1f} % at the smaller budget {eps:.4g}.",
                    "A larger budget contains every smaller one: the attack fails at the larger "
                    "one. Use more steps, restarts or another loss.",
                )


def w19_goal_order(comparison: Comparison) -> Iterator[Finding]:
    """A sample that attacks turn into one certain class is turned into some wrong class, too."""
    for other in comparison.targeted:
        aligned = Aligned.of((comparison.mine, other))
        both = aligned.known.all(0)
        mine, theirs = aligned.values[:, both]
        missed = int((mine > theirs * (1 + ROUNDING)).sum())
        if missed > GOALS * int(both.sum()):
            yield Finding(
                "W19",
                f"for {missed} of {int(both.sum())} samples the attacks under '{other.threat}' "
                "succeeded where those without a target did not, or only farther away.",
                "Every targeted success is an untargeted one: the untargeted attacks here are too "
                "weak. Use another loss (loss=margin), more steps, or each_target.",
            )


def w20_norm_order(comparison: Comparison) -> Iterator[Finding]:
    """A search in another norm must not find a perturbation that is smaller in this norm.

    An l2 search should not find a smaller linf perturbation than the linf search did. The images
    themselves are compared: the distances of the two searches are in different norms.
    """
    mine, ids, ends = _searched(comparison)
    for other in comparison.beside:
        if other.norm == mine.norm or not other.searched or not len(ids):
            continue
        where = places(other.nearest["sample"], ids)
        theirs = np.full(len(ids), np.inf)
        theirs[where >= 0] = other.nearest[mine.norm][where[where >= 0]]
        missed = int((theirs < ends * (1 - ROUNDING)).sum())
        if missed:
            yield Finding(
                "W20",
                f"for {missed} of {len(ids)} samples an attack under '{other.threat}' found a "
                f"perturbation that is smaller in {mine.norm} than the smallest found here.",
                "The attacks here are too weak, so these distances are too large: give them more "
                "steps, or add others (the suite minimum).",
            )


def w21_consistency(comparison: Comparison) -> Iterator[Finding]:
    """Attacks with a budget must not break images whose smallest perturbation is larger."""
    mine, ids, ends = _searched(comparison)
    for other in comparison.beside if mine.eps is None and mine.searched else ():
        if other.norm == mine.norm and other.eps is not None:
            within = other.nearest[other.norm] <= other.eps * (1 + ROUNDING)
            broken = np.isin(ids, other.nearest["sample"][within])
            yield from beyond(ends, other.eps, broken, "the attacks here")


def w22_undefended(comparison: Comparison) -> Iterator[Finding]:
    """The same attacks must break the same model without its defense."""
    if comparison.counterpart is None or not comparison.mine.breaks_undefended:
        return
    name, rate = comparison.counterpart
    if too_many(rate.hits, rate.count):
        yield Finding(
            "W22",
            f"'{name}' has no defense, but {100 * rate.value:.1f} % of the same samples "
            "withstood the same attacks there.",
            "The attacks do not even break a model without a defense: accuracy under them does "
            "not show robustness.",
            "stop",
        )


COMPARING: Sequence[Callable[[Comparison], Iterator[Finding]]] = (
    w02_monotone_budget,
    w19_goal_order,
    w20_norm_order,
    w21_consistency,
    w22_undefended,
)


def _searched(comparison: Comparison) -> tuple[Outline, np.ndarray, np.ndarray]:
    found = comparison.mine.smallest
    return comparison.mine, found["sample"], found["distance"]
