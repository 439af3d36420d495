"""The active test: strong attacks find the known examples; weak ones, and misled ones, do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.attacks.ascent import pgd
from besiege.attacks.attack import Attack, parse
from besiege.attacks.losses import cross_entropy
from besiege.attacks.suites import DEFAULT, suite
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses import load
from besiege.evaluation.active import LEAST, ActiveTest, _decided, active_test
from besiege.evaluation.binarised import (
    INNER,
    Binarised,
    Features,
    apart,
    drawn,
    make_heads,
    readout,
)
from besiege.metrics.intervals import clopper_pearson
from besiege.models import Classifier, function_model
from besiege.testing import conform_victim

NATURAL, ROBUST = "zoo:digits-natural", "zoo:digits-pgd-at"
LINF, L2 = Threat.parse("linf:0.15"), Threat.parse("l2:0.5")
PASSES = 397 * (160 + 150)
"""About what the default list spends on the digits."""


def samples_of(data: str, count: int = 50) -> Samples:
    few = besiege.data.load(data, count=count)
    return Samples.of(few.images, few.labels)


DIGITS = samples_of("digits")
FEW = DIGITS.at(torch.arange(25))


def run(
    victim: Victim | str,
    attacks: Sequence[str | Attack] = DEFAULT,
    threat: Threat = LINF,
    samples: Samples = FEW,
    seed: int = 0,
    first: int = 0,
) -> ActiveTest:
    loaded = load(victim) if isinstance(victim, str) else victim
    listed = [parse(one) for one in attacks]
    return active_test(loaded, listed, samples, threat, seed=seed, first=first)


class Behind(nn.Module):
    """A function before a network, and another one behind it."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda x: x,
        network: str = NATURAL,
    ) -> None:
        super().__init__()
        inner = load(network)
        assert isinstance(inner, Classifier)
        self.inner, self.before, self.after = inner.module, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


def misleading(backward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The identity, with another gradient."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *slopes: Tensor) -> Tensor:
            return backward(slopes[0])

    return Function.apply


def shattered(x: Tensor) -> Tensor:
    return x + 0.02 * torch.sin(2000 * x)


@pytest.mark.parametrize("threat", [LINF, L2], ids=str)
@pytest.mark.parametrize("network", [NATURAL, ROBUST])
def test_the_default_attacks_pass_cheaply_and_random_points_do_not(
    network: str, threat: Threat
) -> None:
    seen = run(network, threat=threat, samples=DIGITS)
    assert seen.check.outcome == "passed" and seen.found >= LEAST * seen.tested
    assert seen.layer and seen.tested >= 45 and seen.tested + seen.left_out == 50
    assert random_found(load(network), threat) < 0.1 * seen.tested
    assert seen.raised > 0.9 * seen.tested, "the reference decides where gradients are honest"
    assert seen.forwards + seen.backwards < 0.08 * PASSES
    assert seen.check.number.startswith(f"{seen.found} of {seen.tested} known examples found")


def test_quick_passes_and_the_result_is_repeatable() -> None:
    listed = suite("quick").attacks_for(LINF.norm)
    seen = run(ROBUST, listed)
    assert seen.check.outcome == "passed"
    assert run(ROBUST, listed) == seen


@dataclass(frozen=True)
class StopsEarly(Attack):
    """PGD with one of its forty steps."""

    def run(self, siege: Siege) -> None:
        replace(pgd, steps=1).run(siege)


def wrong_sign(logits: Tensor, aim: Any) -> Tensor:
    return -cross_entropy(logits, aim)


WEAK: dict[str, str | Attack] = {
    "one step": "pgd(steps=1)",
    "stops early": StopsEarly(),
    "wrong sign of the loss": replace(pgd, loss=wrong_sign),
    "never leaves the start": "pgd(schedule=constant(0.0001))",
    "never leaves the image": "bim(schedule=constant(0.0001))",
}


@pytest.mark.parametrize(
    ("name", "threat"),
    [("one step", L2), *((name, LINF) for name in WEAK)],
    ids=str,
)
def test_weak_attacks_fail(name: str, threat: Threat) -> None:
    seen = run(ROBUST, [WEAK[name]], threat)
    assert seen.check.outcome == "failed" and seen.found < 0.5 * seen.tested
    finding = seen.check.finding
    assert finding is not None and (finding.id, finding.level) == ("W48", "stop")
    assert "too weak for this model" in finding.seen


@pytest.mark.parametrize("threat", [LINF, L2], ids=str)
def test_one_step_from_the_image_does_not_reach_the_threshold(threat: Threat) -> None:
    assert run(ROBUST, ["fgsm"], threat, DIGITS).check.outcome == "failed"


MODELS: dict[str, Callable[[], nn.Module]] = {
    "reversed": lambda: Behind(misleading(lambda g: -g)),
    "zero": lambda: Behind(misleading(torch.zeros_like)),
    "of other pixels": lambda: Behind(misleading(lambda g: g.flip(-1))),
    "shattered": lambda: Behind(shattered),
    "rounded": lambda: Behind(lambda x: torch.round(16 * x) / 16),
    "reversed behind the last layer": lambda: Behind(after=misleading(lambda g: -g)),
    "reversed, robust": lambda: Behind(misleading(lambda g: -g), network=ROBUST),
}


LIKE_ANOTHER = ("zero", "of other pixels", "reversed, robust")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LIKE_ANOTHER else []) for n in MODELS]
)
def test_models_with_gradients_that_mislead_fail_under_the_default_attacks(name: str) -> None:
    victim = Classifier(MODELS[name]())
    seen = run(victim)
    assert seen.check.outcome == "failed" and seen.found < 0.5 * seen.tested
    assert seen.layer != ("last layer" in name), "a test before the disguise would not see it"
    assert random_found(victim, LINF, FEW) < 0.5 * seen.tested
    assert run(victim, first=8).check == seen.check, "examples that are missed are no early end"


