"""`Inner`: makes the adversarial images of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack
from besiege.attacks.directions import Steepest, Stride
from besiege.attacks.losses import CrossEntropy, Divergence, Margin
from besiege.attacks.pieces import (
    Beside,
    Constant,
    Cosine,
    Fixed,
    Origin,
    Signs,
    Sphere,
    Spread,
    Uniform,
    Within,
)
from besiege.core.answer import Aim
from besiege.core.ball import Ball, ball
from besiege.core.cuda_graphs import Captured
from besiege.core.dice import Dice
from besiege.core.oracle import Oracle, padded
from besiege.core.siege import Siege
from besiege.core.terms import Terms
from besiege.core.threat import Goal, Threat
from besiege.core.victim import Victim
from besiege.training.recipes import Recipe

# The pieces that the direct ascent supports, slot by slot.
_PLAIN = {
    "start": (Origin, Uniform, Sphere, Signs, Beside),
    "loss": (CrossEntropy, Margin, Divergence),
    "direction": (Steepest, Stride),
    "schedule": (Constant, Cosine, Spread),
    "radius": (Fixed,),
    "place": (Within,),
}


Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""Start, centres, radii, labels, targets and clean logits of an ascent."""


def plain(attack: Attack) -> bool:
    """Whether an attack is a plain ascent, which `Inner` can run without a siege."""
    return (
        type(attack) is Ascent
        and attack.restarts == 1
        and all(type(getattr(attack, slot)) in kinds for slot, kinds in _PLAIN.items())
    )


class Inner:
    """Makes the adversarial images of a recipe.

    The images are the last iterates of the same attacks that measure models. A siege reads every
    answer, for which a GPU must synchronise: a plain ascent runs without a siege, with the same
    random draws and to the same images, and on a GPU as one CUDA graph.

    Parameters
    ----------
    plan : Recipe
        The recipe with its attack and threat.
    precision : callable
        Returns the context for calls of the model.
    direct : bool
        Whether plain ascents run without a siege.
    """

    def __init__(
        self,
        plan: Recipe,
        precision: Callable[[], AbstractContextManager[object]],
        direct: bool = True,
    ) -> None:
        self.plan = plan
        self.precision = precision
        self.direct = direct
        self._captured: dict[tuple[object, ...], Callable[..., Tensor]] = {}

    def __call__(self, victim: Victim, x: Tensor, y: Tensor, dice: Dice, epoch: int) -> Tensor:
        """Adversarial images of an epoch, crafted on a victim within the budget around `x`."""
        attack, threat = self.plan.attack_at(epoch), self.plan.threat
        if attack is None or threat is None:
            return x
        dice = dice.of("epoch", epoch)
        around = ball(threat.norm, x, self.plan.radii_at(epoch, dice), victim.box)
        with self._mode(victim):
            aim = self._aim(victim, attack, threat, x, y, dice)
            if self.direct and plain(attack) and victim.grid is None:
                assert isinstance(attack, Ascent)
                return self._ascend(victim, attack, around, aim, dice)
            terms = Terms(keep="last", leave="end")
            oracle = Oracle(victim)
            siege = Siege.start(oracle, around, aim.labels, dice, terms, targets=aim.targets)
            with self.precision():
                siege.survey()
                attack.run(siege)
            return siege.record.images

    @contextmanager
    def _mode(self, victim: Victim) -> Iterator[None]:
        """The victim as images are crafted on it: frozen, in the mode that the recipe declares."""
        modes = [(p, p.training) for module in networks(victim) for p in module.modules()]
        with victim.held():
            if self.plan.crafting == "train":
                for part, mode in modes:
                    part.training = mode
            yield

    def _aim(
        self, victim: Victim, attack: Attack, threat: Threat, x: Tensor, y: Tensor, dice: Dice
    ) -> Aim:
        """What each image is steered away from or towards."""
        goal = threat.goal
        least = goal is Goal.LEAST_LIKELY or (
            isinstance(attack, Ascent) and attack.aim == "least-likely"
        )
        own = self.plan.away_from == "prediction"
        clean = None
        if own or least or goal is Goal.SECOND or _reads_clean(attack):
            with torch.no_grad(), self.precision():
                clean = victim(x, dice.of("clean")).float()
        if own:
            assert clean is not None
            y = clean.argmax(1)
        if goal is Goal.RANDOM:
            classes = victim.classes
            assert classes is not None  # known since the check before the first batch
            return Aim(y, (y + 1 + dice.of("target").integers(classes - 1)) % classes, clean)
        if goal is Goal.GIVEN:
            assert threat.target is not None
            return Aim(y, torch.full_like(y, threat.target), clean)
        if least or goal is Goal.SECOND:
            assert clean is not None
            # The label comes first, whatever its score.
            first = clean.scatter(1, y[:, None], torch.inf)
            order = first.argsort(dim=1, descending=True, stable=True)
            return Aim(y, order[:, -1 if least else 1], clean)
        return Aim(y, None, clean)

    def _ascend(self, victim: Victim, attack: Ascent, around: Ball, aim: Aim, dice: Dice) -> Tensor:
        start = attack.start.point(around, dice.of("restart", 0))
        given: Given = (start, around.center, around.radius, aim.labels, aim.targets, aim.clean)
        steps = partial(self._steps, victim, attack, around, dice)
        if victim.stochastic or self.plan.crafting == "train":
            return steps(*given)  # rows have draws of their own, or share statistics
        if start.device.type != "cuda":
            # As many rows as an oracle would send: CPUs round by the number of rows.
            return steps(*_padded(given))[: len(start)]
        present = [tensor for tensor in given if tensor is not None]
        key = (id(victim), attack, *(None if t is None else t.shape for t in given))
        if key not in self._captured:
            try:
                self._captured[key] = _graph(steps, given, present)
            except RuntimeError:  # what synchronises with the GPU cannot be captured
                self._captured[key] = lambda *held: steps(*_filled(given, held))
        return self._captured[key](*present)

    def _steps(
        self,
        victim: Victim,
        attack: Ascent,
        like: Ball,
        dice: Dice,
        x: Tensor,
        center: Tensor,
        radius: Tensor,
        labels: Tensor,
        targets: Tensor | None,
        clean: Tensor | None,
    ) -> Tensor:
        """All steps of an ascent; nothing in them depends on a value."""
        around = type(like)(center, radius, like.box)
        aim = Aim(labels, targets, clean)
        for step in range(attack.steps):
            drawn = dice.of("victim", step) if victim.stochastic else None
            if self.plan.objective.noises:
                drawn = dice.of("noise")  # the same in every step, and in the loss
            with torch.enable_grad(), self.precision():
                point = x.detach().requires_grad_(True)
                value = attack.loss(victim(point, drawn), aim).sum()
            (gradient,) = torch.autograd.grad(value, point)
            size = attack.schedule.length(step, attack.steps) * radius
            x = around.confine(x + attack.direction.move(gradient, x, around, size))
        return x


