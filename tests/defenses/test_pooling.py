"""Pooled answers: against plain loops over draws, in any batch, with bounded memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.bench import estimate
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError, StochasticError, VictimError
from besiege.core.victim import Victim
from besiege.defenses import Defended, GaussianNoise, Jitter, Pooled, load
from besiege.models import Classifier
from besiege.models.drawing import Noise
from besiege.report.terminal.attacks import legend
from besiege.testing.victims import module_of

BASE = "zoo:digits-natural+resize_pad"
DATA = besiege.data.load("digits", "test", count=24)


def one_by_one(victim: Victim, x: Tensor, dice: Dice, draws: int) -> Tensor:
    """The logits of every draw, ``[draws, rows, classes]``."""
    return torch.stack([victim(x, dice.of("draw", number)) for number in range(draws)])


@pytest.mark.parametrize("of", ["logits", "probabilities", "votes"])
def test_a_pooled_answer_is_that_of_a_plain_loop(of: str) -> None:
    victim, dice = load(f"{BASE}+pooled(draws=7, of={of!r})"), Dice.throw(3, DATA.ids)
    with victim.held(), torch.no_grad():
        made = victim(DATA.images, dice)
        each = one_by_one(load(BASE), DATA.images, dice, 7)
    if of == "logits":
        wanted = each.mean(0)
    elif of == "probabilities":
        wanted = each.softmax(2).mean(0).log()
    else:
        votes = torch.zeros_like(made)
        for draw in each:
            votes[torch.arange(24), draw.argmax(1)] += 1
        likely = each.softmax(2).mean(0)
        wanted = ((votes + 0.5 * likely) / 7.5).log()
        top = votes.amax(1, keepdim=True)
        assert bool((votes.gather(1, made.argmax(1, keepdim=True)) == top).all())
    assert torch.allclose(made, wanted, atol=2e-5)


def test_costs_say_how_many_passes_an_answer_takes() -> None:
    asked: dict[str, Any] = {"threat": "linf:0.1", "count": 4, "attacks": "pgd(steps=2)"}
    text = f"{BASE}+pooled(draws=5)"
    assert estimate(text, "digits", **asked).passes == 5
    found = besiege.evaluate(text, "digits", **asked, examine="none", curve=False)
    assert found.figures.model.passes == 5
    assert "takes 5 passes of the network" in legend([found.figures], 80)
    assert "takes 5 passes of its network" in " ".join(found.page().read_text("utf-8").split())
    bare = besiege.evaluate("zoo:digits-natural", "digits", **asked, examine="none", curve=False)
    assert "of the network" not in legend([bare.figures], 80)


def test_ties_of_votes_are_decided_by_probability_and_not_by_the_number_of_a_class() -> None:
    class Torn(Victim):
        stochastic = True
        classes = 3

        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            assert dice is not None
            even = (dice.key % 2 == 0)[:, None]
            # One vote for class 0 by little, or one for class 2 by much.
            return torch.where(even, torch.tensor([[0.2, 0.0, 0.1]]), torch.tensor([[0.0, 0.0, 5]]))

    pooled = Pooled(Torn(), 2, "votes")
    dice = Dice.throw(0, torch.arange(64))
    answer = pooled(torch.zeros(64, 1, 2, 2), dice)
    even = torch.stack([dice.of("draw", k).key % 2 == 0 for k in range(2)]).sum(0)
    assert set(answer[even == 1].argmax(1).tolist()) == {2}
    assert set(answer[even == 2].argmax(1).tolist()) == {0}


@pytest.mark.parametrize("of", ["logits", "probabilities", "votes"])
def test_gradients_are_those_of_the_pooled_answer(of: str) -> None:
    victim, dice = load(f"{BASE}+pooled(draws=6, of={of!r})"), Dice.throw(3, DATA.ids)
    x = DATA.images.clone().requires_grad_(True)
    other = DATA.images.clone().requires_grad_(True)
    with victim.held():
        answer = victim(x, dice)
        (slope,) = torch.autograd.grad(answer.square().sum(), x)
        each = one_by_one(load(BASE), other, dice, 6)
        plain = each.mean(0) if of == "logits" else each.softmax(2).mean(0).log()
        # Forward a vote, backward the mean probability.
        weight = 2 * (answer.detach() if of == "votes" else plain.detach())
        (wanted,) = torch.autograd.grad((plain * weight).sum(), other)
        with torch.no_grad():
            assert torch.equal(victim(DATA.images, dice), answer.detach())
    assert torch.allclose(slope, wanted, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("of", ["logits", "votes"])
def test_a_row_does_not_depend_on_its_batch(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, dice = load(f"{BASE}+pooled(draws=9, of={of!r})"), Dice.throw(3, DATA.ids)
    with victim.held(), torch.no_grad():
        whole = victim(DATA.images, dice)
        part = victim(DATA.images[8:16], dice.at(torch.arange(8, 16)))
        assert torch.equal(whole[8:16], part)
        monkeypatch.setattr("besiege.defenses.pooling.TOGETHER", 100_000)
        assert torch.equal(victim(DATA.images, dice), whole)
        other = victim(DATA.images, Dice.throw(4, DATA.ids))
    assert not torch.equal(other, whole)


@pytest.mark.parametrize("of", ["probabilities", "votes"])
def test_the_last_bits_of_a_row_do_not_depend_on_its_batch(of: Any) -> None:
    """CPUs compute the last numbers of a tensor by other loops: 8 rows of 10 classes have some."""
    net = Classifier(module_of((1, 8, 8), 10, 0), classes=10)
    victim = Pooled(Defended(net, GaussianNoise(0.5)), 24, of)
    images, dice = DATA.images[:16], Dice.throw(0, torch.arange(16))
    with victim.held(), torch.no_grad():
        whole = victim(images, dice)
        assert torch.equal(victim(images[:8], dice.at(torch.arange(8))), whole[:8])


def test_texts_and_digests() -> None:
    text = "zoo:digits-natural+jitter(radius=0.1)+pooled(draws=50, of='votes')"
    victim = load(text)
    assert str(victim) == text and load(str(victim)).digest() == victim.digest()
    assert victim.passes == 50 and victim.stochastic and victim.bare.name == "zoo:digits-natural"
    others = {
        load(text.replace("50", "51")).digest(),
        load(text.replace("votes", "logits")).digest(),
    }
    assert (
        len(others | {victim.digest(), load("zoo:digits-natural+jitter(radius=0.1)").digest()}) == 4
    )
    assert load("zoo:digits-natural+jitter(0.1)+pooled(50, of='votes')").digest() == victim.digest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zoo:digits-natural+pooled(5)", "not stochastic"),
        (f"{BASE}+pooled(5)+bits", "written last"),
        (f"{BASE}+pooled(5)+pooled(3)", "pooled twice"),
        (f"{BASE}+pooled(0)", "whole number from 1"),
        (f"{BASE}+pooled(5, of='vote')", "'votes' is needed"),
        (f"{BASE}+poled(5)", "did you mean 'pooled'"),
        (f"{BASE}+pooled(number=5)", "has no parameter 'number'"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(BesiegeError, match=said):
        load(text)


def test_pooling_by_hand_is_checked_too() -> None:
    noisy = Defended("zoo:digits-natural", Jitter(0.1))
    with pytest.raises(InputError, match="pooled already"):
        Pooled(Pooled(noisy, 3), 3)
    with pytest.raises(InputError, match="did you mean 'votes'"):
        Pooled(noisy, 3, "vote")  # type: ignore[arg-type]
    with pytest.raises(VictimError, match="given no dice"):
        Pooled(noisy, 3)(DATA.images)
    with pytest.raises(ValueError, match="whole number"):
        Pooled(noisy, 0)


def test_gradients_of_a_pooled_victim_need_no_averaging() -> None:
    """One answer pools several draws already; of a single draw a gradient is refused."""
    some: dict[str, Any] = {"threat": "linf:0.15", "count": 10, "curve": False}
    found = besiege.evaluate(f"{BASE}+pooled(4)", "digits", attacks="pgd(steps=5)", **some)
    assert found.robust.value < found.clean.value
    with pytest.raises(StochasticError, match="averaged"):
        besiege.evaluate(f"{BASE}+pooled(1)", "digits", attacks="pgd(steps=5)", **some)
    # A vote over draws is attacked through its mean probability.
    votes = besiege.evaluate(
        f"{BASE}+pooled(4, of='votes')", "digits", attacks="pgd(steps=10, loss=margin)", **some
    )
    assert votes.robust.value < 0.6


MEMORY = """
import resource, sys, torch
from besiege.core.dice import Dice
from besiege.defenses import load
victim = load("public:cifar10_resnet20+jitter(radius=0.02)" + sys.argv[1])
x = torch.rand(64, 3, 32, 32).requires_grad_(True)
with victim.held():
    (slope,) = torch.autograd.grad(victim(x, Dice.throw(0, torch.arange(64))).sum(), x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_draws() -> None:
    peak = [
        float(subprocess.check_output([sys.executable, "-c", MEMORY, text], text=True))
        for text in ("", "+pooled(draws=60)", "+pooled(draws=1000, of='votes')")
    ]
    assert max(peak[1:]) - peak[0] <= 300, peak
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


def test_a_layer_may_hold_a_network() -> None:
    """It is moved, put to evaluation mode and digested with the victim."""
    from besiege.defenses import Layer

    class Reforms(Layer):
        def __init__(self, net: nn.Module) -> None:
            self.net = net

        @property
        def parts(self) -> tuple[nn.Module]:
            return (self.net,)

        def __str__(self) -> str:
            return "reforms"

        def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
            answer: Tensor = self.net(x)
            return answer.clamp(*box)

    net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Dropout(0.5), nn.BatchNorm2d(1))
    victim = Defended(Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), Reforms(net))
    assert net in victim.parts
    before = victim.digest()
    with victim.held():
        assert not any(part.training for part in net.modules())
        assert not any(p.requires_grad for p in net.parameters())
    assert all(part.training for part in net.modules())
    with torch.no_grad():
        next(net.parameters()).view(-1)[0] += 1e-3
    assert victim.digest() != before