def test_one_step_on_shattered_gradients_fails_and_on_a_linear_model_is_enough() -> None:
    assert run(Classifier(Behind(shattered)), ["fgsm"], L2).check.outcome == "failed"
    torch.manual_seed(0)
    linear = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert run(linear, ["fgsm"]).check.outcome == "passed"


@pytest.mark.parametrize(
    "victim",
    [
        lambda: load(f"{NATURAL}+bits(depth=3)"),
        lambda: Classifier(Behind(network=ROBUST).half()),
        lambda: Classifier(Behind(network=ROBUST).bfloat16()),
        lambda: Classifier(Behind(), grid=1 / 16),
        lambda: Classifier(Behind(after=lambda z: z[:, 3:5])),
    ],
    ids=["surrogate", "half", "bfloat16", "grid", "two logits, no layer"],
)
def test_honest_models_pass(victim: Callable[[], Victim]) -> None:
    seen = run(victim(), threat=Threat.parse("linf:2/16"))
    assert seen.check.outcome == "passed", seen


@pytest.mark.parametrize("goal", ["targeted:random", "targeted:least-likely", "targeted:class=3"])
def test_targeted_attacks_aim_at_the_other_class(goal: str) -> None:
    seen = run(NATURAL, ["pgd"], Threat.parse(f"linf:0.15 {goal}"))
    assert seen.check.outcome == "passed"


def heads_of(victim: Victim, threat: Threat, samples: Samples = DIGITS) -> Any:
    with victim.held(), torch.no_grad():
        features = Features(victim, readout(victim, samples.images[:8]))
        balls = ball(threat.norm, samples.images, threat.radius, victim.box, victim.grid)
        return make_heads(features, balls, threat, Dice.throw(0, samples.ids)), balls


def random_found(victim: Victim, threat: Threat, samples: Samples = DIGITS) -> int:
    """On how many samples as many random points as the head was fitted on find an example."""
    heads, balls = heads_of(victim, threat, samples)
    rows = heads.kept.nonzero()[:, 0]
    around, dice = balls.at(rows), Dice.throw(0, samples.ids).of("random").at(rows)
    with victim.held():
        oracle = Oracle(heads.victim)
        found = [oracle.logits(drawn(around, dice, k)).argmax(1) == 1 for k in range(INNER)]
    return int(torch.stack(found).any(0).sum())


