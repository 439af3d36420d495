"""Laws about what an attack returns: 1 feasible, 2 judged, 7 not idle."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.samples import Samples
from besiege.core.threat import L0, Goal
from besiege.core.victim import Victim
from besiege.evaluation.crafting import Crafted
from besiege.evaluation.judging import judge
from besiege.testing.allowances import factor
from besiege.testing.trial import SETTINGS, STRONG, Trial, changes, fresh, law, reached, shortened
from besiege.testing.victims import digits, linear, natural, size

_TOLERANCE = 1e-6
_GRID = 1 / 255


@law(1)
def feasible(trial: Trial) -> None:
    """Law 1: every returned image is finite, in the box and within the budget.

    Measured in numpy, independently of `Ball`: with several settings of keep and leave; with a
    budget so small that rounding matters; on a victim that quantises; and, for attacks that search
    for the smallest perturbation, without a budget. A reported distance is that of the image.
    """
    trial = trial.brief()
    victim, samples = trial.victim()
    # With keep "last" the final iterate of every row is returned.
    for keep, leave in SETTINGS[:2]:
        crafted = trial.usual(trial.size(), keep, leave)
        inside(trial, victim, samples, crafted, trial.size(), f"keeping {keep}, leaving at {leave}")
    # Pixels with all mantissa bits set at random: those of digits are 16ths, which round well.
    tiny = Fraction(1) if trial.norm is L0 else Fraction(1, 255)
    other, rough = trial.untrained((1, 8, 8), 10, 8)
    crafted = trial.craft(other, rough, tiny, keep="last", leave="end")
    inside(trial, other, rough, crafted, tiny, "with a tiny budget")
    if trial.attack.minimal:
        crafted = trial.usual(None)
        inside(trial, victim, samples, crafted, None, "without a budget")
    _on_grid(trial, samples)


def inside(
    trial: Trial,
    victim: Victim,
    samples: Samples,
    crafted: Crafted,
    eps: Fraction | None,
    when: str,
) -> None:
    """Demand that all images are feasible and all distances true."""
    images = crafted.images
    trial.demand(bool(torch.isfinite(images).all()), f"images are not finite {when}")
    low, high = victim.box
    trial.demand(
        low <= float(images.min()) and float(images.max()) <= high,
        f"images reach from {float(images.min()):.6g} to {float(images.max()):.6g} {when}, but "
        f"the box is {victim.box}",
    )
    sizes = size(trial.norm, changes(images, samples))
    limit = math.inf if eps is None else float(eps) * (1 + _TOLERANCE)
    trial.demand(
        bool((sizes <= limit).all()),
        f"the largest perturbation is {sizes.max():.6g} {when}, but the budget is {eps}",
    )
    success = crafted.success.numpy()
    reported = crafted.distance.numpy()
    trial.demand(
        np.allclose(reported[success], sizes[success], rtol=1e-12, atol=0.0),
        f"the distances reported are not those of the images {when}",
    )
    trial.demand(
        bool(np.isinf(reported[~success]).all()), f"a failure reports a finite distance {when}"
    )


def _on_grid(trial: Trial, samples: Samples) -> None:
    """A victim that quantises receives whole grid steps, and no more of them than fit."""
    victim = copy(natural())
    victim.grid = _GRID
    snapped = torch.round(samples.images / _GRID) / round(1 / _GRID)
    samples = replace(samples, images=snapped)
    eps = trial.size()
    crafted = trial.craft(victim, samples, eps, keep="last", leave="end")
    steps = crafted.images.double().numpy() / _GRID
    trial.demand(
        bool((np.abs(steps - np.round(steps)) < 1e-3).all()), "images are off the victim's grid"
    )
    moved = np.round(steps) - np.round(samples.images.double().numpy() / _GRID)
    sizes = size(trial.norm, moved.reshape(len(samples), -1))
    sizes *= 1.0 if trial.norm is L0 else _GRID
    trial.demand(
        bool((sizes <= float(eps) * (1 + _TOLERANCE)).all()),
        f"the largest perturbation on the grid is {sizes.max():.6g}, but the budget is {eps}",
    )


@law(2)
def judged(trial: Trial) -> None:
    """Law 2: claimed successes are those that a fresh forward pass confirms.

    Where rows leave at success, a failure returns the clean image. Where they stay to the end, it
    returns the kept image, and the victim's answer to it is exactly what is claimed.
    """
    trial = trial.brief()
    victim, samples = trial.victim()
    for keep, leave in SETTINGS:
        # Searches for the smallest perturbation use the last setting.
        eps = trial.budgets()[-1] if keep == "smallest" else trial.size()
        crafted = trial.usual(eps, keep, leave)
        honest(trial, victim, samples, crafted, eps, f"keeping {keep}, leaving at {leave}")
        if leave == "success":
            back = (crafted.images == samples.images).flatten(1).all(1)
            trial.demand(
                bool(back[~crafted.success].all()), "a failure did not return the clean image"
            )
    # Successes on a twin are confirmed, too: the net with batch norm has an accelerated twin.
    original, seen = trial.untrained((1, 8, 8), 10, 16)
    crafted = trial.craft(original, seen, trial.size(), twin=True)
    honest(trial, original, seen, crafted, trial.size(), "searching on a twin")


def honest(
    trial: Trial,
    victim: Victim,
    samples: Samples,
    crafted: Crafted,
    eps: Fraction | None,
    when: str,
) -> None:
    """Demand that the claimed successes are those of the victim and of the judge."""
    sizes = size(trial.norm, changes(crafted.images, samples))
    limit = math.inf if eps is None else float(eps) * (1 + _TOLERANCE)
    fooled = reached(crafted, samples, fresh(victim, crafted.images))
    true = fooled & torch.from_numpy(sizes <= limit)
    claimed = crafted.success
    trial.demand(
        not bool((claimed & ~true).any()),
        f"{int((claimed & ~true).sum())} of {int(claimed.sum())} claimed successes fail {when}",
    )
    # An image returned as a failure must be one, or robustness would be overstated.
    trial.demand(
        not bool((true & ~claimed).any()),
        f"{int((true & ~claimed).sum())} images called failures fool the victim {when}",
    )
    verdicts = judge(victim, crafted, samples, trial.threat(eps))
    trial.demand(
        torch.equal(verdicts.success, claimed), f"the judge and the attack disagree {when}"
    )
    seen = (crafted.first_step >= 0) & (crafted.first_query >= 1)
    trial.demand(
        bool(seen[claimed].all()) and bool((crafted.first_query <= crafted.queries).all()),
        f"a success was not recorded with its step and query {when}",
    )


@law(7, "noise", "linear")
def not_idle(trial: Trial) -> None:
    """Law 7: it breaks more than noise of the same size, and comes near the closed form.

    On the natural digits net it is compared with random points of the ball's surface. On a linear
    victim of two classes, whose rows all have the same known distance, all break at that distance
    times the attack's factor. (With more classes, the class with the nearest logits need not be the
    nearest in pixels, and targets have no closed form.) With five classes, none breaks below it.
    """
    trial = trial.by(shortened(trial.attack, STRONG))
    if "noise" not in trial.without:
        _beats_noise(trial)
    if "linear" not in trial.without:
        _nears_closed_form(trial)
    _stops_at_closed_form(trial)


def _beats_noise(trial: Trial) -> None:
    victim, rows = natural(), digits(48)
    samples = trial.aimed(rows)
    eps = trial.size(1.0 if trial.goal is Goal.UNTARGETED else 1.5)
    crafted = trial.craft(victim, samples, eps)
    noisy = ball(trial.norm, samples.images, float(eps), victim.box).shell(
        Dice.throw(0, samples.ids).of("noise")
    )
    fooled = int(reached(crafted, samples, fresh(victim, noisy)).sum())
    broken = int(crafted.success.sum())
    trial.demand(
        broken > fooled,
        f"it broke {broken} of {len(samples)} digits at {eps}, and noise of that size {fooled}",
    )


def _nears_closed_form(trial: Trial) -> None:
    victim = linear(classes=2)
    samples, known = victim.equidistant(trial.norm)
    samples = trial.aimed(samples, 2)
    times = factor(trial.attack, trial.norm)
    most = float(known.max())
    if trial.attack.minimal:
        worst = (trial.craft(victim, samples, None).distance.numpy() / known).max()
        trial.demand(
            bool(worst <= times),
            f"the linear victim's distance was missed by a factor of {worst:.4f}, and {times:.4g} "
            "is allowed",
        )
    else:
        eps = math.ceil(most * times - 1e-9) if trial.norm is L0 else most * times
        left = ~trial.craft(victim, samples, Fraction(eps)).success
        trial.demand(
            not bool(left.any()),
            f"{int(left.sum())} of {len(samples)} rows of the linear victim withstood {times:.4g} "
            f"times the known distance {most:.5g}",
        )


def _stops_at_closed_form(trial: Trial) -> None:
    """No row breaks below its distance; otherwise the closed form or the judge is wrong."""
    victim = linear(classes=5)
    samples, known = victim.equidistant(trial.norm)
    below = float(known.min())
    eps = max(0, round(below) - 1) if trial.norm is L0 else 0.99 * below
    crafted = trial.craft(victim, trial.aimed(samples, 5), Fraction(eps))
    trial.demand(
        not bool(crafted.success.any()),
        f"{int(crafted.success.sum())} rows of the linear victim broke at {eps:.5g}, below the "
        f"smallest possible distance, {below:.5g}",
    )
