"""The step of a training: its gradients, and on a GPU its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.data import Data
from besiege.models import Classifier
from besiege.models.joint import joint
from besiege.models.preact import preact_resnet18
from besiege.training import fresh, recipe
from besiege.training.epochs import Training
from besiege.training.losses import CrossEntropy
from besiege.training.objectives import Step
from besiege.training.updates import Batch


def made(count: int = 32) -> Data:
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, 16, 16, generator=draws)
    y = torch.randint(10, (count,), generator=draws)
    return Data("made", "train", x, y, torch.arange(count), 10, tuple("0123456789"))


def training(device: str, text: str, module: Callable[[], nn.Module] | None = None) -> Training:
    net = fresh(module or (lambda: preact_resnet18(width=4)), 0)
    model = Classifier(net.to(device), classes=10)
    plan = recipe(text, batch=16)
    return Training(model, made(), plan, 0, False, layers=plan.layers)


@pytest.mark.parametrize(
    ("text", "compiles"), [("natural", True), ("igr", False), ("deepdefense", False)]
)
def test_what_takes_gradients_of_gradients_is_never_compiled(
    text: str, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[nn.Module] = []

    def watched(module: nn.Module) -> nn.Module:
        asked.append(module)
        return module

    monkeypatch.setattr(torch, "compile", watched)
    work = training("cpu", text)
    Training(work.model, made(), work.plan, 0, True)
    assert asked == ([work.module] if compiles else [])


def first(work: Training) -> tuple[Batch, Tensor]:
    work.module.train()
    batch = next(work._taken(work._batches(), 1, 0, 2))
    return batch, work.craft(batch)


def slopes(work: Training) -> list[Tensor]:
    return [p.grad.clone() for p in work.module.parameters() if p.grad is not None]


def test_the_gradients_are_those_of_the_loss() -> None:
    work = training("cpu", "natural(crop=2, flip=True)")
    batch, crafted = first(work)
    loss, correct = work.slopes(batch, crafted)
    logits = work.module(batch.x)
    usual = functional.cross_entropy(logits, batch.y)
    expected = torch.autograd.grad(usual, list(work.module.parameters()))
    assert torch.equal(loss, usual.detach()) and not loss.requires_grad
    assert int(correct) == int((logits.argmax(1) == batch.y).sum())
    assert all(torch.equal(a, b) for a, b in zip(slopes(work), expected, strict=True))
    work.slopes(batch, crafted)  # gradients of another step do not add up
    assert all(torch.equal(a, b) for a, b in zip(slopes(work), expected, strict=True))


def test_batches_are_the_same_however_many_are_augmented_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = training("cpu", "natural(crop=2, flip=True)")
    batches = [rows[:5] for rows in work._batches()]
    single = list(work._taken(batches, 3, 7, 20))
    monkeypatch.setattr(work, "device", torch.device("cuda"))  # augments many on one call
    several = list(work._taken(batches, 3, 7, 20))
    assert [(batch.number, batch.progress) for batch in several] == [(7, 0.35), (8, 0.4)]
    for one, other in zip(single, several, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
        assert torch.equal(one.dice.key, other.dice.key)


STEPS: dict[str, tuple[str, Callable[[], nn.Module] | None]] = {
    "natural": ("natural", None),
    "adversarial": ("pgd-at", None),
    "trades": ("trades", None),
    "mart": ("mart", None),
    "pairing": ("alp", None),
    "penalty": ("igr", None),
    "centres": ("mmc", None),
    "codes": ("thermometer", lambda: preact_resnet18(width=4, in_channels=48)),
    "noise": ("gaussian", None),
    "members": ("adp", lambda: joint(of="preact_resnet18(width=4)", members=3)),
    "reach": ("deepdefense", None),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_a_captured_step_is_the_eager_one(name: str) -> None:
    text, module = STEPS[name]
    work = training("cuda", text, module)
    assert work.backward.captures
    batch, crafted = first(work)
    before = [b.clone() for b in work.module.buffers()]
    captured = work.slopes(batch, crafted)
    found, moved = slopes(work), [b.clone() for b in work.module.buffers()]
    assert all(graph is not None for graph in work.backward._made.values()), "not captured"
    work.backward.captures = False
    for buffer, value in zip(work.module.buffers(), before, strict=True):
        buffer.copy_(value)
    eager = work.slopes(batch, crafted)
    assert torch.allclose(captured[0], eager[0], rtol=1e-4) and captured[1] == eager[1]
    # The passes before the capture leave no trace in running statistics.
    pairs = zip(moved, work.module.buffers(), strict=True)
    assert all(torch.allclose(a.float(), b.float(), atol=1e-5) for a, b in pairs)
    apart = sum((a - b).square().sum() for a, b in zip(found, slopes(work), strict=True))
    whole = sum(slope.square().sum() for slope in slopes(work))
    assert float(apart / whole) < 1e-4
    with torch.no_grad():  # the graph reads the weights and the images as they are
        for weight in work.module.parameters():
            weight.mul_(0.9)
    work.backward.captures = True
    again = work.slopes(replace(batch, y=(batch.y + 1) % 10), crafted)
    assert not torch.allclose(again[0], captured[0], rtol=1e-3)


@dataclass(frozen=True)
class Counting(CrossEntropy):
    """An objective from outside, whose loss depends on more than tensors."""

    def __call__(self, step: Step) -> Tensor:
        return super().__call__(step) * step.epoch


class Outside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = preact_resnet18(width=4)

    def forward(self, x: Tensor) -> Any:
        return self.inside(x)


@pytest.mark.gpu
def test_what_comes_from_outside_is_not_captured() -> None:
    work = training("cuda", "natural")
    foreign = Training(work.model, made(), replace(work.plan, objective=Counting()), 0, False)
    assert work.backward.captures and not foreign.backward.captures
    assert not training("cuda", "natural", Outside).backward.captures
