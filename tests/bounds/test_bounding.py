"""Bounds hold: sampled and attacked images never have a smaller margin than a bound allows."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.nn import functional

from besiege.bounds import backward, bounding, forward, relaxing
from besiege.bounds.bounding import BOUNDS, Bounding, margin_bounds
from besiege.bounds.region import Region
from besiege.core.errors import BoundError, InputError, ThreatError, VictimError
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.models.architectures import ARCHITECTURES
from besiege.models.classifier import Classifier

SHAPE = (2, 6, 6)


class Residual(nn.Module):
    """A sum of branches, a product with constants, and padding of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, 1, 1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 6, 3, 2, 1, bias=False)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))
        x = functional.relu(0.5 * self.second(x) + short - 0.1)
        logits: Tensor = self.last(x.mean((2, 3)))
        return logits


class Joining(nn.Module):
    """Concatenation of two branches and of constants, leaky ReLUs, an adaptive pool."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 3, 3, padding="same"), nn.Conv2d(2, 3, 1)
        self.last = nn.Linear(7 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(len(x), 1, *x.shape[2:])
        x = torch.cat([functional.leaky_relu(self.one(x), 0.2), self.two(x).relu(), ones], 1)
        x = functional.adaptive_avg_pool2d(x, 2)
        logits: Tensor = self.last(functional.leaky_relu(x.flatten(1)))
        return logits


def _pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(4, 5, 2, dilation=2),
        nn.MaxPool2d(1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(5, 3),
    )


def _adaptive() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2),
        nn.AdaptiveMaxPool2d((1, 2)),
        nn.AvgPool2d((1, 2), ceil_mode=True),
        nn.Flatten(),
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.LeakyReLU(0.1),
        nn.Linear(6, 6),
        nn.ReLU(),
        nn.Linear(6, 1),
    )


def _deep() -> nn.Module:
    widths = (math.prod(SHAPE), 12, 12, 8)
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(8, 4))


NETS = {
    "residual": Residual,
    "joining": Joining,
    "pooled": _pooled,
    "adaptive": _adaptive,
    "deep": _deep,
}


def _victim(kind: str, seed: int) -> Classifier:
    torch.manual_seed(seed)
    net = NETS[kind]()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
            nn.init.uniform_(cast(Tensor, part.running_mean), -0.5, 0.5)
            nn.init.uniform_(cast(Tensor, part.running_var), 0.3, 2.0)
            nn.init.uniform_(part.weight, -1.5, 1.5)
    net.double()
    return Classifier(net.float().eval(), mean=[0.4, 0.5], std=[0.3, 0.2])


def _images(seed: int, rows: int = 3) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    images = torch.rand(rows, *SHAPE, generator=draws)
    images[:, :, 0] = images[:, :, 0].round()  # some at the ends of the box
    return images


def _inside(region: Region, images: Tensor, count: int) -> Tensor:
    """Random images of a region, ``[count, rows, ...]``: corners, the inside, few pixels."""
    draws = torch.randn(count, *images.shape)
    moves, radius = draws.flatten(2), float(region.radius[0])
    if region.norm is Linf:
        moves = radius * torch.where(torch.rand_like(moves) < 0.5, moves.sign(), moves.tanh())
    elif region.norm is L2:
        moves = radius * moves / moves.norm(dim=2, keepdim=True)
    else:
        moves = moves * (torch.rand_like(moves) < 0.1)
        moves = radius * moves / moves.abs().sum(2, keepdim=True).clamp_min(1e-9)
    return (images + moves.view_as(draws)).clamp(0, 1)


def _attacked(victim: Classifier, region: Region, labels: Tensor, other: int) -> Tensor:
    """Images that signed gradient steps drive towards another class, of a ball in linf."""
    x = region.centre.clone()
    for _ in range(10):
        x.requires_grad_()
        logits = victim(x)
        others = logits.gather(1, ((labels + other) % logits.shape[1])[:, None])
        loss = (others - logits.gather(1, labels[:, None])).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        step = x.detach() + float(region.radius[0]) / 4 * gradient.sign()
        x = torch.maximum(torch.minimum(step, region.high), region.low).detach()
    return x


def _margins(victim: Classifier, x: Tensor, labels: Tensor) -> Tensor:
    """The margins to the other classes, in their order."""
    logits = victim(x)
    every = torch.arange(logits.shape[1]).expand(len(labels), -1)
    others = every[every != labels[:, None]].view(len(labels), -1)
    return logits.gather(1, labels[:, None]) - logits.gather(1, others)


RADII = {Linf: 0.05, L2: 0.3, L1: 0.8}


@pytest.mark.parametrize("method", BOUNDS)
@pytest.mark.parametrize("norm", RADII, ids=str)
@pytest.mark.parametrize("kind", NETS)
def test_no_sampled_and_no_attacked_image_is_below_a_bound(
    kind: str, norm: Norm, method: str
) -> None:
    for seed in range(2):
        victim, images = _victim(kind, seed), _images(seed)
        labels = victim(images).argmax(1)
        bounds = Bounding.of(victim, images)
        with torch.no_grad():
            region = Region.of(images, RADII[norm] * (1 + 2 * seed) / 2, norm)
            least = bounds.least(region, labels, method)
        for x in _inside(region, images, 40):
            assert (_margins(victim, x, labels) >= least - 1e-5).all()
        if norm is Linf:
            for other in range(1, bounds.graph.classes):
                x = _attacked(victim, region, labels, other)
                assert (_margins(victim, x, labels) >= least - 1e-5).all()


@pytest.mark.slow
@pytest.mark.parametrize("norm", RADII, ids=str)
@pytest.mark.parametrize("kind", NETS)
def test_no_image_is_below_a_bound_on_many_random_nets(kind: str, norm: Norm) -> None:
    for seed in range(100, 170):
        victim, images = _victim(kind, seed), _images(seed, 2)
        labels = victim(images).argmax(1)
        bounds = Bounding.of(victim, images)
        radius = RADII[norm] * 10 ** (seed % 3 - 1)
        region = Region.of(images, radius, norm)
        x = torch.stack([*_inside(region, images, 50), _attacked(victim, region, labels, 1)])
        x = x if norm is Linf else x[:-1]
        margins = torch.stack([_margins(victim, one, labels) for one in x]).amin(0)
        for method in BOUNDS:
            with torch.no_grad():
                least = bounds.least(region, labels, method)
            assert (margins >= least - 1e-5 * margins.abs().clamp_min(1)).all(), method


@pytest.mark.parametrize("kind", NETS)
def test_every_hidden_value_is_within_its_bounds(kind: str) -> None:
    victim, images = _victim(kind, 3), _images(3)
    graph = Bounding.of(victim, images).graph
    region = Region.of(images, 0.05, Linf)
    for method in ("ibp", "crown"):
        with torch.no_grad():
            bounds = BOUNDS[method](graph, region).bounds
            for x in _inside(region, images, 100):
                for number, values in enumerate(graph.values(x)):
                    assert (values >= bounds[number].low - 1e-5).all(), (method, number)
                    assert (values <= bounds[number].high + 1e-5).all(), (method, number)


@pytest.mark.parametrize("method", BOUNDS)
@pytest.mark.parametrize("kind", NETS)
def test_with_no_budget_the_bound_is_the_margin(kind: str, method: str) -> None:
    victim, images = _victim(kind, 1), _images(1)
    labels = torch.zeros(3, dtype=torch.int64)
    for norm in RADII:
        with torch.no_grad():
            least = Bounding.of(victim, images).least(Region.of(images, 0.0, norm), labels, method)
            assert torch.allclose(least, _margins(victim, images, labels), atol=1e-5)


@pytest.mark.parametrize("method", BOUNDS)
def test_bounds_of_linear_networks_are_exact(method: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    victim, images = Classifier(net), torch.rand(2, *SHAPE) * 0.5 + 0.25
    labels = torch.tensor([0, 2])
    x = images.clone().requires_grad_()
    for norm, dual in ((Linf, 1), (L2, 2), (L1, torch.inf)):
        margins = _margins(victim, x, labels)
        for k in range(2):
            (slope,) = torch.autograd.grad(margins[:, k].sum(), x, retain_graph=True)
            exact = margins[:, k].detach() - 0.1 * slope.flatten(1).norm(dual, dim=1)
            least = Bounding.of(victim, images).least(Region.of(images, 0.1, norm), labels, method)
            assert torch.allclose(least[:, k], exact, atol=1e-5)


def test_the_box_limits_what_must_be_bounded() -> None:
    """A net that adds up all pixels, at a white image: none can become larger."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        cast(Tensor, net[1].weight).copy_(torch.tensor([[-1.0] * 4, [1.0] * 4]))
    white = torch.ones(1, 1, 2, 2)
    for norm in RADII:
        region = Region.of(white, 0.1, norm)
        with torch.no_grad():
            bounds = Bounding.of(Classifier(net), white)
            least = bounds.least(region, torch.tensor([0]), "crown")
        assert float(least) == pytest.approx(-8.0, abs=1e-5)


