"""Universal perturbations and substitutes, of victims that may reject images."""

from __future__ import annotations

import math

import torch

import besiege
from besiege.attacks.universal import UAP, fit_universal, fooling
from besiege.defenses import BitDepth, Calibration, Detected, Median, Squeezing, load
from besiege.defenses.detected import forced

MODEL = "zoo:digits-natural"
DATA = besiege.data.load("digits", count=60)


def guarded(threshold: float) -> Detected:
    return Detected(MODEL, Squeezing((BitDepth(1), Median(2))), Calibration(threshold, 0.2, 5.0))


def test_a_rejected_image_is_not_fooled() -> None:
    noise = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    uap = UAP(tensor=0.4 * (noise - 0.5).sign())
    bare = fooling(uap, load(MODEL), DATA.images, "linf:0.4")
    assert bare > 0.2
    victim = guarded(0.2)
    assert fooling(uap, forced(victim, math.inf), DATA.images, "linf:0.4") == bare
    assert fooling(uap, forced(victim, -math.inf), DATA.images, "linf:0.4") == 0
    assert fooling(uap, victim, DATA.images, "linf:0.4") < bare


def test_a_perturbation_is_fitted_on_accepted_images() -> None:
    victim = guarded(0.05)
    with torch.no_grad():
        rejected = victim(DATA.images).argmax(1) == 10
    assert 0 < int(rejected.sum()) < len(DATA)
    made = fit_universal(victim, DATA.images, None, threat="linf:0.3", steps=3)
    kept = fit_universal(victim, DATA.images[~rejected], None, threat="linf:0.3", steps=3)
    assert made.tensor is not None and kept.tensor is not None
    assert torch.equal(made.tensor, kept.tensor)


def test_a_substitute_may_reject() -> None:
    images, labels = DATA.images[:16], DATA.labels[:16]
    found = besiege.attack(
        "mim", MODEL, images, labels, threat="linf:0.3", substitute=guarded(math.inf)
    )
    assert bool(found.success.any())
