"""Checks, before any work starts, that attack, threat, victim and samples fit together."""

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
from besiege.core.siege import must_have_cells, must_take_codes
from besiege.core.terms import Terms
from besiege.core.text import MOST, check_whole, short
from besiege.core.threat import Goal, Linf, Threat
from besiege.core.victim import Victim
from besiege.models.classifier import Classifier

_MOST_RUNS, _CLASSES = 10**6, 10
"""Largest number of runs of a combined attack per image (nested searches multiply), and the number
of classes assumed where it is not known yet."""


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
    """Raise an error where attack, threat, victim and samples do not fit together."""
    substitute, starts = terms.knowledge.substitute, terms.knowledge.starts
    fits(attack, threat, min(threat.access, victim.access), substitute is not None)
    _has_targets(threat, samples.toward(threat.target))
    if victim.stochastic:
        _check_stochastic(victim, attack, threat)
    if attack.oblivious and victim.bare is not victim:
        raise AttackError(
            f"'{attack}' is crafted on the undefended model, not on '{victim.name}': use "
            "besiege.attack or besiege.evaluate, which find that model and judge on this one"
        )
    if attack.needs_substitute and substitute is None:
        raise AttackError(
            f"'{attack}' needs a substitute, and none was given: pass substitute='zoo:NAME', or "
            "any other model of the same images"
        )
    if attack.sends_codes:
        must_take_codes(victim, f"'{attack}'")
    if attack.needs_cells:
        must_have_cells(victim, f"'{attack}'")
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
    """Refuse an attack that does not work with the access, norm, goal and budget of a threat.

    `granted` is the access of the victim where that is less; `has_substitute` says whether the
    attacker has a substitute.
    """
    granted = threat.access if granted is None else granted
    runs = attack.all_runs(_CLASSES) if isinstance(attack, Combined) else 1
    if runs > _MOST_RUNS:
        raise AttackError(
            f"'{short(str(attack))}' would run attacks {min(runs, 10**99):.0e} times per image, "
            f"and at most {_MOST_RUNS:,} are allowed: nest fewer"
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
            f"the attack '{attack}' has the goals {goals}, not {threat.aim}"
            f"{_example(attack, threat, granted)}; {_offer(threat, granted, has_substitute)}"
        )
    if threat.eps is None and not attack.minimal:
        raise ThreatError(
            f"the attack '{attack}' needs a budget: write for example '{threat.norm.example}' for "
            f"the threat, or search for the smallest perturbation with 'minimal({attack})'"
        )
    check_goal(threat, granted)


def _offer(threat: Threat, granted: Access, has_substitute: bool) -> str:
    """The attacks that would fit, for an error message."""
    return f"attacks that fit: {', '.join(fitting(threat, granted, has_substitute)) or 'none'}"


def _example(attack: Attack, threat: Threat, granted: Access) -> str:
    """The same threat with the first goal that the attack supports at this access."""
    unseen = (Goal.LEAST_LIKELY, Goal.SECOND) if granted is Access.DECISION else ()
    goals = [goal for goal in Goal if goal in attack.goals and goal not in unseen]
    if not goals:
        return ""
    return f": write for example threat='{replace(threat, goal=goals[0], target=None)}'"


def check_goal(threat: Threat, granted: Access) -> None:
    """Refuse goals that need the clean scores where the attacker does not see scores."""
    if granted is Access.DECISION and threat.goal in (Goal.LEAST_LIKELY, Goal.SECOND):
        raise ThreatError(
            f"the target class of '{threat.goal}' follows from the clean scores, which decision "
            "access does not show: use targeted:random"
        )


def fitting(
    threat: Threat, granted: Access | None = None, has_substitute: bool = False
) -> list[str]:
    """Names of the registered attacks that work under a threat with their defaults.

    Attacks that need a certain layer in front of the victim are left out.

    Examples
    --------
    >>> fitting(Threat.parse("l0:20"))
    ['cw', 'fmn', 'jsma', 'noise', 'sigmazero']
    """
    granted = threat.access if granted is None else granted
    if granted is Access.DECISION and threat.goal in (Goal.LEAST_LIKELY, Goal.SECOND):
        return []
    attacks = {name: _with_defaults(thing) for name, thing in ATTACKS.items()}
    return [
        name
        for name, attack in attacks.items()
        if attack is not None
        and attack.access <= granted
        and threat.norm in attack.norms
        and threat.goal in attack.goals
        and (threat.eps is not None or attack.minimal)
        and (has_substitute or not attack.needs_substitute)
        and not attack.needs_layer
    ]


