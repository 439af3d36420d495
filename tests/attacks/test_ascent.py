"""The first-order attacks against closed forms and ten-line loops of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.victims import Curve, Spy, affine, points, uniform
from torch import Tensor
from torch.nn import functional

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, parse
from besiege.attacks.directions import (
    Adam,
    Chain,
    Diverse,
    Momentum,
    Nesterov,
    Part,
    ScaleCopies,
    Steepest,
    Translation,
)
from besiege.attacks.losses import Margin, cross_entropy, margin
from besiege.attacks.pieces import Constant, Signs, Spread, Uniform
from besiege.core.answer import Answer
from besiege.core.ball import ball
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Goal, Linf, Norm, Threat
from besiege.evaluation import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, images_of, untrained

Array = NDArray[np.float64]
SHAPE = (3, 6, 6)
EPS = {Linf: 0.03, L2: 0.5, L1: 3.0}


def attack_of(text: str) -> Ascent:
    made = parse(text)
    assert isinstance(made, Ascent)
    return made


def data(victim: Classifier, rows: int = 12, seed: int = 0) -> Samples:
    """Images labelled as the victim sees them."""
    images = images_of(SHAPE, rows, seed)
    return Samples.of(images, victim(images).argmax(1))


def slope(victim: Classifier, x: Tensor, y: Tensor, t: Tensor | None = None) -> Tensor:
    """The gradient of cross-entropy, written out, in float64 where it is summed."""
    leaf = x.clone().requires_grad_(True)
    loss = functional.cross_entropy(victim(leaf), y if t is None else t, reduction="sum")
    (gradient,) = torch.autograd.grad(loss if t is None else -loss, leaf)
    return gradient


# one step


def test_fgsm_linf_is_a_clipped_sign_step() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    _, crafted = points(attack_of("fgsm"), victim, samples, "linf:8/255")
    g = slope(victim, samples.images, samples.labels)
    expected = (samples.images + 8 / 255 * g.sign()).clamp(0, 1)
    assert (crafted.images - expected).abs().max() <= 2e-7
    assert crafted.forwards.tolist() == [3] * 12 and crafted.backwards.tolist() == [1] * 12


def filled(x: Array, g: Array, eps: float) -> Array:
    """The l2 step that fills up what the box takes, by bisection on its scale."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        d = np.clip(x + middle * g, 0, 1) - x
        low, high = (middle, high) if np.linalg.norm(d) < eps else (low, middle)
    return np.clip(x + low * g, 0, 1)


@pytest.mark.parametrize("eps", [0.1, 0.5, 2.0, 5.0])
def test_fgsm_l2_has_its_full_length_inside_the_box(eps: float) -> None:
    victim = Linear(SHAPE, 5)
    samples = data(victim)
    _, crafted = points(attack_of("fgsm"), victim, samples, f"l2:{eps}")
    g = slope(victim, samples.images, samples.labels).double().flatten(1).numpy()
    x = samples.images.double().flatten(1).numpy()
    mine = crafted.images.double().flatten(1).numpy()
    for row in range(len(x)):
        assert np.abs(mine[row] - filled(x[row], g[row], eps)).max() <= 3e-5
        room = np.linalg.norm(np.where(g[row] > 0, 1 - x[row], x[row]))
        assert np.linalg.norm(mine[row] - x[row]) == pytest.approx(min(eps, room), rel=1e-5)


@pytest.mark.parametrize("eps", [0.3, 3.0, 20.0])
def test_fgsm_l1_fills_the_steepest_pixels_first(eps: float) -> None:
    victim = Linear(SHAPE, 5)
    samples = data(victim)
    _, crafted = points(attack_of("fgsm"), victim, samples, f"l1:{eps}")
    g = slope(victim, samples.images, samples.labels).double().flatten(1).numpy()
    x = samples.images.double().flatten(1).numpy()
    for row in range(len(x)):
        left, expected = eps, x[row].copy()
        for i in np.argsort(-np.abs(g[row])):
            room = 1 - x[row, i] if g[row, i] > 0 else x[row, i]
            spent = min(room, left)
            expected[i] += np.sign(g[row, i]) * spent
            left -= spent
        mine = crafted.images[row].double().flatten().numpy()
        assert np.abs(mine - expected).max() <= 1e-5


