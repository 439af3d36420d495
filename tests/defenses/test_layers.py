"""Layers: the real transformation forward, the surrogate backward, chances from the dice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.attacks import parse
from besiege.core.dice import Dice
from besiege.core.errors import StochasticError, VictimError
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Defended, Pooled, ResizePad, load
from besiege.defenses.layers import LANGUAGE, Layer
from besiege.defenses.smoothing import Smoothed
from besiege.evaluation import craft
from besiege.models import Classifier

BOX = (0.0, 1.0)


def dice(rows: int, seed: int = 0) -> Dice:
    return Dice.throw(seed, torch.arange(rows))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = besiege.data.load("digits", count=80)
    return data.images, data.labels


@pytest.mark.parametrize("depth", [1, 3, 4, 8])
def test_bit_depth_rounds_to_so_many_values_and_again_changes_nothing(depth: int) -> None:
    x = torch.rand(4, 3, 5, 6)
    once = BitDepth(depth)(x, BOX, dice(4))
    levels = 2**depth - 1
    assert torch.allclose(once * levels, (once * levels).round(), atol=1e-4)
    assert (once - x).abs().max() <= 0.5 / levels + 1e-6
    assert torch.equal(BitDepth(depth)(once, BOX, dice(4)), once)
    ends = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    assert torch.equal(BitDepth(depth)(ends, BOX, dice(1)), ends)


def test_bit_depth_respects_another_box() -> None:
    x = torch.tensor([-1.0, -0.4, 0.9, 1.0]).view(1, 1, 1, 4)
    assert torch.equal(
        BitDepth(1)(x, (-1.0, 1.0), dice(1)).flatten(), torch.tensor([-1.0, -1.0, 1.0, 1.0])
    )


def test_the_gradient_is_that_of_the_bare_net_at_the_transformed_image() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))
    x = torch.rand(5, 1, 3, 4, requires_grad=True)
    layer = BitDepth(2)
    (through,) = torch.autograd.grad(net(layer(x, BOX, dice(5)))[:, 0].sum(), x)
    seen = layer(x.detach(), BOX, dice(5)).requires_grad_(True)
    (bare,) = torch.autograd.grad(net(seen)[:, 0].sum(), seen)
    assert torch.equal(through, bare) and through.abs().max() > 0


def test_the_forward_is_the_real_transformation_to_the_last_bit() -> None:
    x = torch.rand(6, 3, 8, 8)
    layer = BitDepth(3)
    assert torch.equal(
        layer(x.clone().requires_grad_(True), BOX, dice(6)).detach(), layer(x, BOX, dice(6))
    )


def test_without_its_surrogate_a_rounding_layer_stops_pgd_and_with_it_does_not(
    digits: tuple[Tensor, Tensor],
) -> None:
    x, y = digits

    class Bare(BitDepth):
        def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
            return None

    stopped = besiege.attack(
        "bim", Defended("zoo:digits-natural", Bare(4)), x, y, threat="linf:0.15"
    )
    broken = besiege.attack(
        "bim", Defended("zoo:digits-natural", BitDepth(4)), x, y, threat="linf:0.15"
    )
    plain = besiege.attack("bim", "zoo:digits-natural", x, y, threat="linf:0.15")
    clean = int((~stopped.verdicts.correct).sum())
    assert int(stopped.success.sum()) == clean
    assert "W11" in {warning.id for warning in stopped.warnings}
    assert int(broken.success.sum()) > 0.8 * int(plain.success.sum()) > 2 * clean


def test_resize_pad_draws_every_outcome_and_keeps_the_shape() -> None:
    x = torch.ones(400, 1, 8, 8)
    seen = ResizePad(0.5)(x, BOX, dice(400))
    assert seen.shape == x.shape
    heights = (seen.amax(3) > 0).flatten(1).sum(1)
    assert set(heights.tolist()) == {4, 5, 6, 7, 8}
    places = {int((row[0].amax(1) > 0).float().argmax()) for row in seen}
    assert places == {0, 1, 2, 3, 4}
    whole = heights == 8
    assert torch.equal(seen[whole], x[whole])


def test_resize_pad_is_a_matter_of_the_row_alone() -> None:
    x = torch.rand(9, 3, 8, 10)
    together = ResizePad()(x, BOX, dice(9))
    order = torch.randperm(9)
    assert torch.equal(ResizePad()(x[order], BOX, dice(9).at(order)), together[order])
    assert not torch.equal(ResizePad()(x, BOX, dice(9, seed=1)), together)


def test_a_gradient_attack_on_chances_is_refused_with_the_text_that_mends_it(
    digits: tuple[Tensor, Tensor],
) -> None:
    calls = 0

    class Watched(ResizePad):
        def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
            nonlocal calls
            calls += 1
            return super().transform(x, box, dice)

    x, y = digits
    victim = Defended("zoo:digits-natural", Watched())
    with pytest.raises(StochasticError, match=r"averaged\(pgd\(steps=3\), 20\)"):
        besiege.attack("pgd(steps=3)", victim, x, y, threat="linf:0.15")
    with pytest.raises(StochasticError):
        besiege.attack("cascade(averaged(pgd, 2), fgsm)", victim, x, y, threat="linf:0.15")
    assert calls == 0


def test_an_averaged_attack_repeats_and_does_not_depend_on_the_batch(
    digits: tuple[Tensor, Tensor],
) -> None:
    x, y = digits[0][:24], digits[1][:24]
    victim = Defended("zoo:digits-natural", ResizePad(0.75))
    terms = {"threat": "linf:0.15", "keep": "last", "leave": "end"}
    one = besiege.attack("averaged(pgd(steps=4), 3)", victim, x, y, **terms)  # type: ignore[arg-type]
    two = besiege.attack("averaged(pgd(steps=4), 3)", victim, x, y, batch=8, **terms)  # type: ignore[arg-type]
    half = besiege.attack(
        "averaged(pgd(steps=4), 3)",
        victim,
        x[12:],
        y[12:],
        ids=torch.arange(12, 24),
        **terms,  # type: ignore[arg-type]
    )
    assert torch.equal(one.images, two.images)
    assert torch.equal(one.images[12:], half.images)
    # One clean check, four gradients and the last offer, three draws each.
    assert one.forwards.tolist() == [18] * 24 and one.backwards.tolist() == [12] * 24


def test_averaging_beats_a_single_draw_through_chances(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    victim = Defended("zoo:digits-pgd-at", ResizePad(0.6))
    few = besiege.attack("averaged(pgd(steps=15), 2)", victim, x, y, threat="linf:0.15")
    many = besiege.attack("averaged(pgd(steps=15), 16)", victim, x, y, threat="linf:0.15")
    assert float(many.verdicts.share.mean()) > float(few.verdicts.share.mean())


def test_a_stochastic_victim_must_be_given_its_chances() -> None:
    with pytest.raises(VictimError, match="no dice"):
        Defended("zoo:digits-natural", ResizePad())(torch.rand(2, 1, 8, 8))


def test_layers_and_victims_print_as_text_that_reads_back() -> None:
    for layer in (BitDepth(), BitDepth(3), ResizePad(), ResizePad(0.5)):
        assert LANGUAGE.read(str(layer)) == layer
    victim = Defended("zoo:digits-natural", ResizePad(0.5), BitDepth(3))
    assert str(victim) == "zoo:digits-natural+resize_pad(least=0.5)+bits(depth=3)"
    assert victim.digest() != Defended("zoo:digits-natural", BitDepth(3)).digest()


@pytest.mark.parametrize(
    "make", [lambda: BitDepth(0), lambda: ResizePad(0.0), lambda: ResizePad(2)]
)
def test_impossible_layers_are_refused(make: object) -> None:
    with pytest.raises(ValueError):
        make()  # type: ignore[operator]


def test_layers_are_frozen_values() -> None:
    assert isinstance(BitDepth(), Layer) and BitDepth(3) == BitDepth(3) and hash(BitDepth())


def normed() -> Classifier:
    """A small network with batch norm, which has a twin."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(8 * 6 * 6, 10))
    net[1].running_var.fill_(0.3)  # type: ignore[operator]
    return Classifier(net)


