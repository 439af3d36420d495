"""Slots of a recipe in a training: sources, teachers, layers, the guard, and exact resuming."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.attacks.attack import Attack
from besiege.attacks.combine import Averaged
from besiege.core.errors import InputError
from besiege.core.siege import Siege
from besiege.core.threat import Linf
from besiege.data import Data
from besiege.defenses import BitDepth, Defended
from besiege.models import Classifier
from besiege.models import load as load_model
from besiege.models.joint import joint
from besiege.training import Epoch, Recipe, fit, fresh, natural, pgd_at, recipe, train
from besiege.training.epochs import Training
from besiege.training.inner import Inner
from besiege.training.loop import identify
from besiege.training.losses import CrossEntropy
from besiege.training.objectives import OBJECTIVES, Objective, Step


@pytest.fixture(scope="module")
def data() -> Data:
    return besiege.data.load("digits", "train", count=200)


def net(seed: int = 0, classes: int = 10) -> nn.Sequential:
    return fresh(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes)
        ),
        seed,
    )


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


SOURCES = ("zoo:digits-natural", "zoo:digits-pgd-at")
EAT = recipe(
    "pgd-at(attack=rfgsm, objective=cross_entropy(clean=0.5), away_from='prediction', ramp=0, "
    "threat='linf:0.1', batch=20)",
    sources=SOURCES,
)


def test_a_source_is_drawn_for_every_batch_and_never_changes(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    states: dict[str, Any] = {}
    real = Inner.__call__

    def watched(self, victim, x, y, dice, epoch):  # type: ignore[no-untyped-def]
        drawn.append(victim.name)
        made = real(self, victim, x, y, dice, epoch)
        if victim.name in SOURCES:
            module = victim.module
            state = {k: v.clone() for k, v in module.state_dict().items()}
            before = states.setdefault(victim.name, state)
            assert all(torch.equal(v, before[k]) for k, v in state.items())
            assert all(p.grad is None for p in module.parameters())
        return made

    monkeypatch.setattr(Inner, "__call__", watched)
    train(Classifier(net(), name="mine"), data, replace(EAT, epochs=15))
    assert len(drawn) == 150 and set(drawn) == {"mine", *SOURCES}
    for name in set(drawn):
        assert 30 <= drawn.count(name) <= 70, "uniform, the model itself included"
    assert len({tuple(drawn[10 * e : 10 * e + 10]) for e in range(15)}) > 10


def test_a_model_crafted_on_sources_differs_from_one_that_is_not(data: Data) -> None:
    models = [net(), net(), net()]
    for model, plan in zip(models, (EAT, EAT, replace(EAT, sources=())), strict=True):
        train(model, data, replace(plan, epochs=1))
    assert same(models[0], models[1]) and not same(models[0], models[2])


@pytest.mark.parametrize("role", ["static model", "teacher"])
def test_other_models_are_checked_before_the_first_batch(
    role: str, data: Data, tmp_path: Path
) -> None:
    file = tmp_path / "made.py"
    file.write_text(
        "from torch import nn\n"
        "def three(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "def large(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )

    def plan(text: str) -> Recipe:
        if role == "teacher":
            return recipe(f"natural(objective=distil({text!r}))")
        return replace(EAT, sources=(text,))

    def never(*at: Any) -> None:
        raise AssertionError("a batch was trained on")

    for text, said in (
        (f"{file}:three", f"{role}.*3 classes.*10"),
        (f"{file}:large", f"the {role} .*:large does not take the 1x8x8 images of digits: choose"),
        ("zoo:digit-natural", "did you mean"),
    ):
        with pytest.raises(besiege.BesiegeError, match=said):
            train(net(), data, plan(text), tick=never)
    with pytest.raises(InputError, match="is the model in training itself"):
        train(load_model("zoo:digits-natural"), data, plan("zoo:digits-natural"), tick=never)


def test_a_distillation_needs_a_teacher_and_fit_makes_one(data: Data, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a teacher"):
        train(net(), data, "distilled")
    out = tmp_path / "student.safetensors"
    told: list[tuple[int, int]] = []
    fit("distilled", data, "digits_mlp", out, epochs=2, tick=lambda *at: told.append(at))
    teacher = tmp_path / "student.teacher.safetensors"
    assert teacher.exists() and told[-1] == (16, 16) and [t[0] for t in told] == list(range(1, 17))
    # The student learns from the teacher's probabilities, with the same order and start.
    by_hand, hot = (fresh(besiege.models.ARCHITECTURES["digits_mlp"]) for _ in range(2))
    # The teacher is trained at the temperature at which it labels.
    train(hot, data, recipe("natural(epochs=2, objective=cross_entropy(temperature=50))"))
    assert same(hot, load_model(f"digits_mlp:{teacher}").module)
    train(by_hand, data, recipe(f"distilled(epochs=2, objective=distil('digits_mlp:{teacher}'))"))
    assert same(by_hand, load_model(f"digits_mlp:{out}").module)
    card = json.loads((tmp_path / "student.json").read_text())
    assert recipe(card["recipe"]) == recipe("distilled@digits(epochs=2)")


def test_a_defended_model_is_trained_behind_its_layers(data: Data) -> None:
    plan = replace(pgd_at, epochs=1).within("linf:0.1")
    models = [net() for _ in range(4)]
    train(Defended(Classifier(models[0]), BitDepth(1)), data, plan)
    train(models[1], data, replace(plan, layers=(BitDepth(1),)))
    train(models[2], data, plan)
    assert same(models[0], models[1]) and not same(models[0], models[2])
    seen: list[torch.Tensor] = []
    models[3].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    train(Defended(Classifier(models[3]), BitDepth(1)), data, plan)
    assert all(bool(((x == 0) | (x == 1)).all()) for x in seen)
    with pytest.raises(InputError, match="give the model without layers"):
        train(Defended(Classifier(net()), BitDepth(1)), data, replace(plan, layers=(BitDepth(2),)))
    with pytest.raises(InputError, match="cannot be trained"):
        train(besiege.models.Ensemble(["zoo:digits-natural"]), data, plan)  # type: ignore[arg-type]


def test_every_epoch_draws_its_noise_anew(data: Data) -> None:
    model, seen = net(), list[torch.Tensor]()
    model.register_forward_pre_hook(
        lambda module, given: seen.append(given[0]) if module.training else None
    )
    plan = recipe("gaussian(epochs=2, batch=200)")
    train(model, data, plan)
    assert len(seen) == 2
    draws = torch.Generator().manual_seed(0)
    noise = []
    for x in seen:
        rows = torch.randperm(200, generator=draws)
        noise.append(torch.empty_like(x).index_copy_(0, rows, x - data.images[rows]))
    assert all(float(one.std()) == pytest.approx(0.25, abs=0.01) for one in noise)
    assert abs(float((noise[0] * noise[1]).mean())) < 0.01, "neither the same nor clamped"


def test_members_are_trained_behind_the_layers_too(data: Data) -> None:
    model, seen = fresh(lambda: joint(of="digits_mlp", members=2)), list[torch.Tensor]()
    model.members[1].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    train(model, data, recipe("adp(epochs=1)", layers=(BitDepth(1),)))
    assert seen and all(bool(((x == 0) | (x == 1)).all()) for x in seen)


def test_deepfool_asks_a_network_whose_statistics_stay(data: Data) -> None:
    model, modes = net(), list[bool]()
    train(model, data, replace(natural, epochs=8, rate=1e-2))
    before = int(model.state_dict()["1.num_batches_tracked"])
    model.register_forward_pre_hook(lambda module, given: modes.append(module[1].training))
    train(model, data, recipe("deepdefense(epochs=1, batch=50)"))
    assert modes.count(True) == 4 == int(model.state_dict()["1.num_batches_tracked"]) - before
    assert modes.count(False) > 4


def collapse(at: int) -> Callable[..., tuple[float, float | None]]:
    """Accuracies of a training that collapses in one epoch."""

    def scored(self, victim, held, attack):  # type: ignore[no-untyped-def]
        return 0.9, 0.1 if len(self.history) + 1 == at else 0.6

    return scored


def test_a_collapse_ends_the_training_before_it(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = recipe("fast-at(epochs=6, threat='linf:0.1', batch=50)")
    two, kept = net(), dict[str, Any]()
    train(two, data, replace(plan, epochs=6, guard=0.0), watch=_stop_after(two, 2, kept))
    monkeypatch.setattr(Training, "_accuracy", collapse(3))
    stopped = net()
    history = train(stopped, data, plan, checkpoint=tmp_path / "c")
    assert [e.guarded for e in history] == [0.6, 0.6, 0.1]
    assert all(torch.equal(v, kept[k]) for k, v in stopped.state_dict().items())
    # Once ended it stays ended, and gives the same weights.
    again = net()
    assert train(again, data, plan, checkpoint=tmp_path / "c") == history and same(again, stopped)
    small = replace(plan, guard=0.6)
    assert len(train(net(), data, small)) == 6, "a fall of 50 points is allowed here"


def test_the_card_says_that_the_guard_ended_it_and_which_epoch_stays(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def card(name: str, **more: Any) -> dict[str, Any]:
        out = tmp_path / f"{name}.safetensors"
        fit("fast-at", data, "digits_mlp", out, epochs=6, device="cpu", **more)
        found: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
        return found

    assert "ended" not in card("whole") and card("whole")["epoch"]["number"] == 6
    monkeypatch.setattr(Training, "_accuracy", collapse(3))
    stopped = card("stopped")
    assert stopped["epoch"]["number"] == 2 and stopped["epoch"]["guarded"] == 0.6
    assert stopped["ended"] == (
        "The guard ended the training after epoch 3 of 6: the accuracy under PGD-5 on training "
        "images fell by 50.0 points from its best. The weights are those of epoch 2."
    )
    chosen = card("chosen", held_out=20)
    assert chosen["epoch"]["number"] == 2
    assert chosen["ended"].endswith("those of epoch 2, the best on held-out images.")


def test_the_trainings_of_a_distillation_are_announced(data: Data, tmp_path: Path) -> None:
    out, told = tmp_path / "one.safetensors", list[tuple[str, str]]()

    def stage(role: str, file: Path) -> None:
        told.append((role, file.name))

    for _ in range(2):  # again when all is done
        fit("distilled", data, "digits_mlp", out, epochs=1, stage=stage)
    assert told == 2 * [("teacher", "one.teacher.safetensors"), ("student", "one.safetensors")]
    fit("natural", data, "digits_mlp", tmp_path / "two.safetensors", epochs=1, stage=stage)
    assert len(told) == 4


@pytest.mark.parametrize("changes", [{}, {"held_out": 40}])
def test_weights_of_a_collapse_are_never_kept_and_the_card_says_so(
    changes: dict[str, Any], data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collapsed network resists the single step of its training best of all."""
    measured: list[str] = []

    def scored(self, victim, some, attack):  # type: ignore[no-untyped-def]
        epoch = len(self.history) + 1
        measured.append(str(attack))
        if some is self.watched:
            return 0.9, 0.1 if epoch == 3 else 0.6
        return 0.9, 0.2 * epoch

    monkeypatch.setattr(Training, "_accuracy", scored)
    out = tmp_path / "net.safetensors"
    seen: list[Epoch] = []
    fit("fast-at", data, "digits_mlp", out, epochs=5, watch=seen.append, **changes)
    assert [epoch.number for epoch in seen] == [1, 2, 3]
    assert {text.partition(", ")[0] for text in measured} == {"pgd(steps=5"}, "not by one step"
    assert json.loads(out.with_suffix(".json").read_text())["epoch"]["number"] == 2
    two = load_model(f"digits_mlp:{out}").module
    monkeypatch.setattr(Training, "_accuracy", lambda *given: (0.9, 0.6))
    short, kept = fresh(besiege.models.ARCHITECTURES["digits_mlp"]), dict[str, Any]()
    plan = recipe("fast-at", "digits", epochs=5, **changes)
    train(short, data, plan, watch=_stop_after(short, 2, kept))
    assert all(torch.equal(v, kept[k]) for k, v in two.state_dict().items())


