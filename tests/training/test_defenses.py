"""Every recipe trained on digits does what its defense is for.

Robustness is measured by an ascent written here, not by the attacks that train.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.core.dice import Dice
from besiege.core.threat import L2
from besiege.defenses import Defended
from besiege.defenses.thermometer import Thermometer
from besiege.models import Classifier, load
from besiege.models.denoising import Denoise
from besiege.training import RECIPES, fit, fresh, recipe, train
from besiege.training.fitting import build

TRAIN = besiege.data.load("digits", "train")
TEST = besiege.data.load("digits", count=300)
X, Y = TEST.images, TEST.labels
EPS = 0.15


@cache
def trained(text: str, arch: str = "digits_cnn", count: int = len(TRAIN)) -> Classifier:
    """A network trained by a preset of digits, in evaluation mode."""
    data = TRAIN if count == len(TRAIN) else TRAIN.subset(count)
    plan = recipe(text, "digits")
    assert plan.name.endswith("@digits")
    victim, _ = build(arch, data, 0, plan.layers)
    train(victim, data, plan)
    victim.module.eval()
    return victim


def usual() -> Classifier:
    """The network that defended ones are compared with."""
    return trained("natural(epochs=15)", count=500)


@cache
def usual_under_many_steps() -> float:
    return under_many_steps(usual().module)


def accuracy(ask: Callable[[Tensor], Tensor], x: Tensor) -> float:
    with torch.no_grad():
        return float((ask(x).argmax(1) == Y).double().mean())


def slope(ask: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of each image's cross-entropy."""
    point = x.detach().requires_grad_(True)
    (found,) = torch.autograd.grad(functional.cross_entropy(ask(point), Y, reduction="sum"), point)
    return found


def under_one_step(ask: Callable[[Tensor], Tensor]) -> float:
    return accuracy(ask, (X + EPS * slope(ask, X).sign()).clamp(0, 1))


def under_many_steps(ask: Callable[[Tensor], Tensor]) -> float:
    start = torch.rand(X.shape, generator=torch.Generator().manual_seed(7))
    point = (X + (2 * start - 1) * EPS).clamp(0, 1)
    for _ in range(20):
        point = point + EPS / 5 * slope(ask, point).sign()
        point = (X + (point - X).clamp(-EPS, EPS)).clamp(0, 1)
    return accuracy(ask, point)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("pgd-at(epochs=15)", 500),
        ("trades(epochs=15)", 500),
        ("mart(epochs=15)", 500),
        ("alp(epochs=15)", 500),
        ("awp(epochs=15)", 500),
        ("fast-at(epochs=15)", 500),
        ("free-at", len(TRAIN)),
        *(
            pytest.param(name, len(TRAIN), marks=pytest.mark.slow)
            for name in ("pgd-at", "trades", "mart", "alp", "awp", "fast-at")
        ),
    ],
)
def test_adversarial_training_withstands_many_steps(text: str, count: int) -> None:
    robust = trained(text, count=count).module
    assert accuracy(robust, X) > 0.8
    assert under_many_steps(robust) > usual_under_many_steps() + 0.2


def _denoising() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        Denoise(16, "gaussian"),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        Denoise(16, "gaussian"),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def test_feature_denoising_withstands_many_steps_and_its_blocks_learn() -> None:
    nets = [fresh(_denoising) for _ in range(2)]
    for net, text in zip(nets, ("natural(epochs=15)", "denoise(epochs=15)"), strict=True):
        train(net, TRAIN.subset(500), recipe(text, "digits"))
        net.eval()
    plain, robust = map(under_many_steps, nets)
    assert robust > plain + 0.2
    weights = [part.bn.weight for part in nets[1].modules() if isinstance(part, Denoise)]
    assert len(weights) == 2 and all(float(w.detach().abs().max()) > 0.01 for w in weights)


@pytest.mark.slow
def test_feature_denoising_of_a_residual_network() -> None:
    arch = "preact_resnet18(width=4, denoise='gaussian')"
    plain, robust = (trained(f"{name}(epochs=20)", arch, 700) for name in ("natural", "denoise"))
    assert under_many_steps(robust.module) > under_many_steps(plain.module) + 0.15


