"""P-RGF: gradients estimated from scores, with a substitute's gradient as a prior.

The quality of the prior is measured, so that a bad one costs little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.estimates import (
    Draw,
    Estimate,
    ScoreLoss,
    Smooth,
    coarse,
    even,
    portions,
    probe,
    sphere,
    visible,
)
from besiege.attacks.nes import Plateau, Rule, ScoreAscent, larger
from besiege.attacks.planes import inner
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import number, whole_number
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege

EVERY = 10
"""The gradient norm is measured every so many steps, and at the fourth."""

SIZING = 10
"""Directions used for that: they give its square within 45 %."""

SMOOTH = 3.5
"""Published: how much more of a gradient smooth directions hold than their share of dimensions."""


class Measured(NamedTuple):
    """Measurements of a step before its probes.

    Attributes
    ----------
    loss : Tensor
        At the iterates.
    prior : Tensor
        The substitute's directions as really sent, at the length of a vector of ones.
    slope : Tensor
        Along them.
    mixed, squares : Tensor
        ``sum(slope * along)`` and ``sum(slope**2)`` of the directions that measured the norm.
    """

    loss: Tensor
    prior: Tensor
    slope: Tensor
    mixed: Tensor
    squares: Tensor


def best_share(alpha: Tensor, entries: int, many: int, within: Tensor | None = None) -> Tensor:
    """The weight of the prior in every direction that gives the best estimate.

    With u = sqrt(lam) v + sqrt(1 - lam) xi and alpha the cosine of v with the gradient, in d
    dimensions and with q directions the expected squared cosine is largest at ``lam = 0`` if
    ``alpha**2 <= 1 / (d + 2q - 2)``, at 1 if ``alpha**2 >= (2q - 1) / (d + 2q - 2)``, and otherwise
    at ``(1 - a)(a (d + 2q - 2) - 1) / (2 a d q - a**2 d (d + 2q - 2) - 1)``, a = alpha**2.

    With xi in a subspace of d dimensions that holds a fraction A of the squared gradient (`within`)
    and hardly any of v, it is 0 if ``a <= A / (d + 2q - 2)``, 1 if ``a >= A (2q - 1) / d``, and
    otherwise ``A (A - a (d + 2q - 2)) / (A**2 + a**2 d**2 - 2 A a (q + d q - 1))``: the formula of
    the authors' code as corrected in 2023.

    Examples
    --------
    >>> import torch
    >>> best_share(torch.tensor([0.01, 0.1, 0.2]), 3072, 50).round(decimals=4).tolist()
    [0.0, 0.0145, 1.0]
    """
    a, d, q = alpha.double().clamp(0.0, 1.0) ** 2, entries, many
    reach = d + 2 * q - 2
    if within is not None:
        top = within * (within - a * reach)
        inside = top / (within**2 + a**2 * d**2 - 2 * within * a * (q + d * q - 1))
        share = torch.where(a * reach <= within, torch.zeros_like(a), inside.clamp(0.0, 1.0))
        return torch.where(a * d >= within * (2 * q - 1), torch.ones_like(a), share)
    inside = (1 - a) * (a * reach - 1) / (2 * a * d * q - a**2 * d * reach - 1)
    share = torch.where(a * reach <= 1, torch.zeros_like(a), inside.clamp(0.0, 1.0))
    return torch.where(a * reach >= 2 * q - 1, torch.ones_like(a), share)


@register("prgf")
@dataclass(frozen=True)
class PRGF(ScoreAscent):
    """RGF with the gradient of a substitute as prior, weighted by its measured quality.

    One query measures the slope along the prior v, and now and then ten more the norm of the
    victim's gradient: together they give their cosine alpha. If the prior is better than any
    combination with probes, it is used without probes (Cheng et al., Improving black-box
    adversarial attacks with a transfer-based prior, 2019).

    Otherwise probes are drawn orthogonal to the prior, and the prior is added with its measured
    slope: ``s_v v + (sum(s_i**2) / |w|**2) w`` with ``w = sum(s_i u_i)`` is the linear combination
    of v and w nearest to the gradient, and its squared cosine is that of the prior plus that of the
    probes. As published (`biased`) directions lean towards the prior instead, by the best weight
    for a known alpha. With alpha 0.1 and 50 probes in 3072 dimensions the cosine is 0.137 as
    published, 0.16 here, and 0.127 without a prior.

    Parameters
    ----------
    steps : int
        Steps of ``probes + 2`` queries, or of 2 where the prior is good; ten more at every tenth.
    sigma : float
        Size of the probes, root mean square per pixel value, in box widths; larger where they show
        no difference.
    rate : float
        First step size, as a fraction of the budget.
    loss : callable
        Loss to maximize, for the victim and for the substitute's gradient.
    exact : bool
        False takes steps in l2 as if there were no box, scales what leaves the ball and then clips
        it to the box, as usual elsewhere. By default steps use the room in the box.
    probes : int
        Directions per step.
    floor, window
        When the step size is halved, and its least value, as in NES.
    biased : bool
        Whether directions lean towards the prior, as published.
    low : int, optional
        Side of the coarse grid on which probes are drawn and from which they are enlarged by tiles
        (the data-dependent prior). It helps where gradients are smooth: those of an adversarially
        trained CIFAR-10 network have four times the usual part in tiles of four pixels, those of a
        natural one less than noise has.
    gamma : float, optional
        How much more of the gradient such probes see than others; by default measured during the
        attack. Published: 3.5.

    Examples
    --------
    >>> str(PRGF(probes=20, biased=True))
    'prgf(probes=20, biased=True)'
    """

    probes: int = whole_number(50)
    floor: float = number(0.1, above=0)
    window: int = whole_number(20, 2)
    biased: bool = False
    low: int | None = whole_number(None)
    gamma: float | None = number(None, above=0)

    needs_substitute = True
    paired: ClassVar[bool] = False
    unit: ClassVar[str] = "probes"
    source: ClassVar[str] = "Cheng et al., Improving attacks with a transfer-based prior, 2019"

    @property
    def draw(self) -> Draw:
        return sphere if self.low is None else Smooth(self.low)

    def rule(self) -> Rule[Any]:
        return Plateau(self.rate, self.floor, self.window, momentum=0.0)

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        sized = sum(_sizes(step) for step in range(self.steps))
        return self.steps * (2 + self.probes) + SIZING * sized + 1

    def run(self, siege: Siege) -> None:
        rule = self.rule()
        x, state = siege.ball.center, rule.begin(siege)
        sigma = torch.full_like(
            siege.ball.radius, visible(siege.ball, self.sigma, sphere, paired=False)
        )
        length = torch.zeros_like(sigma)
        gamma = torch.full_like(sigma, self.gamma or SMOOTH)
        for step in range(self.steps):
            prior = siege.advice(x, self.loss)
            # Directions that leave the box are useless and cannot be measured.
            prior = even((prior * (siege.ball.room(x, prior) > 0))[:, None])[:, 0]
            measured = self._measure(siege, x, prior, sigma, step)
            x, sigma, length, gamma, measured, state = siege.settle(
                x, sigma, length, gamma, measured, state
            )
            if not len(siege):
                return
            if _sizes(step):
                length = (measured.squares / SIZING).sqrt()
            g, seen, square = self.combine(siege, x, measured, sigma, length, step, gamma)
            if self.gamma is None:
                # Along smooth directions a squared slope is gamma times as large.
                ratio = square / (length**2).clamp_min(1e-300)
                gamma = torch.where((square > 0) & (length > 0), ratio, gamma)
            sigma = torch.where(seen, sigma, larger(siege.ball, sigma))
            told = Estimate(g, measured.loss, measured.loss)
            x, state = self.advance(siege.ball, x, told, rule, state)
        siege.offer(x, ScoreLoss(self.loss))

    def _measure(
        self, siege: Siege, x: Tensor, prior: Tensor, sigma: Tensor, step: int
    ) -> Measured:
        """Query the iterates, along the prior and, now and then, along random directions."""
        extra = SIZING if _sizes(step) else 0
        dice, shape = siege.dice.of("sizing", step), tuple(x.shape[1:])
        parts: list[Measured] = []
        for rows in siege.blocks(2 + extra):
            u = prior[rows][:, None]
            if extra:
                counter = torch.arange(extra, device=x.device).expand(len(rows), -1)
                u = torch.cat((u, sphere(dice.at(rows), shape, counter).to(x.dtype)), 1)
            slopes = probe(siege, rows, x[rows], u, sigma[rows], ScoreLoss(self.loss), paired=False)
            rest = slopes._replace(slope=slopes.slope[:, 1:], along=slopes.along[:, 1:])
            along = slopes.along[:, 0].clone()
            squares = _sum(rest.slope.double() ** 2)
            parts.append(Measured(slopes.loss, along, slopes.slope[:, 0], rest.sum(), squares))
        return Measured(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def combine(
        self,
        siege: Siege,
        x: Tensor,
        measured: Measured,
        sigma: Tensor,
        length: Tensor,
        step: int,
        gamma: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient from the prior and probes, and which rows saw any difference.

        Also the mean square of the slopes along the probes, zero without probes.
        """
        root = math.sqrt(siege.ball.size)
        slope = measured.slope.double()
        alpha = (slope.abs() / (root * length).clamp_min(1e-300)).clamp_max(1.0)
        share, square = self._share(siege.ball, alpha, gamma), torch.zeros_like(slope)
        toward = measured.prior * siege.ball.scaled(torch.sign(slope))
        g, seen = toward.clone(), slope != 0
        lean = share if self.biased else torch.zeros_like(share)
        among = (share < 1.0).nonzero()[:, 0]
        for rows in torch.split(among, siege.block(self.probes)):
            if not len(rows):
                break
            mixed, squares = self._probes(siege, rows, x, measured, toward, sigma, lean, step)
            seen[rows] |= squares > 0
            square[rows] = squares / self.probes
            if not self.biased:
                mixed, squares = mixed + measured.mixed[rows], squares + measured.squares[rows]
                scale = squares / inner(mixed, mixed).clamp_min(1e-300)
                along = slope[rows] / siege.ball.size
                here = siege.ball.at(rows)
                mixed = mixed * here.scaled(scale) + measured.prior[rows] * here.scaled(along)
            g[rows] = mixed
        return g, seen, square

    def _share(self, ball: Ball, alpha: Tensor, gamma: Tensor | None) -> Tensor:
        """The best weight of the prior, given its cosine and how smooth the gradient is."""
        d = n = ball.size
        if self.low is not None:
            d = math.prod(coarse(tuple(ball.center.shape[1:]), self.low))
        if gamma is None or d == n:
            return best_share(alpha, n, self.probes)
        return best_share(alpha, d, self.probes, (gamma * d / n).clamp(1e-12, 1.0))

    def _probes(
        self,
        siege: Siege,
        rows: Tensor,
        x: Tensor,
        measured: Measured,
        toward: Tensor,
        sigma: Tensor,
        lean: Tensor,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """``sum(slope * along)`` and ``sum(slope**2)`` of probes that lean towards a prior."""
        dice, shape = siege.dice.of("probes", step).at(rows), tuple(x.shape[1:])
        ball, v = siege.ball.at(rows), toward[rows]
        near, far = (ball.scaled(part.sqrt())[:, None] for part in (lean[rows], 1 - lean[rows]))
        mixed, squares = torch.zeros_like(v), torch.zeros_like(lean[rows])
        loss = ScoreLoss(self.loss)
        for some in portions(ball, self.probes):
            counter = some.to(x.device).expand(len(rows), -1)
            u = self.draw(dice, shape, counter).to(x.dtype)
            inside = inner(u.flatten(0, 1), v.repeat_interleave(len(some), 0))
            whole = inner(v, v).clamp_min(1e-300).repeat_interleave(len(some))
            back = rowwise((inside / whole).view(u.shape[:2]).to(x.dtype), u)
            u = even(u - back * v[:, None]) * far + v[:, None] * near
            slopes = probe(
                siege, rows, x[rows], u, sigma[rows], loss, paired=False, base=measured.loss[rows]
            )
            squares += _sum(slopes.slope.double() ** 2)
            mixed += slopes.sum()
        return mixed, squares


def _sum(values: Tensor) -> Tensor:
    """The sum of every row of ``[rows, k]``, float64."""
    return inner(values, torch.ones_like(values))


def _sizes(step: int) -> bool:
    """Whether the gradient norm is measured at this step."""
    return step % EVERY == 0 or step == 3
