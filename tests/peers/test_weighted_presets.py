"""Published forms of attacks with a weight search against adv-lib, foolbox and short peers.

Long presets are compared over fewer steps, the same in both. Constants are written here once more,
from the papers: the presets are not read for them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from benchmarks.peers import stand_in_for_adv_lib
from scipy.optimize import minimize
from tests.peers.agreement import ROWS, Case, agree
from torch import Tensor, nn

from besiege.attacks.attack import parse
from besiege.attacks.optmargin import OptMargin
from besiege.attacks.zoo import ZOO
from besiege.core.siege import Siege
from besiege.models import Classifier

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch and numpy warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]


@dataclass(frozen=True)
class Constants:
    """What a publication ran: C&W, EAD and OptMargin."""

    rounds: int
    first: float
    rate: float
    kappa: float = 0.0
    abort: bool = False
    edge: float = 0.999999
    resume: bool = False
    decay: bool = True
    rule: str = "l1"
    beta: float = 1e-3
    centre: bool = False
    """Of OptMargin: whether the image alone must succeed, or all copies."""


@dataclass(frozen=True)
class Coordinates:
    """What a publication ran: ZOO."""

    boxed: bool = True
    """Whether probes are clipped to the box, as ours are."""

    first: float = 0.01
    rate: float = 0.01
    by: str = "adam"
    tanh: bool = False
    abort: int = 0
    reset: bool = False
    many: int = 128
    h: float = 1e-4


class Precise(nn.Module):
    """A network in float64, its logits multiplied, and then rounded: always in the same way."""

    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__()
        self.net, self.factor = deepcopy(net).double(), factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x.double()) * self.factor
        return logits.float()


def precise(case: Case, factor: float = 1.0) -> Case:
    """The same case in float64, so that rounding does not decide finite differences."""
    net = Precise(case.victim.module, factor).eval().requires_grad_(False)
    return replace(case, victim=Classifier(net, classes=10))


def near(case: Case, part: float = 0.9) -> Case:
    """Images on their way to the boundary, which short runs at a small rate can reach."""
    found = case.attack("cw(steps=30)", "l2").images
    return replace(case, images=case.images + part * (found - case.images))


NEAR = "images near the boundary"


def goals(case: Case, targeted: bool) -> tuple[str, dict[str, Any], Tensor]:
    """The threat, our further arguments, and the classes that the hinge compares."""
    if not targeted:
        return "l2", {}, case.labels
    targets = (case.labels + 1 + torch.arange(len(case.labels)) % 9) % 10
    return "l2 targeted:given", {"targets": targets}, targets


def lead(z: Tensor, classes: Tensor, targeted: bool) -> Tensor:
    """By how much the goal is reached, in logits ``[..., rows, classes]``."""
    own = classes.expand(z.shape[:-1])[..., None]
    other = z.scatter(-1, own, -torch.inf).amax(-1) - z.gather(-1, own)[..., 0]
    return -other if targeted else other


class Search:
    """The search over the weight, row by row, and the best success.

    As everywhere here, a success must lead by more than rounding could turn around.
    """

    def __init__(self, case: Case, first: float) -> None:
        self.hair = 64 * 2.0**-23 * case.victim.module(case.images).abs().amax(1)
        self.c = torch.full((len(case.labels),), first, dtype=torch.float64)
        self.low, self.high = torch.zeros_like(self.c), torch.full_like(self.c, 1e10)
        self.image, self.best = case.images.clone(), torch.full_like(self.c, torch.inf)

    def begin(self) -> None:
        self.won, self.live = torch.zeros(2, len(self.c), dtype=torch.bool)
        self.live, self.before = ~self.live, torch.full_like(self.c, torch.inf)

    def stalls(self, loss: Tensor) -> bool:
        self.live = self.live & ~(loss.detach() > 0.9999 * self.before)
        self.before = loss.detach()
        return not bool(self.live.any())

    def note(self, x: Tensor, good: Tensor, size: Tensor) -> None:
        good = good & self.live
        self.won, closer = self.won | good, good & (size < self.best)
        self.best = torch.where(closer, size.double(), self.best)
        self.image = torch.where(closer.view(-1, 1, 1, 1), x.detach(), self.image)

    def end(self) -> None:
        self.high = torch.where(self.won, torch.minimum(self.high, self.c), self.high)
        self.low = torch.where(self.won, self.low, torch.maximum(self.low, self.c))
        self.c = torch.where(self.high < 1e9, (self.low + self.high) / 2, 10 * self.c)


def carlini(
    case: Case,
    a: Constants,
    steps: int,
    targeted: bool = False,
    moves: Tensor | None = None,
    boxed: bool = True,
) -> Tensor:
    """C&W in l2; with `moves`, ``[copies, rows, ...]``, OptMargin, its copies boxed or not."""
    x, net, (_, _, classes) = case.images, case.victim.module, goals(case, targeted)
    w = torch.atanh(a.edge * (2 * x - 1))
    search, d = Search(case, a.first), torch.zeros_like(x)
    moves = torch.zeros_like(x)[None] if moves is None else moves
    for _ in range(a.rounds):
        search.begin()
        d = (d.detach() if a.resume else torch.zeros_like(x)).requires_grad_()
        adam = torch.optim.Adam([d], lr=a.rate)
        for step in range(steps):
            new = (torch.tanh(w + d) + 1) / 2
            copies = (new + moves).clamp(0, 1) if boxed else new + moves
            ahead = lead(net(copies.flatten(0, 1)).view(*copies.shape[:2], -1), classes, targeted)
            loss = (new - (torch.tanh(w) + 1) / 2).square().flatten(1).sum(1)
            loss = loss + search.c * (a.kappa - ahead).clamp_min(0).sum(0)
            if a.abort and step % max(1, steps // 10) == 0 and search.stalls(loss):
                break
            good = (ahead > search.hair) & (ahead >= a.kappa)
            good = good[-1] if a.centre else good.all(0)
            search.note(new, good, (new - x).flatten(1).norm(dim=1))
            (d.grad,) = torch.autograd.grad(loss.sum(), d)
            adam.step()
        search.end()
    return search.image


def ours(case: Case, text: str, targeted: bool = False, norm: str = "l2") -> Tensor:
    threat, given, _ = goals(case, targeted)
    return case.attack(text, threat.replace("l2", norm), **given).images


CARLINI = Constants(rounds=9, first=1e-3, rate=0.01, abort=True)
SU = replace(CARLINI, first=0.01, rate=1e-3)
DEEPSEC = Constants(rounds=10, first=1e-3, rate=0.02, edge=0.9999)
CW = {
    "carlini": CARLINI,
    "su": SU,
    "su-20": replace(SU, kappa=20.0),
    "su-40": replace(SU, kappa=40.0),
    "realsafe": replace(CARLINI, abort=False),
    "realsafe-code": Constants(rounds=15, first=1.0, rate=1e-3, resume=True),
    "deepsec": DEEPSEC,
    "deepsec-20": replace(DEEPSEC, kappa=20.0),
}


@pytest.mark.parametrize(
    ("name", "steps", "targeted", "like", "about"),
    [
        ("carlini", 80, False, replace, "80 steps"),
        ("su", 60, False, near, f"60 steps, {NEAR}"),
        (
            *("su-20", 60, False, lambda case: precise(near(case), 200)),
            f"60 steps, {NEAR}, logits times 200, in float64",
        ),
        (
            *("su-40", 60, False, lambda case: precise(near(case), 400)),
            f"60 steps, {NEAR}, logits times 400, in float64",
        ),
        ("realsafe-code", 15, False, near, f"15 steps, {NEAR}"),
        ("deepsec", 60, True, precise, "targeted, 60 steps, in float64"),
        (
            *("deepsec-20", 60, True, lambda case: precise(case, 8)),
            "targeted, 60 steps, logits times 8, in float64",
        ),
    ],
)
def test_cw(name: str, steps: int, targeted: bool, like: Any, about: str) -> None:
    text = f"cw@{name}(steps={steps})"
    agree(
        f"cw@{name}",
        "independent",
        lambda case: ours(like(case), text, targeted),
        lambda case: carlini(like(case), CW[name], steps, targeted),
        about=about,
    )


@pytest.mark.parametrize("name", ["carlini", "realsafe"])
def test_cw_against_adv_lib(name: str) -> None:
    """Its weight search counts the point at which it aborts: without that."""
    pytest.importorskip("adv_lib")
    stand_in_for_adv_lib()
    from adv_lib.attacks.carlini_wagner import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        carlini_wagner_l2,
    )

    attack: Any = replace(parse(f"cw@{name}(steps=40)"), abort=False)  # type: ignore[type-var]
    a = CW[name]
    given = {"learning_rate": a.rate, "initial_const": a.first, "binary_search_steps": a.rounds}

    def theirs(case: Case) -> Tensor:
        images, labels = near(case).images, case.labels
        found: Tensor = carlini_wagner_l2(
            case.victim.module, images, labels, max_iterations=40, abort_early=False, **given
        )
        return found

    agree(
        f"cw@{name}",
        "adv_lib",
        lambda case: near(case).attack(attack, "l2").images,
        theirs,
        about=f"40 steps, {NEAR}, without abort",
    )


def elastic(case: Case, a: Constants, steps: int, targeted: bool, ahead: int = 0) -> Tensor:
    """EAD by iterative shrinkage; its extrapolation may be some steps ahead."""
    x0, net, (_, _, classes) = case.images, case.victim.module, goals(case, targeted)
    search = Search(case, a.first)

    def value(at: Tensor) -> tuple[Tensor, Tensor]:
        by = lead(net(at), classes, targeted)
        hinge = search.c * (a.kappa - by).clamp_min(0)
        return (at - x0).square().flatten(1).sum(1) + hinge, by

    for _ in range(a.rounds):
        search.begin()
        x = y = x0
        for k in range(steps):
            y = y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(value(y)[0].sum(), y)
            z = y.detach() - a.rate * ((1 - k / steps) ** 0.5 if a.decay else 1) * slope
            new = torch.where(z > x0 + a.beta, (z - a.beta).clamp_max(1), x0)
            new = torch.where(z < x0 - a.beta, (z + a.beta).clamp_min(0), new)
            y, x = new + (k + ahead) / (k + ahead + 3) * (new - x), new
            loss, by = value(x)
            away = (x - x0).abs().flatten(1).sum(1)
            if a.abort and k % max(1, steps // 10) == 0 and search.stalls(loss + a.beta * away):
                break
            net_size = (x - x0).square().flatten(1).sum(1) + a.beta * away
            good = (by > search.hair) & (by >= a.kappa)
            search.note(x, good, away if a.rule == "l1" else net_size)
        search.end()
    return search.image


CHEN = Constants(rounds=9, first=1e-3, rate=0.01, abort=True)
EAD = {
    "chen-en": replace(CHEN, rule="en"),
    "chen-l1": CHEN,
    "su": replace(CHEN, first=0.01, rate=1e-3),
    "su-20": replace(CHEN, first=0.01, rate=1e-3, kappa=20.0),
    "su-40": replace(CHEN, first=0.01, rate=1e-3, kappa=40.0),
    "deepsec-en": Constants(rounds=5, first=1e-3, rate=0.02, decay=False, rule="en"),
    "deepsec-l1": Constants(rounds=5, first=1e-3, rate=0.02, decay=False),
}


@pytest.mark.parametrize(
    ("name", "norm", "steps", "targeted", "like", "about"),
    [
        ("chen-en", "l2", 60, False, precise, "60 steps, in float64"),
        ("chen-l1", "l2", 60, False, precise, "60 steps, in float64"),
        ("su", "l2", 30, False, near, f"30 steps, {NEAR}"),
        (
            *("su-20", "l2", 30, False, lambda case: precise(near(case), 200)),
            f"30 steps, {NEAR}, logits times 200, in float64",
        ),
        (
            *("su-40", "l2", 30, False, lambda case: precise(near(case), 400)),
            f"30 steps, {NEAR}, logits times 400, in float64",
        ),
        ("deepsec-en", "l2", 60, True, precise, "targeted, 60 steps, in float64"),
        ("deepsec-l1", "l1", 60, True, precise, "targeted, 60 steps, in float64"),
    ],
)
def test_ead(name: str, norm: str, steps: int, targeted: bool, like: Any, about: str) -> None:
    text = f"ead@{name}(steps={steps})"
    agree(
        f"ead@{name}",
        "independent",
        lambda case: ours(like(case), text, targeted, norm),
        lambda case: elastic(like(case), EAD[name], steps, targeted),
        about=about,
    )


@pytest.mark.parametrize("rule", ["en", "l1"])
def test_ead_against_foolbox(rule: str) -> None:
    """Its abort looks at the loss of the extrapolated point: without it."""
    fb = pytest.importorskip("foolbox")
    attack: Any = replace(parse(f"ead@chen-{rule}(steps=50)"), abort=False)  # type: ignore[type-var]
    there = fb.attacks.EADAttack(9, 50, 0.01, 0.0, 1e-3, 1e-3, rule.upper(), abort_early=False)

    def theirs(case: Case) -> Tensor:
        model = fb.PyTorchModel(case.victim.module, bounds=(0, 1))
        found = there.run(model, case.images, fb.criteria.Misclassification(case.labels))
        # A failure there is an image of zeros.
        none = (found == 0).flatten(1).all(1).view(-1, 1, 1, 1)
        return torch.where(none, case.images, found)

    agree(
        f"ead@chen-{rule}",
        "foolbox",
        lambda case: case.attack(attack, "l2").images,
        theirs,
        about="50 steps, without abort",
    )


OPTMARGIN = {
    "he": (60, 8 / 255, replace(CARLINI, rounds=3, first=1.0)),
    "deepsec-mnist": (
        *(20, 0.3),
        Constants(rounds=3, first=0.02, rate=0.2, edge=0.9999, centre=True),
    ),
    "deepsec-cifar10": (
        *(20, 8 / 255),
        Constants(rounds=3, first=1.0, rate=0.02, edge=0.9999, centre=True),
    ),
}
"""Steps compared, the size of the copies' moves, and the other constants."""


