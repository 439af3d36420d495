"""Training: the loop learns, repeats, leaves the world alone, and PGD-AT makes models robust."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import besiege
from besiege.core.errors import InputError, TrainingError, UnknownNameError, VictimError
from besiege.models import ARCHITECTURES, Classifier
from besiege.models.catalogue import ZOO
from besiege.training import Recipe, epochs, fresh, natural, pgd_at, train
from besiege.training.averaging import Average
from besiege.training.epochs import Training
from besiege.training.losses import CrossEntropy


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
    assert history[-1].loss < 0.3 * history[0].loss and (history[-1].accuracy or 0) > 0.9


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    data: besiege.data.Data,
) -> None:
    recipe = replace(pgd_at, epochs=2).within("linf:0.1")
    nets = [small() for _ in range(3)]
    for net, seed in zip(nets, (5, 5, 6), strict=True):
        train(net, data, recipe, seed=seed)
    assert same(nets[0], nets[1]) and not same(nets[0], nets[2])


def test_a_budget_of_next_to_nothing_trains_as_nature_does(data: besiege.data.Data) -> None:
    one, two = small(), small()
    # So little changes no pixel but those that are 0. One image a time is padded in neither: both
    # see exactly the clean images.
    data = replace(data, images=data.images.clamp_min(0.1))
    train(one, data, replace(natural, epochs=2))
    train(two, data, replace(pgd_at, epochs=2).within("linf:1e-37"))
    assert same(one, two)


def test_adversarial_images_stay_within_the_budget(
    data: besiege.data.Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    from besiege.training.inner import Inner

    seen: list[tuple[float, float, float]] = []
    real = Inner.__call__

    def watched(self, victim, x, y, dice, epoch):  # type: ignore[no-untyped-def]
        made = real(self, victim, x, y, dice, epoch)
        seen.append((float((made - x).abs().max()), float(made.min()), float(made.max())))
        return made

    monkeypatch.setattr(Inner, "__call__", watched)
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


@pytest.mark.parametrize(
    ("how", "eps"), [(replace(natural, epochs=2, crop=1), 0.0), (replace(pgd_at, epochs=2), 1 / 8)]
)
def test_pixels_are_scaled_to_the_box_of_the_model(
    data: besiege.data.Data, how: Recipe, eps: float
) -> None:
    """A network whose normalisation undoes its box is trained like one without either."""
    plain, boxed = small(), small()
    for net, box in ((plain, (0.0, 1.0)), (boxed, (-1.0, 3.0))):
        width = box[1] - box[0]
        plan = how.within(f"linf:{width * eps}") if eps else how
        train(Classifier(net, mean=box[0], std=width, box=box), data, plan)
    assert not same(plain, small())
    for one, other in zip(weights(plain), weights(boxed), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_images_in_the_box_already_are_taken_as_they_are(data: besiege.data.Data) -> None:
    nets = small(), small()
    victims = [Classifier(net, mean=-1.0, std=4.0, box=(-1.0, 3.0)) for net in nets]
    train(victims[0], data, replace(natural, epochs=1))
    inside = replace(data, images=4 * data.images - 1)
    train(victims[1], inside, replace(natural, epochs=1), in_box=True)
    assert same(*nets)


@pytest.mark.slow  # as the fast tests of the recipes do, with another independent attack
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


def test_the_images_held_out_choose_the_epoch_and_are_not_trained_on(
    data: besiege.data.Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, scores = small(), iter([0.2, 0.6, 0.6, 0.5])
    after: list[nn.Module] = []

    def scored(self, victim, held, attack):  # type: ignore[no-untyped-def]
        others = ~torch.isin(data.ids, held.ids)
        assert len(held) == 50 and torch.equal(self.images, data.images[others])
        after.append(copy.deepcopy(victim.module))
        return 0.9, next(scores)

    monkeypatch.setattr(Training, "_accuracy", scored)
    history = train(net, data, replace(pgd_at, epochs=4, held_out=50).within("linf:0.1"))
    assert [e.robust for e in history] == [0.2, 0.6, 0.6, 0.5]
    # Of equals the later one.
    assert same(net, after[2]) and not same(net, after[1]) and not same(net, after[3])


def test_what_is_said_of_the_images_held_out_is_what_an_attack_finds(
    data: besiege.data.Data,
) -> None:
    net = small()
    recipe = replace(pgd_at, epochs=1, ramp=0, batch=8, held_out=60, rate=3e-3).within("linf:0.03")
    (epoch,) = train(net, data, recipe)
    held = data.subset(60, 0)
    found = besiege.attack(
        "pgd(steps=7)", net, held.images, held.labels, ids=held.ids, threat="linf:0.03"
    ).verdicts
    assert epoch.clean == float(found.correct.double().mean()) > 0.3
    # Other draws and other steps, so a row or two may differ.
    assert epoch.robust == pytest.approx(float(found.robust.double().mean()), abs=0.05)
    assert epoch.robust is not None and epoch.robust < epoch.clean


def test_the_average_is_what_stays(data: besiege.data.Data) -> None:
    plain, averaged = small(), small()
    train(plain, data, replace(natural, epochs=3))
    train(averaged, data, replace(natural, epochs=3, average=0.9))
    # By hand: the same weights after every step, averaged.
    by_hand, mean = small(), small()
    average = Average(by_hand, 0.9)
    real, count = torch.optim.Adam.step, iter(range(1000))

    def stepped(self, closure=None):  # type: ignore[no-untyped-def]
        real(self, closure)
        average.update(next(count))

    torch.optim.Adam.step = stepped  # type: ignore[method-assign]
    try:
        train(by_hand, data, replace(natural, epochs=3))
    finally:
        torch.optim.Adam.step = real  # type: ignore[method-assign]
    mean.load_state_dict(average.module.state_dict())
    assert same(by_hand, plain) and same(averaged, mean) and not same(averaged, plain)


def test_decay_can_spare_biases_and_batch_norm(data: besiege.data.Data) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    recipe = replace(natural, optimiser="sgd", decay=0.1)
    whole = epochs._optimiser(recipe, net).param_groups
    parts = epochs._optimiser(replace(recipe, decayed="weights"), net).param_groups
    assert len(whole) == 1 and whole[0]["weight_decay"] == 0.1
    sizes = [(group["weight_decay"], [p.dim() for p in group["params"]]) for group in parts]
    assert sizes == [(0.1, [4, 2]), (0.0, [1, 1, 1, 1])]


def test_mixed_precision_augmentation_and_whole_batches_learn(data: besiege.data.Data) -> None:
    kinds: set[torch.dtype] = set()
    rows: set[int] = set()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.inside(x.flatten(1))
            kinds.add(answer.dtype)
            if self.training:
                rows.add(len(x))
            return answer

    recipe = replace(
        natural,
        epochs=25,
        rate=1e-2,
        crop=1,
        precision="bfloat16",
        objective=CrossEntropy(smoothing=0.1),
        whole=True,
        schedule="cosine",
        warmup=0.2,
    )
    net = fresh(Net, 0)
    history = train(net, data, recipe)
    assert kinds >= {torch.bfloat16} and rows == {64}
    assert all(p.dtype == torch.float32 for p in net.parameters())
    assert (history[-1].accuracy or 0) > 0.6


def test_modules_that_draw_repeat_and_leave_the_global_state_alone(
    data: besiege.data.Data,
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

    nets = [fresh(make, 0) for _ in range(3)]
    state = torch.get_rng_state()
    for net, seed in zip(nets, (1, 1, 2), strict=True):
        train(net, data, replace(natural, epochs=2), seed=seed)
        torch.rand(3)
    assert same(nets[0], nets[1]) and not same(nets[0], nets[2])
    torch.set_rng_state(state)


def test_every_epoch_sees_images_shifted_anew_and_draws_anew(data: besiege.data.Data) -> None:
    seen: list[tuple[float, float, float]] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                # Corners go with a shift, while the sum of all pixels hardly does.
                seen.append((float(x[..., :2, :].sum()), float(x.sum()), float(torch.rand(()))))
            return self.linear(x.flatten(1))  # type: ignore[no-any-return]

    train(fresh(Net), data, replace(natural, epochs=3, batch=300, crop=2))
    tops, sums, draws = zip(*seen, strict=True)
    assert len(set(tops)) == len(set(draws)) == 3
    still = float(data.images.sum())
    assert all(0.8 * still < total < still for total in sums)


def test_smoothing_is_of_the_training_loss_alone(
    data: besiege.data.Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn import functional

    asked: list[tuple[str, float]] = []
    real = functional.cross_entropy

    def told(*args, **given):  # type: ignore[no-untyped-def]
        asked.append((given.get("reduction", "mean"), given.get("label_smoothing", 0.0)))
        return real(*args, **given)

    monkeypatch.setattr(functional, "cross_entropy", told)
    train(
        small(),
        data,
        replace(pgd_at, epochs=1, objective=CrossEntropy(0.5, 0.2)).within("linf:0.1"),
    )
    assert set(asked) == {("mean", 0.2), ("none", 0.0)}


def test_every_step_is_told(data: besiege.data.Data) -> None:
    told: list[tuple[int, int]] = []
    train(small(), data, replace(natural, epochs=2), tick=lambda *at: told.append(at))
    assert told == [(step, 10) for step in range(1, 11)]


def test_what_cannot_be_trained_is_refused_before_any_work(data: besiege.data.Data) -> None:
    with pytest.raises(InputError, match="no images are left"):
        train(small(), data, replace(natural, held_out=300))
    with pytest.raises(InputError, match=r"labels of digits go from 0 to 9.*has 3 classes"):
        train(fresh(lambda: ARCHITECTURES["digits_mlp"](classes=3)), data, natural)
    with pytest.raises(VictimError, match="could not take images"):
        train(fresh(lambda: ARCHITECTURES["digits_mlp"](size=4)), data, natural)
    with pytest.raises(TrainingError, match=r"diverged.*lower the rate"):
        train(small(), data, replace(natural, optimiser="sgd", rate=1e30, epochs=1))


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
    for figure, right in (("clean", verdicts.correct), ("pgd20", verdicts.robust)):
        # Another CPU may round a row or two to the other side.
        stated = float(card[figure].split()[0])
        assert abs(100 * float(right.double().mean()) - stated) <= 0.6


CIFAR = pytest.mark.skipif(
    not (Path(os.environ.get("BESIEGE_DATA", "")) / "cifar-10-batches-py").is_dir(),
    reason="needs BESIEGE_DATA with CIFAR-10",
)


@CIFAR
@pytest.mark.parametrize("name", ["cifar10-pgd-at", "cifar10-resnet20-pgd-at"])
@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_shipped_cifar_models_are_what_their_cards_say(name: str, count: int) -> None:
    card = json.loads((ZOO / f"{name}.json").read_text())["accuracy"]
    data = besiege.data.load("cifar10", count=count)
    victim = besiege.models.load(f"zoo:{name}")
    assert all(p.dtype == torch.float32 for p in victim.module.parameters())
    stated = float(card["clean"].split()[0])
    with victim.held(), torch.no_grad():
        right = sum(int((victim(s.images).argmax(1) == s.labels).sum()) for s in data.shards(100))
    # Of few images the share is as sure as few images make it: four deviations.
    allowed = 0.06 if count == 10_000 else 400 * (0.25 / count) ** 0.5
    assert abs(100 * right / count - stated) <= allowed


@CIFAR
@pytest.mark.slow  # 100 images: about a minute
@pytest.mark.parametrize("name", ["cifar10-pgd-at", "cifar10-resnet20-pgd-at"])
def test_the_shipped_cifar_models_withstand_pgd(name: str) -> None:
    card = json.loads((ZOO / f"{name}.json").read_text())["accuracy"]
    data = besiege.data.load("cifar10", count=100)
    found = besiege.attack(
        "pgd(steps=20)", f"zoo:{name}", data.images, data.labels, ids=data.ids, threat="linf:8/255"
    ).verdicts
    stated = float(card["pgd20"].split()[0])
    assert abs(100 * float(found.robust.double().mean()) - stated) <= 15