def test_the_twin_of_a_defended_model_is_its_layers_before_the_twin_of_the_model() -> None:
    victim = Defended(normed(), BitDepth(3))
    data = besiege.data.load("digits", "test", count=16)
    samples = Samples.of(data.images, data.labels, box=victim.box, classes=10)
    twin = victim.twin(samples, Threat.parse("linf:0.1"))
    assert isinstance(twin, Defended) and twin.layers == victim.layers
    assert not any(
        isinstance(part, nn.BatchNorm2d)
        for net in twin.victim.parts
        for part in cast(nn.Module, net).modules()
    )
    with victim.held(), twin.held(), torch.no_grad():
        assert torch.allclose(twin(data.images), victim(data.images), atol=1e-5)
    # What is found on it is judged on the victim itself.
    given: dict[str, Any] = {
        "threat": "linf:0.1",
        "attacks": "pgd(steps=10)",
        "count": 30,
        "curve": False,
    }
    found = besiege.evaluate(victim, "digits", **given)
    assert found.by_attack["pgd(steps=10)"].value <= found.clean.value


@pytest.mark.parametrize(
    "make",
    [
        lambda: Defended(normed(), ResizePad(0.5)),
        lambda: Pooled(Defended(normed(), ResizePad(0.5)), 5),
        lambda: Pooled(Defended(normed(), ResizePad(0.5)), 5, "votes"),
        lambda: Smoothed(normed(), sigma=0.1, draws=20),
    ],
    ids=["random", "pooled", "votes", "smoothed"],
)
def test_a_stochastic_victim_is_searched_on_its_twin_whose_finds_the_judge_decides(
    make: Callable[[], Victim], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, threat = make(), Threat.parse("linf:0.1")
    data = besiege.data.load("digits", "test", count=16)
    with victim.held(), torch.no_grad():  # a net that was not trained: its own answers are right
        labels = victim(data.images, Dice.throw(0, data.ids))[:, :10].argmax(1)
    samples = Samples.of(data.images, labels, box=victim.box, classes=10, ids=data.ids)
    twin = victim.twin(samples, threat)
    assert type(twin) is type(victim) and twin.passes == victim.passes
    assert (twin.stochastic, twin.rejects) == (victim.stochastic, victim.rejects)
    inside = innermost(twin)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in inside.module.modules())
    dice = Dice.throw(3, samples.ids)
    with victim.held(), twin.held(), torch.no_grad():
        assert torch.allclose(twin(data.images, dice), victim(data.images, dice), atol=1e-4)

    asked = []
    original, usual = innermost(victim), Classifier.__call__

    def counted(self: Classifier, x: Tensor, dice: Dice | None = None) -> Tensor:
        if self is original:
            asked.append(len(x))
        return usual(self, x, dice)

    monkeypatch.setattr(Classifier, "__call__", counted)
    attack = parse("averaged(pgd(steps=3), 2)")
    found = craft(victim, attack, samples, threat, twin=twin)
    assert not asked and float(found.distance.max()) > 0
    craft(victim, attack, samples, threat)
    assert asked


def innermost(victim: Victim) -> Classifier:
    """The classifier behind layers and draws."""
    while not isinstance(victim, Classifier):
        assert victim.behind is not None
        victim = victim.behind
    return victim


def test_the_digest_of_a_shipped_layer_is_its_text_and_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = {load(f"zoo:digits-natural+{text}").digest() for text in ("bits", "bits(depth=4)")}
    assert len(digests) == 1
    monkeypatch.setattr(BitDepth, "revision", 2)
    assert load("zoo:digits-natural+bits").digest() not in digests
