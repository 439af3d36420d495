from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.victims import Noisy, Spy, affine
from torch import Tensor, nn
from torch.nn import functional

import besiege
import besiege.evaluation.crafting as crafting
import besiege.models.twins as twins
from besiege.attacks import Attack, parse
from besiege.core.ball import distances
from besiege.core.dice import random_targets
from besiege.core.errors import (
    AccessError,
    AttackError,
    BesiegeError,
    InputError,
    StochasticError,
    ThreatError,
    VictimError,
)
from besiege.core.oracle import Oracle
from besiege.core.record import Record
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import Access, Threat
from besiege.evaluation import Crafted, confirming, craft, judge
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Failing, Failure, Linear, images_of, module_of

SHAPE = (1, 4, 4)
THREAT = Threat.parse("linf:0.05")


def victim(classes: int = 4) -> Linear:
    return Linear(SHAPE, classes)


def data(rows: int = 16, of: Classifier | None = None) -> Samples:
    images = images_of(SHAPE, rows)
    return Samples.of(images, (of or victim())(images).argmax(1))


def equal(a: Crafted, b: Crafted) -> bool:
    names = ("images", "success", "distance", "first_step", "first_query", "queries")
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in names)


def test_claims_survive_the_judge() -> None:
    samples = data()
    crafted = craft(victim(), parse("pgd(steps=10)"), samples, THREAT)
    verdicts = judge(victim(), crafted, samples, THREAT)
    assert 0 < int(crafted.success.sum()) < 16
    assert torch.equal(crafted.success, verdicts.success)
    assert torch.equal(crafted.images[~crafted.success], samples.images[~crafted.success])
    assert torch.isinf(crafted.distance[~crafted.success]).all()
    linf = verdicts.distance[THREAT.norm]
    assert torch.allclose(linf[crafted.success], crafted.distance[crafted.success])


@pytest.mark.parametrize("text", ["pgd(steps=5)", "cascade(rfgsm, dim(steps=4))", "minimal(fgsm)"])
def test_rows_do_not_depend_on_batch_order_or_padding(text: str) -> None:
    samples = data()
    whole = craft(victim(), parse(text), samples, THREAT, keep="last", leave="end")
    for batch in (8, 16):
        same = craft(victim(), parse(text), samples, THREAT, keep="last", leave="end", batch=batch)
        assert equal(same, whole)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    turned = craft(victim(), parse(text), samples.at(order), THREAT, keep="last", leave="end")
    assert torch.equal(turned.images, whole.images[order])
    assert torch.equal(turned.queries, whole.queries[order])
    for row in (0, 7):
        one = torch.tensor([row])
        alone = craft(victim(), parse(text), samples.at(one), THREAT, keep="last", leave="end")
        assert torch.equal(alone.images, whole.images[one])


def test_draws_follow_ids_and_seeds() -> None:
    samples = data()
    attack = parse("pgd(steps=3)")
    base = craft(victim(), attack, samples, THREAT, keep="last", leave="end")
    renamed = Samples(samples.images, samples.labels, samples.ids + 100, None)
    assert not torch.equal(
        craft(victim(), attack, renamed, THREAT, keep="last", leave="end").images, base.images
    )
    assert not torch.equal(
        craft(victim(), attack, samples, THREAT, keep="last", leave="end", seed=1).images,
        base.images,
    )
    repeated = parse("repeat(pgd(steps=3), 2)")
    assert not torch.equal(
        craft(victim(), repeated, samples, THREAT, keep="last", leave="end").images, base.images
    )


def test_random_targets_are_the_same_for_every_attack_model_and_seed() -> None:
    samples = data()
    threat = Threat.parse("linf:0.05 targeted:random")
    expected = random_targets(samples.ids, samples.labels, 4)
    for net, text, seed in ((victim(), "pgd(steps=2)", 0), (Linear(SHAPE, 4, seed=3), "fgsm", 7)):
        crafted = craft(net, parse(text), samples, threat, seed=seed)
        assert crafted.targets is not None and torch.equal(crafted.targets, expected)
    order = torch.arange(15, -1, -1)
    turned = craft(victim(), parse("fgsm"), samples.at(order), threat)
    assert turned.targets is not None and torch.equal(turned.targets, expected[order])


