"""What to run next: the command behind a rule's advice, for the evaluation at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from besiege.attacks.suites import DEFAULT, DEFAULT_TARGETED, DEFAULT_TRANSFER, SUITES
from besiege.bench.command import command_of, examine_command
from besiege.bench.plan import Plan
from besiege.bench.spec import AttackSpec, Request
from besiege.bench.stronger import beside, longer, suite_attacks
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
    # A note of these rules is about an attack's own figure, or may be chance.
    findings = [one for one in findings if one.id not in _WEAK or one.level != "note"]
    weak = [one for one in findings if one.id in _WEAK]
    for id in dict.fromkeys(finding.id for finding in findings):
        if stopped and id in _LATER:
            continue
        command = _stronger(plan, weak) if id in _WEAK else _STEPS.get(id, _nothing)(plan)
        if command is not None:
            rules.setdefault(command, []).append(id)
    return tuple(NextStep(tuple(ids), command) for command, ids in rules.items())


def _repaired(plan: Plan, rules: Sequence[str]) -> tuple[NextStep, ...]:
    """Change the model, then the same command again."""
    first = f"Change the model: besiege show {rules[-1]} says how. Then run the same command again"
    command = plan.request.command
    return (NextStep(tuple(rules), command, first),) if command else ()


def _nothing(plan: Plan) -> None:
    """The command of a rule that needs none."""


def _stronger(plan: Plan, findings: Sequence[Finding]) -> str | None:
    """The attacks that were asked for, longer or with others; otherwise a stronger suite.

    None where there is nothing stronger.
    """
    if plan.request.substitute:
        return None
    if not _asked(plan):
        return _above(plan)
    texts, rest = longer(plan.request.attacks or (), plan.attacks, findings)
    return _listed(plan, beside(texts, _of_suite(plan, _ladder(plan)[0]) if rest else ()))


def _asked(plan: Plan) -> bool:
    """Whether the user chose the attacks one by one, or a suite that has no stronger one."""
    request = plan.request
    if request.suite is not None:
        return request.suite not in SUITES or request.suite == "adaptive"
    return bool(request.attacks) and not _usual(plan)


def _usual(plan: Plan) -> bool:
    """Whether the attacks that ran are those of a request that names none."""
    attacks = plan.request.attacks or ()
    listed = (DEFAULT, DEFAULT_TARGETED, DEFAULT_TRANSFER)
    searched = Threat.parse(plan.threat).eps is None and len(attacks) == 1
    return attacks in listed or (searched and str(attacks[0]).startswith("minimal(pgd("))


def _of_suite(plan: Plan, name: str) -> tuple[str, ...]:
    """The attacks of a suite on this model."""
    model, threat = plan.model, Threat.parse(plan.threat)
    traits = {"stochastic": model.stochastic, "pooled": model.pooled > 1}
    traits |= {"rejects": model.rejects, "rounds": model.rounds}
    return suite_attacks(name, threat, **traits)


def _listed(plan: Plan, texts: Sequence[str], **changes: Any) -> str | None:
    """The command with these attacks, one after the other where those that ran did so."""
    if plan.request.suite is None:
        return _changed(plan, {"attacks": tuple(texts), **changes})
    if tuple(texts) == plan.request.attacks and not changes:
        return None
    return _changed(plan, {"suite": ", ".join(texts), **changes})


def _above(plan: Plan) -> str | None:
    """The command with the next suite above the one that ran."""
    ladder, ran = _ladder(plan), plan.request.suite
    above = ladder[ladder.index(ran) + 1 :] if ran in ladder else ladder
    return _changed(plan, {**_LISTED, "suite": above[0]}) if above else None


def _ladder(plan: Plan) -> list[str]:
    """The suites for a threat and a model, the weakest first."""
    threat = Threat.parse(plan.threat)
    if threat.eps is None:
        return ["minimum"]
    if threat.access < Access.GRADIENT:
        return [str(threat.access)]
    return ["adaptive"] if plan.model.stochastic else ["standard", "plus"]


def _gradients_at_hand(plan: Plan) -> str | None:
    """The same evaluation without a substitute; attacks that only guess with one are left out."""
    kept = [text for text, spec in _pairs(plan) if spec.advice is None] if _asked(plan) else []
    without = {"substitute": (), "fuse": "logits"}
    return _listed(plan, kept, **without) if kept else _changed(plan, {**_LISTED, **without})


def _pairs(plan: Plan) -> list[tuple[str, AttackSpec]]:
    """The attacks that were asked for, each with how the plan describes it."""
    return list(zip(plan.request.attacks or (), plan.attacks, strict=False))


def _large_probes(plan: Plan) -> str | None:
    """With attacks that compare scores of images farther apart."""
    probing = ("nattack", "square")
    if not _asked(plan):
        return _changed(plan, {**_LISTED, "attacks": probing})
    return _listed(plan, beside(plan.request.attacks or (), probing))


def _adaptive(plan: Plan) -> str | None:
    """The attacks that fit the defense; None where the attacker may not use its gradients."""
    threat = Threat.parse(plan.threat)
    if threat.eps is None or threat.access < Access.GRADIENT or plan.request.suite == "adaptive":
        return None
    asked = set(plan.request.attacks or ())
    # The suite keeps the attack that ignores the defense.
    others = asked.difference((SUITES["adaptive"].ignores,), _of_suite(plan, "adaptive"))
    if _asked(plan) and others and not plan.request.substitute:
        return _listed(plan, beside(plan.request.attacks or (), _of_suite(plan, "adaptive")))
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


_WEAK = (
    *("W02", "W03", "W04", "W05", "W06", "W07", "W08", "W09", "W10"),
    *("W11", "W20", "W23", "W48", "W50"),
)
"""Rules for attacks that may be too weak, or masked gradients: one command follows all of them. The
suites have restarts, other losses and attacks without gradients."""
Step = Callable[[Plan], str | None]
_STEPS: Mapping[str, Step] = {
    "W42": _large_probes,
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