def test_mean_widths_are_ordered_as_known() -> None:
    widths = dict.fromkeys(BOUNDS, 0.0)
    for seed in range(5):
        torch.manual_seed(seed)
        net = nn.Sequential(
            *(nn.Flatten(), nn.Linear(10, 20), nn.ReLU()),
            *(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 5)),
        )
        image = torch.rand(1, 1, 1, 10) * 0.5 + 0.25
        bounds = Bounding.of(Classifier(net), image)
        region = Region.of(image, 0.05, Linf)
        units = torch.cat([torch.eye(5), -torch.eye(5)])
        for method, bound in BOUNDS.items():
            with torch.no_grad():
                found = bound(bounds.graph, region)
                last, of = len(bounds.graph.nodes) - 1, torch.zeros(10, dtype=torch.int64)
                known = (bounds.graph, last, units, of)
                if method == "ibp":
                    least = backward.lower_by_intervals(*known, found.bounds)
                else:
                    least = backward.lower(*known, region, found.bounds, found.lines)
            widths[method] += float(-least.sum())
    assert widths["ibp"] > widths["crown-ibp"] > widths["fast-lin"] > widths["crown"]


def _two_hidden(seed: int) -> tuple[list[Tensor], list[Tensor], Classifier, Tensor]:
    torch.manual_seed(seed)
    sizes = (6, 9, 8, 4)
    weights = [torch.randn(b, a) / a**0.5 for a, b in itertools.pairwise(sizes)]
    biases = [0.3 * torch.randn(b) for b in sizes[1:]]
    net = nn.Sequential(nn.Flatten())
    for weight, bias in zip(weights, biases, strict=True):
        layer = nn.Linear(*reversed(weight.shape))
        layer.weight.data, layer.bias.data = weight, bias
        net.extend([layer, nn.ReLU()])
    return weights, biases, Classifier(net[:-1]), torch.rand(1, 1, 1, 6) * 0.4 + 0.3


