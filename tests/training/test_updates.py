"""Updates: replays and perturbed weights against plain loops, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.core.errors import InputError
from besiege.data import Data
from besiege.training import Recipe, fresh, natural, recipe, train
from besiege.training.updates import Perturbed, Replay


@pytest.fixture(scope="module")
def data() -> Data:
    return besiege.data.load("digits", "train", count=96)


def net() -> nn.Sequential:
    return fresh(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )
    )


def mlp() -> nn.Sequential:
    return fresh(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    )


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def close(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def order(data: Data, seed: int, epochs: int, batch: int) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [
        rows
        for _ in range(epochs)
        for rows in torch.split(torch.randperm(len(data), generator=draws), batch)
    ]


def test_free_training_is_the_loop_of_the_paper(data: Data) -> None:
    """One backward for both, a perturbation that persists from batch to batch, a step of eps."""
    plan = recipe(
        "free-at(epochs=2, batch=40, update=replay(m=3), threat='linf:0.1', optimiser='sgd', "
        "rate=0.05, schedule='constant')"
    )
    trained, plain = net(), net()
    train(trained, data, plan)
    plain.train()
    descent = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    delta = torch.zeros(40, 1, 8, 8)
    for rows in order(data, 0, 2, 40):
        x, y = data.images[rows], data.labels[rows]
        for _ in range(3):
            change = delta[: len(x)].clone().requires_grad_(True)
            loss = functional.cross_entropy(plain((x + change).clamp(0, 1)), y)
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            assert change.grad is not None
            delta[: len(x)] = (change.detach() + 0.1 * change.grad.sign()).clamp(-0.1, 0.1)
            descent.step()
    assert float(delta.abs().max()) > 0.09
    assert close(trained, plain) < 1e-5


def test_perturbed_weights_are_the_loop_of_the_paper(data: Data) -> None:
    plan = replace(natural, epochs=2, batch=48, optimiser="sgd", rate=0.05, schedule="constant")
    trained, plain = net(), net()
    train(trained, data, replace(plan, update=Perturbed(0.02)))
    plain.train()
    descent = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for rows in order(data, 0, 2, 48):
        x, y = data.images[rows], data.labels[rows]
        proxy = net()
        proxy.load_state_dict(plain.state_dict())
        proxy.train()
        functional.cross_entropy(proxy(x), y).backward()  # type: ignore[no-untyped-call]
        moves = {}
        for name, weight in proxy.named_parameters():
            if weight.dim() > 1:
                assert weight.grad is not None
                moves[name] = 0.02 * weight.detach().norm() * weight.grad / weight.grad.norm()
        with torch.no_grad():
            for name, weight in plain.named_parameters():
                weight.add_(moves.get(name, 0.0))
        descent.zero_grad()
        functional.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
        descent.step()
        with torch.no_grad():
            for name, weight in plain.named_parameters():
                weight.sub_(moves.get(name, 0.0))
    assert close(trained, plain) < 1e-5
    usual = net()
    train(usual, data, plan)
    assert close(trained, usual) > 1e-3
    late = net()
    train(late, data, replace(plan, update=Perturbed(0.02, after=2)))
    assert same(late, usual)


def test_weights_that_the_loss_does_not_depend_on_stay(data: Data) -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = mlp(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.used(x)
            return answer

    plan = replace(natural, epochs=1, update=Perturbed(0.02))
    alone, inside = mlp(), fresh(Spare)
    before = inside.spare.weight.detach().clone()
    train(alone, data, plan)
    train(inside, data, plan)
    assert same(alone, inside.used) and torch.equal(inside.spare.weight, before)


def test_no_move_is_natural_training(data: Data) -> None:
    plan = replace(natural, epochs=1)
    usual, moved = net(), net()
    train(usual, data, plan)
    train(moved, data, replace(plan, update=Perturbed(0.0)))
    assert same(usual, moved)


@pytest.mark.parametrize("name", ["pgd-at", "nat", "free-at", "fast-at", "trades", "mart", "alp"])
def test_without_a_budget_training_is_natural_bit_for_bit(
    name: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recipe, "share_at", lambda self, epoch: 0.0)
    changes: dict[str, Any] = {"epochs": 2, "objective": "cross_entropy"}
    changes |= {"guard": 0.0, "warmup": 0.0, "schedule": "constant"}
    changes |= {"update": Replay(1)} if name == "free-at" else {}
    changes |= {"radius": "whole"} if name == "nat" else {}
    usual, adversarial = net(), net()
    train(usual, data, replace(natural, epochs=2))
    train(adversarial, data, recipe(name, **changes))
    assert same(usual, adversarial)


@pytest.mark.parametrize("text", ["trades", "pairing(weight=3)"])
def test_terms_that_compare_equal_images_change_nothing(
    text: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recipe, "share_at", lambda self, epoch: 0.0)
    usual, compared = mlp(), mlp()
    train(usual, data, replace(natural, epochs=2))
    train(compared, data, recipe("pgd-at", epochs=2, objective=text))
    assert close(usual, compared) < 1e-6


def test_what_free_training_cannot_do_is_refused() -> None:
    for text, said in (
        ("free-at(threat='l2:0.5')", "linf"),
        ("free-at(attack=pgd)", "crafts its images itself"),
        ("natural(update=replay)", "linf"),
        ("free-at(threat='linf:0.1 targeted:random')", "has a target"),
        ("free-at(radius=half_normal)", "radius .* an attack's images"),
        ("natural(radius=half_normal)", "radius .* an attack's images"),
        ("natural(update=replayed)", "did you mean 'replay'"),
        ("natural(update=replay(m=0))", "whole number"),
    ):
        with pytest.raises((InputError, Exception), match=said):
            recipe(text)