@pytest.mark.parametrize("name", OPTMARGIN)
def test_optmargin(name: str) -> None:
    """Both get the directions that ours drew: 19 of the published size, and none."""
    steps, size, constants = OPTMARGIN[name]
    attack: Any = parse(f"optmargin@{name}(steps={steps}, rounds=3)")
    drawn: list[Tensor] = []
    held = OptMargin.held

    def noted(self: OptMargin, siege: Siege) -> tuple[Tensor, ...]:
        found = held(self, siege)
        drawn.append(found[0].transpose(0, 1))
        return found

    def mine(case: Case) -> Tensor:
        drawn.clear()
        with patch.object(OptMargin, "held", noted):
            return near(case).attack(attack, "l2", pad=False, batch=ROWS).images

    def sized(moves: Tensor) -> Tensor:
        flat = moves.flatten(2)
        if name == "he":
            sizes = flat[:-1].square().mean(2).sqrt()
        else:  # of all copies together
            sizes = flat.abs().amax(2).amax(0)
        assert len(moves) == 20 and bool((moves[-1] == 0).all())
        assert torch.allclose(sizes, torch.full_like(sizes, size))
        return moves

    agree(
        f"optmargin@{name}",
        "independent",
        mine,
        lambda case: carlini(near(case), constants, steps, moves=sized(drawn[0])),
        about=f"{steps} steps of 3 weights, {NEAR}",
    )


