"""What counts as correct and as success."""

from __future__ import annotations

import torch

from besiege.core import criterion

LABELS, TRUTH = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 0, 2, 2])


def test_untargeted_success_is_any_wrong_class() -> None:
    assert criterion.reached(LABELS, TRUTH, None).tolist() == [False, True, False, True]
    assert torch.equal(criterion.reached(LABELS, TRUTH, None), ~criterion.correct(LABELS, TRUTH))


def test_targeted_success_is_the_target_alone() -> None:
    targets = torch.tensor([1, 1, 1, 0])
    assert criterion.reached(LABELS, TRUTH, targets).tolist() == [False, True, False, False]


def test_samples_say_whose_labels_they_are() -> None:
    samples = torch.tensor([3, 3, 0])
    labels = torch.tensor([2, 1, 0])
    assert criterion.reached(labels, TRUTH, None, samples).tolist() == [False, True, False]
    assert criterion.reached(labels, TRUTH, LABELS, samples).tolist() == [False, True, True]


def test_a_tie_is_no_defense() -> None:
    share = torch.tensor([0.4, 0.5, 0.6])
    assert criterion.mostly_correct(share).tolist() == [False, False, True]
    assert criterion.mostly_reached(share).tolist() == [False, True, True]
