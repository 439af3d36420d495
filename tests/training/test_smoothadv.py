"""SmoothAdv: noise that stays, the log of a mean, and larger certified radii on digits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.bench.certifying import certified
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError
from besiege.data import Data
from besiege.defenses import Defended, GaussianNoise, Smoothed
from besiege.models import Classifier
from besiege.training import recipe, train
from besiege.training.fitting import build
from besiege.training.objectives import LANGUAGE, Step
from besiege.training.recipes import Recipe

TRAIN = besiege.data.load("digits", "train")
TEST = besiege.data.load("digits", count=200)
SMALL = "smoothadv(epochs=1, batch=32, ramp=0, rate=0.0, objective=smoothadv(noises={}))"


class Sees(nn.Module):
    """A linear network that notes what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        answer: Tensor = self.last(x.flatten(1))
        return answer


def few() -> Data:
    """Images far from the ends of the box."""
    some = TRAIN.take(range(32))
    return replace(some, images=0.35 + 0.3 * some.images)


def watched(noises: int, threat: str, steps: int = 3) -> tuple[Sees, Recipe]:
    """A network that was trained on 32 images for one batch, with a rate of zero."""
    net = Sees()
    attack = f"attack=pgd(steps={steps}, start=origin, schedule=constant(0.5))"
    plan = recipe(f"{SMALL.format(noises)[:-1]}, {attack}, threat='{threat}')", "digits")
    train(net, few(), plan)
    return net, plan


def test_the_noise_of_an_image_is_the_same_in_every_step_and_in_the_loss() -> None:
    net, _ = watched(3, "l2:0.000001")  # perturbations that do not matter
    # The class count is found first; then three steps, each computed again backwards, and the loss.
    batches = [one for one in net.seen if len(one) == 96]
    assert len(batches) >= 4
    assert all(torch.allclose(one, batches[0], atol=1e-4) for one in batches)
    noise = (batches[0] - torch.cat([batches[0][:32]] * 3)).view(3, -1)
    assert float(noise[0].abs().max()) == 0
    assert float(noise[1].std()) == pytest.approx(0.25 * 2**0.5, rel=0.1)
    # No clamp: noisy pixels leave the box.
    assert float(batches[0].max()) > 1.05 and float(batches[0].min()) < -0.05


def test_images_maximise_the_log_of_the_mean_probability() -> None:
    """The crafted images are those of a loop by hand; the mean of logarithms gives others."""
    torch.manual_seed(0)
    net, plan = watched(2, "l2:0.5", steps=2)
    batches = [one for one in net.seen if len(one) == 64]
    noisy, last = batches[0].view(2, 32, 1, 8, 8), batches[-1].view(2, 32, 1, 8, 8)
    # The order of the batch: images differ, and the first step shows them with noise only.
    some = few()
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    images, labels = some.images[order], some.labels[order]
    noise = noisy - images
    assert float(noise.mean().abs()) < 0.02
    found = {}
    for how in ("log of mean", "mean of logs"):
        x = images.clone()
        for _ in range(2):
            point = x.clone().requires_grad_(True)
            each = torch.stack([net.last((point + one).flatten(1)) for one in noise])
            log = each.log_softmax(2)
            mean = log.softmax(2).mean(0).log() if how == "log of mean" else log.mean(0)
            loss = functional.nll_loss(mean, labels, reduction="sum")
            (slope,) = torch.autograd.grad(loss, point)
            step = 0.25 * slope / slope.flatten(1).norm(dim=1)[:, None, None, None]
            away = x + step - images
            length = away.flatten(1).norm(dim=1)[:, None, None, None].clamp_min(1e-12)
            x = (images + away * (0.5 / length).clamp_max(1)).clamp(0, 1)
        found[how] = x
    crafted = (last - noise)[0]
    assert torch.allclose(crafted, found["log of mean"], atol=1e-3)
    assert not torch.allclose(crafted, found["mean of logs"], atol=1e-3)
    assert str(plan.objective) == "smoothadv"


def test_the_loss_is_the_mean_cross_entropy_of_the_noisy_images() -> None:
    draws = torch.Generator().manual_seed(1)
    answers = torch.randn(3, 5, 4, generator=draws)
    x, y = torch.rand(5, 1, 2, 2, generator=draws), torch.tensor([0, 1, 2, 3, 0])
    step = Step(
        x,
        y,
        x + 0.1,
        ask=lambda at: answers[0],
        still=lambda at: answers[0],
        each=lambda at: answers,
        teacher=None,
        dice=Dice.throw(0, torch.arange(5)),
        epoch=1,
        under=lambda at: answers,
    )
    loss = LANGUAGE.read("smoothadv(3)")(step)
    wanted = [-answers[j, i].log_softmax(0)[y[i]] for j in range(3) for i in range(5)]
    assert float(loss) == pytest.approx(float(torch.stack(wanted).mean()), abs=1e-6)
    assert int(step.correct()) == int((answers.softmax(2).mean(0).argmax(1) == y).sum())


@cache
def trained(text: str) -> Classifier:
    plan = recipe(text, "digits")
    assert plan.name.endswith("@digits")
    victim, _ = build("digits_mlp", TRAIN, 0, plan.layers)
    train(victim, TRAIN, plan)
    victim.module.eval()
    return victim


def test_the_preset_of_digits_certifies_more_than_noise_alone() -> None:
    at = {}
    for text in ("gaussian(epochs=10)", "smoothadv(epochs=10)"):
        victim = Smoothed(trained(text), 0.25)
        found = certified(victim, TEST.images, TEST.labels, ids=TEST.ids, n=500)
        at[text.partition("(")[0]] = found.accuracy([0.0, 0.35, 0.5]).value
    assert at["smoothadv"][0] > 0.8
    assert at["smoothadv"][2] > at["gaussian"][2] + 0.05


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smoothadv(objective=smoothadv(noises=0))", "whole number from 1"),
        ("smoothadv(layers=())", "layers=gaussian_noise"),
        ("smoothadv(layers=bits(depth=3))", "layers=gaussian_noise"),
        ("smoothadv(attack=None, threat=None)", "compares clean with adversarial"),
        ("smoothadv(sources=('zoo:digits-natural',))", "without sources"),
        ("smoothadv(attack=None, update=replay(2))", "update=plain"),
        ("smoothadv(attack=averaged(pgd, 2))", "new noise in every step"),
        ("smoothadv(attack=apgd(steps=5))", "new noise in every step"),
        ("smoothadv(threat='l2')", "no budget"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    def run() -> Any:
        return train(build("digits_mlp", TRAIN)[0], TRAIN.take(range(64)), recipe(text, "digits"))

    with pytest.raises((BesiegeError, ValueError), match=said):
        run()


def test_the_shipped_settings() -> None:
    for name in ("smoothadv", "smoothadv@digits", "smoothadv@mnist", "smoothadv@cifar10"):
        plan = recipe(name)
        attack: Any = plan.attack
        assert plan.threat is not None and str(plan.threat.norm) == "l2"
        assert attack.schedule.step * attack.steps == 2 and plan.early is None
        assert plan.layers == (GaussianNoise(0.25),) and recipe(str(plan)) == plan


def test_noise_is_kept_behind_a_victim_with_layers_of_its_own() -> None:
    victim = Defended(Classifier(Sees()), GaussianNoise(0.5))
    plan = recipe(SMALL.format(2), "digits", layers=())
    history = train(victim, TRAIN.take(range(32)), plan)
    assert history[-1].accuracy is not None