@pytest.mark.parametrize(("goal", "column"), [("least-likely", -1), ("second", 1)])
def test_targets_by_rule_are_read_off_the_clean_scores(goal: str, column: int) -> None:
    samples = data()
    crafted = craft(victim(), parse("bim"), samples, Threat.parse(f"linf:0.2 targeted:{goal}"))
    expected = victim()(samples.images).argsort(1, descending=True)[:, column]
    assert crafted.targets is not None and torch.equal(crafted.targets, expected)
    hit = crafted.success
    assert hit.any() and (victim()(crafted.images).argmax(1)[hit] == expected[hit]).all()


# what is refused before any work


class Untouched(Counting):
    """A victim that must not be asked."""

    def __call__(self, x: Tensor, dice: Any = None) -> Tensor:
        raise AssertionError("work was started")


@pytest.mark.parametrize(
    ("text", "threat", "more", "error", "said"),
    [
        ("pgd", "l0:5", {}, ThreatError, "works in l1, l2, linf, not in l0"),
        ("rfgsm", "l2:1", {}, ThreatError, "works in linf"),
        ("illc", "linf:0.1 targeted:random", {}, ThreatError, "targeted:least-likely"),
        ("pgd", "linf", {}, ThreatError, r"minimal\(pgd\)"),
        ("pgd", "linf:0.1 targeted:given", {}, ThreatError, "no targets were given"),
        ("pgd", "linf:0.1 score", {}, AccessError, "needs gradient access"),
        ("minimal(pgd)", "linf decision", {}, AccessError, "only decision access is granted"),
        ("pgd", "linf:0.1", {"keep": "best"}, AttackError, "keep is 'best'"),
        ("pgd", "linf:0.1", {"leave": "sucess"}, AttackError, "did you mean 'success'"),
        ("pgd", "linf:0.1", {"queries": 0}, AttackError, "whole number from 1"),
        ("averaged(pgd, 20)", "linf:0.1", {"queries": 10}, AttackError, "20"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    text: str, threat: str, more: dict[str, Any], error: type[BesiegeError], said: str
) -> None:
    with pytest.raises(error, match=said):
        craft(Untouched(victim()), parse(text), data(), Threat.parse(threat), **more)


def test_a_victim_of_less_access_refuses_too() -> None:
    spy = Spy(victim(), Access.SCORE)
    with pytest.raises(AccessError, match="only score access is granted; attacks that fit"):
        craft(spy, parse("pgd"), data(), THREAT)


def test_chance_needs_an_average() -> None:
    with pytest.raises(StochasticError, match=r"averaged\(bim, 20\)"):
        craft(Noisy(victim()), parse("bim"), data(), THREAT)


def test_undeclared_probabilities_are_refused_and_declared_ones_noted() -> None:
    soft = nn.Sequential(victim().module, nn.Softmax(1))
    with pytest.raises(VictimError, match=r"outputs='probabilities'"):
        craft(Classifier(soft), parse("pgd"), data(), THREAT)
    crafted = craft(Classifier(soft, outputs="probabilities"), parse("pgd"), data(), THREAT)
    assert [f.id for f in crafted.findings] == ["W13"]


@pytest.mark.parametrize(
    "goal",
    [
        "",
        " targeted:random",
        " targeted:least-likely",
        " targeted:second",
    ],
)
def test_labels_beyond_the_classes_are_named_even_when_those_are_found_out(goal: str) -> None:
    blank = Classifier(victim().module)  # the number of classes is not declared
    samples = Samples.of(images_of(SHAPE, 3), torch.tensor([0, 9, 1]))
    with pytest.raises(InputError, match=r"labels\[1\] is 9"):
        craft(blank, parse("pgd(steps=2)"), samples, Threat.parse("linf:0.1" + goal))


def test_budgets_in_other_units_are_noted() -> None:
    crafted = craft(victim(), parse("fgsm"), data(), Threat.parse("linf:8"))
    assert [f.id for f in crafted.findings] == ["W28"]


# nothing is changed


@dataclass(frozen=True)
class Raising(Attack):
    """Fails midway."""

    def run(self, siege: Siege) -> None:
        siege.offer(siege.ball.center)
        raise RuntimeError("midway")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("how", ["fine", "attack raises", "model raises"])
def test_everything_is_left_as_it_was(training: bool, inference: bool, how: str) -> None:
    inner = module_of(SHAPE, 4)
    module = Failing(inner, 3) if how == "model raises" else inner
    module.train(training)
    parameters = list(module.parameters())
    parameters[0].requires_grad_(False)
    held = torch.ones_like(parameters[1])
    parameters[1].grad = held
    inner[4].train(not training)  # type: ignore[index]  # dropout of another mode than the rest
    modes = [m.training for m in module.modules()]
    state = {k: v.clone() for k, v in module.state_dict().items()}
    images = images_of(SHAPE, 5)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        classifier = Classifier(module, classes=4)
        samples = Samples.of(images, torch.arange(5) % 4)
    before, generator = samples.images.clone(), torch.get_rng_state()
    attack = Raising() if how == "attack raises" else parse("pgd(steps=3)")
    mode = torch.inference_mode(inference)
    with mode:
        if how == "fine":
            crafted = craft(classifier, attack, samples, THREAT)
            assert not crafted.images.is_inference()
        else:
            with pytest.raises(RuntimeError if how == "attack raises" else VictimError) as said:
                craft(classifier, attack, samples, THREAT)
            assert how == "attack raises" or isinstance(said.value.__cause__, Failure)
    assert [m.training for m in module.modules()] == modes
    assert [p.requires_grad for p in parameters] == [False] + [True] * (len(parameters) - 1)
    assert parameters[1].grad is held and (held == 1).all()
    assert all(p.grad is None for p in parameters if p is not parameters[1])
    for key, value in module.state_dict().items():
        assert torch.equal(value, state[key])  # batch norm saw nothing
    assert torch.equal(samples.images, before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_model_is_held_in_evaluation_mode() -> None:
    module = module_of(SHAPE, 4).train()
    seen: list[tuple[bool, bool]] = []

    class Watching(Classifier):
        def __call__(self, x: Tensor, dice: Any = None) -> Tensor:
            training = any(m.training for m in self.module.modules())
            wanted = any(p.requires_grad for p in self.module.parameters())
            seen.append((training, wanted))
            return super().__call__(x, dice)

    craft(Watching(module, classes=4), parse("pgd(steps=2)"), data(), THREAT)
    assert set(seen) == {(False, False)} and len(seen) > 2


def test_a_watcher_is_told_of_progress() -> None:
    seen: list[int] = []

    def watch(record: Record) -> None:
        seen.append(int(record.meter.forwards.sum()))

    craft(victim(), parse("bim(steps=3)"), data(), THREAT, watch=watch)
    assert seen == sorted(seen) and len(seen) >= 4


# the twin


class Twin:
    """Stands in for the maker of accelerated copies."""

    def __init__(self, copy: Classifier | None) -> None:
        self.copy = copy
        self.probes: list[int] = []

    def __call__(self, original: Classifier, probe: Tensor, **how: object) -> Classifier | None:
        self.probes.append(len(probe))
        return self.copy


def counted(net: Classifier) -> tuple[Classifier, list[int]]:
    """The same classifier, and how many images each call brought."""
    calls: list[int] = []
    hook = net.module.register_forward_pre_hook(lambda _, args: calls.append(len(args[0])))
    assert hook is not None
    return net, calls


def test_an_honest_twin_gives_what_the_victim_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = data()
    attack = parse("pgd(steps=10)")
    plain = craft(victim(), attack, samples, THREAT)
    twin = Twin(victim())
    monkeypatch.setattr(twins, "twin", twin)
    original, calls = counted(victim())
    searched = craft(original, attack, samples, THREAT, twin=True)
    assert twin.probes == [24]  # clean, in the ball and on its surface
    assert torch.equal(searched.success, plain.success)
    assert torch.equal(searched.images, plain.images)
    broken = plain.success.long()
    assert torch.equal(searched.forwards, plain.forwards + broken)  # the confirmation is paid
    assert torch.equal(searched.queries, plain.queries)
    assert len(calls) == 1  # the original was asked once, about the successes


def test_no_twin_is_made_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(victim())
    monkeypatch.setattr(twins, "twin", twin)
    craft(victim(), parse("fgsm"), data(), THREAT)
    assert twin.probes == []
    monkeypatch.setattr(twins, "twin", Twin(None))
    plain = craft(victim(), parse("fgsm"), data(), THREAT)
    assert equal(craft(victim(), parse("fgsm"), data(), THREAT, twin=True), plain)


@pytest.mark.parametrize("goal", ["", " targeted:random"])
def test_a_lying_twin_is_found_out_and_its_rows_attacked_again(
    monkeypatch: pytest.MonkeyPatch, goal: str
) -> None:
    """The twin sees boundaries where there are none: another linear victim."""
    samples = data(24)
    threat = Threat.parse("linf:0.2" + goal)
    attack = parse("pgd(steps=10)")
    truth = craft(victim(), attack, samples, threat)
    liar = Linear(SHAPE, 4, seed=9)
    lies = craft(liar, attack, samples, threat)
    verdicts = judge(victim(), lies, samples, threat)
    caught = lies.success & ~verdicts.success
    assert caught.any()
    monkeypatch.setattr(twins, "twin", Twin(liar))
    made = craft(victim(), attack, samples, threat, twin=True)
    # Every claim is now true ...
    assert torch.equal(made.success, made.success & judge(victim(), made, samples, threat).success)
    # ... and a row the twin lied about is what the victim alone would have given.
    assert torch.equal(made.images[caught], truth.images[caught])
    assert torch.equal(made.success[caught], truth.success[caught])
    assert torch.equal(made.distance[caught], truth.distance[caught])
    assert torch.equal(made.first_step[caught], truth.first_step[caught])
    shown = lies.success.long() + (len(confirming.PUSHES) + 2 * len(confirming.CLIMBS)) * caught
    expected = lies.forwards + shown + torch.where(caught, truth.forwards, 0)
    assert torch.equal(made.forwards, expected)
    honest = lies.success & verdicts.success
    assert torch.equal(made.images[honest], lies.images[honest])


def test_what_fools_the_twin_by_a_hair_is_pushed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's boundary lies a little nearer: its points stop short of the victim's."""
    samples, threat = data(24), Threat.parse("l2:3")
    attack = parse("fabt(steps=10, eta=1.001)")
    original = victim()
    nearer = victim()
    with torch.no_grad():  # every wrong class a little more likely than it is
        margin = original(samples.images).sort(1).values
        lift = 0.004 * float((margin[:, -1] - margin[:, -2]).median())
    module = nearer.module

    class Nearer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            first = functional.one_hot(logits.argmax(1), logits.shape[1])
            return logits - lift * first

    monkeypatch.setattr(twins, "twin", Twin(Classifier(Nearer())))
    redone: list[int] = []
    put = confirming._redone

    def noted(crafted: Crafted, again: Tensor, new: Crafted) -> Crafted:
        redone.append(len(again))
        return put(crafted, again, new)

    monkeypatch.setattr(confirming, "_redone", noted)
    made = craft(original, attack, samples, threat, twin=True)
    assert torch.equal(made.success, judge(victim(), made, samples, threat).success)
    assert int(made.success.sum()) == 24 and sum(redone) <= 3
    assert torch.equal(made.distance, distances(made.images - samples.images, threat.norm))
    # Where the smallest change is wanted, a push of 0.4 % is too much: the victim is searched.
    redone.clear()
    smallest = craft(original, attack, samples, Threat.parse("l2"), twin=True)
    assert sum(redone) > 8
    assert torch.equal(
        smallest.success, judge(victim(), smallest, samples, Threat.parse("l2")).success
    )


class Crowd(nn.Module):
    """Answers whose last digits depend on how many images are asked about, as a rough GPU's."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        lift = torch.linspace(-1.0, 1.0, logits.shape[1])
        return logits + 2e-5 * (1 if len(x) % 3 else -1) * lift


@pytest.mark.parametrize("twin", [False, True])
def test_successes_hold_in_the_company_in_which_they_are_judged(
    monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    samples, threat = data(24), Threat.parse("l2")
    attack = parse("deepfool")
    crowd = Classifier(Crowd(victim().module))
    monkeypatch.setattr(twins, "twin", Twin(victim()))
    before = Oracle.__init__

    def held(batch_sensitive: bool) -> tuple[Crafted, Tensor]:
        def init(self: Oracle, *args: Any, **given: Any) -> None:
            before(self, *args, **given)
            self.batch_sensitive, self.pad = batch_sensitive, 1

        monkeypatch.setattr(Oracle, "__init__", init)
        made = craft(crowd, attack, samples, threat, twin=twin, batch=8, pad=False)
        return made, judge(crowd, made, samples, threat).success

    made, success = held(batch_sensitive=False)
    lost = int((made.success & ~success).sum())
    made, success = held(batch_sensitive=True)
    assert lost > 3 or twin  # a nudge already helps what a twin found
    assert success.all() and made.success.all()
    assert torch.equal(made.distance, distances(made.images - samples.images, threat.norm))


def test_successes_hold_in_the_parts_in_which_they_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples, threat, counts = data(24), Threat.parse("l2"), [8, 9, 7]
    crowd = Classifier(Crowd(victim().module))
    before = Oracle.__init__

    def init(self: Oracle, *args: Any, **given: Any) -> None:
        before(self, *args, **given)
        self.batch_sensitive, self.pad = True, 1

    monkeypatch.setattr(Oracle, "__init__", init)

    def lost(parts: list[int] | None) -> int:
        made = craft(crowd, parse("deepfool"), samples, threat, pad=False, parts=parts)
        assert made.success.all()
        several = zip(made.split(counts), torch.split(torch.arange(24), counts), strict=True)
        judged = [judge(crowd, one, samples.at(rows), threat) for one, rows in several]
        return sum(int((~verdicts.success).sum()) for verdicts in judged)

    assert lost(None) > 3 and lost(counts) == 0


def test_parts_share_the_padding_and_the_seconds() -> None:
    made = craft(victim(), parse("fgsm"), data(20), Threat.parse("linf:0.1"))
    parts = made.split([3, 7, 10])
    assert made.padding and sum(one.padding for one in parts) == made.padding
    assert sum(one.seconds for one in parts) == pytest.approx(made.seconds)
    assert torch.equal(torch.cat([one.images for one in parts]), made.images)


def test_what_does_not_hold_in_company_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = data(24)
    crowd = Classifier(Crowd(victim().module))
    before = Oracle.__init__

    def init(self: Oracle, *args: Any, **given: Any) -> None:
        before(self, *args, **given)
        self.batch_sensitive, self.pad = True, 1

    monkeypatch.setattr(Oracle, "__init__", init)
    monkeypatch.setattr(crafting, "NUDGES", ())
    threat = Threat.parse("l2")
    made = craft(crowd, parse("deepfool"), samples, threat, batch=8, pad=False)
    assert not made.success.all()
    assert torch.equal(made.success, judge(crowd, made, samples, threat).success)
    lost = ~made.success
    assert torch.equal(made.images[lost], samples.images[lost])
    assert torch.isinf(made.distance[lost]).all() and (made.first_query[lost] == -1).all()


def test_what_fools_the_twin_by_a_hair_is_led_up_the_victims_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single step stops anywhere; where the budget is spent, no push takes it farther."""
    threat, attack = Threat.parse("linf:0.15"), parse("fgsm")
    original = besiege.models.load("zoo:digits-natural")
    digits = besiege.data.load("digits")
    samples = Samples.of(digits.images, digits.labels, ids=digits.ids)
    lift = 0.2

    class Nearer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = original.module

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            return logits - lift * functional.one_hot(logits.argmax(1), logits.shape[1])

    twin = Classifier(Nearer().eval(), mean=original.mean, std=original.std)
    monkeypatch.setattr(twins, "twin", Twin(twin))
    redone: list[int] = []
    put = confirming._redone

    def noted(crafted: Crafted, again: Tensor, new: Crafted) -> Crafted:
        redone.append(len(again))
        return put(crafted, again, new)

    monkeypatch.setattr(confirming, "_redone", noted)
    made = craft(original, attack, samples, threat, twin=True)
    few = sum(redone)
    assert torch.equal(made.success, judge(original, made, samples, threat).success)
    moved = distances(made.images - samples.images, threat.norm)
    assert torch.equal(made.distance[made.success], moved[made.success])
    monkeypatch.setattr(crafting, "CLIMBS", ())
    craft(original, attack, samples, threat, twin=True)
    assert few < sum(redone) - few


def test_a_twin_that_calls_a_right_image_wrong_is_overruled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = data()
    weight = torch.zeros(4, 16)
    constant = affine(weight, torch.tensor([0.0, 1.0, 2.0, 30.0]))  # always class 3
    monkeypatch.setattr(twins, "twin", Twin(constant))
    made = craft(victim(), parse("pgd(steps=10)"), samples, THREAT, twin=True)
    plain = craft(victim(), parse("pgd(steps=10)"), samples, THREAT)
    fooled = samples.labels != 3
    assert torch.equal(made.success[fooled], plain.success[fooled])
    assert torch.equal(made.images[fooled], plain.images[fooled])
