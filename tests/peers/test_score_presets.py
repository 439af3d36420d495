"""Published forms of attacks that see scores, against short implementations and pyautoattack.

Both take the same draws: the dice of the same rows, under the same keys. Scores are float64 and not
rounded: differences over probes of 0.0001 would amplify the rounding to more than 1e-5. Probes are
clipped to the box on both sides, which the presets state.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from tests.peers.agreement import Case, agree, cases
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.attacks.closing import HiddenClasses, State
from besiege.core.dice import Dice
from besiege.core.siege import Siege
from besiege.models import Classifier

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]

Score = Callable[[Tensor], Tensor]
EPS, EPS2 = 0.1, 0.8
OTHER = {0: 1, 1: 0}


class Double(nn.Module):
    """A network in float64 on the means of tiles of `side` pixels, perhaps with hidden classes.

    On large images its logits are a tenth: cross-entropy then differs by more than what float32
    keeps of Bandits' prior.
    """

    def __init__(self, victim: Classifier, side: int = 1, told: int = 10) -> None:
        super().__init__()
        self.net, self.side, self.told = copy.deepcopy(victim.module).double(), side, told

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(functional.avg_pool2d(x.double(), self.side))
        logits = logits / 10 if self.side > 2 else logits
        if self.told == 10:
            return logits
        top = logits.log_softmax(1).topk(self.told, 1)
        return torch.full_like(logits, -torch.inf).scatter(1, top.indices, top.values)


class Exact(Classifier):
    """A classifier whose scores stay in float64."""

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits: Tensor = self.module(x)
        return logits


@cache
def double(number: int, side: int = 1, told: int = 10) -> Classifier:
    return Exact(Double(cases()[number].victim, side, told).eval(), classes=10)


def number_of(case: Case) -> int:
    return next(n for n, other in enumerate(cases()) if other is case)


def enlarged(case: Case, side: int) -> Tensor:
    return case.images.repeat_interleave(side, 2).repeat_interleave(side, 3)


def ours(
    case: Case, preset: str, steps: int, threat: str, side: int = 1, told: int = 10, **more: Any
) -> Tensor:
    """Our last iterates, or what `keep` says."""
    given = {"keep": "last", "leave": "end", "ids": torch.arange(len(case.images)), **more}
    rows = len(given["ids"])
    victim, images = double(number_of(case), side, told), enlarged(case, side)[:rows]
    text, labels = f"{preset}(steps={steps})", case.labels[:rows]
    with mock.patch("besiege.core.oracle.to_float32", lambda logits: logits):
        return besiege.attack(text, victim, images, labels, threat=threat, **given).images


def about(steps: int, more: str = "") -> str:
    """What is compared: a short run."""
    return ", ".join((*filter(None, [more]), f"{steps} steps, in float64"))


LARGE = "images of 104 x 104"


def dice_of(rows: int, attack: str) -> Dice:
    return Dice.throw(0, torch.arange(rows)).of(attack)


def scores(case: Case, loss: str, targets: Tensor | None = None, side: int = 1) -> Score:
    """The loss of images ``[rows, k, ...]``, to be maximized."""
    victim, classes = double(number_of(case), side), case.labels if targets is None else targets

    @torch.no_grad()
    def score(x: Tensor) -> Tensor:
        z = victim(x.flatten(0, 1))
        y = classes.repeat_interleave(x.shape[1])
        own = z.gather(1, y[:, None])[:, 0]
        if loss == "margin":
            value = z.scatter(1, y[:, None], -torch.inf).amax(1) - own
        else:
            value = functional.cross_entropy(z, y, reduction="none")
        return (value if targets is None else -value).view(x.shape[:2])

    return score


def wide(values: Tensor, x: Tensor) -> Tensor:
    values = values.view(*values.shape, *[1] * (x.dim() - values.dim()))
    return values if values.dtype == torch.bool else values.to(x.dtype)


def length(x: Tensor) -> Tensor:
    return wide(x.flatten(1).double().norm(dim=1).clamp_min(1e-30), x)


def step_of(x: Tensor, x0: Tensor, g: Tensor, lr: Tensor | float, eps: float, norm: str) -> Tensor:
    """A sign step, or one along the gradient; projected onto the ball, then clipped."""
    rate = wide(lr, x) if isinstance(lr, Tensor) else lr
    if norm == "linf":
        return (x + rate * g.sign()).clamp(x0 - eps, x0 + eps).clamp(0, 1)
    return projected(x + rate * g / length(g), x0, eps, norm)


def projected(x: Tensor, x0: Tensor, eps: float, norm: str) -> Tensor:
    if norm == "linf":
        return x.clamp(x0 - eps, x0 + eps).clamp(0, 1)
    return (x0 + (x - x0) * (eps / length(x - x0)).clamp_max(1.0)).clamp(0, 1).to(x0.dtype)


def ascended(
    case: Case,
    attack: str,
    score: Score,
    draws: str,
    steps: int,
    many: int,
    sigma: float,
    lr: float,
    eps: float,
    norm: str = "linf",
    paired: bool = True,
    floor: float = 1.0,
    window: int = 20,
    momentum: float = 0.0,
    adam: bool = False,
) -> Tensor:
    """NES, SPSA and RGF."""
    x0 = x = case.images
    n, mean, m, v = len(x), torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    rate, past = torch.full((n,), lr, dtype=torch.float64), [[0.0][:0] for _ in range(n)]
    # Probes that show no difference would grow; in float64 all show one.
    for t in range(steps):
        u = directions(dice_of(n, attack).of("probes", t), draws, tuple(x.shape[1:]), many)
        up, down = (x[:, None] + sigma * u).clamp(0, 1), (x[:, None] - sigma * u).clamp(0, 1)
        high, low = score(up), score(down) if paired else score(x[:, None])
        slope = (high - low) / (2 * sigma if paired else sigma)
        g = (wide(slope, u) * (up - down) / (2 * sigma)).mean(1)
        for row, level in enumerate((high + low).mean(1).tolist()):
            past[row] = [*past[row], level][-window:]
            if len(past[row]) == window and past[row][-1] < past[row][0]:
                rate[row], past[row] = max(float(rate[row]) / 2, floor * lr), []
        g = mean = momentum * mean + (1 - momentum) * g
        if adam:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            fixed = (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-9)
            x = projected(x + lr * fixed, x0, eps, norm)
        else:
            x = step_of(x, x0, g, rate, eps, norm)
    return x


def directions(dice: Dice, draws: str, shape: tuple[int, ...], many: int) -> Tensor:
    counter = torch.arange(many).expand(len(dice), -1)
    if draws == "signs":
        return dice.signs(shape, counter)
    u = dice.normal(shape, counter)
    return even(u) if draws == "sphere" else u


def test_nes_ilyas() -> None:
    def theirs(case: Case) -> Tensor:
        score = scores(case, "cross_entropy", (case.labels + 1) % 10)
        given: dict[str, Any] = {"floor": 0.005, "window": 5, "momentum": 0.9}
        return ascended(case, "nes", score, "normal", 16, 25, 1e-3, 0.2 * EPS, EPS, **given)

    def mine(case: Case) -> Tensor:
        targets = (case.labels + 1) % 10
        return ours(case, "nes@ilyas", 16, f"linf:{EPS}", targets=targets)

    agree("nes@ilyas", "independent", mine, theirs, about=about(16, "targeted"))


REALSAFE: list[tuple[str, str, str, int, int, float, dict[str, Any]]] = [
    ("nes@realsafe", "linf", "normal", 4, 100, 0.15, {}),
    ("nes@realsafe", "l2", "normal", 4, 100, 0.15, {}),
    ("nes@realsafe-code", "linf", "normal", 24, 50, 0.15, {"floor": 0.1}),
    ("nes@realsafe-strength", "linf", "normal", 3, 250, 0.15, {"floor": 0.1}),
    ("spsa@uesato", "linf", "signs", 2, 1024, 0.31875, {"adam": True}),
    ("spsa@realsafe", "linf", "signs", 4, 100, 0.15, {}),
    ("spsa@realsafe-code", "linf", "signs", 4, 50, 0.3, {"adam": True}),
    ("spsa@realsafe-strength", "linf", "signs", 3, 250, 0.125, {"adam": True}),
    ("spsa@realsafe-code-l2", "l2", "signs", 4, 50, 0.27713, {"adam": True}),
    ("spsa@realsafe-strength-l2", "l2", "signs", 3, 250, 0.27713, {"adam": True}),
    ("spsa@realsafe-strength-imagenet", "linf", "signs", 3, 250, 1 / 16, {"adam": True}),
    ("spsa@realsafe-strength-imagenet-l2", "l2", "signs", 3, 250, 0.15811, {"adam": True}),
    ("rgf@cheng", "linf", "sphere", 12, 50, 0.1, {"paired": False}),
    ("rgf@cheng-l2", "l2", "sphere", 12, 50, 0.12212, {"paired": False}),
]


@pytest.mark.parametrize(("preset", "norm", "draws", "steps", "many", "rate", "more"), REALSAFE)
def test_ascents(
    preset: str, norm: str, draws: str, steps: int, many: int, rate: float, more: dict[str, Any]
) -> None:
    eps = EPS if norm == "linf" else EPS2
    sigma = 0.01 if "uesato" in preset else 1e-4 if "rgf" in preset else 1e-3
    loss = "cross_entropy" if "rgf" in preset else "margin"
    # A rate of Adam is a pixel value's.
    lr = rate * eps / (8 if norm == "l2" and more.get("adam") else 1)

    def theirs(case: Case) -> Tensor:
        attack, score = preset.partition("@")[0], scores(case, loss)
        return ascended(case, attack, score, draws, steps, many, sigma, lr, eps, norm, **more)

    named = preset.startswith("nes") or preset == "spsa@realsafe"
    agree(
        preset,
        "independent",
        lambda case: ours(case, preset, steps, f"{norm}:{eps}"),
        theirs,
        about=about(steps, norm if named else ""),
    )


def improved(
    case: Case, steps: int, eps: float, norm: str, rate: float, side: int, low: int | None
) -> Tensor:
    """P-RGF, with the other network for a substitute; `low` is the side of the coarse grid."""
    score, helper = scores(case, "cross_entropy", side=side), double(OTHER[number_of(case)], side)
    x0 = x = enlarged(case, side)
    n, d, q, shape = len(x), x[0].numel(), 50, tuple(x.shape[1:])
    sigma, size, grid = torch.full((n, 1), 1e-4), torch.zeros(n), (1, low, low) if low else shape
    for t in range(steps):
        dice, at = dice_of(n, "prgf"), x.clone().requires_grad_()
        loss = functional.cross_entropy(helper(at), case.labels, reduction="sum")
        v = torch.autograd.grad(loss, at)[0]
        v = v * torch.where(v > 0, x < 1, x > 0)  # it cannot be measured outside the box
        if t % 10 == 0 or t == 3:
            u = directions(dice.of("sizing", t), "sphere", shape, 10)
            size = (slopes(score, x, sigma, u)[0] ** 2).mean(1).sqrt()
        slope, v = (one[:, 0] for one in slopes(score, x, sigma, even(v[:, None])))
        alpha = (slope.abs() / (size * d**0.5)).clamp_max(1.0)
        v = v * wide(slope.sign(), v)
        u = directions(dice.of("probes", t), "normal", grid, q).flatten(0, 1)
        u, vs = even(functional.interpolate(u, shape[1:]).view(n, q, *shape)), v[:, None]
        u = even(u - wide((u * vs).flatten(2).sum(2) / (vs * vs).flatten(2).sum(2), u) * vs)
        lam = weight_of(alpha, d, q, math.prod(grid))[:, None]
        s, along = slopes(score, x, sigma, wide(lam.sqrt(), u) * vs + wide((1 - lam).sqrt(), u) * u)
        g = torch.where(wide(lam[:, 0] == 1, v), v, (wide(s, along) * along).mean(1))
        x = step_of(x, x0, g, rate * eps, eps, norm)
        blind = ((slope == 0) & (s == 0).all(1))[:, None]
        sigma = torch.where(blind, (5 * sigma).clamp_max(0.1), sigma)
    return x


def slopes(score: Score, x: Tensor, sigma: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes along one-sided probes, and the directions that were sent."""
    up, down = ((x[:, None] + way * wide(sigma, u) * u).clamp(0, 1) for way in (1, -1))
    return (score(up) - score(x[:, None])) / sigma, (up - down) / (2 * wide(sigma, u))