def test_fast_lin_is_the_dual_bound_of_wong_and_kolter() -> None:
    """The dual form, computed from its own formula: nu of every layer, from the last to the first.

    Its first two layers' bounds are those of the same formula with unit vectors.
    """
    for seed in range(5):
        weights, biases, victim, image = _two_hidden(seed)
        x = image.flatten()

        def dual(c: Tensor, depth: int, known: Any, about: Any = (weights, biases, x)) -> float:
            weights, biases, x = about
            eps = 0.1 * (1 + 1e-6)
            nu, total = -c, torch.tensor(0.0)
            for layer in range(depth, -1, -1):
                total = total - biases[layer] @ nu
                hat = weights[layer].T @ nu
                if layer == 0:
                    return float(total - x @ hat - eps * hat.abs().sum())
                low, high = known[layer - 1]
                unstable = (low < 0) & (high > 0)
                share = torch.where(unstable, high / (high - low), (low >= 0).float())
                nu = hat * share
                total = total + (low * nu.clamp_min(0))[unstable].sum()
            raise AssertionError

        known: list[tuple[Tensor, Tensor]] = []
        for depth in range(2):
            units = torch.eye(len(biases[depth]))
            low = torch.tensor([dual(c, depth, known) for c in units])
            high = torch.tensor([-dual(-c, depth, known) for c in units])
            if depth:  # the better of both kinds of bounds counts
                below, above = (b.clamp_min(0) for b in known[0])
                middle = weights[1] @ (below + above) / 2 + biases[1]
                half = weights[1].abs() @ (above - below) / 2
                low, high = torch.maximum(low, middle - half), torch.minimum(high, middle + half)
            known.append((low, high))
        label = int(victim(image).argmax())
        others = [k for k in range(4) if k != label]
        units = torch.eye(4)
        expected = [dual(units[label] - units[k], 2, known) for k in others]
        bounds = Bounding.of(victim, image)
        with torch.no_grad():
            relaxed = bounding.fast_lin(bounds.graph, Region.of(image, 0.1, Linf))
            functions = torch.stack([units[label] - units[k] for k in others])
            last, of = len(bounds.graph.nodes) - 1, torch.zeros(3, dtype=torch.int64)
            found = backward.lower(
                bounds.graph, last, functions, of, relaxed.region, relaxed.bounds, relaxed.lines
            )
        assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_no_line_is_above_the_best_of_the_triangle_relaxation() -> None:
    """A linear program over all points between the lines is at least as tight as any line."""
    for seed in range(5):
        weights, biases, victim, image = _two_hidden(seed)
        logits = victim(image)[0].tolist()
        label = int(np.argmax(logits))
        bounds = Bounding.of(victim, image)
        region = Region.of(image, 0.1, Linf)
        with torch.no_grad():
            relaxed = bounding.crown(bounds.graph, region)
            least = margin_bounds(bounds.graph, relaxed, torch.tensor([label]))[0]
        bent = [relaxed.bounds[bounds.graph.nodes[n].parents[0]] for n in bounds.graph.bent]
        for k, found in zip([k for k in range(4) if k != label], least.tolist(), strict=True):
            best = _triangles(weights, biases, region, bent, label, k)
            assert found <= best + 1e-5
            assert best <= logits[label] - logits[k] + 1e-5


