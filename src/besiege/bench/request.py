"""Reads a request: its texts become a threat, attacks, a victim and samples that fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from besiege.attacks.attack import Attack
from besiege.attacks.suites import SUITES
from besiege.bench.across import OtherModel, read_across
from besiege.bench.attack_lists import Attacks, read_attacks, usual
from besiege.bench.clever_text import clever_of
from besiege.bench.knowledge import (
    at_hand,
    beginnings,
    each,
    read_fuse,
    read_substitute,
    undefended_model,
)
from besiege.bench.model_spec import as_granted, fresh_copies, read_victim
from besiege.bench.shards import Read, boxed, read_data, usual_size
from besiege.bench.spec import ACTIVE, Request
from besiege.bench.target import aimed, goal_of, left, settled
from besiege.core.errors import InputError, ThreatError, near
from besiege.core.knowledge import Knowledge
from besiege.core.rules import FEW
from besiege.core.samples import Samples, Withheld
from besiege.core.text import MOST, check_whole
from besiege.core.threat import CLASS, Access, Goal, Threat
from besiege.core.unchanged import once
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.data.sources import is_in_box
from besiege.evaluation.transfer import Model
from besiege.models.black_box import know_classes
from besiege.models.classifier import Classifier

CURVE_SAMPLES = 200
CURVE_TOLERANCE = 0.01
"""Relative precision of distances: finer than a plot shows, and a third cheaper than the default
of the search."""
Curves = Literal["short", "full", "none"]
Examine = Literal["full", "short", "none"]


@dataclass(frozen=True)
class Objects:
    """The objects of a request that exist only in memory; None where its text is read."""

    model: nn.Module | Victim | None = None
    data: Any = None
    attacks: Attacks | None = None
    suite: Attacks | None = None
    substitute: Sequence[Model] = ()
    across: Sequence[Model] = ()
    beside: Mapping[str, Withheld] = field(default_factory=dict)
    """What models beside it withhold, by their texts; others are read from theirs."""

    @property
    def textual(self) -> bool:
        """Whether the texts of the request say everything."""
        objects = (self.model, self.data, self.attacks, self.suite)
        return all(one is None for one in objects) and all(
            isinstance(one, str) for one in (*self.substitute, *self.across)
        )


def requested(
    model: Model,
    data: Any,
    *,
    threat: str | Threat,
    attacks: Attacks | None = None,
    suite: Attacks | None = None,
    goal: str | None = None,
    target_class: int | str | None = None,
    curve: str | bool = "short",
    substitute: Model | Sequence[Model] | None = None,
    fuse: str = "logits",
    examine: str = "short",
    active_test: bool | int = False,
    clever: bool | str = False,
    **others: Any,
) -> tuple[Request, Objects]:
    """The request from the arguments of `besiege.evaluate`, and its objects in memory."""
    numbers = ("queries", "count", "seed", "shard")
    check_numbers(**{name: others[name] for name in numbers if name in others})
    models = () if substitute is None else tuple(each(substitute))
    if substitute is not None and not models:
        raise InputError("no substitute is listed: write for example substitute='zoo:NAME'")
    in_file = isinstance(data, (str, Path))
    request = Request.of(
        model=model if isinstance(model, str) else Classifier.of(model).name,
        data=str(data) if in_file else "",
        threat=threat if isinstance(threat, str) else str(Threat.parse(threat)),
        attacks=attacks if isinstance(attacks, str) else None,
        suite=suite if isinstance(suite, str) else None,
        goal=goal_of(goal, target_class),
        curve=read_curve(curve),
        substitute=tuple(m if isinstance(m, str) else Classifier.of(m).name for m in models),
        fuse=read_fuse(fuse),
        examine=read_examine(examine),
        active_test=read_active_test(active_test),
        clever=clever_of(clever),
        textual=bool(others.get("command")) or (isinstance(model, str) and in_file),
        **others,
    )
    objects = Objects(
        model=None if isinstance(model, str) else model,
        data=None if isinstance(data, (str, Path)) else data,
        attacks=None if isinstance(attacks, str) else attacks,
        suite=None if isinstance(suite, str) else suite,
        substitute=models,
    )
    return request, objects


@dataclass(frozen=True)
class ResolvedRequest:
    """A request as values that fit together.

    Attributes
    ----------
    request : Request
        The request with attacks, threat, shard and command spelled out.
    victim, data, threat
        The attacked model, the samples, and the threat.
    attacks : tuple of Attack
        The attacks.
    chained : bool
        Whether each runs on the samples that withstood those before it.
    scaled : bool
        Whether pixels in [0, 1] are scaled to the victim's box.
    knowledge : Knowledge
        What the attacker has besides access to the victim.
    starts : str, optional
        The digest of the images to start from.
    fresh : callable, optional
        Returns a copy of the victim that was never queried; None where there is none.
    guardable : bool
        Whether the attacks are a list of ours that does not have a guard of its own.
    other : Victim, optional
        Another model of the same data, on which a guard can be crafted.
    left_out : int, optional
        How many images were left out because detectors were calibrated on them; None where no such
        detector is known.
    targets : tuple of OtherModel
        Other models that judge the images crafted on the victim.
    """

    request: Request
    victim: Victim
    data: Data
    threat: Threat
    attacks: tuple[Attack, ...]
    chained: bool
    scaled: bool
    knowledge: Knowledge
    starts: str | None
    fresh: Callable[[], Victim] | None = None
    guardable: bool = False
    other: Victim | None = None
    left_out: int | None = None
    targets: tuple[OtherModel, ...] = ()

    def first(self, count: int) -> Samples:
        """The first few samples, in the victim's box."""
        return once(_first, self.data, self.victim, self.scaled, count)


