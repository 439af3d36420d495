"""Published forms of first-order attacks against foolbox, torchattacks, pyautoattack and others.

Steps and step sizes are written here once more, from the papers: the presets are not read for them.
Libraries take their random starts from our runs, or ours from theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.peers.agreement import Case, agree, cases
from tests.victims import Spy
from torch import Tensor, nn
from torch.nn import functional

from besiege.attacks.apgd import APGD, APGDT
from besiege.attacks.attack import parse
from besiege.attacks.pieces import Given
from besiege.core import resizing
from besiege.core.dice import Dice
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation import craft

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch and numpy warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]

EPS = {"linf": 0.15, "l2": 1.0, "l1": 2.0}
Ascent = Callable[[Case, str], Tensor]


def threat(norm: str) -> str:
    return f"{norm}:{EPS[norm]}"


def least_likely(case: Case) -> Tensor:
    return case.victim(case.images).argmin(1)


def others(case: Case) -> Tensor:
    """A wrong class for every image."""
    return (case.labels + 1 + torch.arange(len(case.labels)) % 9) % 10


def started(case: Case, preset: str, norm: str) -> Tensor:
    """The point at which our run of a preset takes its first gradient."""
    spy, samples = Spy(case.victim), Samples.of(case.images, case.labels, classes=10)
    craft(spy, parse(preset), samples, Threat.parse(threat(norm)), leave="end", pad=False)
    return spy.images[1]


class Normalised(nn.Module):
    """Normalisation and network as one module, as other libraries expect it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.victim, self.inner = case.victim, case.victim.module

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        return self.victim(x)


def module(case: Case) -> nn.Module:
    return Normalised(case).eval()


# foolbox


