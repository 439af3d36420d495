"""Right, wrong and rejected, and detection, of hand-made rows; rules W26 and W33."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import betabinom
from sklearn.metrics import roc_auc_score

from besiege.core.errors import Finding
from besiege.metrics import Case, Evidence, Rows, Trial
from besiege.metrics.calibration import luck, w26_calibration
from besiege.metrics.defense_values import Rejections, Shares
from besiege.metrics.evidence import Calibrated
from besiege.metrics.kinds import w33_not_adaptive
from besiege.metrics.rejection import outcome_columns, rejection_figures

# Eight samples of class 0: what the classifier says of the clean image, and whether it is rejected.
CLEAN: dict[str, Any] = {
    "prediction": [0, 0, 0, 0, 0, 0, 1, 1],
    "rejected": [0, 0, 0, 0, 0, 1, 0, 1],
}


def clean(prediction: list[int], rejected: list[int], suspicion: list[float] | None = None) -> Rows:
    classes, flags = np.array(prediction), np.array(rejected, bool)
    return Rows(
        {
            "sample": np.arange(len(classes)),
            "label": np.zeros(len(classes), np.int64),
            "prediction": classes,
            "rejected": flags,
            "suspicion": np.where(flags, 0.5, -0.5) if suspicion is None else np.array(suspicion),
            "correct": (classes == 0) & ~flags,
        }
    )


def trial(
    text: str, prediction: list[int], rejected: list[int], samples: Any = None, **more: Any
) -> Trial:
    classes, flags = np.array(prediction), np.array(rejected, bool)
    ids = np.arange(len(classes)) if samples is None else np.array(samples)
    reached = (classes != 0) & ~flags
    columns: dict[str, Any] = {
        "sample": ids,
        "label": np.zeros(len(ids), np.int64),
        "prediction": classes,
        "rejected": flags,
        "suspicion": np.where(flags, 0.5, -0.5),
        "correct": np.ones(len(ids), bool),
        "valid": np.ones(len(ids), bool),
        "within": np.ones(len(ids), bool),
        "reached": reached,
        "success": reached,
        "linf": np.full(len(ids), 0.1),
        **more.pop("columns", {}),
    }
    return Trial(text, Rows(columns), **more)


def evidence(rows: Rows, *trials: Trial, **more: Any) -> Evidence:
    terms: dict[str, Any] = {"rejects": True, "chained": False, **more}
    chained = terms.pop("chained")
    return Evidence(rows, trials, chained, "linf", 0.1, (0.0, 1.0), 64, 10, **terms)


def figures(found: Evidence) -> Rejections:
    made = rejection_figures(Case(found))
    assert made is not None
    return made


def counts(shares: Shares | None) -> tuple[int, ...]:
    assert shares is not None
    rates = (shares.right, shares.wrong, shares.rejected)
    assert sum(rate.hits for rate in rates) == rates[0].count == shares.alone.count
    assert sum(rate.value for rate in rates) == pytest.approx(1)
    return (*(rate.hits for rate in rates), shares.alone.hits)


ONE = trial("one", [0, 1, 1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 0, 0])
TWO = trial("two", [0, 0, 1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 0, 1])


def test_the_three_shares_of_clean_images_and_each_attack() -> None:
    found = figures(evidence(clean(**CLEAN), ONE, TWO))
    assert counts(found.clean) == (5, 1, 2, 6)
    assert [one.text for one in found.attacks] == ["one", "two"]
    assert counts(found.attacks[0]) == (1, 4, 3, 3)
    assert counts(found.attacks[1]) == (4, 2, 2, 5)
    # Image by image, wrong before rejected before right.
    assert counts(found.together) == (1, 5, 2, 3)


def test_a_rejection_is_no_success_and_stays_in_the_denominator() -> None:
    everything = trial("all rejected", [1] * 8, [1] * 8)
    found = evidence(clean(**CLEAN), everything)
    assert counts(figures(found).attacks[0]) == (0, 0, 8, 0)
    assert found.accuracy(everything) == 5 / 8, "those that are right when clean"


def test_other_victims_have_no_such_figure() -> None:
    assert rejection_figures(Case(evidence(clean(**CLEAN), ONE, rejects=False))) is None
    assert outcome_columns(evidence(clean(**CLEAN), ONE, rejects=False)) == {}
    nothing = clean([], [])
    assert rejection_figures(Case(evidence(nothing))) is None


def test_images_outside_the_budget_count_as_their_clean_images() -> None:
    for what in ("valid", "within"):
        bad = trial("bad", [1] * 8, [0] * 8, columns={what: np.zeros(8, bool)})
        found = figures(evidence(clean(**CLEAN), bad))
        assert counts(found.attacks[0]) == counts(found.clean)
        assert found.detection[0].rejected is None


def test_in_a_suite_an_image_keeps_its_worst_answer() -> None:
    first = trial("one", [0, 1, 1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 0, 0])
    left = trial("two", [0, 1, 0], [0, 0, 0], samples=[0, 2, 3])  # unbroken ones only
    found = figures(evidence(clean(**CLEAN), first, left, chained=True))
    assert counts(found.attacks[0]) == (1, 4, 3, 3)
    assert counts(found.attacks[1]) == (1, 5, 2, 3)
    assert counts(found.together) == counts(found.attacks[1])


def test_guards_and_unfinished_attacks() -> None:
    guard = trial("noise", [1], [0], samples=[0], guard=True)
    some = trial("some", [1, 0], [0, 0], samples=[0, 1])
    found = figures(evidence(clean(**CLEAN), some, guard))
    assert [one.text for one in found.attacks] == ["some"]
    assert counts(found.attacks[0]) == (1, 1, 0, 1)
    nothing = figures(evidence(clean(**CLEAN), trial("none", [], [])))
    assert nothing.attacks == () and nothing.together is None and nothing.detection == ()


def test_every_sample_has_its_worst_outcome() -> None:
    columns = outcome_columns(evidence(clean(**CLEAN), ONE, TWO))
    expected = ["right", "wrong", "wrong", "rejected", "wrong", "rejected", "wrong", "wrong"]
    assert columns["outcome"].tolist() == expected
    assert columns["rejected"].tolist() == [bool(flag) for flag in CLEAN["rejected"]]
    some = trial("some", [1, 0], [0, 0], samples=[0, 1])
    unknown = outcome_columns(evidence(clean(**CLEAN), some))["outcome"].tolist()
    assert unknown[:3] == ["wrong", "right", "unknown"]


def test_detection_is_of_the_classifiers_own_errors() -> None:
    """Errors: misclassified images of samples whose clean image the classifier gets right."""
    suspicion = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 9.0, 9.0]
    scores = np.array([5.0, 0.2, 0.7, -1.0, 0.1, 0.6, 9.0, 9.0])
    attack = trial("one", ONE.rows["prediction"].tolist(), [0, 0, 1, 1, 0, 1, 0, 0])
    rows = attack.rows.having(suspicion=scores)
    (found,) = figures(
        evidence(clean(**CLEAN, suspicion=suspicion), Trial("one", rows, access="transfer"))
    ).detection
    errors = [1, 2, 4]
    truth = [1] * 3 + [0] * 3
    area = roc_auc_score(truth, [*scores[errors], *(suspicion[place] for place in errors)])
    assert found.transfer and found.rejected is not None and found.auc is not None
    assert (found.rejected.hits, found.rejected.count) == (1, 3)
    assert found.auc.value == pytest.approx(area) and found.auc.count == 3
    assert (found.fpr[0], found.tpr[0], found.fpr[-1], found.tpr[-1]) == (0, 0, 1, 1)


def test_without_errors_or_suspicion_there_is_no_area() -> None:
    (none,) = figures(evidence(clean(**CLEAN), trial("weak", [0] * 8, [0] * 8))).detection
    assert none.rejected is None and none.auc is None
    blind = trial("one", [1] * 8, [0] * 8, columns={"suspicion": np.full(8, np.nan)})
    (found,) = figures(evidence(clean(**CLEAN), blind)).detection
    assert found.rejected is not None and found.auc is None and found.fpr == ()


# Rules.


def many(rejected: int, count: int = 200, **more: Any) -> Evidence:
    flags = [int(place < rejected) for place in range(count)]
    return evidence(clean([0] * count, flags), **more)


def w26(found: Evidence) -> list[Finding]:
    return list(w26_calibration(found))


@pytest.mark.parametrize(("rejected", "fires"), [(2, True), (5, False), (16, False), (17, True)])
def test_w26_the_realised_share_is_the_intended_one(rejected: int, fires: bool) -> None:
    """Of 200 images: the exact intervals of 5 and of 16 rejected ones hold 5 %."""
    found = w26(many(rejected, calibration=Calibrated(0.05)))
    assert bool(found) == fires
    if fires:
        assert found[0].level == "warning" and "set for 5 %" in found[0].seen
        assert ("training images" in found[0].advice) == (rejected == 17)


def test_w26_needs_a_victim_that_rejects_and_a_known_share() -> None:
    assert not w26(many(100))
    assert not w26(many(100, calibration=Calibrated(0.05), rejects=False))


def test_w26_allows_for_the_noise_of_a_small_calibration() -> None:
    """20 images may set a threshold that rejects 9 % of others; 20,000 may not."""
    assert not w26(many(18, calibration=Calibrated(0.05, images=20)))
    assert w26(many(18, calibration=Calibrated(0.05, images=20_000)))
    assert w26(many(60, calibration=Calibrated(0.05, images=20)))


@pytest.mark.parametrize(("images", "nominal"), [(20, 0.05), (100, 0.05), (150, 0.1)])
def test_the_noise_is_beta_binomial(images: int, nominal: float) -> None:
    known, count = Calibrated(nominal, images=images), 60
    above = int(images * nominal + 1e-9)
    law = betabinom(count, above + 1, images - above)
    for rejected in (0, 3, 10, 60):
        tail = min(law.cdf(rejected), law.sf(rejected - 1))
        assert luck(rejected, count, known) == pytest.approx(min(1, 2 * tail), rel=1e-9)


def test_luck_is_that_of_thresholds_set_on_other_images() -> None:
    """Simulated: of well calibrated detectors, about 5 % look unlucky at the level 5 %."""
    generator = np.random.default_rng(0)
    unlucky = 0
    for _ in range(2000):
        scores = np.sort(generator.random(100))
        rejected = int((generator.random(100) > scores[94]).sum())
        unlucky += luck(rejected, 100, Calibrated(0.05, images=100)) < 0.05
    assert 0.01 <= unlucky / 2000 <= 0.06


def test_w26_the_threshold_was_set_on_other_images() -> None:
    (found,) = w26(many(10, calibration=Calibrated(0.05, 1000, here=3)))
    assert found.level == "warning" and "3 of the 200 evaluated images" in found.seen


def test_w26_notes_a_detector_that_attacks_turn_round() -> None:
    base = many(0).clean.having(suspicion=np.linspace(-1, 0, 200))
    low = trial("oblivious(pgd)", [1] * 200, [0] * 200, columns={"suspicion": np.full(200, -0.9)})
    (found,) = w26(evidence(base, low))
    assert found.level == "note" and "'oblivious(pgd)'" in found.seen
    high = trial("oblivious(cw)", [1] * 200, [0] * 200, columns={"suspicion": np.full(200, -0.1)})
    assert not w26(evidence(base, high))


def test_w33_a_detector_meets_attacks_that_know_it() -> None:
    ignoring = trial("oblivious(pgd)", [1] * 8, [1] * 8, access="transfer", oblivious=True)
    own = trial("pgd", [1] * 8, [0] * 8)
    (found,) = w33_not_adaptive(evidence(clean(**CLEAN), ignoring))
    assert found.level == "warning" and "without its detector" in found.seen
    assert not list(w33_not_adaptive(evidence(clean(**CLEAN), ignoring, own)))
    (found,) = w33_not_adaptive(evidence(clean(**CLEAN), ignoring, rejects=False))
    assert "ignores the defense" in found.seen, "any defense, such as a smooth layer"
    elsewhere = trial("pgd", [1] * 8, [1] * 8, access="transfer")
    assert not list(w33_not_adaptive(evidence(clean(**CLEAN), elsewhere, rejects=False)))
