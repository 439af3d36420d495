"""What to run next: the command behind a rule's advice, for the evaluation at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from besiege.attacks.suites import DEFAULT, DEFAULT_TARGETED
from besiege.bench.command import command_of, examine_command
from besiege.bench.plan import Plan
from besiege.bench.spec import Request
from besiege.core.errors import Finding
from besiege.core.rules import faults
from besiege.core.threat import Access, Threat
from besiege.metrics.values import NextStep

_LISTED = {"attacks": None, "suite": None}


def next_steps(plan: Plan, findings: Sequence[Finding]) -> tuple[NextStep, ...]:
    """The commands that the findings of an evaluation lead to, each once, with its rules.

    A fault of the model leads to one step, the same command on another model: attacks that are
    stronger measure the fault again.
    """
    if broken := faults(findings):
        return _repaired(plan, broken)
    stopped = any(one.level == "stop" for one in findings)
    rules: dict[str, list[str]] = {}
    for id in dict.fromkeys(finding.id for finding in findings):
        if id not in _STEPS or (stopped and id in _LATER):
            continue
        command = _STEPS[id](plan)
        if command is not None:
            rules.setdefault(command, []).append(id)
    return tuple(NextStep(tuple(ids), command) for command, ids in rules.items())


def _repaired(plan: Plan, rules: Sequence[str]) -> tuple[NextStep, ...]:
    """Change the model, then the same command again."""
    first = f"Change the model: besiege show {rules[-1]} says how. Then run the same command again"
    command = plan.request.command
    return (NextStep(tuple(rules), command, first),) if command else ()


def _stronger(plan: Plan) -> str | None:
    """A stronger suite than the one that ran; None where there is none."""
    threat, ran = Threat.parse(plan.threat), plan.request.suite
    if plan.request.substitute:
        return None
    if threat.eps is None:
        ladder = ["minimum"]
    elif threat.access < Access.GRADIENT:
        ladder = [str(threat.access)]
    elif plan.model.stochastic:
        ladder = ["adaptive"]
    else:
        ladder = ["standard", "plus"]
    above = ladder[ladder.index(ran) + 1 :] if ran in ladder else ladder
    return _changed(plan, {**_LISTED, "suite": above[0]}) if above else None


def _gradients_at_hand(plan: Plan) -> str | None:
    """The same evaluation without a substitute."""
    return _changed(plan, {**_LISTED, "substitute": (), "fuse": "logits"})


def _adaptive(plan: Plan) -> str | None:
    """The attacks that fit the defense; None where the attacker may not use its gradients."""
    threat = Threat.parse(plan.threat)
    if threat.eps is None or threat.access < Access.GRADIENT or plan.request.suite == "adaptive":
        return None
    return _changed(plan, {**_LISTED, "suite": "adaptive", "substitute": (), "fuse": "logits"})


def _changed(plan: Plan, changes: Mapping[str, Any]) -> str | None:
    """The command of a request with changes; None where it is the one that ran."""
    ran = plan.request
    if ran.suite is None and ran.attacks in (DEFAULT, DEFAULT_TARGETED):
        ran = ran.model_copy(update=_LISTED)  # listed by name, they would have no guards
    asked = ran.model_copy(update=dict(changes))
    return None if asked == ran else command_of(asked)


def _examined(plan: Plan) -> str | None:
    request: Request = plan.request
    return examine_command(request) if request.textual else None


Step = Callable[[Plan], str | None]
_STEPS: Mapping[str, Step] = {
    # Attacks may be too weak, or gradients masked: the suites have restarts, other losses and
    # attacks without gradients.
    **dict.fromkeys(("W02", "W03", "W04", "W05", "W06", "W07", "W08", "W09", "W10"), _stronger),
    **dict.fromkeys(("W11", "W20", "W23", "W48", "W50"), _stronger),
    "W42": lambda plan: _changed(plan, {**_LISTED, "attacks": ("nattack", "square")}),
    "W33": _adaptive,
    "W49": _gradients_at_hand,
    "W21": lambda plan: _changed(plan, {"curve": "full"}),
    # The model must be declared or prepared differently, which an examination confirms.
    **dict.fromkeys(("W01", "W13", "W15", "W17", "W22", "W41"), _examined),
    **dict.fromkeys(("FAILED", "UNFINISHED", "DAMAGED"), lambda plan: plan.request.command or None),
}
"""What every rule's advice comes down to as a command; rules that are not here need none."""
_LATER = ("W21",)
"""Rules about the curve only, which says nothing while figures must not be quoted."""
