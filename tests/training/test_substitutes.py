"""A substitute from labels: what is asked, what is paid, what is learned."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.victims import Noisy, uniform
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import DataError, InputError, VictimError
from besiege.core.samples import Samples
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.data import Data
from besiege.models import Classifier
from besiege.training import fit_substitute, steal
from besiege.training.substitutes import Round


class Wall(Victim):
    """Answers labels alone, charges for every image and remembers it."""

    def __init__(self, victim: Any, classes: int | None = 10) -> None:
        self.victim = self.adopt(victim)
        self.classes, self.access, self.metered = classes, Access.DECISION, True
        self.seen: list[Tensor] = []

    @property
    def served(self) -> int:
        return sum(map(len, self.seen))

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Nought for the label, and minus infinity for all others."""
        self.seen.append(x.detach().clone())
        logits = self.victim(x, dice)
        answer = torch.full_like(logits, -torch.inf)
        return answer.scatter(1, logits.argmax(1, keepdim=True), 0.0)


@pytest.fixture(scope="module")
def digits() -> Data:
    return besiege.data.load("digits")


@pytest.fixture(scope="module")
def seeds(digits: Data) -> Data:
    return digits.subset(100)


@pytest.fixture(scope="module")
def others(digits: Data, seeds: Data) -> Data:
    return digits.take(~torch.isin(digits.ids, seeds.ids))


@pytest.fixture
def wall() -> Wall:
    return Wall(besiege.models.load("zoo:digits-natural"))


def test_agreement_rises_with_rounds_and_every_image_is_paid_once(
    seeds: Data, others: Data, wall: Wall
) -> None:
    told: list[Round] = []
    steps: list[tuple[int, int]] = []
    stolen = steal(
        wall,
        seeds,
        "digits_mlp",
        rounds=3,
        held=others,
        watch=told.append,
        tick=lambda done, total: steps.append((done, total)),
    )
    assert stolen.agreement is not None and stolen.agreement > 0.85
    first = stolen.rounds[0].agreement
    assert first is not None and stolen.agreement > first + 0.03
    assert tuple(told) == stolen.rounds and [one.number for one in told] == [0, 1, 2, 3]
    assert told[-1].agreement == stolen.agreement
    # One account: 800 points at most, and the 297 held out.
    assert stolen.queries == wall.served == len(stolen.labels) + len(others)
    assert stolen.checks == len(others) and 780 <= len(stolen.labels) <= 800
    assert [one.points for one in told][:2] == [100, 200]
    assert told[0].queries == 397 and told[-1].queries == stolen.queries
    asked = torch.cat(wall.seen).flatten(1)
    assert len(torch.unique(asked, dim=0)) == len(asked)
    assert asked.min() >= 0 and asked.max() <= 1
    assert stolen.amortised(397) == stolen.queries / 397
    assert all(a <= b for a, b in pairwise(steps))
    assert steps[-1][0] <= steps[-1][1] == 100 + 200 + 400 + 800
    with torch.no_grad():
        truth = wall.victim(stolen.images).argmax(1)
    assert torch.equal(truth, stolen.labels)


def test_the_step_follows_the_row_of_the_victims_label(seeds: Data, wall: Wall) -> None:
    images = seeds.images
    stolen = steal(wall, seeds, "digits_mlp", rounds=1, epochs=1, lam=0.2)
    before = steal(wall, seeds, "digits_mlp", rounds=0, epochs=1).classifier
    label = stolen.labels[:100]
    x = images.clone().requires_grad_(True)
    row = before(x).gather(1, label[:, None]).sum()
    (slope,) = torch.autograd.grad(row, x)
    right = (images + 0.2 * slope.sign()).clamp(0, 1)
    assert torch.equal(stolen.images[:100], images) and torch.equal(stolen.images[100:], right)
    (other,) = torch.autograd.grad(
        nn.functional.cross_entropy(before(x), label, reduction="sum"), x
    )
    assert not torch.equal((images + 0.2 * other.sign()).clamp(0, 1), right)


def test_after_tau_rounds_the_step_goes_back(seeds: Data) -> None:
    few = seeds.take(torch.arange(20))

    def rise(tau: int | None) -> list[float]:
        """By how much each round's step raised the row it was taken along, on the average."""
        found = []
        for rounds in (1, 2, 3):
            stolen = steal(
                "zoo:digits-natural", few, "digits_mlp", rounds=rounds, epochs=1, tau=tau
            )
            net = steal(
                "zoo:digits-natural", few, "digits_mlp", rounds=rounds - 1, epochs=1, tau=tau
            )
            n = len(net.labels)
            row = net.labels[:, None]
            if len(stolen.labels) != 2 * n:
                row = row[: len(stolen.labels) - n]
            with torch.no_grad():
                above = net.classifier(stolen.images[n:]).gather(1, row)
                below = net.classifier(stolen.images[: len(row)]).gather(1, row)
            found.append(float((above - below).mean()))
        return found

    assert [value > 0 for value in rise(None)] == [True, True, True]
    assert [value > 0 for value in rise(1)] == [True, False, True]


