"""Networks that draw inside are stochastic victims whose answers repeat."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import StochasticError, VictimError
from besiege.core.oracle import Oracle
from besiege.models import Classifier, load, twin
from besiege.models.drawing import Draws, Noise, drawing, given
from besiege.testing import conform_victim
from besiege.testing.surroundings import changed_in, state_of

DIGITS = besiege.data.load("digits", count=24)
IMAGES = DIGITS.images


def noisy(sigma: float = 0.1) -> Classifier:
    """The natural digits net with noise before both convolutions."""
    first, active, second, *rest = load("zoo:digits-natural").module.children()
    net = nn.Sequential(Noise(sigma), first, active, Noise(sigma), second, *rest)
    return Classifier(net.eval(), classes=10, name="noisy")


def dice(seed: int = 0, ids: Tensor | None = None) -> Dice:
    return Dice.throw(seed, torch.arange(len(IMAGES)) if ids is None else ids)


def test_a_network_that_draws_is_stochastic_and_lawful() -> None:
    assert noisy().stochastic and not load("zoo:digits-natural").stochastic
    conform_victim(noisy(), IMAGES)


def test_answers_repeat_for_any_batch_size_and_order() -> None:
    victim = noisy()
    with torch.no_grad():
        whole = victim(IMAGES, dice())
        assert torch.equal(whole, victim(IMAGES, dice()))
        assert not torch.allclose(whole, victim(IMAGES, dice(1)), atol=1e-2)
        order = torch.randperm(len(IMAGES), generator=torch.Generator().manual_seed(0))
        assert torch.allclose(victim(IMAGES[order], dice(0, order)), whole[order], atol=1e-5)
        few = order[:3]
        assert torch.allclose(victim(IMAGES[few], dice(0, few)), whole[few], atol=1e-5)


def test_without_dice_it_is_refused_in_evaluation_mode_only() -> None:
    victim = noisy()
    with pytest.raises(VictimError, match="'noisy' is stochastic and was given no dice"):
        victim(IMAGES)
    with pytest.raises(VictimError, match=r"no dice.*besiege\.Classifier\(net\)\(x, dice\)"):
        victim.module(IMAGES)
    victim.module.train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        once, again = victim(IMAGES), victim(IMAGES)
        torch.manual_seed(0)
        assert torch.equal(victim(IMAGES), once) and not torch.equal(once, again)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert not torch.equal(victim(IMAGES, dice()), victim(IMAGES, dice()))


def test_noise_has_its_size_and_leaves_its_input_alone() -> None:
    class Recorded(Noise):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = super().forward(x)
            return self.seen

    part = Recorded(0.3)
    victim = Classifier(nn.Sequential(part, nn.Flatten(), nn.Linear(64, 10)).eval())
    x = IMAGES.clone()
    victim(x, dice())
    added = part.seen - IMAGES
    assert torch.equal(x, IMAGES)
    assert abs(float(added.std()) - 0.3) < 0.02 and abs(float(added.mean())) < 0.02
    assert float(part.seen.min()) < 0 and float(part.seen.max()) > 1
    with pytest.raises(ValueError, match="sigma is -1"):
        Noise(-1)


def test_parts_have_streams_of_their_own_and_never_repeat_themselves() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Noise(1.0), Noise(1.0)
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen = [self.one(x) - x, self.other(x) - x, self.one(x) - x]
            return (x + sum(self.seen)).flatten(1)

    net = Both().eval()
    Classifier(net)(IMAGES, dice())
    for first, second in ((0, 1), (0, 2), (1, 2)):
        pair = torch.stack([net.seen[first].flatten(), net.seen[second].flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.1


def test_uniform_draws_come_from_the_dice_too() -> None:
    class Flicker(Draws):
        def forward(self, x: Tensor) -> Tensor:
            return x * (self.uniform(x) < 0.5)

    victim = Classifier(nn.Sequential(Flicker(), nn.Flatten(), nn.Linear(64, 10)).eval())
    assert torch.equal(victim(IMAGES, dice()), victim(IMAGES, dice()))
    assert not torch.equal(victim(IMAGES, dice()), victim(IMAGES, dice(1)))


def test_dice_are_no_part_of_digests_and_copies() -> None:
    victim = noisy()
    digest, state = victim.digest(), state_of(victim.module)
    with given(drawing(victim.module), dice()):
        assert victim.digest() == digest and not changed_in(state, state_of(victim.module))
        copies = copy.deepcopy(victim.module), pickle.loads(pickle.dumps(victim.module))
    for net in copies:
        assert Classifier(net).digest() == digest
        with pytest.raises(VictimError, match="no dice"):
            net(IMAGES)
    assert noisy(0.2).digest() != digest


def test_dice_are_taken_back_after_an_error() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken")

    part = Noise(0.1)
    victim = Classifier(nn.Sequential(part, Failing()).eval())
    with pytest.raises(VictimError, match="broken"):
        victim(IMAGES, dice())
    with pytest.raises(VictimError, match="no dice"):
        part(IMAGES)


def test_features_without_a_row_per_image_are_refused() -> None:
    class Folding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(2 * len(x), -1)

    victim = Classifier(nn.Sequential(Folding(), Noise(0.1)).eval())
    with pytest.raises(VictimError, match="draws for 48 rows, but there are 24 images"):
        victim(IMAGES, dice())


def test_there_is_no_twin_and_no_overwriting() -> None:
    net = nn.Sequential(
        Noise(0.1), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10)
    )
    victim = Classifier(net.eval())
    assert twin(victim, IMAGES) is None
    assert victim.overwrites(IMAGES) == (False, False)


@pytest.mark.usefixtures("examined")
def test_an_evaluation_attacks_the_expectation_and_finds_no_undeclared_randomness() -> None:
    threat = "linf:0.15"
    with pytest.raises(StochasticError, match=r"averaged\(pgd\(steps=5\), 20\)"):
        besiege.evaluate(noisy(), "digits", threat=threat, attacks="pgd(steps=5)", count=8)
    result = besiege.evaluate(
        noisy(), "digits", threat=threat, attacks="averaged(pgd(steps=10), 20)", count=24
    )
    assert result.examination is not None and result.robust is not None
    assert not {finding.id for finding in result.warnings} & {"W14", "W46"}
    assert all(check.outcome != "failed" for check in result.examination.checks)
    assert result.clean.value > 0.8 and result.robust.value < result.clean.value - 0.4


def test_the_suite_rand_runs_on_it() -> None:
    result = besiege.evaluate(
        noisy(), "digits", threat="linf:0.15", suite="rand", count=3, curve=False
    )
    assert result.robust is not None and result.robust.value <= 0.5


def test_queries_are_given_the_dice_of_their_samples() -> None:
    victim = noisy()
    rows = torch.arange(len(IMAGES))
    small, large = (Oracle(victim, batch=size).logits(IMAGES, dice(0, rows)) for size in (8, 64))
    assert torch.equal(small, large)
