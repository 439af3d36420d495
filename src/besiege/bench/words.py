"""What the attacker may do and what is missing of an evaluation, as sentences."""

from __future__ import annotations

import numpy as np

from besiege.bench.plan import Plan
from besiege.bench.reading import Gathered
from besiege.core.errors import Finding
from besiege.core.threat import Goal, Linf, Norm, Threat
from besiege.metrics.evidence import Evidence
from besiege.metrics.figures import expected_accuracy
from besiege.metrics.values import Draws


def in_words(plan: Plan, evidence: Evidence, chance: Draws | None) -> str:
    """What the attacker may do, on what images were crafted, and how the model was judged."""
    threat = Threat.parse(plan.threat)
    allowed = threat_in_words(threat, plan.model.box, plan.request.queries, plan.data.shape)
    return allowed + _transfer(plan) + _chance(plan, evidence, chance)


def _chance(plan: Plan, evidence: Evidence, chance: Draws | None) -> str:
    """How a stochastic model was judged, and its accuracy in expectation."""
    if not plan.model.stochastic:
        return ""
    judged = (
        f" The model answers by chance: every image was judged by {plan.model.draws} draws, and "
        "counts as broken when half of them or more are. "
    )
    if chance is not None:
        return judged + (
            f"Over {chance.evaluations} evaluations of one draw each the accuracy under the "
            f"worst attack is {100 * chance.robust.mean:.1f} % on average, with a standard "
            f"deviation of {100 * chance.robust.deviation:.2f} points."
        )
    expected = expected_accuracy(evidence)
    known = "unknown" if expected is None else f"{100 * expected:.1f} %"
    return judged + f"In expectation over its draws the accuracy under the worst attack is {known}."


def _transfer(plan: Plan) -> str:
    """That images were crafted on another model than the one they are judged on, if they were."""
    several = " and ".join(plan.request.substitute)
    if any(spec.source is not None for spec in plan.attacks):
        return (
            f" Attacks that need gradients were crafted on a substitute ({several}), not on the "
            "model itself, which was shown each image once: what they leave standing may still "
            "fall to an attack on the model."
        )
    return f" The attacker also has a model of its own: {several}." if several else ""


def threat_in_words(
    threat: Threat, box: tuple[float, float], queries: int | None, shape: tuple[int, ...]
) -> str:
    """A threat as sentences."""
    size = "any size, the smallest that works" if threat.eps is None else threat.written
    width = box[1] - box[0]
    if threat.eps is None:
        what = f"The attacker looks for the smallest change in the {threat.norm} norm that works."
    elif threat.norm is Linf:
        grey = 255 * threat.radius / width
        what = (
            f"Every pixel value may change by at most {size} (pixels range from {box[0]:g} to "
            f"{box[1]:g}; that is about {grey:.3g} of 255 grey levels)."
        )
    elif threat.norm is Norm.L2:
        rms = threat.radius / float(np.prod(shape)) ** 0.5 / width * 255
        what = (
            f"The change, as a vector of all pixel values, may have a Euclidean length of at most "
            f"{size} (spread evenly, about {rms:.2g} of 255 grey levels for every value)."
        )
    elif threat.norm is Norm.L1:
        what = f"The changes of all pixel values may add up to at most {size}."
    else:
        what = f"At most {size} values of the image may change, each as far as it likes."
    goals = {
        Goal.UNTARGETED: "Any wrong answer counts as a success.",
        Goal.RANDOM: "Success means that the model answers one wrong class, chosen at random.",
        Goal.LEAST_LIKELY: "Success means the class that seemed least likely at first.",
        Goal.SECOND: "Success means the wrong class that seemed likeliest at first.",
        Goal.GIVEN: "Success means the class that was given for each image.",
    }
    sees = {
        "gradient": "The attacker knows the model completely, its gradients included.",
        "score": "The attacker sees the model's scores for every class, not its inside.",
        "decision": "The attacker sees only the class the model answers.",
    }[str(threat.access)]
    asks = "" if queries is None else f" At most {queries} answers may be used for each image."
    return f"{what} {goals[threat.goal]} {sees}{asks}"


def incomplete(gathered: Gathered) -> list[Finding]:
    """The findings about missing records: figures may look good only for lack of them."""
    found = []
    for attack, failure in gathered.failures.items():
        found.append(
            Finding(
                "FAILED",
                f"'{attack}' failed on part of the samples: {failure}",
                "It counts as not run there, never as robustness. Running again tries it again.",
                "error",
            )
        )
    curve = gathered.plan.curve
    if gathered.missing:
        parts = ", ".join(f"{name} ({n})" for name, n in sorted(gathered.missing.items()))
        seen = f"records are missing: {parts}."
        advice = "The figures are of what is there. Running the same command again goes on."
        if curve is not None and set(gathered.missing) == {curve.attack.text}:
            found.append(Finding("UNFINISHED", seen, advice, "note"))
        else:
            found.append(Finding("UNFINISHED", seen, advice, "error"))
    for text in gathered.damaged:
        found.append(
            Finding("DAMAGED", f"{text}.", "Running the same command again redoes it.", "error")
        )
    return found