def test_the_reservoir_bounds_what_is_added(seeds: Data, wall: Wall) -> None:
    stolen = steal(wall, seeds, "digits_mlp", rounds=4, epochs=1, reservoir=(1, 30))
    points = [one.points for one in stolen.rounds]
    assert points[:2] == [100, 200] and all(b - a <= 30 for a, b in pairwise(points[1:]))
    # A point may be chosen again, and its neighbour be a point already.
    assert 280 <= stolen.queries == wall.served == points[-1] <= 100 * 2 + 30 * 3
    late = [stolen.images[200:230], stolen.images[230:260]]
    assert not torch.equal(late[0], late[1])


@pytest.mark.parametrize("budget", [100, 101, 150, 250, 399])
def test_a_budget_is_spent_to_the_last_query_and_no_further(
    budget: int, seeds: Data, wall: Wall
) -> None:
    stolen = steal(wall, seeds, "digits_mlp", rounds=6, epochs=1, queries=budget)
    assert stolen.queries == wall.served == len(stolen.labels) == budget
    assert stolen.rounds[-1].points == budget


def test_a_budget_covers_what_is_held_out_too(seeds: Data, others: Data, wall: Wall) -> None:
    stolen = steal(wall, seeds, "digits_mlp", epochs=1, held=others, queries=450)
    assert stolen.queries == wall.served == 450 and len(stolen.labels) == 153
    with pytest.raises(InputError, match="396, but there are 100 seeds and 297 to check on"):
        steal(wall, seeds, "digits_mlp", held=others, queries=396)
    assert wall.served == 450


def test_rejections_are_no_labels(seeds: Data, wall: Wall) -> None:
    wall.rejects = True
    with pytest.raises(InputError, match=r"rejects images.*without its detector"):
        steal(wall, seeds, "digits_mlp", rounds=1)
    assert wall.served == 0


def test_seeds_of_one_class_are_refused_before_anything_is_asked(digits: Data, wall: Wall) -> None:
    ones = digits.take(digits.labels == 1)
    with pytest.raises(InputError, match="all of class 1"):
        steal(wall, ones, "digits_mlp")
    assert wall.served == 0


def test_a_victim_that_says_one_thing_teaches_nothing(seeds: Data) -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.eye(10)[3].expand(len(x), -1) * 5

    victim = Wall(Classifier(Same(), classes=10))
    with pytest.raises(VictimError, match="all 100 seeds the label 3"):
        steal(victim, seeds, "digits_mlp")
    assert victim.served == 100


def test_classes_never_seen_are_named(digits: Data) -> None:
    some = digits.take(digits.labels < 3).subset(60)
    stolen = steal("zoo:digits-natural", some, "digits_mlp", rounds=0, epochs=1)
    with torch.no_grad():
        said = besiege.models.load("zoo:digits-natural")(some.images).argmax(1).tolist()
    assert stolen.missing == tuple(sorted(set(range(10)) - set(said))) and len(stolen.missing) > 3
    assert stolen.classifier.classes == 10 and stolen.agreement is None and stolen.checks == 0


def test_how_many_classes_there_are_may_be_seen_by_the_answers_alone(seeds: Data) -> None:
    some = seeds.take(seeds.labels < 4)
    samples = Samples.of(some.images, some.labels)
    unknown = Wall(besiege.models.load("zoo:digits-natural"), classes=None)
    stolen = steal(unknown, samples, "digits_mlp", rounds=1, epochs=1)
    assert stolen.classifier.classes == 10 and unknown.served == stolen.queries


def test_the_same_images_are_not_paid_twice_among_the_seeds(seeds: Data, wall: Wall) -> None:
    twice = Samples(
        torch.cat([seeds.images, seeds.images]),
        torch.cat([seeds.labels, seeds.labels]),
        torch.arange(200),
    )
    stolen = steal(wall, twice, "digits_mlp", rounds=0, epochs=1, held=seeds)
    assert stolen.queries == wall.served == 100 and stolen.checks == 0


def test_the_same_seed_gives_the_same_substitute(seeds: Data, wall: Wall) -> None:
    def weights(seed: int) -> Tensor:
        stolen = steal(wall, seeds, "digits_mlp", rounds=1, epochs=1, seed=seed)
        return torch.cat([p.detach().flatten() for p in stolen.classifier.module.parameters()])

    state = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_victim_that_quantises_labels_what_it_receives(seeds: Data) -> None:
    inner = Classifier(besiege.models.load("zoo:digits-natural").module, classes=10, grid=1 / 255)
    victim = Wall(inner)
    stolen = steal(victim, seeds, "digits_mlp", rounds=1, epochs=1, lam=0.0987)
    sent = torch.cat(victim.seen) * 255
    assert torch.allclose(sent, sent.round(), atol=1e-4)
    assert torch.equal(torch.cat(victim.seen), stolen.images)
    assert stolen.classifier.grid == 1 / 255 and stolen.made["grid"] == 1 / 255


