"""From what was request to the plan: everything checked, and its curve once attacks have run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from besiege.attacks.attack import Attack
from besiege.attacks.combine import Minimal
from besiege.bench.attack_spec import attack_spec
from besiege.bench.knowledge import Knowledge
from besiege.bench.model_spec import model_spec, probe
from besiege.bench.reading import gather
from besiege.bench.request import CURVE_SAMPLES, CURVE_STEPS, CURVE_TOLERANCE, ResolvedRequest
from besiege.bench.results import strongest
from besiege.bench.shards import CURVE_SHARD, described, shards_of
from besiege.bench.spec import Curve, DataSpec, Plan, Request
from besiege.bench.store import Store, key_of
from besiege.core.errors import BesiegeError, InputError
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.data.catalogue import CATALOGUE
from besiege.data.dataset import Data
from besiege.evaluation.probing import must_keep_images


def plan_of(resolved: ResolvedRequest, request: Request, knowledge: Knowledge) -> Plan:
    """Check that everything fits, and write down what the records will be made of."""
    victim, data, threat = resolved.victim, resolved.data, resolved.threat
    first = resolved.first(8)
    threat.check_units(victim.box, first.images[0].numel())
    specs = [
        attack_spec(victim, attack, threat, first, request, knowledge)
        for attack in resolved.attacks.values()
    ]
    classes = probe(victim, first)
    _fits(data, classes)
    attacks = resolved.attacks.values()
    if all(one.access is Access.GRADIENT and not knowledge.crafts(one) for one in attacks):
        must_keep_images(victim, first)
    shards = described(data, request.shard, victim, resolved.scaled)
    return Plan(
        request=request,
        model=model_spec(victim, request, classes),
        data=DataSpec(
            name=data.name,
            split=data.split,
            count=len(data),
            total=data.total,
            seed=request.seed if len(data) < data.total else None,
            # Undecoded images are looked at once for their shards; that says as much.
            digest=data.digest if data.decoded else key_of({"shards": [s.digest for s in shards]}),
            class_names=tuple(data.class_names),
            shape=tuple(first.images.shape[1:]),
            scaled=resolved.scaled,
            standard=_standard(data.name, threat),
        ),
        threat=str(threat),
        chained=resolved.chained,
        attacks=tuple(specs),
        shards=shards,
        no_curve=_no_curve(request, threat, victim),
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


def _no_curve(request: Request, threat: Threat, victim: Victim) -> str | None:
    """Why no curve of accuracy against the budget is to be expected, if none is."""
    if request.curve == "none":
        return "It was not request for."
    if threat.eps is None:
        return "Every attack looks for the smallest change: their own distances are the curve."
    if victim.stochastic:
        return "The smallest change that fools a model which answers by chance is one draw of luck."
    if request.substitute:
        return "What is crafted on a substitute is tried once: a search would be many queries."
    if request.queries is not None:
        return "A search for the smallest change takes more answers than were allowed."
    if victim.metered and request.curve != "full":
        return "A search for the smallest change takes many answers, which are counted here."
    return None


def with_curve(
    store: Store,
    resolved: ResolvedRequest,
    plan: Plan,
    attacks: Mapping[str, Attack],
    knowledge: Knowledge,
) -> tuple[Plan, Attack | None, list[Callable[[], Data]]]:
    """The plan with a search for the smallest change by the strongest attack, where one fits.

    With it come the attack that searches, and what makes each of its shards.
    """
    best = strongest(gather(store, plan)) if plan.no_curve is None else None
    if best is None:
        return plan, None, []
    attack, subset, tolerance = attacks[best.text], resolved.data, Minimal.tolerance
    if plan.request.curve == "short" and attack.access < Access.GRADIENT and not attack.minimal:
        said = "Attacks that ask take many answers to search for the smallest change: ask in full."
        return plan.model_copy(update={"curve": None, "no_curve": said}), None, []
    if plan.request.curve == "short" and attack.access is Access.GRADIENT:
        attack, tolerance = _with_steps(attack, CURVE_STEPS), CURVE_TOLERANCE
    if plan.request.curve == "short" and len(subset) > CURVE_SAMPLES:
        subset = subset.subset(CURVE_SAMPLES, plan.request.seed)
    searcher = attack if attack.minimal else Minimal(attack, tolerance=tolerance)
    free, few = replace(resolved.threat, eps=None, written=None), resolved.first(1)
    try:
        spec = attack_spec(resolved.victim, searcher, free, few, plan.request, knowledge)
    except BesiegeError as problem:  # the other figures stand without a curve
        said = f"The strongest attack cannot search: {problem}"
        return plan.model_copy(update={"curve": None, "no_curve": said}), None, []
    size = min(plan.request.shard, CURVE_SHARD)
    shards = described(subset, size, resolved.victim, resolved.scaled)
    curve = Curve(attack=spec, shards=shards)
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