@pytest.mark.parametrize("norm", EPS, ids=str)
def test_fgsm_breaks_a_linear_victim_exactly_beyond_its_distance(norm: Norm) -> None:
    """Two classes: one step along the gradient is the best there is."""
    victim = Linear(SHAPE, 2)
    samples = data(victim, 30)
    known = victim.distance(norm, samples.images, samples.labels)
    for factor, broken in ((1.02, True), (0.98, False)):
        for row in range(0, 30, 3):
            one = samples.at(torch.tensor([row]))
            threat = Threat(norm, factor * known[row])
            crafted = craft(victim, attack_of("fgsm"), one, threat)
            assert bool(crafted.success[0]) is broken


def test_rfgsm_takes_its_gradient_at_the_random_point() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    eps = 0.1
    (asked, offered), crafted = points(attack_of("rfgsm"), victim, samples, f"linf:{eps}")
    start = asked
    moved = start - samples.images
    free = (samples.images > 0.06) & (samples.images < 0.94)
    assert torch.allclose(moved.abs()[free], torch.tensor(eps / 2), atol=1e-6)
    assert 0.4 < float((moved[free] > 0).double().mean()) < 0.6
    g = slope(victim, start, samples.labels)
    expected = (start + eps / 2 * g.sign()).clamp(0, 1)
    assert (offered - expected).abs().max() <= 3e-7
    at_clean = (start + eps / 2 * slope(victim, samples.images, samples.labels).sign()).clamp(0, 1)
    assert (offered - at_clean).abs().max() > eps / 2  # that would be another attack
    total = (crafted.images.double() - samples.images.double()).abs().flatten(1).amax(1)
    assert (total <= eps * (1 + 1e-6)).all() and (total > 0.99 * eps).all()
    assert crafted.forwards.tolist() == [3] * 12 and crafted.backwards.tolist() == [1] * 12


@pytest.mark.parametrize("name", ["llc", "rllc", "illc"])
def test_the_least_likely_class_is_fixed_on_the_clean_image(name: str) -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    eps = 0.2  # large: the least likely class of later points is another
    seen, _ = points(attack_of(name), victim, samples, f"linf:{eps}")
    least = victim(samples.images).argmin(1)
    later = torch.stack([victim(x).argmin(1) for x in seen])
    assert (later != least).any()
    share = {"llc": 1.0, "rllc": 0.5, "illc": 0.15}[name]
    lower, upper = (samples.images - eps).clamp(0, 1), (samples.images + eps).clamp(0, 1)
    for x, following in pairwise(seen):
        step = x + share * eps * slope(victim, x, samples.labels, least).sign()
        assert (following - step.clamp(lower, upper)).abs().max() <= 1e-6


@pytest.mark.parametrize("text", ["fgsm", "bim(steps=5)", "pgd(steps=5)", "mim(steps=5)"])
@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize("loss", ["cross_entropy", "margin"])
def test_a_target_is_neared_and_the_label_left(text: str, norm: Norm, loss: str) -> None:
    victim = Linear(SHAPE, 5)
    samples = data(victim)
    targets = (samples.labels + 2) % 5
    attack = replace(attack_of(text), loss=margin if loss == "margin" else cross_entropy)

    def probability(x: Tensor, classes: Tensor) -> Tensor:
        return victim(x).softmax(1).gather(1, classes[:, None])[:, 0]

    threat = f"{norm}:{EPS[norm] / 10}"
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    _, toward = points(attack, victim, aimed, threat + " targeted:given")
    start = samples.images
    assert (probability(toward.images, targets) > probability(start, targets)).all()
    _, away = points(attack, victim, samples, threat)
    assert (probability(away.images, samples.labels) < probability(start, samples.labels)).all()


# many steps