def test_another_box_is_filled_by_data_and_kept_by_the_substitute(seeds: Data) -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = besiege.models.load("zoo:digits-natural").module

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.inner((x + 1) / 2))

    victim = Wall(Classifier(Moved(), box=(-1, 1), classes=10))
    stolen = steal(victim, seeds, "digits_mlp", rounds=1, epochs=1)
    assert stolen.classifier.box == (-1.0, 1.0)
    sent = torch.cat(victim.seen)
    assert (float(sent.min()), float(sent.max())) == (-1.0, 1.0)
    change = stolen.images[100:] - stolen.images[:100]
    assert float(change.abs().max()) == pytest.approx(0.2)
    plain = Wall(besiege.models.load("zoo:digits-natural"))
    steal(plain, seeds, "digits_mlp", rounds=0, epochs=1)
    with torch.no_grad():
        assert torch.equal(stolen.labels[:100], plain.victim(plain.seen[0]).argmax(1))


def test_a_victim_of_chance_is_asked_once_with_chances_of_its_own(seeds: Data) -> None:
    noisy = Noisy(besiege.models.load("zoo:digits-natural"))
    stolen = steal(noisy, seeds, "digits_mlp", rounds=1, epochs=1)
    shifts = torch.cat(noisy.shifts)
    assert len(shifts) == stolen.queries == len(stolen.labels)
    assert len(torch.unique(shifts.flatten(1), dim=0)) == len(shifts)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rounds": -1}, "rounds is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lam": 0.0}, "lam is 0.0"),
        ({"tau": 0}, "tau is 0"),
        ({"reservoir": (1, 0)}, "kappa is 0"),
        ({"queries": 99}, "queries is 99, but there are 100 seeds,"),
        ({"architecture": "digits_ml"}, "digits_mlp"),
        ({"architecture": "digits_mlp(size=9)"}, "images"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    given: dict[str, Any], said: str, seeds: Data, wall: Wall
) -> None:
    with pytest.raises(besiege.BesiegeError, match=said):
        steal(wall, seeds, **{"architecture": "digits_mlp", **given})
    assert wall.served == 0


def test_attacks_on_it_fool_the_victim(seeds: Data, others: Data) -> None:
    victim = besiege.models.load("zoo:digits-natural")
    stolen = steal(victim, seeds, "digits_mlp", rounds=3)
    terms: Any = {"threat": "linf:0.2", "keep": "last", "leave": "end", "steps": 10}
    made = besiege.attack("mim", stolen.classifier, others.images, others.labels, **terms)
    noise = 0.2 * (uniform(*others.images.shape) - 0.5).sign()
    with torch.no_grad():
        right, moved, random = (
            int((victim(x).argmax(1) == others.labels).sum())
            for x in (others.images, made.images, (others.images + noise).clamp(0, 1))
        )
    assert moved < 0.5 * right and random > 0.8 * right


def test_the_files_hold_the_substitute_and_the_same_theft_asks_nothing(
    digits: Data, wall: Wall, tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "sub.safetensors"
    few: dict[str, Any] = {"rounds": 1, "epochs": 2, "count": 60, "check": 50}
    wall.digest = lambda: "the same"  # type: ignore[method-assign]  # it counts what it is asked
    assert fit_substitute(wall, digits, "digits_mlp", out, **few) == out
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["queries"] == wall.served == 170 and card["checks"] == 50
    assert [one["points"] for one in card["rounds"]] == [60, 120]
    loaded = besiege.models.load(card["source"])
    seeds, served = digits.subset(60), wall.served
    again = steal(wall, seeds, "digits_mlp", rounds=1, epochs=2)
    with torch.no_grad():
        assert torch.equal(loaded(digits.images), again.classifier(digits.images))
    served = wall.served
    assert fit_substitute(wall, digits, "digits_mlp", out, **few) == out and wall.served == served
    with pytest.raises(DataError, match="not of this training"):
        fit_substitute(wall, digits, "digits_mlp", out, **few, lam=0.2)
    assert wall.served == served
    fit_substitute(wall, digits, "digits_mlp", out, **few, lam=0.2, resume=False)
    assert wall.served == served + 170


def test_a_text_with_its_box_and_grid_is_read_back(digits: Data, tmp_path: Path) -> None:
    net = besiege.models.load("zoo:digits-natural").module
    victim = Classifier(net, classes=10, grid=1 / 255, box=(0, 1))
    out = fit_substitute(
        victim, digits, "digits_mlp", tmp_path / "a.safetensors", rounds=0, epochs=1
    )
    source = json.loads(out.with_suffix(".json").read_text())["source"]
    assert besiege.models.load(source).grid == 1 / 255
