"""Accuracy against steps, queries and passes, as ends that bands take."""

from __future__ import annotations

import numpy as np
import pytest

from besiege.core.errors import InputError
from besiege.metrics.bands import accuracy_bands, share_bands
from besiege.metrics.strength import broken_at, left_after, per_value


def test_every_way_to_break_has_its_end() -> None:
    first = [0, 7, -1, -1, -1, 4]
    success = [True, True, True, False, False, False]
    left = [False, False, False, False, True, True]
    found = broken_at(first, success, left, last=20)
    assert found.tolist() == [0, 7, 20, 0, np.inf, np.inf]
    assert broken_at(first, success, left)[2] == 7, "the run lasted at least until its last success"


def test_accuracy_against_steps_is_that_of_a_few_lines() -> None:
    """Two attacks on three images; the second image is misclassified when clean."""
    first = np.array([[2, -1, -1], [5, -1, 1]])
    success = first >= 0
    left = np.array([[False, False, True], [False, False, False]])
    found = accuracy_bands(broken_at(first, success, left), [0, 1, 2, 5])
    assert found.value == pytest.approx(
        np.array([[2 / 3, 2 / 3, 1 / 3, 1 / 3], [2 / 3, 1 / 3, 1 / 3, 0]])
    )


def test_accuracy_against_passes_is_that_of_a_few_lines() -> None:
    descent = np.array([[np.inf, 0.5, 0.2], [0.3, 0.3, 0.1], [0.0, 0.0, 0.0], [np.inf] * 3])
    held = left_after(descent, 0.25)
    found = share_bands(held, [10, 20, 50])
    assert found.value.tolist() == [(descent[:, mark] > 0.25).mean() for mark in range(3)]
    assert left_after(np.stack([descent] * 5), 0.25).shape == (5, 3, 4)
    with pytest.raises(InputError, match="images, marks"):
        left_after([0.1, 0.2], 0.1)


@pytest.mark.parametrize(("norm", "factor"), [("l2", 12), ("linf", 1), ("l1", 144), ("l0", 144)])
def test_distances_compare_between_sizes(norm: str, factor: float) -> None:
    """A perturbation of the same size in every pixel value has one size for all images."""
    assert per_value([factor * 0.5, np.inf], norm, 144).tolist() == [0.5, np.inf]
    with pytest.raises(InputError, match="at least one"):
        per_value([0.1], norm, 0)