def reference(
    victim: Classifier,
    samples: Samples,
    eps: float,
    start: Tensor,
    steps: int,
    step: float,
    decay: float | None = None,
) -> list[Tensor]:
    """Kurakin's, Madry's and Dong's loop for linf, every point of it."""
    x, g, seen = start, torch.zeros_like(start), []
    for _ in range(steps):
        seen.append(x)
        slope_here = slope(victim, x, samples.labels)
        if decay is None:
            g = slope_here
        else:
            g = decay * g + slope_here / slope_here.abs().mean((1, 2, 3), keepdim=True)
        x = x + step * eps * g.sign()
        x = x.clamp(samples.images - eps, samples.images + eps).clamp(0, 1)
    return [*seen, x]


@pytest.mark.parametrize(
    ("text", "steps", "step", "decay"),
    [
        ("bim", 20, 0.15, None),
        ("bim(steps=3)", 3, 0.15, None),
        ("pgd(schedule=spread(2.5))", 40, 2.5 / 40, None),
        ("pgd(steps=7, schedule=spread(2.5))", 7, 2.5 / 7, None),
        ("mim(steps=8)", 8, 0.15, 1.0),
        ("mim(steps=8, direction=chain(momentum(decay=0.5), steepest))", 8, 0.15, 0.5),
    ],
)
def test_iterations_are_those_of_a_plain_loop(
    text: str, steps: int, step: float, decay: float | None
) -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 8)
    seen, crafted = points(attack_of(text), victim, samples, "linf:0.1")
    start = samples.images
    if text.startswith("pgd"):
        start = seen[0]
        change = start - samples.images
        assert change.abs().max() <= 0.1 * (1 + 1e-6) and change.abs().max() > 0.09
    expected = reference(victim, samples, 0.1, start, steps, step, decay)
    assert len(seen) == len(expected) == steps + 1
    for mine, plain in zip(seen, expected, strict=True):
        # A sign may turn where a gradient is zero to rounding: hardly anywhere.
        assert ((mine - plain).abs() > 1e-5).double().mean() < 1e-3
    assert torch.equal(crafted.images, seen[-1])  # the last move is judged too


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
def test_other_norms_climb_and_stay_inside(norm: Norm) -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    eps = EPS[norm]
    seen, _ = points(attack_of("pgd(steps=10)"), victim, samples, f"{norm}:{eps}")
    order = 2 if norm is L2 else 1

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(victim(x), samples.labels, reduction="none")

    for x in seen:
        change = (x.double() - samples.images.double()).flatten(1)
        assert (change.norm(order, dim=1) <= eps * (1 + 1e-6)).all()
        assert x.min() >= 0 and x.max() <= 1
    assert (loss(seen[-1]) > loss(samples.images)).all()
    assert (loss(seen[-1]) > loss(seen[0])).double().mean() > 0.9


def test_the_best_iterate_is_kept_although_the_last_is_right_again() -> None:
    """A hill narrower than the steps: the climb jumps over it and back."""
    hill = Classifier(Curve((0.0, -2.0), (0.5, -1.0), (0.6, 1.0), (0.7, -1.0), (1.0, -1.5)))
    x = torch.full((1, 1, 1, 1), 0.45)
    samples = Samples.of(x, torch.tensor([0]))
    attack = replace(attack_of("bim(steps=4)"), schedule=Constant(0.6), loss=Margin())
    seen, _ = points(attack, hill, samples, "linf:0.25")
    path = [float(p) for p in seen]
    labels = [int(hill(p).argmax()) for p in seen]
    assert labels[-1] == 0 and 1 in labels  # it comes and goes
    crafted = craft(hill, attack, samples, Threat.parse("linf:0.25"))
    assert crafted.success.all() and int(hill(crafted.images).argmax()) == 1
    first = labels.index(1)
    assert float(crafted.images) == pytest.approx(path[first])
    assert crafted.first_step.tolist() == [first]
    assert crafted.queries.tolist() == [first + 2]


