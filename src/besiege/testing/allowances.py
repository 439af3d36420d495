"""Exceptions from the laws with their reasons, and the factors of law 7."""

from __future__ import annotations

from collections.abc import Mapping

from besiege.attacks.attack import Attack, parse
from besiege.core.threat import L0, L1, L2, Linf, Norm
from besiege.testing.trial import STRONG, parts_of, shortened

Exceptions = Mapping[str, Mapping[str, str]]
"""Attack name to law, or part of a law (``law:part``), to the reason."""

_ONE_STEP = "one step may overshoot: a larger budget is a longer jump, not a longer search"
_THROUGH = (
    "gradients are computed through a map, so that only the last iterate is examined, and a longer "
    "run ends elsewhere"
)
_NEIGHBOURS = (
    "it uses gradients of shifted images, and the linear victim's neighbours are unrelated"
)
_ONE_FOR_ALL = (
    "without a file it is fitted on the rows it is given: one perturbation for all of them, which "
    "depends on the rows"
)
_OPPOSITE = (
    "two linear classes lie opposite each other, and moving one across the boundary moves the "
    "other away from it: no single perturbation fools both"
)
_LAST_QUERY = (
    "without a file it ends its fit when one query is left, and sends the perturbation it has "
    "then: with a smaller budget it succeeds earlier"
)
_LAST_EXAMINES = (
    "no iterate but the last is examined, for which it keeps its last query: with a smaller budget "
    "an earlier iterate is the last"
)
_FIRST_RADIUS = (
    "its steps are queries, and the first eight of the twenty allowed here measure the distance of "
    "one corner of the box: too few are left to choose signs"
)
_QUERIES = (
    "its steps are queries, and the twenty allowed here bring a start of another class no nearer "
    "than noise"
)
_AT_RANDOM = (
    "every point is a random one, and a point farther away in the same direction may be classified "
    "correctly again"
)
_CURVATURE = (
    "it divides by second differences of scores, which are as small as their rounding where the "
    "victim is nearly linear: other rounding leads to other iterates"
)

EXCEPTIONS: Exceptions = {
    "evolutionary": {"not_idle:noise": _QUERIES},
    "fgsm": {"more_never_hurts:eps": _ONE_STEP},
    "rfgsm": {"more_never_hurts:eps": _ONE_STEP},
    "llc": {"more_never_hurts:eps": _ONE_STEP},
    "rllc": {"more_never_hurts:eps": _ONE_STEP},
    "dim": {
        "more_never_hurts:steps": _THROUGH,
        "not_idle:linear": _NEIGHBOURS,
        "honest_accounts:moment": _LAST_EXAMINES,
    },
    "noise": {"more_never_hurts:eps": _AT_RANDOM},
    "rays": {"not_idle:noise": _FIRST_RADIUS},
    "sinifgsm": {
        "more_never_hurts:steps": _THROUGH,
        "honest_accounts:moment": _LAST_EXAMINES,
    },
    "tim": {"not_idle:linear": _NEIGHBOURS},
    "zoo": {"scale_and_classes:rounding": _CURVATURE},
    "uap": {
        "row_independent": _ONE_FOR_ALL,
        "not_idle:linear": _OPPOSITE,
        "honest_accounts:moment": _LAST_QUERY,
    },
}

FACTOR = 1.5
"""The default factor: how many times the known distance of the linear victim an attack may need."""

_SHARP = 1.001
# Steps of a fixed length zigzag around the optimum in l2 and l1.
_STEPS = {Linf: _SHARP, L2: 1.005, L1: 1.05}

FACTORS: Mapping[str, float | Mapping[Norm, float]] = {
    "fgsm": _SHARP,
    "llc": _SHARP,
    # Half of the budget goes to random signs, which may point back.
    "rfgsm": 6.0,
    "rllc": 6.0,
    # Twenty steps; a hundred come within 1.003 in l2 and 1.02 in l1, where signs flip to and fro.
    "alma": {L2: 1.1, L1: 1.2},
    "blb": 1.01,
    # Twenty steps a round. In l0 it ranks pixel values by change times gradient, not by room.
    "cw": {Linf: 1.02, L2: 1.01, L0: 1.5},
    # It shrinks in l1 and penalises l2: published runs stay a fifth above the optimum in l1, too.
    "ead": {L2: 1.4, L1: 1.4},
    # All copies must be beyond the boundary, not only the point.
    "optmargin": {L2: 1.45},
    # Twenty steps of a search among sets of pixel values.
    "sigmazero": {L0: 1.5},
    "deepfool": _SHARP,
    "superdeepfool": _SHARP,
    "fab": _SHARP,
    "fabt": _SHARP,
    "bim": _STEPS,
    "illc": _STEPS,
    "mim": _STEPS,
    "pgd": _STEPS,
    # Twenty steps; a corner is found one pixel value at a time, with estimated signs.
    "opt": {Linf: 1.5, L2: 1.05},
    "signopt": {Linf: 1.1, L2: 1.05},
    # Twenty queries, half of which flip signs; four hundred come within 1.01.
    "rays": 5.0,
    "sinifgsm": {Linf: _SHARP, L2: 1.06},
    # Twenty queries of random walks; a thousand come within 1.01.
    "boundary": 5.0,
    "evolutionary": 8.0,
    # In l1 the optimum is a few whole pixel values, which an estimate may rank wrongly.
    "geoda": {Linf: 1.5, L2: 1.5, L1: 2.5},
    # Twenty steps along estimates; signs of small gradients are guessed, which matters in linf.
    "nes": {Linf: 1.4, L2: 1.08},
    "nes_partial": {Linf: 1.35, L2: 1.15},
    "nes_labels": {Linf: 1.6, L2: 1.25},
    "spsa": 1.25,
    "rgf": {Linf: 1.15, L2: 1.04},
    "prgf": 1.04,
    "nattack": 1.04,
    "zoo": 1.04,
    # Twenty steps of two queries each, along the prior learned so far.
    "bandits": 3.0,
    # Twenty random proposals; a thousand come within 1.005 in linf, and 1.5 in l2.
    "square": {Linf: 4.0, L2: 6.0, L1: 8.0},
    # Twenty random points, none of which learns from the others.
    "noise": {Linf: 4.0, L2: 6.0, L1: 6.0, L0: 2.0},
}
"""The factors of attacks that were measured: one number, or one per norm."""

SEARCHES: Mapping[str, float] = {"minimal": 1.005}
"""By how much a combinator's own search multiplies the factor of the attack it runs."""


def excused(attack: Attack, law: str, exceptions: Exceptions) -> str | None:
    """The reason for which an attack, or one it is made of, is excepted from a law or part."""
    reasons = (exceptions.get(part.title(), {}).get(law) for part in parts_of(attack))
    return next((reason for reason in reasons if reason is not None), None)


def factor(attack: Attack, norm: Norm) -> float:
    """The factor of law 7: that of the attack, or the largest among those it is made of.

    A registered attack with other parameters is another attack, which was not measured.
    """
    inner = [factor(part, norm) for part in parts_of(attack) if part is not attack]
    if inner:
        return max(inner) * SEARCHES.get(attack.title(), 1.0)
    known = FACTORS.get(attack.title())
    if known is None or shortened(parse(attack.title()), STRONG) != attack:
        return FACTOR
    return known if isinstance(known, (int, float)) else known.get(norm, FACTOR)
