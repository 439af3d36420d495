"""The public `besiege.attack`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import besiege
from besiege.attacks import parse
from besiege.core.errors import (
    AttackError,
    InputError,
    ThreatError,
    UnknownNameError,
    VictimError,
)
from besiege.core.threat import Goal
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, images_of, module_of

SHAPE = (1, 5, 5)
IMAGES = images_of(SHAPE, 12)
NET = Linear(SHAPE, 4)
LABELS = NET(IMAGES).argmax(1)


def run(attack: Any = "pgd", model: Any = NET, **more: Any) -> besiege.AttackResult:
    given = {"images": IMAGES, "labels": LABELS, "threat": "linf:0.05", "steps": 8, **more}
    return besiege.attack(attack, model, given.pop("images"), given.pop("labels"), **given)


def test_a_result_is_what_the_judge_says() -> None:
    result = run()
    assert len(result) == 12 and 0 < int(result.success.sum()) < 12
    predicted = NET(result.images).argmax(1)
    assert torch.equal(result.success, predicted != LABELS)
    change = (result.images.double() - IMAGES.double()).abs().flatten(1).amax(1)
    assert (change <= 0.05 * (1 + 1e-6)).all()
    assert torch.allclose(result.distance[result.success], change[result.success], rtol=1e-6)
    assert torch.isinf(result.distance[~result.success]).all()
    assert torch.equal(result.verdicts.success, result.success)
    assert result.attack == parse("pgd(steps=8)") and str(result.threat) == "linf:0.05"
    assert result.warnings == () and result.seconds > 0


@pytest.mark.parametrize(
    "model",
    [NET, NET.module, Classifier(NET.module, mean=0.0, std=1.0)],
    ids=["victim", "module", "normalised"],
)
def test_models_come_in_many_forms(model: Any) -> None:
    assert torch.equal(run(model=model).success, run().success)


def test_ids_decide_the_draws_not_the_order() -> None:
    ids = torch.arange(12) * 7 + 3
    base = run(ids=ids, keep="last", leave="end")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    turned = run(
        images=IMAGES[order], labels=LABELS[order], ids=ids[order], keep="last", leave="end"
    )
    for name in ("images", "success", "distance", "queries", "first_step", "first_query"):
        assert torch.equal(getattr(turned, name), getattr(base, name)[order]), name
    assert not torch.equal(run(keep="last", leave="end").images, base.images)
    assert torch.equal(run(ids=ids, keep="last", leave="end", batch=8).images, base.images)


def test_parameters_and_texts_mean_the_same() -> None:
    by_name, by_text = (
        run("pgd", steps=5),
        besiege.attack("pgd(steps=5)", NET, IMAGES, LABELS, threat="linf:0.05"),
    )
    assert torch.equal(by_name.images, by_text.images) and by_name.attack == by_text.attack
    value = besiege.attack(parse("pgd(steps=5)"), NET, IMAGES, LABELS, threat="linf:0.05")
    assert torch.equal(value.images, by_text.images)


def test_given_targets_make_the_goal_targeted() -> None:
    targets = (LABELS + 1) % 4
    result = run(targets=targets, threat="linf:0.3")
    assert result.threat.goal is Goal.GIVEN
    hit = result.success
    assert hit.any() and (NET(result.images).argmax(1)[hit] == targets[hit]).all()


def test_the_smallest_change_is_kept_without_a_budget() -> None:
    result = besiege.attack("minimal(bim(steps=10, loss=margin))", NET, IMAGES, LABELS, threat="l2")
    assert result.success.all()
    best = NET.distance(result.threat.norm, IMAGES, LABELS)
    assert (result.distance.numpy() >= best * (1 - 1e-5)).all()


def test_a_result_prints_its_figures() -> None:
    result = run(threat="linf:0.05")
    text = repr(result)
    broken = int(result.success.sum())
    for part in (
        "pgd(steps=8) on linear, seed 0",
        "linf:0.05",
        f"{broken} of 12 images ({100 * broken / 12:.1f} %)",
        f"100.0 % clean, {100 * (12 - broken) / 12:.1f} % robust",
        "forwards",
        "median",
    ):
        assert part in text, part
    html = result._repr_html_()
    assert html.startswith("<table>") and html.endswith("</table>") and "linf:0.05" in html
    assert html.count("<tr>") == html.count("</tr>") == 5
    nothing = run(threat="linf:1e-6")
    assert "0 of 12 images" in repr(nothing) and "median" not in repr(nothing)
    large = run(threat="linf:8")
    assert "W28" in repr(large) and "W28" in large._repr_html_()


def test_html_is_escaped() -> None:
    result = besiege.attack("bim(aim='least-likely')", NET, IMAGES, LABELS, threat="linf:0.05")
    assert "aim='least-likely'" in repr(result)
    assert "aim=&#x27;least-likely&#x27;" in result._repr_html_()


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "attack": ({"attack": "pdg"}, UnknownNameError, "did you mean 'pgd'"),
    "parameter": ({"stps": 3}, AttackError, "did you mean 'steps'"),
    "step size": (
        {"alpha": 0.01},
        AttackError,
        r"write 'pgd\(steps=8, schedule=constant\(0\.2\)\)'",
    ),
    "budget": ({"eps": 0.01}, AttackError, "threat='linf:0.01'"),
    "value": ({"steps": -1}, AttackError, "whole number"),
    "threat": ({"threat": "lnf:0.1"}, ThreatError, "did you mean 'linf'"),
    "norm": ({"threat": "l0:3"}, ThreatError, "not in l0"),
    "box": ({"images": IMAGES * 255}, InputError, "box"),
    "bytes": ({"images": (IMAGES * 255).byte()}, InputError, "255"),
    "shape": ({"images": IMAGES[0]}, InputError, r"image\[None\]"),
    "nan": ({"images": IMAGES * torch.nan}, InputError, "NaN"),
    "labels": ({"labels": LABELS + 4}, InputError, "0 to 3"),
    "few labels": ({"labels": LABELS[:3]}, InputError, "one per image"),
    "float labels": ({"labels": LABELS.float()}, InputError, "long"),
    "targets": ({"targets": LABELS}, InputError, "label itself"),
    "ids": ({"ids": torch.zeros(12).long()}, InputError, "unique"),
    "empty": ({"images": IMAGES[:0], "labels": LABELS[:0]}, InputError, "empty"),
    "model": ({"model": 3}, InputError, "torch.nn.Module"),
    "keep": ({"keep": "biggest"}, AttackError, "keep"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_changes_nothing(name: str) -> None:
    given, error, said = BAD[name]
    module = module_of(SHAPE, 4).train()
    state = {k: v.clone() for k, v in module.state_dict().items()}
    images, labels, generator = IMAGES.clone(), LABELS.clone(), torch.get_rng_state()
    more = {"model": Classifier(module, classes=4), **given}
    with pytest.raises(error, match=said):
        run(**more)
    assert all(m.training for m in module.modules())
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert torch.equal(IMAGES, images) and torch.equal(LABELS, labels)
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_callers_tensors_are_not_the_results() -> None:
    images = IMAGES.clone().requires_grad_(True)
    result = run(images=images)
    result.images.zero_()
    assert torch.equal(images, IMAGES) and images.grad is None


def test_a_caller_in_inference_mode() -> None:
    with torch.inference_mode():
        inside = run(images=IMAGES * 1.0)
    assert torch.equal(inside.images, run().images)
    assert not inside.images.is_inference()


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    shown, silent = run(progress=True), run()
    assert torch.equal(shown.images, silent.images)
    assert capsys.readouterr().out == ""


def test_a_model_without_parameters_works() -> None:
    class Pixel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :3] * 5

    labels = Pixel()(IMAGES).argmax(1)
    result = run(model=Pixel(), labels=labels, threat="linf:0.3")
    assert result.success.any()


class Drunk(nn.Module):
    """Adds noise that nobody declared."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x)
        return logits + 0.3 * torch.randn_like(logits)


