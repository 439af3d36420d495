"""Real data and real public weights: figures that are known from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.recount import accuracy_after, accuracy_within

import besiege
from besiege.core.oracle import Oracle

pytestmark = pytest.mark.skipif(
    not os.environ.get("BESIEGE_DATA"), reason="BESIEGE_DATA names no data root"
)


@pytest.mark.slow
def test_the_public_resnet20_has_its_published_accuracy() -> None:
    data = besiege.data.load("cifar10")
    model = besiege.models.load("public:cifar10_resnet20")
    with model.held():
        answers = Oracle(model).logits(data.images).argmax(1)
    assert int((answers == data.labels).sum()) == 9173


def test_pgd_leaves_nothing_of_the_natural_resnet20() -> None:
    data = besiege.data.load("cifar10", count=200)
    result = besiege.attack(
        "pgd",
        "public:cifar10_resnet20",
        data.images,
        data.labels,
        ids=data.ids,
        threat="linf:8/255",
        steps=40,
    )
    assert int(result.verdicts.robust.sum()) == 0
    # Rows leave when broken: without that this would be 40 backwards each.
    assert float(result.backwards.double().mean()) < 8


@pytest.mark.slow
def test_transfer_needs_all_steps_and_leaving_at_success_is_the_trap() -> None:
    """BIM, 10 steps of 0.15 eps, from ResNet-20 to ResNet-56, over images the latter knows."""
    data = besiege.data.load("cifar10", count=200)
    victim = besiege.models.load("public:cifar10_resnet56")

    def answer(x: torch.Tensor) -> torch.Tensor:
        with victim.held(), torch.no_grad():
            return victim(x).argmax(1)

    known = answer(data.images) == data.labels
    x, y, ids = data.images[known], data.labels[known], data.ids[known]
    fooled = {}
    for keep, leave in (("last", "end"), ("first", "success")):
        images = besiege.attack(
            "bim(steps=10, schedule=constant(0.15))",
            "public:cifar10_resnet20",
            x,
            y,
            ids=ids,
            threat="linf:8/255",
            keep=keep,  # type: ignore[arg-type]
            leave=leave,  # type: ignore[arg-type]
        ).images
        fooled[leave] = float((answer(images) != y).double().mean())
    print(f"fooled: {fooled}, of {len(y)}")
    assert fooled["end"] >= 0.8
    assert fooled["success"] <= 0.3


def test_the_utility_of_fgsm_is_as_deepsec_printed_it() -> None:
    """Table III, FGSM at 0.1 on another ResNet-20: PSD 277 within 3 %, Linf exactly the budget."""
    found = besiege.evaluate(
        "public:cifar10_resnet20",
        "cifar10",
        threat="linf:0.1",
        attacks="fgsm@deepsec-cifar10",
        count=200,
        curve=False,
        examine="none",
    )
    (one,) = found.figures.attack_utility
    assert one.psd == pytest.approx(277, rel=0.03) and one.linf == pytest.approx(0.1, abs=1e-8)
    assert one.l0 == pytest.approx(0.993, abs=0.003) and one.l2 == pytest.approx(5.42, abs=0.03)
    assert one.ass is not None and one.ass_published is not None
    assert 0.005 < one.ass - one.ass_published < 0.05
    assert one.psd_paper is not None and one.psd_paper > 20 * 277


@pytest.mark.slow
def test_both_curves_of_the_robust_cifar_model_equal_a_script(tmp_path: Path) -> None:
    model = "zoo:cifar10-pgd-at"
    data = besiege.data.load("cifar10", count=60)
    found = besiege.evaluate(
        model, "cifar10", threat="linf:8/255", attacks="bim(steps=10)", count=60, out=tmp_path
    )
    net = besiege.Classifier.of(model)
    assert found.complete and 0.6 < found.clean.value < 0.95
    (steps,) = found.figures.steps_curve
    again = accuracy_after(net, data.images, data.labels, 8 / 255, 0.15 * 8 / 255, 10)
    assert np.all(np.diff(steps.value) <= 0) and steps.value[-1] < steps.value[0]
    for step in (1, 4, 10):
        assert steps.value[step] == pytest.approx(again[step], abs=1e-9)
    curve = found.figures.eps_curve
    assert curve is not None
    assert np.all(np.diff(curve.value) <= 0) and curve.value[-1] == 0
    for eps in (2 / 255, 8 / 255, 16 / 255):
        value = np.array(curve.value)[np.searchsorted(curve.x, eps, side="right") - 1]
        recounted = accuracy_within(net, tmp_path, curve, eps, data.images, data.labels)
        assert value == pytest.approx(recounted, abs=1e-9)


@pytest.mark.slow
def test_evaluate_reaches_the_published_accuracy_and_none_under_attack(tmp_path: Path) -> None:
    model = "public:cifar10_resnet20"
    whole = besiege.evaluate(
        model, "cifar10", threat="linf:8/255", attacks="fgsm", curve=False, out=tmp_path
    )
    assert whole.clean.value == 0.9173 and whole.clean.count == 10_000
    few = besiege.evaluate(model, "cifar10", threat="linf:8/255", attacks="pgd", count=200)
    assert few.robust is not None and few.robust.value == 0
    assert few.figures.eps_curve is not None and few.figures.eps_curve.value[-1] == 0
