from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save
from tests.bench.records import content
from tests.conftest import SMALL_RUN

from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.expanding import declared
from besiege.bench.merging import joined_runs, merge
from besiege.bench.overview import open_run, status
from besiege.bench.plan import Plan
from besiege.bench.results import summarise
from besiege.bench.single import evaluate, measure
from besiege.bench.spec import Replay
from besiege.bench.store import Record, Store
from besiege.cli import main
from besiege.core.errors import StoreError
from besiege.models.catalogue import ZOO


def another(folder: Path, **more: Any) -> Path:
    evaluate("zoo:digits-natural", "digits", out=folder, **{**SMALL_RUN, **more})
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return another(tmp_path_factory.mktemp("other") / "run", attacks="bim")


def test_folders_are_joined(evaluated: Path, other: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    one, two = merge(both, [evaluated, other])
    assert (one.records, one.known, one.plans, one.damaged) == (3, 0, 1, ())
    assert (two.records, two.known, two.plans) == (2, 1, 1), "the clean images are the same"
    assert content(both) == content(evaluated) | content(other)
    figures = summarise(both)
    assert figures.complete and len(figures.evaluations) == 2
    another(tmp_path / "together")
    assert content(both) == content(another(tmp_path / "together", attacks="bim"))
    (again,) = merge(both, [other])
    assert (again.records, again.known, again.plans) == (0, 3, 0)


def test_half_of_the_records_each(evaluated: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(evaluated, tmp_path / "half"))
    whole = content(evaluated)
    for number, key in enumerate(sorted(whole)):
        shutil.rmtree((evaluated if number % 2 else half) / "records" / key)
    assert not status(evaluated)[0].complete and not status(half)[0].complete
    merge(half, [evaluated])
    assert content(half) == whole and status(half)[0].complete


def test_an_attack_of_a_suite_follows_the_verdicts_that_are_there(tmp_path: Path) -> None:
    """Verdicts of two machines may differ: then the next attack left out what stands here."""
    how = {"attacks": None, "suite": "fgsm, pgd(steps=5)"}
    whole, mine = (another(tmp_path / name, **how) for name in ("whole", "mine"))
    (plan,) = open_run(mine)[1].current
    (craft, judge), (next_craft, next_judge) = (one.parts[0] for one in plan.stages_of("craft"))
    store = Store(mine)
    verdicts = store.rows([judge.key])
    broken = verdicts["sample"][verdicts["success"] & verdicts["correct"]][0]
    judged: dict[str, Any] = {}
    for task, fooled in ((craft, "claimed"), (judge, "success")):
        record, rows = store.read(task.key), store.rows([task.key])
        assert record is not None
        files = {} if judged else {"images.safetensors": save(store.images(task.key))}
        kept = {name: column.copy() for name, column in rows.items() if name not in _PLACE}
        kept[fooled][kept["sample"] == broken] = False  # broken there, and left here
        store.discard(task.key)
        record = replace(record, provenance={**record.provenance, **judged})
        store.commit(record, kept, files)
        done = store.read(task.key)
        assert done is not None
        judged = {"judged": dict(done.files)}
    for task in (next_craft, next_judge):
        store.discard(task.key)
    merge(mine, [whole])
    found = summarise(mine)
    assert not found.complete
    assert any("follows verdicts" in one.seen for one in found.evaluations[0].warnings)
    again = evaluate("zoo:digits-natural", "digits", out=mine, **{**SMALL_RUN, **how})
    assert again.complete and again.robust is not None
    assert again.robust.count == SMALL_RUN["count"], "no sample is left out"


_PLACE = ("record", "row")


def test_damaged_foreign_and_failed_records_are_left_out(evaluated: Path, tmp_path: Path) -> None:
    store = Store(evaluated)
    first, second, third = sorted(store.present())
    path = store.records / first / "rows.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    (store.records / second).rename(store.records / ("0" * 64))
    (store.records / "notes").mkdir()
    store.commit(Record({"kind": "x"}, failure={"type": "E", "message": "m"}))
    (found,) = merge(tmp_path / "both", [evaluated])
    assert (found.records, found.failures, len(found.damaged)) == (1, 1, 3)
    assert Store(tmp_path / "both").present() == {third}
    words = "\n".join(found.damaged)
    assert "changed after" in words and "another task" in words and "incomplete" in words
    assert main(["merge", str(tmp_path / "again"), str(evaluated)]) == 3


def test_what_replaces_a_damaged_record_is_joined(evaluated: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(evaluated, tmp_path / "mine"))
    path = next((mine / "records").glob("*/record.json"))
    path.write_text("{")
    (found,) = merge(mine, [evaluated])
    assert found.records == 1 and content(mine) == content(evaluated)


def test_a_changed_plan_is_left_out(evaluated: Path, tmp_path: Path) -> None:
    path = evaluated / "run.json"
    text = json.loads(path.read_text())
    text["plans"][0]["threat"] = "linf:0.2"
    path.write_text(json.dumps(text))
    (found,) = merge(tmp_path / "both", [evaluated])
    assert found.plans == 0 and "was changed" in found.damaged[0]


def test_the_newer_evaluation_of_a_request_is_the_current_one(evaluated: Path) -> None:
    _, run = open_run(evaluated)
    (plan,) = run.plans
    model = plan.model.model_copy(update={"digest": "0" * 64})
    old, new = plan.model_copy(update={"made": "2020"}), plan.model_copy(update={"made": "2030"})
    new = new.model_copy(update={"model": model})
    for mine, other in ((old, new), (new, old)):
        both = joined_runs(
            run.model_copy(update={"plans": (mine,)}), run.model_copy(update={"plans": (other,)})
        )
        assert both.plans == (old, new) and both.current == (new,)


def test_a_model_that_came_back_is_the_current_one_again(evaluated: Path) -> None:
    _, run = open_run(evaluated)
    (plan,) = run.plans
    model = plan.model.model_copy(update={"digest": "0" * 64})
    first = plan.model_copy(update={"made": "2020"})
    other = plan.model_copy(update={"made": "2022", "model": model})
    again = plan.model_copy(update={"made": "2024"})
    before, after = (run.model_copy(update={"plans": p}) for p in ((first, other), (other, again)))
    for mine, theirs in ((before, after), (after, before)):
        assert joined_runs(mine, theirs).plans == (other, again)
    shown = first.model_copy(update={"replays": (_shown(first),)})
    joined = joined_runs(before, run.model_copy(update={"plans": (shown,)}))
    assert joined.current == (other,), "images that were added to an old one change no order"
    assert joined.plans[0].replays == shown.replays


def _shown(plan: Plan) -> Replay:
    return Replay(attack=plan.attacks[0], images=("0" * 64,), counts=(1,))


def test_nothing_is_written_for_a_folder_that_is_no_run(evaluated: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run folder"):
        merge(tmp_path / "both", [evaluated, tmp_path])
    assert not (tmp_path / "both").exists()
    with pytest.raises(StoreError, match="into itself"):
        merge(evaluated, [evaluated])
    assert main(["merge", str(tmp_path / "both")]) == 2
    assert main(["merge", str(tmp_path / "both"), str(tmp_path / "nowhere")]) == 2


def test_the_command_says_what_was_joined(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(tmp_path / "both"), str(evaluated)]) == 0
    assert "3 records and 1 evaluations joined" in capsys.readouterr().out
    assert main(["merge", str(tmp_path / "both"), str(evaluated), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["known"] == 3


def spec(folder: Path, *models: str, count: int = 6) -> Path:
    texts = {name.removeprefix("digits-"): f"zoo:{name}" for name in models}
    return of_models(folder, texts, Path(), count)


def of_models(folder: Path, models: dict[str, str], base: Path, count: int = 6) -> Path:
    benchmark = benchmark_of(
        {
            "name": "small",
            "data": "digits",
            "count": count,
            "models": models,
            "cells": [
                {"name": "one", "threat": "linf:0.1", "attacks": ["fgsm"], "examine": "none"}
            ],
        }
    )
    measure(declared(benchmark, base), out=folder)
    return folder


def test_runs_of_a_benchmark_are_joined_as_one(tmp_path: Path) -> None:
    """Another machine may have run the same benchmark with more models, but not another one."""
    few = spec(tmp_path / "few", "digits-natural")
    more = spec(tmp_path / "more", "digits-natural", "digits-pgd-at")
    for number, folders in enumerate(([few, more], [more, few])):
        both = tmp_path / f"both{number}"
        merge(both, folders)
        _, run = open_run(both)
        assert run.benchmark is not None and set(run.benchmark.models) == {"natural", "pgd-at"}
        assert {entry.model for entry in run.entries} == {"natural", "pgd-at"}
        assert content(both) == content(more) and summarise(both).complete
    other = spec(tmp_path / "other", "digits-natural", count=7)
    with pytest.raises(StoreError, match="change of count"):
        merge(tmp_path / "none", [few, other])
    assert not (tmp_path / "none").exists()


def test_a_benchmark_of_two_machines_has_every_row_once(tmp_path: Path) -> None:
    """The same files lie in other folders there; other files of the same name are refused."""
    for name, zoo in (("here", "natural"), ("there", "natural"), ("other", "pgd-at")):
        (tmp_path / name).mkdir()
        shutil.copy(ZOO / f"digits-{zoo}.safetensors", tmp_path / name / "w.safetensors")
    runs = [
        of_models(tmp_path / f"{name}-run", {"mine": "digits_cnn:w.safetensors"}, tmp_path / name)
        for name in ("here", "there", "other")
    ]
    merge(tmp_path / "both", runs[:2])
    (found,) = summarise(tmp_path / "both").evaluations
    assert found.complete and content(tmp_path / "both") == content(runs[0])
    for folders in (runs[1:], runs[:0:-1]):
        with pytest.raises(StoreError, match=r"the model 'mine' \(digits_cnn:.*differs between"):
            merge(tmp_path / "none", folders)
        assert not (tmp_path / "none").exists()