def _stop_after(model: nn.Module, epoch: int, kept: dict[str, Any]) -> Callable[[Epoch], None]:
    def watch(at: Epoch) -> None:
        if at.number == epoch:
            kept.update({k: v.clone() for k, v in model.state_dict().items()})

    return watch


def test_the_guard_counts_from_the_best_epoch_on_images_that_are_trained_on(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow fall is a collapse too: here never more than 15 points in one epoch."""

    def scored(self, victim, some, attack):  # type: ignore[no-untyped-def]
        if some is self.held:
            return 0.9, 0.5
        assert not bool(torch.isin(some.ids, self.held.ids).any())
        return 0.9, (0.6, 0.5, 0.35, 0.3)[len(self.history)]

    monkeypatch.setattr(Training, "_accuracy", scored)
    plan = recipe("fast-at(epochs=4, threat='linf:0.1', batch=50, held_out=40)")
    assert [epoch.guarded for epoch in train(net(), data, plan)] == [0.6, 0.5, 0.35]


def test_the_guard_measures_pgd_5_on_training_images(data: Data) -> None:
    plan = recipe("fast-at(epochs=2, threat='linf:0.1', batch=50)")
    model = net()
    seen: list[float] = []

    def watch(epoch: Epoch) -> None:
        some = data.subset(50, 0)
        attack = "pgd(steps=5, schedule=constant(0.25))"
        found = besiege.attack(
            attack, model, some.images, some.labels, ids=some.ids, threat="linf:0.1"
        ).verdicts
        assert epoch.guarded is not None
        seen.append(abs(epoch.guarded - float(found.robust.double().mean())))

    train(model, data, plan, watch=watch)
    assert len(seen) == 2 and max(seen) <= 0.04  # other random starts


EVERY = {
    "trades": "trades(threat='linf:0.1')",
    "mart": "mart(threat='linf:0.1', average=0.9)",
    "alp": "alp(threat='linf:0.1', held_out=20)",
    "free-at": "free-at(threat='linf:0.1', update=replay(m=2))",
    "awp": "awp(threat='linf:0.1')",
    "fast-at": "fast-at(threat='linf:0.1')",
    "nat": "nat@digits",
    "eat": str(EAT),
    "igr": "igr",
    "mmc": "mmc",
    "distilled": "natural(objective=distil('zoo:digits-natural'))",
    "deepdefense": "deepdefense",
}


@pytest.mark.parametrize("name", EVERY)
def test_an_interrupted_training_ends_with_the_same_bits(
    name: str, data: Data, tmp_path: Path
) -> None:
    plan = recipe(EVERY[name], epochs=3, batch=64)
    data = data.take(torch.arange(len(data)) < 150)

    def start() -> nn.Module:
        model = net()
        if name == "deepdefense":  # which fine-tunes
            train(model, data, replace(natural, epochs=8, rate=1e-2))
        return model

    whole, resumed = start(), start()
    history = train(whole, data, plan)

    def stop(done: int, steps: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(start(), data, plan, checkpoint=tmp_path / "c", tick=stop)
    assert train(resumed, data, plan, checkpoint=tmp_path / "c") == history
    assert same(whole, resumed)
    other = recipe(plan, objective="cross_entropy(smoothing=0.3)") if name != "eat" else natural
    if "trades" not in name:
        other = recipe(plan, rate=0.1)
    with pytest.raises(InputError, match="belongs to another training"):
        train(start(), data, other, checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("natural(objective=trades)", "compares clean with adversarial"),
        ("natural(sources=('zoo:digits-natural',))", "static sources are models to craft on"),
        ("natural(sources=3)", "names of models"),
        ("natural(layers=bits(depth=3))", None),
        ("natural(layers=(bits(depth=3), resize_pad))", None),
        ("natural(layers=bit(depth=3))", "did you mean 'bits'"),
        ("natural(radius=half)", "half_normal"),
        ("natural(crafting='test')", "'eval' or 'train'"),
        ("natural(drops=(0.5, 2))", "between 0 and 1"),
        ("eat", "eat@mnist"),
        ("trades(attack=None)", "both an attack and a threat"),
    ],
)
def test_what_a_slot_takes(text: str, said: str | None) -> None:
    if said is None:
        plan = recipe(text)
        assert recipe(str(plan)) == plan and plan.layers
        return
    with pytest.raises(besiege.BesiegeError, match=said):
        recipe(text)


def test_the_rate_drops() -> None:
    plan = recipe("natural(schedule='drops', drops=(0.5, 0.75), rate=1.0, optimiser='sgd')")
    assert [plan.rate_at(s, 100) for s in (0, 49, 50, 74, 75)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rse", "noise=(0.2, 0.1)"),
        ("rse@cifar10", "noise=(0.2, 0.1)"),
        ("denoise", "denoise='gaussian'"),
        ("deepdefense", "start from weights"),
    ],
)
def test_a_network_that_lacks_the_defense_is_refused(name: str, said: str, data: Data) -> None:
    def never(*at: Any) -> None:
        raise AssertionError("a batch was trained on")

    with pytest.raises(InputError, match=re.escape(said)):
        train(net(), data, recipe(name, held_out=0), tick=never)


def test_diversity_refuses_networks_before_the_first_batch(data: Data) -> None:
    def never(*at: Any) -> None:
        raise AssertionError("a batch was trained on")

    many = fresh(lambda: besiege.models.ARCHITECTURES["joint"](of="digits_mlp", members=10))
    for model, said in ((net(), "joint"), (many, "members=9")):
        with pytest.raises(InputError, match=said):
            train(model, data, "adp", tick=never)


@dataclass(frozen=True)
class Squeezed(Objective):
    weight: float = 0.1

    def __call__(self, step: Step) -> torch.Tensor:
        usual = nn.functional.cross_entropy(step.seen, step.y)
        return usual + self.weight * step.seen.square().mean()


def test_an_objective_of_ones_own_trains_and_needs_a_name_for_files(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = recipe("pgd-at", objective=Squeezed(3.0), epochs=1, threat="linf:0.1")
    small, usual = net(), net()
    train(small, data, plan)
    train(usual, data, replace(plan, objective=CrossEntropy()))
    assert not same(small, usual)
    for write in (
        lambda: train(net(), data, plan, checkpoint=tmp_path / "c"),
        lambda: fit(plan, data, "digits_mlp", tmp_path / "mine.safetensors"),
    ):
        with pytest.raises(InputError, match="register its parts"):
            write()
    assert not list(tmp_path.iterdir())
    OBJECTIVES.names()
    monkeypatch.setitem(OBJECTIVES._known, "squeezed", Squeezed)
    assert str(plan.objective) == "squeezed(weight=3.0)" and recipe(str(plan)) == plan
    assert fit(plan, data, "digits_mlp", tmp_path / "mine.safetensors").exists()


@pytest.mark.parametrize("text", ["fast-at(layers=jitter)", "pgd-at(layers=jitter, held_out=50)"])
def test_stochastic_models_are_measured_after_an_epoch(text: str, data: Data) -> None:
    history = train(net(), data, recipe(text, epochs=1, threat="linf:0.1"))
    assert history[0].guarded is not None or history[0].robust is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("natural(guard=0.1)", "give a threat"),
        ("pgd-at(attack=oblivious(pgd))", "leave out oblivious"),
        ("pgd-at(early=oblivious(fgsm), early_share=0.5)", "leave out oblivious"),
        ("free-at(objective=gradient_penalty)", "update=plain"),
    ],
)
def test_settings_without_effect_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        recipe(text)


def test_another_start_is_another_training(data: Data, tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    fit("natural", data, "digits_mlp", first, epochs=1)
    fit("natural", data, f"digits_mlp:{first}", second, epochs=1)
    fit("natural", data, "digits_mlp", first, epochs=1, seed=1, resume=False)
    with pytest.raises(besiege.BesiegeError, match="is not of this training"):
        fit("natural", data, f"digits_mlp:{first}", second, epochs=1)


def test_parts_of_ones_own_are_in_the_identity_of_a_training(data: Data) -> None:
    def identity(scale: float) -> dict[str, str]:
        @dataclass(frozen=True)
        class Scaled(Objective):
            def __call__(self, step: Step) -> torch.Tensor:
                return scale * nn.functional.cross_entropy(step.seen, step.y)

        return identify(net(), data, replace(natural, objective=Scaled()), 0)

    assert identity(1.0) != identity(100.0) and identity(1.0) == identity(1.0)


def test_attacks_of_ones_own_inside_others_are_in_the_identity_of_a_training(data: Data) -> None:
    def identity(share: float, inside: bool) -> dict[str, str]:
        @dataclass(frozen=True)
        class Mine(Attack):
            norms = frozenset({Linf})

            def run(self, siege: Siege) -> None:
                siege.offer(siege.ball.sample(siege.dice) * share)

        attack: Attack = Averaged(Mine(), 2) if inside else Mine()
        plan = replace(pgd_at, attack=attack, early=pgd_at.attack)
        return identify(net(), data, plan, 0)

    for inside in (False, True):
        assert identity(1.0, inside) != identity(0.5, inside)
        assert identity(1.0, inside) == identity(1.0, inside)
    # Shipped parts are in the text of the recipe, as before.
    assert "parts" not in identify(net(), data, replace(pgd_at, early=pgd_at.attack), 0)


def test_what_was_trained_before_keeps_its_identity(data: Data) -> None:
    """Pinned: with another one, kept weights would be trained again and checkpoints refused."""
    for plan, start in ((natural, "ddd016ef97243efe"), (pgd_at, "dc937b59892604f5")):
        assert identify(net(), data, plan, 0)["parts"].startswith(start)


def test_networks_inside_layers_are_in_the_identity_of_a_training(data: Data) -> None:
    class Reforms(BitDepth):
        inside = nn.Linear(2, 2)

        @property
        def parts(self) -> tuple[nn.Module]:
            return (self.inside,)

    plan = replace(natural, layers=(Reforms(3),))
    before = identify(net(), data, plan, 0)
    assert identify(net(), data, plan, 0) == before
    with torch.no_grad():
        Reforms.inside.weight.add_(1.0)
    assert identify(net(), data, plan, 0) != before


def test_attack_threat_and_model_are_checked_before_the_first_batch(data: Data) -> None:
    def never(*at: Any) -> None:
        raise AssertionError("a batch was trained on")

    for text, said in (
        ("pgd-at(threat='linf:0.1 targeted:given')", "write targeted:random"),
        ("pgd-at(threat='linf:0.1 targeted:class=12')", "choose one from 0 to 9"),
        ("pgd-at(attack=apgd, layers=jitter(radius=0.1))", r"write averaged\(apgd, 4\)"),
        ("pgd-at(attack=jsma, threat='linf:0.1')", "works in l0, but its threat is 'linf:0.1'"),
        ("pgd-at(attack=prgf, early=fgsm, early_share=0.5)", "needs a substitute"),
        ("pgd-at(attack=nes_labels, early=fgsm, early_share=0.5)", "the goals targeted"),
    ):
        with pytest.raises(InputError, match=said):
            train(net(), data, recipe(text), tick=never)
    with pytest.raises(InputError, match="the text of a model"):
        recipe("natural(objective=distil(3))")


def test_every_attack_fits_every_model_it_crafts_on_before_the_first_batch(
    data: Data, tmp_path: Path
) -> None:
    """A static model is drawn for some batch, and an attack comes after an early one."""

    def never(*at: Any) -> None:
        raise AssertionError("a batch was trained on")

    file = tmp_path / "made.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "class Blind(nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        with torch.no_grad():\n"
        "            return super().forward(x)\n"
        "def blind(): return Blind(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    coded = nn.Sequential(nn.Flatten(), nn.Linear(1024, 10))
    codes = "sends thermometer codes, but {} takes images"
    for model, text, said in (
        (
            net(),
            f"eat@digits(sources=('{file}:blind',))",
            "needs gradient access, and the static model .*:blind has",
        ),
        (coded, "thermometer(sources=('zoo:digits-natural',))", codes.format("zoo:digits-natural")),
        (net(), "pgd-at(attack=lspga, early=fgsm, early_share=0.5)", codes.format("Sequential")),
        (net(), "pgd-at(attack=beam, early=fgsm, early_share=0.5)", "rounds pixels"),
    ):
        with pytest.raises(besiege.BesiegeError, match=said):
            train(model, data, recipe(text, epochs=4), tick=never)
    scored = recipe(f"eat@digits(sources=('{file}:blind',), attack=square(steps=2), epochs=1)")
    train(net(), data.take(torch.arange(len(data)) < 20), scored)


def test_static_models_never_change_in_any_crafting_mode(data: Data, tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def static():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10))\n"
    )
    plan = replace(EAT, sources=(f"{file}:static",), crafting="train", epochs=1)
    work: list[Training] = []
    init = Training.__init__

    def kept(self: Training, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        work.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "__init__", kept)
        train(net(), data, plan)
    (source,) = work[0].sources
    module = cast(nn.Sequential, cast(Classifier, source).module)
    assert not any(part.training for part in module.modules())
    assert not any(p.requires_grad or p.grad is not None for p in module.parameters())
    assert cast(Tensor, module[0].running_mean).abs().sum() == 0, "statistics must stay"
