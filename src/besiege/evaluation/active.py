"""The active test: do an evaluation's attacks find adversarial examples that are known to exist?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from besiege.attacks.attack import Attack
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, BesiegeError, ThreatError, described
from besiege.core.examination import Check
from besiege.core.oracle import full_precision
from besiege.core.rules import FEW, TAIL, at_least
from besiege.core.samples import Samples
from besiege.core.threat import L0, Access, Goal, Threat
from besiege.core.victim import Victim
from besiege.evaluation.binarised import Features, apart, make_heads, readout
from besiege.evaluation.checking import fits
from besiege.evaluation.crafting import craft
from besiege.evaluation.judging import judge

NAME = "the attacks find known adversarial examples"
LEAST = 0.95
"""The share of known examples that attacks must find."""
ENOUGH = 0.75
"""The share of the first samples that must have a known example, so that they decide."""
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
    raised, lowered : int
        Samples whose threshold lies where several steps along the gradient lead, and one does not;
        and those where honest gradients do not lead as far as the known example.
    forwards, backwards : int
        All passes of the network: heads, attacks and judging.
    layer : bool
        Whether the features are those of a linear read-out; otherwise they are the logits.
    check : Check
        The outcome.
    """

    tested: int = 0
    found: int = 0
    left_out: int = 0
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
    first: int = 0,
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
        Most samples. The test fails, or passes on all samples, with 20 heads at least.
    first : int
        The test passes at once if the attacks find the examples of the first few samples; a single
        one that they miss makes it go on to all of them. 0: all samples are used.

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
        return _not_run("no attack follows gradients of this model and fits two classes.")
    if victim.stochastic:
        return _not_run("the model is stochastic: no example is certain.")
    if min(len(samples), most) < FEW:
        return _not_run(f"it needs {FEW} samples at least.")
    try:
        return _test(victim, usable, samples, threat, seed, most, first)
    except BesiegeError as problem:
        return _not_run(f"it ended with {described(problem)}.")


def _test(
    victim: Victim,
    attacks: Sequence[Attack],
    samples: Samples,
    threat: Threat,
    seed: int,
    most: int,
    first: int,
) -> ActiveTest:
    samples = samples.at(torch.arange(min(most, len(samples)))).to(victim.device)
    with victim.held(), full_precision(victim.device):
        layer = readout(victim, samples.images[:_PROBES])
    features = Features(victim, layer)
    alone = apart(samples.images, threat).nonzero()[:, 0]
    counts = ActiveTest(forwards=_PROBES, backwards=_PROBES, layer=layer is not None)
    if first:
        few = samples.at(alone[:first])
        counts = _attacked(features, attacks, few, threat, seed, counts)
        if counts.found == counts.tested >= ENOUGH * first:
            return replace(counts, check=_decided(counts.found, counts.tested))
    counts = _attacked(features, attacks, samples.at(alone[first:]), threat, seed, counts)
    counts = replace(counts, left_out=len(samples) - counts.tested)
    if counts.tested < FEW:
        known = f"only {counts.tested} of {len(samples)} samples have a known example"
        return replace(counts, check=Check(NAME, "not run", seen=f"{known}; {FEW} are needed."))
    return replace(counts, check=_decided(counts.found, counts.tested))


def _attacked(
    features: Features,
    attacks: Sequence[Attack],
    samples: Samples,
    threat: Threat,
    seed: int,
    counts: ActiveTest,
) -> ActiveTest:
    """Make heads and run the attacks, each on what those before it left; add to the counts."""
    if not len(samples):
        return counts
    with features.held(), full_precision(features.device):
        balls = ball(threat.norm, samples.images, threat.radius, features.box, features.grid)
        dice = Dice.throw(seed, samples.ids).of("active")
        heads = make_heads(features, balls, threat, dice)
    forwards, backwards = counts.forwards + heads.forwards, counts.backwards + heads.backwards
    tested = samples.at(heads.kept.nonzero()[:, 0])
    labels = torch.zeros_like(tested.labels)
    targets = labels + 1 if threat.goal is Goal.GIVEN else None
    left = Samples(tested.images, labels, tested.ids, targets)
    aimed = replace(threat, target=None if threat.target is None else 1)
    for attack in attacks:
        if not len(left):
            break
        crafted = craft(heads.victim, attack, left, aimed, seed=seed)
        verdicts = judge(heads.victim, crafted, left, aimed, seed=seed)
        forwards += int(crafted.forwards.sum()) + verdicts.forwards
        backwards += int(crafted.backwards.sum())
        left = left.at((~verdicts.success).nonzero()[:, 0])
    return replace(
        counts,
        tested=counts.tested + len(tested),
        found=counts.found + len(tested) - len(left),
        left_out=counts.left_out + len(samples) - len(tested),
        raised=counts.raised + heads.raised,
        lowered=counts.lowered + heads.lowered,
        forwards=forwards,
        backwards=backwards,
    )


def _decided(found: int, tested: int) -> Check:
    """Failed where the exact 95 % interval of the share found lies below 95 %.

    Of 50 examples, 43 are too few: attacks that find 95 % of all find so few in 1.2 % of all cases.
    """
    number = f"{found} of {tested} known examples found"
    missed = tested - found
    if found >= LEAST * tested or at_least(missed, tested, 1 - LEAST) >= TAIL:
        return Check(NAME, "passed", number)
    return Check(
        NAME,
        "failed",
        number,
        f"the attacks were too weak for this model: with another last layer, {tested} samples "
        f"have adversarial examples for certain, and the attacks found {found} of them.",
        "Use attacks with more steps, other losses or restarts. If these fail as well, the "
        "gradients mislead: give the layer that breaks them a surrogate (besiege show Layer).",
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
    """Whether an attack needs nothing but the model: no substitute, other images or a layer."""
    if attack.needs_substitute or attack.uses_starts or attack.needs_layer:
        return False
    try:
        fits(attack, threat)
    except (AttackError, ThreatError):
        return False
    return True


def _not_run(why: str) -> ActiveTest:
    return ActiveTest(check=Check(NAME, "not run", seen=why))
