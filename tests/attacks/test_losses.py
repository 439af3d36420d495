from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.victims import normal
from torch import Tensor

from besiege.attacks.losses import (
    CrossEntropy,
    Logit,
    cross_entropy,
    dlr,
    margin,
    probability_margin,
)
from besiege.core.answer import Aim, Loss

CLASSES = [2, 3, 4, 5, 10]
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "usual": CrossEntropy(stable=False),
    "margin": margin,
    "logit": Logit(),
    "dlr": dlr,
    "probability_margin": probability_margin,
}


def others(z: Tensor, y: int) -> Tensor:
    return torch.cat([z[:y], z[y + 1 :]])


def plain(name: str, z: Tensor, y: int, t: int | None) -> Tensor:
    """One row, as the papers write it."""
    if name in ("cross_entropy", "usual"):
        return z.logsumexp(0) - z[y] if t is None else z[t] - z.logsumexp(0)
    if name == "margin":
        return others(z, y).max() - z[y] if t is None else z[t] - others(z, t).max()
    if name == "logit":
        return -z[y] if t is None else z[t]
    if name == "probability_margin":
        top = z.detach().sort(descending=True).values
        p = torch.softmax(z / max(1.0, float(top[0] - top[1]) / 10.0), 0)
        return others(p, y).max() - p[y] if t is None else p[t] - others(p, t).max()
    pi = z.sort(descending=True).values
    rise = (others(z, y).max() if t is None else z[t]) - z[y]
    if len(z) == 2:
        return rise / (z[0] - z[1]).abs().detach()
    if t is None:
        return rise / (pi[0] - pi[2])
    low = (pi[1] + pi[2]) / 2 if len(z) == 3 else (pi[2] + pi[3]) / 2
    return rise / (pi[0] - low)


