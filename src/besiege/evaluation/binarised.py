"""`Binarised`: a model's own features with a head of two classes around every image.

Each head is made so that an adversarial example certainly exists: the active test of
`besiege.evaluation.active` asks whether the attacks find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from besiege.core.ball import Ball
from besiege.core.dice import Dice
from besiege.core.oracle import Oracle
from besiege.core.rowwise import pick, rowwise
from besiege.core.threat import Threat
from besiege.core.victim import Victim

INNER = 32
"""Random points around every image that must keep class 0."""
RIDGE = 0.1
"""Ridge of the regression, as a share of the mean variance of the features along their directions.
A smaller one fits the few inner points more closely than other random points."""
STEPS = (0.5, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.1)
"""Steps of the reference search, in radii."""
CLOSE = 0.9
"""Where the threshold lies between the best inner point, 0, and the known example, 1. The rest is
what rounding and a search that is not exact may lose."""
BEYOND = 0.5
"""Where the threshold lies between what one step reaches, 0, and what the reference reaches, 1."""
LOWER = 0.5
"""The same as `CLOSE`, between the best inner point and what the reference reaches, where honest
gradients do not lead as far as the known example: such surfaces are hard, and not in disguise."""
NEAREST = 0.95
"""The largest threshold, as a share of what the reference reaches from the clean image."""
CLEAN = 4.0
"""By how much class 0 leads on every clean image: small enough that no gradient is rounded to 0."""
BACK, AGREE = 0.05, 0.3
"""The share of the way back from the known example over which gradients are compared with measured
differences, and by which share of these they may differ."""
_APART = 0.5
"""By how many standard deviations of the inner points a known example must exceed the best."""


class Features(Victim):
    """The features that a victim's last linear layer reads.

    Parameters
    ----------
    victim : Victim
        Deterministic, with gradients.
    readout : nn.Linear, optional
        The layer, as `readout` finds it; without one the features are the logits.
    """

    def __init__(self, victim: Victim, readout: nn.Linear | None) -> None:
        self.victim = self.adopt(victim)
        self.readout = readout
        self.classes = None  # the oracle counts the columns
        self.rejects = False

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Features float32 ``[rows, features]``."""
        if self.readout is None:
            return self.victim(x, dice)
        caught: list[Tensor] = []
        handle = self.readout.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            self.victim(x, dice)
        finally:
            handle.remove()
        return caught[0].float()


