"""The inner attack of adversarial training: makes the images a recipe trains on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack
from besiege.attacks.directions import Steepest, Stride
from besiege.attacks.losses import CrossEntropy
from besiege.attacks.pieces import Constant, Cosine, Fixed, Origin, Spread, Uniform, Within
from besiege.core.answer import Aim, Loss
from besiege.core.ball import LinfBall, ball
from besiege.core.cuda_graphs import Captured
from besiege.core.dice import Dice
from besiege.core.oracle import Oracle
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.terms import Terms
from besiege.core.threat import Goal, Linf, Threat
from besiege.models.classifier import Classifier
from besiege.training.recipes import Recipe

# The pieces that the direct ascent supports, slot by slot.
_PLAIN = {
    "start": (Origin, Uniform),
    "loss": (CrossEntropy,),
    "direction": (Steepest, Stride),
    "schedule": (Constant, Cosine, Spread),
    "radius": (Fixed,),
    "place": (Within,),
}


def plain(attack: Attack, threat: Threat) -> bool:
    """Whether an attack is a plain linf ascent, which `Inner` can run without a siege."""
    return (
        type(attack) is Ascent
        and threat.norm is Linf
        and threat.goal is Goal.UNTARGETED
        and attack.restarts == 1
        and attack.aim == "goal"
        and all(type(getattr(attack, slot)) in kinds for slot, kinds in _PLAIN.items())
    )


class Inner:
    """Makes the adversarial images of a recipe, with the model in evaluation mode.

    The images are the last iterates of the same attacks that measure models. A siege reads every
    answer, for which a GPU must synchronise: with `direct`, a plain ascent runs without a siege,
    with the same random draws and to the same images, and on a GPU as one CUDA graph.

    Parameters
    ----------
    victim : Classifier
        The model being trained.
    plan : Recipe
        The recipe with its attack and threat.
    direct : bool
        Whether plain ascents run without a siege.
    precision : callable
        Returns the context for calls of the model.
    """

    def __init__(
        self,
        victim: Classifier,
        plan: Recipe,
        direct: bool,
        precision: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.victim = victim
        self.plan = plan
        self.direct = direct and victim.grid is None
        self.precision = precision
        self._captured: dict[tuple[object, ...], Callable[..., Tensor]] = {}

    def __call__(self, x: Tensor, y: Tensor, dice: Dice, epoch: int) -> Tensor:
        """Adversarial images of an epoch, within the budget around clean images `x`."""
        attack, threat = self.plan.attack_at(epoch), self.plan.threat
        if attack is None or threat is None:
            return x
        around = ball(threat.norm, x, self.plan.radius_at(epoch), self.victim.box)
        dice = dice.of("epoch", epoch)
        if self.direct and plain(attack, threat):
            assert isinstance(attack, Ascent) and isinstance(around, LinfBall)
            return self._ascend(attack, around, y, dice)
        terms = Terms(keep="last", leave="end")
        siege = Siege.start(Oracle(self.victim), around, y, dice, terms)
        with self.victim.held(), self.precision():
            attack.run(siege)
        return siege.record.images

    def _ascend(self, attack: Ascent, around: LinfBall, y: Tensor, dice: Dice) -> Tensor:
        x = around.center
        if isinstance(attack.start, Uniform):
            draw = dice.of("restart", 0).of("start").uniform(x.shape[1:])
            x = around.project(x + draw.mul_(2.0).sub_(1.0) * around.scaled(around.radius))
        shares = [attack.schedule.length(step, attack.steps) for step in range(attack.steps)]
        # Computed in float64 first, as in a siege.
        lengths = [(share * around.radius).to(x.dtype) for share in shares]
        given = (x, y, *around.bounds(), *lengths)
        steps = partial(self._steps, attack.loss)
        if x.device.type != "cuda":
            return steps(*given)
        key = (x.shape, attack)
        if key not in self._captured:
            try:
                self._captured[key] = _graph(steps, given)
            except RuntimeError:  # a model that synchronises with the GPU cannot be captured
                self._captured[key] = steps
        return self._captured[key](*given)

    def _steps(
        self, loss: Loss, x: Tensor, y: Tensor, lower: Tensor, upper: Tensor, *lengths: Tensor
    ) -> Tensor:
        aim = Aim(y)
        with self.victim.held():
            for length in lengths:
                with torch.enable_grad(), self.precision():
                    point = x.detach().requires_grad_(True)
                    value = loss(self.victim(point), aim).sum()
                (gradient,) = torch.autograd.grad(value, point)
                x = x + torch.sign(gradient).mul_(rowwise(length, x))
                x = torch.minimum(torch.maximum(x, lower), upper)
        return x


def _graph(steps: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """An ascent as one CUDA graph."""
    made = Captured(lambda *held: (steps(*held),), tuple(t.clone() for t in given))
    return lambda *new: made(*new)[0].clone()