def boxed(case: Case, weights: int, row: int, target: Tensor) -> float:
    """The distance found by SciPy's L-BFGS-B, weight by weight."""
    x0, net = case.images[row : row + 1].double(), case.victim.module

    def objective(flat: np.ndarray, c: float) -> tuple[float, np.ndarray]:
        x = torch.from_numpy(flat).view_as(x0).requires_grad_()
        value = (x - x0).square().sum() + c * nn.functional.cross_entropy(net(x), target)
        (slope,) = torch.autograd.grad(value, x)
        return float(value), slope.double().flatten().numpy()

    c, low, high, best = 0.01, 0.0, 1e10, np.inf
    for _ in range(weights):
        start = x0.flatten().numpy()
        limits: Any = {"bounds": [(0.0, 1.0)] * len(start), "options": {"maxfun": 40}}
        ended = minimize(objective, start, (c,), "L-BFGS-B", jac=True, **limits)
        x = torch.from_numpy(ended.x).view_as(x0)
        won = bool(net(x).argmax(1) == target)
        best = min(best, float((x - x0).norm())) if won else best
        high, low = (min(high, c), low) if won else (high, max(low, c))
        c = (low + high) / 2 if high < 1e9 else 10 * c
    return best


@pytest.mark.parametrize(("name", "weights"), [("szegedy", 10), ("deepsec", 5)])
def test_blb(name: str, weights: int) -> None:
    """Distances within 2 %: both go to the minimum, but along other paths."""
    attack: Any = parse(f"blb@{name}(steps=40)")
    found: list[Tensor] = []

    def mine(case: Case) -> Tensor:
        threat, given, _ = goals(case, True)
        found[:] = [precise(case).attack(attack, threat, **given).distance]
        return torch.ones(ROWS)

    def theirs(case: Case) -> Tensor:
        (distance,), (_, _, targets) = found, goals(case, True)
        rows = [boxed(precise(case), weights, r, targets[r : r + 1]) for r in range(ROWS)]
        there = torch.tensor(rows).to(distance)
        print(
            (distance / there).nanmean(),
            torch.isfinite(distance).sum(),
            torch.isfinite(there).sum(),
        )
        close = (distance / there - 1).abs() < 0.02
        return (close | (distance.isinf() & there.isinf())).double()

    about = "distances within 2 %, targeted, 40 steps, in float64"
    agree(f"blb@{name}", "independent", mine, theirs, about=about)


