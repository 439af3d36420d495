"""Published forms of attacks that see labels, against short implementations of one image each.

Both are given the same random numbers and the same start, and networks in float64: near the
boundary another rounding would be another answer. All images that they send to the victim are
compared, in their order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.peers.agreement import Case, agree
from torch import Tensor

from besiege.attacks.attack import parse
from besiege.core.answer import Answer
from besiege.core.dice import Dice
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import Threat
from besiege.evaluation import craft
from besiege.models import Classifier

pytestmark = pytest.mark.peer


@cache
def exact(case: Case) -> Case:
    """The case with its network in float64."""
    old = case.victim
    net = deepcopy(old.module).double()
    return replace(case, victim=Classifier(net, mean=old.mean, std=old.std, classes=old.classes))


class Over(Exception):
    """No queries are left."""


class Image:
    """One image under attack: its victim answers until the queries are spent."""

    def __init__(self, case: Case, row: int, queries: int, attack: str) -> None:
        self.x, self.label, self.victim = case.images[row], case.labels[row], case.victim
        self.dice = Dice.throw(0, torch.tensor([row])).of(attack)
        self.sent: list[Tensor] = []
        self.left = queries
        self.scale = self.victim(self.x[None]).abs().max()

    def ask(self, images: Tensor) -> Tensor:
        """Which images, clipped to the box, are adversarial, by more than rounding can undo."""
        images = images.float().clamp(0, 1)[: self.left]
        self.sent.extend(images)
        self.left -= len(images)
        with torch.no_grad():
            logits = self.victim(images)
        if self.left == 0:
            raise Over
        hair = 2.0**-17 * torch.maximum(logits.abs().amax(1), self.scale)
        return logits.amax(1) - logits[:, self.label] >= hair

    def one(self, image: Tensor) -> bool:
        """Whether an image is adversarial."""
        return bool(self.ask(image[None]))

    def normal(self, *purpose: str | int, n: int = 0, shape: tuple[int, ...] = ()) -> Tensor:
        """A normal draw, of the image's shape by default."""
        return self.dice.of(*purpose).normal(shape or tuple(self.x.shape), n)[0]

    def start(self) -> Tensor:
        """The first adversarial one of noise images, then of the image with growing noise."""
        for n in range(10):
            noise = self.dice.of("start noise").uniform(tuple(self.x.shape), n)[0]
            if self.one(noise):
                return noise
        for n in range(10):
            image = (self.x + 0.05 * 1.5**n * self.normal("start sizes", n=n)).clamp(0, 1)
            if self.one(image):
                return image
        raise Over


def ours(case: Case, attack: str, threat: str, queries: int) -> Tensor:
    """The images that our attack sends for each row, but for the clean one, padded with NaN."""
    sent: list[list[Tensor]] = [[] for _ in case.images]
    samples = Samples.of(case.images, case.labels)
    with watched(sent):
        craft(case.victim, parse(attack), samples, Threat.parse(threat), queries=queries + 1)
    return padded(sent, queries)


@contextmanager
def watched(sent: list[list[Tensor]]) -> Iterator[None]:
    """Note the images of all queries by row."""
    labels = Siege.labels

    def noted(self: Siege, x: Tensor, rows: Tensor | None = None) -> Answer:
        answer = labels(self, x, rows)
        owners = self.rows if rows is None else self.rows[rows]
        if answer.labels.dim() == 2:
            owners = owners.repeat_interleave(answer.labels.shape[1])
            x = x.flatten(0, 1)
        labels_of = answer.labels.flatten().tolist()
        for owner, image, label in zip(owners.tolist(), x.clone(), labels_of, strict=True):
            if label >= 0:
                sent[owner].append(image)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Siege, "labels", noted)
        yield


def theirs(case: Case, attack: str, run: Callable[[Image], None], queries: int) -> Tensor:
    """The images that a short implementation sends for each row."""
    sent = []
    for row in range(len(case.images)):
        image = Image(case, row, queries, attack)
        with suppress(Over):
            run(image)
        sent.append(image.sent)
    return padded(sent, queries)