def test_restarts_draw_anew_and_only_survivors_climb_again() -> None:
    victim = Linear(SHAPE, 2)
    samples = data(victim, 20)
    eps = float(np.median(victim.distance(Linf, samples.images, samples.labels)))
    spy = Spy(victim)
    attack = attack_of("pgd(steps=10, restarts=3)")
    threat = Threat(Linf, eps)
    crafted = craft(spy, attack, samples, threat, pad=False, batch=10**6)
    broken = crafted.success
    assert 0 < int(broken.sum()) < 20
    assert torch.equal(crafted.forwards[~broken], torch.full_like(crafted.forwards[~broken], 34))
    assert (crafted.forwards[broken] <= 12).all()  # nobody who was broken climbed again
    assert int(crafted.forwards.sum()) == sum(spy.calls)
    survivors = int((~broken).sum())
    lone = [c for c in spy.calls if c == survivors]
    assert len(lone) >= 22
    starts = [x for x in spy.images if len(x) == survivors]
    first = spy.images[1][~broken]
    assert all(not torch.equal(first, s) for s in starts)
    again = craft(Spy(victim), attack_of("pgd(steps=10)"), samples, threat)
    assert (again.success <= crafted.success).all()  # the first climb is the same


def test_restarts_of_one_row_start_at_different_points() -> None:
    victim = Linear(SHAPE, 2)
    samples = data(victim, 4)
    seen, crafted = points(attack_of("pgd(steps=2, restarts=4)"), victim, samples, "linf:0.000001")
    assert crafted.forwards.tolist() == [13] * 4
    starts = torch.stack(seen[::3]).flatten(2)
    for row in range(4):
        assert len(torch.unique(starts[:, row], dim=0)) == 4


# relations between attacks


def end(direction: Part, norm: Norm = Linf) -> Tensor:
    """Where six steps in this direction lead."""
    victim = untrained(SHAPE, 5)
    attack = Ascent("x", steps=6, direction=direction, schedule=Spread(1.5))
    _, crafted = points(attack, victim, data(victim, 6), f"{norm}:{EPS[norm]}")
    return crafted.images


@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Chain((Momentum(0.0), Steepest())), Steepest()),
        (Chain((Nesterov(0.0), Steepest())), Steepest()),
        (Chain((Translation(1), Momentum(0.9), Steepest())), Chain((Momentum(0.9), Steepest()))),
        (
            Chain((ScaleCopies(1), Nesterov(0.9), Steepest())),
            Chain((Nesterov(0.9), Steepest())),
        ),
        (
            Chain((Diverse(1.0, 1.0), Momentum(0.9), Steepest())),
            Chain((Momentum(0.9), Steepest())),
        ),
        (
            Chain((Diverse(0.5, 0.0), Momentum(0.9), Steepest())),
            Chain((Momentum(0.9), Steepest())),
        ),
    ],
    ids=["mim0=bim", "ni0=bim", "tim1=mim", "si1=ni", "dim-full=mim", "dim-never=mim"],
)
def test_limits_of_one_attack_are_another(norm: Norm, one: Part, other: Part) -> None:
    mine, theirs = end(one, norm), end(other, norm)
    # A gradient scaled first may round another way; nothing else may differ.
    assert ((mine - theirs).abs() > 1e-4).double().mean() < 2e-3


@pytest.mark.parametrize("boxed", [True, False])
def test_the_point_ahead_is_asked_outside_the_box_only_as_published(boxed: bool) -> None:
    victim = untrained(SHAPE, 5)
    direction = Chain((ScaleCopies(2), Nesterov(1.0, boxed), Steepest()))
    attack = Ascent("x", steps=6, direction=direction, schedule=Spread(1.5))
    seen, crafted = points(attack, victim, data(victim, 6), f"linf:{EPS[Linf]}")
    outside = [bool((x < 0).any() or (x > 1).any()) for x in seen]
    assert any(outside) != boxed
    assert bool(((crafted.images >= 0) & (crafted.images <= 1)).all())


