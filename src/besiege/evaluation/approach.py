"""The approach of an attack: which model it queries, within what, and which image it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from besiege.attacks.attack import Attack
from besiege.core.record import Keep, Leave
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.evaluation.crafting import terms


@dataclass(frozen=True)
class Approach:
    """How an attack on a victim is run.

    Attributes
    ----------
    searched : Victim
        The model the attack queries: the victim, or a substitute with the victim's place.
    threat : Threat
        The threat as it is on that model.
    keep, leave, queries
        As `besiege.evaluation.craft` takes them.
    transfer : bool
        Whether the model queried is a substitute; the victim is then shown each image once.
    advice : Victim, optional
        The substitute whose gradients the attack uses besides the victim's answers.
    """

    searched: Victim
    threat: Threat
    keep: Keep
    leave: Leave
    queries: int | None
    transfer: bool
    advice: Victim | None


def approach(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    substitute: Victim | None = None,
    *,
    keep: Keep | None = None,
    leave: Leave | None = None,
    queries: int | None = None,
) -> Approach:
    """Decide how an attack is run; with a substitute, attacks that need gradients transfer."""
    advice = substitute if attack.needs_substitute else None
    if substitute is None or attack.access is not Access.GRADIENT:
        kept, left = terms(victim, attack, threat, keep, leave)
        return Approach(victim, threat, kept, left, queries, False, advice)
    if threat.eps is not None:
        # What just crosses the substitute's boundary does not cross another model's.
        keep, leave = keep or "last", leave or "end"
    kept, left = terms(substitute, attack, threat, keep, leave)
    # A substitute's gradients and answers are free.
    return Approach(substitute, on_substitute(threat), kept, left, None, True, advice)


def on_substitute(threat: Threat) -> Threat:
    """The threat as it is on a substitute, whose gradients are free."""
    return replace(threat, access=Access.GRADIENT)
