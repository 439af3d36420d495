"""Transfer between models: from judged rows to the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import besiege
from besiege.core.errors import InputError
from besiege.metrics.paired import benjamini_hochberg, mcnemar
from besiege.metrics.rows import Rows
from besiege.models import Classifier, load
from besiege.studies.su.transfer import Crossed, crossed, transfer_matrix


def made_up(models: int = 3, images: int = 400, seed: int = 0) -> Crossed:
    generator = np.random.default_rng(seed)
    right = generator.random((models, images)) < 0.9
    strength = np.linspace(0.3, 0.6, models)
    hit = generator.random((models, models, images)) < strength[:, None, None]
    hit[np.arange(models), np.arange(models)] = True
    names = tuple("abcdefgh"[:models])
    return Crossed(names, right, hit, np.broadcast_to(right, hit.shape))


def test_both_denominators_by_hand() -> None:
    given = made_up()
    found = transfer_matrix(given)
    for s in range(3):
        for t in range(3):
            mine = [i for i in range(400) if given.made[s, i]]
            seen = [i for i in mine if given.right[s, t, i]]
            assert found.count[s, t] == len(mine) and found.right[s, t] == len(seen)
            assert found.rate[s, t] == pytest.approx(np.mean([given.hit[s, t, i] for i in mine]))
            assert found.of_right[s, t] == pytest.approx(
                np.mean([given.hit[s, t, i] for i in seen])
            )
    assert (np.diag(found.rate) == 1).all()


def test_means_leave_out_the_diagonal_and_have_intervals() -> None:
    found = transfer_matrix(made_up())
    rate = found.rate
    assert found.rows.value[0] == pytest.approx((rate[0, 1] + rate[0, 2]) / 2)
    assert found.columns.value[0] == pytest.approx((rate[1, 0] + rate[2, 0]) / 2)
    for means in (found.rows, found.columns):
        assert (means.low < means.value).all() and (means.value < means.high).all()
        assert (means.high - means.low < 0.15).all()
    wide = transfer_matrix(made_up(), level=0.999)
    assert (wide.rows.high - wide.rows.low > found.rows.high - found.rows.low).all()


def test_p_values_are_corrected_over_all_pairs() -> None:
    given = made_up()
    found = transfer_matrix(given)
    assert np.isnan(np.diag(found.q)).all()
    ps = []
    for s in range(3):
        for t in (t for t in range(3) if t != s):
            own, right, hit = given.made[s], given.right[s, t], given.hit[s, t]
            ps.append(mcnemar(int((own & right & hit).sum()), int((own & ~right & ~hit).sum())))
    assert found.q[~np.eye(3, dtype=bool)] == pytest.approx(benjamini_hochberg(ps))
    idle = Crossed(given.models, given.made, ~given.right, given.right)
    assert (transfer_matrix(idle).q[0, 1:] == 1).all()
    assert np.isnan(transfer_matrix(given, targeted=True).q).all()


def rows_of(victim: Any, source: Any, threat: str) -> Rows:
    found = besiege.evaluate(
        victim,
        "digits",
        threat=threat,
        attacks="fgsm@su",
        count=60,
        examine="none",
        curve=False,
        **({} if source is None else {"substitute": source}),
    )
    rows: Rows = found.rows
    return rows


@pytest.fixture(scope="module")
def nets() -> dict[str, Any]:
    """Two trained nets, and a copy of one under another name and with its outputs doubled."""
    natural = load("zoo:digits-natural")
    doubled = torch.nn.Sequential(natural.module, _Twice())
    return {
        "natural": natural,
        "copy": Classifier(doubled, classes=10, name="copy"),
        "pgd-at": load("zoo:digits-pgd-at"),
    }


class _Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_equal_nets_transfer_fully_and_the_diagonal_is_the_white_box_run(
    nets: dict[str, Any],
) -> None:
    judged = {
        (s, t): rows_of(nets[t], None if s == t else nets[s], "linf:0.3")
        for s in nets
        for t in nets
    }
    given = crossed(tuple(nets), judged, classes=10)
    found = transfer_matrix(given)
    white = judged["natural", "natural"]
    own = white["correct"].astype(bool)
    assert found.rate[0, 0] == pytest.approx(white["success"][own].mean())
    assert np.array_equal(given.hit[0, 1], given.hit[0, 0])
    assert found.rate[0, 1] == found.rate[0, 0] and found.rate[1, 0] == found.rate[1, 1]
    assert found.rate[0, 2] < found.rate[0, 0]


def test_top_one_and_top_five_from_one_record(nets: dict[str, Any]) -> None:
    threat = "linf:0.3 targeted:random"
    rows = rows_of(nets["pgd-at"], nets["natural"], threat)
    assert ((rows["rank"] >= 1) & (rows["rank"] <= 10)).all()
    top = {"a": rows_of(nets["natural"], None, threat), "b": rows}
    judged = {("a", "a"): top["a"], ("a", "b"): top["b"], ("b", "a"): rows, ("b", "b"): rows}
    first, five = (crossed("ab", judged, classes=10, top=top) for top in (1, 5))
    assert np.array_equal(first.hit[0, 1], rows["success"].astype(bool)[np.argsort(rows["sample"])])
    assert (five.hit >= first.hit).all() and five.hit.sum() > first.hit.sum()
    untargeted = rows_of(nets["natural"], None, "linf:0.3")
    assert "rank" not in untargeted
    with pytest.raises(InputError, match="place of the target class"):
        crossed("a", {("a", "a"): untargeted}, classes=10, top=5)


def table(samples: list[int], wrong: int = 0) -> Rows:
    labels = np.array(samples) % 10
    prediction = (labels + (np.arange(len(samples)) < wrong)) % 10
    return Rows(
        {
            "sample": np.array(samples),
            "label": labels,
            "prediction": prediction,
            "correct": np.ones(len(samples), bool),
        }
    )


def test_pairs_are_aligned_by_image() -> None:
    judged = {
        ("a", "a"): table([5, 3, 1, 9], 1),
        ("a", "b"): table([1, 3, 5], 1),
        ("b", "a"): table([3, 1, 5]),
        ("b", "b"): table([5, 1, 3], 3),
    }
    given = crossed("ab", judged, classes=10)
    assert given.hit[0].tolist() == [[False, False, True], [True, False, False]]
    assert given.hit[1].tolist() == [[False] * 3, [True] * 3]


def test_what_cannot_be_crossed_is_refused() -> None:
    with pytest.raises(InputError, match="a -> b"):
        crossed("ab", {("a", "a"): table([1])}, classes=10)
    with pytest.raises(InputError, match="no image was judged for all"):
        crossed("ab", {(s, t): table([1 + (t == "b")]) for s in "ab" for t in "ab"}, classes=10)
    shifted = table(list(range(100))).having(correct=np.arange(100) < 3)
    with pytest.raises(InputError, match=r"3\.0 % .* guessing does 10\.0 %.*counted from another"):
        crossed("a", {("a", "a"): shifted}, classes=10)
