"""Attacks made of attacks: who runs, on which rows, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls
from tests.victims import Curve, Noisy, affine, normal
from torch import Tensor

import besiege
from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, parse
from besiege.attacks.combine import Averaged, BestOf, Cascade, EachTarget, Minimal, Repeat
from besiege.core.errors import AttackError, StochasticError, ThreatError
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import ALL_NORMS, L0, L1, L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Altered, Counting, Linear, digits, images_of, natural

SHAPE = (1, 5, 6)


@dataclass(frozen=True)
class Probe(Attack):
    """Notes what it is given; offers a point so far from the clean image, if any."""

    label: str = "probe"
    move: float | None = None
    log: list[tuple[str, list[int], list[int] | None, int]] = field(
        default_factory=list, compare=False
    )

    def run(self, siege: Siege) -> None:
        aims = siege.aim.targets
        seen = None if aims is None else aims.tolist()
        self.log.append((self.label, siege.rows.tolist(), seen, int(siege.dice.key[0])))
        if self.move is not None:
            x = siege.ball.center.clone()
            x[:, 0, 0, 0] += self.move * siege.ball.radius.to(x.dtype)
            siege.offer(x.clamp(0, 1))


# One pixel decides: above 0.5 it is class 1.
STEP = affine(torch.tensor([[-1.0, 0], [1.0, 0]]), torch.tensor([0.5, -0.5]))


def dots(*values: float) -> Samples:
    """Images of label 0 that lie so far from the boundary at 0.5."""
    x = torch.full((len(values), 1, 1, 2), 0.5)
    x[:, 0, 0, 0] = 0.5 - torch.tensor(values)
    return Samples.of(x, torch.zeros(len(values)).long())


def run(attack: Attack, samples: Samples, threat: str = "linf:0.2", **more: Any) -> Crafted:
    return craft(STEP, attack, samples, Threat.parse(threat), **more)


# repeat, cascade, best_of


def test_repeat_runs_survivors_again_with_fresh_chances() -> None:
    probe = Probe()
    made = run(Repeat(probe, 3), dots(0.1, 0.1))
    assert [(rows, aims) for _, rows, aims, _ in probe.log] == [([0, 1], None)] * 3
    assert len({key for *_, key in probe.log}) == 3
    assert not made.success.any()
    hits = Probe(move=1.0)
    made = run(Repeat(hits, 3), dots(0.1, 0.3, 0.19))
    assert [rows for _, rows, _, _ in hits.log] == [[0, 1, 2], [1], [1]]
    assert made.success.tolist() == [True, False, True]
    done = Probe(move=1.0)
    run(Repeat(done, 3), dots(0.1))
    assert len(done.log) == 1  # nobody is left


def test_cascade_runs_each_attack_on_the_survivors_of_the_others() -> None:
    log: list[tuple[str, list[int], list[int] | None, int]] = []
    parts = tuple(Probe(n, m, log) for n, m in (("a", 0.3), ("b", 0.6), ("c", 1.0), ("d", 1.0)))
    made = run(Cascade(parts), dots(0.05, 0.1, 0.15, 0.3, 0.05))
    assert [(name, rows) for name, rows, _, _ in log] == [
        ("a", [0, 1, 2, 3, 4]),
        ("b", [1, 2, 3]),
        ("c", [2, 3]),
        ("d", [3]),
    ]
    assert made.success.tolist() == [True, True, True, False, True]
    assert made.distance[:3].tolist() == pytest.approx([0.06, 0.12, 0.2])
    assert made.queries.tolist() == [2, 3, 4, 5, 2]
    assert len({key for *_, key in log}) == 4


def test_cascade_costs_what_its_parts_cost_on_survivors() -> None:
    victim = Counting(Linear(SHAPE, 3))
    images = images_of(SHAPE, 30)
    samples = Samples.of(images, victim.victim(images).argmax(1))
    threat = Threat.parse("linf:0.02")
    first = craft(victim, parse("fgsm"), samples, threat, pad=False)
    left = (~first.success).nonzero()[:, 0]
    assert 0 < len(left) < 30
    victim.forwards = victim.backwards = 0
    both = craft(victim, parse("cascade(fgsm, pgd(steps=5))"), samples, threat, pad=False)
    assert int(both.forwards.sum()) == victim.forwards
    assert int(both.backwards.sum()) == victim.backwards
    assert torch.equal(both.queries[first.success], first.queries[first.success])
    assert (both.queries[left] > first.queries[left]).all()
    assert torch.equal(both.images[first.success], first.images[first.success])
    assert (both.success >= first.success).all()


@pytest.mark.parametrize("leave", ["success", "end"])
def test_best_of_gives_every_row_to_every_attack_and_keeps_the_smallest(leave: Any) -> None:
    log: list[tuple[str, list[int], list[int] | None, int]] = []
    parts = tuple(Probe(n, m, log) for n, m in (("far", 1.0), ("near", 0.6), ("none", 0.0)))
    made = run(BestOf(parts), dots(0.05, 0.15, 0.3), leave=leave)
    assert [(name, rows) for name, rows, _, _ in log] == [
        ("far", [0, 1, 2]),
        ("near", [0, 1, 2]),
        ("none", [0, 1, 2]),
    ]
    assert made.success.tolist() == [True, True, False]
    assert made.distance[:2].tolist() == pytest.approx([0.12, 0.2])
    assert made.first_query.tolist() == [2, 2, -1]


# each_target


def test_each_target_steers_to_one_class_after_the_other_by_clean_score() -> None:
    victim = Linear(SHAPE, 5)
    images = images_of(SHAPE, 4)
    logits = victim(images)
    samples = Samples.of(images, logits.argmax(1))
    order = logits.argsort(1, descending=True)[:, 1:]
    for count, turns in ((None, 4), (2, 2), (9, 4)):
        probe = Probe()
        craft(victim, EachTarget(probe, count), samples, Threat.parse("linf:0.01"))
        assert len(probe.log) == turns
        for turn, (_, rows, aims, _) in enumerate(probe.log):
            assert rows == [0, 1, 2, 3] and aims == order[:, turn].tolist()
        assert len({key for *_, key in probe.log}) == turns


def test_each_target_counts_any_error_and_drops_what_is_broken() -> None:
    """Class 1 is nearest by distance though class 2 has the higher score."""
    weight = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 0.1]])
    victim = affine(weight, torch.tensor([0.0, -2.4, -0.08]))
    samples = Samples.of(torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]))
    assert victim(samples.images).argsort(descending=True)[0].tolist() == [0, 2, 1]
    threat = Threat.parse("linf:0.12")
    attack = parse("bim(steps=10, loss=margin)")
    alone = craft(victim, EachTarget(attack, 1), samples, threat)
    assert not alone.success.any() and alone.backwards.tolist() == [10]  # towards class 2
    made = craft(victim, EachTarget(attack), samples, threat)
    assert made.success.all() and victim(made.images).argmax() == 1
    assert 10 < int(made.backwards) < 20


def test_each_target_is_for_untargeted_goals() -> None:
    assert EachTarget(Probe()).goals == {Goal.UNTARGETED}
    with pytest.raises(ThreatError, match="goals untargeted"):
        run(EachTarget(Probe()), dots(0.1), "linf:0.2 targeted:random")


@pytest.mark.parametrize(
    "text", ["hopskipjump", "rays", "repeat(opt, 2)", "cascade(square, geoda)"]
)
def test_each_target_refuses_what_cannot_be_steered(text: str) -> None:
    with pytest.raises(AttackError, match="sees labels only"):
        parse(f"each_target({text})")


@dataclass(frozen=True)
class Aimed(Attack):
    """An attack steered to the class of one place in the order."""

    inner: Attack
    place: int
    access = Access.DECISION

    def run(self, siege: Siege) -> None:
        self.inner.run(siege.view(aim=siege.ranked()[:, self.place]))


@pytest.mark.parametrize("text", ["hopskipjump(steps=2)", "rays(steps=60)", "signopt(steps=1)"])
def test_what_sees_labels_alone_goes_its_way_whatever_the_aim(text: str) -> None:
    victim, images = Linear(SHAPE, 4), images_of(SHAPE, 3)
    samples, threat = (
        Samples.of(images, victim(images).argmax(1)),
        Threat.parse("linf:0.3 decision"),
    )
    ways = [craft(victim, Aimed(parse(text), place), samples, threat).images for place in (0, 2)]
    assert torch.equal(*ways)


# what a combination can do


def test_combinations_need_and_can_do_what_their_parts_do() -> None:
    pgd, rfgsm, illc = parse("pgd"), parse("rfgsm"), parse("illc")
    both = Cascade((pgd, rfgsm, illc))
    assert both.access is Access.GRADIENT
    assert both.norms == {Linf}
    assert both.goals == {Goal.UNTARGETED, Goal.LEAST_LIKELY}
    assert not both.minimal and Minimal(pgd).minimal
    assert Cascade((Minimal(pgd), Minimal(illc))).minimal
    assert not Cascade((Minimal(pgd), illc)).minimal
    assert both.one_step and not pgd.one_step and Repeat(parse("fgsm")).one_step
    assert Averaged(pgd, 4).draws == 4 and Averaged(Averaged(pgd, 4), 3).draws == 12
    assert Cascade((Averaged(pgd, 4), pgd)).draws == 1
    assert Repeat(Probe()).norms == ALL_NORMS


@pytest.mark.parametrize(
    "text",
    [
        "averaged(prgf, 2)",
        "repeat(prgf)",
        "minimal(prgf)",
        "cascade(square, prgf)",
        "best_of(prgf)",
    ],
)
def test_a_combination_takes_the_advice_that_its_parts_do(text: str) -> None:
    assert parse(text).needs_substitute and not parse(text.replace("prgf", "nes")).needs_substitute
    data = besiege.data.load("digits", count=4)
    found = besiege.attack(
        text.replace("prgf", "prgf(steps=2)").replace("square", "square(steps=2)"),
        "zoo:digits-natural",
        data.images,
        data.labels,
        threat="linf:0.1",
        substitute="zoo:digits-pgd-at",
    )
    assert found.substitute_passes is not None and int(found.substitute_passes.sum()) > 0


@pytest.mark.parametrize("text", ["rays", "nes_partial", "cascade(square, rays)", "best_of(rays)"])
def test_a_combination_begins_at_other_images_where_a_part_does(text: str) -> None:
    assert parse(text).uses_starts
    other = text.replace("rays", "nes").replace("nes_partial", "nes")
    assert not parse(other).uses_starts and not parse(other.replace("nes", "pgd")).uses_starts


COSTS = {
    "averaged(rays(steps=50), 5)": 250,
    "averaged(averaged(rays(steps=50), 2), 3)": 300,
    "repeat(rays(steps=50), 3)": 150,
    "each_target(square(steps=9))": 9 * 10,
    "each_target(square(steps=9), 20)": 9 * 10,
    "each_target(square(steps=9), 3)": 3 * 10,
    "cascade(square(steps=9), rays(steps=50))": 60,
    "best_of(square(steps=9), repeat(rays(steps=50), 2))": 110,
    "minimal(square(steps=9))": 26 * 10,
    "minimal(square(steps=9), doublings=2, bisections=3)": 6 * 10,
    "cascade(averaged(square(steps=9), 4), square(steps=9))": 50,
}


@pytest.mark.parametrize("text", COSTS)
def test_what_a_combination_costs_at_most(text: str) -> None:
    attack = parse(text)
    assert attack.cost((1, 8, 8), 10) == COSTS[text]
    data, threat = besiege.data.load("digits", count=6), Threat.parse("linf:0.02 score")
    samples = Samples.of(data.images, data.labels, ids=data.ids)
    made = craft(besiege.models.load("zoo:digits-natural"), attack, samples, threat)
    # The clean check is averaged as all answers are.
    most = COSTS[text] + attack.draws
    assert int(made.queries.max()) <= most
    if "minimal" not in text and "rays" not in text:  # those may end before
        assert int(made.queries.max()) == most


def test_what_is_not_known_of_a_part_is_not_known_of_the_whole() -> None:
    for text in ("repeat(pgd, 2)", "cascade(square, pgd)", "minimal(fgsm)", "averaged(pgd, 4)"):
        assert parse(text).cost((1, 8, 8), 10) is None


def test_budgets_hold_across_combinations() -> None:
    victim = Linear(SHAPE, 4)
    images = images_of(SHAPE, 8)
    samples = Samples.of(images, victim(images).argmax(1))
    texts = [
        "repeat(pgd(steps=4), 3)",
        "each_target(pgd(steps=4))",
        "cascade(fgsm, bim, pgd)",
        "best_of(bim, pgd)",
        "minimal(bim(steps=3))",
        "minimal(fgsm)",
        "cascade(sinifgsm, dim)",
    ]
    for text in texts:
        full = craft(victim, parse(text), samples, Threat.parse("linf:0.01"))
        for budget in (1, 2, 7, 23):
            spy = Counting(victim)
            made = craft(
                spy, parse(text), samples, Threat.parse("linf:0.01"), queries=budget, pad=False
            )
            assert (made.queries <= budget).all(), text
            assert int(made.queries.sum()) == spy.forwards
            assert (made.queries == torch.minimum(full.queries, torch.tensor(budget))).all(), text


# averaged


def test_averages_repeat_and_make_a_stochastic_victim_attackable() -> None:
    victim = Noisy(Linear(SHAPE, 3), 0.05)
    images = images_of(SHAPE, 6)
    samples = Samples.of(images, victim.victim(images).argmax(1))
    threat = Threat.parse("linf:0.05")
    pgd = parse("pgd(steps=3)")
    with pytest.raises(StochasticError, match=r"averaged\(pgd\(steps=3\), 20\)"):
        craft(victim, pgd, samples, threat)
    with pytest.raises(StochasticError):
        craft(victim, Cascade((Averaged(pgd, 4), pgd)), samples, threat)
    first = craft(victim, Averaged(pgd, 4), samples, threat)
    second = craft(victim, Averaged(pgd, 4), samples, threat)
    other = craft(victim, Averaged(pgd, 4), samples, threat, seed=1)
    assert torch.equal(first.images, second.images)
    assert not torch.equal(first.images, other.images)
    assert first.forwards.tolist() == [4 * 5] * 6  # clean check, three steps, last point
    assert first.backwards.tolist() == [4 * 3] * 6
    alone = craft(victim, Averaged(pgd, 4), samples.at(torch.tensor([4])), threat)
    assert torch.allclose(alone.images[0], first.images[4], atol=1e-6)


# minimal


def exact(victim: Classifier, samples: Samples, norm: Norm) -> NDArray[np.float64]:
    """The distance of each image to the nearest error, by LP and NNLS, one problem per class."""
    layer: Any = victim.module[1]  # type: ignore[index]  # a Sequential
    weight = layer.weight.detach().double().numpy()
    bias = layer.bias.detach().double().numpy()
    found = []
    for image, label in zip(samples.images.double(), samples.labels.tolist(), strict=True):
        x = image.flatten().numpy()
        n, best = len(x), np.inf
        for target in range(len(bias)):
            if target == label:
                continue
            w = weight[target] - weight[label]
            c = float((weight[label] - weight[target]) @ x + bias[label] - bias[target])
            if (np.abs(w) * np.where(w > 0, 1 - x, x)).sum() < c:
                continue
            best = min(best, _plane(w, c, x, n, norm))
        found.append(best)
    return np.array(found)


def _plane(w: Any, c: float, x: Any, n: int, norm: Norm) -> float:
    program: Any = linprog
    if norm is Linf:
        eye, one = np.eye(n), np.ones((n, 1))
        rows = np.vstack([np.hstack([eye, -one]), np.hstack([-eye, -one])])
        limits = [*zip(-x, 1 - x, strict=True), (0, None)]
        cost, plane = np.append(np.zeros(n), 1.0), np.append(w, 0.0)[None]
        return float(program(cost, rows, np.zeros(2 * n), plane, [c], bounds=limits).fun)
    if norm is L1:
        limits = [(0, b) for b in (*(1 - x), *x)]
        plane = np.append(w, -w)[None]
        return float(program(np.ones(2 * n), None, None, plane, [c], bounds=limits).fun)
    g = np.vstack([w, np.eye(n), -np.eye(n)])
    e = np.vstack([g.T, np.concatenate([[c], -x, x - 1])])
    u, _ = nnls(e, np.append(np.zeros(n), 1.0), maxiter=10000)
    rest = e @ u - np.append(np.zeros(n), 1.0)
    return float(np.linalg.norm(rest[:-1] / rest[-1]))


def saturated(classes: int, rows: int = 12, seed: int = 0) -> tuple[Classifier, Samples]:
    """An affine victim and images of which about 30 % of the pixels are 0 or 1."""
    entries = 30
    weight = normal(classes, entries, seed=seed)
    victim = affine(weight, -0.5 * weight.sum(1))
    images = torch.rand(rows, 1, 5, 6, generator=torch.Generator().manual_seed(seed)) * 1.43 - 0.215
    images = images.clamp(0, 1)
    assert 0.2 < float(((images == 0) | (images == 1)).double().mean()) < 0.4
    return victim, Samples.of(images, victim(images).argmax(1))


@pytest.mark.parametrize(
    ("classes", "norm"),
    [
        *((2, norm) for norm in (Linf, L2, L1)),
        (10, Linf),
        *(pytest.param(10, norm, marks=pytest.mark.slow) for norm in (L2, L1)),
    ],
    ids=str,
)
def test_minimal_finds_the_smallest_change_of_an_affine_victim(norm: Norm, classes: int) -> None:
    victim, samples = saturated(classes, 12 if classes == 2 else 5)
    known = exact(victim, samples, norm)
    # Steps that fall to zero: with constant ones, moves cut by the box and then projected circle
    # around the optimum at a distance that grows with the step (l1: 5 % at a path of 10 radii).
    steps = 100 if norm is L1 else 20 if classes == 2 else 12
    climb = f"pgd(steps={steps}, loss=margin)"
    attack = parse(f"minimal(each_target({climb}))")
    made = craft(victim, attack, samples, Threat(norm))
    assert made.success.all()
    ratio = made.distance.numpy() / known
    assert (ratio >= 1 - 1e-5).all()
    assert (ratio <= 1.01).all(), ratio.max()
    # What is reported is the distance of the image that is stored, and it is an error.
    order = {Linf: np.inf, L2: 2, L1: 1}[norm]
    change = (made.images.double() - samples.images.double()).flatten(1).numpy()
    sizes = [np.linalg.norm(d, order) for d in change]
    assert made.distance.numpy() == pytest.approx(sizes, rel=1e-6)
    assert (victim(made.images).argmax(1) != samples.labels).all()


@pytest.mark.parametrize("norm", [Linf, L2, L1], ids=str)
def test_the_public_linear_victim_knows_its_distances(norm: Norm) -> None:
    """`besiege.testing` computes them by bisection and greed; here by LP and NNLS."""
    victim = Linear(SHAPE, 4)
    images = images_of(SHAPE, 8)
    samples = Samples.of(images, victim(images).argmax(1))
    known = victim.distance(norm, samples.images, samples.labels)
    assert known == pytest.approx(exact(victim, samples, norm), rel=1e-6)


@pytest.mark.parametrize("first", [None, 1e-4, 0.5])
def test_minimal_is_not_led_astray_by_its_first_radius(first: float | None) -> None:
    victim, samples = saturated(2)
    known = exact(victim, samples, Linf)
    attack = Minimal(parse("bim(steps=20, loss=margin)"), first=first, doublings=20)
    made = craft(victim, attack, samples, Threat(Linf))
    assert (made.distance.numpy() <= 1.02 * known).all()


def test_minimal_within_a_budget_searches_only_there() -> None:
    victim, samples = saturated(2, 20)
    known = exact(victim, samples, Linf)
    eps = float(np.median(known))
    attack = Minimal(parse("bim(loss=margin)"))
    made = craft(victim, attack, samples, Threat(Linf, eps), keep="smallest")
    near, far = known < 0.97 * eps, known > 1.03 * eps
    assert made.success[torch.tensor(near)].all() and not made.success[torch.tensor(far)].any()
    found = made.distance.numpy()[near]
    assert (found <= 1.02 * known[near]).all()
    assert torch.equal(made.images[torch.tensor(far)], samples.images[torch.tensor(far)])


def test_minimal_of_what_is_wrong_already_is_zero() -> None:
    for leave in ("success", "end"):
        made = run(Minimal(parse("bim")), dots(-0.1, 0.1), "linf", leave=leave)
        assert made.distance.tolist() == pytest.approx([0.0, 0.1], rel=0.02)
        assert made.success.all()


BUMPY = Classifier(
    Curve(
        (0.0, -1.0),
        (0.1, -0.9),
        (0.29, -0.1),
        (0.3, 0.1),
        (0.31, 0.1),
        (0.32, -0.1),
        (0.6, -0.05),
        (0.8, 0.5),
        (1.0, 1.0),
    )
)


def test_a_scan_keeps_the_smallest_success_where_success_is_not_monotone() -> None:
    """Errors between 0.295 and 0.315 and above 0.62, seen from 0.1: bisection alone misses."""
    samples = Samples.of(torch.full((1, 1, 1, 1), 0.1), torch.tensor([0]))
    attack = Minimal(parse("fgsm(loss=margin)"), scan=64)
    made = craft(BUMPY, attack, samples, Threat(Linf))
    assert made.success.all()
    assert float(made.distance) == pytest.approx(0.195, rel=0.01)
    # A coarse scan steps over the first hill, and still finds the edge of the second.
    coarse = craft(BUMPY, replace(attack, scan=4), samples, Threat(Linf))
    assert float(coarse.distance) == pytest.approx(0.52, abs=0.02)
    # Whatever is hit on the way counts: the kept one is the smallest of all.
    probed: list[float] = []
    tried: list[float] = []

    @dataclass(frozen=True)
    class Step(Attack):
        one_step = True

        def run(self, siege: Siege) -> None:
            tried.append(float(siege.ball.radius))
            x = siege.ball.center + siege.ball.scaled(siege.ball.radius)
            if siege.offer(x).hit.any():
                probed.append(float(siege.ball.radius))

    search = craft(BUMPY, Minimal(Step(), scan=40), samples, Threat(Linf))
    assert float(search.distance) == pytest.approx(min(probed), rel=1e-5)
    # 0.9 is as far as the box goes: upwards in 40ths of it, then only inside the last of them.
    width, found = 0.9 / 40, tried.index(probed[0])
    assert tried[: found + 1] == pytest.approx([width * k for k in range(1, found + 2)], rel=1e-5)
    assert all(width * found < radius < width * (found + 1) for radius in tried[found + 1 :])


HALFWAY: list[float] = []


@dataclass(frozen=True)
class Halfway(Attack):
    """Moves by half the radius, and notes the radii that it is given."""

    once: bool = False

    @property
    def one_step(self) -> bool:
        return self.once

    def run(self, siege: Siege) -> None:
        HALFWAY.append(float(siege.ball.radius))
        x = siege.ball.center + siege.ball.scaled(siege.ball.radius) / 2
        siege.offer(x.clamp(0, 1))


@pytest.mark.parametrize(
    ("search", "edge", "tried"),
    [
        # Doubled to 0.8, then halves between the radii tried: success from 0.46.
        ("realsafe", 0.23, [0.1, 0.2, 0.4, 0.8, 0.6, 0.5, 0.45, 0.475, 0.4625]),
        # The first radius succeeds: halved from there.
        ("realsafe", 0.02, [0.1, 0.05, 0.025, 0.0375, 0.04375, 0.040625]),
        # None of five does: bisected up to the sixth all the same, beyond the box.
        ("realsafe", 2.0, [0.1, 0.2, 0.4, 0.8, 1.6, 2.4, 2.8, 3.0, 3.1]),
        ("su", 0.23, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 0.48, 0.4, 0.44]),
        ("su", 0.002, [0.02, 0.01, 0.005, 0.0025, 0.00375, 0.004375, 0.0040625]),
        ("su", 2.0, [0.02 * 2**k for k in range(9)]),
    ],
)
def test_a_plain_search_tries_the_published_radii(
    search: str, edge: float, tried: list[float]
) -> None:
    victim = Classifier(Curve((0.0, -0.1 - edge), (1.0, 0.9 - edge)))
    samples = Samples.of(torch.full((1, 1, 1, 1), 0.1), torch.tensor([0]))
    given = {
        "realsafe": {"first": 0.1, "doublings": 4, "bisections": 10},
        "su": {"first": 0.02, "doublings": 8, "bisections": 8, "attempts": 9},
    }[search]
    HALFWAY.clear()
    attack = Minimal(Halfway(), compat=True, tolerance=0.0, **given)  # type: ignore[arg-type]
    made = craft(victim, attack, samples, Threat(Linf))
    assert HALFWAY[: len(tried)] == pytest.approx(tried, rel=1e-5)
    assert bool(made.success) == (edge < 1)
    if search == "su":
        assert len(HALFWAY) == attack.runs(2) == 9
    # Otherwise the distance found narrows the bracket, and few radii are tried twice.
    HALFWAY.clear()
    craft(victim, replace(attack, compat=False), samples, Threat(Linf))
    if bool(made.success):
        assert HALFWAY[: len(tried)] != pytest.approx(tried, rel=1e-5)
    else:  # no success narrows a bracket: it ends at the far side of the box
        assert max(HALFWAY) == pytest.approx(0.9, rel=1e-5)


def test_a_plain_scan_tries_multiples_of_the_first_radius() -> None:
    samples = Samples.of(torch.full((1, 1, 1, 1), 0.1), torch.tensor([0]))
    scan = Minimal(Halfway(once=True), first=0.1, bisections=3, tolerance=0.0, compat=True)
    for edge, tried in (
        (0.23, [0.1, 0.2, 0.3, 0.4, 0.5, 0.45, 0.475, 0.4625]),
        (2.0, [*(0.1 * k for k in range(1, 33)), 0.05, 0.075, 0.0875]),
    ):
        victim = Classifier(Curve((0.0, -0.1 - edge), (1.0, 0.9 - edge)))
        HALFWAY.clear()
        craft(victim, scan, samples, Threat(Linf))
        assert pytest.approx(tried, rel=1e-5) == HALFWAY


def test_minimal_in_l0_searches_whole_numbers() -> None:
    @dataclass(frozen=True)
    class Greedy(Attack):
        def run(self, siege: Siege) -> None:
            def rise(z: Tensor, aim: Any) -> Tensor:
                return z[:, 1] - z[:, 0]

            g = siege.gradient(siege.ball.center, rise).gradient
            assert g is not None
            x = siege.ball.center
            siege.offer(x + siege.ball.steepest(g, x, siege.ball.radius))

    # Six of eight pixels count, 0.3 each, and 0.95 is needed: 4 pixels, or 3 with a good start.
    weight = torch.zeros(2, 8)
    weight[1, :6] = 0.3
    victim = affine(weight, torch.tensor([0.0, -0.95]))
    x = torch.zeros(3, 1, 2, 4)
    x[:, 0, 0, 0] = torch.tensor([0.0, 0.5, 0.1])
    samples = Samples.of(x, torch.zeros(3).long())
    made = craft(victim, Minimal(Greedy()), samples, Threat(L0))
    assert made.distance.tolist() == [4.0, 3.0, 4.0]
    changed = (made.images != samples.images).flatten(1).sum(1)
    assert changed.tolist() == [4, 3, 4]


def test_minimal_tolerance_ends_the_search() -> None:
    victim, samples = saturated(2)
    costs = []
    for tolerance in (0.3, 0.01, 1e-4):
        attack = Minimal(parse("bim(steps=5, loss=margin)"), tolerance=tolerance)
        costs.append(int(craft(victim, attack, samples, Threat(Linf)).forwards.sum()))
    assert costs[0] < costs[1] < costs[2]


@pytest.mark.parametrize("threat", ["linf", "l2", "l1"])
def test_without_a_budget_only_a_search_makes_sense(threat: str) -> None:
    with pytest.raises(ThreatError, match=r"minimal\(pgd\)"):
        run(parse("pgd"), dots(0.1), threat)
    assert isinstance(parse("pgd"), Ascent)
    assert run(parse("minimal(pgd(steps=5))"), dots(0.1), threat).success.all()


@pytest.mark.parametrize("inner", ["bandits", "nattack", "signopt", "square"])
def test_a_mean_that_nobody_can_pay_for_is_not_asked(inner: str) -> None:
    samples = digits(3)
    threat = Threat.parse("l2" if inner == "signopt" else "linf:0.1")
    made = craft(natural(), parse(f"averaged({inner}, 20)"), samples, threat, queries=25)
    assert made.queries.tolist() == [20] * 3


@pytest.mark.parametrize("norm", [Linf, L2, L1], ids=str)
def test_on_a_flat_victim_nothing_is_found(norm: Norm) -> None:
    flat = Altered(natural(), lambda logits: 0.0 * logits + torch.arange(10.0, 0.0, -1.0))
    samples = replace(digits(8), labels=torch.zeros(8, dtype=torch.int64))
    attack = parse("minimal(pgd(steps=3), bisections=2)")
    found = craft(flat, attack, samples, Threat(norm, None))
    assert not found.success.any() and torch.isinf(found.distance).all()
    assert torch.equal(found.images, samples.images)
