"""ALMA: an augmented Lagrangian of the distance and the difference of logits ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.losses import dlr, margin
from besiege.attacks.planes import inner
from besiege.attacks.smallest import across, apparent, endless, somewhere, unit
from besiege.core.answer import Aim, Answer, Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Norm

TOLERANCE = 1e-4
"""How far below zero the ratio is driven: at the boundary itself rounding would decide."""

CHECK = 10
"""The penalty parameter may rise every so many steps."""

ENOUGH = 0.95
"""It rises unless the ratio has fallen to this fraction in these steps."""

RISE = 1.2
"""Factor by which it rises."""

DECAYS: Mapping[Norm, float] = MappingProxyType({L2: 0.8, L1: 0.5})
"""Default decay by norm; the published 0.5 costs 2 to 3 % on networks in l2."""


@register("alma")
@dataclass(frozen=True)
class ALMA(Attack):
    """Augmented Lagrangian attack: minimize ``D(x, x') + P(f(x'); rho, mu)``, row by row.

    D is the distance, f the negated difference of logits ratio, below zero beyond the boundary, and
    P the penalty ``mu f + mu rho f^2 + rho^2 f^3 / 6``, or ``mu f / (1 - rho f)`` for f below zero.
    The multiplier mu follows the derivative of P at every step; rho rises where f does not fall.
    Steps are RMSprop with momentum. The step size is set by the first step and falls a hundredfold
    after a row's first success (Rony et al., Augmented Lagrangian adversarial attacks, 2021).

    Unlike the paper, every row is measured in its own units: distances in the boundary distance
    estimated from the first gradient, ratios in the clean image's ratio. For a linear victim mu
    then ends at its initial value 1, also for rows near the boundary, whose ratio is otherwise too
    small to move mu. On affine victims the largest excess over the optimum falls from a factor of
    two to a few per cent; in l1 the median on a ResNet-20 falls by a sixth.

    The attack is invariant to the scale of the logits, as the ratio is. The targeted ratio compares
    the target with the likeliest other class; for two and three classes see `dlr`.

    Parameters
    ----------
    steps : int
        Gradients per row.
    decay : float, optional
        Decay of mu, of the mean square of gradients and of the momentum: by default 0.8 in l2 and
        0.5 in l1.
    first : float
        Length of the first step, in units of the boundary distance along it.
    reduction : float
        The last step size as a fraction of the first.
    mu, rho : float
        Initial multiplier and penalty parameter.
    relative : bool
        False uses absolute pixel values and ratios, as published; `first` is then a distance in box
        widths.
    compat : bool
        As in the authors' code: the tolerance of 1e-4 is one of logits, not of the ratio; a row has
        succeeded for the step size and the penalty where it is beyond the tolerance; and `first`
        is the length of a step along the gradient, not along the first step of RMSprop. The last
        point is not evaluated.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("alma(steps=1000, decay=0.9)"))
    'alma(steps=1000, decay=0.9)'
    """

    steps: int = whole_number(100)
    decay: float | None = number(None, below=1, what="a fraction")
    first: float = number(0.5, above=0)
    reduction: float = number(0.01, above=0, most=1, what="a fraction")
    mu: float = number(1.0, above=0)
    rho: float = number(1.0, above=0)
    relative: bool = True
    compat: bool = yes_or_no(False, added=True)

    minimal = True
    norms = frozenset({L2, L1})
    source = "Rony et al., Augmented Lagrangian adversarial attacks (ALMA), 2021"

    def run(self, siege: Siege) -> None:
        if self.decay is None:
            return replace(self, decay=DECAYS[siege.ball.norm]).run(siege)
        siege = endless(siege)
        x, state = siege.ball.center, _State.of(siege.ball, self)
        for step in range(self.steps):
            loss = self._loss(siege)
            answer = siege.gradient(x, loss)
            x, answer, state = siege.settle(x, answer, state)
            if not len(siege):
                return
            ball = siege.ball
            if step == 0 and self.relative:
                state = state.measured(ball, answer)
            f = (0.0 if loss is _short else TOLERANCE) - answer.loss.double() / state.height
            beyond = siege.record.reached(siege.rows, answer.labels)
            if self.compat:
                beyond = f < 0
            state = self._balanced(state, f, beyond, step)
            pull = slope(f, state.rho, state.mu) * state.near / state.height
            g = answer.gradient * ball.scaled(-pull)
            g = g + uphill(ball, x) if step else somewhere(siege, g)
            state.square.mul_(self.decay).addcmul_(g, g, value=1 - self.decay)
            momentum = state.momentum.mul_(self.decay).addcdiv_(g, state.square.sqrt().add_(1e-8))
            if step == 0:
                move = g if self.compat else momentum
                rate = self._rate(ball, move, answer.gradient, state.height)
                state = state._replace(rate=rate)
            x = (x - momentum * ball.scaled(self._length(state, step))).clamp_(*ball.box)
        if not self.compat:
            siege.logits(x)

    def _loss(self, siege: Siege) -> Loss:
        if self.compat and siege.classes > 2:
            return _short
        return _ratio if siege.targeted else dlr

    def _balanced(self, state: _State, f: Tensor, beyond: Tensor, step: int) -> _State:
        """The state with the multiplier and the penalty parameter of this step."""
        mu, rho, before, found = state.mu, state.rho, state.before, state.found
        assert self.decay is not None  # `run` chose it by the norm
        if step == 0:
            before = f
        elif (step + 1) % CHECK == 0:
            slack = torch.isinf(found) & (f >= ENOUGH * before)
            rho, before = torch.where(slack, RISE * rho, rho), f
        if step:
            mu = (self.decay * mu + (1 - self.decay) * slope(f, rho, mu)).clamp(1e-6, 1e12)
        found = torch.where(beyond & torch.isinf(found), float(step), found)
        return state._replace(mu=mu, rho=rho, before=before, found=found)

    def _length(self, state: _State, step: int) -> Tensor:
        """The factor of each row's step, which falls after its first success."""
        gone = (step - state.found).clamp_min(0.0)
        left = torch.where(gone > 0, gone / (self.steps - state.found), torch.zeros_like(gone))
        # Not as a power: the rounding of torch's powers depends on the position in the batch.
        return state.rate * torch.exp(left * math.log(self.reduction))

    def _rate(self, ball: Ball, move: Tensor, gradient: Tensor, height: Tensor) -> Tensor:
        """The factor of each row's first step that gives it the wanted length."""
        size = distances(move, ball.norm).clamp_min(1e-300)
        wanted = torch.full_like(size, self.first)
        if not self.relative:
            wanted *= ball.width
        else:
            wanted *= size * height / inner(gradient, move).abs().clamp_min(1e-300)
        # At most half way to the farthest corner, which every finite step can reach.
        goal = torch.minimum(0.5 * across(ball), wanted)
        low = torch.zeros_like(size) if self.compat else goal / size
        high = torch.ones_like(size) if self.compat else low.clone()

        def short(rate: Tensor) -> Tensor:
            there = (ball.center - move * ball.scaled(rate)).clamp_(*ball.box)
            return distances(there - ball.center, ball.norm) < goal

        for _ in range(100 if self.compat else 20):
            more = short(high)
            low, high = torch.where(more, high, low), torch.where(more, 2 * high, high)
            if not bool(more.any()):
                break
        for _ in range(20 if self.compat else 12):
            middle = 0.5 * (low + high)
            more = short(middle)
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        return 0.5 * (low + high)