def test_the_suite_adaptive_does_not_average_what_is_pooled() -> None:
    some: dict[str, Any] = {"threat": "linf:0.15", "count": 4, "curve": False, "suite": "adaptive"}
    found = besiege.evaluate(f"{BASE}+pooled(2, of='votes')", "digits", **some)
    assert list(found.by_attack)[:2] == ["oblivious(pgd)", "pgd(steps=100, loss=margin)"]
    assert not any(text.startswith("averaged") for text in found.by_attack)


@pytest.mark.usefixtures("examined")
def test_votes_are_examined_as_a_surrogate_and_pooled_answers_as_averaged() -> None:
    some: dict[str, Any] = {"threat": "linf:0.1", "count": 20, "curve": False}
    found = besiege.evaluate(
        f"{BASE}+pooled(6, of='votes')", "digits", attacks="pgd(steps=10, loss=margin)", **some
    )
    assert not {"W33", "W45"} & {warning.id for warning in found.warnings}
    alone = besiege.evaluate(BASE, "digits", attacks="oblivious(pgd)", **some)
    assert "W33" in {warning.id for warning in alone.warnings}


class Sharp(nn.Module):
    """Logits so large that most probabilities round to zero, of a network that spoils its input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = besiege.models.load("zoo:digits-natural").module

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = 100 * self.net(x)
        x.detach().zero_()
        return answer


@pytest.mark.parametrize("of", ["probabilities", "votes"])
def test_probabilities_that_round_to_zero_have_gradients(of: str) -> None:
    victim = Pooled(Defended(Classifier(Sharp()), Jitter(0.05)), 5, of)  # type: ignore[arg-type]
    dice, x = Dice.throw(0, DATA.ids), DATA.images.clone().requires_grad_(True)
    with victim.held():
        answer = victim(x, dice)
        assert bool(answer.isfinite().all())
        low = answer.scatter(1, DATA.labels[:, None], -torch.inf).amax(1).sum()
        (slope,) = torch.autograd.grad(low, x)
    assert bool(slope.isfinite().all()) and float((slope != 0).double().mean()) > 0.5


def test_a_network_that_overwrites_its_input_leaves_the_images_alone() -> None:
    """Also in a block of one draw, where no copy is needed to repeat the images."""
    victim = Pooled(Classifier(nn.Sequential(Sharp(), Noise(0.1))), 5)
    x = DATA.images.clone()
    with victim.held(), torch.no_grad():
        victim(x, Dice.throw(0, DATA.ids))
    assert torch.equal(x, DATA.images)


def test_gradients_do_not_depend_on_the_batch() -> None:
    victim, dice = load(f"{BASE}+pooled(draws=11)"), Dice.throw(3, DATA.ids)

    def slope(rows: Tensor) -> Tensor:
        x = DATA.images[rows].clone().requires_grad_(True)
        (made,) = torch.autograd.grad(victim(x, dice.at(rows)).square().sum(), x)
        return made

    with victim.held():
        whole = slope(torch.arange(24))
        assert torch.equal(whole[8:16], slope(torch.arange(8, 16)))


def test_layers_in_front_of_a_pooled_victim_draw_once() -> None:
    pooled = load(f"{BASE}+pooled(draws=10)")
    assert Defended(pooled, Jitter(0.4)).draws == 1 and pooled.draws == 10
