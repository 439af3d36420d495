"""Attacks as a plan holds them: whom they ask, within what, and on which terms."""

from __future__ import annotations

from dataclasses import replace

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, spelled, told
from besiege.attacks.combine import Averaged, Combined, EachTarget, Minimal, Repeat
from besiege.bench.aids import Aids, terms_on
from besiege.bench.spec import Asked, Weapon
from besiege.bench.subject import digest_of
from besiege.core.oracle import Victim
from besiege.core.record import Keep, Leave
from besiege.core.samples import Samples
from besiege.core.threat import Access, Threat
from besiege.evaluation.checking import check
from besiege.evaluation.crafting import terms


def check_fit(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    samples: Samples,
    queries: int | None,
    seed: int,
    aids: Aids,
) -> tuple[Victim, Threat, Keep, Leave]:
    """Refuse what does not fit; whom the attack asks, within what, and on which terms."""
    searched, on = victim, threat
    keep, leave = terms(victim, attack, threat)
    if aids.crafts(attack):
        assert aids.substitute is not None
        searched, on = aids.substitute, terms_on(threat)
        if threat.eps is not None:
            # What just crosses the substitute's boundary does not cross another's.
            keep, leave = "last", "end"
    check(
        searched,
        attack,
        on,
        samples,
        keep=keep,
        leave=leave,
        queries=None if searched is not victim else queries,
        seed=seed,
        substitute=aids.substitute,
    )
    return searched, on, keep, leave


def weapon_of(
    victim: Victim, attack: Attack, threat: Threat, samples: Samples, asked: Asked, aids: Aids
) -> Weapon:
    """The attack, checked against the victim, with all that its records depend on."""
    searched, on, keep, leave = check_fit(
        victim, attack, threat, samples, asked.queries, asked.seed, aids
    )
    steps = getattr(attack, "steps", None)
    limit = None if searched is not victim else asked.queries
    most = passes(attack, tuple(samples.images.shape[1:]), victim.classes or 10)
    return Weapon(
        text=str(attack),
        told=told(attack),
        spelled=spelled(attack),
        # Equal budgets may be written in several ways; the key knows one.
        threat=str(replace(on, written=None)),
        keep=keep,
        leave=leave,
        queries=limit,
        steps=steps if isinstance(steps, int) else None,
        restarts=int(getattr(attack, "restarts", 1)),
        plain=isinstance(attack, Ascent) and asked.queries is None and searched is victim,
        one_step=attack.one_step and not isinstance(attack, Combined),
        passes=most if limit is None else min(most, limit),
        access=str(attack.access),  # type: ignore[arg-type]  # one of the three
        source=digest_of(searched) if searched is not victim else None,
        advice=digest_of(aids.substitute) if aids.advises(attack) and aids.substitute else None,
        starts=aids.starts.digest if aids.begins(attack) and aids.starts else None,
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