class Binarised(Victim):
    """Two classes around every anchor: a linear head on the features of another victim.

    With features f, an image x whose nearest anchor is a has the margin
    ``<w_a, f(x) - f(a)> - CLEAN`` for class 1. Anchors more than two radii apart make the anchor of
    every image inside a ball that of the ball.

    Parameters
    ----------
    features : Features
        The features.
    anchors : Tensor
        The clean images, ``[anchors, ...]``.
    origins, weights : Tensor
        Features of the anchors, and the heads, ``[anchors, features]``.
    threat : Threat
        Its norm decides which anchor is nearest.
    """

    def __init__(
        self, features: Features, anchors: Tensor, origins: Tensor, weights: Tensor, threat: Threat
    ) -> None:
        self.features = self.adopt(features)
        self.anchors, self.origins, self.weights = anchors.flatten(1), origins, weights
        self.norm = threat.norm
        self.classes, self.outputs = 2, "logits"

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits ``[rows, 2]``."""
        features = self.features(x, dice)
        row = between(x.detach().flatten(1), self.anchors, self.norm.order).argmin(1)
        margin = ((features - self.origins[row]) * self.weights[row]).sum(1) - CLEAN
        return torch.stack([-margin / 2, margin / 2], 1)


@dataclass(frozen=True)
class Heads:
    """Heads around some images, and the example that each is known to have.

    ``kept`` says where a head separates the inner points from a known example; the other fields
    have a row for each of these only. ``raised`` and ``lowered`` count heads whose threshold the
    reference search moved. ``forwards`` and ``backwards`` are the passes spent.
    """

    kept: Tensor
    victim: Binarised
    known: Tensor
    raised: int
    lowered: int
    forwards: int
    backwards: int


def between(x: Tensor, y: Tensor, order: float) -> Tensor:
    """Distances ``[rows of x, rows of y]`` in a norm, each exact for itself."""
    return torch.cdist(x, y, order, compute_mode="donot_use_mm_for_euclid_dist")


def networks(victim: Victim) -> Iterator[nn.Module]:
    """All modules of a victim and of the victims inside it."""
    for part in victim.parts:
        if isinstance(part, Victim):
            yield from networks(part)
        else:
            yield from part.modules()


def readout(victim: Victim, images: Tensor) -> nn.Linear | None:
    """The linear layer whose output is the victim's logits, in values and in gradients.

    None where there is none, or where something between the layer and the answer changes gradients:
    a test on its features would not see that.
    """
    seen: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {}

    def note(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Linear)
        seen.setdefault(module, []).append((given[0], output))

    linear = [one for one in dict.fromkeys(networks(victim)) if isinstance(one, nn.Linear)]
    handles = [one.register_forward_hook(note) for one in linear]
    try:
        with torch.enable_grad():
            logits = victim(images.clone().requires_grad_(True))
    finally:
        for handle in handles:
            handle.remove()
    for layer in reversed(linear):
        calls = seen.get(layer, [])
        if len(calls) == 1 and _reads(layer, *calls[0], logits):
            return layer
    return None


def _reads(layer: nn.Linear, given: Tensor, output: Tensor, logits: Tensor) -> bool:
    """Whether a layer's output is the logits, and gradients reach its input unchanged."""
    if given.dim() != 2 or output.shape != logits.shape or not given.requires_grad:
        return False
    if not torch.allclose(output.float(), logits.float(), rtol=1e-4, atol=1e-5):
        return False
    signs = torch.where(torch.arange(logits.numel(), device=logits.device) % 3 == 0, -1.0, 1.0)
    signs = signs.view_as(logits)
    (slope,) = torch.autograd.grad(
        logits, given, signs, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    expected = signs @ layer.weight.float()
    # Half precision rounds by a thousandth.
    return float((slope.float() - expected).norm()) <= 1e-2 * float(expected.norm())


def make_heads(features: Features, ball: Ball, threat: Threat, dice: Dice) -> Heads:
    """Heads around the centres of a ball, none of which random points solve.

    A ridge regression separates one random point on the surface from `INNER` others. Where that
    direction, or one estimated from differences of scores, leads beyond all of them, the example is
    known, without any gradient.

    A short ascent along the gradients, the reference, then moves the threshold. Where it goes
    further, the threshold rises beyond what one step reaches. Where it does not, and the gradients
    at the known example are those of the scores, the surface is hard but honest: the threshold
    falls to what gradients can reach. Gradients that mislead do neither, and leave an example that
    they do not find.
    """
    oracle, x, rows = Oracle(features), ball.center, len(ball)
    origins = oracle.logits(x)
    inside = dice.of("inner")
    # One draw for all images at a time: all points of large images together would fill the memory.
    cloud = torch.stack([oracle.logits(drawn(ball, inside, k)) - origins for k in range(INNER)], 1)
    far = drawn(ball, dice.of("outer"), 0)
    weights = _ridge(cloud, oracle.logits(far) - origins)
    scores = (cloud @ weights[..., None])[..., 0]
    best, spread = scores.amax(1).clamp_min(0.0), scores.std(1)

    head = Oracle(Binarised(features, x, origins, weights, threat))
    slope = torch.zeros_like(x)
    for k, gain in enumerate((scores - scores.mean(1, keepdim=True)).unbind(1)):
        slope += rowwise(gain, x) * (drawn(ball, inside, k) - x)
    along = ball.project(x + ball.steepest(slope, x, ball.radius))
    height, other = (_heights(head, one) for one in (far, along))
    known, height = pick(other > height, along, far), torch.maximum(height, other)
    apart = height > best + _APART * spread
    threshold = best + CLOSE * (height - best)

    once, most, top = _ascend(head, ball, x)
    # A height that only one of two starts leads to would be a matter of luck.
    most = torch.minimum(most, _ascend(head, ball, ball.sample(dice.of("start")))[1])
    reference = torch.minimum(once + BEYOND * (most - once), NEAREST * most)
    raised = reference > threshold
    lowered = ~raised
    rest = lowered.nonzero()[:, 0]
    lowered[rest] = _true_slopes(head, ball.at(rest), known[rest], height[rest])
    reached = torch.minimum(most, height)
    threshold = torch.where(raised, reference, threshold)
    threshold = torch.where(lowered, best + LOWER * (reached - best), threshold).clamp_min(1e-30)
    apart &= threshold > best + _APART * spread
    known = pick(most > height, top, known)
    final = Binarised(features, x, origins, weights * (CLEAN / threshold)[:, None], threat)
    answers = Oracle(final).logits(torch.cat([x, known])).argmax(1).view(2, rows)
    kept = apart & (answers[0] == 0) & (answers[1] == 1) & ball.inside(known)
    return Heads(
        kept,
        Binarised(features, x[kept], origins[kept], final.weights[kept], threat),
        known[kept],
        int((raised & kept).sum()),
        int((lowered & kept).sum()),
        rows * (1 + INNER + 1 + 2 + 2 * (len(STEPS) + 2) + 2) + 2 * len(rest),
        rows * 2 * len(STEPS) + len(rest),
    )


def drawn(ball: Ball, dice: Dice, counter: int) -> Tensor:
    """A random point on the surface of each ball: in linf one of its corners."""
    noise = dice.normal(ball.center.shape[1:], counter).to(ball.center)
    return ball.project(ball.center + ball.steepest(noise, ball.center, ball.radius))


def _ridge(cloud: Tensor, far: Tensor) -> Tensor:
    """The directions ``(C + r I)^-1 (far - mean)`` of length one, C the covariance of each cloud.

    Computed from the inner products of the points, of which there are fewer than features.
    """
    mean = cloud.mean(1)
    centred, aim = (cloud - mean[:, None]).double(), (far - mean).double()
    count = centred.shape[1]
    products = centred @ centred.mT / count
    variance = products.diagonal(dim1=1, dim2=2).sum(1) / min(count, centred.shape[2])
    ridge = (RIDGE * variance).clamp_min(torch.finfo(torch.float64).tiny)[:, None, None]
    identity = torch.eye(count, dtype=torch.float64, device=cloud.device)
    shares = torch.linalg.solve(products + ridge * identity, centred @ aim[..., None]) / count
    weights: Tensor = aim - (centred.mT @ shares)[..., 0]
    weights = weights / weights.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return weights.to(cloud.dtype)


def _heights(head: Oracle, x: Tensor) -> Tensor:
    """Scores above those of the clean images."""
    return _margin(head.logits(x))


def _margin(logits: Tensor, _: object = None) -> Tensor:
    return logits[:, 1] - logits[:, 0] + CLEAN


def _ascend(head: Oracle, ball: Ball, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What one step along the gradient reaches, what several reach, and where they do."""
    x = top = start
    most = torch.full((len(ball),), -torch.inf, device=x.device)
    once = most
    for step, length in enumerate(STEPS):
        slope, height, _ = head.gradient(x, _margin)
        slope = torch.nan_to_num(slope)
        if step == 0:
            once = _heights(head, ball.project(x + ball.steepest(slope, x, ball.radius)))
        top, most = pick(height > most, x, top), torch.maximum(height, most)
        x = ball.project(x + ball.stride(slope, x, length * ball.radius))
    height = _heights(head, x)
    return once, torch.maximum(height, most), pick(height > most, x, top)


def _true_slopes(head: Oracle, ball: Ball, known: Tensor, height: Tensor) -> Tensor:
    """Whether gradients at the known examples are those of the scores, on the way back."""
    back = ball.project(known + BACK * (ball.center - known))
    slope, _, _ = head.gradient(known, _margin)
    expected = (torch.nan_to_num(slope) * (back - known)).flatten(1).sum(1)
    measured = _heights(head, back) - height
    # On a plateau both are zero, and the gradient shows no way.
    return (measured != 0) & ((expected - measured).abs() <= AGREE * measured.abs())


def apart(images: Tensor, threat: Threat) -> Tensor:
    """Which images are more than two radii from every earlier one, so that no balls meet."""
    flat = images.flatten(1)
    near = between(flat, flat, threat.norm.order) <= 2 * threat.radius * (1 + 1e-3)
    return ~near.tril(-1).any(1)
