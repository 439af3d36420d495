"""The active test: do an evaluation's attacks find adversarial examples that are known to exist?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb

import torch

from besiege.attacks.attack import Attack
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, BesiegeError, ThreatError, described
from besiege.core.examination import Check, Outcome
from besiege.core.oracle import Oracle, full_precision
from besiege.core.rules import FEW
from besiege.core.samples import Samples
from besiege.core.threat import L0, Access, Goal, Threat
from besiege.core.victim import Victim
from besiege.evaluation.binarised import INNER, Features, Heads, apart, drawn, make_heads, readout
from besiege.evaluation.checking import fits
from besiege.evaluation.crafting import craft
from besiege.evaluation.judging import judge

NAME = "the attacks find known examples"
LEAST = 0.95
"""The share of known examples that attacks must find."""
_TAIL = 0.025
"""Each side of the exact 95 % interval."""
_PROBES = 8
"""Images on which the linear read-out is looked for."""


@dataclass(frozen=True)
class ActiveTest:
    """What the active test found.

    Attributes
    ----------
    tested, found : int
        Samples with a known adversarial example, and those of them where the attacks found one.
    left_out : int
        Samples without a known example, or nearer than two budgets to another one.
    random_found : int
        Samples where as many random points as the head was fitted on find one.
    raised, lowered : int
        Samples whose threshold lies where several steps along the gradient lead, and one does not;
        and those where honest gradients do not lead as far as the known example.
    forwards, backwards : int
        All passes of the network: heads, random points, attacks and judging.
    layer : bool
        Whether the features are those of a linear read-out; otherwise they are the logits.
    check : Check
        The outcome.
    """

    tested: int = 0
    found: int = 0
    left_out: int = 0
    random_found: int = 0
    raised: int = 0
    lowered: int = 0
    forwards: int = 0
    backwards: int = 0
    layer: bool = False
    check: Check = Check(NAME, "not run")


def active_test(
    victim: Victim,
    attacks: Sequence[Attack],
    samples: Samples,
    threat: Threat,
    *,
    seed: int = 0,
    most: int = 50,
) -> ActiveTest:
    """Give every sample a head of two classes with a known adversarial example, and attack it.

    Parameters
    ----------
    victim : Victim
        The model; its features are kept, its last layer is replaced (`Binarised`).
    attacks : sequence of Attack
        The evaluation's attacks, run one after the other on the samples that are left.
    samples, threat
        The samples, of which the first `most` are used, and the threat.
    seed : int
        Seed of heads and attacks.
    most : int
        Most samples. With fewer than 20 heads nothing is decided.

    References
    ----------
    Zimmermann, Brendel, Tramer and Carlini 2022, "Increasing confidence in adversarial robustness
    evaluations".
    """
    reason = _inapplicable(victim, threat)
    if reason:
        return ActiveTest(check=Check(NAME, "not applicable", seen=reason))
    usable = [one for one in attacks if _usable(one, threat)]
    if not usable:
        return _not_run("none of the attacks can be run on a model of two classes.")
    if victim.stochastic:
        return _not_run("the model is stochastic: no example is certain.")
    if min(len(samples), most) < FEW:
        return _not_run(f"it needs {FEW} samples at least.")
    try:
        return _test(victim, usable, samples, threat, seed, most)
    except BesiegeError as problem:
        return _not_run(f"it ended with {described(problem)}.")


def _test(
    victim: Victim,
    attacks: Sequence[Attack],
    samples: Samples,
    threat: Threat,
    seed: int,
    most: int,
) -> ActiveTest:
    with victim.held(), full_precision(victim.device):
        samples = samples.at(torch.arange(min(most, len(samples)))).to(victim.device)
        layer = readout(victim, samples.images[:_PROBES])
        features = Features(victim, layer)
        away = apart(samples.images, threat)
        many = len(samples)
        samples = samples.at(away.nonzero()[:, 0])
        balls = ball(threat.norm, samples.images, threat.radius, victim.box, victim.grid)
        dice = Dice.throw(seed, samples.ids).of("active")
        heads = make_heads(features, balls, threat, dice)
        rows = heads.kept.nonzero()[:, 0]
        counts = ActiveTest(
            tested=len(rows),
            left_out=many - len(rows),
            raised=heads.raised,
            lowered=heads.lowered,
            forwards=heads.forwards + _PROBES,
            backwards=heads.backwards + _PROBES,
            layer=layer is not None,
        )
        if len(rows) < FEW:
            why = f"only {len(rows)} of {many} samples have a known example; {FEW} are needed."
            return replace(counts, check=Check(NAME, "not run", seen=why))
        lucky = torch.zeros(len(rows), dtype=torch.bool, device=samples.images.device)
        oracle, around, chances = Oracle(heads.victim), balls.at(rows), dice.of("random").at(rows)
        for draw in range(INNER):
            lucky |= oracle.logits(drawn(around, chances, draw)).argmax(1) == 1
        counts = replace(
            counts, random_found=int(lucky.sum()), forwards=counts.forwards + INNER * len(rows)
        )
    return _attacked(heads, attacks, samples.at(rows), threat, seed, counts)


def _attacked(
    heads: Heads,
    attacks: Sequence[Attack],
    samples: Samples,
    threat: Threat,
    seed: int,
    counts: ActiveTest,
) -> ActiveTest:
    """Run the attacks, each on what those before it left, and decide."""
    labels = torch.zeros_like(samples.labels)
    targets = labels + 1 if threat.goal is Goal.GIVEN else None
    left = Samples(samples.images, labels, samples.ids, targets)
    aimed = replace(threat, target=None if threat.target is None else 1)
    forwards, backwards = counts.forwards, counts.backwards
    for attack in attacks:
        crafted = craft(heads.victim, attack, left, aimed, seed=seed)
        verdicts = judge(heads.victim, crafted, left, aimed, seed=seed)
        forwards += int(crafted.forwards.sum()) + verdicts.forwards
        backwards += int(crafted.backwards.sum())
        left = left.at((~verdicts.success).nonzero()[:, 0])
        if not len(left):
            break
    found = counts.tested - len(left)
    counts = replace(counts, found=found, forwards=forwards, backwards=backwards)
    return replace(counts, check=_decided(found, counts.tested))


def _decided(found: int, tested: int) -> Check:
    """Failed where the exact 95 % interval of the share found lies below 95 %.

    Of 50 examples, 43 are too few: attacks that find 95 % of all find so few in 1.2 % of all cases.
    """
    number = f"{found} of {tested} known examples found"
    missed = tested - found
    chance = sum(
        comb(tested, k) * (1 - LEAST) ** k * LEAST ** (tested - k)
        for k in range(missed, tested + 1)
    )
    outcome: Outcome = "passed" if chance >= _TAIL else "failed"
    if outcome == "passed":
        return Check(NAME, outcome, number)
    return Check(
        NAME,
        outcome,
        number,
        f"the attacks were too weak for this model: with another last layer, {tested} samples "
        f"have adversarial examples for certain, and the attacks found {found} of them.",
        "Use more steps, other losses or restarts (--suite standard); if these fail as well, the "
        "gradients mislead: attack without them (square), or give the layer that breaks them a "
        "surrogate.",
        "W48",
    )


def _inapplicable(victim: Victim, threat: Threat) -> str:
    if victim.access < Access.GRADIENT or victim.metered:
        return "the model is a black box: its features cannot be read."
    if threat.access < Access.GRADIENT:
        return "the attacks see no gradients: the test is about attacks that do."
    if threat.eps is None:
        return "the threat has no budget: examples exist at some distance in any case."
    if threat.norm is L0:
        return "in l0 the hardness of known examples is not calibrated."
    return ""


def _usable(attack: Attack, threat: Threat) -> bool:
    """Whether an attack needs nothing but the model: no substitute, and no other images."""
    if attack.needs_substitute or attack.uses_starts:
        return False
    try:
        fits(attack, threat)
    except (AttackError, ThreatError):
        return False
    return True


def _not_run(why: str) -> ActiveTest:
    return ActiveTest(check=Check(NAME, "not run", seen=why))
