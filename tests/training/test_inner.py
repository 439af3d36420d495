"""The inner attack: with or without a siege, the same images."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from besiege.attacks import parse
from besiege.attacks.losses import CrossEntropy
from besiege.attacks.pieces import Uniform
from besiege.core.answer import Aim
from besiege.core.ball import ball, distances
from besiege.core.dice import Dice
from besiege.core.threat import Linf
from besiege.data import Data
from besiege.models import Classifier
from besiege.models.preact import preact_resnet18
from besiege.training import Epoch, fresh, pgd_at, recipe, train
from besiege.training.inner import Inner, _filled, plain
from besiege.training.radii import HalfNormal

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
    ("attack", "threat"),
    [
        ("pgd(steps=7, schedule=constant(0.25))", "linf:8/255"),
        ("pgd(steps=3)", "linf:8/255"),
        ("bim(steps=4, schedule=spread(2))", "linf:8/255"),
        ("fgsm", "linf:8/255"),
        ("llc", "linf:8/255"),
        ("rfgsm", "linf:8/255"),
        ("pgd(steps=3, loss=margin)", "linf:8/255"),
        ("pgd(steps=3, loss=divergence, start=beside(0.001))", "linf:8/255"),
        ("pgd(steps=3)", "linf:8/255 targeted:least-likely"),
        ("pgd(steps=3)", "linf:8/255 targeted:second"),
        ("pgd(steps=3)", "linf:8/255 targeted:random"),
        ("pgd(steps=3, schedule=constant(0.5))", "l2:0.5"),
        ("pgd(steps=3, loss=margin, start=sphere_start)", "l2:0.5"),
        ("pgd(steps=3)", "l1:5"),
    ],
)
@pytest.mark.parametrize("radius", ["whole", "half_normal"])
def test_the_direct_climb_makes_the_images_of_the_siege(
    attack: str, threat: str, radius: str, device: str
) -> None:
    plan = recipe("pgd-at", attack=attack, threat=threat, ramp=2)
    if radius == "half_normal":
        assert plan.threat is not None
        plan = replace(plan, radius=HalfNormal(plan.threat.radius / 2, plan.threat.radius))
    model, (x, y, dice) = victim(device), batch(device)
    model.classes = 10
    made = {}
    for direct in (False, True):
        inner = Inner(plan, nullcontext, direct)
        made[direct] = [inner(model, x, y, dice, epoch) for epoch in (1, 2, 3)]
    assert plan.threat is not None
    for number, (one, other) in enumerate(zip(made[False], made[True], strict=True), 1):
        assert torch.equal(one, other) or device == "cuda"
        assert (one == other).double().mean() > 0.999  # a GPU rounds as it likes
        most = plan.radii_at(number, dice.of("epoch", number))
        assert bool((distances(other - x, plan.threat.norm) <= most * (1 + 1e-5)).all())
    # The budget is whole from the second epoch on: only what is drawn can differ then.
    draws = any(word in attack for word in ("pgd", "rfgsm")) or radius == "half_normal"
    assert torch.equal(made[True][1], made[True][2]) != draws
    assert not torch.equal(made[True][0], x)


@pytest.mark.parametrize(
    ("attack", "steps", "share"),
    [
        ("fgsm", 1, 1.0),
        ("llc", 1, 1.0),
        ("fgsm(start=uniform, schedule=constant(1.25))", 1, 1.25),
        ("rfgsm(start=signs(0.25), schedule=constant(0.75))", 1, 0.75),
        ("pgd(steps=5, schedule=constant(0.25))", 5, 0.25),
        ("pgd(steps=5, schedule=constant(0.25), loss=divergence, start=beside)", 5, 0.25),
    ],
)
@pytest.mark.parametrize("radius", ["whole", "half_normal"])
def test_images_are_those_of_a_loop_by_hand(
    attack: str, steps: int, share: float, radius: str
) -> None:
    """In linf, from the papers: signs of gradients, the ball of each image, then the box."""
    plan = recipe("pgd-at", attack=attack, radius=radius, ramp=0, threat="linf:16/255")
    model, (x, y, dice) = victim(), batch()
    eps = plan.radii_at(1, dice.of("epoch", 1)).view(-1, 1, 1, 1)
    assert (len(set(eps.flatten().tolist())) == 1) == (radius == "whole")
    with model.held():
        made = Inner(plan, nullcontext)(model, x, y, dice, 1)
        clean = model(x).detach()
        around = ball(Linf, x, eps.flatten(), (0.0, 1.0))
        chosen: Any = plan.attack
        point = chosen.start.point(around, dice.of("epoch", 1).of("restart", 0))
        if isinstance(chosen.start, Uniform):
            inside = (x > 0.1) & (x < 0.9)
            spread = ((point - x) / eps)[inside]  # uniform in the whole ball
            assert float(spread.abs().mean()) == pytest.approx(0.5, abs=0.02)
        for _ in range(steps):
            point = point.detach().requires_grad_(True)
            logs = model(point).log_softmax(1)
            if attack == "llc":
                others = clean.scatter(1, y[:, None], torch.inf)
                loss = logs.gather(1, others.argmin(1)[:, None]).sum()
            elif "divergence" in attack:
                loss = (clean.softmax(1) * (clean.log_softmax(1) - logs)).sum()
            else:
                loss = -logs.gather(1, y[:, None]).sum()
            (slope,) = torch.autograd.grad(loss, point)
            point = x + (point.detach() + share * eps * slope.sign() - x).clamp(-eps, eps)
            point = point.clamp(0, 1)
    # Gradients round differently, so that a sign of a gradient near zero may differ.
    assert ((made - point).abs() < 1e-6).double().mean() > 0.96


@pytest.mark.parametrize("goal", ["least-likely", "second", "class=3"])
@pytest.mark.parametrize("direct", [False, True])
def test_targets_are_the_classes_that_the_threat_names(goal: str, direct: bool) -> None:
    plan = recipe("pgd-at", attack="fgsm", ramp=0, threat=f"linf:4/255 targeted:{goal}")
    model, (x, y, dice) = victim(), batch()
    made = Inner(plan, nullcontext, direct)(model, x, y, dice, 1)
    with model.held():
        point = x.clone().requires_grad_(True)
        logits = model(point)
        others = logits.detach().clone()
        others[range(len(y)), y] = -torch.inf
        target = {
            "least-likely": others.masked_fill(others.isinf(), torch.inf).argmin(1),
            "second": others.argmax(1),  # the likeliest of the wrong classes
            "class=3": torch.full_like(y, 3),
        }[goal]
        (slope,) = torch.autograd.grad(
            logits.log_softmax(1).gather(1, target[:, None]).sum(), point
        )
    wanted = (x + 4 / 255 * slope.sign()).clamp(0, 1)
    rows = y != target
    assert ((made - wanted).abs() < 1e-6)[rows].double().mean() > 0.99


def test_a_least_likely_step_raises_that_class_and_radii_differ_by_row() -> None:
    model, (x, y, dice) = victim(), batch()
    plan = recipe("nat", ramp=0)
    made = Inner(plan, nullcontext)(model, x, y, dice, 1)
    radii = plan.radii_at(1, dice.of("epoch", 1))
    assert torch.allclose(
        distances(made - x, Linf), radii.double(), rtol=1e-4
    )  # one step to the border
    with model.held(), torch.no_grad():
        before, after = model(x).softmax(1), model(made).softmax(1)
    least = before.scatter(1, y[:, None], 2.0).argmin(1)[:, None]
    assert (after.gather(1, least) > before.gather(1, least)).double().mean() > 0.9
    leaving = Inner(replace(plan, attack=parse("fgsm")), nullcontext)(model, x, y, dice, 1)
    assert not torch.equal(leaving, made)


def test_random_targets_are_every_class_but_the_label() -> None:
    plan = recipe("pgd-at", attack="fgsm", threat="linf:8/255 targeted:random", ramp=0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 10))
    model = Classifier(net, classes=10)
    x, y = torch.full((900, 3, 1, 1), 0.5), torch.arange(900) % 3
    asked: list[torch.Tensor] = []
    attack: Any = plan.attack

    class Watched(CrossEntropy):
        def __call__(self, logits: torch.Tensor, aim: Aim) -> torch.Tensor:
            assert aim.targets is not None
            asked.append((aim.targets - aim.labels) % 10)
            return super().__call__(logits, aim)

    plan = replace(plan, attack=replace(attack, loss=Watched()))
    Inner(plan, nullcontext)(model, x, y, Dice.throw(4, torch.arange(900)), 1)
    offsets = asked[-1][:900].bincount(minlength=10)
    assert int(offsets[0]) == 0 and int(offsets[1:].min()) > 60


def test_the_divergence_needs_another_start_than_the_image() -> None:
    model, (x, y, dice) = victim(), batch()
    for start, moves in (("origin", False), ("beside", True)):
        attack = f"pgd(steps=2, loss=divergence, start={start})"
        made = Inner(recipe("trades", attack=attack, ramp=0), nullcontext)(model, x, y, dice, 1)
        # At the image itself the gradient is zero but for rounding: few pixels move.
        assert ((made - x).abs() > 0.02).double().mean() > 0.5 or not moves
    assert recipe("trades").attack.start.share == 0.001  # type: ignore[union-attr]


def test_labels_may_be_those_that_the_model_predicts() -> None:
    model, (x, y, dice) = victim(), batch()
    plan = replace(pgd_at, attack=parse("fgsm"), ramp=0)
    with model.held(), torch.no_grad():
        predicted = model(x).argmax(1)
    assert not torch.equal(predicted, y)
    own = Inner(replace(plan, away_from="prediction"), nullcontext)(model, x, y, dice, 1)
    assert torch.equal(own, Inner(plan, nullcontext)(model, x, predicted, dice, 1))
    assert not torch.equal(own, Inner(plan, nullcontext)(model, x, y, dice, 1))


def test_batch_norm_is_in_the_mode_that_the_recipe_declares() -> None:
    made = {}
    for crafting in ("eval", "train"):
        model, (x, y, dice) = victim(), batch()
        model.module.train()
        before = {k: v.clone() for k, v in model.module.named_buffers()}
        plan = replace(pgd_at, crafting=crafting, ramp=0)
        made[crafting] = Inner(plan, nullcontext)(model, x, y, dice, 1)
        moved = any(not torch.equal(v, before[k]) for k, v in model.module.named_buffers())
        assert moved == (crafting == "train")
        assert all(part.training for part in model.module.modules())
        assert all(p.requires_grad and p.grad is None for p in model.module.parameters())
    assert not torch.equal(made["eval"], made["train"])


@pytest.mark.parametrize("present", [(), (4,), (5,), (4, 5)])
def test_captured_arguments_are_filled_in_their_order(present: tuple[int, ...]) -> None:
    given = tuple(torch.full((2,), float(n)) if n < 4 or n in present else None for n in range(6))
    held = tuple(None if one is None else one + 10 for one in given)
    filled = _filled(given, tuple(one for one in held if one is not None))  # type: ignore[arg-type]
    for expected, found in zip(held, filled, strict=True):
        assert (expected is None) == (found is None)
        assert expected is None or torch.equal(expected, found)  # type: ignore[arg-type]


def test_only_plain_climbs_are_made_without_a_siege() -> None:
    for text in ("pgd(steps=10)", "pgd(loss=margin)", "llc", "rfgsm", "pgd(start=beside(0.01))"):
        assert plain(parse(text)), text
    for text in ("mim", "dim", "pgd(restarts=2)", "pgd(loss=dlr)", "minimal(pgd)", "fmn", "apgd"):
        assert not plain(parse(text)), text


@pytest.mark.parametrize("direct", [False, True])
def test_the_model_is_left_as_it_was(direct: bool) -> None:
    model, (x, y, dice) = victim(), batch()
    model.module.train()
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    kept = x.clone()
    Inner(pgd_at, nullcontext, direct)(model, x, y, dice, 5)
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.module.parameters())
    assert all(part.training for part in model.module.modules()) and torch.equal(x, kept)


@pytest.mark.gpu
def test_a_captured_climb_sees_new_weights_and_a_stubborn_model_is_not_captured() -> None:
    model, (x, y, dice) = victim("cuda"), batch("cuda")
    inner = Inner(pgd_at, nullcontext)
    first = inner(model, x, y, dice, 20)
    with torch.no_grad():
        for p in model.module.parameters():
            p.mul_(-0.7)
    second = inner(model, x, y, dice, 20)
    anew = Inner(pgd_at, nullcontext, False)(model, x, y, dice, 20)
    assert (second == anew).double().mean() > 0.999 and not torch.equal(first, second)

    class Waits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = model.module

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.inside(image)
            return answer if float(answer.detach().sum()) < 1e9 else -answer

    stubborn = Classifier(Waits(), mean=model.mean, std=model.std)
    waiting = Inner(pgd_at, nullcontext)
    for _ in range(2):
        assert (waiting(stubborn, x, y, dice, 20) == anew).double().mean() > 0.999


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