def _triangles(
    weights: list[Tensor],
    biases: list[Tensor],
    region: Region,
    bent: list[relaxing.Bounds],
    label: int,
    other: int,
) -> float:
    """The smallest margin between x >= relu(x) >= 0 and the chords, by linear programming."""
    sizes = [6, 9, 9, 8, 8]
    starts = np.cumsum([0, *sizes])
    count = starts[-1]
    equal, right, at_most, limit = [], [], [], []
    limits = list(zip(region.low.flatten().tolist(), region.high.flatten().tolist(), strict=True))
    for layer in range(2):
        before, pre, post = (starts[2 * layer + k] for k in range(3))
        low, high = (b.flatten().double().numpy() for b in (bent[layer].low, bent[layer].high))
        for unit in range(len(low)):
            row = np.zeros(count)
            row[before : before + weights[layer].shape[1]] = weights[layer][unit].numpy()
            row[pre + unit] = -1
            equal.append(row)
            right.append(-float(biases[layer][unit]))
            for line, offset in ((1.0, 0.0), (0.0, 0.0)):
                row = np.zeros(count)
                row[post + unit], row[pre + unit] = -1, line
                at_most.append(row)
                limit.append(offset)
            below, above = min(low[unit], 0.0), max(high[unit], 1e-9)
            row = np.zeros(count)
            row[post + unit], row[pre + unit] = 1, -above / (above - below)
            at_most.append(row)
            limit.append(-below * above / (above - below))
        limits += [*zip(low, high, strict=True)] + [(0, None)] * len(low)
    cost = np.zeros(count)
    cost[starts[4] :] = (weights[2][label] - weights[2][other]).numpy()
    done = linprog(cost, np.array(at_most), limit, np.array(equal), right, limits)
    assert done.fun is not None
    return float(done.fun + biases[2][label] - biases[2][other])


