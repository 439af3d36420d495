"""Certified training: its loss is above that of every image within the budget, and it proves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.bounds.bounding import Bounding
from besiege.bounds.region import Region
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError
from besiege.core.threat import Linf, Threat
from besiege.models import Classifier
from besiege.training import fresh, recipe, train
from besiege.training.bounded import Around, Bounded, followed, smooth, worst_logits
from besiege.training.fitting import build
from besiege.training.objectives import LANGUAGE, Step

TRAIN = besiege.data.load("digits", "train")
TEST = besiege.data.load("digits", "test", count=200)
EPS = 0.05
THREAT = Threat.parse(f"linf:{EPS}")
METHODS: tuple[Any, ...] = ("ibp", "crown-ibp", "fast-lin")


def _net(seed: int = 0) -> Classifier:
    def made() -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(1, 3, 3, 2, 1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(48, 12), nn.ReLU(), nn.Linear(12, 10)),
        )

    return Classifier(fresh(made, seed), mean=0.3, std=0.4)


def _step(net: Classifier, x: Tensor, y: Tensor, progress: float = 1.0) -> Step:
    graph = followed(net, THREAT, x)

    def around(share: float) -> Around:
        return Around(graph, Region.of(x, EPS * share, Linf, net.box))

    dice = Dice.throw(0, torch.arange(len(x)))
    asked: Any = lambda images: net(images)  # noqa: E731  # the model in its mode
    return Step(x, y, x, asked, asked, asked, None, dice, 1, progress=progress, around=around)


def _some(rows: int = 6) -> tuple[Tensor, Tensor]:
    return TRAIN.images[:rows], TRAIN.labels[:rows]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("progress", [0.3, 1.0])
def test_the_loss_is_above_that_of_every_image_within_the_budget(
    method: Any, progress: float
) -> None:
    """Random points and corners; pixels leave neither the budget nor the box."""
    objective = replace(Bounded(method), natural=0.0, clean=0.0)
    net, (x, y) = _net(), _some()
    loss = float(objective(_step(net, x, y, progress)).detach())
    eps = EPS * objective.beyond * objective.share(progress)
    assert 0 < eps <= EPS * 1.1 + 1e-9
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for place in range(200):
            shift = 2 * torch.rand(x.shape, generator=generator) - 1
            shift = shift.sign() if place % 2 else shift
            seen = functional.cross_entropy(net((x + eps * shift).clamp(0, 1)), y)
            assert float(seen) <= loss + 1e-5
        assert loss > float(functional.cross_entropy(net(x), y))


def test_without_a_budget_all_bounds_are_the_answer() -> None:
    net, (x, y) = _net(), _some()
    usual = float(functional.cross_entropy(net(x), y).detach())
    for method in METHODS:
        step = replace(_step(net, x, y), around=lambda share: _step(net, x, y).around(0.0))  # type: ignore[misc]  # it has one
        loss = Bounded(method, natural=0.0, clean=0.0)(step)
        assert float(loss.detach()) == pytest.approx(usual, abs=1e-4)


def test_the_margins_are_those_of_the_certificates() -> None:
    net, (x, y) = _net(), _some()
    step, bounding = _step(net, x, y), Bounding.of(net, x)
    for method in METHODS:
        objective = Bounded(method, beyond=1.0)
        assert step.around is not None
        found = objective._margins(step.around(1.0), y, 1.0).amin(1)
        # When the budget has grown, crown-ibp trains by intervals.
        known = bounding.margins(x, y, THREAT, "ibp" if method == "crown-ibp" else method)
        assert (found <= known + 1e-5).all()
        if method != "fast-lin":  # of which the certificate takes the better of two
            assert torch.allclose(found, known, atol=1e-5)


def test_crown_ibp_goes_over_from_lines_to_intervals() -> None:
    net, (x, y) = _net(), _some()
    net.module.requires_grad_(False)
    step = _step(net, x, y)
    assert step.around is not None
    around = step.around(1.0)
    objective = Bounded("crown-ibp")
    lines, half, flat = (objective._margins(around, y, share) for share in (0.0, 0.5, 1.0))
    assert torch.allclose(half, 0.5 * (lines + flat), atol=1e-5)
    assert float((lines - flat).abs().max()) > 0.01


def test_worst_logits_keep_the_order_of_the_classes() -> None:
    margins = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    found = worst_logits(margins, torch.tensor([1, 3]))
    assert found.tolist() == [[-1.0, 0.0, 2.0, -3.0], [-4.0, -5.0, 6.0, 0.0]]


def test_the_budget_is_zero_then_grows_smoothly_and_is_whole() -> None:
    objective = Bounded("ibp", calm=0.1, ramp=0.6)
    at = [objective.share(progress / 100) for progress in range(101)]
    assert at[10] == 0 and at[60] == pytest.approx(1) and at[100] == pytest.approx(1)
    assert at == sorted(at)
    # One slope where the curve becomes a line.
    below, above = (
        (smooth(0.25) - smooth(0.25 - 1e-5)) / 1e-5,
        (smooth(0.25 + 1e-5) - smooth(0.25)) / 1e-5,
    )
    assert below == pytest.approx(above, rel=1e-3)
    linear = Bounded("fast-lin", calm=0.0, ramp=0.5, rise="linear", first=0.1)
    assert [linear.share(one) for one in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.1, 0.55, 1, 1])


def test_clean_images_weigh_less_as_the_budget_grows() -> None:
    net, (x, y) = _net(), _some()
    objective = Bounded("ibp", natural=1.0, clean=0.25)
    net.module.requires_grad_(False)
    usual = functional.cross_entropy(net(x), y)
    assert float(objective(_step(net, x, y, 0.0))) == pytest.approx(float(usual), abs=1e-6)
    worst = replace(objective, natural=0.0, clean=0.0)(_step(net, x, y))
    assert float(objective(_step(net, x, y))) == pytest.approx(
        float(0.25 * usual + 0.75 * worst), abs=1e-5
    )


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_the_weights_are_those_of_finite_differences(method: Any) -> None:
    net, (x, y) = _net(), _some(4)
    net.module.double()
    x = x.double()
    objective = Bounded(method, natural=0.0, clean=0.0)
    step = _step(net, x, y, 0.3)
    objective(step).backward()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(1)
    for parameter in net.module.parameters():
        assert parameter.grad is not None
        way = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(way, alpha=sign * 1e-6)
                ends.append(float(objective(_step(net, x, y, 0.3))))
                parameter.sub_(way, alpha=sign * 1e-6)
        slope = (ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx(float((parameter.grad * way).sum()), rel=2e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("ibp(epochs=40)", "ibp"),
        ("crown-ibp(epochs=40)", "ibp"),
        pytest.param("convex(epochs=10)", "fast-lin", marks=pytest.mark.slow),
    ],
)
def test_what_is_trained_on_digits_is_proved(text: str, method: str) -> None:
    """Intervals prove nothing of a natural network of the same size, and lines a fifth."""
    at = {}
    for plan in (recipe("natural(epochs=10)", "digits"), recipe(text, "digits")):
        net, _ = build("digits_mlp", TRAIN, 0, plan.layers)
        assert isinstance(net, Classifier)
        train(net, TRAIN, plan)
        images, labels = TEST.images[:100], TEST.labels[:100]
        margins = Bounding.of(net, images).margins(images, labels, Threat.parse("linf:0.1"), method)
        at[plan.name] = float((margins > 1e-4).double().mean())
    (natural, trained) = at.values()
    assert trained > 0.45 and trained > natural + 0.2


def test_bounds_follow_the_weights_while_they_are_trained() -> None:
    """The graph is made once: its weights are the network's own, not copies."""
    net, some = _net(), TRAIN.take(range(64))
    graph = followed(net, THREAT, some.images)
    before = Bounding(net, graph).margins(some.images, some.labels, THREAT, "ibp")
    train(net, some, recipe("ibp(epochs=3)", "digits"))
    after = Bounding(net, graph).margins(some.images, some.labels, THREAT, "ibp")
    fresh_one = Bounding.of(net, some.images).margins(some.images, some.labels, THREAT, "ibp")
    assert torch.equal(after, fresh_one) and not torch.allclose(before, after)