def _first(data: Data, victim: Victim, scaled: bool, count: int) -> Samples:
    return boxed(data.take(torch.arange(min(count, len(data)))), victim, scaled)


def resolve(
    request: Request,
    objects: Objects | None = None,
    device: str | None = None,
    read: Read | None = None,
) -> ResolvedRequest:
    """Read the texts of a request, and complete it; what is in `read` is not read again."""
    given, read = objects or Objects(), Read() if read is None else read
    check_numbers(
        queries=request.queries, count=request.count, seed=request.seed, shard=request.shard
    )
    threat = read_threat(request.threat, request.goal, request.access)
    attacks: Attacks | None = request.attacks if given.attacks is None else given.attacks
    suite: Attacks | None = request.suite if given.suite is None else given.suite
    named = attacks is not None or suite is not None
    if named:  # errors in attacks are cheaper to find than to load the model
        chosen, chained = read_attacks(attacks, suite, threat)
    model = read.text(request.model) if given.model is None else given.model
    victim = read_victim(model, device, str(threat.access), read)
    fresh = None if not request.examined else fresh_copies(model, victim, device)
    threat = as_granted(threat, request.access, victim)
    if not named:
        attacks, suite = usual(threat, not request.substitute)
        chosen, chained = read_attacks(attacks, suite, threat)
    withheld = _withheld(request, given, victim, device, read)
    everything, left_out = read_data(request, given.data, victim, read, withheld)
    know_classes(victim, everything.classes, everything.labels)
    threat = settled(threat, request.goal, everything)
    data = left(everything, threat.target)
    bare, problem = None, None
    if any(one.oblivious for one in chosen.values()):
        bare, problem = undefended_model(victim, data)
    if isinstance(suite, str) and suite in SUITES:  # its list may depend on the model
        traits = {"stochastic": victim.stochastic, "pooled": victim.draws > 1}
        # With a substitute its gradients are followed, and it has no cells.
        replaced = bool(given.substitute or request.substitute)
        traits |= {"rejects": victim.rejects, "rounds": victim.cells is not None and not replaced}
        traits |= {"defended": bare is not None}
        chosen, chained = read_attacks(None, suite, threat, **traits)
    elif problem is not None:
        raise problem
    complete = request.model_copy(
        update={
            "data": request.data or data.name,
            "threat": str(threat),
            "attacks": tuple(chosen),
            "suite": suite if suite is None or isinstance(suite, str) else ", ".join(chosen),
            "goal": None,  # the text of the threat has both now
            "access": None,
            "shard": request.shard or usual_size(victim),
        }
    )
    scaled = victim.box != (0.0, 1.0) and not is_in_box(given.data)
    models = [
        read.text(one) if isinstance(one, str) else one
        for one in given.substitute or request.substitute
    ]
    guardable = not named or suite == "quick"
    tested = guardable and request.examined and not victim.metered
    # Images of a folder are decoded only if an attack starts from them; a guard can do without.
    wanted = any(one.uses_starts for one in chosen.values()) or (tested and everything.decoded)
    starts = beginnings(everything) if wanted else None
    knowledge = Knowledge(
        None if starts is None else boxed(starts, victim, scaled),
        once(read_substitute, tuple(models), request.fuse, victim, data, read),
        bare,
    )
    return ResolvedRequest(
        complete,
        victim,
        data,
        threat,
        tuple(chosen.values()),
        chained,
        scaled,
        knowledge,
        None if starts is None else starts.digest,
        fresh,
        guardable,
        at_hand(victim, data, read) if tested else None,
        left_out,
        read_across(request.across, given.across, victim, device, read, data),
    )