def test_those_pieces_do_change_the_path() -> None:
    plain = end(Chain((Momentum(0.9), Steepest())))
    for direction in (
        Chain((Momentum(0.0), Steepest())),
        Chain((Nesterov(0.9), Steepest())),
        Chain((Translation(3), Momentum(0.9), Steepest())),
        Chain((ScaleCopies(3), Momentum(0.9), Steepest())),
        Chain((Diverse(0.5, 1.0), Momentum(0.9), Steepest())),
    ):
        assert (end(direction) - plain).abs().max() > 1e-3


def test_si_ni_fgsm_is_lins_algorithm_inside_the_box() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 6)
    eps, steps, copies = 0.1, 4, 3
    attack = Ascent(
        "x",
        steps=steps,
        schedule=Spread(1.0),
        direction=Chain((ScaleCopies(copies), Nesterov(1.0), Steepest())),
    )
    _, crafted = points(attack, victim, samples, f"linf:{eps}")
    x, g, alpha = samples.images, torch.zeros_like(samples.images), eps / steps
    for _ in range(steps):
        ahead = (x + alpha * g).clamp(0, 1).requires_grad_(True)
        total = torch.zeros_like(x)
        for i in range(copies):
            loss = functional.cross_entropy(victim(ahead / 2**i), samples.labels, reduction="sum")
            total = total + torch.autograd.grad(loss, ahead)[0] / copies
        g = g + total / total.abs().mean((1, 2, 3), keepdim=True)
        x = (x + alpha * g.sign()).clamp(samples.images - eps, samples.images + eps).clamp(0, 1)
    assert ((crafted.images - x).abs() > 1e-5).double().mean() < 1e-3
    assert crafted.backwards.tolist() == [copies * steps] * 6
    assert crafted.forwards.tolist() == [copies * steps + 2] * 6


def test_diverse_inputs_are_drawn_anew_at_every_step_and_judged_untransformed() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 6)
    still = Ascent(
        "x", steps=4, direction=Chain((Diverse(0.3, 1.0), Steepest())), schedule=Constant(0.0)
    )
    seen, crafted = points(still, victim, samples, "linf:0.1")
    assert len(seen) == 5
    for row in range(6):
        shown = torch.stack([x[row] for x in seen[:4]]).flatten(1)
        assert len(torch.unique(shown, dim=0)) > 1
    assert torch.equal(seen[-1], samples.images)  # what is offered is the image itself
    assert not crafted.success.any()


# the loop


def test_a_ball_that_changes_is_used_for_the_next_move() -> None:
    """The radius slot: here half the ball, so that nothing ends further out."""
    from besiege.attacks.directions import Memory
    from besiege.attacks.pieces import Radius
    from besiege.core.ball import Ball

    @dataclass(frozen=True)
    class Half(Radius):
        def next(
            self, step: int, steps: int, siege: Siege, x: Tensor, answer: Answer, memory: Memory
        ) -> tuple[Ball, Memory]:
            return siege.ball.of(siege.ball.radius / 2), memory

    victim = untrained(SHAPE, 5)
    samples = data(victim, 6)
    attack = replace(attack_of("bim"), radius=Half())
    _, crafted = points(attack, victim, samples, "linf:0.1")
    change = (crafted.images - samples.images).abs().flatten(1).amax(1)
    assert (change <= 0.05 * (1 + 1e-6)).all() and (change > 0.049).all()


def test_state_settles_with_its_rows() -> None:
    """Rows that leave midway take nothing of their neighbours' momentum with them."""
    victim = untrained(SHAPE, 5)
    samples = data(victim, 24)
    attack = attack_of("mim(steps=12)")
    threat = Threat.parse("linf:0.02")
    whole = craft(victim, attack, samples, threat, keep="first")
    assert 0 < int(whole.success.sum()) < 24
    for row in range(24):
        alone = craft(victim, attack, samples.at(torch.tensor([row])), threat, keep="first")
        assert torch.equal(alone.images[0], whole.images[row])
        assert alone.first_step[0] == whole.first_step[row]
        assert alone.queries[0] == whole.queries[row]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": 1.5},
        {"restarts": 0},
        {"start": Steepest()},
        {"direction": Uniform()},
        {"schedule": None},
        {"loss": "margin"},
        {"place": Signs()},
        {"radius": 0.1},
    ],
    ids=str,
)
def test_slots_take_what_belongs_there(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"needed|which is not a"):
        replace(attack_of("pgd"), **change)  # type: ignore[arg-type]  # wrong on purpose