def test_a_stopped_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    some, plan = TRAIN.take(range(96)), recipe("crown-ibp(epochs=4)", "digits")
    whole, parts = _net(), _net()
    train(whole, some, plan)

    class Stop(Exception):
        pass

    def stop(epoch: object) -> None:
        raise Stop

    for _ in range(2):
        with pytest.raises(Stop):
            train(parts, some, plan, checkpoint=tmp_path / "point", watch=stop)
    parts = _net(1)  # all comes from the checkpoint
    train(parts, some, plan, checkpoint=tmp_path / "point")
    for one, other in zip(whole.module.parameters(), parts.module.parameters(), strict=True):
        assert torch.equal(one, other)


def _normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))


def _weight_normed() -> nn.Module:
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(64, 10))
    return nn.Sequential(nn.Flatten(), linear)


@pytest.mark.parametrize(
    ("text", "net", "said"),
    [
        ("ibp", _normed(), "parameter '1.weight' of a BatchNorm2d is no weight or bias"),
        ("ibp", _weight_normed(), "is no weight or bias of a convolution"),
        ("ibp", nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.GELU()), "gelu.*has no bounds"),
        ("ibp(threat='l0:3')", None, "no certificate is known here for l0"),
        ("ibp(threat='linf:0.1 targeted:random')", None, "every other class"),
        ("ibp(threat='linf')", None, "no budget to train for"),
        ("ibp(attack=pgd)", None, "not against an attack"),
        ("ibp(threat=None)", None, "give a threat"),
        ("ibp(update=replay(2))", None, "leave out attack and replay"),
        ("ibp(ramp=3)", None, "growing budget of its own"),
        ("ibp(held_out=10)", None, "growing budget of its own"),
        ("ibp(layers=bits(depth=3))", None, "growing budget of its own"),
        ("ibp(objective=bounded(ramp=0.0))", None, "without a time to grow"),
        ("ibp(objective=bounded(method='crown'))", None, "crown"),
        ("ibp(objective=bounded(beyond=0))", None, "beyond is 0"),
    ],
)
def test_what_cannot_be_trained_by_bounds_is_refused_before_the_first_batch(
    text: str, net: nn.Module | None, said: str
) -> None:
    victim = _net() if net is None else Classifier(net)
    before = [parameter.clone() for parameter in victim.module.parameters()]
    with pytest.raises(BesiegeError, match=said):
        train(victim, TRAIN.take(range(32)), recipe(text, "digits"))
    for old, new in zip(before, victim.module.parameters(), strict=True):
        assert torch.equal(old, new)


def test_layers_before_the_network_are_refused() -> None:
    from besiege.defenses import BitDepth, Defended

    with pytest.raises(BesiegeError, match="bounds the network alone"):
        train(Defended(_net(), BitDepth(3)), TRAIN.take(range(32)), recipe("ibp", "digits"))


def test_recipes_have_texts_that_read_back() -> None:
    for family in ("ibp", "crown-ibp", "convex"):
        for data in ("digits", "mnist", "cifar10"):
            plan = recipe(family, data)
            assert plan.name == f"{family}@{data}" and plan.objective.proves
            assert LANGUAGE.read(str(plan.objective)) == plan.objective
            assert recipe(str(plan)) == plan
    mnist = recipe("ibp", "mnist")
    assert mnist.threat is not None and isinstance(mnist.objective, Bounded)
    assert mnist.threat.radius * mnist.objective.beyond == pytest.approx(0.4)