def even(u: Tensor) -> Tensor:
    """Directions ``[rows, k, ...]`` of root mean square one."""
    size = u.flatten(2).pow(2).mean(2).sqrt()
    return u / wide(size.clamp_min(1e-30), u)


def weight_of(alpha: Tensor, n: int, q: int, d: int) -> Tensor:
    a, lams = alpha.double() ** 2, []
    for one in a.tolist():
        if d == n:
            low, high = 1 / (d + 2 * q - 2), (2 * q - 1) / (d + 2 * q - 2)
            top = (1 - one) * (one * (d + 2 * q - 2) - 1)
            below = 2 * one * d * q - one**2 * d * (d + 2 * q - 2) - 1
        else:
            part = 3.5 * d / n
            low, high = part / (d + 2 * q - 2), part * (2 * q - 1) / d
            top = part * (part - one * (d + 2 * q - 2))
            below = part**2 + one**2 * d**2 - 2 * part * one * (q + d * q - 1)
        lams.append(0.0 if one <= low else 1.0 if one >= high else top / below)
    return torch.tensor(lams, dtype=torch.float64)


PRIOR = [
    ("prgf@cheng", "linf", 0.1, EPS, 1, None),
    ("prgf@cheng-l2", "l2", 0.12212, EPS2, 1, None),
    ("prgf@cheng-data", "l2", 0.12212, 13 * EPS2, 13, 50),
]


