"""FAB-T against the authors' own code (package pyautoattack), at equal steps and targets.

Theirs asks twice as many forwards: once for the gradient and once more for the success after it.
Otherwise than ours it takes gradients whose entries are below 1e-8 for none, so that victims of
tiny logits are not attacked at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import besiege
from besiege.attacks.fab import FAB, FABT
from besiege.core.ball import distances
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models import Classifier
from besiege.testing.victims import Linear, scaled

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]

NAMES = {Linf: "Linf", L2: "L2", L1: "L1"}
NETS = {
    "digits-pgd-at": ("zoo:digits-pgd-at", "digits", 100),
    "digits-natural": ("zoo:digits-natural", "digits", 100),
    "affine": ("", "", 60),
}
STEPS, TARGETS = 50, 3


@dataclass(frozen=True)
class Case:
    """A victim and images it sees rightly."""

    victim: Classifier
    samples: Samples


@pytest.fixture(params=NETS, scope="module")
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    model, data, count = NETS[request.param]
    if not model:
        victim = Linear((1, 8, 8), 10)
        yield Case(victim, victim.samples(count))
        return
    try:
        net, some = besiege.models.load(model), besiege.data.load(data, count=count)
    except besiege.BesiegeError as problem:
        pytest.skip(f"{model} needs data that is not here: {problem}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with net.held(), torch.no_grad():
        right = net(some.images).argmax(1) == some.labels
        yield Case(net, Samples.of(some.images[right], some.labels[right], classes=10))
    torch.set_num_threads(threads)


def theirs(victim: Any, samples: Samples, norm: Norm, targets: int = TARGETS) -> Tensor:
    """The smallest distance their walks come to, over the likeliest targets; infinite for none."""
    code = pytest.importorskip(
        "pyautoattack.fab_pt", reason="pyautoattack is not installed: benchmarks/peers.txt"
    )
    attack = code.FABAttack_PT(
        victim, norm=NAMES[norm], n_iter=STEPS, eps=1e6, targeted=targets > 0, device="cpu"
    )
    x, y = samples.images, samples.labels
    best = torch.full((len(x),), torch.inf, dtype=torch.float64)
    with torch.no_grad():
        for place in range(2, max(targets, 1) + 2):
            attack.target_class = place
            images = attack.attack_single_run(x, y, is_targeted=targets > 0)
            fooled = victim(images).argmax(1) != y
            size = torch.where(fooled, distances(images - x, norm), torch.inf)
            best = torch.minimum(best, size)
    return best


def stood(distance: Tensor, eps: float) -> int:
    return int((distance > eps * (1 + 1e-6)).sum())


@pytest.mark.parametrize("norm", NAMES, ids=str)
def test_it_comes_as_near_and_breaks_as_many(case: Case, norm: Norm) -> None:
    victim, samples = case.victim, case.samples
    other = theirs(victim, samples, norm)
    attack = FABT(steps=STEPS, targets=TARGETS)
    made = craft(victim, attack, samples, Threat(norm, None))
    assert made.success.all()
    assert float(made.distance.median()) <= 1.01 * float(other.median())
    # Passes: theirs are two forwards and a backward per step, and two forwards more.
    assert (made.forwards <= TARGETS * (STEPS + 4) + 1).all()
    assert (made.forwards < TARGETS * (2 * STEPS)).all()
    for share in (0.25, 0.5, 0.75):
        eps = float(other.quantile(share))
        there = craft(victim, attack, samples, Threat(norm, eps))
        # A row may fall either way: two in a hundred.
        assert stood(there.distance, eps) <= stood(other, eps) + np.ceil(0.02 * len(samples))


@pytest.mark.parametrize("norm", NAMES, ids=str)
def test_untargeted_it_comes_as_near(case: Case, norm: Norm) -> None:
    samples = case.samples.at(torch.arange(25))
    other = theirs(case.victim, samples, norm, 0)
    made = craft(case.victim, FAB(steps=STEPS), samples, Threat(norm, None))
    assert made.success.all()
    assert float(made.distance.median()) <= 1.01 * float(other.median())


def test_tiny_logits_stop_theirs_and_not_ours() -> None:
    victim = Linear((1, 8, 8), 10)
    samples = victim.samples(20)
    small = scaled(victim, 1e-9)
    for norm in (L2, L1):
        assert torch.isinf(theirs(small, samples, norm, 1)).any()
        assert craft(small, FABT(steps=5), samples, Threat(norm, None)).success.all()
