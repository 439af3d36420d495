"""Ensembles: each way of fusing against a plain formula, and one member alone as itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.victims import Noisy, uniform
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.attacks.losses import cross_entropy
from besiege.core.answer import Aim
from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError
from besiege.core.oracle import Oracle
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Defended
from besiege.evaluation import craft
from besiege.models import Classifier, Ensemble
from besiege.testing.victims import linear, untrained

SHAPE = (1, 6, 6)
WEIGHTS = (0.5, 0.3, 0.2)


@pytest.fixture(scope="module")
def nets() -> list[Classifier]:
    return [untrained(SHAPE, 5, seed) for seed in range(3)]


def asked(victim: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with victim.held():
        return Oracle(victim).gradient(x, cross_entropy, Aim(y))


def formula(fuse: str, nets: list[Classifier], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss per row as the papers write it, in one graph."""
    z = torch.stack([net(x) for net in nets])
    w = torch.tensor(WEIGHTS)[:, None, None]
    if fuse == "logits":
        loss = functional.cross_entropy((w * z).sum(0), y, reduction="none")
    elif fuse == "equalised":
        spread = ((z - z.mean(2, keepdim=True)) ** 2).mean(2, keepdim=True).sqrt()
        loss = functional.cross_entropy((w * z / spread).sum(0), y, reduction="none")
    elif fuse == "probabilities":
        p = (w * z.softmax(2)).sum(0)
        loss = -p.gather(1, y[:, None])[:, 0].log()
    else:
        each = [functional.cross_entropy(one, y, reduction="none") for one in z]
        loss = (w[:, :, 0] * torch.stack(each)).sum(0)
    return loss, torch.autograd.grad(loss.sum(), x)[0]


@pytest.mark.parametrize("fuse", ["logits", "equalised", "probabilities", "losses"])
def test_loss_and_gradient_are_those_of_the_formula(fuse: str, nets: list[Classifier]) -> None:
    x, y = uniform(11, *SHAPE), torch.arange(11) % 5
    kind: Any = "logits" if fuse == "equalised" else fuse
    both = Ensemble(nets, kind, [5, 3, 2], equalise=fuse == "equalised")
    gradient, value, logits = asked(both, x, y)
    loss, slope = formula(fuse, nets, x.clone().requires_grad_(True), y)
    assert torch.allclose(value, loss.detach(), atol=1e-6)
    assert torch.allclose(gradient, slope, atol=1e-6) and slope.abs().max() > 1e-3
    assert torch.allclose(logits, both(x).detach(), atol=1e-6)


def test_the_ways_of_fusing_differ_and_so_do_weights(nets: list[Classifier]) -> None:
    x, y = uniform(8, *SHAPE), torch.arange(8) % 5
    kinds: list[Any] = ["logits", "probabilities", "losses"]
    found = [asked(Ensemble(nets, kind), x, y)[0] for kind in kinds]
    found.append(asked(Ensemble(nets, weights=WEIGHTS), x, y)[0])
    for a, one in enumerate(found):
        assert all((one - other).abs().max() > 1e-4 for other in found[:a])
    twice = Ensemble(nets, weights=[1.0, 0.6, 0.4])
    assert torch.allclose(asked(twice, x, y)[0], found[3], atol=1e-7)


