"""Craft: run one attack on some samples of a victim and keep what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.core import rules
from besiege.core.ball import ball
from besiege.core.dice import Dice, random_targets
from besiege.core.door import out_of_memory
from besiege.core.errors import AttackError, Finding
from besiege.core.knowledge import Knowledge
from besiege.core.oracle import Access, Oracle, allow_tf32, full_precision
from besiege.core.record import Keep, Leave, Record
from besiege.core.samples import Samples
from besiege.core.siege import Siege, target_class
from besiege.core.terms import Terms
from besiege.core.threat import Goal, Threat
from besiege.core.victim import Victim
from besiege.evaluation.checking import answers, check
from besiege.evaluation.confirming import CLIMBS, NUDGES, PUSHES, confirmed


@dataclass(frozen=True)
class Crafted:
    """What an attack made: one entry per sample, in the order of the samples.

    ``success`` and ``distance`` are the attack's own claims; `judge` says what they are worth.
    ``vanished`` says where a gradient was zero or not finite, ``zero_share`` which share of the
    first one was exactly zero; ``ascent`` is the best loss at the first request, after three
    quarters of them and at the end, where gradients were asked. ``descent`` is the smallest
    distance claimed within each number of passes of `besiege.core.record.COSTS`, where the smallest
    change is kept.
    ``no_start`` says where an attack found no point to begin from, and ``substitute_passes`` how
    many gradients of a substitute were taken.
    """

    images: Tensor
    success: Tensor
    distance: Tensor
    first_step: Tensor
    first_query: Tensor
    forwards: Tensor
    backwards: Tensor
    queries: Tensor
    targets: Tensor | None
    vanished: Tensor
    ascent: Tensor | None
    padding: int
    seconds: float
    findings: tuple[Finding, ...]
    zero_share: Tensor | None = None
    descent: Tensor | None = None
    no_start: Tensor | None = None
    substitute_passes: Tensor | None = None


def craft(
    victim: Victim,
    attack: Attack,
    samples: Samples,
    threat: Threat,
    *,
    seed: int = 0,
    keep: Keep | None = None,
    leave: Leave | None = None,
    queries: int | None = None,
    twin: bool | Victim | None = False,
    batch: int | None = None,
    pad: bool = True,
    watch: Callable[[Record], None] | None = None,
    knowledge: Knowledge | None = None,
) -> Crafted:
    """Run an attack; nothing of the caller's or the victim's is changed.

    Parameters
    ----------
    victim, attack, samples, threat
        Who is attacked, with what, on what, within what.
    seed : int
        Of every draw, together with the samples' ids.
    keep : str, optional
        Which image is kept: the 'first' success (the default), the 'smallest' (the default
        without a budget), the 'highest' loss, or the 'last' point.
    leave : str, optional
        When a row leaves: at its first 'success' (the default), or at the 'end' of the attack;
        then the kept image is returned whether or not the victim was fooled.

        An attack on a stochastic victim that sees scores keeps the 'highest' loss and leaves at
        the 'end' by default: a point just across the boundary fools such a victim only by luck.
    queries : int, optional
        The most answers any sample may use.
    twin : bool or Victim
        Search on an accelerated copy; its successes are confirmed on the victim itself, and rows
        that were not are attacked again there. True makes one with `Victim.twin`;
        one that was made before may be given instead.
    batch, pad
        Rows per call, and whether calls are padded to whole blocks of rows. With padding no result
        depends on the batch; with ``pad=False`` its last digits may, and so may rows near the
        boundary.
    watch : callable, optional
        Called after every answer, for whoever shows progress.
    knowledge : Knowledge, optional
        What the attack may use besides the victim: images to start from, and a substitute whose
        gradients are no queries.
    """
    keep, leave = keep_and_leave(victim, attack, threat, keep, leave)
    known = knowledge or Knowledge()
    terms = Terms(keep, leave, queries, watch=watch, knowledge=known)
    check(victim, attack, threat, samples, terms, batch=batch, seed=seed)
    begin = time.perf_counter()
    with _held(victim, known.substitute), full_precision(victim.device):
        samples = samples.to(victim.device)
        if known.starts is not None:
            starts = known.starts.to(victim.device)
            terms = replace(terms, knowledge=replace(known, starts=starts))
        if victim.classes is not None:
            samples.check_classes(victim.classes)

        def run(searched: Victim, some: Samples) -> Crafted:
            oracle = Oracle(searched, threat.access, batch, pad)
            return _run(oracle, attack, some, threat, seed, terms)

        searcher = victim.twin(samples, threat, seed=seed) if twin is True else twin or None
        asked = Oracle(victim)  # in the company that the judge will give it
        # The smallest change ends nearer to the boundary than a rough search can see.
        smallest = threat.eps is None or keep == "smallest"
        free = keep == "first" and not smallest and queries is None
        pushes = () if queries is not None else NUDGES if smallest else PUSHES if free else ()
        climbs = CLIMBS if free and attack.access is Access.GRADIENT else ()
        if searcher is None:
            crafted = run(victim, samples)
            if asked.batch_sensitive:
                crafted = confirmed(asked, samples, threat, crafted, pushes, climbs, None, leave)
        else:
            with searcher.held(), nullcontext() if smallest else allow_tf32():
                crafted = run(searcher, samples)

            def alone(some: Samples) -> Crafted:
                return run(victim, some)

            crafted = confirmed(asked, samples, threat, crafted, pushes, climbs, alone, leave)
    return replace(crafted, seconds=time.perf_counter() - begin)


@contextmanager
def _held(victim: Victim, substitute: Victim | None) -> Iterator[None]:
    with victim.held(), nullcontext() if substitute is None else substitute.held():
        yield


def keep_and_leave(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    keep: Keep | None = None,
    leave: Leave | None = None,
) -> tuple[Keep, Leave]:
    """What is kept and when a row leaves, where the caller does not say."""
    by_chance = victim.stochastic and attack.access >= Access.SCORE and threat.eps is not None
    keep = keep or ("smallest" if threat.eps is None else "highest" if by_chance else "first")
    return keep, leave or ("end" if by_chance else "success")


def _run(
    oracle: Oracle,
    attack: Attack,
    samples: Samples,
    threat: Threat,
    seed: int,
    terms: Terms,
) -> Crafted:
    victim = oracle.victim
    # Other strides would be summed in another order.
    images = samples.images.contiguous()
    siege = Siege.start(
        oracle,
        ball(threat.norm, images, threat.radius, victim.box, victim.grid),
        samples.labels,
        Dice.throw(seed, samples.ids),
        terms,
        targets=_targets(threat.goal, samples),
    )
    whole = siege.averaged(attack.draws) if attack.draws > 1 else siege
    whole.survey(_rule(threat.goal, samples))
    assert oracle.classes is not None
    samples.check_classes(oracle.classes)
    findings = threat.findings(victim.box)
    if siege.record.logits is not None:
        findings += answers(victim, siege.record.logits)
    siege.record.catch_up()
    siege.settle()
    if len(siege):
        try:
            attack.run(siege.view(dice=siege.dice.of(attack.title())))
        except (MemoryError, RuntimeError) as problem:
            if not out_of_memory(problem):
                raise
            raise AttackError(
                f"'{attack}' needs more memory than there is for {len(samples)} images: attack "
                "fewer at a time, or give smaller parameters"
            ) from problem
    record, meter = siege.record, siege.record.meter
    record.catch_up()
    if terms.leave == "success":  # a failure returns the clean image, whatever was kept on the way
        lost = ~record.success
        record.images[lost] = record.clean[lost]
    findings += _left_open(record)
    return Crafted(
        record.images,
        record.success,
        record.distance,
        record.first_step,
        record.first_query,
        meter.forwards.clone(),
        meter.backwards.clone(),
        meter.queries.clone(),
        record.targets,
        record.vanished,
        record.ascent(),
        meter.padding,
        0.0,
        tuple(findings),
        record.zero_share,
        record.descent(terms.keep == "smallest"),
        record.no_start,
        record.substitute_passes,
    )


def _left_open(record: Record) -> list[Finding]:
    """What speaks against calling the samples that were not broken robust."""
    many = len(record.labels)
    gone = int((record.vanished & ~record.success).sum())
    findings = [*rules.vanished(gone, f"of {many} samples that were not broken")]
    idle = record.no_start & ~record.success
    if bool(idle.any()):
        findings.append(
            Finding(
                "W40",
                f"no starting point was found for {int(idle.sum())} of {many} samples: "
                "nothing that was tried lay beyond the boundary.",
                "They count as not broken only because the attack could not begin: give more "
                "queries, evaluate on more images (some of every class are what attacks begin at), "
                "or use an attack that sees scores.",
            )
        )
    return findings


def _targets(goal: Goal, samples: Samples) -> Tensor | None:
    """The classes to reach before the clean check: where it chooses them, none is reached yet."""
    if goal is Goal.UNTARGETED:
        return None
    return samples.targets if goal is Goal.GIVEN else torch.full_like(samples.labels, -1)


def _rule(goal: Goal, samples: Samples) -> Callable[[Siege], Tensor] | None:
    """How the clean check chooses the classes to reach, for goals that are rules."""

    def targets(siege: Siege) -> Tensor:
        samples.check_classes(siege.classes)
        if goal is Goal.RANDOM:
            return random_targets(samples.ids, samples.labels, siege.classes)
        return target_class(siege, goal)

    return targets if goal in (Goal.RANDOM, Goal.LEAST_LIKELY, Goal.SECOND) else None