def test_rows_do_not_depend_on_their_neighbours() -> None:
    victim, images = _victim("residual", 2), _images(2, 11)
    labels = victim(images).argmax(1)
    bounding_ = Bounding.of(victim, images)
    threat = Threat.parse("linf:0.02")
    together = bounding_.margins(images, labels, threat)
    alone = [bounding_.margins(images[[n]], labels[[n]], threat) for n in range(11)]
    assert torch.equal(together, torch.cat(alone))
    flipped = bounding_.margins(images.flip(0), labels.flip(0), threat).flip(0)
    assert torch.equal(together, flipped)


def test_pieces_are_halved_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, images = _victim("residual", 2), _images(2)
    labels = victim(images).argmax(1)
    bounds = Bounding.of(victim, images)
    expected = bounds.margins(images, labels, Threat.parse("linf:0.02"))
    follow = backward.lower_of
    sizes: list[int] = []

    def small(parts: Any, of: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(of))
        if len(of) > 8:
            raise torch.OutOfMemoryError
        return follow(parts, of, *rest)

    monkeypatch.setattr(forward, "lower_of", small)
    found = bounds.margins(images, labels, Threat.parse("linf:0.02"))
    assert max(sizes) > 8 and torch.allclose(found, expected, atol=1e-5)


def test_images_are_split_when_functions_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, images = _victim("residual", 2), _images(2, 6)
    labels = victim(images).argmax(1)
    bounds = Bounding.of(victim, images)
    expected = bounds.margins(images, labels, Threat.parse("linf:0.02"))
    least, sizes = Bounding.least, list[int]()

    def small(self: Bounding, region: Region, *rest: Any) -> Tensor:
        sizes.append(len(region))
        if len(region) > 2:
            raise torch.OutOfMemoryError
        return least(self, region, *rest)

    monkeypatch.setattr(Bounding, "least", small)
    monkeypatch.setattr(bounding, "ON_CPU", 6)
    found = bounds.margins(images, labels, Threat.parse("linf:0.02"))
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1] and torch.allclose(found, expected, atol=1e-5)