class _State(NamedTuple):
    """The state of every row: two image tensors, then float64 ``[rows]``."""

    square: Tensor
    momentum: Tensor
    mu: Tensor
    rho: Tensor
    near: Tensor
    """Unit of distances."""
    height: Tensor
    """Unit of ratios."""
    rate: Tensor
    before: Tensor
    found: Tensor
    """Step of the first success, infinite before."""

    @classmethod
    def of(cls, ball: Ball, attack: ALMA) -> _State:
        one = torch.ones_like(ball.radius)
        return cls(
            square=torch.ones_like(ball.center),
            momentum=torch.zeros_like(ball.center),
            mu=attack.mu * one,
            rho=attack.rho * one,
            near=ball.width * one,
            height=one,
            rate=torch.zeros_like(one),
            before=one,
            found=torch.inf * one,
        )

    def measured(self, ball: Ball, answer: Answer) -> _State:
        """Units of every row from the first gradient; absolute units where it is zero."""
        height = apparent(ball, answer.loss.double().abs(), answer.gradient)
        slope_ = ball.dual(answer.gradient)
        known = slope_ > 0
        near = torch.where(known, height / slope_, ball.width)
        return self._replace(near=near, height=torch.where(known, height, 1.0))


def penalty(f: Tensor, rho: Tensor, mu: Tensor) -> Tensor:
    """The penalty P2 of values f; values below zero are wanted.

    Examples
    --------
    >>> one = torch.ones(2)
    >>> penalty(torch.tensor([-1.0, 0.0]), one, one)
    tensor([-0.5000,  0.0000])
    """
    over = mu * f + mu * rho * f**2 + rho**2 * f**3 / 6
    return torch.where(f >= 0, over, mu * f / (1 - rho * f.clamp_max(0.0)))


def slope(f: Tensor, rho: Tensor, mu: Tensor) -> Tensor:
    """The derivative of `penalty` by f.

    Examples
    --------
    >>> one = torch.ones(2)
    >>> slope(torch.tensor([-1.0, 0.0]), one, one)
    tensor([0.2500, 1.0000])
    """
    over = mu + 2 * mu * rho * f + rho**2 * f**2 / 2
    return torch.where(f >= 0, over, mu / (1 - rho * f.clamp_max(0.0)) ** 2)


def uphill(ball: Ball, x: Tensor) -> Tensor:
    """The gradient of the distance from the clean image, zero there."""
    change = x - ball.center
    return torch.sign(change) if ball.norm is L1 else unit(change, L2)


def _ratio(logits: Tensor, aim: Aim) -> Tensor:
    """The ratio of the target to the likeliest other class, for targeted goals."""
    assert aim.targets is not None
    other = logits.detach().scatter(1, aim.targets[:, None], -torch.inf).argmax(1)
    return dlr(logits, replace(aim, labels=other))


def _short(logits: Tensor, aim: Aim) -> Tensor:
    """The ratio of the authors' code, with a margin that is lower by the tolerance."""
    many = min(3 if aim.targets is None else 4, logits.shape[1])
    top = logits.topk(many, dim=1).values
    low = top[:, 2] if aim.targets is None else (top[:, -2] + top[:, -1]) / 2
    return (margin(logits, aim) - TOLERANCE) / (top[:, 0] - low + 1e-8)
