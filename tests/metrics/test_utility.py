"""The utility figures of two models: identities, closed cases, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from besiege.core.errors import ComparisonError, InputError
from besiege.metrics import utility as module
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.paired import paired_interval
from besiege.metrics.rows import Rows
from besiege.metrics.utility import CleanAnswers, Utility, utility

Array = np.ndarray[Any, Any]


def answers(logits: Array, labels: Array, samples: Array | None = None) -> CleanAnswers:
    """The answers of a model with these logits."""
    ids = np.arange(len(labels)) if samples is None else samples
    rows = {"sample": ids, "label": labels, "correct": logits.argmax(1) == labels}
    return CleanAnswers(Rows(rows), logits.astype(np.float32))


def drawn(seed: int, count: int = 200, classes: int = 5) -> tuple[Array, Array, Array]:
    """The logits of two models that are often right, and the labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    first, second = generator.normal(size=(2, count, classes)) * generator.uniform(0.3, 3)
    for one in (first, second):
        one[np.arange(count), labels] += 1.5
    return first.astype(np.float32), second.astype(np.float32), labels


def by_hand(first: Array, second: Array, labels: Array) -> tuple[float, float]:
    """CCV and COS image by image, in plain Python."""
    changes, divergences = [], []
    for one, other, label in zip(first.tolist(), second.tolist(), labels.tolist(), strict=True):
        if max(one) != one[label] or max(other) != other[label]:
            continue
        p = [math.exp(z) / sum(map(math.exp, one)) for z in one]
        q = [math.exp(z) / sum(map(math.exp, other)) for z in other]
        m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        changes.append(abs(p[label] - q[label]))
        halves = [
            a * math.log(a / c) + b * math.log(b / c) for a, b, c in zip(p, q, m, strict=True)
        ]
        divergences.append(sum(halves) / 2)
    return sum(changes) / len(changes), sum(divergences) / len(divergences)


def means(found: Utility) -> tuple[float, float]:
    assert found.ccv is not None and found.cos is not None
    return found.ccv.value, found.cos.value


@pytest.mark.parametrize("seed", range(20))
def test_the_gain_of_accuracy_is_what_is_rectified_less_what_is_sacrificed(seed: int) -> None:
    first, second, labels = drawn(seed, count=37 + 11 * seed)
    found = utility(answers(first, labels), answers(second, labels))
    right = (first.argmax(1) == labels), (second.argmax(1) == labels)
    count = len(labels)
    gain = Fraction(found.crr.hits, count) - Fraction(found.csr.hits, count)
    assert gain == Fraction(int(right[1].sum()) - int(right[0].sum()), count)
    assert gain == Fraction(found.cav.only_first - found.cav.only_second, count)
    assert found.cav.value == float(gain)
    assert found.cav.count == found.crr.count == found.csr.count == count
    assert found.crr.hits == (right[1] & ~right[0]).sum()
    assert found.csr.hits == (right[0] & ~right[1]).sum()
    assert (found.cav.low, found.cav.high) == paired_interval(found.crr.hits, found.csr.hits, count)
    assert (found.crr.low, found.crr.high) == clopper_pearson(found.crr.hits, count)
    assert (found.csr.low, found.csr.high) == clopper_pearson(found.csr.hits, count)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_confidence_and_divergence_are_those_of_a_short_script(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    first, second, labels = drawn(seed)
    found = utility(answers(first, labels), answers(second, labels))
    assert means(found) == pytest.approx(by_hand(first, second, labels), rel=1e-9)
    both = int(((first.argmax(1) == labels) & (second.argmax(1) == labels)).sum())
    for mean in (found.ccv, found.cos):
        assert mean is not None and mean.low < mean.value < mean.high
        assert mean.count == both < len(labels)
    assert found.lacking == {}


def test_the_intervals_of_the_means_shrink_with_the_images() -> None:
    first, second, labels = drawn(0)
    few = utility(answers(first, labels), answers(second, labels))
    first, second, labels = np.tile(first, (16, 1)), np.tile(second, (16, 1)), np.tile(labels, 16)
    many = utility(answers(first, labels), answers(second, labels))
    for name in ("ccv", "cos"):
        widths = [getattr(one, name).high - getattr(one, name).low for one in (few, many)]
        assert widths[0] / widths[1] == pytest.approx(4, rel=0.25), name


def test_a_model_against_itself() -> None:
    first, _, labels = drawn(3)
    found = utility(answers(first, labels), answers(first, labels))
    assert (found.cav.value, found.crr.value, found.csr.value, *means(found)) == (0,) * 5
    assert found.cav.low < 0 < found.cav.high and found.crr.high > 0
    assert found.ccv is not None and found.cos is not None
    bound = clopper_pearson(0, found.ccv.count)[1]  # other images may differ
    assert (found.ccv.low, found.ccv.high) == pytest.approx((0, bound))
    assert (found.cos.low, found.cos.high) == pytest.approx((0, bound * math.log(2)))


def test_the_other_way_round() -> None:
    first, second, labels = drawn(4)
    one, other = answers(first, labels), answers(second, labels)
    there, back = utility(one, other), utility(other, one)
    assert there.cav.value == -back.cav.value != 0
    assert (there.crr, there.csr) == (back.csr, back.crr)
    assert (there.ccv, there.cos) == (back.ccv, back.cos)


def test_a_shifted_answer_is_never_right() -> None:
    labels = np.arange(30) % 3
    logits = np.eye(3)[labels] * 4
    found = utility(answers(logits, labels), answers(np.roll(logits, 1, 1), labels))
    assert (found.cav.value, found.crr.value, found.csr.value) == (-1, 0, 1)
    assert found.ccv is None and found.cos is None
    assert found.lacking["ccv"] == found.lacking["cos"]
    assert "classify no image correctly both" in found.lacking["cos"][0]


def test_wrong_classes_that_are_swapped_change_the_output_and_not_the_confidence() -> None:
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.6, 0.1, 0.3])
    labels = np.zeros(10, np.int64)
    one, other = (np.log(np.tile(each, (10, 1))) for each in (p, q))
    found = utility(answers(one, labels), answers(other, labels))
    assert means(found) == pytest.approx((0, 0.3 * math.log(1.5) + 0.1 * math.log(0.5)), abs=1e-7)


