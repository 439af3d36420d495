"""Gradients sampled near images, and the scores that follow from them (CLEVER)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from besiege.core.errors import AccessError, InputError, ThreatError
from besiege.core.samples import Samples
from besiege.core.threat import Access, Threat
from besiege.evaluation.sampling import Sampled, check_sampling, sample_gradients
from besiege.metrics.clever import scored
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, linear, natural, untrained

DUAL = {"linf": 1, "l2": 2, "l1": np.inf}
GOALS = ("untargeted", "targeted:random", "targeted:least-likely", "targeted:second")


def sampled(victim: Linear | Classifier, samples: Samples, threat: str, **given: object) -> Sampled:
    how = {"radius": 0.5, "batches": 12, "points": 8, **given}
    return sample_gradients(victim, samples, Threat.parse(threat), **how)  # type: ignore[arg-type]


def scores(found: Sampled, radius: float) -> dict[str, np.ndarray]:
    return scored(found.targets.numpy(), found.margins.numpy(), found.maxima.numpy(), radius)


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("goal", GOALS)
def test_on_a_linear_model_the_score_is_the_distance(norm: str, goal: str) -> None:
    """Exact in every norm; a radius below it cuts it off."""
    victim = linear()
    samples = victim.samples(7)
    found = sampled(victim, samples, f"{norm} {goal}".removesuffix(" untargeted"), radius=0.9)
    rows = np.arange(7)[:, None]
    labels, targets = samples.labels.numpy(), found.targets.numpy()
    steep = victim.weight[labels][:, None] - victim.weight[targets]
    logits = samples.images.double().flatten(1).numpy() @ victim.weight.T + victim.bias
    gap = logits[rows, labels[:, None]] - logits[rows, targets]
    exact = (gap / np.linalg.norm(steep, DUAL[norm], axis=2)).min(1)
    assert scores(found, 1e9)["score"] == pytest.approx(exact, rel=1e-5, abs=1e-6)
    cut = 0.999 * float(np.median(exact))
    close = scores(found, cut)
    assert close["score"] == pytest.approx(np.minimum(exact, cut), rel=1e-5, abs=1e-6)
    assert close["capped"].tolist() == (exact >= cut).tolist()
    assert close["constant"].all()


class Bowl(nn.Module):
    """Two classes; the margin falls with the squared distance from the middle of the image."""

    def forward(self, x: Tensor) -> Tensor:
        height = 0.5 * (x - 0.5).square().flatten(1).sum(1)
        return torch.stack([1 - height, height - 1], 1)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_on_a_quadratic_model_the_largest_gradient_is_found(norm: str) -> None:
    """The gradient of the margin is 2 (x - middle), the largest at the end of the ball."""
    victim = Classifier(Bowl(), classes=2, name="bowl")
    samples = Samples.of(torch.full((3, 1, 1, 2), 0.5), torch.zeros(3, dtype=torch.int64))
    found = sampled(victim, samples, norm, radius=0.4, batches=100, points=128)
    largest = 2 * 0.4 * (1 if norm == "l2" else 2)
    location = scores(found, 9.0)["location"]
    assert location == pytest.approx(np.full(3, largest), rel=0.02)
    assert scores(found, 9.0)["score"] == pytest.approx(np.full(3, 2 / largest), rel=0.02)


@pytest.mark.parametrize("norm", DUAL)
def test_points_stay_in_ball_and_box(norm: str) -> None:
    seen: list[Tensor] = []

    class Seeing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = untrained((1, 3, 3), 3).module

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            logits: Tensor = self.net(x)
            return logits

    victim = Classifier(Seeing(), classes=3, name="seeing")
    image = torch.full((1, 1, 3, 3), 0.1)
    samples = Samples.of(image, victim(image).argmax(1))
    seen.clear()
    sampled(victim, samples, f"{norm} targeted:second", radius=0.3, batches=10, points=64)
    away = (torch.cat(seen[1:]) - image).flatten(1).double()
    size = torch.linalg.vector_norm(away, {"linf": torch.inf, "l2": 2, "l1": 1}[norm], dim=1)
    assert float(size.max()) <= 0.3 * (1 + 1e-6) and float(size.max()) > 0.25
    assert float(torch.cat(seen).min()) >= 0 and len({row.tobytes() for row in away.numpy()}) == 640


def test_any_batch_size_order_and_company() -> None:
    victim = natural()
    data = Samples.of(*_digits(6))
    whole = sampled(victim, data, "l2", radius=1.0, batches=10, points=9)
    other = sampled(victim, data, "l2", radius=1.0, batches=10, points=9, batch=24)
    assert torch.equal(whole.maxima, other.maxima)
    order = torch.tensor([4, 1, 5])
    few = sampled(victim, data.at(order), "l2", radius=1.0, batches=10, points=9)
    assert torch.equal(whole.maxima[order], few.maxima)
    more = sampled(victim, data.at(order), "l2", radius=1.0, batches=20, points=9)
    assert torch.equal(more.maxima[..., :10], few.maxima), "more batches are more of the same"
    again = sampled(victim, data, "l2", radius=1.0, batches=10, points=9, seed=1)
    assert not torch.equal(whole.maxima, again.maxima)


def test_targets_are_those_of_attacks() -> None:
    from besiege.attacks.attack import parse
    from besiege.evaluation.crafting import craft

    victim, data = natural(), Samples.of(*_digits(12))
    for goal in GOALS[1:]:
        threat = Threat.parse(f"linf:0.1 {goal}")
        theirs = craft(victim, parse("fgsm"), data, threat).targets
        mine = sampled(victim, data, f"linf {goal}", batches=10, points=1).targets[:, 0]
        assert theirs is not None and torch.equal(mine, theirs), goal


def test_gradients_are_counted() -> None:
    for goal, slopes in (("", 5), (" targeted:random", 1)):
        victim = Counting(linear())
        samples = linear().samples(3)
        found = sampled(victim, samples, f"l2{goal}", batches=10, points=7)  # type: ignore[arg-type]
        assert found.gradients.tolist() == [70 * slopes] * 3
        assert found.backwards == 210 * slopes and found.forwards == 213


def test_misclassified_images_are_not_sampled() -> None:
    victim = linear()
    samples = victim.samples(4)
    wrong = Samples(samples.images, (samples.labels + 1) % 5, samples.ids)
    found = sampled(victim, wrong, "l2")
    assert not found.correct.any() and not found.gradients.any() and not found.maxima.any()


def test_memory_does_not_grow_with_batches() -> None:
    victim, samples = linear(), linear().samples(2)
    peaks = []
    for batches in (20, 400):
        tracemalloc.start()
        sampled(victim, samples, "l2 targeted:random", batches=batches, points=64)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 400 * 2 * 8 * 8


def test_what_has_no_gradients_to_sample_is_refused() -> None:
    victim, shape = linear(), (1, 5, 5)
    check_sampling(victim, Threat.parse("l2"), 5.0, shape, 5)
    for radius in (0.0, 5.1):
        with pytest.raises(InputError, match="farthest images of this size are 5 apart"):
            check_sampling(victim, Threat.parse("l2"), radius, shape, 5)
    check_sampling(victim, Threat.parse("l1"), 25.0, shape, 5)
    with pytest.raises(InputError, match="are 1 apart"):
        check_sampling(victim, Threat.parse("linf"), 1.5, shape, 5)
    with pytest.raises(ThreatError, match="targeted:random"):
        check_sampling(victim, Threat.parse("l2"), 1.0, shape, 11)
    check_sampling(victim, Threat.parse("l2 targeted:random"), 1.0, shape, 11)
    with pytest.raises(ThreatError, match="dual"):
        check_sampling(victim, Threat.parse("l0"), 1.0, shape, 5)
    black = linear()
    black.access = Access.SCORE
    with pytest.raises(AccessError, match="black box"):
        check_sampling(black, Threat.parse("l2"), 1.0, shape, 5)
    chance = linear()
    chance.stochastic = True
    with pytest.raises(AccessError, match="stochastic"):
        check_sampling(chance, Threat.parse("l2"), 1.0, shape, 5)


def _digits(count: int) -> tuple[Tensor, Tensor]:
    from besiege.data import load

    data = load("digits", count=count)
    return data.images, data.labels
