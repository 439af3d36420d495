"""Attacks as a plan holds them: whom they ask, within what, and on which terms."""

from __future__ import annotations

from dataclasses import replace

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, spelled, told
from besiege.attacks.combine import Averaged, Combined, EachTarget, Minimal, Repeat
from besiege.bench.request import ResolvedRequest
from besiege.bench.spec import AttackSpec
from besiege.core.threat import Access, Threat
from besiege.evaluation.approach import Approach, approach
from besiege.evaluation.checking import check


def fitting_approach(resolved: ResolvedRequest, attack: Attack, threat: Threat) -> Approach:
    """How an attack of a request is run; one that does not fit is refused."""
    request, substitute = resolved.request, resolved.knowledge.substitute
    found = approach(resolved.victim, attack, threat, substitute, queries=request.queries)
    check(
        found.searched,
        attack,
        found.threat,
        resolved.first(8),
        keep=found.keep,
        leave=found.leave,
        queries=found.queries,
        seed=request.seed,
        substitute=substitute,
    )
    return found


def attack_spec(resolved: ResolvedRequest, attack: Attack, threat: Threat) -> AttackSpec:
    """The attack, checked against the victim, with all that its records depend on."""
    found = fitting_approach(resolved, attack, threat)
    victim, starts = resolved.victim, resolved.knowledge.starts
    steps = getattr(attack, "steps", None)
    shape = tuple(resolved.first(1).images.shape[1:])
    most = passes(attack, shape, victim.classes or 10)
    ascends = isinstance(attack, Ascent) and resolved.request.queries is None
    return AttackSpec(
        text=str(attack),
        described=told(attack),
        spelled=spelled(attack),
        # Equal budgets may be written in several ways; the key has one.
        threat=str(replace(found.threat, written=None)),
        keep=found.keep,
        leave=found.leave,
        queries=found.queries,
        steps=steps if isinstance(steps, int) else None,
        restarts=int(getattr(attack, "restarts", 1)),
        plain=ascends and not found.transfer,
        one_step=attack.one_step and not isinstance(attack, Combined),
        passes=most if found.queries is None else min(most, found.queries),
        access=str(attack.access),  # type: ignore[arg-type]  # one of the three
        source=found.searched.digest() if found.transfer else None,
        advice=None if found.advice is None else found.advice.digest(),
        starts=starts.digest if attack.uses_starts and starts is not None else None,
    )


def passes(attack: Attack, shape: tuple[int, ...], classes: int) -> int:
    """About how many answers an attack takes for a sample it does not break: for time left."""
    inner = [passes(part, shape, classes) for part in getattr(attack, "parts", ())]
    match attack:
        case Minimal():
            return 10 * inner[0]
        case EachTarget():
            return (attack.count or 9) * inner[0]
        case Repeat():
            return attack.times * inner[0]
        case Averaged():
            return attack.count * inner[0]
    if inner:
        return sum(inner)
    if attack.access < Access.GRADIENT and (most := attack.cost(shape, classes)) is not None:
        return most
    steps, again = getattr(attack, "steps", 100), getattr(attack, "restarts", 1)
    return max(1, int(steps) * int(again) * int(getattr(attack, "targets", 1)))
