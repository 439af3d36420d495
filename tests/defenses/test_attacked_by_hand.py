"""Shipped detectors attacked by a plain script: it leaves no fewer images than the attacks here."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

import besiege
from besiege.attacks.suites import suite
from besiege.core.threat import Linf
from besiege.defenses import Detected, load

CIFAR10 = "public:cifar10_resnet20+detector('zoo:cifar10-{}')"
MNIST = "zoo:mnist-natural+detector('zoo:mnist-{}')"
COUNT, STEPS = 200, 40
pytestmark = [
    pytest.mark.slow,  # 2 to 20 minutes each on one thread
    pytest.mark.skipif(
        not os.environ.get("BESIEGE_DATA"), reason="BESIEGE_DATA names no data root"
    ),
]


def by_hand(victim: Detected, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """Plain PGD on the two scores: which images become misclassified and accepted."""
    threshold, spread = victim.calibration.threshold, victim.calibration.spread
    torch.manual_seed(0)
    now = (x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    broken = torch.zeros(len(x), dtype=torch.bool)
    for step in range(STEPS):
        now.requires_grad_(True)
        logits, score = victim.examine(now)
        others = logits.scatter(1, y[:, None], -1e9).amax(1)
        lead = others - logits.gather(1, y[:, None])[:, 0]
        broken |= ((lead > 0) & (score <= threshold)).detach()
        over = (score - threshold) / spread
        # Misclassified first; then, while it stays so, less suspicious.
        loss = torch.where(lead > 0, lead.clamp(max=1) - over, lead).sum()
        (gradient,) = torch.autograd.grad(loss, now)
        with torch.no_grad():
            now = now + 2 * eps * (1 - step / STEPS) / 5 * gradient.sign()
            now = torch.minimum(torch.maximum(now, x - eps), x + eps).clamp(0, 1)
    return broken


@pytest.mark.parametrize("kind", ["squeezing", "lid", "magnet"])
@pytest.mark.parametrize(
    ("model", "data", "eps"), [(CIFAR10, "cifar10", 8 / 255), (MNIST, "mnist", 0.3)]
)
def test_a_plain_script_leaves_no_fewer_images(
    model: str, data: str, eps: float, kind: str
) -> None:
    victim = load(model.format(kind))
    assert isinstance(victim, Detected) and victim.withheld is not None
    everything = besiege.data.load(data)
    fresh = ~torch.isin(everything.ids, torch.tensor(victim.withheld.ids))
    chosen = everything.take(fresh).subset(COUNT, 1)
    with victim.held():
        right = torch.cat([victim(part).argmax(1) for part in torch.split(chosen.images, 50)])
        chosen = chosen.take(right == chosen.labels)
        parts = zip(torch.split(chosen.images, 50), torch.split(chosen.labels, 50), strict=True)
        plain = torch.cat([by_hand(victim, x, y, eps) for x, y in parts])
    left = chosen
    for attack in ("pgd(loss=margin)", "opgd", "apgdt"):
        found = besiege.attack(
            attack, victim, left.images, left.labels, threat=f"linf:{eps}", ids=left.ids
        )
        left = left.take(~found.success)
        if not len(left):
            break
    assert len(left) <= int((~plain).sum())


LEFT = (17, 30, 35, 54, 71, 82, 102)
"""Images of MNIST's test set that apgdt, opgd and apgd(loss=dlr) leave of MagNet."""


def test_the_adaptive_suite_breaks_what_its_folded_losses_leave_of_magnet() -> None:
    victim = load(MNIST.format("magnet"))
    data = besiege.data.load("mnist")
    chosen = data.take(torch.isin(data.ids, torch.tensor(LEFT)))
    last = suite("adaptive").attacks_for(Linf, rejects=True)[-1]

    def broken(attack: str) -> int:
        images, labels = chosen.images, chosen.labels
        found = besiege.attack(attack, victim, images, labels, threat="linf:0.3", ids=chosen.ids)
        return int(found.success.sum())

    assert broken(last) == len(LEFT)
    assert broken(last.replace("loss=weighed", "loss=margin")) < len(LEFT) / 2
