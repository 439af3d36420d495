"""Sentences about an evaluation: what the attacker may do, and which records are missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from besiege.attacks.suites import SUITES
from besiege.bench.plan import Plan
from besiege.bench.reading import Gathered
from besiege.core.attack_registry import OBLIVIOUS
from besiege.core.errors import Finding
from besiege.core.threat import Goal, Threat
from besiege.metrics.attack_values import Sizes
from besiege.metrics.defense_values import Draws
from besiege.metrics.evidence import Evidence
from besiege.metrics.figures import expected_accuracy
from besiege.metrics.intervals import Rate
from besiege.metrics.values import EvaluationFigures

_NAME = 40
"""Longest name of an attack beside which other rows are aligned."""


def in_words(plan: Plan, evidence: Evidence, chance: Draws | None) -> str:
    """What the attacker may do, the model crafted on, and how a stochastic model was judged."""
    threat = Threat.parse(plan.threat)
    about = plan.model.box, plan.request.queries, plan.data.shape, plan.data.class_names
    allowed = threat_in_words(threat, *about)
    if plan.model.rejects:
        allowed += " The model may reject an image, which is then no success."
    return allowed + _transfer(plan) + _chance(plan, evidence, chance)


def _chance(plan: Plan, evidence: Evidence, chance: Draws | None) -> str:
    """How a stochastic model was judged, and its accuracy in expectation."""
    if not plan.model.stochastic:
        return ""
    judged = (
        f" The model is stochastic: every image was judged with {plan.model.draws} draws, and "
        "counts as broken when at least half of them are successes. "
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
    """Sentences about the models that attacks were crafted on, if not on the victim."""
    several = " and ".join(plan.request.substitute)
    crafted = [spec for spec in plan.attacks if spec.source is not None]
    ignoring = [spec.title for spec in crafted if spec.spelled["name"] == OBLIVIOUS]
    words = f" The attacker also has a model of its own: {several}." if several else ""
    if len(crafted) > len(ignoring):
        words = (
            f" Attacks that need gradients were crafted on a substitute ({several}), and the model "
            "itself got each image once: an attack on the model may break more images."
        )
    if ignoring:
        words += (
            f" {' and '.join(ignoring)} ignored the defense: crafted on the undefended model "
            "(transfer), each image was sent to the model once."
        )
    return words


def class_in_words(number: int, names: Sequence[str]) -> str:
    """A class by number and, where it has another one, name.

    Examples
    --------
    >>> class_in_words(3, ["plane", "car", "bird", "cat"]), class_in_words(1, ["0", "1"])
    ('class 3 (cat)', 'class 1')
    """
    name = names[number] if number < len(names) else str(number)
    return f"class {number}" if name == str(number) else f"class {number} ({name})"


def threat_in_words(
    threat: Threat,
    box: tuple[float, float],
    queries: int | None,
    shape: tuple[int, ...],
    class_names: Sequence[str] = (),
) -> str:
    """A threat as sentences."""
    if threat.eps is None:
        what = f"The attacker searches for the smallest perturbation in the {threat.norm} norm."
    else:
        size, values = str(threat.written), int(np.prod(shape))
        what = threat.norm.allowance(size, threat.radius, box, values)
    goals = {
        Goal.UNTARGETED: "Any wrong class counts as a success.",
        Goal.RANDOM: "Only one wrong class, chosen at random for each image, counts as a success.",
        Goal.LEAST_LIKELY: "Only the least likely class of the clean image counts as a success.",
        Goal.SECOND: "Only the likeliest wrong class of the clean image counts as a success.",
        Goal.GIVEN: "Only the class given for each image counts as a success.",
    }
    sees = {
        "gradient": "The attacker knows the model completely, its gradients included.",
        "score": "The attacker sees only the model's scores for every class.",
        "decision": "The attacker sees only the class that the model predicts.",
    }[str(threat.access)]
    if threat.target is not None:
        one = class_in_words(threat.target, class_names)
        goals[Goal.GIVEN] = f"Only {one} counts as a success; its own images are left out."
    limit = "" if queries is None else f" The attacker has at most {queries} queries per image."
    return f"{what} {goals[threat.goal]} {sees}{limit}"


def in_lines(found: EvaluationFigures, change: str = "") -> str:
    """The result as Python prints it: one line for each figure, attack and warning.

    `change` is a line about the earlier result.
    """
    rows = [("clean", _aligned(found.clean))]
    if found.distances is not None:
        sizes, norm = found.distances, found.threat.norm
        share = Rate.of(sizes.count - sizes.all.unbroken, sizes.count)
        rows.append(("smallest", f"{_found(sizes.all, sizes.count)}, {share} (in {norm})"))
        attacks = [(one.text, _found(one, sizes.count)) for one in sizes.attacks]
    else:
        unknown = "unknown: no image was judged under every attack"
        rows.append(("robust", unknown if found.robust is None else _aligned(found.robust)))
        rates = {one.text: one.accuracy for one in found.attacks if one.accuracy is not None}
        attacks = [(text, _aligned(rate)) for text, rate in rates.items()]
    widest = min(_NAME, max(len(name) for name, _ in [*rows, *attacks]))
    lines = [f"{name:{widest}}  {value}" for name, value in [*rows, *attacks]]
    lines[len(rows) : len(rows)] = [change] if change else []
    title = f"{found.model.name} on {found.data.name}, {found.threat.text}"
    return "\n  ".join([title, *lines, *map(str, found.warnings)])


def _aligned(rate: Rate | None) -> str:
    """A rate whose percent sign stands below those of others."""
    share, sign, rest = str(rate).partition(" %")
    return f"{share:>5}{sign}{rest}"


def _found(sizes: Sizes, count: int) -> str:
    """The median smallest perturbation, and for how many images one was found."""
    median = "infinite" if sizes.median is None else f"{sizes.median:.4g}"
    return f"median {median}, found for {count - sizes.unbroken} of {count} images"


def origin(suite: str | None, attacks: Collection[str] = ()) -> str:
    """Whose code a named suite is, and what it left out of the attacks it ran; else empty."""
    known = None if suite is None else SUITES.get(suite)
    if known is None:
        return ""
    ignores = known.ignores
    if ignores is None or ignores in attacks:
        return known.origin
    return f"{ignores} was left out where there is no undefended model to craft it on."


def incomplete(gathered: Gathered) -> list[Finding]:
    """Findings about missing records, without which figures may be too good."""
    found = []
    for attack, failure in gathered.failures.items():
        found.append(
            Finding(
                "FAILED",
                f"'{attack}' failed on part of the samples: {failure}",
                "These samples count as not attacked, never as robust. Run the same command again "
                "to repeat it.",
                "stop",
            )
        )
    curve = gathered.plan.curve
    if gathered.missing:
        shards = {stage.name: len(stage.parts) for stage in gathered.plan.stages()}
        parts = [f"{name} ({n} of {shards[name]})" for name, n in gathered.missing.items()]
        seen = f"shards are missing: {', '.join(parts)}."
        advice = "The figures cover the existing records. Run the same command again to resume."
        if curve is not None and set(gathered.missing) == {curve.attack.title}:
            found.append(Finding("UNFINISHED", seen, advice, "note"))
        else:
            found.append(Finding("UNFINISHED", seen, advice, "stop"))
    redo = "Run the same command again to repeat it."
    return found + [Finding("DAMAGED", f"{text}.", redo, "stop") for text in gathered.damaged]


def told_apart(traits: Sequence[Sequence[str]]) -> list[str]:
    """A text for each of several things: the first of their traits that tell them apart.

    Those that no trait tells apart are numbered.

    Examples
    --------
    >>> told_apart([("linf", "100 queries"), ("linf", "200 queries"), ("l2", "100 queries")])
    ['linf, 100 queries', 'linf, 200 queries', 'l2, 100 queries']
    """
    marks: list[tuple[str, ...]] = [() for _ in traits]
    for column in zip(*traits, strict=True):
        longer = [(*mark, trait) for mark, trait in zip(marks, column, strict=True)]
        if len(set(longer)) > len(set(marks)):
            marks = longer
    if len(set(marks)) < len(traits):
        marks = [(*mark, str(number)) for number, mark in enumerate(marks, 1)]
    return [", ".join(filter(None, mark)) for mark in marks]
