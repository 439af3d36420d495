"""From what was asked to the plan: everything checked, and its curve once attacks have run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from besiege.attacks.attack import Attack
from besiege.attacks.combine import Minimal
from besiege.bench.aids import Aids
from besiege.bench.asking import CURVE_SAMPLES, CURVE_STEPS, CURVE_TOLERANCE, Question
from besiege.bench.reading import gather
from besiege.bench.results import strongest
from besiege.bench.shards import CURVE_SHARD, described, shards_of
from besiege.bench.spec import Asked, Curve, Plan, Sample
from besiege.bench.store import Store, key_of
from besiege.bench.subject import probe, subject_of
from besiege.bench.weapons import weapon_of
from besiege.core.errors import BesiegeError, InputError
from besiege.core.oracle import Victim
from besiege.core.threat import Access, Threat
from besiege.data.catalogue import CATALOGUE
from besiege.data.dataset import Data
from besiege.evaluation.probing import must_keep_images


def plan_of(question: Question, asked: Asked, aids: Aids) -> Plan:
    """Check that everything fits, and write down what the records will be made of."""
    victim, data, threat = question.victim, question.data, question.threat
    first = question.first(8)
    threat.check_units(victim.box, first.images[0].numel())
    weapons = [
        weapon_of(victim, attack, threat, first, asked, aids)
        for attack in question.attacks.values()
    ]
    classes = probe(victim, first)
    _fits(data, classes)
    attacks = question.attacks.values()
    if all(one.access is Access.GRADIENT and not aids.crafts(one) for one in attacks):
        must_keep_images(victim, first)
    shards = described(data, asked.shard, victim, question.scaled)
    return Plan(
        asked=asked,
        model=subject_of(victim, asked, classes),
        data=Sample(
            name=data.name,
            split=data.split,
            count=len(data),
            total=data.total,
            seed=asked.seed if len(data) < data.total else None,
            # Undecoded images are looked at once for their shards; that says as much.
            digest=data.digest if data.decoded else key_of({"shards": [s.digest for s in shards]}),
            class_names=tuple(data.class_names),
            shape=tuple(first.images.shape[1:]),
            scaled=question.scaled,
            standard=_standard(data.name, threat),
        ),
        threat=str(threat),
        chained=question.chained,
        weapons=tuple(weapons),
        shards=shards,
        no_curve=_no_curve(asked, threat, victim),
    )


def _fits(data: Data, classes: int) -> None:
    """Refuse labels that the victim cannot answer."""
    highest = int(data.labels.max())
    if highest >= classes:
        row = int(data.labels.argmax())
        raise InputError(
            f"the data have the label {highest} (sample {int(data.ids[row])}), but the model "
            f"answers {classes} classes, 0 to {classes - 1}: these data are not what it was "
            "trained on, or their labels start at 1"
        )


def _standard(name: str, threat: Threat) -> float | None:
    """The budget these data are usually attacked with."""
    usual = CATALOGUE[name].eps(threat.norm) if name in CATALOGUE else None
    return None if usual is None else float(usual)


def _no_curve(asked: Asked, threat: Threat, victim: Victim) -> str | None:
    """Why no curve of accuracy against the budget is to be expected, if none is."""
    if asked.curve == "none":
        return "It was not asked for."
    if threat.eps is None:
        return "Every attack looks for the smallest change: their own distances are the curve."
    if victim.stochastic:
        return "The smallest change that fools a model which answers by chance is one draw of luck."
    if asked.substitute:
        return "What is crafted on a substitute is tried once: a search would be many queries."
    if asked.queries is not None:
        return "A search for the smallest change takes more answers than were allowed."
    if victim.metered and asked.curve != "full":
        return "A search for the smallest change takes many answers, which are counted here."
    return None


def with_curve(
    store: Store, question: Question, plan: Plan, attacks: Mapping[str, Attack], aids: Aids
) -> tuple[Plan, Attack | None, list[Callable[[], Data]]]:
    """The plan with a search for the smallest change by the strongest attack, where one fits.

    With it come the attack that searches, and what makes each of its shards.
    """
    best = strongest(gather(store, plan)) if plan.no_curve is None else None
    if best is None:
        return plan, None, []
    attack, subset, tolerance = attacks[best.text], question.data, Minimal.tolerance
    if plan.asked.curve == "short" and attack.access < Access.GRADIENT and not attack.minimal:
        said = "Attacks that ask take many answers to search for the smallest change: ask in full."
        return plan.model_copy(update={"curve": None, "no_curve": said}), None, []
    if plan.asked.curve == "short" and attack.access is Access.GRADIENT:
        attack, tolerance = _with_steps(attack, CURVE_STEPS), CURVE_TOLERANCE
    if plan.asked.curve == "short" and len(subset) > CURVE_SAMPLES:
        subset = subset.subset(CURVE_SAMPLES, plan.asked.seed)
    searcher = attack if attack.minimal else Minimal(attack, tolerance=tolerance)
    free, few = replace(question.threat, eps=None, written=None), question.first(1)
    try:
        weapon = weapon_of(question.victim, searcher, free, few, plan.asked, aids)
    except BesiegeError as problem:  # the other figures stand without a curve
        said = f"The strongest attack cannot search: {problem}"
        return plan.model_copy(update={"curve": None, "no_curve": said}), None, []
    size = min(plan.asked.shard, CURVE_SHARD)
    shards = described(subset, size, question.victim, question.scaled)
    curve = Curve(weapon=weapon, shards=shards)
    return plan.model_copy(update={"curve": curve}), searcher, shards_of(subset, size)


def _with_steps(attack: Attack, steps: int) -> Attack:
    """The attack with at most so many steps, its parts too."""
    changes: dict[str, Any] = {}
    for f in fields(attack):  # type: ignore[arg-type]  # every attack is a dataclass
        value = getattr(attack, f.name)
        if f.name == "steps" and isinstance(value, int) and value > steps:
            changes["steps"] = steps
        elif isinstance(value, Attack):
            changes[f.name] = _with_steps(value, steps)
        elif isinstance(value, tuple) and value and all(isinstance(v, Attack) for v in value):
            changes[f.name] = tuple(_with_steps(v, steps) for v in value)
    return replace(attack, **changes) if changes else attack  # type: ignore[type-var]
