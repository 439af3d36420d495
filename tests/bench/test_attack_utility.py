"""The attack utility of an evaluation: in its figures, on its page, and where images are gone."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.small import SMALL

import besiege
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.expanding import declared
from besiege.bench.opening import read_evaluations
from besiege.bench.single import evaluate, measure
from besiege.bench.store import Store
from besiege.metrics.attack_utility import table
from besiege.report import write_page

NATURAL = "zoo:digits-natural"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("utility") / "run"
    how: dict[str, Any] = {"threat": "linf:0.1", "count": 30, "curve": False, "examine": "none"}
    evaluate(NATURAL, "digits", attacks="fgsm, fgsm(loss=margin)", shard=13, out=folder, **how)
    return folder


def test_it_is_what_rows_and_images_say(made: Path) -> None:
    (found,) = read_evaluations(made)
    one, other = found.figures.attack_utility
    rows = found.rows.where(found.rows["attack"] == "fgsm")
    won = rows.where(rows["success"] & rows["correct"])
    assert (one.text, one.count, one.measured) == ("fgsm", won.count, won.count) and won.count > 5
    assert one.mr is not None and (one.mr.hits, one.mr.count) == (won.count, rows["correct"].sum())
    assert one.acac == pytest.approx(won["confidence"].mean())
    assert one.actc == pytest.approx(won["p_label"].mean())
    assert one.nte == pytest.approx((won["confidence"] - won["p_second"]).mean())
    assert one.l2 == pytest.approx(won["l2"].mean(), rel=1e-5)
    assert one.linf == pytest.approx(0.1, rel=1e-5)
    assert one.passes == pytest.approx((rows["forwards"] + rows["backwards"]).mean())
    assert one.ass is not None and 0.5 < one.ass < 1 and other.text != "fgsm"
    assert one.lacking == {}


def test_it_stands_in_the_files_and_on_the_page(made: Path) -> None:
    page = write_page(made).read_text()
    (body,) = json.loads((made / "figures.json").read_text())["evaluations"]
    (found,) = read_evaluations(made)
    assert body["attack_utility"][0]["linf"] == found.figures.attack_utility[0].linf
    assert "What successful images look like" in page and "NTE" in page
    assert f"{found.figures.attack_utility[0].acac:.3f}" in page
    assert table(found.figures.attack_utility)["attack"].tolist() == ["fgsm", "fgsm(loss=margin)"]


def test_records_of_earlier_releases_have_no_probabilities_and_say_so(tmp_path: Path) -> None:
    before = Path(shutil.copytree(Path(__file__).parent / "written_before", tmp_path / "run"))
    found = read_evaluations(before)
    some = [one for each in found for one in each.figures.attack_utility if one.count]
    assert some and all(one.acac is None and one.nte is None for one in some)
    assert all("earlier release" in one.lacking["probabilities"] for one in some)
    assert all(one.linf is not None for one in some), "their images are there"


def test_a_labels_only_model_has_distances_and_no_probabilities(tmp_path: Path) -> None:
    found = evaluate(
        NATURAL,
        "digits",
        threat="linf:0.2",
        access="decision",
        attacks="rays",
        queries=150,
        count=8,
        curve=False,
        examine="none",
        out=tmp_path / "run",
    )
    clean = besiege.open(tmp_path / "run").rows
    (one,) = found.figures.attack_utility
    assert one.count and one.l2 is not None
    if np.isnan(clean["confidence"]).all():
        assert one.acac is None and "labels only" in one.lacking["probabilities"]
    else:
        assert one.acac is not None


def test_it_is_computed_before_a_benchmark_lets_the_images_go(tmp_path: Path) -> None:
    text = SMALL + '[store]\nimages = "none"\n'
    measure(declared(benchmark_of(tomllib.loads(text)), Path()), out=tmp_path / "run")
    found = read_evaluations(tmp_path / "run")
    store = Store(tmp_path / "run")
    crafted = {t.key for each in found for t in each._plan.tasks() if t.kind == "craft"}
    assert crafted and all(store.released(key) for key in crafted)
    some = [one for each in found for one in each.figures.attack_utility if one.count]
    assert some and all(one.psd is not None for one in some)
    for path in (tmp_path / "run" / "figures").glob("*.json"):
        path.unlink()  # as by another version of the code
    again = [
        one
        for each in read_evaluations(tmp_path / "run")
        for one in each.figures.attack_utility
        if one.count
    ]
    assert all(one.psd is None and "images" in one.lacking for one in again)
    assert all(one.acac is not None for one in again)