def test_equalised_no_member_rules_by_its_scale(nets: list[Classifier]) -> None:
    class Loud(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(1024.0 * self.module(x))

    x, loud = uniform(8, *SHAPE), Classifier(Loud(nets[0].module), classes=5)
    plain = Ensemble([nets[0], nets[1]], equalise=True)(x)
    assert torch.allclose(Ensemble([loud, nets[1]], equalise=True)(x), plain, atol=1e-5)
    assert not torch.allclose(Ensemble([loud, nets[1]])(x), Ensemble(nets[:2])(x), atol=1.0)


@pytest.mark.parametrize("fuse", ["logits", "losses"])
def test_one_member_alone_is_attacked_as_itself(fuse: Any) -> None:
    data = besiege.data.load("digits", count=24)
    net = besiege.models.load("zoo:digits-natural")
    terms: dict[str, Any] = {"threat": "linf:0.1", "keep": "last", "leave": "end", "steps": 5}
    alone = besiege.attack("mim", net, data.images, data.labels, **terms)
    fused = besiege.attack("mim", Ensemble([net], fuse), data.images, data.labels, **terms)
    twice = besiege.attack("mim", Ensemble([net, net], fuse), data.images, data.labels, **terms)
    assert torch.equal(fused.images, alone.images) and torch.equal(fused.success, alone.success)
    assert torch.equal(twice.images, alone.images)
    assert torch.equal(fused.forwards, alone.forwards)


def test_losses_are_asked_one_by_one_through_maps_layers_and_ensembles(
    nets: list[Classifier],
) -> None:
    x, y = uniform(9, *SHAPE), torch.arange(9) % 5
    both = Ensemble(nets, "losses", WEIGHTS)

    def half(image: Tensor, rows: slice) -> Tensor:
        return 0.5 * image

    gradient, value, _ = Oracle(both).gradient(x, cross_entropy, Aim(y), through=half)
    loss, slope = formula("losses", nets, (0.5 * x).requires_grad_(True), y)
    assert torch.allclose(value, loss.detach(), atol=1e-6)
    assert torch.allclose(gradient, 0.5 * slope, atol=1e-6)
    seen = BitDepth(2)(x, (0.0, 1.0), Dice.throw(0, y)).requires_grad_(True)
    loss, slope = formula("losses", nets, seen, y)
    gradient, value, _ = asked(Defended(both, BitDepth(2)), x, y)
    assert torch.allclose(value, loss.detach(), atol=1e-6)
    assert torch.allclose(gradient, slope, atol=1e-6)
    nested = Ensemble([both, nets[0]], "losses", [1.0, 1.0])
    loss, slope = formula("losses", nets, x.clone().requires_grad_(True), y)
    first = asked(nets[0], x, y)
    gradient, value, _ = asked(nested, x, y)
    assert torch.allclose(value, 0.5 * (loss.detach() + first[1]), atol=1e-6)
    assert torch.allclose(gradient, 0.5 * (slope + first[0]), atol=1e-6)


@pytest.mark.parametrize("fuse", ["logits", "probabilities", "losses"])
def test_a_row_does_not_depend_on_its_neighbours(fuse: Any, nets: list[Classifier]) -> None:
    x, y = uniform(13, *SHAPE), torch.arange(13) % 5
    both = Ensemble(nets, fuse, WEIGHTS)
    together, alone = asked(both, x, y), asked(both, x[4:5], y[4:5])
    assert all(torch.equal(a[4:5], b) for a, b in zip(together, alone, strict=True))


def test_padding_and_batches_of_the_members_are_accounted(nets: list[Classifier]) -> None:
    x, y = uniform(11, *SHAPE), torch.arange(11) % 5
    both = Ensemble(nets, "losses")
    oracle = Oracle(both, batch=8)
    small = oracle.gradient(x, cross_entropy, Aim(y))
    assert oracle.padded == 3 * 5
    whole = Oracle(both).gradient(x, cross_entropy, Aim(y))
    assert all(torch.equal(a, b) for a, b in zip(small, whole, strict=True))


def test_members_draw_chances_of_their_own() -> None:
    net = linear()
    noisy = [Noisy(net), Noisy(net)]
    both = Ensemble(noisy, "losses")
    assert both.stochastic
    samples = net.samples(6)
    chances = Dice.throw(0, samples.ids)
    both(samples.images, chances)
    assert not torch.equal(noisy[0].shifts[-1], noisy[1].shifts[-1])
    shifts = [one.shifts[-1] for one in noisy]
    Oracle(both, pad=False).gradient(samples.images, cross_entropy, Aim(samples.labels), chances)
    assert all(torch.equal(one.shifts[-1], s) for one, s in zip(noisy, shifts, strict=True))


def test_the_digest_tells_members_weights_and_fusion_apart(nets: list[Classifier]) -> None:
    assert Ensemble(nets).digest() == Ensemble(list(nets), weights=[2, 2, 2]).digest()
    others = [
        Ensemble(nets[:2]),
        Ensemble(nets, weights=WEIGHTS),
        Ensemble(nets, "losses"),
        Ensemble(nets, "probabilities"),
        Ensemble(nets, equalise=True),
        Ensemble(nets[::-1]),
    ]
    digests = {one.digest() for one in [Ensemble(nets), *others]}
    assert len(digests) == 7
    assert nets[0].digest() not in {Ensemble(nets[:1]).digest()}


def test_names_say_what_is_fused() -> None:
    both = Ensemble(["zoo:digits-natural", "zoo:digits-pgd-at"], "losses", [3, 1])
    told = "ensemble(zoo:digits-natural, zoo:digits-pgd-at, fuse='losses', weights=(0.75, 0.25))"
    assert both.name == repr(both) == told
    assert both.classes == 10 and both.to("cpu") is both and both.device.type == "cpu"
    assert Ensemble(both.members, name="mine").name == "mine"


def test_members_are_as_they_were_after_a_siege(nets: list[Classifier]) -> None:
    fresh = [untrained(SHAPE, 5, seed) for seed in range(2)]
    for net in fresh:
        net.module.train()
    with pytest.raises(RuntimeError), Ensemble(fresh).held():
        assert not any(net.module.training for net in fresh)
        raise RuntimeError
    assert all(net.module.training for net in fresh)
    assert all(p.requires_grad for net in fresh for p in net.module.parameters())


def test_what_does_not_fit_together_is_refused(nets: list[Classifier]) -> None:
    def refused(said: str, *given: Any, **more: Any) -> None:
        with pytest.raises(InputError, match=said):
            Ensemble(*given, **more)

    wide = Classifier(nets[0].module, box=(-1, 1))
    refused(r"agree on box, but .*\(0.0, 1.0\).*\(-1.0, 1.0\)", [nets[0], wide])
    coarse, fine = (Classifier(nets[0].module, grid=grid) for grid in (1 / 15, 1 / 255))
    refused("agree on grid", [coarse, fine])
    assert Ensemble([nets[0], fine]).grid == 1 / 255 and Ensemble(nets).grid is None
    refused("agree on classes, but that of untrained is 5, .* 7", [nets[0], untrained(SHAPE, 7)])
    refused("at least one model", [])
    refused("list of at least one model", "zoo:digits-natural")
    refused("'losses'", nets, "loses")
    refused("equalise", nets, "losses", equalise=True)
    refused("2 weights for 3", nets, weights=[1, 2])
    refused("above zero", nets, weights=[1, 0, 1])
    refused("above zero", nets, weights=[1, float("nan"), 1])

    class Elsewhere(Victim):
        device = torch.device("meta")

        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            return x.flatten(1)

    refused("on cpu and meta", [nets[0], Elsewhere()])
    unknown = Classifier(untrained(SHAPE, 7).module)
    with pytest.raises(VictimError, match=r"the same classes.*\(2, 5\).*\(2, 7\)"):
        Ensemble([nets[0], unknown])(uniform(2, *SHAPE))


def test_an_ensemble_is_a_substitute_and_a_victim() -> None:
    from besiege.attacks import parse
    from besiege.core.samples import Samples
    from besiege.core.threat import Threat

    data = besiege.data.load("digits", count=40)
    both = Ensemble(["zoo:digits-natural", "zoo:digits-pgd-at"])
    samples = Samples.of(data.images, data.labels)
    terms: Any = {"keep": "last", "leave": "end"}
    made = craft(both, parse("mim(steps=10)"), samples, Threat.parse("linf:0.2"), **terms)
    for name in ("zoo:digits-natural", "zoo:digits-pgd-at"):
        victim = besiege.models.load(name)
        before = victim(samples.images).argmax(1) == samples.labels
        after = victim(made.images).argmax(1) == samples.labels
        assert int(after.sum()) < int(before.sum()) - 5
