"""Figures are kept beside the records, and used only while they are of these very records."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from besiege.bench import summaries
from besiege.bench.plan import Plan
from besiege.bench.reading import Gathered, gather
from besiege.bench.results import summarise
from besiege.bench.run import read_run
from besiege.bench.store import Store
from besiege.report import write_page

BEFORE = Path(__file__).parent / "written_before"
EVALUATIONS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE, tmp_path / "run"))


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The evaluations whose records were read."""
    names: list[str] = []

    def counted(store: Store, plan: Plan) -> Gathered:
        names.append(plan.name)
        return gather(store, plan)

    monkeypatch.setattr(summaries, "gather", counted)
    yield names


def a_record(folder: Path, file: str) -> Path:
    return min((folder / "records").glob(f"*/{file}"))


def test_a_complete_evaluation_is_summarised_once(folder: Path, gathered: list[str]) -> None:
    first = summarise(folder)
    assert len(gathered) == EVALUATIONS
    assert summarise(folder) == first and len(gathered) == EVALUATIONS
    assert summarise(folder).plain() == json.loads(json.dumps(first.plain()))


def test_with_everything_kept_no_record_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, page = summarise(folder), write_page(folder).read_bytes()
    assert b"data:image/png" in page and b"could not be read" not in page

    def read(*_: Any) -> Any:
        raise AssertionError("a record was read")

    monkeypatch.setattr(Store, "with_files", read)
    assert summarise(folder) == first
    assert write_page(folder).read_bytes() == page


def test_images_that_were_changed_are_not_shown_from_memory(folder: Path) -> None:
    write_page(folder)
    kept = folder / "figures" / "pictures.safetensors"
    assert kept.is_file()
    item = summarise(folder).evaluations[0].gallery[0]
    path = folder / item.record / "images.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "images.safetensors that was changed" in write_page(folder).read_text("utf-8")
    shutil.rmtree(folder / "figures")
    assert "images.safetensors that was changed" in write_page(folder).read_text("utf-8")
    assert not kept.exists(), "what cannot be read is not kept"


@pytest.mark.parametrize("file", ["record.json", "rows.parquet"])
def test_an_edited_record_is_noticed(folder: Path, gathered: list[str], file: str) -> None:
    assert summarise(folder).complete
    path = a_record(folder, file)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    about = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # as if nothing had happened
    found = summarise(folder)
    assert not found.complete and len(gathered) > EVALUATIONS
    assert any(w.id == "DAMAGED" for e in found.evaluations for w in e.warnings)


def test_what_is_not_complete_is_not_kept(folder: Path, gathered: list[str]) -> None:
    shutil.rmtree(a_record(folder, "rows.parquet").parent)
    assert not summarise(folder).complete
    lacking = EVALUATIONS - len(list((folder / "figures").glob("*.json")))
    assert lacking >= 1
    summarise(folder)
    assert len(gathered) == EVALUATIONS + lacking


def test_another_plan_and_other_code_are_noticed(
    folder: Path, gathered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summarise(folder)
    store, run = Store(folder), read_run(Store(folder))
    assert run is not None
    renamed = run.plans[0].model_copy(
        update={"model": run.plans[0].model.model_copy(update={"name": "another"})}
    )
    assert renamed.name == run.plans[0].name
    assert summaries.summary_of(store, renamed).figures.model.name == "another"
    monkeypatch.setattr(summaries, "_code", lambda: ["another version"])
    summarise(folder)
    assert len(gathered) == 2 * EVALUATIONS + 1


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "no file"])
def test_kept_figures_that_are_damaged_are_computed_again(folder: Path, damage: str) -> None:
    first = summarise(folder)
    for path in (folder / "figures").iterdir():
        content = path.read_bytes()
        if damage == "no file":
            path.unlink()
            path.mkdir()
        else:
            changed = content.replace(b'"broken": 1', b'"broken": 9')
            path.write_bytes({"cut": content[:-9], "changed": changed}.get(damage, b""))
    assert summarise(folder) == first


def test_a_folder_that_may_only_be_read_works_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    assert summarise(folder).complete
    assert not (folder / "figures").exists()


def asked(mine: summaries.Summary, threat: str, eps: float, **changes: Any) -> summaries.Summary:
    """The same evaluation with another budget, and something else besides."""
    request = mine.plan.request.model_copy(
        update={"curve": "none", **changes.pop("request", {})}  # or its name would be the same
    )
    plan = mine.plan.model_copy(update={"threat": threat, "request": request, **changes})
    return summaries.Summary(plan, mine.figures, replace(mine.outline, threat=threat, eps=eps))


def test_only_the_same_victim_samples_and_terms_are_compared(folder: Path) -> None:
    run = read_run(Store(folder))
    assert run is not None
    mine = summaries.summary_of(Store(folder), run.plans[0])
    mine = replace(mine, plan=mine.plan.model_copy(update={"chained": False}))

    def elsewhere(**changes: Any) -> list[float]:
        other = asked(mine, changes.pop("threat", "linf:0.05"), 0.05, **changes)
        found = summaries.comparison(mine, [mine, other], {})
        assert bool(found.beside) >= bool(found.elsewhere)
        return [*found.elsewhere]

    assert elsewhere() == [0.05]
    other_model = mine.plan.model.model_copy(update={"digest": "0" * 64})
    for changes in (
        {"shards": mine.plan.shards[:1]},
        {"model": other_model},
        {"threat": "linf:0.05 targeted:second"},
        {"threat": "linf:0.05 score"},
        {"request": {"queries": 100}},
        {"request": {"seed": 1}},
        {"chained": True},
    ):
        assert elsewhere(**changes) == [], changes
