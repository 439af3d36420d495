"""Attack utility metrics against a few plain lines, and what is not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from besiege.core.errors import InputError
from besiege.metrics import attack_utility, similarity
from besiege.metrics.attack_utility import (
    Cost,
    certain,
    cost,
    likeness,
    misclassification,
    on_common,
    table,
)
from besiege.metrics.attack_values import AttackUtility
from besiege.metrics.rows import Rows


def answers(count: int = 40) -> tuple[Rows, Any]:
    """Judged rows of made-up logits, of which about half are successes, and the probabilities."""
    generator = np.random.default_rng(1)
    logits = 2 * generator.normal(size=(count, 5))
    labels = generator.integers(0, 5, count)
    odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ranked = np.sort(odds, 1)
    rows = Rows(
        {
            "success": odds.argmax(1) != labels,
            "confidence": ranked[:, -1],
            "p_label": odds[np.arange(count), labels],
            "p_second": ranked[:, -2],
            "entropy": -(odds * np.log(odds)).sum(1),
            "forwards": np.arange(count),
            "backwards": np.full(count, 3),
        }
    )
    return rows, (odds, labels)


def test_the_probability_metrics_count_successes_only() -> None:
    rows, (odds, labels) = answers()
    found = certain(rows.where(rows["success"]))
    acac, actc, nte, count = 0.0, 0.0, 0.0, 0
    for p, label in zip(odds, labels, strict=True):
        if p.argmax() != label:
            acac, actc, count = acac + p.max(), actc + p[label], count + 1
            nte += p.max() - sorted(p)[-2]
    assert 0 < count < len(labels)
    assert (found.acac, found.actc, found.nte) == pytest.approx(
        (acac / count, actc / count, nte / count), abs=1e-12
    )
    everyone = certain(rows)
    assert abs(everyone.acac - found.acac) > 1e-3 and abs(everyone.actc - found.actc) > 1e-3


def test_the_denominator_is_all_attacked_images() -> None:
    rows, _ = answers()
    found = misclassification(rows["success"])
    assert found.count == 40 and found.value == rows["success"].sum() / 40 < 1
    assert misclassification(np.zeros(7, bool)).value == 0
    with pytest.raises(InputError, match="no images"):
        misclassification(np.zeros(0, bool))


def test_without_a_success_nothing_is_0_or_1() -> None:
    rows, _ = answers()
    none = certain(rows.where(np.zeros(40, bool)))
    assert all(np.isnan(each) for each in (none.acac, none.actc, none.nte, none.entropy))
    nothing = likeness(np.zeros((0, 3, 8, 8)), np.zeros((0, 3, 8, 8)))
    every = [*nothing.ald.values(), *nothing.ald_relative.values()]
    every += [nothing.ass, nothing.ass_published, nothing.psd, nothing.psd_paper]
    assert len(every) == 10 and all(map(np.isnan, every))
    assert np.isnan(cost(rows.where(np.zeros(40, bool))).passes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.without("p_second"), "records of an earlier release"),
        (
            lambda rows: rows.having(confidence=np.nan, p_label=np.nan, p_second=np.nan),
            "labels only",
        ),
        (
            lambda rows: rows.having(p_label=np.where(np.arange(40) < 3, np.nan, rows["p_label"])),
            "3 of 40 rows are of an earlier release",
        ),
    ],
)
def test_probabilities_that_are_not_known_are_refused(change: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        certain(change(answers()[0]))


def test_the_likeness_has_each_form_at_its_place() -> None:
    generator = np.random.default_rng(2)
    clean = generator.random((5, 3, 10, 10))
    moved = np.clip(clean + generator.normal(0, 0.03, clean.shape), 0, 1)
    found, sizes = likeness(clean, moved), similarity
    assert found.ald["l2"] == pytest.approx(np.sqrt(((moved - clean) ** 2).sum((1, 2, 3))).mean())
    assert found.ald_relative["linf"] == pytest.approx(
        (np.abs(moved - clean).max((1, 2, 3)) / clean.max((1, 2, 3))).mean()
    )
    assert found.ass == sizes.ssim(clean, moved, 255).mean() < 1
    assert found.ass_published == sizes.ssim(clean, moved, 2).mean() < found.ass
    assert found.psd == sizes.psd(clean, moved, "code").mean() < found.psd_paper
    assert found.psd_paper == sizes.psd(clean, moved, "paper").mean()


def test_images_smaller_than_the_window_have_the_other_metrics() -> None:
    clean = np.full((2, 1, 4, 4), 0.5)
    found = likeness(clean, clean + 0.1)
    assert np.isnan(found.ass) and np.isnan(found.ass_published)
    assert found.ald["linf"] == pytest.approx(0.1) and found.psd == pytest.approx(1.6)
    thin = likeness(clean[:, :, :1], clean[:, :, :1] + 0.1)
    assert np.isnan(thin.psd) and thin.ald["linf"] == pytest.approx(0.1)


def test_cost_is_for_each_attacked_image() -> None:
    rows, _ = answers()
    assert cost(rows, 8.0) == Cost(0.2, np.arange(40).mean() + 3)
    assert np.isnan(cost(rows).seconds)


def test_the_table_has_a_row_for_each_attack_and_nan_where_nothing_is_known() -> None:
    rows, _ = answers()
    clean = np.full((2, 3, 8, 8), 0.5)
    sure, alike = certain(rows.where(rows["success"])), likeness(clean, clean + 0.1)
    whole = AttackUtility(
        "fgsm",
        False,
        misclassification(rows["success"]),
        int(rows["success"].sum()),
        sure.acac,
        sure.actc,
        sure.nte,
        l0=alike.ald["l0"],
        linf=alike.ald["linf"],
        linf_relative=alike.ald_relative["linf"],
        ass=alike.ass,
        psd_paper=alike.psd_paper,
    )
    bare = AttackUtility("pgd", True, None, 3)
    found = table([whole, bare])
    assert tuple(found) == attack_utility.COLUMNS and found["attack"].tolist() == ["fgsm", "pgd"]
    assert found["N"].tolist() == [40, -1] and found["MR"][0] == whole.mr.value  # type: ignore[union-attr]
    assert found["Linf"][0] == pytest.approx(0.1) and found["Linf_relative"][0] == pytest.approx(
        0.2
    )
    for name in ("MR", "ACAC", "NTE", "L0", "ASS", "PSD_paper"):
        assert np.isnan(found[name][1]) and not np.isnan(found[name][0]), name


def test_attacks_are_compared_on_common_successes() -> None:
    wins = {"a": np.arange(100) < 80, "b": np.arange(100) >= 20}
    values = {"a": np.arange(100.0), "b": np.arange(100.0) * 2}
    count, found = on_common(wins, values)
    assert count == 60 and found == {
        "a": np.arange(20, 80).mean(),
        "b": 2 * np.arange(20, 80).mean(),
    }
    wins["b"] = np.arange(100) >= 31
    count, found = on_common(wins, values)
    assert count == 49 and all(map(np.isnan, found.values())), "fewer than 50 tell nothing"
    with pytest.raises(InputError, match="the same attacks"):
        on_common(wins, {"a": values["a"]})