@pytest.mark.parametrize(("preset", "norm", "rate", "eps", "side", "low"), PRIOR)
def test_prgf(preset: str, norm: str, rate: float, eps: float, side: int, low: int | None) -> None:
    steps = 5 if low else 12

    def mine(case: Case) -> Tensor:
        other = double(OTHER[number_of(case)], side)
        return ours(case, preset, steps, f"{norm}:{eps}", side, substitute=other)

    def theirs(case: Case) -> Tensor:
        return improved(case, steps, eps, norm, rate, side, low)

    agree(preset, "independent", mine, theirs, about=about(steps, LARGE if low else ""))


def population(case: Case, steps: int, many: int, eps: float, norm: str) -> Tensor:
    """NATTACK."""
    x0, score = case.images, scores(case, "margin")
    n, shape = len(x0), tuple(x0.shape[1:])
    w0 = torch.atanh((2 * x0 - 1) * (1 - 1e-6))
    dice = dice_of(n, "nattack")
    mu = 0.001 * dice.of("mean").normal(shape)

    def images(z: Tensor) -> Tensor:
        x = 0.5 * (torch.tanh(w0[:, None] + z) + 1)
        k = x.shape[1]
        return projected(x.flatten(0, 1), x0.repeat_interleave(k, 0), eps, norm).view(x.shape)

    for t in range(steps):
        z = directions(dice.of("members", t), "normal", shape, many)
        reward = score(images(mu[:, None] + 0.1 * z)).double()
        reward = (reward - reward.mean(1, keepdim=True)) / (
            reward.std(1, keepdim=True, correction=0) + 1e-7
        )
        mu = mu + 0.02 / (many * 0.1) * (wide(reward, z) * z).sum(1)
    return images(mu[:, None])[:, 0]


