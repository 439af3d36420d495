"""Victims that may reject images: how attacks see them, and how the judge does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.answer import Aim
from besiege.core.criterion import accepted
from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.oracle import Oracle
from besiege.core.refusal import folded
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.evaluation.judging import judge, predict_clean
from besiege.evaluation.verdicts import Claims

SIZE, ROWS = 20, 16


class Guarded(Victim):
    """A linear classifier of two classes, and a linear score above 0 rejects."""

    classes = 2
    rejects = True

    def __init__(self, slope: Tensor, bias: float, score: Tensor, threshold: float) -> None:
        self.net, self.score = nn.Linear(SIZE, 2), nn.Linear(SIZE, 1)
        with torch.no_grad():
            self.net.weight.copy_(torch.stack([slope, torch.zeros(SIZE)]))
            self.net.bias.copy_(torch.tensor([bias, 0.0]))
            self.score.weight.copy_(score[None])
            self.score.bias.fill_(-threshold)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return self.net, self.score

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits = self.net(x.flatten(1))
        return torch.cat([logits, logits.amax(1, keepdim=True) + self.score(x.flatten(1))], 1)


class Bare(Guarded):
    """The same without its detector."""

    rejects = False

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return super().__call__(x)[:, :2]


def problem() -> tuple[Any, ...]:
    """Images of class 0, slope and bias of the classifier, slope and threshold of the score.

    The score rises towards the other class, so that the nearest misclassified image is rejected.
    """
    generator = torch.Generator().manual_seed(0)
    slope = torch.randn(SIZE, generator=generator)
    score = -0.7 * slope + 0.8 * torch.randn(SIZE, generator=generator)
    x = 0.4 + 0.2 * torch.rand(ROWS, 1, 1, SIZE, generator=generator)
    bias = 0.3 - float((x.flatten(1) @ slope).min())
    return x, slope, bias, score, float((x.flatten(1) @ score).max()) + 0.02


def smallest(
    x: Tensor, slope: Tensor, bias: float, score: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """The l2 distance to the nearest misclassified image, and to the nearest accepted one of these.

    The projection onto one half-space, and where that is rejected, onto the corner of two.
    """
    flat, a, s = x.flatten(1).double(), slope.double(), score.double()
    margin, slack = flat @ a + bias, threshold - flat @ s
    alone = -margin[:, None] * a / (a @ a)
    both = torch.stack([a, s])
    wanted = torch.stack([-margin, slack])
    corner = (both.T @ torch.linalg.solve(both @ both.T, wanted)).T
    passed = ((flat + alone) @ s <= threshold)[:, None]
    return alone.norm(dim=1), torch.where(passed, alone, corner).norm(dim=1)


def labels() -> Tensor:
    return torch.zeros(ROWS, dtype=torch.int64)


def test_folding_takes_the_larger_of_label_and_rejection_and_passes_gradients() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 0.0]], requires_grad=True)
    seen = folded(logits, torch.tensor([0, 0]))
    assert torch.equal(seen, torch.tensor([[3.0, 2.0], [1.0, 2.0]]))
    (gradient,) = torch.autograd.grad(seen[:, 0].sum(), logits)
    assert torch.equal(gradient, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("attack", ["superdeepfool", "minimal(pgd(steps=40))"])
def test_the_smallest_joint_perturbation_is_the_closed_form(attack: str) -> None:
    x, *parts = problem()
    alone, jointly = smallest(x, *parts)
    assert (jointly > 1.2 * alone).any(), "the detector must matter"
    found = besiege.attack(attack, Guarded(*parts), x, labels(), threat="l2")
    assert bool(found.success.all())
    assert (found.distance <= 1.01 * jointly).all()
    assert (found.distance >= jointly * (1 - 1e-4)).all()


@pytest.mark.parametrize(
    "attack", ["pgd(loss=margin)", "apgd", "apgdt", "fab", "square", "hopskipjump", "cw", "nes"]
)
def test_every_kind_of_attack_claims_only_accepted_errors(attack: str) -> None:
    x, *parts = problem()
    victim = Guarded(*parts)
    found = besiege.attack(attack, victim, x, labels(), threat="l2:1.5")
    assert bool(found.success.any())
    answers = victim(found.images[found.success]).argmax(1)
    assert bool((answers == 1).all())


def test_a_detector_that_rejects_everything_leaves_no_success() -> None:
    x, slope, bias, score, _ = problem()
    never = Guarded(slope, bias, 0 * score, -1.0)
    for attack in ("pgd", "square", "hopskipjump"):
        found = besiege.attack(attack, never, x, labels(), threat="l2:10")
        assert not bool(found.success.any())


@pytest.mark.parametrize("attack", ["pgd", "apgdt", "fab", "square", "hopskipjump", "deepfool"])
def test_a_detector_that_accepts_everything_changes_no_bit(attack: str) -> None:
    x, slope, bias, score, _ = problem()
    always, bare = (kind(slope, bias, score, 1e30) for kind in (Guarded, Bare))
    ours = besiege.attack(attack, always, x, labels(), threat="l2:0.4")
    theirs = besiege.attack(attack, bare, x, labels(), threat="l2:0.4")
    assert torch.equal(ours.images, theirs.images)
    assert torch.equal(ours.success, theirs.success)
    assert torch.equal(ours.queries, theirs.queries)


def test_targets_and_candidates_are_folded_too() -> None:
    x, *parts = problem()
    victim = Guarded(*parts)
    goals = torch.ones(ROWS, dtype=torch.int64)
    threat = "l2:1.5 targeted:given"
    found = besiege.attack("apgd", victim, x, labels(), threat=threat, targets=goals)
    assert bool(found.success.any())
    assert bool((victim(found.images[found.success]).argmax(1) == 1).all())


def test_a_loss_that_is_unfolded_sees_every_column() -> None:
    x, *parts = problem()

    class Suspicion:
        unfolded = True

        def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
            assert logits.shape[1] == 3
            return -logits[:, -1]

    gradient, _, logits = Oracle(Guarded(*parts)).gradient(x, Suspicion(), Aim(labels()))
    assert logits.shape == (ROWS, 2)
    assert bool((gradient != 0).any())


def test_the_judge_tells_right_wrong_and_rejected_apart() -> None:
    x, slope, bias, score, threshold = problem()
    victim = Guarded(slope, bias, score, threshold)
    samples = Samples.of(x, labels())
    across = (x.flatten(1) - 0.5 * slope / slope.norm()).view_as(x).clamp(0, 1)  # misclassified
    verdicts = judge(victim, Claims(across, labels().bool(), None), samples, Threat.parse("l2:10"))
    answers = victim(across)
    rejected = answers[:, 2] > answers[:, :2].amax(1)
    wrong = answers[:, :2].argmax(1) == 1
    assert bool((rejected & wrong).any())
    assert torch.equal(verdicts.rejection.rejected, rejected)
    assert torch.equal(verdicts.success, wrong & ~rejected)
    assert torch.equal(verdicts.prediction, answers[:, :2].argmax(1))
    lead = (answers[:, 2] - answers[:, :2].amax(1)).double()
    assert torch.allclose(verdicts.rejection.suspicion, lead, atol=1e-6)


def test_a_clean_image_that_is_rejected_is_not_correct() -> None:
    x, slope, bias, score, _ = problem()
    low = float((x.flatten(1) @ score).median())
    clean = predict_clean(Guarded(slope, bias, score, low), Samples.of(x, labels()))
    assert bool(clean.rejection.rejected.any())
    assert torch.equal(clean.correct, ~clean.rejection.rejected)
    assert clean.classes == 2
    assert clean.logits is not None and clean.logits.shape == (ROWS, 2)
    assert (
        not predict_clean(Bare(slope, bias, score, low), Samples.of(x, labels())).rejection[0].any()
    )


def test_one_column_too_many_names_rejects() -> None:
    x, *parts = problem()

    class Silent(Guarded):
        rejects = False

    with pytest.raises(VictimError, match="rejects = True"):
        Oracle(Silent(*parts)).logits(x)


def test_one_column_too_few_is_refused() -> None:
    x, *parts = problem()

    class Short(Guarded):
        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            return super().__call__(x)[:, :2]

    with pytest.raises(VictimError, match="3 are expected"):
        Oracle(Short(*parts)).logits(x)


def test_a_tie_with_the_rejection_is_accepted() -> None:
    answers = torch.tensor([[1.0, 2.0, 2.0], [1.0, 2.0, 2.1]]).argmax(1)
    assert accepted(answers, 2).tolist() == [True, False]
