"""The approach of an attack: the model it queries, the threat there, and the image it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from besiege.attacks.attack import Attack
from besiege.core.knowledge import Knowledge
from besiege.core.record import Keep, Leave
from besiege.core.terms import Terms
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.evaluation.crafting import keep_and_leave


@dataclass(frozen=True)
class Approach:
    """How an attack on a victim is run.

    Attributes
    ----------
    searched : Victim
        The model the attack queries: the victim, a substitute in its place, or the undefended
        model behind the victim's layers.
    threat : Threat
        The threat as it is on that model.
    terms : Terms
        Which image is kept, when a row leaves, the query limit, and the attacker's knowledge.
    transfer : bool
        Whether the model queried is not the victim, which then gets each image once.
    """

    searched: Victim
    threat: Threat
    terms: Terms
    transfer: bool


def approach(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    knowledge: Knowledge,
    *,
    keep: Keep | None = None,
    leave: Leave | None = None,
    queries: int | None = None,
) -> Approach:
    """Decide how an attack is run: oblivious attacks transfer from the undefended model.

    With a substitute, other attacks that need gradients transfer from that.
    """
    searched, substitute = victim, knowledge.substitute
    used = Knowledge(
        knowledge.starts if attack.uses_starts else None,
        substitute if attack.needs_substitute else None,
    )
    if attack.oblivious:
        assert knowledge.bare is not None, "callers find it with bare_of"
        other: Victim | None = knowledge.bare
    else:
        other = substitute if attack.access is Access.GRADIENT else None
    if other is not None:
        # Queries of the other model are free.
        searched, threat, queries = other, on_substitute(threat), None
        if threat.eps is not None:
            # A point just beyond the other model's boundary is rarely beyond the victim's.
            keep, leave = keep or "last", leave or "end"
    keep, leave = keep_and_leave(searched, attack, threat, keep, leave)
    terms = Terms(keep, leave, queries, knowledge=used)
    return Approach(searched, threat, terms, other is not None)


def on_substitute(threat: Threat) -> Threat:
    """The threat as it is on a substitute, whose gradients are free."""
    return replace(threat, access=Access.GRADIENT)
