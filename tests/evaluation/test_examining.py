"""Models in disguise are found and named; honest ones raise no alarm."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from tests.evaluation import disguises
from tests.evaluation.disguises import Disguise, Late, Memory
from tests.evaluation.honest_nets import drawn
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.examination import Check
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Defended, ResizePad, load
from besiege.evaluation.examining import examine, examine_again
from besiege.evaluation.sameness import apart, ascent
from besiege.evaluation.subject import Subject
from besiege.models.classifier import Classifier
from besiege.models.ensemble import Ensemble

DIGITS = "zoo:digits-natural"
ROBUST = "zoo:digits-pgd-at"
THREAT = Threat.parse("linf:0.1")


def digits() -> Samples:
    data = besiege.data.load("digits", count=64)
    return Samples.of(data.images, data.labels)


def natural() -> nn.Module:
    victim = load(DIGITS)
    assert isinstance(victim, Classifier)
    return victim.module


def examined(disguise: Disguise, fresh: bool = True) -> list[Check]:
    def make() -> Classifier:
        return Classifier(disguise(natural()))

    return examine(make(), digits(), THREAT, fresh=make if fresh else None)


def both(make: object, samples: Samples, threat: str = "linf:0.1") -> list[Check]:
    """The checks before and after; the same object throughout, as in an evaluation."""
    assert callable(make)
    victim, budget = make(), Threat.parse(threat)
    checks = examine(victim, samples, budget, fresh=make)
    return checks + examine_again(victim, samples, budget, fresh=make)


def outcomes(checks: list[Check]) -> set[str]:
    return {check.outcome for check in checks}


def alarms(checks: list[Check]) -> list[str]:
    return [f"{check.rule}: {check.seen}" for check in checks if check.outcome == "failed"]


def test_answers_are_shared_between_checks() -> None:
    sent: list[int] = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = natural()

        def forward(self, x: Tensor) -> Tensor:
            sent.append(len(x))
            logits: Tensor = self.inner(x)
            return logits

    def make() -> Classifier:
        return Classifier(Counting())

    victim = make()
    assert outcomes(examine(victim, digits(), THREAT, fresh=make)) == {"passed"}
    assert sum(sent) <= 1010 and sent.count(256) == 1, "one large batch, with segments inside"
    before = sum(sent)
    assert outcomes(examine_again(victim, digits(), THREAT, fresh=make)) == {"passed"}
    assert sum(sent) - before <= 360, "small batches are padded to 16 images"


def test_answers_that_are_undefined_on_the_way_out_are_noticed() -> None:
    def undefined(x: Tensor) -> Tensor:
        moved = (x * 16 - (x * 16).round()).abs().flatten(1).amax(1)
        return torch.where((moved > 0) & (moved < 0.01), torch.nan, 0.0)[:, None]

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = natural()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x) + undefined(x)
            return logits

    checks = examine(Classifier(Fragile()), digits(), THREAT, fresh=None)
    assert "W47" in [check.rule for check in checks if check.outcome == "failed"]
    assert "of 144" in checks[-1].number


@pytest.mark.parametrize("name", disguises.GRADIENTS)
def test_wrong_gradients_are_found_and_named(name: str) -> None:
    disguise, rule, word = disguises.GRADIENTS[name]
    found = [c for c in examined(disguise)[:2] if c.outcome == "failed"]
    assert rule in [check.rule for check in found]
    assert any(word in check.seen for check in found)
    finding = found[0].finding
    assert finding is not None and finding.level == "stop" and finding.advice


@pytest.mark.parametrize("name", disguises.SAMENESS)
def test_more_than_one_answer_is_found_and_named(name: str) -> None:
    disguise, rule, word = disguises.SAMENESS[name]
    checks = examined(disguise)
    assert (checks[2].outcome, checks[2].rule) == ("failed", rule)
    assert word in checks[2].seen
    assert outcomes(checks[:2]) == {"not run"}  # slopes mean nothing then


@pytest.mark.parametrize("name", disguises.NEARBY)
def test_answers_that_are_none_are_found_and_named(name: str) -> None:
    disguise, rule, word = disguises.NEARBY[name]
    checks = examined(disguise)
    assert (checks[3].outcome, checks[3].rule) == ("failed", rule)
    assert word in checks[3].seen
    assert checks[2].outcome == "passed"


def test_a_saturated_half_is_found_by_its_gradients() -> None:
    checks = examined(disguises.of(after=lambda z, x: torch.sigmoid(3 * z)))
    assert (checks[0].outcome, checks[0].rule) == ("failed", "W47")
    assert "saturated" in checks[0].seen


def test_weights_drawn_when_the_model_is_made_are_no_memory() -> None:
    def make() -> Classifier:
        return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))

    found = [check for check in both(make, digits()) if check.rule == "W46"]
    assert len(found) == 2, "before the attacks and after them"
    for check in found:
        assert "made at random, so that every copy is another model" in check.seen
        assert "load its trained weights" in check.advice and "stateful" not in check.seen


def test_a_memory_is_found_only_by_a_fresh_copy_and_that_is_said() -> None:
    alone = examined(lambda net: Memory(net, 0.02), fresh=False)
    assert "no fresh copy" in alone[2].number or alone[2].outcome == "failed"
    assert "no fresh copy" in examined(disguises.of(), fresh=False)[2].number


@pytest.mark.parametrize(
    "disguise", [lambda net: Memory(net, 0.05), lambda net: Late(net, 1500)], ids=["memory", "late"]
)
def test_a_state_shows_after_the_attacks(disguise: Disguise) -> None:
    def make() -> Classifier:
        return Classifier(disguise(natural()))

    victim, samples = make(), digits()
    with victim.held(), torch.no_grad():
        for turn in range(30):  # what attacks do
            victim((samples.images + 0.003 * turn).clamp(0, 1))
    (check,) = examine_again(victim, samples, THREAT, fresh=make)
    assert (check.outcome, check.rule) == ("failed", "W46")
    assert "stateful" in check.seen


def test_adversarial_images_are_asked_again() -> None:
    class Special(nn.Module):
        """Only bright images are answered differently after a first call."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = natural(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            z: Tensor = self.net(x)
            bright = x.flatten(1).mean(1) > 0.9
            return torch.where((bright & torch.tensor(self.calls > 1))[:, None], z.roll(1, 1), z)

    def make() -> Classifier:
        return Classifier(Special())

    victim, samples = make(), digits()
    given = {"samples": samples, "threat": THREAT, "fresh": make}
    assert outcomes(examine_again(victim, **given)) == {"passed"}  # type: ignore[arg-type]
    bright = torch.ones_like(samples.images[:16])
    (check,) = examine_again(victim, adversarial=bright, **given)  # type: ignore[arg-type]
    assert "adversarial images" in check.seen and check.rule == "W46"