def _reads_clean(attack: Attack) -> bool:
    """Whether the loss of a plain ascent reads the logits of the clean images."""
    return isinstance(attack, Ascent) and isinstance(attack.loss, Divergence)


def networks(victim: Victim) -> Iterator[torch.nn.Module]:
    """Every network inside a victim."""
    for part in victim.parts:
        if isinstance(part, Victim):
            yield from networks(part)
        else:
            yield part


def _padded(given: Given) -> Given:
    """The arguments of an ascent with the last row repeated up to the size of a padded batch."""
    short = padded(len(given[0])) - len(given[0])
    if not short:
        return given
    return _each(given, lambda t: torch.cat([t, t[-1:].expand(short, *t.shape[1:])]))


def _filled(given: Given, held: tuple[Tensor, ...]) -> Given:
    """The arguments of an ascent from those that are present."""
    left = iter(held)
    return _each(given, lambda _: next(left))


def _each(given: Given, change: Callable[[Tensor], Tensor]) -> Given:
    # In order, since `change` may take what comes next.
    start, center, radius, labels = (change(part) for part in given[:4])
    targets, clean = (None if part is None else change(part) for part in given[4:])
    return start, center, radius, labels, targets, clean


def _graph(
    steps: Callable[..., Tensor], given: Given, present: list[Tensor]
) -> Callable[..., Tensor]:
    """An ascent as one CUDA graph."""
    made = Captured(
        lambda *held: (steps(*_filled(given, held)),), tuple(t.clone() for t in present)
    )
    return lambda *new: made(*new)[0].clone()
