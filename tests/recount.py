"""Both curves again, in a few lines that use nothing of besiege's attacks, judge or metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from besiege.metrics.attack_values import BudgetCurve

Net = Callable[[Tensor], Tensor]


def accuracy_after(
    net: Net, x: Tensor, y: Tensor, eps: float, step: float, steps: int
) -> list[float]:
    """Accuracy after 0, 1, 2, ... steps of the basic iterative method, any earlier hit counting."""
    right = net(x).argmax(1) == y
    at, shares = x.clone(), [float(right.double().mean())]
    for _ in range(steps):
        at.requires_grad_(True)
        (slope,) = torch.autograd.grad(
            functional.cross_entropy(net(at).double(), y, reduction="sum"), at
        )
        at = (at.detach() + step * slope.sign()).clamp(x - eps, x + eps).clamp(0, 1)
        right = right & (net(at).argmax(1) == y)
        shares.append(float(right.double().mean()))
    return shares


def accuracy_within(
    net: Net, folder: Path, curve: BudgetCurve, eps: float, x: Tensor, y: Tensor
) -> float:
    """Accuracy at a budget, counted on all adversarial images that were stored.

    `x` and `y` are the samples the curve was made of, in the order of their ids.
    """
    stands = net(x).argmax(1) == y
    for record in sorted((folder / "records").iterdir()):
        if '"kind": "craft"' in (record / "record.json").read_text():
            stored = load_file(record / "images.safetensors")
            for image in stored["images"]:
                # Whose image it is: the sample it is nearest to.
                owner = int((x - image).flatten(1).abs().amax(1).argmin())
                near = float((image.double() - x[owner].double()).abs().max()) <= eps * (1 + 1e-6)
                if near and int(net(image[None]).argmax()) != int(y[owner]):
                    stands[owner] = False
    assert curve.count == len(x)
    return float(stands.double().mean())
