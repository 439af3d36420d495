"""The method smoothing of a certification: records of votes, their figures, and W30."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import besiege
from besiege.bench.certifying import certified
from besiege.bench.evaluations import Evaluation
from besiege.bench.store import Store
from besiege.cli import main
from besiege.core.errors import BesiegeError
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.proofs import certified_figures, contradictions, w30_contradicted
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows

BASE = "zoo:digits-natural"
MODEL = f"{BASE}+smoothed(sigma=0.1, draws=20)"
COUNT, N = 12, 400


def _evaluated(out: Path, threat: str = "l2:0.1", **options: Any) -> Evaluation:
    return besiege.evaluate(
        MODEL,
        "digits",
        threat=threat,
        attacks="averaged(pgd(steps=2), 2)",
        examine="none",
        certify=f"smoothing(n={N}, n0=50)",
        count=COUNT,
        shard=5,
        out=out,
        **options,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluation]:
    folder = tmp_path_factory.mktemp("voted") / "run"
    return folder, _evaluated(folder)


def _records(folder: Path) -> dict[str, Rows]:
    store = Store(folder)
    keys = [path.parent.name for path in folder.glob("records/*/record.json")]
    mine = [key for key in keys if store.read(key).identity["kind"] == "certify"]  # type: ignore[union-attr]  # they exist
    return {key: store.rows([key]) for key in sorted(mine)}


def test_records_hold_the_radii_of_the_same_images(run: tuple[Path, Evaluation]) -> None:
    """Shard by shard what `certified` says of all images at once, 0 around a wrong class."""
    rows = Rows.joined(list(_records(run[0]).values()))
    data = besiege.data.load("digits", count=COUNT)
    found = certified(MODEL, data.images, data.labels, ids=data.ids, n=N, n0=50)
    order = {int(one): at for at, one in enumerate(data.ids)}
    at = np.array([order[int(one)] for one in rows["sample"]])
    assert len(at) == COUNT
    assert np.array_equal(rows["hits"].astype(int), found.hits[at])
    assert rows["radius"] == pytest.approx(np.where(found.right, found.radius, 0.0)[at], abs=1e-12)
    assert ((rows["outcome"] == "proved") == found.right[at]).all()
    figures = run[1].figures.certified
    assert figures is not None and figures.votes is not None
    assert (figures.votes.n, figures.votes.alpha) == (N, 0.001)
    assert figures.votes.abstains == int(found.abstains.sum())
    assert figures.proved == int((found.right & (found.radius >= 0.1)).sum()) > 0
    assert figures.proved + figures.broken + figures.wrong + figures.open == COUNT
    assert figures.clean.value >= figures.empirical.value >= figures.certified.value
    assert figures.curve is not None and figures.curve.certified[0] == found.right.mean()


def test_a_killed_certification_counts_only_what_is_missing(
    run: tuple[Path, Evaluation], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    before = _records(folder)
    assert len(before) == 3
    gone = list(before)[1]
    shutil.rmtree(folder / "records" / gone)
    shutil.rmtree(folder / "figures")
    kept = [folder / "records" / key / "record.json" for key in before if key != gone]
    times = [path.stat().st_mtime_ns for path in kept]
    _evaluated(folder)
    again = _records(folder)
    assert set(again) == set(before)
    for name in ("hits", "chosen", "radius", "outcome"):
        assert (again[gone][name] == before[gone][name]).all()
    assert [path.stat().st_mtime_ns for path in kept] == times


def test_votes_are_about_every_budget_of_a_norm(
    run: tuple[Path, Evaluation], tmp_path: Path
) -> None:
    """Another budget reads the same records; linf has the radius that follows from l2."""
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    before = set(_records(folder))
    wider = _evaluated(folder, "l2:0.3").figures.certified
    assert set(_records(folder)) == before
    narrow = run[1].figures.certified
    assert wider is not None and narrow is not None
    assert wider.curve is not None and narrow.curve is not None
    first, second = (
        dict(zip(one.x, one.certified, strict=True)) for one in (wider.curve, narrow.curve)
    )
    radii = {float(one) for rows in _records(run[0]).values() for one in rows["radius"]}
    assert radii <= first.keys() & second.keys()  # beside the eighths of each budget
    assert all(first[one] == second[one] for one in first.keys() & second.keys())
    assert wider.proved <= narrow.proved
    found = _evaluated(tmp_path / "linf", "linf:0.01")
    rows = Rows.joined(list(_records(tmp_path / "linf").values()))
    wide = Rows.joined(list(_records(run[0]).values()))
    mine = dict(zip(rows["sample"], rows["radius"], strict=True))
    for sample, radius in zip(wide["sample"], wide["radius"], strict=True):
        assert mine[sample] == pytest.approx(float(radius) / 8, abs=1e-12)
    figures = found.figures.certified
    assert figures is not None and "l2 radius divided by the root of 64" in figures.method


def _evidence(broken: int, count: int = 400, rejected: int = 0) -> Evidence:
    """Images with a radius of 0.5 of which some are broken, and some rejected when clean."""
    ids = np.arange(count)
    right = ids >= rejected
    clean = Rows(
        {
            "sample": ids,
            "label": ids % 10,
            "prediction": ids % 10,
            "correct": right,
            "rejected": ~right,
        }
    )
    won = (ids >= count - broken) & right
    trial = Trial(
        "pgd", Rows({"sample": ids, "success": won, "correct": right, "l2": np.full(count, 0.2)})
    )
    votes = Rows(
        {
            "sample": ids,
            "outcome": np.full(count, "proved", object),
            "method": np.full(count, "smoothing", object),
            "radius": np.full(count, 0.5),
            "below": np.full(count, np.nan),
            "hits": np.full(count, 990),
            "n": np.full(count, 1000),
            "alpha": np.full(count, 0.001),
        }
    )
    return Evidence(
        clean, [trial], False, "l2", 0.25, (0.0, 1.0), 64, 10, others={"certify": votes},
        stochastic=True, rejects=True,
    )  # fmt: skip


def test_few_wrong_certificates_are_chance_and_many_are_a_bug() -> None:
    (few,), (many,) = (list(w30_contradicted(_evidence(broken))) for broken in (1, 40))
    assert (few.level, many.level) == ("note", "stop") and few.id == many.id == "W30"
    # A proof without votes is never wrong by chance.
    sure = _evidence(1)
    plain = Rows(
        {k: v for k, v in sure.others["certify"].items() if k not in ("hits", "n", "alpha")}
    )
    (one,) = w30_contradicted(replace(sure, others={"certify": plain}))
    assert one.level == "stop"
    # The budget decides: radii of 0.5 say nothing about 0.6.
    assert not len(contradictions(replace(_evidence(40), eps=0.6)))


def test_an_abstention_of_the_deployed_vote_is_no_contradiction() -> None:
    evidence = _evidence(0, rejected=30)
    assert not len(contradictions(evidence))
    found = certified_figures(Case(evidence))
    assert found is not None
    assert (found.proved, found.broken, found.wrong, found.open) == (370, 0, 30, 0)
    assert found.clean.value >= found.empirical.value >= found.certified.value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": BASE}, r"write 'zoo:digits-natural\+smoothed\(sigma=0.25\)'"),
        ({"model": f"{BASE}+gaussian_noise"}, r"write 'zoo:digits-natural\+smoothed"),
        ({"certify": "smoothing(n=9)"}, "it takes 10 votes"),
        ({"certify": "smoothing(alpha=1)"}, "alpha is 1"),
        ({"certify": "smoothing(n0=0)"}, "n0 is 0"),
        ({"certify": "smoothing(votes=9)"}, "no parameter 'votes'"),
        ({"certify": "crown(n=9)"}, "gives options to a method that has none"),
        ({"certify": "smoohting"}, "did you mean 'smoothing'"),
        ({"threat": "l1:1"}, "is for l2, linf"),
        ({"threat": "l2"}, "a certificate is for one budget"),
    ],
)
def test_what_is_refused_before_any_work(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    asked = {"model": MODEL, "threat": "l2:0.1", "certify": "smoothing", **options}
    with pytest.raises(BesiegeError, match=said):
        besiege.evaluate(
            asked.pop("model"),
            "digits",
            attacks="averaged(pgd, 2)",
            count=4,
            examine="none",
            out=tmp_path / "run",
            **asked,
        )
    assert not (tmp_path / "run").exists()


def test_the_command_shows_what_a_certificate_rests_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["certify", MODEL, "--data", "digits", "--threat", "l2:0.1", "--count", "5"]
    words += ["--method", "smoothing(n=100)", "--attacks", "noise", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "each certificate from 100 votes, wrong with probability 0.001 at most" in shown
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Certificates of randomised smoothing, from 100 votes" in page
