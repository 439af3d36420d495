"""Terms on which the attacks of a suite run: stochastic victims, shards, losses, zero gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.victims import uniform
from torch import Tensor, nn

import besiege
from besiege.attacks import parse
from besiege.attacks.losses import dlr
from besiege.bench.store import Store
from besiege.core.answer import Aim
from besiege.core.errors import VictimError
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation import craft
from besiege.evaluation.crafting import keep_and_leave
from besiege.evaluation.judging import differ
from besiege.models.classifier import Classifier
from besiege.testing.victims import untrained

BY_CHANCE = "zoo:digits-natural+resize_pad(least=0.8)"


def test_square_on_a_victim_by_chance_keeps_the_highest_loss() -> None:
    noisy = besiege.defenses.load(BY_CHANCE)
    square, threat = parse("averaged(square(steps=9), 4)"), Threat.parse("linf:0.1")
    assert keep_and_leave(noisy, square, threat) == ("highest", "end")
    assert keep_and_leave(untrained((1, 8, 8), 10), parse("square"), threat) == ("first", "success")


def test_in_a_suite_by_chance_only_what_is_fooled_in_every_draw_is_spared(tmp_path: Path) -> None:
    texts = ["averaged(fgsm, 4)", "averaged(pgd(steps=3), 4)"]
    found = besiege.evaluate(
        BY_CHANCE, "digits", threat="linf:0.06", suite=texts, count=40, curve=False, out=tmp_path
    )
    rows = found.rows
    first, second = (rows.where(rows["attack"] == text) for text in texts)
    spared = first["share"] >= 1
    assert set(second["sample"].tolist()) == set(first["sample"][~spared].tolist())
    assert bool((first["success"] & ~spared).any())  # broken, and attacked all the same
    assert Store(tmp_path).present()


def test_a_model_without_gradients_is_told_so_by_fab_too() -> None:
    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(12)[:, :3])

        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1) @ self.weight).detach()

    x = uniform(4, 3, 2, 2)
    victim = Classifier(Blind())
    samples = Samples.of(x, victim(x).argmax(1), classes=3)
    for attack in ("fab(steps=3)", "apgdt(steps=3, order='distance')"):
        with pytest.raises(VictimError, match="does not depend differentiably"):
            craft(victim, parse(attack), samples, Threat.parse("linf:0.1"))


def test_dlr_goes_round_classes_that_are_ruled_out() -> None:
    logits = torch.tensor([[2.0, 1.0, *[-torch.inf] * 4]] * 2, requires_grad=True)
    labels = torch.tensor([0, 0])
    for targets in (None, torch.tensor([1, 1])):
        value = dlr(logits, Aim(labels, targets, logits.detach()))
        (slope,) = torch.autograd.grad(value.sum(), logits)
        assert torch.equal(value.detach(), torch.tensor([-1.0, -1.0]))
        assert torch.equal(slope[:, :2], torch.tensor([[-1.0, 1.0]] * 2))
        assert bool(torch.isfinite(slope).all())


def test_another_class_is_another_answer_however_close() -> None:
    once = torch.tensor([[1000.0, 1000.05]])
    assert differ(once, once.flip(1)) and not differ(once, once + 0.001)


def test_one_attack_is_a_suite_too() -> None:
    found = besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.1", suite=parse("fgsm"), count=9, curve=False
    )
    assert list(found.by_attack) == ["fgsm"]


def test_a_run_goes_on_in_the_shards_it_was_begun_in(tmp_path: Path) -> None:
    """On another device the default is another."""
    ask: dict[str, Any] = {
        "threat": "linf:0.1",
        "attacks": "fgsm",
        "count": 40,
        "curve": False,
        "out": tmp_path,
    }
    besiege.evaluate("zoo:digits-natural", "digits", shard=20, **ask)
    before = Store(tmp_path).present()
    besiege.evaluate("zoo:digits-natural", "digits", **ask)
    assert Store(tmp_path).present() == before


def test_how_much_of_a_gradient_is_zero_is_kept() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(16)[:, :8])  # eight of sixteen pixels are read

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.weight

    x = uniform(6, 1, 4, 4)
    victim = Classifier(Half())
    samples = Samples.of(x, victim(x).argmax(1).detach(), classes=8)
    made = craft(victim, parse("pgd(steps=3)"), samples, Threat.parse("linf:0.01"))
    assert made.zero_share is not None and torch.equal(
        made.zero_share, torch.full((6,), 0.5).double()
    )
    blind = craft(victim, parse("square(steps=3)"), samples, Threat.parse("linf:0.01"))
    assert blind.zero_share is None
    found = besiege.evaluate(
        victim, (x, samples.labels), threat="linf:0.01", attacks="pgd(steps=3)", curve=False
    )
    assert any(w.id == "W11" and "50 %" in str(w) for w in found.warnings)


def test_divided_logits_are_another_loss() -> None:
    from besiege.attacks.losses import CrossEntropy, cross_entropy

    logits, labels = torch.randn(5, 4), torch.arange(5) % 4
    divided = CrossEntropy(divide=100.0)
    assert torch.allclose(divided(100 * logits, Aim(labels)), cross_entropy(logits, Aim(labels)))
    assert str(parse("pgd(loss=cross_entropy(divide=100))")) == (
        "pgd(loss=cross_entropy(divide=100))"
    )
    with pytest.raises(besiege.BesiegeError, match="divide"):
        parse("pgd(loss=cross_entropy(divide=0))")
