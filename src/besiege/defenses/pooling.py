"""`Pooled`: several draws of a stochastic victim as one answer, by mean or by vote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError, near
from besiege.core.fields import check_fields, one_of, whole_number
from besiege.core.registry import Registry
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.core.vocabulary import Vocabulary
from besiege.defenses.layers import straight

Of = Literal["logits", "probabilities", "votes"]
POOLS: Registry[Any] = Registry(
    "defense", ("besiege.defenses.pooling", "besiege.defenses.smoothing")
)
LANGUAGE = Vocabulary(POOLS)

TOGETHER = 4
"""Draws of a block. Their number is the same for any number of rows, so that sums round alike."""
VOTES = 50
"""Largest number of draws in the gradient of a vote: the mean of more is hardly more exact."""
_LANES = 16
"""Columns are filled up to a multiple of these while they are pooled: a CPU computes the last few
numbers of a tensor by other loops, and a row's last bits would depend on the rows beside it."""
_TIE = 0.5
"""Weight of the mean probability beside counted votes: it decides ties, and nothing else."""


@POOLS.register("pooled")
@dataclass(frozen=True)
class Pool:
    """How the draws of a stochastic victim are pooled; the text after all layers.

    Parameters
    ----------
    draws : int
        Draws of one answer.
    of : {"logits", "probabilities", "votes"}
        What is pooled: mean logits (as RealSafe does), the mean probability (Liu et al. 2018), or
        how many draws predict each class (Cao and Gong 2017, Cohen et al. 2019).
    """

    draws: int = whole_number(10)
    of: Of = one_of("logits", "probabilities", "votes")

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, victim: Victim) -> Pooled:
        """A victim whose answers are pooled."""
        return Pooled(victim, self.draws, self.of)

    def __str__(self) -> str:
        return LANGUAGE.text(self)


class Pooled(Victim):
    """A stochastic victim whose every answer pools several draws.

    It is still stochastic, but less. The gradient is that of the pooled answer; of votes, that of
    the mean probability over at most `VOTES` draws. Draws are computed in blocks and, with
    gradients, a second time in the backward pass, so that memory does not grow with their number.

    Parameters
    ----------
    victim : Victim
        A stochastic victim.
    draws : int
        Draws of one answer.
    of : {"logits", "probabilities", "votes"}
        What is pooled.

    Examples
    --------
    >>> from besiege.defenses import load
    >>> victim = load("zoo:digits-natural+resize_pad+pooled(draws=5, of='votes')")
    >>> victim.passes
    5
    """

    def __init__(self, victim: Victim, draws: int = 10, of: Of = "logits") -> None:
        if isinstance(victim, Pooled):
            raise InputError(
                f"'{victim.name}' is pooled already: give the larger number of draws there"
            )
        if of not in get_args(Of):
            raise InputError(f"of is {of!r}: {near(str(of), get_args(Of))}")
        if not victim.stochastic:
            raise InputError(
                f"'{victim.name}' is not stochastic, so that one draw says all: leave out pooled"
            )
        if victim.rejects:
            raise InputError(
                f"'{victim.name}' rejects images, and a rejection cannot be averaged: pool the "
                "draws first, and guard what is pooled"
            )
        self.victim = self.adopt(victim)
        self.pool = Pool(draws, of)
        self.draws, self.of = draws, of
        self.passes = draws * victim.passes
        self.cells = victim.cells

    @cached_property
    def name(self) -> str:
        """The text that `load` reads back, if the victim's name is one."""
        return f"{self.victim.name}+{self.pool}"

    @property
    def bare(self) -> Victim:
        """The model behind all layers."""
        return self.victim.bare

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Pooled logits; every draw has dice of its own."""
        if dice is None:
            raise VictimError(f"'{self}' is stochastic and was given no dice")
        follow = torch.is_grad_enabled() and x.requires_grad
        if self.of == "logits":
            return self._sum(x, dice, self.draws, follow)[0] / self.draws
        if self.of == "probabilities":
            one, likely, _ = self._sum(x, dice, self.draws, follow)
            return likely[:, : one.shape[1]] - math.log(self.draws)
        return self.polled(x, dice)[0]

    def polled(self, x: Tensor, dice: Dice) -> tuple[Tensor, Tensor]:
        """Logarithms of the shares of votes, ties decided by mean probability, and the votes.

        The gradient of the shares is that of the mean probability; votes are whole numbers.
        """
        with torch.no_grad():
            one, likely, votes = self._sum(x, dice, self.draws, False)
            classes = one.shape[1]
            # As logarithms: a probability that rounds to zero would have no gradient.
            ties = likely - math.log(self.draws / _TIE)
            counted = torch.logaddexp(votes.log(), ties) - math.log(self.draws + _TIE)
            counted, votes = counted[:, :classes], votes[:, :classes]
        if not (torch.is_grad_enabled() and x.requires_grad):
            return counted, votes
        few = min(self.draws, VOTES)
        likely = self._sum(x, dice, few, True)[1][:, :classes]
        return straight(likely - math.log(few), counted), votes

    def _sum(self, x: Tensor, dice: Dice, draws: int, follow: bool) -> tuple[Tensor, ...]:
        """Sums over draws: of logits, of probabilities (its logarithm), and of votes.

        The latter two have columns without a meaning after those of the classes, see `_LANES`.
        """
        sums: tuple[Tensor, ...] = ()
        for first in range(0, draws, TOGETHER):
            numbers = range(first, min(first + TOGETHER, draws))
            if follow:
                sums = checkpoint(self._block, x, dice, numbers, *sums, use_reentrant=False)
            else:
                sums = self._block(x, dice, numbers, *sums)
        return sums

    def _block(self, x: Tensor, dice: Dice, numbers: range, *sums: Tensor) -> tuple[Tensor, ...]:
        """The sums with some more draws."""
        count = len(numbers)
        keys = torch.stack([dice.of("draw", number).key for number in numbers])
        # A copy: a network may overwrite its input, and the next block needs it.
        many = x.repeat(count, *[1] * (x.dim() - 1))
        logits = self.victim(many, Dice(keys.flatten())).view(count, len(x), -1)
        classes = logits.shape[2]
        width = -(-classes // _LANES) * _LANES
        votes = functional.one_hot(logits.argmax(2), width).to(logits.dtype)
        shares = functional.pad(logits.log_softmax(2), (0, width - classes))
        for one, likely, vote in zip(logits, shares, votes, strict=True):
            if not sums:
                sums = (one, likely, vote)
                continue
            sums = (sums[0] + one, torch.logaddexp(sums[1], likely), sums[2] + vote)
        return sums

    def twin(self, samples: Samples, threat: Threat, **how: Any) -> Victim | None:
        """The pool of an accelerated copy of the victim, if there is one."""
        inner = self.victim.twin(samples, threat, **how)
        return None if inner is None else Pooled(inner, self.draws, self.of)

    def digest(self) -> str:
        """SHA-256 of the victim's digest and of how its draws are pooled."""
        return sha256(f"{self.victim.digest()}\n{self.pool}".encode()).hexdigest()

    def __repr__(self) -> str:
        return self.name
