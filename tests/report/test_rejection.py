"""A model that may reject images, from `besiege.evaluate` to the page and the terminal."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score
from tests.rejecting import EVERY, SPLIT, Watched, others

import besiege
from besiege.bench.model_spec import model_spec
from besiege.bench.results import summarise
from besiege.bench.spec import Request
from besiege.metrics.defense_values import Rejections
from besiege.report import table

HOW: dict[str, Any] = {"threat": "linf:0.1", "curve": False, "examine": "none"}
ATTACKS = "oblivious(pgd(steps=5)), pgd(steps=5, loss=margin)"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    folder = tmp_path_factory.mktemp("rejecting") / "run"
    result: besiege.Evaluation = besiege.evaluate(
        Watched(0.1), others(), attacks=ATTACKS, out=folder, **HOW
    )
    return result


def rejection(found: besiege.Evaluation) -> Rejections:
    assert found.figures.rejection is not None
    return found.figures.rejection


def printed(found: besiege.Evaluation, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table(summarise(found.folder)))
    return file.getvalue()


def test_the_shares_are_those_of_the_rows_and_sum_to_one(found: besiege.Evaluation) -> None:
    shown, rows = rejection(found), found.rows
    assert [one.text for one in shown.attacks] == [
        "oblivious(pgd(steps=5))",
        "pgd(steps=5, loss=margin)",
    ]
    assert [one.transfer for one in shown.attacks] == [True, False]
    for one in shown.attacks:
        mine = rows.where(rows["attack"] == one.text)
        right = mine["prediction"] == mine["label"]
        expected = [(~mine["rejected"] & right).sum(), (~mine["rejected"] & ~right).sum()]
        assert [one.right.hits, one.wrong.hits] == expected
        assert one.rejected.hits == mine["rejected"].sum()
        assert one.alone.hits == right.sum()
        assert one.right.hits + one.wrong.hits + one.rejected.hits == one.right.count == mine.count
    assert shown.attacks[0].rejected.hits > shown.attacks[1].rejected.hits, "the fold matters"
    assert shown.together is not None and found.robust is not None
    assert shown.together.right.hits <= found.robust.hits
    assert shown.clean.right == found.clean


def test_accuracy_counts_no_rejected_adversarial_image_as_broken(found: besiege.Evaluation) -> None:
    rows = found.rows
    assert not (rows["success"] & rows["rejected"]).any()
    mine = rows.where(rows["attack"] == "oblivious(pgd(steps=5))")
    caught = mine["rejected"] & mine["correct"]
    assert caught.any()
    right = ~mine["rejected"] & (mine["prediction"] == mine["label"]) & mine["correct"]
    assert found.by_attack["oblivious(pgd(steps=5))"].hits == right.sum() + caught.sum()


def test_detection_is_that_of_scikit_learn(found: besiege.Evaluation) -> None:
    rows, (one, _) = found.rows, rejection(found).detection
    mine, clean = rows.where(rows["attack"] == one.text), found._evidence().clean
    assert (mine["sample"] == clean["sample"]).all()
    wrong = (mine["prediction"] != mine["label"]) & (clean["prediction"] == clean["label"])
    before = clean["suspicion"][wrong].tolist()
    scores = [*mine["suspicion"][wrong].tolist(), *before]
    truth = [1] * len(before) + [0] * len(before)
    assert one.auc is not None and one.rejected is not None
    assert one.auc.value == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert one.auc.count == one.rejected.count == len(before)
    assert one.rejected.hits == mine["rejected"][wrong].sum()
    assert one.auc.low < one.auc.value < one.auc.high


def test_the_model_has_ten_classes_and_a_nominal_share(found: besiege.Evaluation) -> None:
    model = found.figures.model
    assert (model.classes, model.rejects, model.nominal_rejections) == (10, True, 0.1)
    assert rejection(found).nominal == 0.1
    assert model.calibrated_on > 100 and model.calibrated_here == 0
    assert "W26" not in {one.id for one in found.warnings}


def test_rows_and_samples_have_the_columns(found: besiege.Evaluation, tmp_path: Path) -> None:
    sample = found.by_sample
    assert {"outcome", "rejected", "suspicion"} <= set(sample)
    assert set(sample["outcome"]) <= {"right", "wrong", "rejected"}
    assert ((sample["suspicion"] > 0) == sample["rejected"]).all()
    path = found.export(tmp_path / "rows.csv")
    assert {"rejected", "suspicion"} <= set(path.read_text().splitlines()[0].split(","))


def test_figures_json_and_the_cache_have_it(found: besiege.Evaluation) -> None:
    content = json.loads(json.dumps(found.figures.plain()))["rejection"]
    assert content["clean"]["rejected"]["count"] == found.clean.count
    assert len(content["attacks"]) == len(content["detection"]) == 2
    assert list((found.folder / "figures").glob("*.json"))
    (again,) = summarise(found.folder).evaluations  # read from the cache
    assert again.rejection == found.figures.rejection


@pytest.mark.parametrize("width", [120, 80, 60])
def test_the_terminal_has_three_shares_for_each_attack(
    found: besiege.Evaluation, width: int
) -> None:
    said = printed(found, width)
    (heading,) = re.findall(r"^images of.*", said, re.M)
    assert all(word in heading for word in ("right", "wrong", "rejected", "classifier alone"))
    assert re.search(r"^rejected +\d", said, re.M) and "set for 10 %" in re.sub(r"\s+", " ", said)
    assert max(map(len, said.splitlines())) <= width
    shares = rejection(found)
    for one in (shares.clean, *shares.attacks):
        three = [f"{100 * rate.value:.1f} %" for rate in (one.right, one.wrong, one.rejected)]
        assert re.search(r"[^\n]*".join(map(re.escape, three)), said)
        for rate in (one.right, one.wrong, one.rejected):
            assert width < 66 or f"[{100 * rate.low:.1f}, {100 * rate.high:.1f}]" in said


def test_the_page_has_one_bar_for_each_attack_and_the_curves(found: besiege.Evaluation) -> None:
    page = found.page().read_text()
    section = page[page.index("Right, wrong, rejected</h2>") :]
    section = section[: section.index("</section>")]
    bars = re.findall(r'<span class="stack".*?</span>', section, re.S)
    assert len(bars) == 4, "clean, two attacks, the worst of both"
    for bar in bars:
        widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar)]
        assert len(widths) == 3 and sum(widths) == pytest.approx(100, abs=0.02)
    assert section.count('<span class="badge">transfer</span>') == 2
    assert section.count("classifier alone") == 4
    assert 'class="wide"' in section and 'class="narrow"' in section
    assert "clean images rejected, %" in section and "threshold set for 10 %" in section
    assert "accuracy, %" not in section
    assert "classified correctly when clean and not accepted with a wrong class" in page
    assert "The model may reject an image, which is then no success." in page


def test_the_notebook_shows_the_shares(found: besiege.Evaluation) -> None:
    assert found._repr_html_().count('class="stack"') == 4


def test_only_oblivious_attacks_are_warned_about() -> None:
    images, labels = others()
    some = images[:60], labels[:60]
    alone = besiege.evaluate(Watched(0.1), some, attacks="oblivious(pgd(steps=5))", **HOW)
    (weak,) = (one for one in alone.warnings if one.id == "W33")
    assert weak.level == "warning" and "detector" in weak.seen
    both = besiege.evaluate(Watched(0.1), some, attacks=ATTACKS, **HOW)
    assert "W33" not in {one.id for one in both.warnings}


def test_the_plan_counts_evaluated_images_of_the_calibration() -> None:
    victim = Watched(0.1)
    asked = Request(model="watched", data="digits", threat="linf:0.1", textual=False)
    data = besiege.data.load("digits", split=SPLIT)
    spec = model_spec(victim, asked, 10, data)
    assert spec.calibrated_on == spec.calibrated_here == -(-len(data) // EVERY)
    other = replace(data, name="other")
    assert model_spec(victim, asked, 10, other).calibrated_here == -(-len(data) // EVERY)
    inverted = replace(other, images=1 - data.images)
    assert model_spec(victim, asked, 10, inverted).calibrated_here == 0
    assert model_spec(victim, asked, 10, data.take([1, 2, EVERY])).calibrated_here == 1
    bare = model_spec(victim.bare, asked, 10, data)
    assert (bare.rejects, bare.nominal_rejections, bare.calibrated_on) == (False, None, 0)


def test_another_share_than_intended_is_warned_about() -> None:
    victim = Watched(0.1)
    victim.threshold /= 4  # as if it had been set on images unlike these
    found = besiege.evaluate(victim, others(), attacks="pgd(steps=1)", **HOW)
    (seen,) = (one.seen for one in found.warnings if one.id == "W26" and one.level == "warning")
    assert str(rejection(found).clean.rejected) in seen and "set for 10 %" in seen


def test_a_suite_and_a_model_that_does_not_reject(tmp_path: Path) -> None:
    """Later attacks of a suite may have no image left; other models have none of the columns."""
    images, labels = others()
    asked: dict[str, Any] = {**HOW, "suite": ["pgd(steps=9)", "apgdt(steps=5)", "square(steps=9)"]}
    several = besiege.evaluate(
        [Watched(0.1), "zoo:digits-natural"],
        (images[:20], labels[:20]),
        out=tmp_path / "run",
        **asked,
    )
    one, other = several
    assert other.figures.rejection is None and "rejected" not in other.rows
    assert "Right, wrong, rejected" in several.page().read_text()
    joined = several.rows
    assert joined["rejected"].dtype == bool
    assert np.isnan(joined["suspicion"]).any() and not np.isnan(joined["suspicion"]).all()
    shares = rejection(one).attacks
    wrong = [one.wrong.hits for one in shares]
    assert wrong == sorted(wrong) and {one.wrong.count for one in shares} == {20}
    assert one.robust is not None and rejection(one).together is not None


def test_comparisons_and_utility_use_classes_only(found: besiege.Evaluation) -> None:
    bare = besiege.evaluate(
        "zoo:digits-natural", others(), attacks="pgd(steps=5, loss=margin)", **HOW
    )
    mine = besiege.evaluate(Watched(0.1), others(), attacks="pgd(steps=5, loss=margin)", **HOW)
    compared = bare.compare(mine)
    (pair,) = compared.pairs
    assert pair.change.count == found.clean.count
    assert pair.utility is not None and pair.utility.cos is not None
    assert pair.utility.cos.value == 0, "the classifier is the same, and rejection no class"
    assert pair.utility.csr.hits == rejection(mine).clean.rejected.hits - _both_wrong(mine)
    assert mine.robust is not None and mine.robust.at_least(0.01)


def _both_wrong(found: besiege.Evaluation) -> int:
    """Clean images that are rejected, and that the classifier alone misclassifies, too."""
    clean = found._evidence().clean
    return int((clean["rejected"] & (clean["prediction"] != clean["label"])).sum())
