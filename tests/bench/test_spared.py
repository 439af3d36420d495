"""Attacks are not run on what is proved, and proofs not on what is broken; figures count both."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.records import content
from tests.children import forked

import besiege
from besiege.bench.evaluations import Evaluation
from besiege.bench.kinds.certify import CHECKED, spared
from besiege.bench.store import Store
from besiege.metrics.evidence import SPARED, Evidence, Trial
from besiege.metrics.rows import Rows
from besiege.metrics.warnings import w11_vanished

MODEL, THREAT, COUNT = "zoo:digits-pgd-at", "linf:0.06", 60


def _evaluated(out: Path, certify: str | None, **options: Any) -> Evaluation:
    asked: dict[str, Any] = {
        "threat": THREAT,
        "attacks": ("pgd(steps=10)", "fgsm"),
        "examine": "none",
        "curve": "none",
        "count": COUNT,
        "shard": 30,
        **options,
    }
    found: Evaluation = besiege.evaluate(MODEL, "digits", certify=certify, out=out, **asked)
    return found


def _rows(folder: Path, kind: str, **about: str) -> Rows:
    store = Store(folder)
    keys = sorted(path.parent.name for path in folder.glob("records/*/record.json"))
    found = {key: store.read(key) for key in keys}
    mine = [
        key
        for key, record in found.items()
        if record is not None
        and record.identity["kind"] == kind
        and all(record.identity.get(name) == value for name, value in about.items())
    ]
    return Rows.joined([store.rows([key]) for key in mine])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Evaluation]]:
    """The same evaluation without proofs and with them."""
    home = tmp_path_factory.mktemp("spared")
    found = {}
    for name, certify in (("plain", None), ("proved", "crown")):
        found[name] = (home / name, _evaluated(home / name, certify))
    return found


def test_all_figures_are_those_of_attacks_on_every_image(
    both: dict[str, tuple[Path, Evaluation]],
) -> None:
    plain, proved = (both[name][1].figures for name in ("plain", "proved"))
    assert plain.robust == proved.robust and plain.clean == proved.clean
    for one, other in zip(plain.attacks, proved.attacks, strict=True):
        assert (one.accuracy, one.broken, one.alone) == (other.accuracy, other.broken, other.alone)
        assert other.forwards < one.forwards and other.backwards < one.backwards
    found = proved.certified
    assert found is not None
    assert found.proved + found.broken + found.wrong + found.open == COUNT
    assert found.spared > 10 and found.contradicted == 0


def test_proved_images_were_not_attacked_but_one_in_ten(
    both: dict[str, tuple[Path, Evaluation]],
) -> None:
    folder, result = both["proved"]
    proofs, crafted = _rows(folder, "certify"), _rows(folder, "craft", text="fgsm")
    proved = proofs["sample"][proofs["outcome"] == "proved"]
    safe = crafted["sample"][crafted[SPARED].astype(bool)]
    assert np.isin(safe, proved).all()
    checked = np.setdiff1d(proved, safe)
    found = result.figures.certified
    assert found is not None and found.spared == len(safe)
    # Of each of the two records the first, the eleventh and so on.
    assert 2 <= len(checked) <= len(proved) / CHECKED + 2
    # No pass was spent on them, and their images are the clean ones.
    untouched = np.isin(crafted["sample"], safe)
    assert not crafted["forwards"][untouched].any() and crafted["forwards"][~untouched].all()
    judged = _rows(folder, "judge")
    assert not judged["success"][np.isin(judged["sample"], safe)].any()
    assert (judged["linf"][np.isin(judged["sample"], safe)] == 0).all()


def test_attacks_ran_on_what_they_were_not_spared(
    both: dict[str, tuple[Path, Evaluation]],
) -> None:
    folder, result = both["proved"]
    for stage in result.figures.cascade:
        crafted = _rows(folder, "craft", text=stage.text)
        safe = int(crafted[SPARED].astype(bool).sum())
        assert stage.spared == safe > 0
        assert stage.before == stage.broken + stage.left + stage.unknown
    first = result.figures.cascade[0]
    assert first.ran_on == int(
        _rows(folder, "craft", text=first.text)["forwards"].astype(bool).sum()
    )
    for one in result.figures.attack_utility:
        crafted = _rows(folder, "craft", text=one.text)
        run = ~crafted[SPARED].astype(bool)
        spent = (crafted["forwards"] + crafted["backwards"])[run]
        assert one.passes == pytest.approx(float(spent.mean()))


def test_one_in_ten_by_the_order_of_ids() -> None:
    ids = np.arange(100, 140)
    outcome = np.where(ids % 2 == 0, "proved", "open").astype(object)
    order = np.random.default_rng(0).permutation(40)
    rows = Rows({"sample": ids[order], "outcome": outcome[order]})
    safe = ids[spared(ids, rows)]
    assert len(safe) == 18 and set(range(100, 140, 2)) - set(safe.tolist()) == {100, 120}


def test_a_branch_and_bound_begins_with_proofs_that_spare_the_attacks(tmp_path: Path) -> None:
    given: dict[str, Any] = {"threat": "linf:0.12", "certify_seconds": 0.2}
    found = _evaluated(tmp_path / "run", "complete", count=16, shard=16, **given)
    figures = found.figures.certified
    assert figures is not None and figures.method == "complete" and figures.spared > 0
    first = _rows(tmp_path / "run", "certify", method="crown")
    last = _rows(tmp_path / "run", "certify", method="complete")
    early = first["sample"][first["outcome"] == "proved"]
    again = np.isin(last["sample"], early)
    assert (last["outcome"][again] == "proved").all() and again.any()
    margins = dict(zip(first["sample"], first["margin"], strict=True))
    for sample, margin, radius in zip(
        last["sample"][again], last["margin"][again], last["radius"][again], strict=True
    ):
        assert margin == margins[sample] and radius == pytest.approx(0.12)
    # What an attack broke was not bounded again.
    judged = _rows(tmp_path / "run", "judge")
    broken = judged["sample"][judged["success"].astype(bool)]
    mine = np.isin(last["sample"], broken)
    assert mine.any() and (last["outcome"][mine] == "broken").all()
    assert (last["regions"][mine] == 0).all()


@pytest.mark.parametrize("method", ["exact", "smoothing(n=100)"])
def test_other_methods_spare_nothing(method: str, tmp_path: Path) -> None:
    model = MODEL if method == "exact" else "zoo:digits-natural+smoothed(sigma=0.1, draws=11)"
    threat = "linf:0.02" if method == "exact" else "l2:0.1"
    besiege.evaluate(
        model,
        "digits",
        threat=threat,
        attacks="noise",
        certify=method,
        certify_seconds=0.01,
        examine="none",
        curve="none",
        count=4,
        out=tmp_path / "run",
    )
    crafted = _rows(tmp_path / "run", "craft")
    assert SPARED not in crafted and len(crafted["sample"]) == 4


def test_an_attack_that_learns_nothing_is_reported_beside_spared_images() -> None:
    """Rows that were never attacked say nothing about gradients."""
    ids = np.arange(20)
    yes, no = np.ones(20, bool), np.zeros(20, bool)
    clean = Rows({"sample": ids, "label": ids, "prediction": ids, "correct": yes})
    for some in (no, ids < 5):
        rows = Rows({"sample": ids, "success": no, "correct": yes, "vanished": ~some, SPARED: some})
        evidence = Evidence(
            clean, [Trial("pgd", rows)], False, "linf", 0.1, (0.0, 1.0), 64, 10
        )  # fmt: skip
        assert [one.level for one in w11_vanished(evidence)] == ["stop"]


def test_a_contradiction_is_found_among_the_images_that_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where every image is called proved, the few that are attacked all the same show it."""
    from besiege.bounds.bounding import Bounding

    monkeypatch.setattr(
        Bounding, "margins", lambda self, images, *_: images.new_full((len(images),), 1e6)
    )
    found = _evaluated(tmp_path / "run", "crown", threat="linf:0.3", count=20, shard=20)
    figures = found.figures.certified
    assert figures is not None and figures.contradicted >= 1
    assert "W30" in {one.id for one in found.figures.warnings}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["crown", "smoothing(n=60)"])
