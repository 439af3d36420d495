"""Examines a victim before the attacks, and again after them: can its answers be attacked at all.

Three questions before: are the gradients those of the answers, does an image have one answer, and
are answers near the images answers. One question after: are the answers still the same.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.examination import Check
from besiege.core.oracle import full_precision
from besiege.core.samples import Samples
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.evaluation import nearby, sameness
from besiege.evaluation.nearby import flat, not_finite, segments, sources
from besiege.evaluation.sameness import (
    Asked,
    Sameness,
    apart,
    ascent,
    by_chance,
    copies,
    one_by_one,
)
from besiege.evaluation.slope_checks import OF_THE_ANSWERS, WITHIN_THE_BUDGET, slope_checks
from besiege.evaluation.slopes import FINER, Slopes, measure
from besiege.evaluation.subject import HALF, Fresh, Subject, precision
from besiege.models.black_box import accounted

_METERED = "every query of this model is paid for; examine it with --examine full."

_OWN_CHANCE = (
    "the model is declared stochastic, and equal dice do not repeat its answers: draw its noise "
    "from the dice that it is given (besiege show Layer) to make it repeatable."
)


def examine(
    victim: Victim,
    samples: Samples,
    threat: Threat,
    *,
    fresh: Fresh | None,
    seed: int = 0,
    full: bool = False,
) -> list[Check]:
    """Examine a victim before any attack, on at most 16 images.

    Parameters
    ----------
    victim : Victim
        The model; it is queried several hundred times.
    samples : Samples
        The images it will be attacked on; only a few are used.
    threat : Threat
        Its budget is the scale of the examination.
    fresh : callable or None
        Returns an untouched copy of the model each time; None where there is none.
    seed : int
        Of random directions and perturbed images.
    full : bool
        Whether a metered victim is queried, too.

    Returns
    -------
    list of Check
        Gradients match finite differences (W45) and lower the margin within the budget (W12), an
        image gets one answer (W46, W14), scores near the images are finite and vary (W47).

    Examples
    --------
    >>> from besiege.data import load as load_data
    >>> from besiege.models import load
    >>> data = load_data("digits", count=32)
    >>> samples = Samples.of(data.images, data.labels)
    >>> checks = examine(
    ...     load("zoo:digits-natural"),
    ...     samples,
    ...     Threat.parse("linf:0.1"),
    ...     fresh=lambda: load("zoo:digits-natural"),
    ... )
    >>> {check.outcome for check in checks}
    {'passed'}

    References
    ----------
    Carlini et al. 2019, "On evaluating adversarial robustness"; Athalye et al. 2018, "Obfuscated
    gradients give a false sense of security".
    """
    if victim.metered and not full:
        return [
            *_no_gradients("the model grants no gradients."),
            Check(sameness.NAME, "not run", seen=_METERED),
            Check(nearby.NAME, "not run", seen=_METERED),
        ]
    with victim.held(), full_precision(victim.device), accounted(victim, "probe", fresh=True):
        subject = Subject.of(victim, samples, threat, seed)
        own = torch.arange(len(subject), device=subject.images.device)
        inner, past = subject.past_surrogates(threat)
        points = segments(inner, seed)
        besides = None if past else (points.flatten(0, 1), sources(points))
        same = Sameness(subject, 0.0, seed, besides)
        clean = subject.ask(subject.images, own)
        same.eps = eps = precision(victim, subject.classes(clean))
        broken = not_finite(subject, clean, seed)
        if victim.stochastic and not same.repeats():
            return [
                *_no_gradients(_OWN_CHANCE),
                Check(sameness.NAME, "not applicable", seen=_OWN_CHANCE),
                broken or Check(nearby.NAME, "not applicable", seen=_OWN_CHANCE),
            ]
        # Plateaus, jumps and slopes are examined past layers with surrogates: these are declared.
        seen = inner.ask(inner.images, own) if past else clean
        slopes, gradients = _gradients(subject, inner, past, seen, eps, seed, broken)
        asked = None
        if slopes is not None:
            asked = Asked(slopes.queries, slopes.of, slopes.answers)
        one_answer = same.check(fresh, asked)
        if one_answer.outcome == "failed":  # differences of answers then mean nothing
            why = "an image has more than one answer, so changes of answers cannot be measured."
            unknown = broken or Check(nearby.NAME, "not run", seen=why)
            kept = [c if c.outcome == "not applicable" else _silent(c, why) for c in gradients]
            return [*kept, one_answer, unknown]
        if broken is None:
            broken = _hidden(len(subject)) if inner.hides_surrogates else None
        return [*gradients, one_answer, broken or flat(inner, seen, points, same.answers, eps)]


def _silent(check: Check, why: str) -> Check:
    return Check(check.name, "not run", seen=why)


def _gradients(
    subject: Subject,
    inner: Subject,
    past: int,
    clean: Tensor,
    eps: float,
    seed: int,
    broken: Check | None,
) -> tuple[Slopes | None, list[Check]]:
    """The checks of the gradients, and what was measured of the whole victim."""
    if subject.access < Access.GRADIENT:
        return None, _no_gradients("no gradients are granted.")
    if inner.hides_surrogates:
        return None, _no_gradients("surrogates inside the model replace its gradients.")
    if broken is not None:
        return None, _not_run("answers near the images are not finite, so slopes have no meaning.")
    try:
        slopes, checks = _measured(inner.accepting(), inner.classes(clean), past, eps, seed)
        if inner.victim.rejects:
            # Attacks follow the column of rejection too, wherever it is above the label's.
            other = inner.rejecting()
            own = torch.arange(len(other), device=other.images.device)
            _, (more, _) = _measured(other, other.ask(other.images, own), past, eps, seed)
            # Nothing leads downhill where clean images are the least suspicious of all.
            checks[0] = _of_both(checks[0], more)
    except VictimError as problem:
        return None, _not_run(f"{problem}.")
    return None if past or inner.victim.rejects else slopes, checks


def _measured(
    subject: Subject, clean: Tensor, past: int, eps: float, seed: int
) -> tuple[Slopes, list[Check]]:
    slopes = measure(subject, clean, eps, seed)
    checks = slope_checks(slopes, eps > HALF, past)
    if checks[0].outcome != "passed" and eps <= HALF and subject.victim.grid is None:
        # A network may bend within the first lengths: only what shorter ones show is a fault.
        finer = slope_checks(measure(subject, clean, eps, seed, FINER), False, past)
        checks = finer if finer[0].outcome == "passed" else checks
    return slopes, checks


def _of_both(classes: Check, rejection: Check) -> Check:
    """The worse of the same check of the classes and of the column of rejection."""
    worst_first = ("failed", "not run", "not applicable", "passed")
    if worst_first.index(rejection.outcome) >= worst_first.index(classes.outcome):
        return classes
    return replace(
        rejection,
        number=f"{rejection.number}, of the rejection",
        seen=f"of the column of rejection, {rejection.seen}",
    )


def _hidden(count: int) -> Check:
    """Layers with surrogates inside hide plateaus and jumps, which are declared."""
    return Check(nearby.NAME, "passed", f"finite near {count} of {count} images")


def examine_again(
    victim: Victim,
    samples: Samples,
    threat: Threat,
    *,
    fresh: Fresh | None,
    adversarial: Tensor | None = None,
    seed: int = 0,
) -> list[Check]:
    """Examine the victim that all attacks have queried: are its answers those of a fresh copy.

    Parameters
    ----------
    victim, samples, threat, fresh, seed
        As for `examine`.
    adversarial : Tensor, optional
        Adversarial images that the attacks found, ``[rows, ...]``, in the order of the samples.
    """
    if victim.metered or fresh is None:
        why = _METERED if victim.metered else "there is no fresh copy of the model to compare with."
        return [Check(sameness.AGAIN, "not run", seen=why)]
    with victim.held(), full_precision(victim.device):
        subject = Subject.of(victim, samples, threat, seed)
        own = torch.arange(len(subject), device=subject.images.device)
        dice = Dice.throw(seed, own).of("again")
        batches = {
            "clean images": subject.images,
            "slightly perturbed images": _slightly(subject, dice),
            "perturbed images": subject.ball.sample(dice),
        }
        if adversarial is not None and len(adversarial):
            batches["adversarial images"] = adversarial[: len(subject)].to(subject.images)
        compared = 0
        clean = subject.ask(subject.images, own)
        eps = precision(victim, subject.classes(clean))
        for kind, images in batches.items():
            of = own[: len(images)]
            answers = clean if images is subject.images else subject.ask(images, of)
            batch = Asked(images, of, answers)
            if victim.stochastic and _strays(subject, batch, eps):
                return [Check(sameness.AGAIN, "not applicable", seen=_OWN_CHANCE)]
            different = copies(fresh, subject, batch, eps)
            compared += len(different)
            if bool(different.any()):
                if _strays(subject, batch, eps) and by_chance(fresh, subject, images, of, eps):
                    number = f"{int(different.sum())} of {len(different)} answers differ"
                    return [sameness.stochastic(sameness.AGAIN, number)]
                if sameness.made_at_random(fresh, subject, images, of, eps):
                    what, advice = sameness.MADE_AT_RANDOM, sameness.LOADED
                    return [_changed(different, kind, what, advice)]
                return [_changed(different, kind, "stateful")]
        return [_ascended(subject, clean, fresh, eps, seed, compared)]


def _slightly(subject: Subject, dice: Dice) -> Tensor:
    """Images so close to the clean ones that a memory takes them for the same."""
    noise = dice.of("slightly").signs(subject.images.shape[1:]).to(subject.images)
    return subject.ball.project(subject.images + subject.amplitude / 8 * noise)


def _ascended(
    subject: Subject, clean: Tensor, fresh: Fresh, eps: float, seed: int, compared: int
) -> Check:
    """The queries of a short ascent, asked again of fresh copies."""
    try:
        asked = ascent(subject, clean, seed)
    except VictimError as problem:
        return Check(sameness.AGAIN, "not run", seen=f"{problem}.")
    last = torch.arange(len(asked.of), device=asked.of.device)[-sameness.CLIMBERS :]
    last_steps = copies(fresh, subject, asked.at(last), eps)
    for different in (last_steps, _singly(fresh, subject, asked, eps, seed)):
        compared += len(different)
        if bool(different.any()):
            kind = "queries of a short ascent, asked one by one,"
            return _changed(different, kind, "stateful, or depends on the batch")
    return Check(sameness.AGAIN, "passed", f"{compared} of {compared} answers")


def _singly(fresh: Fresh, subject: Subject, asked: Asked, eps: float, seed: int) -> Tensor:
    new = fresh()
    with new.held():
        return one_by_one(subject.with_victim(new), asked, eps, seed)


def _strays(subject: Subject, batch: Asked, eps: float) -> bool:
    return bool(apart(batch.answers, subject.ask(batch.images, batch.of), eps).any())


def _changed(differ: Tensor, kind: str, what: str, advice: str = sameness.STATELESS) -> Check:
    different, count = int(differ.sum()), len(differ)
    return Check(
        sameness.AGAIN,
        "failed",
        f"{different} of {count} answers differ",
        f"after the attacks, the model answers {different} of {count} {kind} differently from a "
        f"fresh copy: it is {what}.",
        advice,
        "W46",
    )


def _no_gradients(why: str) -> list[Check]:
    return [Check(name, "not applicable", seen=why) for name in (OF_THE_ANSWERS, WITHIN_THE_BUDGET)]


def _not_run(why: str) -> list[Check]:
    return [Check(name, "not run", seen=why) for name in (OF_THE_ANSWERS, WITHIN_THE_BUDGET)]
