"""Square against the authors' own code (package pyautoattack), at equal queries.

The search is the same, but not the chances: theirs draw one window and, in linf, one pattern of
signs for the whole batch, ours one for every image. What makes ours stronger, each switched off in
turn (rows standing after 1000 queries at the budgets below):

- windows also reach the last row and column, which theirs never touch: all of the difference on
  the 8x8 digits in linf (72 with it, 91 without, theirs 93);
- in l2 what the box takes from a change is given to the rest of it: all of the difference on MNIST
  (13 with it, 28 without, theirs 26);
- in l1 a new window is three times what it may spend whatever the number of channels, theirs as
  many times as there are channels, which is one on grey images (MNIST: 8 with it, 17 without,
  theirs 30).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import besiege
from besiege.attacks.square import Square
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models import Classifier

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]

QUERIES = 500
NAMES = {Linf: "Linf", L2: "L2", L1: "L1"}
NETS: dict[str, tuple[str, str, int, dict[Norm, float]]] = {
    "digits-pgd-at": ("zoo:digits-pgd-at", "digits", 200, {Linf: 0.22, L2: 1.0, L1: 3.0}),
    "cifar10-cnn_a_adv": (
        "public:cifar10_cnn_a_adv",
        "cifar10",
        150,
        {Linf: 8 / 255, L2: 0.8, L1: 16.0},
    ),
    "mnist-cnn_a_adv": ("public:mnist_cnn_a_adv", "mnist", 100, {Linf: 0.3, L2: 2.5, L1: 12.0}),
}


@dataclass(frozen=True)
class Case:
    """A network, images it sees rightly, and budgets."""

    victim: Classifier
    samples: Samples
    eps: dict[Norm, float]


@pytest.fixture(params=NETS, scope="module")
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    model, data, count, eps = NETS[request.param]
    try:
        victim, some = besiege.models.load(model), besiege.data.load(data, count=count)
    except besiege.BesiegeError as problem:
        pytest.skip(f"{model} needs data that is not here: {problem}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with victim.held(), torch.no_grad():
        right = victim(some.images).argmax(1) == some.labels
        yield Case(victim, Samples.of(some.images[right], some.labels[right], classes=10), eps)
    torch.set_num_threads(threads)


def theirs(case: Case, norm: Norm, seed: int) -> int:
    """How many rows their attack leaves standing."""
    code = pytest.importorskip(
        "pyautoattack.square", reason="pyautoattack is not installed: benchmarks/peers.txt"
    )
    attack = code.SquareAttack(
        case.victim,
        norm=NAMES[norm],
        eps=case.eps[norm],
        n_queries=QUERIES,
        resc_schedule=False,
        seed=seed,
        device="cpu",
    )
    with torch.random.fork_rng([]):
        images = attack.perturb(case.samples.images, case.samples.labels)
    return int((case.victim(images).argmax(1) == case.samples.labels).sum())


def ours(case: Case, norm: Norm, seed: int) -> int:
    attack, threat = Square(steps=QUERIES), Threat(norm, case.eps[norm])
    return int((~craft(case.victim, attack, case.samples, threat, seed=seed).success).sum())


@pytest.mark.parametrize("norm", NAMES, ids=str)
def test_it_is_as_strong_at_equal_queries(case: Case, norm: Norm) -> None:
    """The mean of two seeds: of a hundred rows some two or three fall either way with the seed."""
    found = [(ours(case, norm, seed), theirs(case, norm, seed)) for seed in range(2)]
    mine, other = (sum(column) / 2 for column in zip(*found, strict=True))
    assert other < len(case.samples)
    assert mine <= other + 0.03 * len(case.samples), found


def test_where_it_is_stronger(case: Case) -> None:
    """On grey images, in l1, by far."""
    if case.samples.images.shape[1] > 1:
        pytest.skip("colour")
    assert ours(case, L1, 0) < 0.5 * theirs(case, L1, 0)
