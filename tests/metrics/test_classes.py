"""Figures by class against plain counting, on made-up rows and on a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import besiege
from besiege.bench.summaries import _figures
from besiege.metrics import EvaluationFigures, Evidence, Rate, Rows, Trial, quantile
from besiege.metrics.classes import PAIRS, class_figures, confusion_figures
from besiege.metrics.representatives import representatives
from besiege.metrics.values import plain

COUNT, CLASSES = 300, 7


def made(
    seed: int,
    eps: float | None = 0.1,
    chained: bool = False,
    classes: int = CLASSES,
    count: int = COUNT,
) -> Evidence:
    """Three attacks on samples in another order each; some samples were not judged by the last."""
    random = np.random.default_rng(seed)
    samples = random.permutation(10 * count)[:count]
    label = random.integers(0, classes - 1, count)  # the last class has no images
    correct = random.random(count) < 0.8
    clean = Rows({"sample": samples, "label": label, "correct": correct})
    trials: list[Trial] = []
    left = np.ones(count, bool)
    for number, strength in enumerate((0.5, 0.2, 0.4)):
        tried = left.copy() if chained else np.ones(count, bool)
        if number == 2:
            tried &= random.random(count) < 0.9
        rows = random.permutation(np.flatnonzero(tried))
        success = random.random(len(rows)) < strength
        columns: dict[str, Any] = {
            "sample": samples[rows],
            "success": success,
            "prediction": random.integers(0, classes, len(rows)),
            "linf": np.where(success, random.random(len(rows)), 0.0),
            "record": np.full(len(rows), f"record {number}"),
            "row": np.arange(len(rows)),
        }
        trials.append(Trial(f"attack {number}", Rows(columns)))
        left &= ~np.isin(samples, columns["sample"][success & correct[rows]])
    return Evidence(
        clean,
        trials,
        chained,
        "linf",
        eps,
        (0.0, 1.0),
        4,
        classes,
        curve=None if eps is not None else trials[0],
    )


CASES = [(0.1, False), (0.1, True), (None, False)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("eps", "chained"), CASES)
def test_the_accuracy_of_a_class_is_that_of_its_images(
    eps: float | None, chained: bool, seed: int
) -> None:
    evidence = made(seed, eps, chained)
    label, right = evidence.clean["label"], evidence.right
    known, stands = evidence.covered_by_all(), evidence.standing()
    found = class_figures(evidence)
    assert [one.label for one in found] == list(range(CLASSES - 1))
    for one in found:
        mine = label == one.label
        assert one.clean == _close(int((right & mine).sum()), int(mine.sum()))
        assert one.robust == _close(int((stands & known & mine).sum()), int((known & mine).sum()))
    # All classes together are the whole.
    assert sum(one.robust.hits for one in found if one.robust) == int((stands & known).sum())


def _close(hits: int, count: int) -> object:
    """A rate up to rounding."""
    exact = Rate.of(hits, count)
    low, high = pytest.approx(exact.low, abs=1e-9), pytest.approx(exact.high, abs=1e-9)
    return Rate(exact.value, low, high, count, hits)  # type: ignore[arg-type]  # compared only


def test_the_median_of_a_class_is_that_of_its_smallest_perturbations() -> None:
    evidence = made(0, None)
    ids, ends = evidence.smallest()
    label = dict(
        zip(evidence.clean["sample"].tolist(), evidence.clean["label"].tolist(), strict=True)
    )
    for one in class_figures(evidence):
        mine = [
            end
            for sample, end in zip(ids.tolist(), ends.tolist(), strict=True)
            if label[sample] == one.label
        ]
        assert one.median == quantile(mine)
    assert all(one.median is None for one in class_figures(made(0)))


def test_a_class_that_was_not_judged_is_not_robust_and_an_infinite_median_is_none() -> None:
    evidence = made(0)
    (first, *rest) = evidence.trials
    others = evidence.clean["sample"][evidence.clean["label"] != 2]
    some = Trial(first.text, first.rows.where(np.isin(first.rows["sample"], others)))
    clean = evidence.clean
    less = Evidence(clean, (some, *rest), False, "linf", 0.1, (0.0, 1.0), 4, CLASSES)
    robust = {one.label: one.robust for one in class_figures(less)}
    assert robust[2] is None and robust[1] is not None
    never = Trial("none", first.rows.having(success=np.zeros(first.rows.count, bool)))
    search = Evidence(clean, (never,), False, "linf", None, (0.0, 1.0), 4, CLASSES, curve=never)
    medians = {one.label: one.median for one in class_figures(search)}
    assert set(medians.values()) == {None}, "more than half of every class is not broken"
    assert confusion_figures(search) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("eps", "chained"), CASES)
def test_every_broken_image_counts_once_with_the_strongest_attack_or_the_smallest_change(
    eps: float | None, chained: bool, seed: int
) -> None:
    evidence = made(seed, eps, chained)
    order = sorted(evidence.trials, key=evidence.accuracy)
    rows: dict[int, list[tuple[float, int]]] = {}
    for rank, trial in enumerate(order):
        for row in trial.rows.records():
            if row["success"]:
                weight = row["linf"] if eps is None else float(rank)
                rows.setdefault(row["sample"], []).append((weight, row["prediction"]))
    seen: Counter[tuple[int, int]] = Counter()
    known = evidence.covered_by_all() if eps is None else np.ones(COUNT, bool)
    for sample, label, right, judged in zip(
        *(evidence.clean[name].tolist() for name in ("sample", "label", "correct")),
        known.tolist(),
        strict=True,
    ):
        if right and judged and sample in rows:
            seen[label, min(rows[sample])[1]] += 1
    found = confusion_figures(evidence)
    assert found is not None
    assert {(one.label, one.prediction): one.count for one in found.pairs} == seen
    assert found.count == sum(seen.values()) == representatives(evidence).count
    assert found.distinct == len(seen)
    counts = [one.count for one in found.pairs]
    assert counts == sorted(counts, reverse=True)


def test_of_very_many_pairs_the_most_frequent_are_kept() -> None:
    found = confusion_figures(made(0, classes=1000, count=800))
    assert found is not None and found.distinct > len(found.pairs) == PAIRS
    assert sum(one.count for one in found.pairs) < found.count


def test_no_image_and_no_attack_give_no_figure() -> None:
    empty = Rows({name: np.zeros(0, np.int64) for name in ("sample", "label", "correct")})
    nothing = Evidence(empty, (), False, "linf", 0.1, (0.0, 1.0), 4, CLASSES)
    assert class_figures(nothing) == () and confusion_figures(nothing) is None
    clean = made(0).clean
    alone = Evidence(clean, (), False, "linf", 0.1, (0.0, 1.0), 4, CLASSES)
    assert {one.robust for one in class_figures(alone)} == {None}


def test_a_run_has_them_as_counted_from_its_rows() -> None:
    found = besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm, pgd", count=60
    )
    figures = found.figures
    fate, label = found.by_sample["fate"], found.by_sample["label"]
    for one in figures.by_class:
        mine = fate[label == one.label]
        assert one.robust is not None and one.clean is not None
        assert (one.robust.hits, one.robust.count) == (int((mine == "standing").sum()), len(mine))
        assert one.clean.hits == int((mine != "wrong").sum())
    assert figures.confusion is not None
    broken = int((fate == "broken").sum())
    assert figures.confusion.count == sum(one.count for one in figures.confusion.pairs) == broken
    assert all(one.label != one.prediction for one in figures.confusion.pairs)


def test_figures_that_were_kept_without_them_are_read() -> None:
    found = besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm", count=10, curve=False
    )
    kept: dict[str, Any] = plain(found.figures)
    again = _figures().validate_python(kept)
    assert again == found.figures
    del kept["by_class"], kept["confusion"]
    older: EvaluationFigures = _figures().validate_python(kept)
    assert older.by_class == () and older.confusion is None
