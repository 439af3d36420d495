"""Craft: run one attack on some samples of a victim, and return its images and their cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

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
    """The result of an attack: one row per sample, in the order of the samples.

    ``success`` and ``distance`` are the attack's own claims, which `judge` verifies. ``vanished``
    says where a gradient was zero or not finite, and ``zero_share`` which share of the first
    gradient was exactly zero. ``ascent`` is the best loss at the first gradient, after three
    quarters of them and at the end. ``descent`` is the smallest distance claimed within each number
    of passes of `besiege.core.record.COSTS`, where the smallest perturbation is kept. ``no_start``
    says where an attack found no starting point, and ``substitute_passes`` counts gradients of a
    substitute. ``general`` are findings about the victim and the threat.
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
    general: tuple[Finding, ...]
    zero_share: Tensor | None = None
    descent: Tensor | None = None
    no_start: Tensor | None = None
    substitute_passes: Tensor | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: the general ones, and those about samples that were not broken."""
        return (*self.general, *_left_open(self))

    def split(self, counts: Sequence[int]) -> list[Crafted]:
        """The results of consecutive samples, so many each.

        Padding and seconds belong to whole batches: each part gets the share of its samples.
        """
        rows: dict[str, Any] = {
            one.name: torch.split(value, list(counts))
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), Tensor)
        }
        padding, seconds = shares(self.padding, counts), sum(counts) or 1
        parts = [
            replace(
                self,
                **{name: values[place] for name, values in rows.items()},
                padding=padding[place],
                seconds=self.seconds * count / seconds,
            )
            for place, count in enumerate(counts)
        ]
        return [replace(one, ascent=None) if _without_gradients(one) else one for one in parts]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """A whole number divided in proportion to weights, without a rest.

    Examples
    --------
    >>> shares(10, [1, 1, 2])
    [2, 3, 5]
    """
    whole = sum(weights) or 1
    ends = [total * end // whole for end in accumulate(weights)]
    return [end - begin for begin, end in pairwise([0, *ends])]


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
    parts: Sequence[int] | None = None,
) -> Crafted:
    """Run an attack; the victim and the caller's tensors stay unchanged.

    Parameters
    ----------
    victim, attack, samples, threat
        The victim, the attack, the samples it is run on, and the threat.
    seed : int
        Seed of all random numbers, together with the samples' ids.
    keep : str, optional
        Which image is kept: the 'first' success (the default), the 'smallest' (the default
        without a budget), the 'highest' loss, or the 'last' point.
    leave : str, optional
        When a row leaves: at its first 'success' (the default), or at the 'end' of the attack;
        then the kept image is returned also where the attack failed.

        Score- and gradient-based attacks on a stochastic victim keep the 'highest' loss and leave
        at the 'end' by default: a point just beyond the boundary is misclassified in a few draws
        only.
    queries : int, optional
        Query limit per sample.
    twin : bool or Victim
        Search on an accelerated copy. Its successes are confirmed on the victim itself, unless that
        is stochastic, and rows without confirmation are attacked again there. True creates one with
        `Victim.twin`; an existing one may be given instead.
    batch, pad
        Rows per call, and whether calls are padded to whole blocks of rows. With padding no result
        depends on the batch size; with ``pad=False`` the last bits of logits may, and so may
        results near the boundary.
    watch : callable, optional
        Called after every answer, to show progress.
    knowledge : Knowledge, optional
        What the attack may use besides the victim: images to start from, and a substitute whose
        gradients are no queries.
    parts : sequence of int, optional
        Numbers of consecutive samples that are judged at once, where not all are. On a GPU the
        last bits of logits depend on the batch: successes are confirmed in those of the judge.
    """
    samples = samples.toward(threat.target)
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
        judged = Oracle(victim)  # with the batches of the judge
        # The smallest perturbations end closer to the boundary than TF32 resolves.
        smallest = threat.eps is None or keep == "smallest"
        free = keep == "first" and not smallest and queries is None
        pushes = () if queries is not None else NUDGES if smallest else PUSHES if free else ()
        climbs = CLIMBS if free and attack.access is Access.GRADIENT else ()
        if searcher is None:
            crafted = run(victim, samples)
        else:
            with searcher.held(), nullcontext() if smallest else allow_tf32():
                crafted = run(searcher, samples)
        # One answer of a stochastic victim confirms nothing: the judge asks it ten times.
        if judged.batch_sensitive or (searcher is not None and not victim.stochastic):
            again = None if searcher is None else partial(run, victim)
            crafted = confirmed(
                judged, samples, threat, crafted, pushes, climbs, again, leave, parts
            )
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
    """Which image is kept and when a row leaves; arguments that are given stay."""
    noisy = victim.stochastic and attack.access >= Access.SCORE and threat.eps is not None
    keep = keep or ("smallest" if threat.eps is None else "highest" if noisy else "first")
    return keep, leave or ("end" if noisy else "success")


def _run(
    oracle: Oracle,
    attack: Attack,
    samples: Samples,
    threat: Threat,
    seed: int,
    terms: Terms,
) -> Crafted:
    victim = oracle.victim
    # With other strides, sums would be taken in another order.
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
                f"'{attack}' needs more memory than is available for {len(samples)} images: attack "
                "fewer at a time, or give smaller parameters"
            ) from problem
    record, meter = siege.record, siege.record.meter
    record.catch_up()
    if terms.leave == "success":  # failures return the clean image
        lost = ~record.success
        record.images[lost] = record.clean[lost]
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


def _without_gradients(crafted: Crafted) -> bool:
    """Whether no gradient was requested: then no sample has a best loss."""
    return crafted.ascent is None or bool(torch.isneginf(crafted.ascent[:, 2]).all())


def _left_open(crafted: Crafted) -> list[Finding]:
    """Findings about samples that were not broken, and may still not be robust."""
    many = len(crafted.success)
    gone = int((crafted.vanished & ~crafted.success).sum())
    findings = [*rules.vanished(gone, f"of {many} samples that were not broken")]
    if crafted.no_start is None:
        return findings
    idle = crafted.no_start & ~crafted.success
    if bool(idle.any()):
        findings.append(
            Finding(
                "W40",
                f"no starting point was found for {int(idle.sum())} of {many} samples: no point "
                "tried was beyond the decision boundary.",
                "They count as not broken only because the attack could not start: give more "
                "queries, evaluate on more images (attacks start from images of other classes), or "
                "use a score-based attack.",
            )
        )
    return findings


def _targets(goal: Goal, samples: Samples) -> Tensor | None:
    """The targets before the clean check; -1 where the clean scores choose them."""
    if goal is Goal.UNTARGETED:
        return None
    return samples.targets if goal is Goal.GIVEN else torch.full_like(samples.labels, -1)


def _rule(goal: Goal, samples: Samples) -> Callable[[Siege], Tensor] | None:
    """The function that chooses the targets after the clean check, where the goal needs one."""

    def targets(siege: Siege) -> Tensor:
        samples.check_classes(siege.classes)
        if goal is Goal.RANDOM:
            return random_targets(samples.ids, samples.labels, siege.classes)
        return target_class(siege, goal)

    return targets if goal in (Goal.RANDOM, Goal.LEAST_LIKELY, Goal.SECOND) else None