def test_one_step_attacks_say_so() -> None:
    for name, one in (("fgsm", True), ("rfgsm", True), ("llc", True), ("bim", False)):
        assert attack_of(name).one_step is one
    assert attack_of("fgsm(steps=2)").one_step is False


def test_declared_norms_and_goals() -> None:
    assert attack_of("rfgsm").norms == {Linf}
    assert attack_of("pgd").norms == {Linf, L2, L1}
    assert attack_of("illc").goals == {Goal.UNTARGETED, Goal.LEAST_LIKELY}
    assert attack_of("pgd(steps=3)").norms == attack_of("pgd").norms
    assert Goal.GIVEN in attack_of("mim").goals


def test_vanished_gradients_warn_and_margin_does_not_vanish() -> None:
    weight = torch.zeros(2, 4)
    weight[0, 0], weight[1, 0] = -500.0, 500.0
    victim = affine(weight, torch.tensor([400.0, -400.0]))
    samples = Samples.of(uniform(4, 1, 2, 2) * 0.1 + 0.2, torch.zeros(4).long())
    threat = Threat.parse("linf:0.7")
    lost = craft(victim, attack_of("bim"), samples, threat)
    assert not lost.success.any()
    assert [f.id for f in lost.findings if f.id == "W11"] == ["W11"]
    found = craft(victim, attack_of("bim(loss=margin)"), samples, threat)
    assert found.success.all() and not any(f.id == "W11" for f in found.findings)


def test_a_user_written_attack_sees_what_the_contract_shows() -> None:
    """The PGD of the architecture page, against the one of the table."""

    @dataclass(frozen=True)
    class Plain(Attack):
        steps: int = 10

        def run(self, siege: Siege) -> None:
            x = siege.ball.sample(siege.dice.of("restart", 0).of("start"))
            for _ in range(self.steps):
                a = siege.gradient(x, cross_entropy)
                x, g = siege.settle(x, a.gradient)
                ball = siege.ball
                x = ball.project(x + ball.steepest(g, x, 2.5 * ball.radius / self.steps))
            siege.offer(x)

        def title(self) -> str:
            return "pgd"

    victim = untrained(SHAPE, 5)
    samples = data(victim, 16)
    run: Callable[[Attack], Crafted] = lambda a: craft(  # noqa: E731
        victim, a, samples, Threat.parse("l2:0.1")
    )
    mine, table = run(Plain()), run(attack_of("pgd(steps=10, schedule=spread(2.5))"))
    assert 0 < int(mine.success.sum()) < 16
    assert torch.equal(mine.images, table.images)
    assert torch.equal(mine.queries, table.queries)


def test_adam_takes_the_steps_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    slopes = [torch.randn(3, 1, 4, 4, generator=generator, dtype=torch.float64) for _ in range(6)]
    theirs = torch.zeros(3, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.02, eps=0.0)
    ours, part = torch.zeros(3, 1, 4, 4, dtype=torch.float64), Adam()
    around = ball(Linf, ours, torch.full((3,), 0.5, dtype=torch.float64), (-1.0, 1.0))
    memory = part.init(ours)
    for slope in slopes:
        theirs.grad = -slope  # torch descends
        optimizer.step()
        g, memory = part.turn(slope, memory)
        ours = ours + part.move(g, ours, around, torch.full((3,), 0.02, dtype=torch.float64))
    assert torch.allclose(ours, theirs.detach(), atol=1e-12)
    tiny, _ = part.turn(slopes[0].float() * 1e-30, part.init(ours.float()))
    assert torch.allclose(tiny, slopes[0].float().sign()), "small gradients do not vanish"
