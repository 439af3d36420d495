"""Plans in ``run.json``: what was changed after it was written is said to be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import besiege
from besiege.bench.overview import status
from besiege.bench.results import summarise
from besiege.core.errors import StoreError

Edit = Callable[[dict[str, Any]], object]


def asked(folder: Path, threat: str = "linf:0.1") -> besiege.Evaluation:
    return besiege.evaluate(
        "zoo:digits-natural", "digits", threat=threat, attacks="fgsm", count=6, out=folder
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spec") / "run"
    asked(folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def edited(folder: Path, edit: Edit) -> None:
    content = json.loads((folder / "run.json").read_text())
    edit(content)
    (folder / "run.json").write_text(json.dumps(content))


def damage(folder: Path) -> list[str]:
    (one, *_) = summarise(folder).evaluations
    return [w.seen for w in one.warnings if w.id == "DAMAGED"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda run: run["plans"][0]["model"].update(name="another"),
        lambda run: run["plans"][0].update(threat="linf:0.2"),
        lambda run: run["plans"][0]["asked"].update(command="besiege evaluate something else"),
        lambda run: run["plans"][0].update(digest="0" * 64),
        lambda run: run["versions"].update(besiege="9.9"),
        lambda run: run.update(created="1999-01-01T00:00:00+00:00"),
    ],
)
def test_a_changed_plan_is_said_to_be(run: Path, edit: Edit) -> None:
    assert status(run)[0].complete and damage(run) == []
    edited(run, edit)
    (said,) = damage(run)
    assert "was changed after it was written" in said
    assert not summarise(run).complete
    (one,) = status(run)
    assert not one.complete and len(one.damaged) == 1
    # Request again it is as it was; nothing is computed again.
    before = sorted((run / "records").iterdir())
    assert asked(run).complete and damage(run) == []
    assert sorted((run / "records").iterdir()) == before


def test_a_changed_plan_stays_one_when_others_are_written(run: Path) -> None:
    edited(run, lambda run: run["plans"][0]["model"].update(name="another"))
    assert asked(run, "linf:0.05").complete
    assert len(damage(run)) == 1 and [s.complete for s in status(run)] == [False, True]


def test_plans_of_releases_without_digests_are_read(run: Path) -> None:
    def older(content: dict[str, Any]) -> None:
        del content["plans"][0]["digest"]

    edited(run, older)
    assert status(run)[0].complete and damage(run) == []


def test_what_is_no_plan_is_refused(run: Path) -> None:
    for text in ("[]", "{", "[" * 100_000, '{"schema_number": 1, "plans": [1]}', "NaN"):
        (run / "run.json").write_text(text)
        with pytest.raises(StoreError, match="cannot be read"):
            status(run)
