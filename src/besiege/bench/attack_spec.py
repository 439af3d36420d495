"""Attacks as a plan holds them: whom they ask, within what, and on which terms."""

from __future__ import annotations

from dataclasses import replace

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, spelled, told
from besiege.attacks.combine import Combined
from besiege.bench.knowledge import Knowledge, terms_on
from besiege.bench.model_spec import digest_of
from besiege.bench.spec import AttackSpec, Request
from besiege.core.oracle import Victim
from besiege.core.record import Keep, Leave
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation.checking import check
from besiege.evaluation.crafting import terms


def check_fit(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    samples: Samples,
    queries: int | None,
    seed: int,
    knowledge: Knowledge,
) -> tuple[Victim, Threat, Keep, Leave]:
    """Refuse what does not fit; whom the attack asks, within what, and on which terms."""
    searched, on = victim, threat
    keep, leave = terms(victim, attack, threat)
    if knowledge.crafts(attack):
        assert knowledge.substitute is not None
        searched, on = knowledge.substitute, terms_on(threat)
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
        substitute=knowledge.substitute,
    )
    return searched, on, keep, leave


def attack_spec(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    samples: Samples,
    request: Request,
    knowledge: Knowledge,
) -> AttackSpec:
    """The attack, checked against the victim, with all that its records depend on."""
    searched, on, keep, leave = check_fit(
        victim, attack, threat, samples, request.queries, request.seed, knowledge
    )
    steps = getattr(attack, "steps", None)
    limit = None if searched is not victim else request.queries
    most = attack.passes(tuple(samples.images.shape[1:]), victim.classes or 10)
    return AttackSpec(
        text=str(attack),
        described=told(attack),
        spelled=spelled(attack),
        # Equal budgets may be written in several ways; the key knows one.
        threat=str(replace(on, written=None)),
        keep=keep,
        leave=leave,
        queries=limit,
        steps=steps if isinstance(steps, int) else None,
        restarts=int(getattr(attack, "restarts", 1)),
        plain=isinstance(attack, Ascent) and request.queries is None and searched is victim,
        one_step=attack.one_step and not isinstance(attack, Combined),
        passes=most if limit is None else min(most, limit),
        access=str(attack.access),  # type: ignore[arg-type]  # one of the three
        source=digest_of(searched) if searched is not victim else None,
        advice=digest_of(knowledge.substitute)
        if knowledge.advises(attack) and knowledge.substitute
        else None,
        starts=knowledge.starts.digest
        if knowledge.uses_starts(attack) and knowledge.starts
        else None,
    )
