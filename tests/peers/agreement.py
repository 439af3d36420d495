"""Compares presets with other implementations: 24 images on each of two networks, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import besiege
from besiege.core.presets import PRESETS, Check
from besiege.evaluation.attacking import AttackResult
from besiege.models import Classifier

NETWORKS = ("zoo:digits-natural", "zoo:digits-pgd-at")
ROWS = 24
CLOSE = 1e-5


@dataclass(frozen=True)
class Case:
    """A network, and images that it classifies correctly."""

    victim: Classifier
    images: Tensor
    labels: Tensor

    def attack(self, attack: str, threat: str, **given: Any) -> AttackResult:
        """Our result for an attack."""
        return besiege.attack(attack, self.victim, self.images, self.labels, threat=threat, **given)

    def last(self, attack: str, threat: str, **given: Any) -> Tensor:
        """The last iterates of an attack that does not stop at a success."""
        return self.attack(attack, threat, keep="last", leave="end", **given).images


@cache
def cases() -> tuple[Case, ...]:
    """Both networks with their images."""
    return tuple(map(_case, NETWORKS))


def _case(name: str) -> Case:
    victim, data = besiege.models.load(name), besiege.data.load("digits", count=60)
    with victim.held(), torch.no_grad():
        right = (victim(data.images).argmax(1) == data.labels).nonzero()[:ROWS, 0]
    return Case(victim, data.images[right], data.labels[right])


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread: results do not depend on how sums are split."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def agree(
    preset: str,
    peer: str,
    ours: Callable[[Case], Tensor],
    theirs: Callable[[Case], Tensor],
    *,
    about: str = "",
) -> None:
    """Count equal rows, and demand at least as many as the preset states.

    Parameters
    ----------
    preset, peer, about : str
        The preset, and which of its `Check` values states the result.
    ours, theirs : callable
        Points, or any other figures with rows first, from a case. Rows of infinite or NaN figures
        are equal where both are.
    """
    equal = rows = 0
    for case in cases():
        with one_thread(), case.victim.held():
            mine, other = ours(case).detach().double(), theirs(case).detach().double()
        far = (mine - other).abs().nan_to_num(torch.inf, torch.inf).reshape(len(mine), -1)
        same = (mine == other) | (mine.isnan() & other.isnan())
        far = far.masked_fill(same.reshape(len(far), -1), 0.0).amax(1)
        equal, rows = equal + int((far <= CLOSE).sum()), rows + len(far)
    print(f"{preset}, {peer}: {equal} of {rows} rows equal")
    stated = [c for c in PRESETS.get(preset).checks if (c.peer, c.about) == (peer, about)]
    assert stated, f"{preset} does not state its check: {Check(peer, equal, rows, about)!r}"
    assert (stated[0].rows, equal >= stated[0].equal) == (rows, True), f"{equal} of {rows}"