def padded(sent: list[list[Tensor]], queries: int) -> Tensor:
    """Images of every row, ``[rows, queries, ...]``, NaN where there are fewer."""
    shape = next(images[0].shape for images in sent if images)
    full = torch.full((len(sent), queries, *shape), torch.nan)
    for row, images in zip(full, sent, strict=True):
        if images:
            row[: len(images)] = torch.stack(images)[:queries]
    return full


def compare(preset: str, run: Callable[[Image], None], queries: int, threat: str) -> None:
    """Compare all queried images."""
    agree(
        preset,
        "independent",
        lambda case: ours(exact(case), preset, threat, queries),
        lambda case: theirs(exact(case), parse(preset).title(), run, queries),
        about=f"the first {queries} queried images, {threat}, in float64",
    )


def boundary(at: Image) -> None:
    """Brendel et al. 2018."""
    x, s, e, draws = at.start(), 0.01, 0.01, 0
    spheres: deque[bool] = deque(maxlen=100)
    steps: deque[bool] = deque(maxlen=30)
    for step in range(1, 100000):
        for _ in range(25):
            r = at.x - x
            n, eta = r.norm(), at.normal("walk", n=draws)
            draws += 1
            eta = eta - r * (eta * r).sum() / n**2
            eta = eta * s * n / eta.norm()
            sphere = (at.x + (eta - r) / math.sqrt(1 + s**2)).clamp(0, 1)
            back = at.x - sphere
            share = max(0.0, float((e * n + back.norm() - n) / back.norm()))
            new = (sphere + share * back).clamp(0, 1)
            if step % 10 == 0:
                spheres.append(at.one(sphere))
                if not spheres[-1]:
                    continue
            good = at.one(new)
            if step % 10 == 0:
                steps.append(good)
            if good and (at.x - new).norm() < n:
                x = new
                break
        if len(spheres) == 100 and len(steps) == 30:
            often, well = sum(spheres) / 100, sum(steps) / 30
            if often > 0.5 or often < 0.2:
                factor = 1.5 if often > 0.5 else 1 / 1.5
                s, e = min(1.0, s * factor), min(1.0, e * factor)
                spheres.clear()
            if well > 0.5 or well < 0.2:
                e = min(1.0, e * (1.5 if well > 0.5 else 1 / 1.5))
                steps.clear()


@pytest.mark.parametrize(("preset", "queries"), [("brendel", 1000), ("realsafe", 50)])
def test_boundary(preset: str, queries: int) -> None:
    """The longer one adapts its step sizes."""
    compare(f"boundary@{preset}", boundary, queries, "l2")


