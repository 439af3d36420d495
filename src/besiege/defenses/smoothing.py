"""`Smoothed`: a vote over Gaussian noise that abstains where it is close (randomised smoothing).

Cohen, Rosenfeld and Kolter (2019): the smoothed classifier ``g(x)`` is the class that the model
answers most often to ``x + N(0, sigma^2 I)``. This module holds PREDICT, which is deployed and
attacked; `besiege.defenses.counting` counts the votes of CERTIFY.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError
from besiege.core.fields import check_fields, checked, number
from besiege.core.samples import Samples
from besiege.core.text import is_whole
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses.defended import Defended, load
from besiege.defenses.detected import rejection
from besiege.defenses.layers import straight
from besiege.defenses.noise import GaussianNoise
from besiege.defenses.pooling import LANGUAGE, POOLS, Pooled
from besiege.models.classifier import Classifier

MOST_DRAWS = 100_000
"""Largest number of draws of one answer: more take minutes, and the test's table seconds."""


@POOLS.register("smoothed")
@dataclass(frozen=True)
class Smoothing:
    """How a model is smoothed; the text after all layers.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise, as a share of the box's width: pixel values themselves in
        (0, 1). Train the model with the same noise.
    draws : int
        Noisy copies of one answer.
    alpha : float
        Probability of an answer that is not the smoothed classifier's; otherwise it abstains.
    """

    sigma: float = number(0.25, above=0, what="a standard deviation")
    draws: int = checked(
        100,
        lambda value: is_whole(value, 1, MOST_DRAWS),
        f"but a whole number from 1 to {MOST_DRAWS} is needed",
    )
    alpha: float = number(0.001, above=0, below=1, what="an error probability")

    def __post_init__(self) -> None:
        check_fields(self)
        # Votes that all agree: the test's p-value is 2 * 0.5^draws.
        least = fewest(self.alpha / 2)
        if self.draws < least:
            raise ValueError(
                f"draws is {self.draws}, and with alpha={self.alpha:g} the test abstains even "
                f"where all of them agree: it takes {least} draws or more"
            )

    def __call__(self, victim: Victim) -> Smoothed:
        """A victim that is smoothed."""
        return Smoothed(victim, self.sigma, self.draws, self.alpha)

    def __str__(self) -> str:
        return LANGUAGE.text(self)


class Smoothed(Victim):
    """A randomly smoothed victim: it votes over noisy copies, and abstains from close votes.

    PREDICT of Cohen et al. (2019): it answers the class with most votes, unless the two-sided
    binomial test of the top two counts, ``n1`` of ``n1 + n2`` at 1/2, has a p-value above `alpha`.
    Then it abstains: its last column, a rejection, is the largest (`besiege.core.refusal`).
    Noise is added before the model's normalisation, and is not clamped to the box. A shipped model
    that was trained behind Gaussian noise answers under that noise; here this noise replaces it,
    so that what is smoothed is the network.

    The columns of the classes are those of `Pooled` with votes, and so is their gradient: that of
    the mean probability. The last column is the logit of the runner-up, raised by the lead that
    the test asks for.

    Parameters
    ----------
    victim : Victim, nn.Module or str
        The model with its layers; one that returns labels only will do.
    sigma, draws, alpha
        See `Smoothing`.

    Examples
    --------
    >>> from besiege.defenses import load
    >>> victim = load("zoo:digits-natural+smoothed(sigma=0.1, draws=50)")
    >>> victim.rejects, victim.passes
    (True, 50)
    """

    def __init__(
        self,
        victim: Victim | nn.Module | str,
        sigma: float = 0.25,
        draws: int = 100,
        alpha: float = 0.001,
    ) -> None:
        if isinstance(victim, str):
            victim = load(victim)
        inner = without_own_noise(Classifier.of(victim))
        _must_be_smoothable(inner)
        self.rule = Smoothing(sigma, draws, alpha)
        self.victim = self.adopt(inner)
        self.noisy = Defended(inner, GaussianNoise(sigma))
        self.pooled = Pooled(self.noisy, draws, "votes")
        self.stochastic = True
        self.rejects = True
        self.outputs = "logits"  # shares of votes, whatever the model returns
        self.draws, self.passes = draws, self.pooled.passes
        self._asked: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @cached_property
    def name(self) -> str:
        """The text that `load` reads back, if the victim's name is one."""
        return f"{self.victim.name}+{self.rule}"

    @property
    def bare(self) -> Victim:
        """The model behind all layers."""
        return self.victim.bare

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits ``[rows, classes + 1]``; the last column is the largest where it abstains."""
        if dice is None:
            raise VictimError(f"'{self}' is stochastic and was given no dice")
        shares, votes = self.pooled.polled(x, dice)
        last = abstention(shares, votes, *self._tables(x.device))
        return torch.cat([shares, last[:, None]], 1)

    def _tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The votes and the log odds that the test asks for, by the sum of the top two counts."""
        if device not in self._asked:
            least = needed_votes(self.draws, self.rule.alpha)
            # Outside the caller's inference mode: later calls compute gradients with it.
            with torch.inference_mode(False):
                odds = torch.tensor(hurdles(least), dtype=torch.float32, device=device)
                self._asked[device] = torch.tensor(least, device=device), odds
        return self._asked[device]

    def twin(self, samples: Samples, threat: Threat, **how: Any) -> Victim | None:
        """The vote of an accelerated copy of the victim, if there is one."""
        inner = self.victim.twin(samples, threat, **how)
        return None if inner is None else self.rule(inner)

    def digest(self) -> str:
        """SHA-256 of the victim's digest, of the noise and of the rule."""
        return sha256(f"{self.noisy.digest()}\n{self.rule}".encode()).hexdigest()

    def __repr__(self) -> str:
        return self.name