@pytest.mark.parametrize("model", ["honest", "reversed"])
@pytest.mark.parametrize("threat", [LINF, L2, Threat.parse("l1:2"), Threat.parse("l0:5")], ids=str)
def test_every_head_has_a_known_example_in_its_ball(model: str, threat: Threat) -> None:
    victim = load(ROBUST) if model == "honest" else Classifier(MODELS["reversed, robust"]())
    heads, balls = heads_of(victim, threat)
    inside = balls.at(heads.kept.nonzero()[:, 0])
    assert len(inside) == len(heads.known) >= 40
    assert bool(inside.inside(heads.known).all())
    with victim.held():
        oracle = Oracle(heads.victim)
        clean, known = oracle.logits(inside.center), oracle.logits(heads.known)
        ahead = drawn(inside, Dice.throw(0, DIGITS.ids).of("inner").at(heads.kept), 3)
        assert bool((oracle.logits(ahead).argmax(1) == 0).all()), "inner points are class 0"
    assert torch.allclose(clean, torch.tensor([2.0, -2.0]).expand_as(clean))
    assert bool((known.argmax(1) == 1).all())


def test_a_binarised_model_is_a_victim_like_any_other() -> None:
    heads, balls = heads_of(load(NATURAL), LINF)
    assert "rows_are_independent" in conform_victim(heads.victim, balls.center[:11])


def test_every_row_has_the_head_of_its_own_ball() -> None:
    heads, balls = heads_of(load(NATURAL), LINF)
    rows = heads.kept.nonzero()[:, 0]
    points = drawn(balls.at(rows), Dice.throw(1, DIGITS.ids).at(rows), 0)
    whole: Binarised = heads.victim
    with load(NATURAL).held(), torch.no_grad():
        together = whole(points)
        few = slice(7, 12)
        own = Binarised(
            whole.features,
            balls.center[rows][few],
            whole.origins[few],
            whole.weights[few],
            LINF,
        )(points[few])
    assert torch.allclose(together[few], own, atol=1e-4)
    assert float(together.std()) > 0.1


def test_the_read_out_is_the_last_layer_unless_something_follows_it() -> None:
    images = DIGITS.images[:8]
    plain = Classifier(Behind())
    last = [one for one in plain.module.modules() if isinstance(one, nn.Linear)][-1]
    with plain.held(), torch.no_grad():
        assert readout(plain, images) is last
    for after in (misleading(lambda g: -g), misleading(lambda g: 0.9 * g), lambda z: 2 * z):
        victim = Classifier(Behind(after=after))
        with victim.held(), torch.no_grad():
            assert readout(victim, images) is None


def test_the_model_is_left_as_it_was() -> None:
    class Fails(nn.Module):
        inner = Behind()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            if len(x) > 8:
                raise ValueError("too many")
            return logits

    victim = Classifier(Fails())
    before = victim.digest()
    state = torch.random.get_rng_state()
    assert run(victim).check.outcome == "not run"
    assert victim.digest() == before and torch.equal(state, torch.random.get_rng_state())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in victim.module.modules())


def test_balls_that_meet_are_left_out() -> None:
    images = torch.cat([DIGITS.images[:40], DIGITS.images[:10] * 0.99])
    twice = Samples.of(images, torch.cat([DIGITS.labels[:40], DIGITS.labels[:10]]))
    assert apart(twice.images, LINF).tolist() == [True] * 40 + [False] * 10
    seen = run(NATURAL, samples=twice)
    assert seen.left_out >= 10 and seen.check.outcome == "passed"