def _slip(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One wrong line of F2 or F3."""
    true = relaxing.lines

    def swapped(lines: Any, functions: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        positive = functions.clamp_min(0)
        constant = (positive * lines.intercept[of]).flatten(1).sum(1)
        below = (functions - positive) * lines.below[of]
        return below + positive * lines.above[of], constant

    if name == "signs swapped":
        monkeypatch.setattr(backward, "through_lines", swapped)

    def wrong(rectifier: Any, bounds: Any, parallel: bool = False) -> relaxing.Lines:
        good = true(rectifier, bounds, parallel)
        if name == "intercept sign":
            return relaxing.Lines(good.below, good.above, -good.intercept)
        if name == "intercept below":
            return relaxing.Lines(good.below, good.above, torch.zeros_like(good.intercept))
        if name == "too steep":
            return relaxing.Lines(good.below + 0.3, good.above, good.intercept)
        return good

    monkeypatch.setattr(bounding, "lines", wrong)
    monkeypatch.setattr(forward, "lines", wrong)


@pytest.mark.parametrize(
    "name", ["intercept sign", "intercept below", "signs swapped", "too steep"]
)
def test_every_known_slip_breaks_a_bound(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What the tests of soundness see: a slip leaves some sampled image below its bound."""
    _slip(monkeypatch, name)
    broken = 0
    for seed in range(8):
        victim, images = _victim("deep", seed), _images(seed)
        labels = victim(images).argmax(1)
        region = Region.of(images, 0.1, Linf)
        with torch.no_grad():
            least = Bounding.of(victim, images).least(region, labels, "crown")
        for other in range(1, 4):
            x = _attacked(victim, region, labels, other)
            broken += int((_margins(victim, x, labels) < least - 1e-5).sum())
    assert broken


def test_architectures_are_followed() -> None:
    for name in ("cnn_a", "lenet", "oval_deep", "resnet2b", "resnet20", "preact_resnet18", "conv5"):
        options = {"width": 8} if name == "preact_resnet18" else {}
        victim = Classifier(ARCHITECTURES[name](in_channels=3, **options).eval(), name=name)
        images = torch.rand(2, 3, 32, 32) if name != "lenet" else torch.rand(2, 3, 28, 28)
        graph = Bounding.of(victim, images).graph
        assert torch.allclose(graph(images), victim(images), atol=1e-4)


class _Odd(nn.Module):
    """A module with one operation that has no bounds."""

    def __init__(self, odd: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
        self.odd = odd

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.odd(self.inner(x))
        return logits


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        (nn.Sigmoid(), r"sigmoid at 'odd'"),
        (nn.GELU(), r"gelu at 'odd'"),
        (nn.Softmax(1), r"softmax at 'odd'"),
        (lambda x: x * x, "product of two values"),
        (lambda x: x if x.sum() > 0 else -x, "over rows|mean or sum"),
        (lambda x: x if bool(x[0, 0] > 0) else -x, "choice of rows|no bounds"),
        (lambda x: x - x.mean(0), "over rows"),
        (lambda x: torch.tensor(x.tolist()), "tolist"),
        (lambda x: x.clamp(0, 6), "limit"),
        (lambda x: x / x, "division|two values"),
        (lambda x: x.flip(0), "flip"),
        (lambda x: functional.max_pool2d(x.unsqueeze(1), 1).flatten(1), "without channels"),
        (
            lambda x: functional.adaptive_max_pool2d(x.unsqueeze(1), 1).flatten(1),
            "without channels",
        ),
    ],
)
def test_what_has_no_bounds_is_named_with_its_place(odd: Any, named: str) -> None:
    with pytest.raises(BoundError, match=named):
        Bounding.of(Classifier(_Odd(odd)), _images(0))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_networks_in_another_precision_are_refused(kind: torch.dtype) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).to(kind)
    with pytest.raises(BoundError, match=f"{str(kind)[6:]}, and bounds are about"):
        Bounding.of(Classifier(net), _images(0))


def test_a_network_that_raises_is_the_model_s_error() -> None:
    """As of any call of the model: a certificate calls it with another number of images."""

    def odd(x: Tensor) -> Tensor:
        if len(x) == 3:
            raise ValueError("not three")
        return x

    with pytest.raises(VictimError, match="raised ValueError: not three"):
        Bounding.of(Classifier(_Odd(odd)), _images(0))


def test_values_that_are_overwritten_elsewhere_are_refused() -> None:
    class Aliased(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = 2 * x
            flat = x.flatten(1)
            x.relu_()
            return flat[:, :3]

    with pytest.raises(BoundError, match="in place"):
        Bounding.of(Classifier(Aliased()), _images(0))


def test_what_no_certificate_is_about_is_refused() -> None:
    victim, images = _victim("deep", 0), _images(0)
    bounds, labels = Bounding.of(victim, images), torch.zeros(3, dtype=torch.int64)
    for text in ("l0:5", "linf", "linf:8/255 targeted:random"):
        with pytest.raises(ThreatError):
            bounds.margins(images, labels, Threat.parse(text))
    with pytest.raises(InputError, match="did you mean 'crown'"):
        bounds.margins(images, labels, Threat.parse("linf:0.1"), "crwn")
    with pytest.raises(BoundError, match="probabilities"):
        Bounding.of(Classifier(nn.Softmax(1), outputs="probabilities"), images)
