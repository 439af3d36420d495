"""Beam: beside all choices of cells there are, and on models that reject images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.attacks.attack import parse
from besiege.attacks.beam import Beam
from besiege.core.cells import Cells
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, InputError, StochasticError, ThreatError
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Linf, Threat
from besiege.core.victim import Victim
from besiege.defenses import (
    BitDepth,
    Calibration,
    Defended,
    Detected,
    GaussianNoise,
    Median,
    Squeezing,
    Thermometer,
)
from besiege.defenses.layers import Rounding
from besiege.evaluation.crafting import Crafted, craft
from besiege.models import Classifier
from besiege.models.ensemble import Ensemble
from besiege.testing import LAWS
from besiege.testing.victims import module_of

NONE = Dice(torch.zeros(1, dtype=torch.int64))
EPS = 0.1
LAYERS: dict[str, Rounding] = {
    "two": BitDepth(1),
    "four": BitDepth(2),
    "floor": BitDepth(levels=5, how="floor"),
    "codes": Thermometer(4),
}


def tiny(layer: Rounding | None, seed: int = 0) -> Victim:
    """A network on 3x3 images behind a layer; its answers depend strongly on single values."""
    channels = layer.levels if isinstance(layer, Thermometer) else 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(9 * channels, 24), nn.Tanh(), nn.Linear(24, 3))
        weight = net[1].weight
        assert isinstance(weight, Tensor)
        weight.data *= 4
    model = Classifier(net.eval(), classes=3, name="tiny")
    return model if layer is None else Defended(model, layer)


def samples(victim: Victim, count: int = 40) -> Samples:
    """Random images with the labels that the victim predicts."""
    images = Dice.throw(0, torch.arange(count)).uniform((1, 3, 3))
    with torch.no_grad():
        return Samples.of(images, victim(images).argmax(1))


def every(layer: Rounding, x: Tensor) -> Tensor:
    """An image of the ball for every choice of cells there is, from a fine grid of values."""
    grid = torch.linspace(-1, 1, 401) * EPS
    choices = []
    for value in x.flatten():
        near = (value + grid).clamp(0, 1)
        shown = layer.transform(near.view(-1, 1, 1, 1), (0.0, 1.0), NONE).flatten(1)
        _, first = torch.unique(shown, dim=0, return_inverse=True)
        choices.append([float(near[first == one][0]) for one in range(int(first.max()) + 1)])
    return torch.tensor(list(product(*choices))).view(-1, *x.shape)


@pytest.mark.parametrize("name", LAYERS)
def test_it_finds_what_a_search_of_all_choices_finds(name: str) -> None:
    layer = LAYERS[name]
    victim = tiny(layer)
    given = samples(victim)
    possible = []
    with torch.no_grad():
        for image, label in zip(given.images, given.labels, strict=True):
            possible.append(bool((victim(every(layer, image)).argmax(1) != label).any()))
    found = craft(victim, Beam(), given, Threat.parse(f"linf:{EPS}")).success
    assert 8 < sum(possible) < 40
    assert found.tolist() == possible


def test_the_cells_are_what_the_layer_does_not_tell_apart() -> None:
    for layer in (*LAYERS.values(), BitDepth(5), BitDepth(levels=10, how="floor")):
        for box in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (-1.8, 2.1), (-2.1179, 2.64)):
            cells = layer.cells(box)
            assert cells is not None
            low, width = box[0], box[1] - box[0]
            x = (torch.linspace(0, 1, 3001) * width + low).clamp(*box)
            edges, values = torch.tensor(cells.edges), torch.tensor(cells.values)
            assert torch.equal(values.clamp(*box), values), "they are sent"
            below = torch.nextafter(edges, torch.full_like(edges, -torch.inf))
            x = torch.cat([x, edges, below, values])
            shown = layer.transform(x.view(-1, 1, 1, 1), box, NONE).flatten(1)
            _, number = torch.unique(shown, dim=0, return_inverse=True)
            if isinstance(layer, Thermometer):
                number = shown.shape[1] - shown.sum(1).long()
            assert torch.equal(cells.number(x), number)
            assert cells.number(values).tolist() == [*range(len(cells))]
            first, last = cells.ends(cells.number(x))
            assert bool(((first <= x) & (x <= last)).all())


def test_cells_of_a_map_that_is_not_even_have_their_values_inside() -> None:
    """What such a map shows may lie above the whole cell: the search would send another one."""

    def shown(x: Tensor) -> Tensor:
        return (4 * x.sqrt()).round() / 4

    cells = Cells.of(shown, [0.0, 0.25, 0.5, 0.75, 1.0], (0.0, 1.0))
    values = torch.tensor(cells.values)
    assert cells.number(values).tolist() == [0, 1, 2, 3, 4]
    assert shown(values).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("shown", "values", "said"),
    [
        (lambda x: 1 - x.round(), [0.0, 1.0], "not all that the layer shows"),
        (lambda x: (4 * x).round() / 4, [0.0, 0.5, 1.0], "not all that the layer shows"),
        (lambda x: (2 * x).round() / 2, [0.0, 0.5], "not all that the layer shows"),
        (lambda x: x.round(), [1.0, 0.0], "not all that the layer shows"),
        (lambda x: x.round(), [], "at least one value"),
    ],
)
def test_cells_that_are_not_those_of_the_map_are_refused(
    shown: Any, values: list[float], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Cells.of(shown, values, (0.0, 1.0))


def test_cells_that_are_none_are_refused_before_any_work() -> None:
    with pytest.raises(InputError, match="2 values and 3 edges"):
        Cells((0.0, 1.0), (0.2, 0.4, 0.6))
    with pytest.raises(InputError, match="finite"):
        Cells((0.0, math.nan), (0.5,))
    with pytest.raises(InputError, match="between their edges"):
        Cells((0.0, 0.4), (0.5,))
    bare = besiege.models.load("zoo:digits-natural")
    with pytest.raises(InputError, match=r"cells\(\) of Listing returned a list"):
        Defended(bare, Listing([0.0, 1.0]))


@dataclass(frozen=True)
class Listing(Rounding):
    """It has no hash, and no cells but their values."""

    values: list[float]

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return x.round()

    def cells(self, box: tuple[float, float]) -> Any:
        return self.values


def test_a_victim_has_the_cells_of_what_sees_its_pixels() -> None:
    plain = tiny(None)
    two, four = BitDepth(1).cells((0, 1)), BitDepth(2).cells((0, 1))
    assert plain.cells is None and Defended(plain, Median(2), BitDepth(1)).cells is None
    assert BitDepth(9).cells((0, 1)) is None and isinstance(two, Cells)
    assert Defended(plain, BitDepth(1), Median(2)).cells == two
    assert Defended(Defended(plain, BitDepth(1))).cells == two
    assert Defended(Defended(plain, BitDepth(1)), Median(2)).cells is None
    assert Ensemble([plain, tiny(BitDepth(2))]).cells == four
    squeezing = Squeezing((BitDepth(2), Median(2), BitDepth(1)))
    assert Detected(plain, squeezing, Calibration(0.5)).cells == two
    assert Detected(plain, Squeezing((Median(2),)), Calibration(0.5)).cells is None
    assert Detected(tiny(BitDepth(2)), Squeezing((Median(2),)), Calibration(0.5)).cells == four


def guarded(threshold: float) -> Detected:
    """The digits model, which rejects images whose one-bit version is classified otherwise."""
    return Detected("zoo:digits-natural", Squeezing((BitDepth(1),)), Calibration(threshold))


def accepted(victim: Detected, images: Tensor, labels: Tensor) -> Tensor:
    """Which images a new pass misclassifies and accepts."""
    with torch.no_grad(), victim.held():
        named = victim(images).argmax(1)
    assert victim.classes is not None
    return (named != labels) & (named < victim.classes)


def digits(victim: Victim, count: int) -> Samples:
    """Digits that are classified correctly and accepted."""
    data = besiege.data.load("digits")
    with torch.no_grad(), victim.held():
        right = victim(data.images).argmax(1) == data.labels
    return Samples.of(data.images[right][:count], data.labels[right][:count])


def test_it_finds_images_that_a_detector_accepts_where_ascents_do_not() -> None:
    victim = guarded(0.2)
    given = digits(victim, 30)
    threat = Threat.parse("linf:0.15")
    ours = craft(victim, Beam(steps=20, finds=4), given, threat)
    assert torch.equal(ours.success, accepted(victim, ours.images, given.labels) & ours.success)
    found = {
        text: int(craft(victim, parse(text), given, threat).success.sum())
        for text in ("pgd(loss=margin)", "opgd")
    }
    assert int(ours.success.sum()) > max(found.values()) + 3, (int(ours.success.sum()), found)


def crafted(victim: Any, attack: str, threat: str = f"linf:{EPS}", **options: Any) -> Crafted:
    return craft(victim, parse(attack), samples(victim), Threat.parse(threat), **options)


def test_every_answer_is_charged_and_the_most_are_what_is_said() -> None:
    whole = crafted(tiny(BitDepth(1)), "beam(steps=5)", "linf:0.1")
    lost = ~whole.success
    assert bool(lost.any()) and int(whole.backwards[lost].max()) <= 5 * 4
    assert int((whole.forwards + whole.backwards).max()) <= 1 + Beam(steps=5).passes((1, 3, 3), 3)
    cut = crafted(tiny(BitDepth(1)), "beam(steps=5)", queries=20)
    assert int(cut.queries.max()) <= 20


def test_a_grid_is_kept() -> None:
    victim = tiny(BitDepth(1))
    gridded = Defended(Classifier(victim.victim.module, classes=3, grid=1 / 16), BitDepth(1))  # type: ignore[attr-defined]
    given = samples(victim)
    given = Samples.of((given.images * 16).round() / 16, given.labels)
    images = craft(gridded, Beam(), given, Threat.parse(f"linf:{EPS}")).images
    assert torch.equal(images * 16, (images * 16).round())


def test_victims_without_such_a_layer_are_refused_before_any_work() -> None:
    bare = besiege.models.load("zoo:digits-natural")
    for other in (bare, Defended(bare, Median(2)), Defended(bare, BitDepth(12))):
        with pytest.raises(AttackError, match=r"'MODEL\+bits\(depth=3\)'"):
            craft(other, Beam(), digits(bare, 2), Threat.parse("linf:0.1"))
    with pytest.raises(AttackError, match="'beam' searches the values of a layer"):
        besiege.evaluate("zoo:digits-natural", "digits", threat="linf:0.1", attacks="beam")
    with pytest.raises(AttackError, match=r"cascade\(fgsm, beam\)"):
        craft(bare, parse("cascade(fgsm, beam)"), digits(bare, 2), Threat.parse("linf:0.1"))
    with pytest.raises(ThreatError, match="works in linf"):
        crafted(tiny(BitDepth(1)), "beam", "l2:0.5")


def test_layers_behind_it_may_be_stochastic() -> None:
    noisy = Defended(tiny(None), BitDepth(1), GaussianNoise(0.01))
    given, threat = samples(tiny(BitDepth(1))), Threat.parse(f"linf:{EPS}")
    with pytest.raises(StochasticError, match=r"averaged\(beam, 20\)"):
        craft(noisy, Beam(), given, threat)
    found = craft(noisy, parse("averaged(beam(steps=10), 3)"), given, threat)
    assert int(found.success.sum()) > 5


def test_gradients_of_a_layer_vanish_only_while_its_cells_are_kept() -> None:
    from besiege.core.cells import aligning

    x = torch.rand(2, 1, 3, 3).requires_grad_(True)
    for layer in LAYERS.values():
        cells = layer.cells((0.0, 1.0))
        assert cells is not None

        def slope(layer: Rounding = layer) -> Tensor:
            shown = layer(x, (0.0, 1.0), NONE)
            assert torch.equal(shown, layer.transform(x.detach(), (0.0, 1.0), NONE))
            return torch.autograd.grad(shown.sum(), x)[0]

        assert bool((slope() != 0).any())
        with aligning(cells):
            assert not bool(slope().any())
        with aligning(Cells((0.2, 0.7), (0.6,))):
            assert bool((slope() != 0).any())
        assert bool((slope() != 0).any())


ELSEWHERE = {
    "repeatable": "it draws nothing, and one of its parts makes a victim of its own",
    "box_equivariant": "its victim maps what it is sent to another box",
    "not_idle": "its linear victims take all pixel values: see the test of all choices",
}


@pytest.mark.parametrize("law", sorted({*LAWS} - {*ELSEWHERE}))
def test_it_obeys_the_law_on_models_behind_the_layer(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = besiege.defenses.load("zoo:digits-natural+bits(depth=2)")

    def untrained(shape: tuple[int, int, int], classes: int, seed: int = 0) -> Defended:
        return Defended(Classifier(module_of(shape, classes, seed), classes=classes), BitDepth(2))

    for home in ("trial", "outcomes", "extents", "firmness"):
        monkeypatch.setattr(f"besiege.testing.{home}.natural", lambda: victim, raising=False)
    monkeypatch.setattr("besiege.testing.trial.untrained", untrained)
    LAWS[law](Beam(steps=6), Linf, Goal.UNTARGETED)
