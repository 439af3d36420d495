"""The smoothed victim: the test it abstains by, its votes, its gradient, and how it is written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError, VictimError
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.defenses import (
    BitDepth,
    Calibration,
    Defended,
    Detected,
    GaussianNoise,
    Jitter,
    Pooled,
    Smoothed,
    Squeezing,
    load,
)
from besiege.defenses.smoothing import abstention, fewest, hurdles, layers_inside, needed_votes
from besiege.models import Classifier, function_model

BASE = "zoo:digits-natural"
DATA = besiege.data.load("digits", "test", count=24)


class Votes(Victim):
    """Answers class 0 in a share of the draws, and class 1 in the others."""

    stochastic = True
    classes = 3

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        assert dice is not None
        first = dice.of("vote").uniform((1,)) < self.share
        return torch.where(first, torch.tensor([[2.0, 1, 0]]), torch.tensor([[1.0, 2, 0]]))


def asked(draws: int, alpha: float) -> tuple[Tensor, Tensor]:
    needed = needed_votes(draws, alpha)
    return torch.tensor(needed), torch.tensor(hurdles(needed))


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.7])
def test_needed_votes_are_those_of_the_two_sided_binomial_test(alpha: float) -> None:
    table = needed_votes(140, alpha)
    for n in range(1, 141):
        passing = (k for k in range(n // 2 + 1, n + 1) if binomtest(k, n).pvalue <= alpha)
        assert table[n] == next(passing, n + 1)


def test_of_a_hundred_votes_67_pass_and_66_abstain() -> None:
    assert binomtest(67, 100).pvalue == pytest.approx(0.00087, abs=1e-5)
    assert binomtest(66, 100).pvalue == pytest.approx(0.00179, abs=1e-5)
    votes = torch.tensor([[33.0, 67, 0], [66, 34, 0], [67, 33, 0], [50, 50, 0]])
    last = abstention((votes + 1e-3).log(), votes, *asked(100, 0.001))
    assert (last > votes.log().amax(1)).tolist() == [False, True, False, True]
    # Counts decide, not their logarithms: these say that 66 to 34 is clear and 67 to 33 is not.
    off = torch.tensor([[67.5, 33.0, 1], [66.0, 34.0, 1]]).log()
    last = abstention(off, votes[1:3], *asked(100, 0.001))
    assert (last > off.amax(1)).tolist() == [True, False]


def test_the_last_column_is_the_largest_exactly_where_the_test_abstains() -> None:
    """For every count of the top two of 60 votes, the rest for a third class."""
    first, second = torch.cartesian_prod(torch.arange(61), torch.arange(61)).unbind(1)
    third = 60 - first - second
    some = (first >= second) & (second >= third) & (third >= 0)
    votes = torch.stack([first, second, third], 1)[some].float()
    shares = ((votes + 0.5 / 3) / 60.5).log()
    last = abstention(shares, votes, *asked(60, 0.01))
    for row, (one, two, _) in enumerate(votes.int().tolist()):
        p = binomtest(one, one + two).pvalue
        assert bool(last[row] > shares[row].max()) == (p > 0.01), (one, two)


@pytest.mark.parametrize(("share", "abstains"), [(0.5, True), (0.97, False), (0.03, False)])
def test_a_coin_abstains_and_a_clear_vote_answers(share: float, abstains: bool) -> None:
    victim = Smoothed(Votes(share), draws=100)
    with torch.no_grad():
        answer = victim(torch.zeros(1000, 1, 2, 2), Dice.throw(0, torch.arange(1000)))
    found = float((answer.argmax(1) == 3).double().mean())
    assert found >= 0.99 if abstains else found <= 0.01
    if not abstains:
        assert set(answer.argmax(1).tolist()) <= {0 if share > 0.5 else 1, 3}


def test_votes_are_those_of_a_plain_loop() -> None:
    victim, dice = load(f"{BASE}+smoothed(sigma=0.3, draws=40)"), Dice.throw(3, DATA.ids)
    assert isinstance(victim, Smoothed)
    single = load(f"{BASE}+gaussian_noise(sigma=0.3)")
    with victim.held(), torch.no_grad():
        answer = victim(DATA.images, dice)
        each = [single(DATA.images, dice.of("draw", k)).argmax(1) for k in range(40)]
    drawn = torch.stack(each, 1)
    for row in range(24):
        counts = np.bincount(drawn[row].numpy(), minlength=10)
        low, high = np.sort(counts)[-2:]
        abstains = binomtest(int(high), int(low + high)).pvalue > 0.001
        assert int(answer[row].argmax()) == (10 if abstains else int(counts.argmax()))


def test_noise_is_added_before_normalisation_and_not_clamped() -> None:
    seen: list[Tensor] = []

    class Sees(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return x.flatten(1)[:, :3]

    network = Classifier(Sees(), mean=0.5, std=0.25, box=(0.0, 2.0))
    victim = Smoothed(network, sigma=0.4, draws=40)
    x = torch.full((8, 1, 16, 16), 1.9)
    with victim.held(), torch.no_grad():
        victim(x, Dice.throw(0, torch.arange(8)))
    noise = torch.cat(seen) * 0.25 + 0.5 - 1.9
    assert len(noise) == 320
    # A share of the box's width, which is 2; in units of the network it is four times as large.
    assert float(noise.std()) == pytest.approx(0.8, rel=0.01)
    assert float((noise + 1.9 > 2.0).double().mean()) == pytest.approx(0.45, abs=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)


def test_gradients_are_those_of_the_mean_probability() -> None:
    victim, dice = load(f"{BASE}+smoothed(sigma=0.3, draws=20)"), Dice.throw(3, DATA.ids)
    single = load(f"{BASE}+gaussian_noise(sigma=0.3)")
    x, other = (DATA.images.clone().requires_grad_(True) for _ in range(2))
    with victim.held():
        answer = victim(x, dice)
        (slope,) = torch.autograd.grad(answer[:, :10].square().sum(), x)
        each = torch.stack([single(other, dice.of("draw", k)) for k in range(20)])
        plain = each.softmax(2).mean(0).log()
        (wanted,) = torch.autograd.grad((plain * 2 * answer[:, :10].detach()).sum(), other)
        assert torch.allclose(slope, wanted, atol=1e-4 * float(wanted.abs().max()))
        # The rejection is the runner-up, raised: an attacker lowers it with the runner-up.
        answer = victim(x, dice)
        place = answer[:, :10].topk(2, 1).indices[:, 1:]
        ones = [answer[:, 10].sum(), answer.gather(1, place).sum()]
        own, rival = (torch.autograd.grad(one, x, retain_graph=True)[0] for one in ones)
        assert torch.allclose(own, rival, atol=1e-4 * float(rival.abs().max()))
        with torch.no_grad():
            assert torch.equal(victim(DATA.images, dice), answer.detach())


def test_a_row_does_not_depend_on_its_batch() -> None:
    victim, dice = load(f"{BASE}+smoothed(draws=21)"), Dice.throw(3, DATA.ids)
    with victim.held(), torch.no_grad():
        whole = victim(DATA.images, dice)
        part = victim(DATA.images[8:16], dice.at(torch.arange(8, 16)))
        assert torch.equal(whole[8:16], part)
        assert not torch.equal(victim(DATA.images, Dice.throw(4, DATA.ids)), whole)


def test_texts_and_digests() -> None:
    text = f"{BASE}+bits(depth=3)+smoothed(sigma=0.5, draws=50, alpha=0.01)"
    victim = load(text)
    assert str(victim) == text and load(str(victim)).digest() == victim.digest()
    assert victim.passes == victim.draws == 50 and victim.stochastic and victim.rejects
    assert victim.bare.name == BASE and victim.outputs == "logits"
    others = {load(text.replace(*pair)).digest() for pair in (("0.5", "0.6"), ("50", "51"))}
    others |= {load(text.replace("0.01", "0.02")).digest(), load(f"{BASE}+bits(depth=3)").digest()}
    assert len(others | {victim.digest()}) == 5
    assert str(load(f"{BASE}+smoothed")) == f"{BASE}+smoothed"
    assert Smoothed(BASE, 0.5).digest() == load(f"{BASE}+smoothed(0.5)").digest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smoothed(sigma=0)", "standard deviation above 0"),
        ("smoothed(sigma=-0.25)", "standard deviation above 0"),
        ("smoothed(alpha=0)", "above 0 and below 1"),
        ("smoothed(alpha=1)", "above 0 and below 1"),
        ("smoothed(draws=0)", "whole number from 1"),
        ("smoothed(draws=10)", "it takes 11 draws"),
        ("smoothed(draws=1000000)", "to 100000"),
        ("smoothed+bits", "written last"),
        ("smoothed+smoothed(0.5)", "smoothed twice"),
        ("jitter+smoothed+pooled", "smoothed and pooled"),
        ("jitter+pooled+smoothed", "pooled and smoothed"),
        ("smoothed+detector('file')", "threshold would hold for some draws"),
        ("detector('file')+smoothed", "written last"),
        ("gaussian_noise+smoothed", "has the layer gaussian_noise"),
        ("smothed", "did you mean 'smoothed'"),
        ("smoothed(noise=1)", "has no parameter 'noise'"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(BesiegeError, match=said):
        load(f"{BASE}+{text}")


def test_smoothing_by_hand_is_checked_too() -> None:
    plain = load(BASE)
    for victim, said in (
        (Smoothed(plain), "smoothed already"),
        (Pooled(Defended(plain, Jitter(0.1))), "is pooled"),
        (Detected(plain, Squeezing((BitDepth(1),)), Calibration(0.5)), "rejects images"),
        (
            Defended(Defended(plain, GaussianNoise(0.1)), BitDepth(3)),
            "has the layer gaussian_noise",
        ),
        (function_model(lambda x: x.mean((2, 3)), 3, stochastic=True), "no seed repeats"),
    ):
        with pytest.raises(InputError, match=said):
            Smoothed(victim)
    with pytest.raises(VictimError, match="given no dice"):
        Smoothed(plain)(DATA.images)
    # A layer with randomness of its own is part of the model that votes.
    assert Smoothed(Defended(plain, Jitter(0.1))).passes == 100


def test_a_model_that_returns_labels_only_can_be_smoothed() -> None:
    network = load(BASE)

    def labels(x: np.ndarray) -> np.ndarray:
        with network.held(), torch.no_grad():
            return network(torch.from_numpy(x)).argmax(1).numpy()

    victim = Smoothed(function_model(labels, 10, "decision"), 0.1, 20)
    assert victim.access is Access.DECISION and victim.twin is not None
    dice = Dice.throw(0, DATA.ids)
    with torch.no_grad():
        answer = victim(DATA.images, dice)
        whole = load(f"{BASE}+smoothed(0.1, draws=20)")(DATA.images, dice)
    assert torch.equal(answer.argmax(1), whole.argmax(1))


@pytest.mark.parametrize(
    "attack", ["pgd(steps=10)", "square(steps=30)", "averaged(hopskipjump(steps=2), 3)"]
)
def test_every_kind_of_attack_runs_and_its_successes_are_accepted(attack: str) -> None:
    access = " decision" if "hop" in attack else ""
    found = besiege.attack(
        attack,
        f"{BASE}+smoothed(sigma=0.1, draws=12)",
        DATA.images[:6],
        DATA.labels[:6],
        threat=f"l2:1.5{access}",
    )
    assert bool(found.success.any()) or attack.startswith("averaged")


def test_an_evaluation_shows_right_wrong_and_rejected() -> None:
    some: dict[str, Any] = {"threat": "l2:1", "count": 12, "curve": False}
    found = besiege.evaluate(
        f"{BASE}+smoothed(sigma=0.2, draws=20)", "digits", attacks="pgd(steps=5)", **some
    )
    assert found.robust.value < found.clean.value
    assert found.figures.model.passes == 20 and found.figures.rejection is not None
    # Votes jump, and their gradient is a surrogate's: no sign of a broken gradient.
    assert not {"W33", "W45"} & {warning.id for warning in found.warnings}


def test_fewest_votes_that_are_no_accident() -> None:
    assert [fewest(alpha) for alpha in (0.5, 0.25, 0.2, 0.001, 0.0009)] == [1, 2, 3, 10, 11]


MEMORY = """
import resource, sys, torch
from besiege.core.dice import Dice
from besiege.defenses import load
victim = load("public:cifar10_resnet20" + sys.argv[1])
x = torch.rand(64, 3, 32, 32).requires_grad_(True)
with victim.held():
    (slope,) = torch.autograd.grad(victim(x, Dice.throw(0, torch.arange(64))).sum(), x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_draws() -> None:
    peak = [
        float(subprocess.check_output([sys.executable, "-c", MEMORY, text], text=True))
        for text in ("+smoothed(draws=20)", "+smoothed(draws=400)")
    ]
    assert peak[1] - peak[0] <= 100, peak


@pytest.fixture
def trained_under_noise(monkeypatch: pytest.MonkeyPatch) -> str:
    """A shipped model whose card names the noise that it was trained behind."""
    from besiege.defenses import defended

    monkeypatch.setattr(
        defended,
        "layers_of",
        lambda text: "bits(depth=5)+gaussian_noise(sigma=0.2)" if text == BASE else None,
    )
    return BASE


def test_noise_that_a_model_was_trained_with_is_replaced(trained_under_noise: str) -> None:
    """What is smoothed is the network: under its own noise as well, it would be another vote."""
    plain = load(trained_under_noise)
    assert plain.stochastic and plain.name == BASE
    victim = load(f"{trained_under_noise}+smoothed(sigma=0.3, draws=50)")
    assert isinstance(victim, Smoothed)
    assert victim.name == f"{BASE}+smoothed(sigma=0.3, draws=50)"
    assert [type(layer) for layer in layers_inside(victim.noisy)] == [GaussianNoise, BitDepth]
    images, ids = DATA.images[:4], DATA.ids[:4]
    by_hand = Smoothed(Defended(_network(), BitDepth(5)), 0.3, 50)
    dice = Dice.throw(0, ids)
    assert torch.equal(victim(images, dice), by_hand(images, dice))
    # The same model as an object, and noise that is written beside it.
    assert torch.equal(Smoothed(plain, 0.3, 50)(images, dice), by_hand(images, dice))
    with pytest.raises(InputError, match="trained with is replaced"):
        load(f"{trained_under_noise}+gaussian_noise(sigma=0.1)+smoothed")
    with pytest.raises(InputError, match="has the layer gaussian_noise"):
        Smoothed(Defended(plain, GaussianNoise(0.1)))


def test_layers_before_a_model_that_was_trained_with_noise_stay(trained_under_noise: str) -> None:
    victim = load(f"{trained_under_noise}+bits(depth=2)+smoothed(sigma=0.3)")
    assert isinstance(victim, Smoothed)
    assert victim.name == f"{BASE}+bits(depth=2)+smoothed(sigma=0.3)"
    inside = layers_inside(victim.noisy)
    assert inside == [GaussianNoise(0.3), BitDepth(2), BitDepth(5)]
    assert load(victim.name).digest() == victim.digest()


def _network() -> Classifier:
    from besiege.models.sources import load_network

    return load_network(BASE)