def shown(x0: Tensor, w: Tensor, tanh: bool) -> Tensor:
    """The images of perturbations behind a tanh or not."""
    u = (x0 - 0.5) * (2 * 0.999999)
    atanh = 0.5 * (torch.log1p(u) - torch.log1p(-u))  # rounded like this, not as torch.atanh
    return torch.tanh(atanh + w) * 0.5 + 0.5 if tanh else x0 + w


def coordinatewise(
    case: Case, a: Coordinates, lengths: tuple[int, int], drawn: list[dict[int, Tensor]], row: int
) -> Tensor:
    """The iterates of ZOO for one image after every step, with given coordinates."""
    steps, rounds = lengths
    x0, label = case.images[row], case.labels[row]
    hair = 64 * 2.0**-23 * case.victim.module(x0[None]).abs().max()
    c, low, top, path = a.first, 0.0, 1e10, torch.zeros(rounds * steps, x0.numel())
    turn = 0
    for _ in range(rounds):
        w, (m, v, n) = torch.zeros(x0.numel()), torch.zeros(3, x0.numel(), dtype=torch.float64)
        won = ever = False
        before: Any = torch.inf
        for step in range(steps):
            at = drawn[turn][row]
            turn, k = turn + 1, min(a.many, len(w))
            assert len(at) == k
            probes = a.h * torch.nn.functional.one_hot(at, len(w)).float()
            moved = torch.cat((w[None], w + probes, w - probes)).view(-1, *x0.shape)
            wanted = shown(x0, moved, a.tanh)
            x, pairs = wanted.clamp(0, 1) if a.boxed else wanted, torch.arange(k)
            ahead = lead(case.victim.module(x), label.expand(len(x)), False)
            gap, size = (-ahead).clamp_min(0), (x[0] - x0).double().square().sum()
            if a.abort and step % a.abort == 0:
                if size + c * gap[0] > 0.9999 * before:
                    break
                before = size + c * gap[0]
            good = bool(ahead[0] > hair)
            won = won or good
            high, down = slice(1, k + 1), slice(k + 1, None)
            bent = (wanted[high] - wanted[down]).flatten(1).double()[pairs, at]
            part = (x[high] - x[down]).flatten(1).double()[pairs, at] / bent
            part = part.nan_to_num(0.0)
            g = c * (gap[high].double() - gap[down]) / (2 * a.h * part)
            g = torch.where(part > 0.01, g, 0) + bent / a.h * (x[0] - x0).flatten().double()[at]
            if a.by == "adam":
                n[at] += 1
                m[at], v[at] = 0.9 * m[at] + 0.1 * g, 0.999 * v[at] + 0.001 * g**2
                root = (v[at] / (1 - 0.999 ** n[at])).sqrt() + 1e-8
                g = m[at] / (1 - 0.9 ** n[at]) / root
            else:
                bend = (gap[high].double() - 2 * gap[0].double() + gap[down]) / a.h**2
                bend = c * torch.where(part > 0.99, bend, 0.0) + 2 * (bent / (2 * a.h)) ** 2
                g = g / torch.where(bend <= 0, 1.0, bend.clamp_min(0.1))
            w[at] -= (a.rate * g).float()
            w = w if a.tanh else torch.maximum(torch.minimum(w, 1 - x0.flatten()), -x0.flatten())
            path[turn - 1] = shown(x0, w.view_as(x0), a.tanh).flatten()
            if a.reset and good and not ever:
                m, v, n = torch.zeros_like(m), torch.zeros_like(v), torch.zeros_like(n)
            ever = ever or good
        top, low = (min(top, c), low) if won else (top, max(low, c))
        c = (low + top) / 2 if top < 1e9 else 10 * c
    return path