def foolbox(
    case: Case,
    norm: str,
    steps: int,
    share: float,
    *,
    toward: Tensor | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """foolbox's steps of a share of the budget, perhaps towards classes or from given points."""
    box = pytest.importorskip("foolbox", reason="foolbox is not installed: benchmarks/peers.txt")
    eps = EPS[norm]
    name = {"linf": "LinfPGD", "l2": "L2PGD"}[norm]
    attack = getattr(box.attacks, name)(
        steps=steps, abs_stepsize=share * eps, random_start=start is not None
    )
    if start is not None:
        attack.get_random_start = lambda x, size: type(x)(start)
    model = box.PyTorchModel(module(case), bounds=(0, 1), device="cpu")
    goal: Any = box.criteria.Misclassification(case.labels)
    if toward is not None:
        goal = box.criteria.TargetedMisclassification(toward)
    found: Tensor = attack.run(model, case.images, goal, epsilon=eps)
    return found


FOOLBOX = {
    "fgsm@goodfellow": (1, 1.0),
    "fgsm@realsafe": (1, 1.0),
    "fgsm@su": (1, 1.0),
    "fgsm@deepsec-mnist": (1, 1.0),
    "fgsm@deepsec-cifar10": (1, 1.0),
    "llc@kurakin": (1, 1.0),
    "llc@deepsec-mnist": (1, 1.0),
    "llc@deepsec-cifar10": (1, 1.0),
    "bim@kurakin": (20, 1 / 16),
    "bim@realsafe": (20, 0.15),
    "bim@realsafe-code": (20, 1.5 / 20),
    "bim@realsafe-transfer": (10, 0.15),
    "bim@realsafe-strength": (100, (1 / 255) / (8 / 255)),
    "bim@realsafe-strength-l2": (100, 0.15),
    "bim@realsafe-strength-imagenet": (100, (1 / 255) / (16 / 255)),
    "bim@realsafe-strength-imagenet-l2": (100, 0.15 / 12.27),
    "bim@su": (50, 1 / 50),
    "bim@deepsec-mnist": (15, 0.05 / 0.3),
    "bim@deepsec-cifar10": (15, 0.01 / 0.1),
    "illc@kurakin": (20, 1 / 16),
    "illc@deepsec-mnist": (10, 0.05 / 0.3),
    "illc@deepsec-cifar10": (10, 0.01 / 0.1),
    "pgd@madry": (20, (2 / 255) / (8 / 255)),
    "pgd@madry-mnist": (40, 0.01 / 0.3),
    "pgd@deepsec-mnist": (15, 0.05 / 0.3),
    "pgd@deepsec-cifar10": (15, 0.01 / 0.1),
}


def norms_of(preset: str) -> list[str]:
    """The norms of a preset: its curves over iterations have a form for each."""
    if "-strength" not in preset:
        return ["linf", "l2"]
    return ["l2"] if preset.endswith("-l2") else ["linf"]


@pytest.mark.parametrize(("preset", "norm"), [(p, n) for p in FOOLBOX for n in norms_of(p)])
def test_plain_steps_are_those_of_foolbox(preset: str, norm: str) -> None:
    steps, share = FOOLBOX[preset]

    def theirs(case: Case) -> Tensor:
        name = preset.partition("@")[0]
        toward = least_likely(case) if name in ("llc", "illc") else None
        start = started(case, preset, norm) if name == "pgd" else None
        return foolbox(case, norm, steps, share, toward=toward, start=start)

    about = "" if norm == "linf" else norm
    agree(preset, "foolbox", lambda case: case.last(preset, threat(norm)), theirs, about=about)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_start_of_pgd_is_uniform_in_the_ball(norm: str) -> None:
    """foolbox takes it from us: so it is checked here."""
    eps, shares = EPS[norm], []
    for case in cases():
        with case.victim.held():
            change = started(case, "pgd@madry", norm) - case.images
        inner = (case.images > eps) & (case.images < 1 - eps)
        shares.append(
            change[inner] / eps if norm == "linf" else change.flatten(1).norm(dim=1) / eps
        )
    values = torch.cat(shares)
    assert values.abs().max() <= 1 + 1e-5
    if norm == "linf":
        assert abs(float(values.mean())) < 0.1 and abs(float(values.abs().mean()) - 0.5) < 0.05
    else:
        assert values.median() > 0.5


# torchattacks


def torchattacks(
    case: Case, name: str, steps: int, share: float, toward: Tensor | None = None
) -> Tensor:
    """An attack of torchattacks in linf."""
    library = pytest.importorskip(
        "torchattacks", reason="torchattacks is not installed: benchmarks/peers.txt"
    )

    eps = EPS["linf"]
    attack = getattr(library, name)(module(case), eps=eps, alpha=share * eps, steps=steps)
    if toward is None:
        found: Tensor = attack(case.images, case.labels)
        return found
    attack.set_mode_targeted_by_label(quiet=True)
    found = attack(case.images, toward)
    return found


MIM = {
    "mim@dong": (10, 1 / 10),
    "mim@realsafe": (20, 0.15),
    "mim@realsafe-code": (20, 1.5 / 20),
    "mim@realsafe-transfer": (10, 0.15),
    "mim@realsafe-strength": (100, 1 / 8),
    "mim@realsafe-strength-l2": (100, 0.15),
    "mim@realsafe-strength-imagenet": (100, 1 / 16),
    "mim@realsafe-strength-imagenet-l2": (100, 0.15 / 12.27),
    "mim@deepsec-mnist": (15, 0.05 / 0.3),
    "mim@deepsec-cifar10": (15, 0.01 / 0.1),
}


@pytest.mark.parametrize(
    "preset", [*(name for name in MIM if "linf" in norms_of(name)), "sinifgsm@lin"]
)
def test_momentum_is_that_of_torchattacks(preset: str) -> None:
    name, (steps, share) = "MIFGSM", MIM.get(preset, (10, 1 / 10))
    if preset == "sinifgsm@lin":
        name = "SINIFGSM"
    agree(
        preset,
        "torchattacks",
        lambda case: case.last(preset, threat("linf")),
        lambda case: torchattacks(case, name, steps, share),
    )


@pytest.mark.parametrize("preset", ["mim@deepsec-mnist", "mim@deepsec-cifar10"])
def test_targeted_momentum_is_that_of_torchattacks(preset: str) -> None:
    goal = f"{threat('linf')} targeted:given"
    agree(
        preset,
        "torchattacks",
        lambda case: case.last(preset, goal, targets=others(case)),
        lambda case: torchattacks(case, "MIFGSM", *MIM[preset], others(case)),
        about="targeted",
    )


# An independent ascent


def ascent(
    case: Case,
    norm: str,
    steps: int,
    share: float,
    *,
    start: Tensor | None = None,
    toward: Tensor | None = None,
    raw: bool = False,
    decay: float | None = None,
    through: Callable[[Tensor, int], Tensor] = lambda x, step: x,
    smooth: Callable[[Tensor], Tensor] = lambda g: g,
) -> Tensor:
    """Steps of a share of the budget; each lands in the ball, then in the box."""
    clean, eps, held = case.images, EPS[norm], torch.zeros_like(case.images)
    x = clean if start is None else start
    classes, sign = (case.labels, 1) if toward is None else (toward, -1)
    for step in range(steps):
        x = x.detach().requires_grad_()
        logits = case.victim(through(x, step))
        own = logits.gather(1, classes[:, None]).sum()
        loss = -own if raw else functional.cross_entropy(logits, classes, reduction="sum")
        (g,) = torch.autograd.grad(sign * loss, x)
        g = smooth(g)
        if decay is not None:
            g = held = decay * held + g / g.abs().sum((1, 2, 3), keepdim=True).clamp_min(1e-38)
        with torch.no_grad():
            if norm == "linf":
                change = (x + share * eps * g.sign() - clean).clamp(-eps, eps)
            else:
                length = g.flatten(1).norm(dim=1).clamp_min(1e-38).view(-1, 1, 1, 1)
                change = x + share * eps * g / length - clean
                size = change.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
                change = change * (eps / size).clamp_max(1.0)
            x = (clean + change).clamp(0, 1)
    return x.detach()


def blurred(g: Tensor) -> Tensor:
    """A 15 x 15 Gaussian over linspace(-3, 3), the same for every channel."""
    line = torch.exp(-0.5 * torch.linspace(-3, 3, 15) ** 2)
    kernel = torch.outer(line, line)
    kernel = (kernel / kernel.sum()).expand(g.shape[1], 1, 15, 15)
    return functional.conv2d(g, kernel, padding=7, groups=g.shape[1])


OWN: list[tuple[str, str, Ascent]] = [
    ("fgsm@su-code", "linf l2", partial(ascent, steps=1, share=1.0, raw=True)),
    ("bim@su-code", "linf l2", partial(ascent, steps=50, share=1 / 50, raw=True)),
    ("tim@dong", "linf l2", partial(ascent, steps=10, share=0.1, decay=1.0, smooth=blurred)),
    *(
        (name, "l2", partial(ascent, steps=n, share=s, decay=1.0))
        for name, (n, s) in MIM.items()
        if "l2" in norms_of(name)
    ),
]


@pytest.mark.parametrize(
    ("preset", "norm", "theirs"), [(p, n, c) for p, some, c in OWN for n in some.split()]
)
def test_ascents_are_those_of_a_few_lines(preset: str, norm: str, theirs: Ascent) -> None:
    agree(
        preset,
        "independent",
        lambda case: case.last(preset, threat(norm)),
        lambda case: theirs(case, norm),
        about="" if norm == "linf" else norm,
    )


@pytest.mark.parametrize(("preset", "steps"), [("fgsm@su-code", 1), ("bim@su-code", 50)])
def test_the_raw_logit_of_a_target_is_ascended(preset: str, steps: int) -> None:
    goal = f"{threat('linf')} targeted:given"

    def theirs(case: Case) -> Tensor:
        # The target's logit is raised: minus it is lowered.
        return ascent(case, "linf", steps, 1 / steps, toward=others(case), raw=True)

    agree(
        preset,
        "independent",
        lambda case: case.last(preset, goal, targets=others(case)),
        theirs,
        about="targeted",
    )


@pytest.mark.parametrize("form", ["tramer", "deepsec-mnist", "deepsec-cifar10"])
@pytest.mark.parametrize("name", ["rfgsm", "rllc"])
def test_the_random_step_comes_first(name: str, form: str) -> None:
    preset, half = f"{name}@{form}", EPS["linf"] / 2

    def theirs(case: Case) -> Tensor:
        at = started(case, preset, "linf")
        # Our signs where the box shows them; elsewhere the start is the clean image.
        signs = (at - case.images).sign()
        start = (case.images + half * signs).clamp(0, 1)
        assert (signs > 0).any() and (signs < 0).any()
        toward = least_likely(case) if name == "rllc" else None
        return ascent(case, "linf", 1, 0.5, start=start, toward=toward)

    agree(preset, "independent", lambda case: case.last(preset, threat("linf")), theirs)


DIM = {
    "dim@xie": (19, 1 / 15, 0.5),
    "dim@realsafe": (10, 0.15, 1.0),
    "dim@realsafe-code": (10, 0.15, 0.7),
    "dim@realsafe-strength": (100, 1 / 8, 0.7),
    "dim@realsafe-strength-l2": (100, 0.15, 0.7),
    "dim@realsafe-strength-imagenet": (100, 1 / 16, 0.7),
    "dim@realsafe-strength-imagenet-l2": (100, 0.15 / 12.27, 0.7),
}


@pytest.mark.parametrize(
    ("preset", "steps", "share", "often", "norm"),
    [(name, *given, norm) for name, given in DIM.items() for norm in norms_of(name)],
)
def test_diverse_inputs_with_our_draws(
    preset: str, steps: int, share: float, often: float, norm: str
) -> None:
    drawn: list[tuple[Tensor, Tensor, Tensor]] = []
    inner = resizing.resize_pad

    def noted(x: Tensor, size: Tensor, top: Tensor, left: Tensor) -> Tensor:
        drawn.append((size, top, left))
        return inner(x, size, top, left)

    def ours(case: Case) -> Tensor:
        drawn.clear()
        with patch.object(resizing, "resize_pad", noted):
            return case.last(preset, threat(norm), pad=False)

    def through(x: Tensor, step: int) -> Tensor:
        made, side = [], x.shape[-1]
        for image, size, top, left in zip(x, *(t.tolist() for t in drawn[step]), strict=True):
            small = functional.interpolate(image[None], size=(size, size), mode="bilinear")
            around = (left, side - size - left, top, side - size - top)
            made.append(functional.pad(small, around))
        return torch.cat(made)

    def theirs(case: Case) -> Tensor:
        sizes = torch.cat([size for size, _, _ in drawn])
        side = case.images.shape[-1]
        assert len(drawn) == steps and sizes.min() == math.floor(0.9 * side)
        # Of the sizes 7 and 8, half of those drawn are 7.
        assert abs(float((sizes < side).double().mean()) - 0.5 * often) < 0.15
        return ascent(case, norm, steps, share, decay=1.0, through=through)

    agree(preset, "independent", ours, theirs, about="" if norm == "linf" else norm)


# APGD


def authors(case: Case, norm: str, steps: int, targeted: bool) -> list[Tensor]:
    """All points about which the authors' code asks."""
    code = pytest.importorskip(
        "pyautoattack.autopgd_base", reason="pyautoattack is not installed: benchmarks/peers.txt"
    )
    sent: list[Tensor] = []

    def noted(points: Tensor) -> Tensor:
        sent.append(points.detach().clone())
        return case.victim(points)

    given = {"norm": norm.title(), "eps": EPS[norm], "n_iter": steps, "device": "cpu"}
    kind = code.APGDAttack_targeted if targeted else code.APGDAttack
    attack = kind(noted, use_largereps=norm == "l1", **given)
    if targeted:
        with torch.no_grad():
            attack.y_target = case.victim(case.images).argsort(1)[:, -2]
    attack.init_hyperparam(case.images)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        if norm == "l1":
            each, radii = math.ceil(0.3 * steps), [times * EPS[norm] for times in (3.0, 2.0, 1.0)]
            attack.decr_eps_pgd(case.images, case.labels, radii, [each, each, steps - 2 * each])
        else:
            attack.attack_single_run(case.images, case.labels)
    return sent


@pytest.mark.parametrize(
    ("preset", "norm", "steps"),
    [
        *((p, norm, 100) for p in ("apgd@croce", "apgdt@croce") for norm in ("linf", "l2", "l1")),
        ("apgdt@croce", "l2", 20),
    ],
)
def test_apgd_is_the_authors_code(preset: str, norm: str, steps: int) -> None:
    targeted, paths = preset == "apgdt@croce", []

    def ours(case: Case) -> Tensor:
        paths.append(authors(case, norm, steps, targeted))
        text = f"{preset}(steps={steps}, targets=1)" if targeted else f"{preset}(steps={steps})"
        attack = parse(text)
        assert isinstance(attack, (APGD, APGDT))
        attack = replace(attack, start=Given(paths[-1][0]))
        return case.last(attack, threat(norm))  # type: ignore[arg-type]

    about = f"{norm}, one target" if targeted else norm if norm != "linf" else ""
    about += "" if steps == 100 else f", {steps} steps"
    agree(preset, "pyautoattack", ours, lambda case: paths[-1][-1], about=about)


# UAP


def onward(case: Case, at: Tensor, label: int) -> tuple[float, Tensor]:
    """The Euclidean distance of the nearest linearised boundary of a point, and its gradient."""
    at = at.detach().requires_grad_()
    z = case.victim(at)[0]
    slopes = [torch.autograd.grad(one, at, retain_graph=True)[0] for one in z]
    steps = [
        (float((z[k] - z[label]).detach().abs() / (s - slopes[label]).norm()), s - slopes[label])
        for k, s in enumerate(slopes)
        if k != label
    ]
    return min(steps, key=lambda pair: pair[0])


def universal(
    case: Case, norm: str, target: float, passes: int, cut: bool, authors: bool = False
) -> Tensor:
    """One perturbation, from image to image in our order; applied to all images.

    As in DEEPSEC's code a step beyond the crossing is added, and all without their overshoot.
    """
    eps, x, v = EPS[norm], case.images, torch.zeros_like(case.images[:1])
    box = (0.0, 1.0) if cut else (-torch.inf, torch.inf)
    dice = Dice.throw(0, torch.arange(len(x))).of("uap").of("order")
    for turn in range(passes):
        for row in dice.uniform((1,), turn)[:, 0].argsort(stable=True).tolist():
            label, start = int(case.labels[row]), (x[row : row + 1] + v).clamp(*box)
            moved, count = torch.zeros_like(start), 0
            at = start
            stays = before = int(case.victim(at).argmax()) == label
            while (before if authors else stays) and count < 10:
                far, w = onward(case, at, label)
                moved = moved + (far + (1e-4 if cut else 0.0)) * w / w.norm()
                count += 1
                at = (start + 1.02 * moved).detach().clamp(*box)
                before, stays = stays, int(case.victim(at).argmax()) == label
            if count < 9:
                v = v + (1.0 if authors else 1.02) * moved
                v = v.clamp(-eps, eps) if norm == "linf" else v * min(1.0, eps / float(v.norm()))
        fooled = case.victim((x + v).clamp(*box)).argmax(1) != case.labels
        if float(fooled.double().mean()) >= target:
            break
    return (x + v).clamp(0, 1)


@pytest.mark.parametrize(
    ("preset", "norm", "target", "cut"),
    [
        ("uap@moosavi", "linf", 0.8, False),
        ("uap@moosavi", "l2", 0.8, False),
        ("uap@deepsec-mnist", "linf", 0.3, True),
        ("uap@deepsec-cifar10", "linf", 0.8, True),
        ("uap@deepsec-mnist-code", "linf", 0.35, True),
        ("uap@deepsec-cifar10-code", "linf", 0.9, True),
    ],
)
def test_universal_perturbations_in_our_order(
    preset: str, norm: str, target: float, cut: bool
) -> None:
    agree(
        preset,
        "independent",
        lambda case: case.last(f"{preset}(steps=3)", threat(norm)),
        lambda case: universal(case, norm, target, 3, cut),
        about=f"{norm}, 3 passes" if preset == "uap@moosavi" else "3 passes",
    )


# The smallest radius


def success(case: Case, row: int, radius: float, steps: int, share: float) -> float | None:
    """The linf distance of the last iterate, if it is misclassified."""
    clean, label = case.images[row : row + 1], case.labels[row : row + 1]
    x = clean
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(functional.cross_entropy(case.victim(x), label), x)
        change = (x + share * radius * g.sign() - clean).clamp(-radius, radius)
        x = (clean + change).clamp(0, 1)
    wrong = int(case.victim(x).argmax()) != int(label)
    return float((x - clean).detach().abs().max()) if wrong else None


def realsafe(attempt: Callable[[float], float | None], one_step: bool) -> float:
    """32 radii or five doublings from 0.1, then ten halvings; the smallest success."""
    found: list[float] = []
    low, high = 0.0, 0.1
    if one_step:
        for j in range(32, 0, -1):
            if (size := attempt(0.1 * j)) is not None:
                found, low, high = [*found, size], 0.1 * j - 0.1, 0.1 * j
    else:
        for _ in range(5):
            if (size := attempt(high)) is not None:
                found = [*found, size]
                break
            low, high = high, 2 * high
    for _ in range(10):
        middle = (low + high) / 2
        if (size := attempt(middle)) is not None:
            found, high = [*found, size], middle
        else:
            low = middle
    return min(found, default=math.inf)


def su(attempt: Callable[[float], float | None]) -> float:
    """Nine radii from 0.02: up to the last success, down to the last failure; else twice, half."""
    found: list[float] = []
    radius, failed, won = 0.02, 0.0, math.inf
    for _ in range(9):
        if (size := attempt(radius)) is not None:
            found, won = [*found, size], radius
        else:
            failed = radius
        radius = 2 * radius if won == math.inf else (failed + won) / 2
    return min(found, default=math.inf)


@pytest.mark.parametrize(
    ("preset", "attack", "steps", "share"),
    [
        ("minimal@realsafe", "bim@realsafe-code", 20, 1.5 / 20),
        ("minimal@realsafe", "fgsm@realsafe", 1, 1.0),
        ("minimal@su", "bim@su(steps=10)", 10, 1 / 10),
    ],
)
def test_searches_of_the_smallest_radius(
    preset: str, attack: str, steps: int, share: float
) -> None:
    def theirs(case: Case) -> Tensor:
        far = []
        for row in range(len(case.images)):
            attempt = partial(success, case, row, steps=steps, share=share)
            one = su(attempt) if preset == "minimal@su" else realsafe(attempt, steps == 1)
            far.append(one)
        return torch.tensor(far)

    agree(
        preset,
        "independent",
        lambda case: case.attack(f"{preset}({attack})", "linf").distance,
        theirs,
        about="distances of " + attack.partition("@")[0] + ", 10 steps" * (preset == "minimal@su"),
    )