@pytest.mark.parametrize(
    ("text", "count", "gain"),
    [
        ("eat(epochs=15)", 700, 0.1),
        pytest.param("nat(epochs=25)", len(TRAIN), 0.05, marks=pytest.mark.slow),
    ],
)
def test_one_step_training_withstands_one_step(text: str, count: int, gain: float) -> None:
    robust = trained(text, count=count).module
    plain = usual() if count < len(TRAIN) else trained("natural")
    assert accuracy(robust, X) > 0.85
    assert under_one_step(robust) > under_one_step(plain.module) + gain
    # Nothing crafted tells the label: adversarial images are no easier than clean ones.
    assert under_one_step(robust) <= accuracy(robust, X) + 0.01


def test_gradient_regularisation_makes_gradients_small() -> None:
    plain, flat = (
        slope(victim.module, X).square().sum((1, 2, 3)).mean()
        for victim in (usual(), trained("igr(epochs=15)", count=500))
    )
    assert float(flat) < 0.25 * float(plain)


@pytest.mark.parametrize(
    ("text", "count", "gain"),
    [
        ("deepdefense(epochs=5)", 500, 1.05),
        pytest.param("deepdefense", len(TRAIN), 1.1, marks=pytest.mark.slow),
    ],
)
def test_deepdefense_raises_the_distance_that_deepfool_finds(
    text: str, count: int, gain: float
) -> None:
    before, after = load("zoo:digits-natural"), trained(text, "zoo:digits-natural", count)

    def median(victim: Classifier) -> float:
        found = besiege.attack("deepfool", victim, X, Y, threat="l2").verdicts
        assert bool(found.success[found.correct].all())
        return float(found.distance[L2][found.correct].median())

    assert accuracy(after.module, X) > accuracy(before.module, X) - 0.03
    assert median(after) > gain * median(before)


def test_distillation_hides_gradients_from_cross_entropy_and_w23_says_so(tmp_path: Path) -> None:
    out = tmp_path / "student.safetensors"
    fit("distilled", TRAIN.subset(900), "digits_cnn", out, epochs=15, device="cpu")
    student = load(f"digits_cnn:{out}")
    attacks = ("pgd(steps=20, loss=cross_entropy(stable=False))", "pgd(steps=20, loss=margin)")
    how: dict[str, Any] = {"threat": f"linf:{EPS}", "count": 150, "curve": False}
    found = besiege.evaluate(student, TEST, attacks=attacks, **how)
    common, margin = (rate.value for rate in found.by_attack.values())
    assert common > margin + 0.2
    assert "W23" in {finding.id for finding in found.warnings}
    # Nothing was gained: at T, and for the margin, the student is a natural network.
    heated = under_many_steps(lambda x: student(x) / 50)
    assert heated < under_many_steps(student) - 0.2
    assert heated < usual_under_many_steps() + 0.1


def test_diversity_makes_members_disagree_more_than_members_trained_alone() -> None:
    arch = "joint(of='digits_mlp', members=3)"
    # Without either reward the loss is the sum of the members' own.
    alone = trained("adp(epochs=15, objective=diversity(alpha=0, beta=0))", arch)
    diverse = trained("adp(epochs=15)", arch)

    def volume(victim: Classifier) -> float:
        """The mean determinant of the members' errors, scaled to length one."""
        with torch.no_grad():
            likely = victim.each(X).softmax(2).double()
        total = 0.0
        for row, label in enumerate(Y.tolist()):
            rest = torch.cat([likely[:, row, :label], likely[:, row, label + 1 :]], 1)
            rest = rest / rest.norm(dim=1, keepdim=True)
            total += float(torch.linalg.det(rest @ rest.T)) / len(Y)
        return total

    assert accuracy(diverse.module, X) > 0.85
    assert volume(diverse) > 2 * volume(alone)


def test_max_mahalanobis_centres_hold_the_outputs() -> None:
    net = trained("mmc(epochs=20)", count=900).module
    identity = torch.eye(10)
    centres = 10 * (10 / 9) ** 0.5 * (identity - 0.1)
    apart = float((centres[0] - centres[1]).norm())
    with torch.no_grad():
        found = net(X)
    away = torch.cdist(found, centres)
    assert float((away.argmin(1) == Y).double().mean()) > 0.85
    assert torch.equal(away.argmin(1), found.argmax(1))
    assert float(away[torch.arange(len(Y)), Y].median()) < 0.4 * apart
    with torch.no_grad():
        other = torch.cdist(usual().module(X), centres)
    assert float(other[torch.arange(len(Y)), Y].median()) > 0.6 * apart