@pytest.mark.parametrize(
    ("preset", "norm", "many"),
    [
        ("nattack@li", "linf", 300),
        ("nattack@realsafe", "linf", 100),
        ("nattack@realsafe", "l2", 100),
    ],
)
def test_nattack(preset: str, norm: str, many: int) -> None:
    eps, steps = EPS if norm == "linf" else EPS2, 4 if many == 300 else 8
    agree(
        preset,
        "independent",
        lambda case: ours(case, preset, steps, f"{norm}:{eps}"),
        lambda case: population(case, steps, many, eps, norm),
        about=about(steps, norm if preset == "nattack@realsafe" else ""),
    )


def learnt(case: Case, steps: int, eps: float, norm: str, side: int) -> Tensor:
    """Bandits."""
    eta, explore, h, rate = (0.1, 1.0, 100.0, 0.2) if norm == "linf" else (0.01, 0.01, 0.1, 0.1)
    score = scores(case, "cross_entropy", side=side)
    x0 = x = enlarged(case, side)
    n, size = len(x), tuple(x.shape[2:])
    shape = (1, *(min(50, one) for one in size))
    v = torch.zeros(n, *shape)
    for t in range(steps):
        e = dice_of(n, "bandits").of("explore", t).normal(shape) * explore / math.prod(shape) ** 0.5
        losses = []
        for q in (v + e, v - e):
            up = functional.interpolate(q, size)
            losses.append(score((x + eta * up / length(up)).clamp(0, 1)[:, None])[:, 0])
        g = wide((losses[0] - losses[1]) / (eta * explore), e) * e
        if norm == "linf":
            p = (v + 1) / 2
            # Both terms times exp(h g): what is left of a small v depends on the rounding.
            grown = torch.exp(2 * h * g)
            v = 2 * p * grown / (p * grown + 1 - p) - 1
        else:
            v = v + h * g
        x = step_of(x, x0, functional.interpolate(v, size), rate * eps, eps, norm)
    return x