LARGE = Coordinates(first=10.0, rate=0.002, tanh=True, abort=100, reset=True)
ZOOS = {
    "chen-mnist": Coordinates(first=0.01, rate=0.01, abort=100),
    "chen-cifar10": Coordinates(first=0.01, rate=0.01, tanh=True, abort=100),
    "chen-newton": Coordinates(first=0.01, rate=0.01, by="newton", abort=100),
    "chen-imagenet": LARGE,
    "chen-imagenet-targeted": LARGE,
    "realsafe": Coordinates(first=10.0, rate=0.01, many=1),
}


@pytest.mark.parametrize(
    ("name", "steps", "rounds"),
    [
        ("chen-mnist", 3, 4),
        ("chen-cifar10", 3, 4),
        ("chen-newton", 3, 4),
        ("chen-imagenet", 10, 1),
        ("chen-imagenet-targeted", 10, 1),
        ("realsafe", 40, 1),
    ],
)
def test_zoo(name: str, steps: int, rounds: int) -> None:
    """Both get the coordinates that ours drew; images so small are not resized.

    The iterates are compared: here a probe that succeeds counts too.
    """
    attack: Any = parse(f"zoo@{name}(steps={steps}, rounds={rounds})")
    constants = ZOOS[name]
    drawn: list[dict[int, Tensor]] = []
    paths: list[Tensor] = []
    ask, descend = ZOO.ask, ZOO._descend

    def asked(self: ZOO, siege: Siege, w: Tensor, step: int) -> Any:
        found = ask(self, siege, w, step)
        drawn.append(dict(zip(siege.rows.tolist(), found.coordinates, strict=True)))
        return found

    def moved(self: ZOO, *given: Any) -> Any:
        found = descend(self, *given)
        paths.append(torch.zeros(ROWS, found.w[0].numel()))
        x0 = given[0].center
        paths[-1][list(drawn[-1])] = shown(x0, found.w, constants.tanh).flatten(1)
        return found

    def mine(case: Case) -> Tensor:
        drawn.clear()
        paths.clear()
        with patch.object(ZOO, "ask", asked), patch.object(ZOO, "_descend", moved):
            precise(near(case)).attack(attack, "l2", pad=False, batch=ROWS)
        path = torch.zeros(rounds * steps, *paths[0].shape)
        path[: len(paths)] = torch.stack(paths)
        return path.transpose(0, 1)

    def theirs(case: Case) -> Tensor:
        same = precise(near(case))
        each = partial(coordinatewise, same, constants, (steps, rounds), drawn)
        return torch.stack([each(row) for row in range(ROWS)])

    run = f"{steps} steps of {rounds} weights" if rounds > 1 else f"{steps} steps"
    run += ", untargeted" if name.endswith("targeted") else ""
    about = f"all iterates, {run}, {NEAR}, in float64"
    agree(f"zoo@{name}", "independent", mine, theirs, about=about)