def test_chance_that_nobody_declared_is_noticed() -> None:
    net = Drunk()
    x = torch.rand(60, 1, 4, 4)
    y = net.inner(x).argmax(1)
    result = besiege.attack("pgd", net, x, y, threat="linf:0.02", steps=5)
    assert {"W14", "W17"} <= {warning.id for warning in result.warnings}


def test_a_model_that_knows_no_more_than_chance_is_noticed() -> None:
    x = torch.rand(40, 1, 4, 4)
    constant = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    nn.init.zeros_(next(constant.parameters()))
    result = besiege.attack("fgsm", constant, x, torch.arange(40) % 4, threat="linf:0.02")
    assert "W15" in {warning.id for warning in result.warnings}
    assert "25.0 % of the clean images" in repr(result)


class Detached(nn.Module):
    """Cuts the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(18, 3)), "permute"),
        (nn.Sequential(nn.Flatten(), nn.Linear(25, 4), Detached()), "differentiably"),
    ],
)
def test_what_goes_wrong_inside_the_model_is_told(net: nn.Module, said: str) -> None:
    # Rows that are wrong already are not attacked: these are right, whatever the weights.
    labels = net(IMAGES).argmax(1) if said == "differentiably" else LABELS
    with pytest.raises(VictimError, match=said):
        besiege.attack("fgsm", net, IMAGES, labels, threat="linf:0.1")


def test_two_goals_are_one_too_many() -> None:
    with pytest.raises(ThreatError, match="choose one"):
        run(threat="linf:0.1 targeted:random", targets=(LABELS + 1) % 4)


def test_what_is_crafted_on_a_substitute_is_judged_on_the_model() -> None:
    data = besiege.data.load("digits", count=40)
    victim, other = "zoo:digits-pgd-at", "zoo:digits-natural"
    found = besiege.attack(
        "mim", victim, data.images, data.labels, threat="linf:0.2", substitute=other
    )
    there = besiege.attack(
        "mim", other, data.images, data.labels, threat="linf:0.2", keep="last", leave="end"
    )
    assert torch.equal(found.images, there.images)
    answers = besiege.models.load(victim)(found.images).argmax(1)
    assert torch.equal(found.success, answers != data.labels)
    assert found.success.double().mean() < there.success.double().mean()
    assert not [finding for finding in found.warnings if finding.id == "W17"]
