"""Training: the loop learns, repeats, leaves the world alone, and PGD-AT makes models robust."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import besiege
from besiege.core.errors import UnknownNameError
from besiege.models import ARCHITECTURES, Classifier
from besiege.models.sources import ZOO
from besiege.training import Recipe, fresh, natural, pgd_at, train


@pytest.fixture(scope="module")
def data() -> besiege.data.Data:
    return besiege.data.load("digits", "train", count=300)


def small() -> nn.Module:
    return fresh(ARCHITECTURES["digits_mlp"], 3)


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.state_dict().values()]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(weights(a), weights(b), strict=True))


def test_natural_training_learns_the_digits(data: besiege.data.Data) -> None:
    net = small()
    history = train(net, data, replace(natural, epochs=15, rate=5e-3))
    assert [epoch.number for epoch in history] == list(range(1, 16))
    assert history[-1].loss < 0.3 * history[0].loss and history[-1].accuracy > 0.9


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    data: besiege.data.Data,
) -> None:
    recipe = replace(pgd_at, epochs=2).within("linf:0.1")
    nets = [small() for _ in range(3)]
    for net, seed in zip(nets, (5, 5, 6), strict=True):
        train(net, data, recipe, seed=seed)
    assert same(nets[0], nets[1]) and not same(nets[0], nets[2])


def test_a_budget_of_nothing_trains_as_nature_does(data: besiege.data.Data) -> None:
    one, two = small(), small()
    train(one, data, replace(natural, epochs=2))
    # One image a time is padded in neither: both see exactly the clean images.
    train(two, data, replace(pgd_at, epochs=2).within("linf:0"))
    assert same(one, two)


def test_adversarial_images_stay_within_the_budget(
    data: besiege.data.Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    from besiege.training import loop

    seen: list[tuple[float, float, float]] = []
    real = loop._adversarial

    def watched(victim, plan, x, y, dice, epoch):  # type: ignore[no-untyped-def]
        made = real(victim, plan, x, y, dice, epoch)
        seen.append((float((made - x).abs().max()), float(made.min()), float(made.max())))
        return made

    monkeypatch.setattr(loop, "_adversarial", watched)
    train(small(), data, replace(pgd_at, epochs=2, ramp=2).within("linf:0.1"))
    largest = [s[0] for s in seen]
    half = len(seen) // 2
    assert max(largest[:half]) <= 0.05 * (1 + 1e-6) < max(largest) <= 0.1 * (1 + 1e-6)
    assert min(s[1] for s in seen) >= 0 and max(s[2] for s in seen) <= 1


def test_the_world_is_left_as_it_was(data: besiege.data.Data) -> None:
    net = small().eval()
    torch.manual_seed(11)
    state = torch.get_rng_state()
    images = data.images.clone()
    fresh(ARCHITECTURES["digits_cnn"], 1)
    train(net, data, replace(pgd_at, epochs=1).within("linf:0.1"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(data.images, images)
    assert not net.training and all(p.requires_grad and p.grad is None for p in net.parameters())


def test_a_classifier_brings_its_normalisation(data: besiege.data.Data) -> None:
    inside, outside = small(), small()
    recipe = replace(natural, epochs=2)
    train(Classifier(inside, mean=0.3, std=0.5), data, recipe)
    train(outside, replace(data, images=(data.images - 0.3) / 0.5), recipe)
    assert same(inside, outside) and not same(inside, small())


def test_pgd_training_makes_a_net_robust_against_an_independent_pgd() -> None:
    train_set = besiege.data.load("digits", "train", count=700)
    test_set = besiege.data.load("digits", count=150)
    robust = {}
    for recipe in (natural, pgd_at.within("linf:0.15")):
        net = fresh(ARCHITECTURES["digits_cnn"], 0)
        train(net, train_set, replace(recipe, epochs=16, ramp=min(recipe.ramp, 6)))
        x, y = test_set.images, test_set.labels
        point = x + (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 0.5) * 0.3
        for _ in range(20):
            point = point.clamp(0, 1).detach().requires_grad_(True)
            (g,) = torch.autograd.grad(nn.functional.cross_entropy(net(point), y), point)
            point = (x + (point.detach() + 0.03 * g.sign() - x).clamp(-0.15, 0.15)).clamp(0, 1)
        robust[recipe.name] = float((net(point).argmax(1) == y).double().mean())
    assert robust["pgd-at"] > robust["natural"] + 0.3


def test_unknown_recipes_and_half_recipes_are_refused(data: besiege.data.Data) -> None:
    with pytest.raises(UnknownNameError, match="pgd-at"):
        train(small(), data, "pgd_at")
    with pytest.raises(ValueError, match="both"):
        Recipe("half", attack=pgd_at.attack)
    with pytest.raises(ValueError, match="budget"):
        pgd_at.within("linf")


@pytest.mark.parametrize("name", ["digits-natural", "digits-pgd-at"])
def test_the_shipped_models_are_what_their_cards_say(name: str) -> None:
    card = json.loads((ZOO / f"{name}.json").read_text())["accuracy"]
    data = besiege.data.load("digits")
    threat = "linf:0.15"
    verdicts = besiege.attack(
        "pgd(steps=20)", f"zoo:{name}", data.images, data.labels, ids=data.ids, threat=threat
    ).verdicts
    for text, right in (("clean", verdicts.correct), (f"pgd(steps=20) {threat}", verdicts.robust)):
        # Another CPU may round a row or two to the other side.
        stated = float(card[text].split()[0])
        assert abs(100 * float(right.double().mean()) - stated) <= 0.6
