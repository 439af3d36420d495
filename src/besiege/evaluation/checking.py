"""Whether attack, threat, victim and samples fit, found out before any work starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.combine import Combined
from besiege.core.attack_registry import ATTACKS
from besiege.core.ball import ball
from besiege.core.errors import (
    AccessError,
    AttackError,
    Finding,
    InputError,
    StochasticError,
    ThreatError,
    VictimError,
    near,
)
from besiege.core.oracle import Access
from besiege.core.record import Keep, Leave
from besiege.core.samples import Samples
from besiege.core.terms import Terms
from besiege.core.text import MOST, check_whole, short
from besiege.core.threat import L0, L1, L2, Goal, Linf, Threat
from besiege.core.victim import Victim

BUDGETS = {Linf: "linf:8/255", L2: "l2:0.5", L1: "l1:12", L0: "l0:20"}
"""A threat of every norm as an example."""
_MOST_RUNS, _CLASSES = 10**6, 10
"""How often an attack may run others for an image; nested searches multiply, and would never end.
Of a model whose classes are not known yet ten are assumed."""


def check(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    samples: Samples,
    terms: Terms,
    *,
    batch: int | None = None,
    seed: int = 0,
) -> None:
    """Find out whether attack, threat and victim fit, before any work starts."""
    substitute, starts = terms.knowledge.substitute, terms.knowledge.starts
    fits(attack, threat, min(threat.access, victim.access), substitute is not None)
    _has_targets(threat, samples)
    if victim.stochastic:
        _bears_chance(attack, threat)
    if attack.needs_substitute and substitute is None:
        raise AttackError(
            f"'{attack}' takes advice from a substitute, and none was given: pass "
            "substitute='zoo:NAME', or any other model of the same images"
        )
    check_grid(victim, samples)
    if starts is not None:
        check_starts(starts, samples)
    for name, value, kind in (("keep", terms.keep, Keep), ("leave", terms.leave, Leave)):
        known: tuple[str, ...] = get_args(kind)
        if value not in known:
            raise AttackError(f"{name} is {value!r}: {near(str(value), known)}")
    for number, least in (("queries", 1), ("batch", 1), ("seed", -MOST - 1)):
        given: object = {"queries": terms.queries, "batch": batch, "seed": seed}[number]
        if given is not None or number == "seed":
            try:
                check_whole(given, number, least)
            except InputError as problem:
                raise AttackError(str(problem)) from None
    if terms.queries is not None and terms.queries < attack.draws:
        raise AttackError(
            f"queries is {terms.queries!r}, but one answer to '{attack}' is a mean over "
            f"{attack.draws}: give at least {attack.draws}"
        )


def fits(
    attack: Attack, threat: Threat, granted: Access | None = None, has_substitute: bool = False
) -> None:
    """Refuse an attack that does not work within the access, norm, goal and budget of a threat.

    `granted` is the access where the victim grants less; `has_substitute` says that the attacker
    has one.
    """
    granted = threat.access if granted is None else granted
    runs = attack.all_runs(_CLASSES) if isinstance(attack, Combined) else 1
    if runs > _MOST_RUNS:
        raise AttackError(
            f"'{short(str(attack))}' would run attacks {min(runs, 10**99):.0e} times an image, and "
            f"at most {_MOST_RUNS:,} are allowed: nest fewer"
        )
    if attack.access > granted:
        raise AccessError(
            f"the attack '{attack}' needs {attack.access} access, but only {granted} access is "
            f"granted; {_offer(threat, granted, has_substitute)}"
        )
    if threat.norm not in attack.norms:
        norms = ", ".join(sorted(map(str, attack.norms)))
        raise ThreatError(
            f"the attack '{attack}' works in {norms}, not in {threat.norm}; "
            f"{_offer(threat, granted, has_substitute)}"
        )
    if threat.goal not in attack.goals:
        goals = ", ".join(sorted(map(str, attack.goals)))
        raise ThreatError(
            f"the attack '{attack}' has the goals {goals}, not {threat.goal}"
            f"{_example(attack, threat, granted)}; {_offer(threat, granted, has_substitute)}"
        )
    if threat.eps is None and not attack.minimal:
        raise ThreatError(
            f"the attack '{attack}' needs a budget: write for example '{BUDGETS[threat.norm]}' for "
            f"the threat, or search for the smallest change with 'minimal({attack})'"
        )
    check_goal(threat, granted)


def _offer(threat: Threat, granted: Access, has_substitute: bool) -> str:
    """What would run instead, where something else does not."""
    return f"attacks that fit: {', '.join(fitting(threat, granted, has_substitute)) or 'none'}"


def _example(attack: Attack, threat: Threat, granted: Access) -> str:
    """The same threat with a goal that an attack has and can see; those first that need no more."""
    unseen = (Goal.LEAST_LIKELY, Goal.SECOND) if granted is Access.DECISION else ()
    goals = [goal for goal in Goal if goal in attack.goals and goal not in unseen]
    return f": write for example threat='{replace(threat, goal=goals[0])}'" if goals else ""


def check_goal(threat: Threat, granted: Access) -> None:
    """Refuse goals that are rules on the clean scores where nobody sees those."""
    if granted is Access.DECISION and threat.goal in (Goal.LEAST_LIKELY, Goal.SECOND):
        raise ThreatError(
            f"the class of '{threat.goal}' is read off the clean scores, which decision access "
            "does not show: use targeted:random"
        )


def fitting(
    threat: Threat, granted: Access | None = None, has_substitute: bool = False
) -> list[str]:
    """Names of the registered attacks that work within a threat, as they are.

    Examples
    --------
    >>> fitting(Threat.parse("l0:20"))
    ['cw', 'fmn', 'jsma', 'sigmazero']
    """
    granted = threat.access if granted is None else granted
    if granted is Access.DECISION and threat.goal in (Goal.LEAST_LIKELY, Goal.SECOND):
        return []
    found = {name: _with_defaults(thing) for name, thing in ATTACKS.items()}
    return [
        name
        for name, attack in found.items()
        if attack is not None
        and attack.access <= granted
        and threat.norm in attack.norms
        and threat.goal in attack.goals
        and (threat.eps is not None or attack.minimal)
        and (has_substitute or not attack.needs_substitute)
    ]


def _with_defaults(thing: Any) -> Attack | None:
    """A registered attack with its usual parameters; None of what has none, or needs attacks."""
    try:
        made = thing() if isinstance(thing, type) else thing
    except (TypeError, ValueError):
        return None
    return made if isinstance(made, Attack) else None


def _has_targets(threat: Threat, samples: Samples) -> None:
    """Targets were given where they are the goal, and nowhere else."""
    if threat.goal is Goal.GIVEN and samples.targets is None:
        raise ThreatError("the goal is 'targeted:given', but no targets were given")
    if samples.targets is not None and threat.goal is not Goal.GIVEN:
        raise ThreatError(f"targets were given, but the goal is '{threat.goal}': choose one")


def _bears_chance(attack: Attack, threat: Threat) -> None:
    """An attack on a victim that answers by chance looks at more than one draw."""
    if attack.access is Access.GRADIENT and attack.draws == 1:
        raise StochasticError(
            f"this victim answers by chance: one gradient is one draw of it, and '{attack}' would "
            f"report a robustness that is only noise. Attack its expectation: 'averaged({attack}, "
            "20)', or evaluate it with the suite 'rand'"
        )
    # Attacks that see labels alone have no other form; within a budget a vote can tell them.
    searching = threat.eps is None or (attack.minimal and attack.access > Access.DECISION)
    if searching:
        raise StochasticError(
            f"'{attack}' looks for the smallest change, and the smallest one that fools a victim "
            "which answers by chance is one draw of luck: give a budget and use averaged(pgd, 20), "
            "or averaged(rays, 5) where labels are all there is"
        )
    if attack.access is Access.DECISION and attack.draws == 1:
        raise StochasticError(
            f"this victim answers by chance: one label is one draw of it, and '{attack}' would "
            f"stop at the first lucky one. Let answers be voted on: 'averaged({attack}, 5)'"
        )


def check_grid(victim: Victim, samples: Samples) -> None:
    """Refuse pixels that a victim which quantises cannot receive."""
    if victim.grid is None:
        return
    grid = ball(Linf, samples.images, torch.inf, victim.box, victim.grid)
    if not bool(grid.boxed(samples.images).all()):
        raise InputError(
            f"the victim receives multiples of {victim.grid:.6g} alone, but some pixels lie "
            "between: round the images first, so that what is attacked is what it receives"
        )


def check_starts(starts: Samples, samples: Samples) -> None:
    """Refuse images to begin at that are no images of the victim's."""
    given, wanted = tuple(starts.images.shape[1:]), tuple(samples.images.shape[1:])
    if given != wanted:
        raise InputError(
            f"the images to begin at are {given}, and those attacked {wanted}: resize them first"
        )


def answers(victim: Victim, scores: Tensor) -> list[Finding]:
    """Refuse probabilities that were not declared; note those that were."""
    if victim.outputs == "probabilities":
        if not looks_like_probabilities(scores.exp()):
            raise VictimError(
                "the model was declared to return probabilities, but its rows do not sum to 1: "
                "leave outputs='probabilities' out if they are logits"
            )
        return [
            Finding(
                "W13",
                "the model answers probabilities, which were taken through the logarithm.",
                "Their rounding hides small differences: let the model return logits.",
            )
        ]
    if looks_like_probabilities(scores):
        raise VictimError(
            "the model returns probabilities (every row lies in [0, 1] and sums to 1), but logits "
            "are expected: remove its softmax, or declare "
            "Classifier(net, outputs='probabilities')"
        )
    return []


def looks_like_probabilities(scores: Tensor) -> bool:
    """Whether every row lies in [0, 1] and sums to one."""
    within = bool(((scores >= 0) & (scores <= 1 + 1e-6)).all())
    # Half precision sums to one within a percent; a row or two of logits might by accident.
    tolerance = 1e-2 if len(scores) >= 4 else 1e-5
    return within and bool(((scores.double().sum(1) - 1).abs() <= tolerance).all())