def abstention(shares: Tensor, votes: Tensor, needed: Tensor, odds: Tensor) -> Tensor:
    """The last column: above all shares exactly where the vote is too close.

    Parameters
    ----------
    shares : Tensor
        ``[rows, classes]``, logarithms of the shares of votes.
    votes : Tensor
        The votes, whole numbers.
    needed, odds : Tensor
        What the test asks for by the sum of the top two counts: `needed_votes` and `hurdles`.
    """
    first, second = votes.topk(2, dim=1).values.long().unbind(1)
    least = needed[first + second]
    top = shares.topk(2, dim=1).values
    usual = top[:, 1] + odds[first + second] - top[:, 0]
    with torch.no_grad():
        # The sign is decided by whole numbers, not by the shares, whose last bits round.
        sure = torch.where(first < least, usual.clamp_min(1e-6), usual.clamp_max(0.0))
    score = straight(usual, sure) if usual.requires_grad else sure
    zero, one = shares.new_zeros(()), shares.new_ones(())
    return rejection(shares, score, zero, one, one)


def without_own_noise(victim: Victim) -> Victim:
    """A victim without the Gaussian noise that its model was trained behind, if there is any.

    Noise that is written as a layer stays: it is part of what is evaluated.
    """
    if not isinstance(victim, Defended):
        return victim
    inner, layers = without_own_noise(victim.victim), victim.layers
    if victim.trained:
        layers = tuple(one for one in layers if not isinstance(one, GaussianNoise))
    if inner is victim.victim and layers == victim.layers:
        return victim
    if not layers:
        return inner
    found = Defended(inner, *layers)
    if victim.trained:
        found.name, found.trained = victim.name, True
    return found


def _must_be_smoothable(victim: Victim) -> None:
    """Refuse a victim whose votes under noise would not be those of a classifier."""
    if isinstance(victim, Smoothed):
        raise InputError(
            f"'{victim.name}' is smoothed already: give the noise and the number of draws there"
        )
    if isinstance(victim, Pooled):
        raise InputError(
            f"'{victim.name}' is pooled, and smoothing counts single draws: leave out pooled, or "
            "smoothed"
        )
    if victim.rejects:
        raise InputError(
            f"'{victim.name}' rejects images, and a rejection is no class that could be voted for: "
            "leave out the detector, or smoothed"
        )
    if any(isinstance(layer, GaussianNoise) for layer in layers_inside(victim)):
        raise InputError(
            f"'{victim.name}' has the layer gaussian_noise, and smoothed adds the noise: write it "
            "without this layer (noise that a shipped model was trained with is replaced)"
        )
    if victim.stochastic and victim.metered:
        raise InputError(
            f"'{victim.name}' draws its own random numbers, which no seed repeats: its votes could "
            "not be verified; declare stochastic=False if its answers do not vary"
        )


def layers_inside(victim: Victim) -> list[object]:
    """All layers in front of a victim, from the image inwards."""
    found: list[object] = []
    here: Victim | None = victim
    while here is not None:
        if isinstance(here, Defended):
            found.extend(here.layers)
        here = here.behind
    return found


def fewest(alpha: float) -> int:
    """The fewest votes, all for one class, that happen by chance with probability `alpha` at most.

    By chance means that the class has half of the votes: ``0.5^n <= alpha``.

    Examples
    --------
    >>> fewest(0.001), fewest(0.0005)
    (10, 11)
    """
    count = max(1, math.ceil(-math.log2(alpha)) - 1)
    while Fraction(1, 2**count) > Fraction(alpha):  # the logarithm may round
        count += 1
    return count


@cache
def needed_votes(most: int, alpha: float) -> tuple[int, ...]:
    """The fewest of ``n`` votes for the leader that pass the two-sided binomial test at 1/2.

    For every n from 0 to `most`; ``n + 1``, which no count reaches, where none passes. Exact: in
    whole numbers, from n to n + 1 with ``P(X' >= k) = P(X >= k) + P(X = k - 1) / 2``.

    Examples
    --------
    >>> needed_votes(100, 0.001)[100]
    67
    """
    limit = Fraction(alpha)
    top, bottom = limit.numerator, 2 * limit.denominator
    least, tail, below = 1, 0, 1  # for n = 0: outcomes of at least `least`, and of one fewer
    made = [1]
    for n in range(1, most + 1):
        tail = 2 * tail + below
        below = below * n // (n + 1 - least) if least <= n else 1
        while tail * bottom > top << n:
            # Outcomes of exactly `least` votes, from those of one fewer.
            exactly = below * (n + 1 - least) // least
            tail, below, least = tail - exactly, exactly, least + 1
        made.append(least)
    return tuple(made)


def hurdles(needed: tuple[int, ...]) -> list[float]:
    """The log odds of half a vote less than `needed_votes` asks for, which no count ties with.

    Examples
    --------
    >>> f"{hurdles(needed_votes(100, 0.001))[100]:.4f}"
    '0.6857'
    """
    return [math.log((k - 0.5) / max(n - k + 0.5, 0.5)) for n, k in enumerate(needed)]