def test_killed_after_every_record_the_records_are_the_same(method: str, tmp_path: Path) -> None:
    voting = method != "crown"
    model = "zoo:digits-natural+smoothed(sigma=0.1, draws=11)" if voting else MODEL

    def siege(folder: Path, watch: Any = None) -> Evaluation:
        found: Evaluation = besiege.evaluate(
            model,
            "digits",
            threat="l2:0.1" if voting else THREAT,
            attacks="noise(steps=2)" if voting else "fgsm",
            certify=method,
            examine="none",
            curve="none",
            count=16,
            shard=4,
            out=folder,
            watch=watch,
        )
        return found

    whole = siege(tmp_path / "whole")
    folder, done, deaths = tmp_path / "run", 0, 0

    def kill(event: object) -> None:
        if len(list((folder / "records").glob("[!.]*"))) > done:
            os.kill(os.getpid(), signal.SIGKILL)

    while True:
        done = len(list((folder / "records").glob("[!.]*"))) if folder.exists() else 0
        _, ended = os.waitpid(forked(lambda: siege(folder, kill)), 0)
        if os.WIFEXITED(ended):
            break
        deaths += 1
    assert deaths >= 10 and content(folder) == content(tmp_path / "whole")
    assert siege(folder).figures.certified == whole.figures.certified