@pytest.mark.parametrize(
    ("preset", "norm"), [("bandits@ilyas", "linf"), ("bandits@ilyas-l2", "l2")]
)
def test_bandits(preset: str, norm: str) -> None:
    eps = EPS if norm == "linf" else 13 * EPS2
    agree(
        preset,
        "independent",
        lambda case: ours(case, preset, 10, f"{norm}:{eps}", 13),
        lambda case: learnt(case, 10, eps, norm, 13),
        about=about(10, LARGE),
    )


def windows(case: Case, steps: int, side: int, norm: str) -> Iterator[tuple[int, Tensor, Any]]:
    """Every row, its uniforms for each step, and the draws of its start."""
    n, (_, h, w) = len(case.images), enlarged(case, side).shape[1:]
    dice = dice_of(n, "square").of("restart", 0)
    numbers = dice.uniform((4 if norm == "linf" else 6,), torch.arange(steps).expand(n, -1))
    if norm == "linf":
        yield from zip(range(n), numbers, dice.of("start").signs((1, 1, w)), strict=True)
        return
    tiles = h // (h // 5)
    turns = dice.of("start").of("turn").signs((tiles * tiles,)) <= 0
    signs = dice.of("start").signs((tiles * tiles,))
    yield from zip(range(n), numbers, zip(turns, signs, strict=True), strict=True)


def authors(case: Case, norm: str, eps: float, side: int, edge: bool, **given: Any) -> Tensor:
    """The authors' code, image by image, with the draws of ours; it does not stop at a success."""
    code = pytest.importorskip("pyautoattack.square", reason="pyautoattack is not installed")

    class Fed(code.SquareAttack):  # type: ignore[name-defined, misc]
        numbers: Iterator[float]
        signs: Iterator[Tensor]
        turns: Iterator[bool]

        def random_int(self, low: int = 0, high: int = 1, shape: Any = None) -> Tensor:
            return torch.tensor([low + int(next(self.numbers) * (high - low + edge))])

        def random_choice(self, shape: list[int]) -> Tensor:
            return next(self.signs).view(shape)

        def eta(self, s: int) -> Any:
            drawn = torch.tensor([1.0 if next(self.turns) else 0.0])
            with mock.patch("torch.rand", return_value=drawn):
                return super().eta(s)

        def margin_and_loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            margin, loss = super().margin_and_loss(x, y)
            return torch.ones_like(margin), loss

    images, found, steps = enlarged(case, side), [], given["n_queries"]
    victim = double(number_of(case), side)
    for row, u, start in windows(case, steps, side, norm):
        attack = Fed(victim, norm=norm.capitalize(), eps=eps, device="cpu", **given)
        signs, places = torch.where(u < 0.5, 1.0, -1.0), 2 if norm == "linf" else 4
        attack.numbers = iter(u[:, :places].flatten().tolist())
        turns, first = ([], [start]) if norm == "linf" else start
        attack.turns = iter([*turns, *(u[:, -2] < 0.5)])
        attack.signs = iter([*first, *signs[:, places if norm == "linf" else 5]])
        attack.init_hyperparam(images[row : row + 1])
        x = attack.attack_single_run(images[row : row + 1], case.labels[row : row + 1])[1]
        found.append(x)
    return torch.cat(found)