def rows(classes: int, count: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and targets that are not the labels."""
    z = 3 * normal(count, classes, seed=seed, dtype=torch.float64)
    y = torch.arange(count) % classes
    t = (y + 1 + torch.arange(count) // classes % (classes - 1)) % classes
    return z, y, t


def differentiated(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.clone().requires_grad_(True)
    value = loss(leaf)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("shift", [0.0, -100.0])  # all negative: no zero may win a maximum
def test_losses_are_the_papers_formulas(
    name: str, classes: int, targeted: bool, shift: float
) -> None:
    z, y, t = rows(classes)
    z = z + shift
    aim = Aim(y, t if targeted else None, z.clone())
    value, gradient = differentiated(lambda leaf: LOSSES[name](leaf, aim), z)
    assert value.shape == (40,)
    for row in range(40):
        target = int(t[row]) if targeted else None
        expected, slope = differentiated(
            lambda leaf, row=row, target=target: plain(name, leaf, int(y[row]), target)[None],  # type: ignore[misc]  # a default in a lambda has no type
            z[row],
        )
        assert torch.allclose(value[row], expected[0], atol=1e-9)
        assert torch.allclose(gradient[row], slope, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("classes", CLASSES)
def test_every_pair_has_a_gradient_where_the_label_leads(name: str, classes: int) -> None:
    """Also K = 2, where no ratio has one, and K = 3 with the target last."""
    z = normal(1, classes, seed=5).sort(descending=True).values
    pairs = [(y, t) for y in range(classes) for t in (None, *range(classes)) if t != y]
    for y, t in pairs:
        led = z[:, _leading(y, classes)]
        aim = Aim(torch.tensor([y]), None if t is None else torch.tensor([t]), led.clone())
        _, gradient = differentiated(lambda leaf, aim=aim: LOSSES[name](leaf, aim), led)  # type: ignore[misc]  # a default in a lambda has no type
        assert led.argmax() == y
        assert gradient.abs().max() > 1e-3, (y, t)
        # It rises by leaving the label, or by nearing the target.
        assert gradient[0, y] < 0 if t is None else gradient[0, t] > 0


def _leading(y: int, classes: int) -> list[int]:
    """Places of sorted logits such that class y has the highest."""
    rest = iter(range(1, classes))
    return [0 if c == y else next(rest) for c in range(classes)]


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("classes", CLASSES)
def test_dlr_sees_neither_shift_nor_scale(classes: int, targeted: bool) -> None:
    z, y, t = rows(classes)
    aims = [Aim(y, t if targeted else None, c) for c in (z, 2.0**10 * z, 1e-3 * z + 7)]
    value, gradient = differentiated(lambda leaf: dlr(leaf, aims[0]), z)
    same, steep = differentiated(lambda leaf: dlr(leaf, aims[1]), 2.0**10 * z)
    assert torch.equal(value, same) and torch.equal(gradient, 2.0**10 * steep)  # bitwise
    moved, _ = differentiated(lambda leaf: dlr(leaf, aims[2]), 1e-3 * z + 7)
    assert torch.allclose(value, moved, atol=1e-9)
    if not targeted and classes > 2:
        right = z.argmax(1) == y
        assert (value[right] >= -1).all() and (value[right] <= 0).all()
        assert (value[~right] > 0).all()


def test_two_classes_keep_the_scale_of_the_clean_image() -> None:
    """So that values along a climb can be compared."""
    y = torch.tensor([0, 0, 0])
    clean = torch.tensor([[3.0, 1.0]]).repeat(3, 1)
    along = torch.tensor([[3.0, 1.0], [2.0, 1.5], [1.0, 2.0]])
    assert dlr(along, Aim(y, None, clean)).tolist() == pytest.approx([-1.0, -0.25, 0.5])
    assert dlr(along, Aim(y, 1 - y, clean)).tolist() == pytest.approx([-1.0, -0.25, 0.5])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("targeted", [False, True])
def test_logits_a_thousand_times_as_large_stay_finite(name: str, targeted: bool) -> None:
    z, y, t = rows(10)
    aim = Aim(y, t if targeted else None, 1000 * z.float())
    value, gradient = differentiated(lambda leaf: LOSSES[name](leaf, aim), 1000 * z.float())
    assert torch.isfinite(value).all() and torch.isfinite(gradient).all()
    if name in ("margin", "dlr", "probability_margin"):
        right = z.argmax(1) == y  # DLR is constant where the label is third
        assert right.any() and (gradient.abs().amax(1) > 0)[right].all()
    if name == "margin":
        small, slope = differentiated(lambda leaf: margin(leaf, aim), z.float())
        assert torch.equal(gradient, slope)
        assert torch.allclose(value, 1000 * small)


@pytest.mark.parametrize("targeted", [False, True])
def test_cross_entropy_is_exact_where_the_usual_form_rounds_to_zero(targeted: bool) -> None:
    """float32 against float64; the label leads by up to 80."""
    lead = torch.linspace(0.0, 80.0, 81)
    z = torch.stack([lead, torch.zeros(81), torch.full((81,), -3.0)], 1)
    y = torch.ones(81).long() if targeted else torch.zeros(81).long()
    aim = Aim(y, torch.zeros(81).long() if targeted else None)
    value, gradient = differentiated(lambda leaf: cross_entropy(leaf, aim), z)
    exact, slope = differentiated(lambda leaf: cross_entropy(leaf, aim), z.double())
    truth = torch.log1p(torch.exp(-lead.double()) * (1 + math.exp(-3)))
    assert torch.allclose(exact.abs(), truth, rtol=1e-12, atol=0)
    assert torch.allclose(value.double(), exact, rtol=1e-5, atol=0)
    assert torch.allclose(gradient.double(), slope, rtol=1e-5, atol=1e-38)
    # Leaving the label and nearing another are the two halves of the gradient: they sum to 0.
    assert (gradient.sum(1).abs() <= 1e-6 * gradient.abs().amax(1)).all()
    assert (gradient[:, 0].abs() > 0).all()
    usual = CrossEntropy(stable=False)
    _, lost = differentiated(lambda leaf: usual(leaf, aim), z)
    assert (lost[40:, 0] == 0).all()  # what the stable form is for


@pytest.mark.parametrize("gap", [-1e4, -200.0, 0.0, 30.0, 1e4])
def test_cross_entropy_of_extreme_logits(gap: float) -> None:
    z = torch.tensor([[gap, 0.0, -1e30]])
    value, gradient = differentiated(lambda leaf: cross_entropy(leaf, Aim(torch.tensor([0]))), z)
    truth = max(-gap, 0.0) + math.log1p(math.exp(-abs(gap)))
    assert value.item() == pytest.approx(truth, rel=1e-6, abs=1e-30)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_rows_loss_does_not_depend_on_its_neighbours(name: str) -> None:
    z, y, t = rows(10, 67)
    z = z.float()
    for targets in (None, t):
        aim = Aim(y, targets, z)
        value, gradient = differentiated(lambda leaf, a=aim: LOSSES[name](leaf, a), z)  # type: ignore[misc]  # a default in a lambda has no type
        for some in ([0], [66], [5, 3, 1], list(range(66, -1, -1)), list(range(9))):
            part = aim.at(torch.tensor(some))
            alone, slope = differentiated(lambda leaf, p=part: LOSSES[name](leaf, p), z[some])  # type: ignore[misc]  # a default in a lambda has no type
            assert torch.equal(alone, value[some]) and torch.equal(slope, gradient[some])


@pytest.mark.parametrize("name", LOSSES)
def test_ties_and_constant_logits_are_finite(name: str) -> None:
    for classes in CLASSES:
        z = torch.zeros(1, classes)
        for aim in (Aim(torch.tensor([0]), None, z), Aim(torch.tensor([0]), torch.tensor([1]), z)):
            value, gradient = differentiated(lambda leaf, a=aim: LOSSES[name](leaf, a), z)  # type: ignore[misc]  # a default in a lambda has no type
            assert torch.isfinite(value).all() and torch.isfinite(gradient).all()
