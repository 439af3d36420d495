"""Rules about whole runs: targeted beside untargeted evaluations, records that say too little."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.expanding import declared
from besiege.bench.overview import open_run
from besiege.bench.reading import _unsaid
from besiege.bench.results import summarise
from besiege.bench.single import measure
from besiege.bench.store import ROWS, Record, Store
from besiege.bench.summaries import comparison, summary_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weak: dict[str, Any] = {"threat": "linf:0.2", "attacks": ["bim(steps=1)"], "examine": "none"}
    strong = {**weak, "attacks": ["bim(steps=20)"], "goal": "targeted:second"}
    content = {
        "name": "goals",
        "data": "digits",
        "count": 60,
        "models": {"natural": "zoo:digits-natural", "pgd-at": "zoo:digits-pgd-at"},
        "cells": [
            {"name": "weak", **weak},
            {"name": "targeted", **strong},
            {"name": "smaller", **strong, "threat": "linf:0.1"},
            {"name": "few", **strong, "count": 30},
        ],
    }
    folder = tmp_path_factory.mktemp("goals")
    measure(declared(benchmark_of(content), Path()), out=folder)
    return folder


def test_w19_targeted_evaluations_stand_beside_untargeted_ones(run: Path) -> None:
    found = {one.name: one for one in summarise(run).evaluations}
    store, recorded = open_run(run)
    fired = {
        (entry.cell, entry.model)
        for entry in recorded.entries
        if any(warning.id == "W19" for warning in found[entry.plan].warnings)
    }
    assert fired and fired <= {("weak", "natural"), ("weak", "pgd-at")}
    summaries = {e.plan: summary_of(store, recorded.plan(e.plan)) for e in recorded.entries}  # type: ignore[arg-type]  # each has its plan
    first = next(entry for entry in recorded.entries if entry.cell == "weak")
    beside = comparison(summaries[first.plan], list(summaries.values()), {}).targeted
    assert [one.threat for one in beside] == ["linf:0.2 targeted:second"], (
        "only its own budget and images"
    )


def changed(store: Store, kind: str, **fields: Any) -> None:
    """Write the first record of a kind anew, with other fields; its key stays that of its text."""
    for key in sorted(store.present()):
        found = store.with_files(key, None)
        assert found is not None
        record, files = found
        if record.identity["kind"] == kind:
            contents = dict(files)
            if fields.pop("anonymous", False):
                contents[ROWS] = contents[ROWS].replace(b"sample", b"simple")
            store.discard(key)
            Store(store.folder).commit(replace(record, **fields, files={}), None, contents)
            return


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("craft", {"provenance": {}}, "which version of the code made them"),
        ("clean", {"anonymous": True}, "which samples they are about"),
    ],
)
def test_w36_a_record_that_says_too_little_stops(
    run: Path, tmp_path: Path, kind: str, fields: dict[str, Any], said: str
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "copy"))
    changed(Store(folder), kind, **fields)
    stops = [
        warning.seen
        for one in summarise(folder).evaluations
        for warning in one.warnings
        if warning.id == "W36" and warning.level == "stop"
    ]
    assert stops and all(said in seen for seen in stops)
    assert not [w for one in summarise(run).evaluations for w in one.warnings if w.id == "W36"]


def test_w36_seed_and_parameters_are_asked_for_too() -> None:
    whole = Record(
        {"seed": 0, "attack": {"name": "pgd"}}, provenance={"versions": {"besiege": "1"}}
    )
    assert not [*_unsaid(whole, "craft")]
    assert len([*_unsaid(Record({}), "craft")]) == 3
