"""Certificates agree with brute force, and with each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from besiege.bounds.bounding import Bounding
from besiege.bounds.region import Region
from besiege.core.errors import BoundError
from besiege.core.samples import Samples
from besiege.core.threat import Linf, Threat
from besiege.evaluation.certificates import METHODS, OPEN, PROVED, Certificates, Order
from besiege.evaluation.certificates.alpha import raised
from besiege.evaluation.certificates.exact import smallest
from besiege.evaluation.programs import Program
from besiege.models.classifier import Classifier


def _net(seed: int, widths: tuple[int, ...] = (5, 6, 3), slope: float = 0.0) -> Classifier:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layer = nn.Linear(before, after)
        nn.init.normal_(layer.weight, std=1.2 / before**0.5)
        nn.init.normal_(layer.bias, std=0.4)
        layers += [layer, nn.LeakyReLU(slope) if slope else nn.ReLU()]
    return Classifier(nn.Sequential(*layers[:-1]))


def _image(seed: int, size: int = 5) -> Tensor:
    return torch.rand(1, 1, 1, size, generator=torch.Generator().manual_seed(seed))


def _brute(victim: Classifier, image: Tensor, label: int, slope: float = 0.0) -> float:
    """The smallest perturbation over all signs of the hidden layer: one linear program each."""
    layers = [m for m in victim.module.modules() if isinstance(m, nn.Linear)]
    (w1, b1), (w2, b2) = (
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in layers
    )
    x0 = image.flatten().double().numpy()
    size, best = len(x0), np.inf
    for signs in itertools.product((1.0, slope), repeat=len(b1)):
        gate = np.array(signs)
        inside = np.where(gate == 1.0, -1.0, 1.0)[:, None]  # active: -z <= 0
        for other in range(len(b2)):
            if other == label:
                continue
            margin = (w2[label] - w2[other]) * gate
            rows = [inside * w1, margin[None] @ w1, np.eye(size), -np.eye(size)]
            column = np.r_[np.zeros(len(b1) + 1), -np.ones(2 * size)]
            right = np.r_[-inside[:, 0] * b1, -(b2[label] - b2[other] + margin @ b1), x0, -x0]
            matrix = np.c_[np.concatenate(rows), column]
            done = linprog(np.r_[np.zeros(size), 1], matrix, right, bounds=[(0, 1)] * (size + 1))
            best = min(best, float(done.fun or 0)) if done.status == 0 else best
    return float(best)


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_the_exact_distance_is_that_of_all_activation_patterns(slope: float) -> None:
    for seed in range(4):
        victim, image = _net(seed, slope=slope), _image(seed)
        label = int(victim(image).argmax())
        bounding = Bounding.of(victim, image)
        with torch.no_grad():
            found = smallest(bounding, Program.of(bounding.graph), image[0], label, 0.02, 30)
        true = _brute(victim, image, label, slope)
        if np.isinf(true):
            assert np.isinf(found.above) and found.below == 1.0
            continue
        assert found.above == pytest.approx(true, rel=1e-3, abs=1e-6)
        assert found.below <= true * (1 + 1e-6) and found.gap < 1e-3
        assert found.image is not None
        assert float((found.image - image[0]).abs().max()) == pytest.approx(true, rel=1e-3)


def _order(victim: Classifier, images: Tensor, threat: str, seconds: float = 5.0) -> Order:
    labels = victim(images).argmax(1)
    samples = Samples(images, labels, torch.arange(len(images)))
    every = torch.ones(len(images), dtype=torch.bool)
    return Order(victim, samples, Threat.parse(threat), every, ~every, seconds)


def _certified(method: str, order: Order) -> Certificates:
    return METHODS.get(method).certify(order)


def test_complete_proves_what_holds_and_nothing_else() -> None:
    """Against the exact distance of every image, at a budget where bounds alone decide little."""
    images = torch.cat([_image(seed) for seed in range(12)])
    victim = _net(3, (5, 8, 8, 3))
    order = _order(victim, images, "linf:0.12")
    exact, complete = _certified("exact", order), _certified("complete", order)
    crown, alpha = _certified("crown", order), _certified("alpha", order)
    true = exact.below > 0.12
    assert 0 < int(true.sum()) < len(images)
    assert torch.equal(complete.outcome == PROVED, true)
    assert int((crown.outcome == PROVED).sum()) < int(true.sum())  # or nothing was split
    for weaker, stronger in ((crown, alpha), (alpha, complete)):
        assert not ((weaker.outcome == PROVED) & (stronger.outcome != PROVED)).any()
    assert int(complete.regions.max()) > 3


def test_no_corner_or_sample_is_below_a_raised_bound() -> None:
    most = 0.0
    for seed in range(6):
        victim, image = _net(seed, (5, 10, 10, 4)), _image(seed)
        labels = victim(image).argmax(1)
        bounding = Bounding.of(victim, image)
        region = Region.of(image, 0.15, Linf)
        with torch.no_grad():
            plain = bounding.least(region, labels)
            least = raised(bounding, region, labels, torch.tensor([1e9]))
            assert (least >= plain - 1e-6).all()
            corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=5)))
            shares = torch.cat([corners, torch.rand(2000, 5)])[:, None, None]
            logits = victim(region.low + shares * (region.high - region.low))
        margins = logits[:, labels] - logits[:, [k for k in range(4) if k != int(labels)]]
        assert (margins.amin(0) >= least[0] - 1e-5).all()
        most = max(most, float((least - plain).max()))
    assert most > 1e-3  # or no slope was raised


def test_a_wrong_sign_of_a_multiplier_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch and bound with a flipped sign proves what the exact distance refutes."""
    from besiege.evaluation.certificates import complete

    true = complete._children

    def flipped(graph, parts, choice):  # type: ignore[no-untyped-def]  # as the true one
        twice = true(graph, parts, choice)
        half = len(parts)  # both children get the same sign: one side is never bounded
        signs = {n: torch.cat([s[:half], s[:half]]) for n, s in twice.signs.items()}
        return type(twice)(twice.functions, twice.of, signs, twice.slopes, twice.prices)

    monkeypatch.setattr(complete, "_children", flipped)
    images = torch.cat([_image(seed) for seed in range(12)])
    order = _order(_net(3, (5, 8, 8, 3)), images, "linf:0.12", seconds=2.0)
    wrong = _certified("complete", order).outcome == PROVED
    assert (wrong & (_certified("exact", order).below <= 0.12)).any()


