"""Laws about larger budgets and other victims: 8 more never hurts, 9 scale and classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.losses import CrossEntropy, dlr, margin
from besiege.attacks.pieces import Constant
from besiege.core.threat import L0, Goal
from besiege.evaluation.crafting import Crafted
from besiege.testing.outcomes import honest, inside
from besiege.testing.trial import Trial, changed, has, law, shortened
from besiege.testing.victims import Counting, Shape, digits, natural, scaled

_ROWS = 200
"""Images on which half a point of accuracy is one image."""

_SHAPES: tuple[tuple[Shape, int], ...] = (
    ((1, 8, 8), 2),  # grey
    ((3, 8, 8), 3),  # colour
    ((3, 5, 9), 4),  # not square, odd
    ((1, 1, 7), 10),  # flat
    ((1, 4, 4), 100),
)


@law(8, "steps", "queries", "eps")
def more_never_hurts(trial: Trial) -> None:
    """Law 8: more steps and more queries lose no broken row; a larger eps hardly any.

    More steps are tried for attacks with a schedule, which is made constant so that it can be
    continued. A larger eps may raise robust accuracy by at most half a point.
    """
    brief = trial.brief()
    victim, samples = trial.victim()
    if "steps" not in trial.without and has(trial.attack, "steps", "schedule"):
        few, many = (brief.by(_stepping(brief.attack, steps)) for steps in (2, 5))
        eps = brief.budgets()[-1]
        _no_row_lost(trial, "5 steps", *(t.craft(victim, samples, eps) for t in (few, many)))
    if "queries" not in trial.without:
        budgets = [2, 5, 12, None]
        runs = [brief.craft(victim, samples, brief.size(), queries=q) for q in budgets[:-1]]
        runs.append(brief.usual(brief.size()))
        for more, fewer, larger in zip(budgets[1:], runs[:-1], runs[1:], strict=True):
            _no_row_lost(trial, f"{more or 'unlimited'} queries", fewer, larger)
    if "eps" not in trial.without:
        _room(trial.by(shortened(brief.attack, {"restarts": 1})))


def _stepping(attack: Attack, steps: int) -> Attack:
    def longer(part: Attack) -> dict[str, Any]:
        if hasattr(part, "steps") and hasattr(part, "schedule"):
            return {"steps": steps, "schedule": Constant(0.3)}
        return {}

    return changed(attack, longer)


def _no_row_lost(trial: Trial, more: str, fewer: Crafted, larger: Crafted) -> None:
    lost = fewer.success & ~larger.success
    trial.demand(
        not bool(lost.any()),
        f"{int(lost.sum())} of {int(fewer.success.sum())} broken rows were lost with {more}",
    )


def _room(trial: Trial) -> None:
    victim, samples = natural(), trial.aimed(digits(_ROWS))
    robust: list[float] = []
    for eps in map(trial.size, (0.5, 1.0, 1.75)):
        broken = trial.craft(victim, samples, eps).success
        robust.append(100 * float((~broken).double().mean()))
        trial.demand(
            robust[-1] <= min(robust) + 0.5,
            f"robust accuracy is {robust[-1]:.1f} % at {eps}, and {min(robust):.1f} % at less",
        )


@law(9, "scale", "rounding", "vanishing")
def scale_and_classes(trial: Trial) -> None:
    """Law 9: the scale of the logits is no defense, and any shape and class count works.

    With losses of the margin type, logits times a power of two change nothing, bitwise, and times
    a thousand no verdict. With any loss, a gradient that vanishes is reported. Tried with two to a
    hundred classes; grey, colour, non-square, tiny and flat images; other memory formats; one row;
    and no row left after the clean check.
    """
    trial = trial.brief()
    if "scale" not in trial.without:
        _scales(trial)
    if "vanishing" not in trial.without:
        _vanishing(trial)
    for rows, (shape, classes) in enumerate(_SHAPES, 1):
        victim, samples = trial.untrained(shape, classes, rows)
        eps = trial.size(2.0)
        crafted = trial.craft(victim, samples, eps)
        when = f"on {len(samples)} images {shape} of {classes} classes"
        inside(trial, victim, samples, crafted, eps, when)
        honest(trial, victim, samples, crafted, eps, when)
    _formats(trial)
    _none_left(trial)


def _scales(trial: Trial) -> None:
    forms = [trial]
    if has(trial.attack, "loss"):
        forms = [trial.by(changed(trial.attack, _losing(loss))) for loss in (margin, dlr)]
    victim, samples = trial.victim()
    for form in forms:
        plain = form.usual(trial.size(), "last", "end")
        rounds = () if "rounding" in trial.without else (1e-3, 1e3)
        for times in (2.0**-10, 2.0**10, *rounds):
            other = form.craft(
                scaled(victim, times), samples, trial.size(), keep="last", leave="end"
            )
            if times in rounds:  # not powers of two: rounding may differ, verdicts may not
                hit = plain.first_step >= 0, other.first_step >= 0
                form.demand(torch.equal(*hit), f"verdicts change with logits times {times:g}")
            else:
                form.same(plain, other, f"with logits times {times:g}")


def _losing(loss: object) -> Callable[[Attack], dict[str, Any]]:
    return lambda part: {"loss": loss} if hasattr(part, "loss") else {}


def _vanishing(trial: Trial) -> None:
    """W11 is reported exactly if the gradient of a row that was not broken was zero."""
    victim, samples = trial.victim()
    usual = trial.by(changed(trial.attack, _losing(CrossEntropy())))
    for row in (0, 1):
        counting = Counting(scaled(victim, 1e4))
        one = samples.at(torch.tensor([row]))
        crafted = usual.craft(counting, one, trial.size(0.25), pad=False)
        reported = any(finding.id == "W11" for finding in crafted.findings)
        broken = bool(crafted.success.all())
        usual.demand(
            reported == (counting.vanished and not broken),
            f"the gradient {'vanished' if counting.vanished else 'did not vanish'} on a row that "
            f"was {'broken' if broken else 'not broken'}, and W11 was "
            f"{'reported' if reported else 'not reported'}",
        )


def _formats(trial: Trial) -> None:
    victim, samples = trial.untrained((3, 8, 8), 3, 8)
    plain = trial.craft(victim, samples, trial.size())
    images = samples.images
    other: dict[str, Tensor] = {
        "channels last": images.contiguous(memory_format=torch.channels_last),
        "every other row of transposed storage": images.transpose(2, 3)
        .repeat_interleave(2, 0)[::2]
        .transpose(2, 3),
    }
    for what, strided in other.items():
        crafted = trial.craft(victim, replace(samples, images=strided), trial.size())
        trial.same(plain, crafted, f"between contiguous images and {what}")
        trial.demand(crafted.images.is_contiguous(), f"the images come back as {what}")


def _none_left(trial: Trial) -> None:
    """Where the clean image reaches the goal already, the attack does nothing."""
    victim, samples = trial.untrained((1, 4, 4), 4)
    predicted = samples.labels
    wrong = replace(samples, labels=(predicted + 1) % 4, targets=None)
    if trial.goal is Goal.GIVEN:
        wrong = replace(wrong, targets=predicted)
    if trial.goal in (Goal.RANDOM, Goal.LEAST_LIKELY):
        return  # the clean image never reaches their targets
    eps = Fraction(2) if trial.norm is L0 else trial.size()
    crafted = trial.craft(victim, wrong, eps)
    trial.demand(
        bool(crafted.success.all())
        and torch.equal(crafted.images, wrong.images)
        and bool((crafted.distance == 0).all())
        and bool((crafted.queries == trial.attack.draws).all())
        and int(crafted.backwards.sum()) == 0,
        "it attacked images whose goal was reached from the start",
    )