@pytest.mark.parametrize("model", [DIGITS, ROBUST])
@pytest.mark.parametrize("threat", ["linf:0.1", "linf:0.3", "l2:0.5", "l1:3", "l0:5", "linf"])
def test_honest_models_pass(model: str, threat: str) -> None:
    assert outcomes(both(lambda: load(model), digits(), threat)) == {"passed"}


@pytest.mark.parametrize("access", ["score", "decision"])
def test_without_gradients_their_checks_do_not_apply(access: str) -> None:
    checks = both(lambda: load(DIGITS), digits(), f"linf:0.1 {access}")
    assert [check.outcome for check in checks] == ["not applicable"] * 2 + ["passed"] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_pass(dtype: torch.dtype) -> None:
    assert outcomes(both(lambda: Classifier(natural().to(dtype)), digits())) == {"passed"}


def test_wrong_gradients_in_half_precision_never_pass() -> None:
    for change in (lambda g: -g, disguises.junk):
        net = disguises.of(backward=change)(natural()).to(torch.float16)
        checks = examine(Classifier(net), digits(), THREAT, fresh=None)
        assert checks[0].outcome in ("failed", "not run")


def dim(dtype: torch.dtype, height: float) -> tuple[nn.Module, Samples]:
    """Logits so high that rounding hides slopes; of 4 pixels, random moves are nearly as good."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        last = nn.Linear(4, 3)
        images = 0.2 + 0.6 * torch.rand(32, 1, 2, 2)
    with torch.no_grad():
        last.bias.add_(height)
    net = nn.Sequential(nn.Flatten(), last).to(dtype)
    return net, Samples.of(images, torch.arange(32) % 3)


@pytest.mark.parametrize(("dtype", "height"), [(torch.float16, 8.0), (torch.bfloat16, 1.0)])
def test_slopes_below_rounding_pass_where_many_agree(dtype: torch.dtype, height: float) -> None:
    net, samples = dim(dtype, height)
    checks = examine(Classifier(net), samples, THREAT, fresh=None)
    assert outcomes(checks) == {"passed"}
    assert "over all images" in checks[0].number
    few = samples.at(torch.arange(2))  # may agree by chance
    assert examine(Classifier(net), few, THREAT, fresh=None)[0].outcome == "not run"
    for change in (lambda g: -g, disguises.junk):
        wrong = disguises.of(backward=change)(dim(dtype, height)[0])
        checks = examine(Classifier(wrong), samples, THREAT, fresh=None)
        assert checks[0].outcome in ("failed", "not run")


def test_single_rounding_steps_prove_nothing() -> None:
    net, samples = dim(torch.bfloat16, 32.0)
    checks = examine(Classifier(net), samples, THREAT, fresh=None)
    assert [check.number for check in checks[:2]] == ["0 slopes", "0 slopes"]


def test_surrogates_are_examined_past_and_it_is_said() -> None:
    checks = both(lambda: Defended(DIGITS, BitDepth(3)), digits())
    assert outcomes(checks) == {"passed"}
    assert "past 1 layer with a surrogate" in checks[0].number
    checks = both(lambda: Defended(DIGITS, BitDepth(3), ResizePad(0.75)), digits())
    assert outcomes(checks) == {"passed"}
    wrong = disguises.of(backward=lambda g: -g)
    victim = Defended(Classifier(wrong(natural())), BitDepth(3))
    assert examine(victim, digits(), THREAT, fresh=None)[0].rule == "W45"


def test_surrogates_inside_an_ensemble_replace_its_gradients() -> None:
    members = [Defended(DIGITS, BitDepth(3)), load(ROBUST)]
    checks = examine(Ensemble(members), digits(), THREAT, fresh=None)
    assert [check.outcome for check in checks] == ["not applicable"] * 2 + ["passed"] * 2


@pytest.mark.parametrize("fuse", ["logits", "probabilities", "losses"])
def test_ensembles_pass(fuse: str) -> None:
    def make() -> Victim:
        return Ensemble([DIGITS, ROBUST], fuse)  # type: ignore[arg-type]

    assert outcomes(both(make, digits())) == {"passed"}


class OwnChance(Victim):
    """Declared stochastic, but the dice do not decide its noise."""

    def __init__(self) -> None:
        self.inner = self.adopt(load(DIGITS))
        self.stochastic = True
        self.source_of_noise = torch.Generator().manual_seed(0)

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        z = self.inner(x)
        return z + torch.randn(z.shape, generator=self.source_of_noise)


def test_a_stochastic_victim_is_compared_with_equal_dice() -> None:
    assert outcomes(both(lambda: Defended(DIGITS, ResizePad(0.75)), digits())) == {"passed"}
    assert outcomes(both(OwnChance, digits())) == {"not applicable"}


def test_a_metered_victim_is_asked_only_on_request() -> None:
    net = load(DIGITS)

    def answers(images: object) -> object:
        with torch.no_grad():
            return net(torch.as_tensor(images).float()).numpy()

    victim = besiege.function_model(answers, classes=10)
    threat = Threat.parse("linf:0.1 score")
    checks = examine(victim, digits(), threat, fresh=None)
    assert [check.outcome for check in checks] == ["not applicable"] * 2 + ["not run"] * 2
    assert victim.counts == {}
    checks = examine(victim, digits(), threat, fresh=None, full=True)
    assert [check.outcome for check in checks] == ["not applicable"] * 2 + ["passed"] * 2
    assert set(victim.counts) == {"probe"} and victim.counts["probe"][0] < 150
    assert examine_again(victim, digits(), threat, fresh=None)[0].outcome == "not run"


def test_a_declared_grid_is_kept() -> None:
    asked = []

    def spy(x: Tensor) -> Tensor:
        asked.append(x.detach() * 16)
        return x

    def make() -> Classifier:
        return Classifier(disguises.of(before=spy)(natural()), grid=1 / 16)

    assert outcomes(both(make, digits(), "linf:0.2")) == {"passed"}
    steps = torch.cat(asked)
    assert torch.allclose(steps, steps.round(), atol=1e-3)


def test_it_costs_a_few_hundred_forward_passes() -> None:
    sent = []

    def count(x: Tensor) -> Tensor:
        sent.append(len(x))
        return x

    victim = Classifier(disguises.of(before=count)(natural()))
    examine(victim, digits(), THREAT, fresh=None)
    assert sum(sent) < 1400  # a hundredth of what the default attacks need on this data set


def test_nothing_is_left_behind() -> None:
    victim, state = Classifier(natural().train()), torch.random.get_rng_state()
    before = copy.deepcopy(victim.module.state_dict())
    first = examine(victim, digits(), THREAT, fresh=None)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(module.training for module in victim.module.modules())
    assert all(p.requires_grad and p.grad is None for p in victim.module.parameters())
    assert all(torch.equal(v, before[k]) for k, v in victim.module.state_dict().items())
    with torch.inference_mode():  # whatever the caller does, and the same every time
        assert examine(victim, digits(), THREAT, fresh=None) == first


def test_a_network_that_bends_strongly_has_gradients_nevertheless() -> None:
    waves = disguises.of(before=lambda x: x + 0.005 * torch.sin(20000 * x))
    first, second, *_ = examined(waves)
    assert first.outcome == "passed"  # over lengths that are short enough
    assert second.rule == "W12"


def test_rounding_of_the_type_is_allowed_and_no_more() -> None:
    once = torch.randn(6, 10)
    for eps, share in ((2.0**-23, 1e-3), (2.0**-10, 1.5e-2), (2.0**-7, 0.1)):
        assert not bool(apart(once, once * (1 + 0.9 * share), eps).any())
        assert bool(apart(once, once * (1 + 2 * share), eps).all())
    ruled_out = once.index_fill(1, torch.tensor([3]), -torch.inf)
    assert not bool(apart(ruled_out, ruled_out, 0.0).any())
    assert bool(apart(ruled_out, once, 0.0).all())


def test_the_ascent_moves_on_where_there_is_no_gradient() -> None:
    victim = Classifier(disguises.of(backward=lambda g: 0 * g)(natural()))
    with victim.held():
        subject = Subject.of(victim, digits(), THREAT)
        clean = subject.ask(subject.images, torch.arange(len(subject)))
        asked = ascent(subject, clean, seed=0)
    assert len(asked.images) == 64
    assert len(torch.unique(asked.images.flatten(1), dim=0)) == 64


@pytest.mark.parametrize("rows", [1, 3])
def test_few_images_are_enough(rows: int) -> None:
    samples = digits().at(torch.arange(rows))
    assert outcomes(both(lambda: load(DIGITS), samples)) == {"passed"}


def random_net_alarms(number: int) -> list[str]:
    victim, samples, threat = drawn(number)
    untouched = copy.deepcopy(victim)
    budget = Threat.parse(threat)

    def fresh() -> Victim:
        return copy.deepcopy(untouched)

    checks = examine(victim, samples, budget, fresh=fresh)
    checks += examine_again(victim, samples, budget, fresh=fresh)
    assert all(check.outcome == "passed" for check in checks[2:]), (number, alarms(checks))
    return [f"{number} {threat}: {alarm}" for alarm in alarms(checks)]


@pytest.mark.parametrize("number", range(10))
def test_random_honest_nets_raise_no_alarm(number: int) -> None:
    assert random_net_alarms(number) == []


@pytest.mark.slow
def test_two_hundred_random_honest_nets_raise_no_alarm() -> None:
    assert [alarm for number in range(200) for alarm in random_net_alarms(number)] == []


@pytest.mark.slow
@pytest.mark.skipif("BESIEGE_DATA" not in os.environ, reason="needs BESIEGE_DATA")
@pytest.mark.parametrize(
    ("model", "data", "threat"),
    [
        ("public:cifar10_resnet20", "cifar10", "linf:8/255"),
        ("public:cifar10_kw_small_8px", "cifar10", "linf:8/255"),
        ("public:cifar10_cnn_a_adv", "cifar10", "l2:0.5"),
        ("zoo:cifar10-resnet20-pgd-at", "cifar10", "linf:8/255"),
        ("public:mnist_lenet_adv", "mnist", "linf:0.3"),
        ("public:mnist_kw_small_eps0.3", "mnist", "linf:0.3"),
        ("public:mnist_cnn_a_adv", "mnist", "linf:0.3"),
    ],
)
def test_published_models_pass(model: str, data: str, threat: str) -> None:
    loaded = besiege.data.load(data, count=64)
    samples = Samples.of(loaded.images, loaded.labels)
    assert outcomes(both(lambda: load(model), samples, threat)) == {"passed"}
