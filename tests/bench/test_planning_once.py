"""Planning asks each model once, and plans what it would plan otherwise."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from besiege.bench import preparing
from besiege.bench.expanding import declared
from besiege.bench.preparing import Prepared, prepare_benchmark
from besiege.bench.spec import Machine
from besiege.core import identity
from besiege.evaluation import blocking
from besiege.studies.choosing import Choice, chosen
from besiege.studies.study import STUDIES


def planned(folder: Path) -> Prepared:
    choice = Choice("digits", "smoke", count=6, only="*linf untargeted")
    benchmark, path = chosen(STUDIES.get("realsafe"), choice)
    return prepare_benchmark(declared(benchmark, path.parent), folder, None, Machine("cpu"))


def keys(prepared: Prepared) -> list[str]:
    return [task.key for plan in prepared.plans for task in plan.tasks()]


def test_keys_are_those_of_models_that_are_asked_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[str] = []
    gradients: list[Any] = []
    digest, gradient = identity._within, blocking.must_have_gradient

    def counted(*given: Any) -> str:
        digests.append(digest(*given))
        return digests[-1]

    monkeypatch.setattr(identity, "_within", counted)

    def asked(*given: Any) -> None:
        gradients.append(given)
        gradient(*given)

    monkeypatch.setattr("besiege.bench.planning.must_have_gradient", asked)
    first = planned(tmp_path)
    few = len(digests), len(gradients)
    monkeypatch.setattr(preparing, "unchanged", nullcontext)
    second = planned(tmp_path)
    assert keys(first) == keys(second) and len(keys(first)) > 400
    assert first.entries == second.entries
    # Three networks, that behind JPEG included. A gradient is asked of each model, and of the
    # substitute of each model on images for that.
    assert few == (3, 6)
    assert len(digests) > 200 and len(gradients) > 40


def test_a_changed_copy_of_a_plan_has_a_name_and_a_series_of_its_own(tmp_path: Path) -> None:
    plan = planned(tmp_path).plans[0]
    name, series = plan.name, plan.series
    other = plan.model_copy(update={"request": plan.request.model_copy(update={"seed": 5})})
    assert other.name != name and other.series != series
    assert (plan.name, plan.series) == (name, series)
    read = type(plan).model_validate_json(plan.model_dump_json(by_alias=True))
    assert (read.name, read) == (name, plan)
