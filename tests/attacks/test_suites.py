"""Every suite from end to end, for any number of classes, any shape and any end of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from tests.victims import Noisy

from besiege.attacks.attack import Attack, parse, spelled
from besiege.attacks.combine import Averaged
from besiege.attacks.suites import SUITES, suite
from besiege.core.errors import UnknownNameError
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.core.victim import Victim
from besiege.evaluation import Crafted, craft, judge
from besiege.evaluation.verdicts import Verdicts
from besiege.models.classifier import Classifier
from besiege.testing.victims import Array, Linear, Shape, images_of, module_of, size, untrained

NORMS = (Linf, L2, L1)
CLASSES = (2, 3, 4, 8, 10, 100, 1000)
EPS = {Linf: 0.03, L2: 0.5, L1: 3.0}
SHAPES: tuple[Shape, ...] = (
    (1, 8, 8),
    (3, 8, 8),
    (1, 32, 32),
    (3, 32, 32),
    (3, 32, 36),
)
NOISE = 1e-3
"""What the chance of the victims of `rand` changes: a hundredth of the budgets, and less."""

SEEING = [name for name in SUITES if name not in ("score", "decision")]
"""Suites that follow gradients, which a few steps take somewhere."""

BRIEFLY = [
    pytest.param(name, marks=() if name in ("standard", "score") else pytest.mark.slow)
    for name in SUITES
]
"""All suites, of which two are run in the fast run."""


def small(attack: Attack, steps: int, draws: int = 20) -> Attack:
    """The attack with at most so many steps and draws and two restarts, its parts too."""
    changes: dict[str, object] = {}
    for field in fields(attack):  # type: ignore[arg-type]  # every attack is a dataclass
        value = getattr(attack, field.name)
        if isinstance(value, Attack):
            changes[field.name] = small(value, steps, draws)
        elif field.name == "steps":
            changes["steps"] = min(value, steps)
        elif field.name == "restarts":
            changes["restarts"] = min(value, 2)
    if isinstance(attack, Averaged):
        changes["count"] = min(attack.count, draws)
    return replace(attack, **changes)  # type: ignore[type-var]


def attacks_of(name: str, norm: Norm, steps: int, draws: int = 20) -> list[Attack]:
    """The attacks of a suite, shortened."""
    return [small(parse(text), steps, draws) for text in suite(name).attacks_for(norm)]


def labelled(victim: Classifier, shape: Shape, rows: int = 6) -> Samples:
    """Images labelled as the victim sees them."""
    images = images_of(shape, rows)
    return Samples.of(images, victim(images).argmax(1))


def faced(name: str, victim: Classifier) -> Victim:
    """What a suite is for: the victim, or one that answers by chance."""
    return Noisy(victim, NOISE) if name == "rand" else victim


def sound(
    victim: Victim, samples: Samples, threat: Threat, attack: Attack, seed: int = 0
) -> tuple[Crafted, Verdicts]:
    """What an attack made, every image of it looked at: by the judge, and in numpy."""
    crafted = craft(victim, attack, samples, threat, seed=seed)
    verdicts = judge(victim, crafted, samples, threat)
    images = crafted.images
    assert images.shape == samples.images.shape and images.dtype == samples.images.dtype
    assert bool(torch.isfinite(images).all())
    assert float(images.min()) >= 0.0 and float(images.max()) <= 1.0
    change = (images.double() - samples.images.double()).flatten(1).numpy()
    assert size(threat.norm, change).max() <= threat.radius * (1 + 1e-6), str(attack)
    assert bool(verdicts.valid.all()) and bool(verdicts.within.all())
    if not victim.stochastic:
        assert torch.equal(crafted.success, verdicts.success), str(attack)
        assert not verdicts.findings
    return crafted, verdicts


def chained(
    victim: Victim, samples: Samples, threat: Threat, attacks: list[Attack]
) -> Iterator[tuple[Attack, Samples, Crafted, Verdicts]]:
    """Each attack on what the ones before left standing, as a suite is run."""
    left = samples
    for attack in attacks:
        if len(left):
            crafted, verdicts = sound(victim, left, threat, attack)
            yield attack, left, crafted, verdicts
            left = left.at((~verdicts.success).nonzero()[:, 0])


def broken(victim: Victim, samples: Samples, threat: Threat, attacks: list[Attack]) -> Array:
    """Which samples fall to the chain."""
    fallen = np.zeros(len(samples), bool)
    for _, left, _, verdicts in chained(victim, samples, threat, attacks):
        fallen |= np.isin(samples.ids.numpy(), left.ids[verdicts.success].numpy())
    return fallen


@cache
def far(victim: Linear, norm: Norm, rows: int) -> tuple[Samples, Array]:
    """Samples, and how far each is from an error without a box: with one it is no nearer."""
    samples = victim.samples(rows)
    x = samples.images.double().flatten(1).numpy()
    logits, own = x @ victim.weight.T + victim.bias, samples.labels.numpy()
    dual = {Linf: 1, L2: 2, L1: np.inf}[norm]
    steep = np.stack([np.linalg.norm(victim.weight - victim.weight[y], dual, 1) for y in own])
    gap = logits[np.arange(len(own)), own][:, None] - logits
    steep[np.arange(len(own)), own] = 1e-300  # the label itself is infinitely far
    gap[np.arange(len(own)), own] = 1.0
    return samples, (gap / steep).min(1)


@cache
def linear_of(classes: int) -> Linear:
    return Linear((3, 8, 8), classes)


def check_linear(name: str, classes: int, norm: Norm) -> None:
    """A linear victim: what is near enough falls, and what is too far never does."""
    victim = linear_of(classes)
    samples, distance = far(victim, norm, 6 if classes < 1000 else 2)
    eps = 1.7 * float(np.median(distance))
    # FAB asks for the gradients of all logits.
    attacks = attacks_of(name, norm, steps=4 if classes < 100 else 2, draws=2)
    fallen = broken(faced(name, victim), samples, Threat(norm, eps), attacks)
    assert not fallen[distance > 1.02 * eps].any(), "nothing can have broken these"
    if name in SEEING:  # a few steps without gradients need not get anywhere
        near = fallen[distance < eps / 2]
        assert fallen.any() and near.all(), f"{norm}: {distance / eps} {fallen}"


@pytest.mark.parametrize("classes", (2, 3, 10, 100))
@pytest.mark.parametrize("name", SEEING)
def test_any_number_of_classes(name: str, classes: int) -> None:
    """In one norm each, so that every suite and every number of classes meets all three."""
    turn = SEEING.index(name) + CLASSES.index(classes)
    check_linear(name, classes, NORMS[turn % 3])


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", SUITES)
def test_any_number_of_classes_in_every_norm(name: str, classes: int, norm: Norm) -> None:
    check_linear(name, classes, norm)


def alone(victim: Classifier, samples: Samples, threat: Threat, steps: int) -> int:
    """How many rows fall to the attacks of the suites, each on all rows.

    In a chain the last ones have little to do.
    """
    texts = {text for name in SUITES for text in suite(name).attacks_for(threat.norm)}
    fallen = 0
    for attack in sorted({small(parse(text), steps, 2) for text in texts}, key=str):
        met = Noisy(victim, NOISE) if isinstance(attack, Averaged) else victim
        fallen += int(sound(met, samples, threat, attack)[1].success.sum())
    return fallen


@pytest.mark.parametrize(
    "classes",
    [pytest.param(n, marks=() if n in (2, 3, 100) else pytest.mark.slow) for n in CLASSES],
)
def test_every_attack_takes_any_number_of_classes(classes: int) -> None:
    many = classes == 1000
    victim = untrained((1, 8, 8), classes)
    samples = labelled(victim, (1, 8, 8), 2 if many else 6)
    turn = CLASSES.index(classes) % 3
    # All norms where losses have forms of their own, one elsewhere.
    for norm in NORMS if classes < 4 else NORMS[turn : turn + 1]:
        assert alone(victim, samples, Threat(norm, 2 * EPS[norm]), steps=1 if many else 2)


@pytest.mark.parametrize(
    "shape",
    # The last has all there is: channels, and sides that differ.
    [*(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[:-1]), SHAPES[-1]],
    ids=str,
)
def test_every_attack_takes_any_shape(shape: Shape) -> None:
    victim = untrained(shape, 10)
    samples = labelled(victim, shape, 2)
    for norm in NORMS:
        assert alone(victim, samples, Threat(norm, 2 * EPS[norm]), steps=2)


LARGE = [
    (name, (channels, 299, 299), norm) for name in SUITES for channels in (1, 3) for norm in NORMS
]


def check_large(name: str, shape: Shape, norm: Norm) -> None:
    victim = Classifier(module_of(shape, 2, width=1), classes=2, name="large")
    samples = labelled(victim, shape, 2)
    for attack in attacks_of(name, norm, steps=1, draws=2):
        sound(faced(name, victim), samples, Threat(norm, EPS[norm] / 100), attack)


def test_images_of_299_pixels() -> None:
    check_large("standard", (3, 299, 299), Linf)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "norm"), LARGE)
def test_images_of_299_pixels_in_every_suite(name: str, shape: Shape, norm: Norm) -> None:
    check_large(name, shape, norm)


@pytest.mark.parametrize("name", BRIEFLY)
def test_images_that_came_channels_last(name: str) -> None:
    shape = (3, 8, 9)
    victim = untrained(shape, 5)
    samples = labelled(victim, shape)
    turned = samples.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not turned.is_contiguous() and torch.equal(turned, samples.images)
    last = Samples(turned, samples.labels, samples.ids)
    for norm in NORMS:
        threat = Threat(norm, EPS[norm] / 2)
        for attack in attacks_of(name, norm, steps=2, draws=2):
            met = faced(name, victim)
            (one, _), (other, _) = (
                sound(met, samples, threat, attack),
                sound(met, last, threat, attack),
            )
            assert torch.equal(one.images, other.images), str(attack)
            assert torch.equal(one.queries, other.queries)


@pytest.mark.parametrize("name", [p for p in BRIEFLY if p.values[0] in SEEING])
@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_that_ends_with_one_survivor_and_with_none(name: str, norm: Norm) -> None:
    victim = Linear((1, 5, 5), 5)
    many = victim.samples(60)
    distance = victim.distance(norm, many.images, many.labels)
    order = np.argsort(distance)
    rows = np.insert(order[:6], 3, order[-1])  # the farthest among the nearest
    samples = many.at(torch.from_numpy(rows))
    near, lone = float(distance[order[5]]), float(distance[order[-1]])
    assert lone > 4 * near
    attacks = attacks_of(name, norm, steps=10, draws=2)
    one = broken(faced(name, victim), samples, Threat(norm, 2 * near), attacks)
    assert one.tolist() == [True] * 3 + [False] + [True] * 3
    none = list(chained(faced(name, victim), samples, Threat(norm, 2 * lone), attacks))
    last = none[-1]
    assert bool(last[3].success.all()), "all fall, and attacks that find nobody do not run"
    alone = samples.at(torch.tensor([3]))
    for attack in attacks:  # a batch of one, to the end of every attack
        _, verdicts = sound(faced(name, victim), alone, Threat(norm, 2 * near), attack)
        assert not bool(verdicts.success.any())
    near_alone = samples.at(torch.tensor([0]))
    _, verdicts = sound(faced(name, victim), near_alone, Threat(norm, 2 * near), attacks[0])
    assert bool(verdicts.success.all()), "and one that can be broken is"


@pytest.mark.parametrize("name", SUITES)
def test_all_images_wrong_when_clean(name: str) -> None:
    """They are broken as they are: nothing is changed, and nothing is asked but once."""
    victim = untrained((3, 8, 8), 4)
    right = labelled(victim, (3, 8, 8))
    samples = Samples.of(right.images, (right.labels + 1) % 4)
    for norm in NORMS:
        for attack in attacks_of(name, norm, steps=2, draws=2):
            crafted, verdicts = sound(faced(name, victim), samples, Threat(norm, EPS[norm]), attack)
            assert bool(verdicts.success.all()) and not bool(verdicts.correct.any())
            assert not bool(verdicts.robust.any())
            if name != "rand":
                assert torch.equal(crafted.images, samples.images)
                assert crafted.forwards.tolist() == [1] * 6 and not crafted.backwards.any()


def test_an_unknown_suite_names_its_neighbour() -> None:
    with pytest.raises(UnknownNameError, match=r"no suite is called 'standrad'.*'standard'"):
        suite("standrad")
    assert set(SUITES) == {*SEEING, "score", "decision"}
    names = ("quick", "standard", "standard@reference", "plus", "rand", "adaptive", "minimum")
    assert tuple(SEEING) == names


def test_the_suites_are_the_published_ones() -> None:
    assert suite("standard").attacks_for(Linf) == suite("standard").attacks_for(L2)
    adaptive = suite("adaptive")
    usual, drawn = adaptive.attacks, adaptive.stochastic
    last = adaptive.rejecting[-1]
    assert "weighed" in last, "another weight of the rejection finds what the fold leaves"
    assert adaptive.attacks_for(Linf, rejects=True) == (*usual, "opgd", last)
    both = adaptive.attacks_for(Linf, stochastic=True, rejects=True)
    averaged = ("averaged(opgd, 20)", f"averaged({last}, 20)")
    assert both == (*drawn, *averaged), "what rejects may be stochastic, too"
    pooled = adaptive.attacks_for(Linf, stochastic=True, pooled=True, rejects=True)
    assert pooled == (*adaptive.pooled, "opgd", last)
    assert adaptive.attacks_for(Linf, rounds=True) == (*usual, "beam")
    assert adaptive.attacks_for(L2, rounds=True) == usual, "beam works in linf"
    assert adaptive.attacks_for(Linf, stochastic=True, rounds=True) == (
        *drawn,
        "averaged(beam, 20)",
    )
    assert adaptive.attacks_for(Linf, rejects=True, rounds=True) == (*usual, "opgd", last, "beam")
    assert suite("standard").attacks_for(Linf, rejects=True) == suite("standard").attacks
    assert suite("standard").attacks_for(L2) == ("apgd", "apgdt", "fabt", "square")
    assert suite("standard").attacks_for(L1)[:2] == ("apgd(restarts=5)", "apgdt(targets=5)")
    for norm in NORMS:
        for name in SUITES:
            attacks = [parse(text) for text in suite(name).attacks_for(norm)]
            assert all(norm in attack.norms for attack in attacks)
        # By default: 100 steps, 9 classes, 5000 proposals, 20 draws of what answers by chance.
        _, apgdt, fabt, square = (parse(text) for text in suite("standard").attacks_for(norm))
        said = [spelled(attack) for attack in (apgdt, fabt, square)]
        assert [one["steps"] for one in said] == [100, 100, 5000]
        assert [one["targets"] for one in said[:2]] == [5 if norm is L1 else 9, 9]
        assert all(parse(text).draws == 20 for text in suite("rand").attacks_for(norm))


def test_the_price_of_the_decision_suite_is_what_is_said() -> None:
    for norm in (Linf, L2):
        names = SUITES["decision"].attacks_for(norm)
        most = sum(parse(name).cost((3, 32, 32), 10) or 0 for name in names)
        assert 39_000 <= most <= 42_500
    assert "42,500" in SUITES["decision"].told
