"""Attacks as a plan describes them: the model they query, their threat and their terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, spelled, told
from besiege.attacks.combine import Combined, leaves
from besiege.bench.request import ResolvedRequest
from besiege.bench.spec import AttackSpec
from besiege.core import presets
from besiege.core.threat import Access, Threat
from besiege.evaluation.approach import Approach, approach
from besiege.evaluation.checking import check


def fitting_approach(resolved: ResolvedRequest, attack: Attack, threat: Threat) -> Approach:
    """The approach of an attack of a request; an attack that does not fit is refused."""
    request, knowledge = resolved.request, resolved.knowledge
    kept: dict[str, Any] = {}
    if request.across and threat.eps is not None and attack.access is Access.GRADIENT:
        # As on a substitute: a point just beyond this model's boundary is rarely beyond another's.
        kept = {"keep": "last", "leave": "end"}
    how = approach(resolved.victim, attack, threat, knowledge, **kept, queries=request.queries)
    check(how.searched, attack, how.threat, resolved.first(8), how.terms, seed=request.seed)
    return how


def attack_spec(
    resolved: ResolvedRequest, attack: Attack, threat: Threat, written: str | None = None
) -> AttackSpec:
    """The attack, checked against the victim, with all that its records depend on."""
    how = fitting_approach(resolved, attack, threat)
    terms, used = how.terms, how.terms.knowledge
    steps = getattr(attack, "steps", None)
    shape = tuple(resolved.first(1).images.shape[1:])
    most = attack.passes(shape, resolved.victim.classes or 10)
    # Where only the last iterate counts, the step of a success says nothing about the ascent.
    ascends = isinstance(attack, Ascent) and attack.counts == "every"
    ascends = ascends and resolved.request.queries is None
    return AttackSpec(
        text=str(attack),
        described=_described(attack, threat, resolved.victim.box, written or ""),
        spelled=_identity(attack, terms.queries),
        # Equal budgets can be written in several ways; keys use one of them.
        threat=str(replace(how.threat, written=None)),
        keep=terms.keep,
        leave=terms.leave,
        queries=terms.queries,
        steps=steps if isinstance(steps, int) else None,
        restarts=int(getattr(attack, "restarts", 1)),
        plain=ascends and not how.transfer,
        last=isinstance(attack, Ascent) and attack.blind,
        one_step=attack.one_step and not isinstance(attack, Combined),
        passes=most if terms.queries is None else min(most, terms.queries),
        access=str(attack.access),  # type: ignore[arg-type]  # one of the three
        source=how.searched.digest() if how.transfer else None,
        advice=None if used.substitute is None else used.substitute.digest(),
        starts=None if used.starts is None else resolved.starts,
        written=written if written is not None and "@" in written else None,
    )


def _identity(attack: Attack, queries: int | None) -> dict[str, Any]:
    """The attack with all its parts, as keys are made of it.

    Within a query limit, ascents along transformed images examined none in earlier releases: their
    records are those of another method.
    """
    made: dict[str, Any] = spelled(attack)
    steers = (isinstance(one, Ascent) and one.direction.steers for one in leaves(attack))
    if queries is not None and any(steers):
        made["revision_within_queries"] = 2
    return made


def _described(attack: Attack, threat: Threat, box: tuple[float, float], written: str) -> str:
    """One line about an attack: that of the preset which the user wrote, or its own."""
    return presets.described(written, threat, box[1] - box[0]) or told(attack)
