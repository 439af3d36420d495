"""Votes of a model over noisy copies of images: what a certificate of randomised smoothing needs.

CERTIFY of Cohen et al. (2019) draws twice: a few copies choose the class, and fresh ones estimate
how often the model answers it. `counted` returns both counts; `besiege.bounds.votes` turns them
into radii.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from besiege.core.blocks import CPU_BLOCK, GPU_BLOCK
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.text import is_whole
from besiege.core.victim import Victim
from besiege.defenses.defended import Defended, load
from besiege.defenses.noise import GaussianNoise
from besiege.defenses.pooling import Pooled
from besiege.defenses.randomising import RandMix
from besiege.defenses.smoothing import Smoothed, fewest
from besiege.models.classifier import Classifier

Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Voter:
    """What casts one vote, and the noise that it sees the image through.

    Attributes
    ----------
    victim : Victim
        The stochastic victim whose every answer, with dice of its own, is one vote.
    deviations : tuple of float
        Standard deviations of the Gaussian noise of all copies that one vote is a function of, in
        pixel values.
    """

    victim: Victim
    deviations: tuple[float, ...]

    @property
    def sigma(self) -> float:
        """The deviation of one copy that says as much: ``1 / sqrt(sum 1 / s^2)``."""
        return 1 / math.sqrt(sum(one**-2 for one in self.deviations))


@dataclass(frozen=True)
class Votes:
    """Votes for every class; one row per image.

    Attributes
    ----------
    chosen : Tensor
        int64 ``[rows]``: the class with most of the first `n0` votes.
    votes : Tensor
        int64 ``[rows, classes]``: how many of `n` fresh votes each class has.
    n0, n : int
        Votes that choose, and votes that estimate.
    deviations : tuple of float
        The noise of one vote, `Voter.deviations`.
    """

    chosen: Tensor
    votes: Tensor
    n0: int
    n: int
    deviations: tuple[float, ...]

    @property
    def hits(self) -> Tensor:
        """How many of the fresh votes the chosen class has, int64 ``[rows]``."""
        return self.votes.gather(1, self.chosen[:, None])[:, 0]


def voter(victim: Victim | nn.Module | str) -> Voter:
    """What casts one vote of a smoothed victim; an error where the noise does not come first.

    Of ``MODEL+smoothed`` and ``MODEL+gaussian_noise`` it is the model's answer to one noisy copy;
    of ``MODEL+randmix`` to one draw, a function of two noisy copies; of ``...+pooled(draws=m)`` to
    a set of m draws, a function of m times as many copies.

    Examples
    --------
    >>> voter("zoo:digits-natural+smoothed(sigma=0.5)").sigma
    0.5
    >>> f"{voter('zoo:digits-natural+randmix(sigma=0.1)+pooled(draws=10)').sigma:.6f}"
    '0.022361'
    """
    found = load(victim) if isinstance(victim, str) else Classifier.of(victim)
    if isinstance(found, Smoothed):
        return voter(found.noisy)
    if isinstance(found, Pooled):
        one = voter(found.victim)
        return Voter(found, one.deviations * found.draws)
    first = found.layers[0] if isinstance(found, Defended) and found.layers else None
    width = found.box[1] - found.box[0]
    if isinstance(first, GaussianNoise):
        return Voter(found, (first.sigma * width,))
    if isinstance(first, RandMix) and first.sigma > 0:
        return Voter(found, (first.sigma * width,) * 2)
    raise InputError(
        f"'{found.name}' has no certificate of smoothing: no Gaussian noise is the first that the "
        f"image passes. Write '{found.bare.name}+smoothed(sigma=0.25)', for a model that was "
        "trained with such noise (besiege train gaussian)"
    )


def counted(
    victim: Victim | nn.Module | str,
    images: Tensor,
    ids: Tensor,
    *,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    seed: int = 0,
    batch: int | None = None,
    tick: Tick | None = None,
) -> Votes:
    """Count the votes for images under noise.

    Every draw follows from the seed, the id of the image and its number, so that the votes depend
    neither on the batch size nor on the other images, and images can be counted one after the
    other. Memory does not grow with their number or with the draws.

    Parameters
    ----------
    victim : Victim, nn.Module or str
        ``MODEL+smoothed(sigma=0.25)``, or another victim that `voter` takes.
    images, ids : Tensor
        Images ``[rows, channels, height, width]`` in the box, and their ids.
    n0, n : int
        Votes that choose the class, and fresh votes that estimate its share.
    alpha : float
        Error probability of the certificates that the votes are for, which bounds n from below.
    seed : int
        Seed of the noise.
    batch : int, optional
        Noisy copies per call; by default what suits the device and the size of the images.
    tick : callable, optional
        Called after every call of the model with the votes counted and their total.
    """
    must_suffice(n0, n, alpha)
    if len(images) != len(ids):
        raise InputError(f"{len(images)} images were given with {len(ids)} ids: give one id each")
    caster = voter(victim)
    one = caster.victim
    images, ids = images.to(one.device), ids.to(one.device)
    dice = Dice.throw(seed, ids).of("certify")
    total = len(images) * (n0 + n)

    def report(before: int) -> Tick | None:
        return None if tick is None else lambda done, _: tick(before + done, total)

    with one.held(), full_precision(one.device):
        first = _tally(one, images, dice.of("choose"), n0, batch, report(0))
        chosen = first.argmax(1)
        # Fresh draws: the share of the class that was chosen on the same ones is too large.
        votes = _tally(one, images, dice.of("estimate"), n, batch, report(len(images) * n0))
    return Votes(chosen, votes, n0, n, caster.deviations)


def must_suffice(n0: int, n: int, alpha: float) -> None:
    """Refuse numbers of votes that certify nothing, and an impossible error probability."""
    if isinstance(alpha, bool) or not 0 < alpha < 1:
        raise InputError(
            f"alpha is {alpha!r}, but the probability of a wrong certificate is between 0 and 1, "
            "such as 0.001"
        )
    for name, value in (("n0", n0), ("n", n)):
        if not is_whole(value, 1, 10**9):
            raise InputError(f"{name} is {value!r}, but a number of votes is a whole one from 1")
    # The bound of votes that all agree, alpha^(1/n), must exceed 1/2: at 1/2 the radius is 0.
    least = fewest(alpha)
    least += int(0.5**least >= alpha)
    if n < least:
        raise InputError(
            f"n is {n}, and with alpha={alpha:g} no image could be certified even if all votes "
            f"agreed: it takes {least} votes or more"
        )


def _tally(
    victim: Victim, images: Tensor, dice: Dice, draws: int, batch: int | None, tick: Tick | None
) -> Tensor:
    """Votes ``[rows, classes]`` of `draws` noisy copies of every image."""
    total, device = len(images) * draws, images.device
    cpu = device.type == "cpu"
    most, entries = CPU_BLOCK if cpu else GPU_BLOCK
    size = batch or max(8, min(most, entries // max(1, images[:1].numel())))
    oracle = Oracle(victim, batch=size)
    votes = images.new_zeros(len(images), victim.classes or 2, dtype=torch.int64)
    for start in range(0, total, size):
        # Pairs of an image and a draw, as one list: calls are full also where draws are few. On a
        # GPU, whose kernels depend on the number of rows, the last call is as large as the others.
        stop = start + size if not cpu else min(start + size, total)
        pairs = torch.arange(start, stop, device=device)
        counts = pairs < total
        pairs = pairs.clamp_max(total - 1)
        row, draw = pairs // draws, pairs % draws
        answer = oracle.logits(images[row], Dice(dice.key[row]).counted(draw))
        if answer.shape[1] != votes.shape[1]:
            votes = votes.new_zeros(len(images), answer.shape[1])
        place = row * answer.shape[1] + answer.argmax(1)
        # Whole numbers: their sums do not depend on the order, on a GPU neither.
        votes.view(-1).index_add_(0, place, counts.to(torch.int64))
        if tick is not None:
            tick(min(stop, total), total)
    return votes