def evolutionary(sigma: float) -> Callable[[Image], None]:
    """Dong et al. 2019, at full resolution."""

    def run(at: Image) -> None:
        x, mu, wins, d = at.start(), 0.01, 0, at.x.numel()
        spread, path = torch.ones(d), torch.zeros(d)
        for step in range(100000):
            chance = at.dice.of("mutation").of("which").uniform((d,), step)[0].double() + 2.0**-25
            # The first of d clocks that ring at the rates of the variances.
            chosen = (-chance.log() / spread).argsort()[: d // 20]
            z = torch.zeros(d)
            drawn = at.normal("mutation", n=step, shape=(d // 20,))
            z[chosen] = drawn * spread[chosen].sqrt()
            far = (at.x - x).norm()
            b = x + mu * (at.x - x)
            new = b + (sigma * far * z / z.norm()).view_as(x)
            new = at.x + (new - at.x) * (b - at.x).norm() / (new - at.x).norm()
            new = new.clamp(0, 1)
            if at.one(new) and (new - at.x).norm() < far:
                x, wins = new, wins + 1
                path = 0.99 * path + math.sqrt(1 - 0.99**2) * z
                spread = 0.999 * spread + 0.001 * path**2
            if step % 30 == 29:
                mu, wins = min(0.9, mu * math.exp(wins / 30 - 0.2)), 0

    return run


@pytest.mark.parametrize(("preset", "sigma"), [("dong", 0.01), ("realsafe", 0.03)])
def test_evolutionary(preset: str, sigma: float) -> None:
    compare(f"evolutionary@{preset}", evolutionary(sigma), 200, "l2")


def hopskipjump(linf: bool) -> Callable[[Image], None]:
    """Chen et al. 2020."""

    def run(at: Image) -> None:
        x0, x, d = at.x, at.start(), at.x.numel()
        theta = d**-2.0 if linf else d**-1.5

        def blend(far: Tensor, share: float) -> Tensor:
            return x0 + share * (far - x0)

        def cut(far: Tensor, share: float) -> Tensor:
            return x0 + (far - x0).clamp(-share * size(far), share * size(far))

        def size(x: Tensor) -> float:
            return float((x - x0).abs().max() if linf else (x - x0).norm())

        def bisect(path: Callable[[Tensor, float], Tensor], far: Tensor, exact: float) -> Tensor:
            low, high = 0.0, 1.0
            while high - low > exact:
                middle = (low + high) / 2
                low, high = (low, middle) if at.one(path(far, middle)) else (middle, high)
            return path(far, high)

        x = bisect(blend, x, 1e-3)
        before, x = size(x), bisect(cut if linf else blend, x, theta)
        for t in range(1, 41):
            places, dice = torch.arange(int(100 * math.sqrt(t)))[None], at.dice.of("probes", t)
            draw = dice.uniform(x.shape, places) * 2 - 1 if linf else dice.normal(x.shape, places)
            u = draw[0] / draw[0].flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            delta = 0.1 if t == 1 else before / d
            probes = (x + delta * u).clamp(0, 1)
            vote = at.ask(probes).float() * 2 - 1
            if vote.min() < vote.max():
                vote -= vote.mean()
            v = (vote.view(-1, 1, 1, 1) * (probes - x) / delta).mean(0)
            v, step = v.sign() if linf else v / v.norm(), size(x) / math.sqrt(t)
            while not at.one(x + step * v):
                step /= 2
            far = (x + step * v).clamp(0, 1)
            before, x = size(far), bisect(cut if linf else blend, far, theta)

    return run


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_hopskipjump(norm: str) -> None:
    run = hopskipjump(norm == "linf")
    compare("hopskipjump@chen", run, 1000, norm)


def rays(at: Image) -> None:
    """Chen and Gu 2020."""
    v, d, radius, level, block = torch.ones(at.x.numel()), at.x.numel(), math.inf, 0, 0
    root = math.sqrt(d)
    while True:
        size = math.ceil(d / 2**level)
        tried = v.clone()
        tried[block * size : (block + 1) * size] *= -1
        way = (tried / root).view_as(at.x)
        low, high = 0.0, min(radius, root)
        if at.one(at.x + high * way):
            while True:
                middle = (low + high) / 2
                low, high = (low, middle) if at.one(at.x + middle * way) else (middle, high)
                if high - low <= 1e-3:
                    break
            if high < radius:
                v, radius = tried, high
        block += 1
        if block * size >= d:
            level, block = level + 1, 0


def test_rays() -> None:
    compare("rays@chen", rays, 500, "linf")


def unit(t: Tensor, linf: bool) -> tuple[Tensor, float]:
    """A direction of length one, and the length."""
    size = float(t.abs().max() if linf else t.double().norm())
    return t / torch.tensor(size), size


def bisect(at: Image, theta: Tensor, low: float, high: float, exact: float) -> float:
    """The smallest known adversarial length."""
    while high - low > exact:
        middle = (low + high) / 2
        low, high = (low, middle) if at.one(at.x + middle * theta) else (middle, high)
    return high


def local(at: Image, theta: Tensor, guess: float, exact: float, most: float) -> float:
    """The same from a guess."""
    beyond = at.one(at.x + guess * theta)
    factor = 0.99 if beyond else 1.01
    end = guess * factor
    while end <= most and at.one(at.x + end * theta) == beyond:
        end *= factor
    if end > most:
        return math.inf
    return bisect(at, theta, min(end, guess), max(end, guess), exact)


def opt(signs: bool, steps: int, linf: bool = False) -> Callable[[Image], None]:
    """Cheng et al. 2019, and 2020 if only the signs of differences are used."""

    def run(at: Image) -> None:
        theta, g = at.x, math.inf
        for n in range(100):
            way, far = unit(at.normal("direction", n=n), linf)
            if at.one(at.x + far * way) and (far <= g or at.one(at.x + g * way)):
                new = bisect(at, way, 0.0, min(far, g), 1e-3 if signs else 1e-5)
                theta, g = (way, new) if new < g else (theta, g)
        if g == math.inf:
            way, far = unit(at.start() - at.x, linf)
            theta, g = way, bisect(at, way, 0.0, far, 1e-3 if signs else 1e-5)
        most, alpha, beta, many = 2 * g, 0.2, 1e-3, 200 if signs else 10
        for step in range(steps):
            u = [unit(at.normal("probes", n=step * many + i), linf)[0] for i in range(many)]
            near = [unit(theta + beta * v, linf)[0] for v in u]
            if signs:
                beyond = at.ask(torch.stack([at.x + g * t for t in near]))
                weight, ends = [-1.0 if b else 1.0 for b in beyond], []
            else:
                ends = [local(at, t, g, beta / 500, most) for t in near]
                weight = [(min(end, most) - g) / beta for end in ends]
            votes = torch.tensor(weight).view(-1, 1, 1, 1) * torch.stack(u)
            slope = (votes.double().sum(0) / many).float()
            found, best = g, theta
            for _ in range(15):
                way = unit(theta - alpha * slope, linf)[0]
                new, alpha = local(at, way, found, beta / 500, most), 2 * alpha
                if new >= found:
                    break
                found, best = new, way
            for _ in range(15 if found >= g else 0):
                alpha *= 0.25
                way = unit(theta - alpha * slope, linf)[0]
                new = local(at, way, found, beta / 500, most)
                if new < g:
                    found, best = new, way
                    break
            if ends and min(ends) < found:
                found, best = min(ends), near[ends.index(min(ends))]
            if alpha < (1e-6 if linf else 1e-4):
                alpha, beta = 1.0, 0.1 * beta
            theta, g = best, found

    return run


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_signopt(norm: str) -> None:
    run = opt(True, 1000, norm == "linf")
    compare("signopt@cheng", run, 700, norm)


def test_opt() -> None:
    """Its probes are measured side by side here: only the sizes of all images are compared."""
    most, steps = 5000, 1

    def sizes(case: Case, sent: Tensor) -> Tensor:
        ordered: Tensor = (sent - case.images[:, None]).flatten(2).norm(dim=2).sort(1).values
        return ordered

    agree(
        "opt@cheng",
        "independent",
        lambda case: sizes(case, ours(exact(case), f"opt@cheng(steps={steps})", "l2", most)),
        lambda case: sizes(case, theirs(exact(case), "opt", opt(False, steps), most)),
        about="sizes of all queried images, one step, in float64",
    )


def geoda(linf: bool) -> Callable[[Image], None]:
    """Rahmati et al. 2020."""

    def run(at: Image) -> None:
        def back(far: Tensor) -> Tensor:
            low, high, size = 0.0, 1.0, float((far - at.x).double().norm())
            while (high - low) * size > 1e-4:
                middle = (low + high) / 2
                good = at.one(at.x + (far - at.x) * middle)
                low, high = (low, middle) if good else (middle, high)
            return at.x + (far - at.x) * high

        n, sigma = at.x.shape[1], 4.5e-5
        places = torch.arange(n, dtype=torch.float64)
        table = torch.cos(math.pi / n * torch.outer(places + 0.5, places))
        table = (table / table.norm(dim=0)).float()
        x, w = back(at.start()), torch.zeros_like(at.x)
        for step in range(9):
            many = round(75 * 1.407**step)
            weights = at.dice.of("waves", step).normal(at.x.shape, torch.arange(many)[None])[0]
            probes = (x + sigma * (table @ weights @ table.T)).clamp(0, 1)
            vote = at.ask(probes).float() * 2 - 1
            w = w + (vote.view(-1, 1, 1, 1) * (probes - x) / sigma).mean(0)
            way = (w.sign() if linf else w) / (w.sign() if linf else w).norm()
            for k in range(1, 101):
                new = (at.x + k * 1.125 * way).clamp(0, 1)
                if at.one(new):
                    x = new
                    break
            x = back(x)

    return run


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_geoda(norm: str) -> None:
    """Probes are so short that rounding decides some votes: two steps and a half."""
    run = geoda(norm == "linf")
    compare("geoda@rahmati", run, 300, norm)