@pytest.mark.parametrize("method", ["alpha", "complete"])
@pytest.mark.parametrize("pools", [False, True])
def test_networks_without_relus_have_nothing_to_optimise(method: str, pools: bool) -> None:
    """A linear classifier, or max-pooling only: what crown leaves is open, and no error."""
    torch.manual_seed(0)
    first = nn.MaxPool2d((1, 2)) if pools else nn.Identity()
    victim = Classifier(nn.Sequential(first, nn.Flatten(), nn.Linear(3 if pools else 6, 3)))
    images = torch.cat([_image(seed, 6) for seed in range(12)])
    order = _order(victim, images, "linf:0.1")
    found, crown = _certified(method, order), _certified("crown", order)
    assert torch.equal(found.outcome, crown.outcome)
    assert set(found.outcome.tolist()) == {OPEN, PROVED}
    torch.testing.assert_close(found.margin, crown.margin)


def test_a_time_limit_leaves_images_open() -> None:
    images = torch.cat([_image(seed, 12) for seed in range(6)])
    victim = _net(1, (12, 40, 40, 4))
    found = _certified("complete", _order(victim, images, "linf:0.3", seconds=0.05))
    assert (found.outcome == OPEN).any()


def test_a_solver_that_gives_up_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver may end for another reason than the time, without a perturbation or a bound."""
    victim, image = _net(0), _image(1)
    label, bounding = int(victim(image).argmax()), Bounding.of(victim, image)
    monkeypatch.setattr(Program, "solve", lambda *_: (0.0, np.inf, None))
    with torch.no_grad():
        found = smallest(bounding, Program.of(bounding.graph), image[0], label, 0.5, 30)
    assert (found.below, found.above, found.image) == (0.0, np.inf, None)


def test_exact_refuses_max_pooling_by_its_place() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    images = torch.rand(1, 1, 6, 6)
    order = _order(Classifier(net), images, "linf:0.1")
    with pytest.raises(BoundError, match="max pooling at '2'"):
        METHODS.get("exact").check(order.victim, order.samples)