SQUARES = [
    ("square@croce", "linf", EPS, 1, True, 0.8, "linf"),
    ("square@croce", "l2", 2 * EPS2, 2, True, 0.8, "l2, images of 16 x 16"),
    ("square@croce", "l1", 12.0, 2, True, 0.8, "l1, images of 16 x 16"),
    ("square@croce-code", "linf", EPS, 1, False, 0.8, ""),
    ("square@andriushchenko-l2", "l2", 2 * EPS2, 2, True, 0.1, "images of 16 x 16"),
]


@pytest.mark.parametrize(("preset", "norm", "eps", "side", "edge", "share", "more"), SQUARES)
def test_square(
    preset: str, norm: str, eps: float, side: int, edge: bool, share: float, more: str
) -> None:
    given = {"n_queries": 50, "p_init": share, "resc_schedule": "andri" in preset}
    agree(
        preset,
        "pyautoattack",
        lambda case: ours(case, preset, 50, f"{norm}:{eps}", side, keep="highest"),
        lambda case: authors(case, norm, eps, side, edge, **given),
        about=about(50, more),
    )


def searched(case: Case, steps: int, eps: float) -> Tensor:
    """Square in linf as first published, on grey images, image by image."""
    score, side = scores(case, "margin"), case.images.shape[-1]
    found = case.images.clone()
    for row, u, start in windows(case, steps, 1, "linf"):
        x0 = case.images[row]
        low, high = (x0 - eps).clamp(0, 1), (x0 + eps).clamp(0, 1)

        def value(x: Tensor, row: int = row) -> float:
            every = found.clone()
            every[row] = x
            return float(score(every[:, None])[row, 0])

        x = torch.where(start > 0, high, low)
        best = value(x)
        for t in range(steps):
            halved = sum(int(t / steps * 10000) > last for last in HALVINGS)
            s = max(round(math.sqrt(0.05 / 2**halved * side * side)), 1)
            top, left = (int(one * (side - s + 1)) for one in u[t, :2].tolist())
            window = (..., slice(top, top + s), slice(left, left + s))
            new, up = x.clone(), bool(u[t, 2] < 0.5)
            new[window] = (high if up else low)[window]
            if torch.equal(new, x):  # the signs are drawn again: on grey images the other one
                new[window] = (low if up else high)[window]
            if (now := value(new)) > best:
                x, best = new, now
        found[row] = x
    return found


HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


def test_square_andriushchenko() -> None:
    agree(
        "square@andriushchenko",
        "independent",
        lambda case: ours(case, "square@andriushchenko", 60, f"linf:{EPS}", keep="highest"),
        lambda case: searched(case, 60, EPS),
        about=about(60),
    )


NEAR, ROWS = 0.15, 8


