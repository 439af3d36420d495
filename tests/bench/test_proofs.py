"""Certificates of a run: what is proved, and what contradicts it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import besiege
from besiege.bench.evaluations import Evaluation
from besiege.bounds import relaxing
from besiege.cli import main
from besiege.core.errors import BesiegeError, BoundError, InputError, ThreatError

MODEL, THREAT = "zoo:digits-pgd-at", "linf:0.1"
COUNT = 24


def _certified(out: Path | None, threat: str = THREAT, method: str = "crown") -> Evaluation:
    return besiege.evaluate(
        MODEL,
        "digits",
        threat=threat,
        attacks="pgd(steps=10)",
        examine="none",
        certify=method,
        count=COUNT,
        shard=8,
        out=out,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluation]:
    folder = tmp_path_factory.mktemp("certified") / "run"
    return folder, _certified(folder)


def test_what_is_proved_is_at_most_what_attacks_left(run: tuple[Path, Evaluation]) -> None:
    found = run[1].figures.certified
    assert found is not None
    assert found.clean.value >= found.empirical.value >= found.certified.value > 0
    assert found.proved + found.broken + found.wrong + found.open == COUNT
    # Broken is what the table of attacks counts: an image that was right, and that an attack broke.
    assert found.broken == found.clean.hits - found.empirical.hits
    assert found.contradicted == 0
    assert "W30" not in {one.id for one in run[1].figures.warnings}


def test_both_curves_fall_and_do_not_cross(run: tuple[Path, Evaluation]) -> None:
    found = run[1].figures.certified
    assert found is not None and found.curve is not None and found.curve.attacked is not None
    low, high = np.array(found.curve.certified), np.array(found.curve.attacked)
    assert (np.diff(low) <= 0).all() and (np.diff(high) <= 0).all() and (low <= high).all()
    assert low[0] > low[-1]


@pytest.mark.parametrize("threat", ["linf:0.1", "linf:0.2"])
def test_at_the_budget_the_curves_are_the_figures(
    run: tuple[Path, Evaluation], threat: str
) -> None:
    """At 0.2 nothing is proved, and the curves go on to it from the last radius that is."""
    found = (run[1] if threat == THREAT else _certified(None, threat)).figures.certified
    assert found is not None and found.curve is not None and found.curve.attacked is not None
    eps, x = float(threat.split(":")[1]), np.array(found.curve.x)
    (at,) = np.isclose(x, eps, rtol=1e-9).nonzero()[0]
    assert found.curve.certified[at] == found.certified.value
    assert found.curve.attacked[at] == found.empirical.value
    assert set(np.round(8 * x / eps, 6)) >= set(range(9)) and (np.diff(x) > 1e-6 * eps).all()
    if threat == "linf:0.2":
        assert found.certified.value == 0 < max(found.curve.certified[1:])
        assert found.empirical.value < 1


def test_page_and_figures_show_both(run: tuple[Path, Evaluation]) -> None:
    from besiege.report import write_page

    folder, found = run
    (page, *_) = [write_page(folder)]
    text = Path(page).read_text("utf-8")
    assert "Between proof and attack" in text and "withstood the attacks" in text
    plain = found.figures.plain()["certified"]
    assert plain["method"] == "crown" and plain["contradicted"] == 0


def test_a_killed_certification_resumes_with_the_same_records(
    run: tuple[Path, Evaluation], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    from besiege.bench.store import Store

    store = Store(folder)
    keys = [path.parent.name for path in folder.glob("records/*/record.json")]
    certificates = [key for key in keys if _kind(store, key) == "certify"]
    assert len(certificates) == 3
    before = {key: store.rows([key]) for key in certificates}
    shutil.rmtree(folder / "records" / certificates[1])
    shutil.rmtree(folder / "figures")
    _certified(folder)
    for key, rows in before.items():
        again = Store(folder).rows([key])
        for name in rows:
            same = rows[name] == again[name]
            assert (same | (rows[name] != rows[name])).all(), name


def _kind(store: object, key: str) -> str:
    record = store.read(key)  # type: ignore[attr-defined]  # a Store
    return str(record.identity["kind"])


def test_a_bound_with_a_flipped_sign_is_contradicted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted error: the intercept of the chord counts with the wrong sign."""
    from besiege.bounds import bounding, forward

    true = relaxing.lines

    def wrong(rectifier: object, bounds: object, parallel: bool = False) -> relaxing.Lines:
        good = true(rectifier, bounds, parallel)  # type: ignore[arg-type]  # as given
        return relaxing.Lines(good.below, good.above, -4 * good.intercept)

    monkeypatch.setattr(bounding, "lines", wrong)
    monkeypatch.setattr(forward, "lines", wrong)
    words = ["certify", "zoo:digits-natural", "--data", "digits", "--threat", "linf:0.15"]
    code = main([*words, "--count", "16", "--no-curve", "--out", str(tmp_path / "run")])
    shown = capsys.readouterr().out
    assert code == 4
    assert "W30" in shown and "certified" in shown


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"certify": "crwn"}, BesiegeError),
        ({"certify": "crown", "certify_seconds": 0.0}, InputError),
        ({"certify": "crown", "threat": "l0:5"}, ThreatError),
        ({"certify": "crown", "threat": "linf"}, ThreatError),
        ({"certify": "crown", "model": "zoo:digits-natural+jpeg(quality=75)"}, BoundError),
        ({"certify": "crown", "model": "zoo:digits-natural+gaussian_noise(sigma=0.1)"}, BoundError),
    ],
)
def test_what_cannot_be_certified_is_refused_before_any_work(
    options: dict[str, object], error: type[Exception], tmp_path: Path
) -> None:
    given: dict[str, object] = {"model": MODEL, "threat": THREAT, **options}
    with pytest.raises(error):
        besiege.evaluate(  # type: ignore[call-overload]  # options of several types
            given.pop("model"), "digits", count=8, out=tmp_path / "run", attacks="fmn", **given
        )
    assert not (tmp_path / "run").exists()