def test_two_classes_in_closed_form() -> None:
    labels = np.ones(8, np.int64)
    one, other = (np.log(np.tile([1 - p, p], (8, 1))) for p in (0.9, 0.6))
    found = utility(answers(one, labels), answers(other, labels))

    def entropy(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    divergence = entropy(0.75) - (entropy(0.9) + entropy(0.6)) / 2
    assert means(found) == pytest.approx((0.3, divergence), abs=1e-6)


def test_scores_of_any_size_and_minus_infinity() -> None:
    labels = np.zeros(4, np.int64)
    sure = np.tile([1e4, 0.0, -np.inf], (4, 1))
    even = np.tile([0.0, -np.inf, -1e-3], (4, 1))
    ccv, cos = means(utility(answers(sure, labels), answers(even, labels)))
    assert ccv == pytest.approx(1 - 1 / (1 + math.exp(-1e-3)))
    assert 0 < cos < math.log(2)


# Samples.


def test_the_order_of_the_images_does_not_matter() -> None:
    first, second, labels = drawn(5)
    mixed = np.random.default_rng(0).permutation(len(labels))
    usual = utility(answers(first, labels), answers(second, labels))
    for one in (np.arange(len(labels)), mixed):
        base = answers(first[one], labels[one], one)
        assert utility(base, answers(second[mixed], labels[mixed], mixed)) == usual


def test_other_samples_and_labels_are_refused() -> None:
    first, second, labels = drawn(6)
    ids = np.arange(len(labels))
    base = answers(first, labels)
    with pytest.raises(ComparisonError, match="A and B answered other samples"):
        utility(base, answers(second, labels, ids + 1), names=("A", "B"))
    with pytest.raises(ComparisonError, match="answered other samples"):
        utility(base, answers(second[1:], labels[1:], ids[1:]))
    with pytest.raises(ComparisonError, match="have other labels"):
        utility(base, answers(second, (labels + 1) % 5))
    nothing = answers(first[:0], labels[:0])
    with pytest.raises(ComparisonError, match="no clean image"):
        utility(nothing, nothing)


# Logits that are missing or do not fit.


def test_without_logits_the_shares_remain_and_the_reason_is_said() -> None:
    first, second, labels = drawn(7)
    base, model = answers(first, labels), answers(second, labels)
    bare = CleanAnswers(model.rows, None, "it returns labels only")
    whole, found = utility(base, model), utility(base, bare, names=("A", "B"))
    assert (found.cav, found.crr, found.csr) == (whole.cav, whole.crr, whole.csr)
    assert found.ccv is found.cos is None
    assert found.lacking == dict.fromkeys(("ccv", "cos"), ("B: it returns labels only",))
    neither = utility(bare, bare, names=("A", "B"))
    assert neither.lacking["cos"] == ("A: it returns labels only", "B: it returns labels only")


def test_other_numbers_of_classes_have_no_divergence() -> None:
    first, second, labels = drawn(8)
    wider = np.hstack([second, np.full((len(labels), 3), -2.0)])
    found = utility(answers(first, labels), answers(wider, labels), names=("A", "B"))
    assert found.cos is None and found.lacking == {"cos": ("A has 5 classes and B has 8 classes",)}
    assert found.ccv is not None and found.ccv.value > 0


@pytest.mark.parametrize(
    ("logits", "said"),
    [
        (np.zeros((2, 3)), r"shape \(2, 3\) are not those of 3 images"),
        (np.zeros(3), r"shape \(3,\) are not those of 3 images"),
        (np.zeros((3, 2, 2)), "one row per image and one column per class"),
        (np.zeros((3, 2)), "labels from 0 to 2 are outside the 2 classes"),
    ],
)
def test_logits_of_another_shape_are_refused(logits: Array, said: str) -> None:
    rows = Rows({"sample": np.arange(3), "label": np.arange(3), "correct": np.ones(3, bool)})
    with pytest.raises(InputError, match=said):
        CleanAnswers(rows, logits.astype(np.float32))