@pytest.mark.parametrize(
    ("victim", "attacks", "threat", "count", "outcome", "why"),
    [
        (NATURAL, ["fmn"], "linf", 50, "not applicable", "no budget"),
        (NATURAL, ["square"], "linf:0.15 score", 50, "not applicable", "see no gradients"),
        ("function", ["pgd"], "linf:0.15", 50, "not applicable", "black box"),
        (f"{NATURAL}+resize_pad", ["averaged(pgd, 5)"], "linf:0.15", 50, "not run", "stochastic"),
        (NATURAL, ["pgd"], "linf:0.15", 19, "not run", "20 samples"),
        (NATURAL, ["pgd"], "linf:0.9", 50, "not run", "known example"),
        (NATURAL, ["boundary"], "linf:0.15", 50, "not run", "no attack follows"),
    ],
)
def test_where_it_does_not_run_it_says_why(
    victim: str, attacks: list[str], threat: str, count: int, outcome: str, why: str
) -> None:
    model: Victim | str = victim
    if victim == "function":
        model = function_model(lambda x: x.reshape(len(x), -1)[:, :10], 10)
    few = DIGITS.at(torch.arange(count))
    seen = run(model, attacks, Threat.parse(threat), few)
    assert seen.check.outcome == outcome and why in seen.check.seen


@pytest.mark.parametrize(
    ("found", "tested", "outcome"),
    [
        (50, 50, "passed"),
        (44, 50, "passed"),
        (43, 50, "failed"),
        (17, 20, "passed"),
        (0, 20, "failed"),
    ],
)
def test_it_fails_where_the_interval_lies_below_the_share(
    found: int, tested: int, outcome: str
) -> None:
    assert _decided(found, tested).outcome == outcome


@pytest.mark.parametrize("tested", [8, 20, 50, 200])
def test_the_decision_is_that_of_the_exact_interval(tested: int) -> None:
    for found in range(tested + 1):
        below = clopper_pearson(found, tested)[1] < LEAST
        assert (_decided(found, tested).outcome == "failed") == below, found


def test_a_few_examples_decide_where_all_are_found() -> None:
    whole, early = run(ROBUST, samples=DIGITS), run(ROBUST, samples=DIGITS, first=8)
    assert early.check.outcome == "passed" and early.found == early.tested <= 8 < whole.tested
    assert early.forwards + early.backwards < 0.25 * (whole.forwards + whole.backwards)
    assert early.check.number == "8 of 8 known examples found"


def test_an_example_that_is_missed_makes_the_test_go_on() -> None:
    weak = run(ROBUST, ["pgd(steps=1)"], samples=DIGITS, first=8)
    assert weak.check == run(ROBUST, ["pgd(steps=1)"], samples=DIGITS).check
    assert weak.check.outcome == "failed" and weak.tested + weak.left_out == 50


def test_too_few_known_examples_among_the_first_do_not_decide() -> None:
    near = torch.cat([DIGITS.images[:1].repeat(7, 1, 1, 1), DIGITS.images[1:]])
    labels = torch.cat([DIGITS.labels[:1].repeat(7), DIGITS.labels[1:]])
    assert run(ROBUST, samples=Samples.of(near, labels), first=8).tested == 8


needs_data = pytest.mark.skipif("BESIEGE_DATA" not in os.environ, reason="needs BESIEGE_DATA")


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "data", "threat"),
    [
        ("public:mnist_cnn_a_adv", "mnist", "linf:0.3"),
        ("public:mnist_cnn_a_adv", "mnist", "l2:2"),
        ("public:mnist_kw_small_eps0.3", "mnist", "linf:0.3"),
        ("public:mnist_lenet_adv", "mnist", "linf:0.3"),
        ("public:fashion_kw_small_eps0.1", "fashion-mnist", "linf:0.1"),
        ("public:cifar10_kw_small_8px", "cifar10", "linf:8/255"),
        ("public:cifar10_resnet20", "cifar10", "linf:8/255"),
        ("zoo:cifar10-resnet20-pgd-at", "cifar10", "linf:8/255"),
        ("zoo:cifar10-resnet20-pgd-at", "cifar10", "l2:0.5"),
        ("zoo:cifar10-pgd-at", "cifar10", "linf:8/255"),
    ],
)
def test_on_trained_networks_the_default_passes_and_one_step_fails(
    victim: str, data: str, threat: str
) -> None:
    samples, allowed = samples_of(data), Threat.parse(threat)
    strong = run(victim, threat=allowed, samples=samples)
    assert strong.check.outcome == "passed"
    assert random_found(load(victim), allowed, samples) < 0.5 * strong.tested
    assert run(victim, ["pgd(steps=1)"], allowed, samples).check.outcome == "failed"