def closed(case: Case, attack: str, steps: int, starts: Tensor, authors: bool = False) -> Tensor:
    """NES with the top class, or labels, image by image; where it is in the end.

    As in the authors' code probes may leave the box, and one end of a pair counts alone.
    """
    box = (-torch.inf, torch.inf) if authors else (0.0, 1.0)
    victim, shape, found = double(number_of(case), 1, 1), tuple(case.images.shape[1:]), []
    labels_only = attack == "nes_labels"
    sigma, careful, likely = (1e-3, 4, 0.8) if labels_only else (1e-5, 2, -0.2)
    for row in range(ROWS):
        x0, t = case.images[row], int(case.labels[row] + 1) % 10
        x, g, past = starts[t], torch.zeros(shape), [0.0][:0]
        eps, cut, most, stuck = 1.0, 0.5, 0.2 * NEAR, False

        @torch.no_grad()
        def told(points: Tensor, t: int = t) -> Tensor:
            return victim(points)[:, t]  # -inf where it is not the top class

        for step in range(steps):
            dice = dice_of(ROWS, attack).at(torch.tensor([row])).of("probes", step)
            u = directions(dice, "normal", shape, 50)[0]
            ends = torch.stack(((x + sigma * u).clamp(*box), (x - sigma * u).clamp(*box)), 1)
            losses = (rates if labels_only else plain)(told, ends, dice)
            level, lacks = float(losses[losses > -torch.inf].mean()), torch.isinf(losses)
            # Of a pair with one end.
            losses = torch.where(lacks, 0.0 if authors else told(x[None]), losses)
            one = lacks.any(1) & (not authors)
            slope = (losses[:, 0] - losses[:, 1]) / torch.where(one, sigma, 2 * sigma)
            g = 0.9 * g + 0.1 * (wide(slope, u) * (ends[:, 0] - ends[:, 1]) / (2 * sigma)).mean(0)
            past = [*past, level][-5:]
            if len(past) == 5 and past[-1] < past[0]:
                most, past = max(most / 2, 0.02 * NEAR), []
            less, lr, stuck = cut if level > likely and eps > NEAR else 0.0, most, True
            for _ in range(99):
                reach = max(eps - less, NEAR)
                new = (x + lr * g.sign()).clamp(x0 - reach, x0 + reach).clamp(0, 1)
                if told(new[None]) > -torch.inf:
                    cut, past = (max(less, 0.1), []) if less else (cut, past)
                    x, eps, stuck = new, max(eps - less / careful, NEAR), False
                    break
                if lr < 0.04 * NEAR and not less:
                    break
                short = lr < 0.04 * NEAR
                lr, less = (most, less / 2 if less >= 4e-3 else 0.0) if short else (lr / 2, less)
            if stuck:
                break
        found.append(x)
    return torch.stack(found)


def plain(told: Score, ends: Tensor, dice: Dice) -> Tensor:
    return told(ends.flatten(0, 1)).view(50, 2)


def rates(told: Score, ends: Tensor, dice: Dice) -> Tensor:
    shape = tuple(ends.shape[2:])
    drawn = dice.of("around").uniform(shape, torch.arange(50 * 50)[None])[0]
    near = (ends[:, :, None] + drawn.view(50, 1, 50, *shape) * 0.002 - 0.001).clamp(0, 1)
    return (told(near.flatten(0, 2)) > -torch.inf).view(50, 2, 50).double().mean(2)


@pytest.mark.parametrize(("attack", "steps"), [("nes_partial", 30), ("nes_labels", 2)])
def test_closing_in(attack: str, steps: int) -> None:
    data = besiege.data.load("digits", count=200)

    def starts(case: Case) -> Tensor:
        right = double(number_of(case))(data.images).argmax(1) == data.labels
        return torch.stack([data.images[right & (data.labels == k)][-1] for k in range(10)])

    def mine(case: Case) -> Tensor:
        given = {"targets": (case.labels + 1)[:ROWS] % 10, "ids": torch.arange(ROWS)}
        pool, reached = (starts(case), torch.arange(10)), torch.zeros_like(case.images[:ROWS])
        usual = HiddenClasses.wait

        def watched(self: HiddenClasses, siege: Siege, *rest: Any) -> State:
            state = usual(self, siege, *rest)
            reached[siege.rows] = state.x
            return state

        with mock.patch.object(HiddenClasses, "wait", watched):
            ours(case, f"{attack}@ilyas", steps, f"linf:{NEAR}", 1, 1, starts=pool, **given)
        return reached

    agree(
        f"{attack}@ilyas",
        "independent",
        mine,
        lambda case: closed(case, attack, steps, starts(case)),
        about=about(steps, "8 images each"),
    )
