"""The inner attack: with or without a siege, the same images."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from besiege.attacks import parse
from besiege.core.dice import Dice
from besiege.data import Data
from besiege.models import Classifier
from besiege.models.preact import preact_resnet18
from besiege.training import Epoch, fresh, pgd_at, train
from besiege.training.inner import Inner, plain

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def victim(device: str = "cpu") -> Classifier:
    net = fresh(lambda: preact_resnet18(width=4), 0)
    for part in net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_var.fill_(0.3)  # type: ignore[union-attr]  # not the values it starts with
    return Classifier(net.to(device), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def batch(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, Dice]:
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(32, 3, 16, 16, generator=draws)
    y = torch.randint(10, (32,), generator=draws)
    return x.to(device), y.to(device), Dice.throw(4, torch.arange(32, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "attack",
    [
        "pgd(steps=7, schedule=constant(0.25))",
        "pgd(steps=3)",
        "bim(steps=4, schedule=spread(2))",
        "fgsm",
    ],
)
def test_the_direct_climb_makes_the_images_of_the_siege(attack: str, device: str) -> None:
    plan = replace(pgd_at, attack=parse(attack), ramp=2)
    model, (x, y, dice) = victim(device), batch(device)
    made = {}
    for direct in (False, True):
        inner = Inner(model, plan, direct, nullcontext)
        made[direct] = [inner(x, y, dice, epoch) for epoch in (1, 2, 3)]
    for one, other in zip(made[False], made[True], strict=True):
        assert torch.equal(one, other) or device == "cuda"
        assert (one == other).double().mean() > 0.999  # a GPU rounds as it likes
        assert float((other - x).abs().max()) <= 8 / 255 * (1 + 1e-6)
    # The budget is whole from the second epoch on: only what is drawn can differ then.
    assert torch.equal(made[True][1], made[True][2]) != attack.startswith("pgd")
    assert not torch.equal(made[True][0], x)


def test_only_plain_climbs_are_made_without_a_siege() -> None:
    threat = pgd_at.threat
    assert threat is not None
    assert plain(parse("pgd(steps=10)"), threat)
    for other in (
        "mim",
        "dim",
        "pgd(restarts=2)",
        "pgd(loss=margin)",
        "pgd(start=signs(0.5))",
        "llc",
        "minimal(pgd)",
    ):
        assert not plain(parse(other), threat), other
    for text in ("l2:0.5", "linf:0.1 targeted:random"):
        assert not plain(parse("pgd"), type(threat).parse(text))


@pytest.mark.parametrize("direct", [False, True])
def test_the_model_is_left_as_it_was(direct: bool) -> None:
    model, (x, y, dice) = victim(), batch()
    model.module.train()
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    kept = x.clone()
    Inner(model, pgd_at, direct, nullcontext)(x, y, dice, 5)
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.module.parameters())
    assert all(part.training for part in model.module.modules()) and torch.equal(x, kept)


@pytest.mark.gpu
def test_a_captured_climb_sees_new_weights_and_a_stubborn_model_is_not_captured() -> None:
    model, (x, y, dice) = victim("cuda"), batch("cuda")
    inner = Inner(model, pgd_at, True, nullcontext)
    first = inner(x, y, dice, 20)
    with torch.no_grad():
        for p in model.module.parameters():
            p.mul_(-0.7)
    second = inner(x, y, dice, 20)
    anew = Inner(model, pgd_at, False, nullcontext)(x, y, dice, 20)
    assert (second == anew).double().mean() > 0.999 and not torch.equal(first, second)

    class Waits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = model.module

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.inside(image)
            return answer if float(answer.detach().sum()) < 1e9 else -answer

    stubborn = Inner(Classifier(Waits(), mean=model.mean, std=model.std), pgd_at, True, nullcontext)
    for _ in range(2):
        assert (stubborn(x, y, dice, 20) == anew).double().mean() > 0.999


@pytest.mark.gpu
def test_training_on_a_gpu_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    x, y, _ = batch()
    data = Data("made", "train", x, y, torch.arange(32), 10, tuple("0123456789"))
    plan = replace(pgd_at, epochs=4, batch=8, average=0.9, held_out=8, precision="bfloat16")
    path, models = tmp_path / "c", [victim(), victim()]

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(victim(), data, plan, device="cuda", checkpoint=path, watch=stop)
    told: list[Epoch] = []
    history = train(models[0], data, plan, device="cuda", checkpoint=path, watch=told.append)
    assert [epoch.number for epoch in told] == [3, 4] and len(history) == 4
    assert train(models[1], data, plan, device="cuda", checkpoint=path) == history
    states = [model.module.state_dict().values() for model in models]
    assert all(torch.equal(a, b) and a.is_cuda for a, b in zip(*states, strict=True))
    assert all(p.is_contiguous() for p in models[0].module.parameters())