def _with_defaults(thing: Any) -> Attack | None:
    """A registered attack with its defaults; None where it has none or needs other attacks."""
    try:
        made = thing() if isinstance(thing, type) else thing
    except (TypeError, ValueError):
        return None
    return made if isinstance(made, Attack) else None


def _has_targets(threat: Threat, samples: Samples) -> None:
    """Refuse missing targets, and targets without the goal 'targeted:given'."""
    if threat.goal is Goal.GIVEN and samples.targets is None:
        raise ThreatError("the goal is 'targeted:given', but no targets were given")
    if samples.targets is not None and threat.goal is not Goal.GIVEN:
        raise ThreatError(f"targets were given, but the goal is '{threat.goal}': choose one")


def _check_stochastic(victim: Victim, attack: Attack, threat: Threat) -> None:
    """Refuse an attack on a stochastic victim that uses a single draw."""
    draws = attack.draws * victim.draws
    if attack.access is Access.GRADIENT and draws == 1:
        raise StochasticError(
            f"'{victim.name}' is stochastic: a gradient is one draw, and '{attack}' would mistake "
            "noise for robustness. Evaluate it with suite='adaptive', whose attacks average over "
            f"draws, or attack the expectation: 'averaged({attack}, 20)'"
        )
    # Decision attacks always minimise; within a budget, majority votes suffice.
    if threat.eps is None or (attack.minimal and attack.access > Access.DECISION):
        raise StochasticError(
            f"'{attack}' searches for the smallest perturbation, but the smallest success on a "
            "stochastic victim is one lucky draw: give a budget and use averaged(pgd, 20), or "
            "averaged(rays, 5) with decision access"
        )
    if attack.access is Access.DECISION and draws == 1:
        raise StochasticError(
            f"'{victim.name}' is stochastic: a label is one draw, and '{attack}' would stop at the "
            f"first lucky one. Use majority votes: 'averaged({attack}, 5)'"
        )


def check_grid(victim: Victim, samples: Samples) -> None:
    """Refuse pixel values that a quantising victim cannot receive."""
    if victim.grid is None:
        return
    grid = ball(Linf, samples.images, torch.inf, victim.box, victim.grid)
    if not bool(grid.boxed(samples.images).all()):
        raise InputError(
            f"the victim receives multiples of {victim.grid:.6g} only, but some pixel values lie "
            "between: round the images first, so that the victim receives the attacked images"
        )


def check_starts(starts: Samples, samples: Samples) -> None:
    """Refuse starting images of another shape than the attacked images."""
    given, wanted = tuple(starts.images.shape[1:]), tuple(samples.images.shape[1:])
    if given != wanted:
        raise InputError(
            f"the starting images have the shape {given}, and the attacked images {wanted}: resize "
            "them first"
        )


def answers(victim: Victim, scores: Tensor) -> list[Finding]:
    """Refuse probabilities that were not declared, and report those that were."""
    if victim.outputs == "probabilities":
        if not looks_like_probabilities(scores.exp()):
            raise VictimError(
                "the model was declared to return probabilities, but its rows do not sum to 1: "
                "leave outputs='probabilities' out if they are logits"
            )
        return [
            Finding(
                "W13",
                "the model returns probabilities, whose logarithms were used as logits.",
                "Their rounding hides small differences: let the model return logits.",
            )
        ]
    if looks_like_probabilities(scores):
        raise VictimError(
            "the model returns probabilities (every row is in [0, 1] and sums to 1), but logits "
            "are expected: remove its softmax, or declare "
            "Classifier(net, outputs='probabilities')"
        )
    inner = victim.source
    single = isinstance(inner, Classifier) and inner.single and inner.outputs == "logits"
    if single and _looks_like_sigmoids(scores):
        raise VictimError(
            "the model returns one number per image, always in [0, 1] as a sigmoid does, but a "
            "logit is expected: remove its sigmoid, or declare "
            "Classifier(net, outputs='probabilities'); if these are logits, declare "
            "Classifier(net, outputs='logit')"
        )
    return []


def _looks_like_sigmoids(scores: Tensor) -> bool:
    """Whether the numbers z that the columns (-z/2, z/2) were made of all lie in [0, 1]."""
    z = 2 * scores[:, 1]
    # A few logits may lie there by accident.
    return len(z) >= 4 and bool(((z >= 0) & (z <= 1 + 1e-6)).all())


def looks_like_probabilities(scores: Tensor) -> bool:
    """Whether every row lies in [0, 1] and sums to one."""
    within = bool(((scores >= 0) & (scores <= 1 + 1e-6)).all())
    # Half precision sums to 1 within 1 %; so might a few rows of logits by accident.
    tolerance = 1e-2 if len(scores) >= 4 else 1e-5
    return within and bool(((scores.double().sum(1) - 1).abs() <= tolerance).all())
