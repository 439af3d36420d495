"""What to run next: the command behind a rule's advice, for the evaluation at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from besiege.bench.command import command_of, examine_command
from besiege.bench.plan import Plan
from besiege.bench.spec import ACTIVE, Request
from besiege.core.errors import Finding
from besiege.core.threat import Access, Threat
from besiege.metrics.values import NextStep

_LISTED = {"attacks": None, "suite": None}


def next_steps(plan: Plan, findings: Iterable[Finding]) -> tuple[NextStep, ...]:
    """The commands that the findings of an evaluation lead to, each once, with its rules."""
    rules: dict[str, list[str]] = {}
    for id in dict.fromkeys(finding.id for finding in findings):
        command = _STEPS[id](plan) if id in _STEPS else None
        if command is not None:
            rules.setdefault(command, []).append(id)
    return tuple(NextStep(tuple(ids), command) for command, ids in rules.items())


def _stronger(plan: Plan, **changes: Any) -> str | None:
    """A stronger suite than the one that ran; None where there is none."""
    threat, ran = Threat.parse(plan.threat), plan.request.suite
    if plan.request.substitute:
        return None
    if threat.eps is None:
        ladder = ["minimum"]
    elif threat.access < Access.GRADIENT:
        ladder = [str(threat.access)]
    elif plan.model.stochastic:
        ladder = ["rand"]
    else:
        ladder = ["standard", "plus"]
    above = ladder[ladder.index(ran) + 1 :] if ran in ladder else ladder
    return _changed(plan, {**_LISTED, "suite": above[0], **changes}) if above else None


def _gradients_at_hand(plan: Plan) -> str:
    """The same evaluation without a substitute."""
    return _changed(plan, {**_LISTED, "substitute": (), "fuse": "logits"})


def _changed(plan: Plan, changes: Mapping[str, Any]) -> str:
    return command_of(plan.request.model_copy(update=dict(changes)))


def _examined(plan: Plan) -> str | None:
    request: Request = plan.request
    return examine_command(request) if request.textual else None


Step = Callable[[Plan], str | None]
_STEPS: Mapping[str, Step] = {
    # Attacks may be too weak, or gradients masked: the suites have restarts, other losses and
    # attacks without gradients.
    **dict.fromkeys(("W02", "W03", "W04", "W05", "W06", "W07", "W08", "W09", "W10"), _stronger),
    **dict.fromkeys(("W11", "W20", "W23"), _stronger),
    "W12": lambda plan: _changed(plan, {**_LISTED, "attacks": "averaged(pgd, 20), square"}),
    "W48": lambda plan: _stronger(plan, active_test=ACTIVE),
    "W42": lambda plan: _changed(plan, {**_LISTED, "attacks": "nattack, square"}),
    "W49": _gradients_at_hand,
    "W21": lambda plan: _changed(plan, {"curve": "full"}),
    # The model must be repaired or declared differently, which an examination confirms.
    **dict.fromkeys(
        ("W01", "W13", "W14", "W15", "W17", "W22", "W41", "W45", "W46", "W47"), _examined
    ),
    **dict.fromkeys(("FAILED", "UNFINISHED", "DAMAGED"), lambda plan: plan.request.command or None),
}
"""What every rule's advice comes down to as a command; rules that are not here need none."""
