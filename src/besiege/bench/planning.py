"""Makes the plan of a resolved request, and checks that everything fits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from besiege.attacks.attack import Attack, parse
from besiege.attacks.combine import Minimal
from besiege.bench.across import targets_of
from besiege.bench.attack_lists import CURVE_STEPS
from besiege.bench.attack_spec import attack_spec
from besiege.bench.certify_text import read_certify
from besiege.bench.clever_text import read_clever
from besiege.bench.model_spec import model_spec, probe
from besiege.bench.plan import Plan
from besiege.bench.request import CURVE_SAMPLES, CURVE_TOLERANCE, ResolvedRequest
from besiege.bench.shards import CURVE_SHARD, described
from besiege.bench.spec import AttackSpec, DataSpec, Guard, Request, Searches
from besiege.bench.store import key_of
from besiege.core.errors import AttackError, BesiegeError, InputError, ThreatError
from besiege.core.knowledge import Knowledge
from besiege.core.threat import Access, Threat
from besiege.core.unchanged import once
from besiege.core.victim import Victim
from besiege.data.catalogue import CATALOGUE
from besiege.data.dataset import Data
from besiege.evaluation.blocking import must_have_gradient
from besiege.evaluation.certificates import must_certify
from besiege.evaluation.probing import must_keep_images
from besiege.evaluation.sampling import check_sampling

GUARDS = (("noise(steps=20)", 0.01), ("square(steps=300, rescale=True)", 0.06))
"""The attacks without gradients that test the others, on as many of the samples that were left as a
share of their passes pays for. The weakest comes first: what it breaks needs no search."""
OTHER_GUARD = "pgd", 0.03
"""The same for an attack that is crafted on another model."""
GUARD_SAMPLES = 4, 200
"""The fewest and the most samples that a guard is tried on first, of all shards together."""


def plan_of(resolved: ResolvedRequest) -> Plan:
    """The plan of a resolved request; an error where something does not fit."""
    request, victim = resolved.request, resolved.victim
    data, threat, first = resolved.data, resolved.threat, resolved.first(8)
    assert request.shard is not None, "resolve decides it"
    threat.check_units(victim.box, first.images[0].numel())
    if request.certify is not None:
        method, poll = read_certify(request.certify)
        must_certify(method, victim, first, threat, request.certify_seconds, poll)
    specs = [
        attack_spec(resolved, attack, threat, text)
        for text, attack in zip(request.attacks or (), resolved.attacks, strict=True)
    ]
    classes = once(probe, victim, first)
    _fits(data, classes, threat.target)
    if all(spec.access == "gradient" and spec.source is None for spec in specs):
        once(must_keep_images, victim, first)
    for model in _searched_by_gradient(resolved, specs):
        once(must_have_gradient, model, first, request.seed)
    if request.clever is not None:
        width = victim.box[1] - victim.box[0]
        radius = read_clever(request.clever).of(str(threat.norm), width).radius
        assert radius is not None, "every norm has one then"
        check_sampling(victim, threat, radius, tuple(first.images.shape[1:]), classes)
    shards = once(described, data, request.shard, victim, resolved.scaled)
    box = (0.0, 1.0) if resolved.scaled else victim.box  # of these pixels
    no_curve = _no_curve(request, threat, victim)
    return Plan(
        request=request,
        model=model_spec(victim, request, classes, data, box),
        data=DataSpec(
            name=data.name,
            split=data.split,
            count=len(data),
            total=data.total,
            seed=data.chosen_by if len(data) < data.total else None,
            # Images that are not decoded yet are read once, for the digests of their shards.
            digest=data.digest if data.decoded else key_of({"shards": [s.digest for s in shards]}),
            class_names=tuple(data.class_names),
            shape=tuple(first.images.shape[1:]),
            scaled=resolved.scaled,
            standard=_standard(data.name, threat),
            withheld=resolved.left_out,
        ),
        threat=str(threat),
        chained=resolved.chained,
        attacks=tuple(specs),
        shards=shards,
        no_curve=no_curve,
        searches=_searches(resolved) if no_curve is None else None,
        guards=_guards(resolved, len(shards)),
        across=targets_of(resolved.targets),
    )


def _guards(resolved: ResolvedRequest, shards: int) -> tuple[Guard, ...]:
    """Attacks without gradients that test those with gradients, where these need a test."""
    request, victim, threat = resolved.request, resolved.victim, resolved.threat
    restricted = request.substitute or request.queries is not None or threat.eps is None
    if restricted or not (request.examined and resolved.guardable):
        return ()
    if victim.stochastic or victim.metered or threat.access < Access.GRADIENT:
        return ()
    chosen = [(resolved, *guard) for guard in GUARDS]
    if resolved.other is not None:
        crafted_on = replace(resolved, knowledge=Knowledge(None, resolved.other))
        chosen.append((crafted_on, *OTHER_GUARD))
    guards = []
    for of, text, share in chosen:
        with suppress(AttackError, ThreatError):  # it may not fit the norm or the goal
            spec = attack_spec(of, parse(text), threat)
            least, most = (-(-count // shards) for count in GUARD_SAMPLES)
            guards.append(Guard(attack=spec, share=share, least=least, most=most))
    return tuple(guards)


def _searched_by_gradient(resolved: ResolvedRequest, specs: Sequence[AttackSpec]) -> list[Victim]:
    """The models whose gradients attacks use: the victim, a substitute, the undefended model."""
    used = {spec.source for spec in specs if spec.access == "gradient"}
    known = resolved.knowledge
    others = [model for model in (known.substitute, known.bare) if model is not None]
    victim = [resolved.victim] if None in used else []
    return victim + [model for model in others if model.digest() in used]


def _fits(data: Data, classes: int, target: int | None) -> None:
    """Refuse labels, and a target class, that the victim does not have."""
    highest = int(data.labels.max())
    if highest >= classes:
        row = int(data.labels.argmax())
        raise InputError(
            f"the data have the label {highest} (sample {int(data.ids[row])}), but the model has "
            f"{classes} classes, 0 to {classes - 1}: it was trained on other data, or the labels "
            "start at 1"
        )
    if data.name in CATALOGUE and classes > CATALOGUE[data.name].classes:
        there = CATALOGUE[data.name].classes
        more = ""
        if classes == there + 1:
            more = (
                ", or its last output means that an image is rejected. A rejection is no class: "
                "make the model a besiege.Victim with rejects = True, or put a detector behind it "
                "(besiege.defenses.Detected)"
            )
        raise InputError(
            f"the model has {classes} classes, but {data.name} has {there}: it was trained on "
            f"other data{more}"
        )
    if target is not None and target >= classes:
        raise InputError(
            f"the target class is {target}, but the model has {classes} classes, 0 to {classes - 1}"
        )


def _standard(name: str, threat: Threat) -> float | None:
    """The usual budget for these data."""
    usual = CATALOGUE[name].eps(threat.norm) if name in CATALOGUE else None
    return None if usual is None else float(usual)


def _no_curve(request: Request, threat: Threat, victim: Victim) -> str | None:
    """Why there is no curve of accuracy against the budget; None if there is one."""
    if request.curve == "none":
        return "It was not requested, so no budget was tried that breaks any model (W03)."
    if threat.eps is None:
        return "Every attack searches for the smallest perturbation: its distances are the curve."
    if victim.stochastic:
        return "The smallest success on a stochastic model is one lucky draw."
    if request.substitute:
        return "Images crafted on a substitute are sent once: a search would need many queries."
    if request.queries is not None:
        return "A search for the smallest perturbation needs more queries than the limit."
    if victim.metered and request.curve != "full":
        return "A search for the smallest perturbation needs many queries of a metered model."
    return None


def searched_data(resolved: ResolvedRequest) -> tuple[Data, int]:
    """The samples of the curve, and the size of its shards."""
    request, data = resolved.request, resolved.data
    if request.curve == "short" and len(data) > CURVE_SAMPLES:
        data = data.subset(CURVE_SAMPLES, request.seed)
    assert request.shard is not None, "resolve decides it"
    return data, min(request.shard, CURVE_SHARD)


def searcher(attack: Attack, short: bool) -> Attack:
    """The search for the smallest perturbation by an attack; a short one takes fewer steps."""
    if attack.access is not Access.GRADIENT or not short:
        return attack if attack.minimal else Minimal(attack)
    attack = _with_steps(attack, CURVE_STEPS)
    return attack if attack.minimal else Minimal(attack, tolerance=CURVE_TOLERANCE)


def _searches(resolved: ResolvedRequest) -> Searches:
    """The search of every attack; only that of the strongest attack is run."""
    data, size = searched_data(resolved)
    free = replace(resolved.threat, eps=None, written=None)
    short = resolved.request.curve == "short"
    specs: list[AttackSpec | str] = []
    for attack in resolved.attacks:
        if attack.oblivious:
            specs.append("Images crafted on the undefended model are sent once: nothing searches.")
            continue
        if short and attack.access < Access.GRADIENT and not attack.minimal:
            specs.append(
                "Query-based attacks need many queries to search for the smallest perturbation: "
                "request the full curve."
            )
            continue
        try:
            specs.append(attack_spec(resolved, searcher(attack, short), free))
        except BesiegeError as problem:  # the other figures do not need a curve
            specs.append(f"The strongest attack cannot search: {problem}")
    shards = once(described, data, size, resolved.victim, resolved.scaled)
    return Searches(attacks=tuple(specs), shards=shards)


def _with_steps(attack: Attack, steps: int) -> Attack:
    """The attack and its parts with at most `steps` steps."""
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
