"""Real data and real public weights: figures that are known from elsewhere."""

from __future__ import annotations

import os

import pytest
import torch

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