def test_gaussian_training_keeps_accuracy_under_noise() -> None:
    plain, robust = (trained(text, "digits_mlp").module for text in ("natural", "gaussian"))
    noisy = X + 0.4 * torch.randn(X.shape, generator=torch.Generator().manual_seed(3))
    assert accuracy(plain, noisy) < accuracy(plain, X) - 0.2
    assert accuracy(robust, noisy) > accuracy(plain, noisy) + 0.05


@cache
def self_ensemble() -> Classifier:
    return trained("rse(epochs=12)", "vgg16(width=8, noise=(0.2, 0.1))", 900)


def test_a_random_self_ensemble_keeps_accuracy_under_its_own_noise() -> None:
    ensemble, plain = self_ensemble(), trained("natural(epochs=12)", "vgg16(width=8)", 900)
    noisy, _ = build("vgg16(width=8, noise=(0.2, 0.1))", TRAIN)
    names, values = noisy.module.state_dict(), plain.module.state_dict().values()
    noisy.module.load_state_dict(dict(zip(names, values, strict=True)))
    noisy.module.eval()
    dice = Dice.throw(0, TEST.ids)
    broken, kept = (accuracy(lambda x, v=v: v(x, dice), X) for v in (noisy, ensemble))  # type: ignore[misc]
    assert accuracy(plain.module, X) > broken + 0.1 and kept > broken + 0.08


@pytest.mark.parametrize(
    "which",
    [
        {"attacks": "averaged(pgd(steps=5), 4)"},
        pytest.param({"suite": "rand"}, marks=pytest.mark.slow),
    ],
)
def test_a_random_self_ensemble_is_evaluated_as_stochastic(which: dict[str, Any]) -> None:
    """Its randomness is declared, so that W14, about answers that differ, does not fire."""
    found = besiege.evaluate(
        self_ensemble(), TEST, threat=f"linf:{EPS}", **which, count=10, curve=False
    )
    assert "W14" not in {finding.id for finding in found.warnings}
    assert found.robust is not None and 0.7 < found.clean.value > found.robust.value


class Blind(Thermometer):
    """Codes without the ramp that attacks follow: a gradient of zero."""

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        return None

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return super().transform(x, box, dice) + 0 * x.sum()


def test_thermometer_codes_are_learned_and_broken_through_their_ramp() -> None:
    net = trained("thermometer(epochs=8)", count=700)
    left = {}
    for layer in (Thermometer(16), Blind(16)):
        victim = Defended(net, layer)
        some = slice(100)
        found = besiege.attack("pgd(steps=20)", victim, X[some], Y[some], threat=f"linf:{EPS}")
        left[type(layer)] = float(found.verdicts.robust.double().mean())
        clean = float(found.verdicts.correct.double().mean())
        assert clean > 0.7
    assert left[Thermometer] < left[Blind] - 0.1


MEMORY = """
import resource
import besiege
from besiege.training import RECIPES, train, recipe
from besiege.training.fitting import build
data = besiege.data.load("digits", "train")
ARCH = {"adp": "joint(of='digits_cnn', members=3)", "rse": "vgg16(width=8, noise=(0.2, 0.1))",
        "deepdefense": "zoo:digits-natural",
        "denoise": "preact_resnet18(width=4, denoise='gaussian')",
        "pixelcnn": "pixelcnn(levels=17, width=32, blocks=2)", "reformer": "autoencoder"}
for name in sorted(n for n in RECIPES.names() if n.endswith("@digits")):
    family = name.partition("@")[0]
    plan = recipe(name, epochs=1, **(
        {"objective": "distil('zoo:digits-natural')"} if family == "distilled" else {}))
    victim, _ = build(ARCH.get(family, "digits_cnn"), data, 0, plan.layers)
    train(victim, data, plan)
    print(family, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)
"""


@pytest.mark.slow
def test_no_recipe_needs_a_gigabyte() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    peaks = dict(line.split() for line in done.stdout.splitlines())
    assert set(peaks) == {n.partition("@")[0] for n in RECIPES.names() if n.endswith("@digits")}
    assert max(map(int, peaks.values())) < 1024, peaks
