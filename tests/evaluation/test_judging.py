"""The judge believes nobody: planted lies are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.victims import Noisy, affine, normal
from torch import Tensor

import besiege
from besiege.core.dice import Dice
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Access, Linf, Threat
from besiege.evaluation import Crafted, judge
from besiege.evaluation.judging import predict_clean
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, images_of

# One pixel decides: above 0.5 it is class 1.
STEP = affine(torch.tensor([[-4.0, 0, 0, 0], [4.0, 0, 0, 0]]), torch.tensor([2.0, -2.0]))
THREAT = Threat.parse("linf:0.2")


def dots(*values: float) -> Tensor:
    x = torch.full((len(values), 1, 2, 2), 0.5)
    x[:, 0, 0, 0] = torch.tensor(values)
    return x


def claimed(images: Tensor, targets: Tensor | None = None) -> Crafted:
    """What somebody says is a success, at no distance and no cost."""
    n = len(images)
    zero = torch.zeros(n, dtype=torch.int64)
    return Crafted(
        images,
        torch.ones(n, dtype=torch.bool),
        torch.zeros(n, dtype=torch.float64),
        zero,
        zero,
        zero,
        zero,
        zero,
        targets,
        zero.bool(),
        None,
        0,
        0.0,
        (),
    )


def test_lies_are_caught() -> None:
    samples = Samples.of(dots(*[0.4] * 8), torch.zeros(8).long())
    images = dots(0.55, 0.45, 0.7, 0.55, 0.55, 0.55, 0.6, 0.4)
    images[3, 0, 1, 1] = 1.2  # out of the box
    images[4, 0, 1, 1] = torch.nan
    images[5, 0, 1, 1] = -torch.inf
    images[6, 0, 1, 1] = 0.7 + 1e-5  # just over the budget
    verdicts = judge(STEP, claimed(images), samples, THREAT)
    assert verdicts.success.tolist() == [True] + [False] * 7
    assert verdicts.valid.tolist() == [True, True, True, False, False, False, True, True]
    assert verdicts.within.tolist()[:3] == [True, True, False] and not verdicts.within[6]
    assert verdicts.reached.tolist()[:3] == [True, False, True]
    assert verdicts.correct.all() and verdicts.robust.tolist() == [False] + [True] * 7
    # Every image, every clean image, and these once more to see whether the answers hold.
    assert verdicts.forwards == 24
    assert [f.id for f in verdicts.findings] == ["W17"]


def test_the_tolerance_is_a_millionth() -> None:
    centre = torch.full((4, 1, 1, 1), 0.25, dtype=torch.float32)
    images = centre + torch.tensor([0.25, 0.25, 0.25, 0.25]).view(4, 1, 1, 1)
    victim = affine(torch.tensor([[-4.0], [4.0]]), torch.tensor([1.6, -1.6]))
    samples = Samples.of(centre, torch.zeros(4).long())
    for factor, within in ((1.0, True), (1 - 5e-7, True), (1 - 2e-6, False)):
        threat = Threat(Linf, 0.25 * factor)
        verdicts = judge(victim, claimed(images), samples, threat)
        assert verdicts.within.tolist() == [within] * 4


def test_every_norm_is_measured_in_float64() -> None:
    samples = Samples.of(images_of((3, 8, 8), 6), torch.zeros(6).long())
    images = (samples.images + 0.05 * normal(6, 3, 8, 8)).clamp(0, 1)
    images[:, :, 0] = samples.images[:, :, 0]
    verdicts = judge(Linear((3, 8, 8), 3), claimed(images), samples, Threat.parse("l2:0.3"))
    change = (images - samples.images).double().flatten(1).numpy()
    for norm, order in ((Linf, np.inf), (L2, 2), (L1, 1), (L0, 0)):
        sizes = [np.linalg.norm(d, order) for d in change]
        assert verdicts.distance[norm].dtype == torch.float64
        assert verdicts.distance[norm].numpy() == pytest.approx(sizes, rel=1e-9)


def test_predictions_and_confidences_are_the_victims() -> None:
    victim = Linear((1, 4, 4), 5)
    samples = Samples.of(images_of((1, 4, 4), 9), torch.arange(9) % 5)
    images = (samples.images + 0.1).clamp(0, 1)
    verdicts = judge(victim, claimed(images), samples, Threat.parse("linf:0.2"))
    probabilities = victim(images).double().softmax(1)
    assert torch.equal(verdicts.prediction, probabilities.argmax(1))
    assert verdicts.certainty.confidence.numpy() == pytest.approx(
        probabilities.amax(1).detach().numpy()
    )
    ranked = probabilities.sort(1, descending=True).values.detach()
    label = probabilities.detach()[torch.arange(9), samples.labels]
    entropy = -(ranked * ranked.log()).sum(1)
    assert verdicts.certainty.p_label.numpy() == pytest.approx(label.numpy())
    assert verdicts.certainty.p_second.numpy() == pytest.approx(ranked[:, 1].numpy())
    assert verdicts.certainty.entropy.numpy() == pytest.approx(entropy.numpy())
    assert torch.equal(verdicts.correct, victim(samples.images).argmax(1) == samples.labels)
    assert torch.equal(verdicts.reached, probabilities.argmax(1) != samples.labels)
    assert torch.equal(verdicts.share, verdicts.reached.double())


def test_where_classes_are_all_there_is_nobody_is_confident() -> None:
    victim = Linear((1, 4, 4), 5)
    victim.access = Access.DECISION
    samples = Samples.of(images_of((1, 4, 4), 9), torch.arange(9) % 5)
    verdicts = judge(victim, claimed(samples.images), samples, THREAT)
    sight = predict_clean(victim, samples)
    for certainty in (verdicts.certainty, sight.certainty):
        assert all(bool(part.isnan().all()) for part in certainty)
    assert torch.equal(verdicts.prediction, victim(samples.images).argmax(1))
    assert torch.equal(sight.prediction, verdicts.prediction)


def test_targets_must_be_reached_not_only_errors() -> None:
    victim = affine(torch.eye(3, 4) * 8, torch.zeros(3))
    x = torch.tensor([0.6, 0.5, 0.4, 0.0]).view(1, 1, 2, 2).repeat(2, 1, 1, 1)
    samples = Samples.of(x, torch.zeros(2).long(), targets=torch.tensor([2, 2]))
    error = torch.tensor([0.5, 0.6, 0.4, 0.0]).view(1, 1, 2, 2)
    target = torch.tensor([0.5, 0.45, 0.55, 0.0]).view(1, 1, 2, 2)
    # What the attack says its targets were is not asked.
    crafted = claimed(torch.cat([error, target]), torch.tensor([1, 1]))
    verdicts = judge(victim, crafted, samples, Threat.parse("linf:0.2 targeted:given"))
    assert verdicts.success.tolist() == [False, True]
    assert judge(victim, replace(crafted, targets=None), samples, THREAT).success.all()


def test_without_a_budget_only_the_box_limits() -> None:
    samples = Samples.of(dots(0.1, 0.1), torch.zeros(2).long())
    verdicts = judge(STEP, claimed(dots(1.0, 1.5)), samples, Threat.parse("linf"))
    assert verdicts.success.tolist() == [True, False]


def test_a_wrong_clean_image_is_not_robust() -> None:
    samples = Samples.of(dots(0.6, 0.4), torch.zeros(2).long())
    verdicts = judge(STEP, claimed(samples.images), samples, THREAT)
    assert verdicts.correct.tolist() == [False, True]
    assert verdicts.robust.tolist() == [False, True]
    # Its broken image is no success either, although the clean one would be.
    broken = judge(STEP, claimed(dots(torch.nan, torch.nan)), samples, THREAT)
    assert broken.success.tolist() == [False, False]
    assert broken.robust.tolist() == [False, True]


def test_invalid_images_are_never_shown_to_the_victim() -> None:
    class Strict(Classifier):
        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            assert torch.isfinite(x).all() and x.min() >= 0 and x.max() <= 1
            return super().__call__(x, dice)

    strict = Strict(STEP.module, classes=2)
    images = dots(torch.nan, 7.0, 0.55)
    samples = Samples.of(dots(0.4, 0.4, 0.4), torch.zeros(3).long())
    assert judge(strict, claimed(images), samples, THREAT).success.tolist() == [False, False, True]


def test_a_grid_counts_in_whole_steps() -> None:
    victim = Classifier(STEP.module, classes=2, grid=1 / 255)
    clean = dots(*[120 / 255] * 2)
    clean = (clean * 255).round() / 255
    samples = Samples.of(clean, torch.zeros(2).long())
    images = clean.clone()
    images[:, 0, 0, 0] = torch.tensor([128 / 255, 129 / 255])
    verdicts = judge(victim, claimed(images), samples, Threat.parse("linf:8/255"))
    assert verdicts.within.tolist() == [True, False]


def test_a_stochastic_victim_is_asked_many_times() -> None:
    noisy = Noisy(STEP, 0.1)
    counting = Counting(noisy)
    samples = Samples.of(dots(0.1, 0.4, 0.4), torch.zeros(3).long())
    images = dots(0.15, 0.5, 0.6)
    verdicts = judge(counting, claimed(images), samples, THREAT, draws=40)
    assert verdicts.share[0] == 0 and 0.2 < verdicts.share[1] < 0.8 and verdicts.share[2] > 0.6
    assert verdicts.success.tolist()[0] is False and verdicts.success.tolist()[2] is True
    assert verdicts.forwards == 2 * 40 * 3
    again = judge(noisy, claimed(images), samples, THREAT, draws=40)
    other = judge(noisy, claimed(images), samples, THREAT, draws=40, seed=1)
    assert torch.equal(again.share, verdicts.share)
    assert not torch.equal(other.share, verdicts.share)
    reverse = torch.tensor([2, 1, 0])
    turned = judge(noisy, claimed(images[reverse]), samples.at(reverse), THREAT, draws=40)
    assert torch.equal(turned.share, verdicts.share[reverse])


def test_the_victim_is_as_it_was() -> None:
    victim = Linear((1, 4, 4), 3)
    victim.module.train()
    samples = Samples.of(images_of((1, 4, 4), 3), torch.zeros(3).long())
    images = samples.images.clone()
    with torch.inference_mode():
        verdicts = judge(victim, claimed(images), samples, THREAT)
    assert all(m.training for m in victim.module.modules())
    assert all(p.requires_grad for p in victim.module.parameters())
    assert torch.equal(images, samples.images) and not verdicts.success.is_inference()


def turning(after: int) -> Callable[[Any], Any]:
    """Scores of `STEP`, and the opposite from so many calls on: undeclared chance."""
    calls = [0]

    def scores(x: Any) -> Any:
        calls[0] += 1
        found = STEP(torch.from_numpy(x)).detach().numpy()
        return found if calls[0] <= after else found[:, ::-1].copy()

    return scores


def test_the_ledger_is_no_witness(tmp_path: Path) -> None:
    """A success that is not confirmed afresh does not count, and the ledger is left alone then."""
    samples = Samples.of(dots(0.4, 0.41), torch.zeros(2).long())
    images = dots(0.55, 0.45)
    for after, holds in ((99, True), (2, False)):
        model = besiege.function_model(turning(after), classes=2, ledger=tmp_path / f"{after}")
        model(samples.images)
        model(images)
        verdicts = judge(model, claimed(images), samples, THREAT)
        assert verdicts.success.tolist() == [holds, False]
        assert verdicts.prediction[0] == int(holds)
        assert ("W14" in {f.id for f in verdicts.findings}) is not holds
        assert model.ledger is not None and model.ledger.distrusted is not holds
        # The two clean images again, and the one success.
        assert model.sent == 4 + 2 + 1 and verdicts.forwards == 4 + 2 + 1


def test_clean_images_are_repeated_afresh(tmp_path: Path) -> None:
    samples = Samples.of(dots(0.4, 0.41), torch.zeros(2).long())
    model = besiege.function_model(turning(1), classes=2, ledger=tmp_path / "l")
    assert "W14" in {f.id for f in predict_clean(model, samples).findings}
    assert model.ledger is not None and model.ledger.distrusted and model.sent == 4


def test_other_company_is_no_chance(tmp_path: Path) -> None:
    def scores(x: Any) -> Any:
        found = STEP(torch.from_numpy(x)).detach().numpy()
        return found * (1.01 if len(x) > 1 else 1.0)

    samples = Samples.of(dots(0.4, 0.41), torch.zeros(2).long())
    model = besiege.function_model(scores, classes=2, ledger=tmp_path / "l")
    model(samples.images[:1])
    model(samples.images[1:])
    assert "W14" not in {f.id for f in predict_clean(model, samples).findings}
    assert model.ledger is not None and not model.ledger.distrusted


def test_the_place_of_the_target_class() -> None:
    """1 for the predicted class; of equal scores the first class leads, as it does for argmax."""
    victim = affine(torch.eye(4), torch.zeros(4))
    images = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.4, 0.4, 0.2, 0.4], [0.1, 0.1, 0.1, 0.9]])
    samples = Samples.of(images.view(3, 1, 1, 4), torch.tensor([0, 0, 3]))
    targets = torch.tensor([2, 3, 1])
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    crafted = besiege.evaluation.verdicts.Claims(
        samples.images, torch.zeros(3, dtype=torch.bool), targets
    )
    found = judge(victim, crafted, aimed, Threat.parse("linf:0.1 targeted:given"))
    assert found.rank is not None and found.rank.tolist() == [3, 3, 3]
    assert torch.equal(found.rank == 1, found.reached)
    assert judge(victim, crafted, samples, Threat.parse("linf:0.1")).rank is None
    victim.access = Access.DECISION
    hidden = judge(victim, crafted, aimed, Threat.parse("linf:0.1 targeted:given decision"))
    assert hidden.rank is None