def _withheld(
    request: Request, given: Objects, victim: Victim, device: str | None, read: Read
) -> list[Withheld]:
    """What the victim was calibrated on, and the models whose images it leaves out, too."""
    found = [] if victim.withheld is None else [victim.withheld]
    for text in request.beside:
        other = given.beside.get(text) or read_victim(text, device, None, read).withheld
        if other is None:
            raise InputError(
                f"'{text}' has no detector that was calibrated on known images: leave --beside out"
            )
        found.append(other)
    return found


def read_threat(threat: str | Threat, goal: str | None, access: str | None) -> Threat:
    """The threat, with goal and access where they are given separately."""
    allowed = Threat.parse(threat)
    if goal is not None and goal.startswith(CLASS):
        allowed = aimed(allowed, goal)
    elif goal is not None:
        goals = {g.value: g for g in Goal if g is not Goal.GIVEN}
        if goal not in goals:
            raise ThreatError(f"the goal is '{goal}': {near(goal, [*goals, f'{CLASS}3'])}")
        if allowed.goal not in (Goal.UNTARGETED, goals[goal]):
            raise ThreatError(f"the threat '{threat}' and the goal '{goal}' disagree: give one")
        allowed = replace(allowed, goal=goals[goal])
    if access is not None:
        levels = {str(a): a for a in Access}
        if access not in levels:
            raise ThreatError(f"the access is '{access}': {near(access, levels)}")
        if allowed.access not in (Access.GRADIENT, levels[access]):
            raise ThreatError(f"the threat '{threat}' and the access '{access}' disagree: give one")
        allowed = replace(allowed, access=levels[access])
    if allowed.goal is Goal.GIVEN and allowed.target is None and goal is None:
        raise ThreatError(
            "an evaluation has no targets of its own: use targeted:random, targeted:least-likely, "
            "targeted:second or one class for all images, targeted:class=3, or besiege.attack with "
            "targets="
        )
    return allowed


def read_curve(curve: str | bool) -> Curves:
    """The kind of curve, checked."""
    if isinstance(curve, bool):
        return "short" if curve else "none"
    known: dict[str, Curves] = {"short": "short", "full": "full", "none": "none"}
    if curve not in known:
        raise InputError(f"curve is '{curve}': {near(str(curve), known)}")
    return known[curve]


def read_examine(examine: str) -> Examine:
    """How much is examined, checked."""
    known: dict[str, Examine] = {"short": "short", "full": "full", "none": "none"}
    if examine not in known:
        raise InputError(f"examine is '{examine}': {near(str(examine), known)}")
    return known[examine]


def read_active_test(given: bool | int) -> int | None:
    """The number of samples of an active test that is requested by name."""
    if isinstance(given, bool):
        return ACTIVE if given else None
    check_whole(given, "active_test", FEW)
    return given


def check_numbers(**given: object) -> None:
    """Refuse values that are not whole numbers from 1; a seed may be any, and None is unset."""
    for name, value in given.items():
        if value is not None or name == "seed":
            check_whole(value, name, -MOST - 1 if name == "seed" else 1)
