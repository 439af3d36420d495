"""The benchmark of a study by data, size, models and cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from besiege.bench.benchmark import Benchmark, Cell
from besiege.bench.benchmark_files import must_continue, read_benchmark
from besiege.core.errors import InputError, StoreError, UnknownNameError
from besiege.studies.choosing import Choice, Size, chosen, joined
from besiege.studies.study import STUDIES, Study, study_of

REALSAFE, DIGITS = STUDIES.get("realsafe"), STUDIES.get("digits")
SMOKE = Choice("digits", "smoke")


def asked(choice: Choice, study: Study = REALSAFE) -> Benchmark:
    return chosen(study, choice)[0]


def cell(benchmark: Benchmark, name: str) -> Cell:
    return next(one for one in benchmark.cells if one.name == name)


def test_without_a_choice_it_is_the_specification() -> None:
    found, path = chosen(REALSAFE, Choice("cifar10"))
    assert path == REALSAFE.specs["cifar10"]
    assert found == read_benchmark(path)
    assert chosen(DIGITS, Choice())[0] == read_benchmark(DIGITS.spec)


def test_a_size_sets_images_and_the_queries_of_a_try() -> None:
    found = asked(SMOKE)
    assert found.count == 50 and {one.count for one in found.cells} == {None}
    search = cell(found, "score linf untargeted")
    # A limit on the whole search would be spent by its first radius.
    assert search.queries is None
    assert all("(steps=9)" in text for text in search.attacks or ())
    assert cell(found, "decision l2 untargeted").queries == 1000
    assert cell(found, "white linf untargeted") == cell(
        read_benchmark(REALSAFE.specs["digits"]), "white linf untargeted"
    )


def test_patterns_of_cells_have_their_own_numbers() -> None:
    found = asked(Choice("cifar10", "bench"))
    numbers = {one.name: one.count for one in found.cells}
    assert found.count == 500 and numbers["white linf untargeted"] is None
    assert numbers["score linf untargeted"] == 100 and numbers["decision l2 untargeted"] == 50
    assert numbers["score linf untargeted, averaged"] == 25
    paper = asked(Choice("cifar10", "paper"))
    assert paper.count == 10_000 and {one.count for one in paper.cells} == {None}
    assert "(steps=198)" in (cell(paper, "score linf untargeted").attacks or ())[0]


def test_count_and_queries_are_upper_limits_of_every_cell() -> None:
    found = asked(Choice("cifar10", "bench", count=60, queries=2500))
    numbers = {one.name: one.count for one in found.cells}
    assert found.count == 60 and numbers["score linf untargeted"] == 60
    assert numbers["decision l2 untargeted"] == 50
    assert cell(found, "decision l2 untargeted").queries == 2500
    assert "(steps=24)" in (cell(found, "score linf untargeted").attacks or ())[0]


def test_queries_below_one_step_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"100 queries are less than one step of nes@realsafe-code"
    ):
        asked(replace(SMOKE, queries=100))


def test_models_of_the_command_line_have_names_tags_and_substitutes() -> None:
    given = ("zoo:digits-pgd-at", "natural", "mine=zoo:digits-natural+resize_pad")
    found = asked(replace(SMOKE, models=given))
    assert list(found.models) == ["pgd-at", "natural", "mine"]
    assert found.tags["defense"] == {
        "pgd-at": "adversarial training",
        "natural": "none",
        "mine": "randomised",
    }
    moved = cell(found, "transfer linf untargeted")
    assert moved.substitutes("mine") == ("pgd-at",) and moved.substitutes("pgd-at") == ("natural",)


def test_a_substitute_that_is_not_listed_stays_as_a_text() -> None:
    found = asked(replace(SMOKE, models=("natural",)))
    assert cell(found, "transfer linf untargeted").substitutes("natural") == ("zoo:digits-pgd-at",)
    alone = asked(replace(SMOKE, models=("strong=zoo:digits-pgd-at",)))
    moved = cell(alone, "transfer linf untargeted")
    assert moved.substitutes("strong") == ("zoo:digits-natural",)


def test_cells_for_a_kind_of_model_take_those_with_the_tag() -> None:
    few = asked(Choice("cifar10", models=("res-56", "x=zoo:cifar10-natural+resize_pad")))
    assert cell(few, "score linf untargeted, averaged").models == ("x",)
    none = asked(Choice("cifar10", models=("res-56",)))
    assert not any("averaged" in one.name for one in none.cells)


def test_only_some_cells_are_run_and_a_folder_keeps_the_others() -> None:
    white = asked(replace(SMOKE, only="white*"))
    assert {one.name.split()[0] for one in white.cells} == {"white"}
    moved = asked(replace(SMOKE, only="transfer*"))
    both = joined(white, moved)
    assert {one.name.split()[0] for one in both.cells} == {"white", "transfer"}
    assert set(both.models) == {"natural", "pgd-at", "jpeg"}
    assert {one.name for one in joined(both, white).cells} == {one.name for one in both.cells}
    assert joined(white, white) == white


def test_parts_of_a_run_may_have_numbers_of_images_of_their_own() -> None:
    few = asked(replace(SMOKE, only="white*", count=20))
    more = asked(replace(SMOKE, only="transfer*", count=40))
    both = joined(few, more)
    counts = {one.name.split()[0]: one.count or both.count for one in both.cells}
    assert counts == {"white": 20, "transfer": 40}
    must_continue(few, both, "the run")
    # The same commands again, in any order, change nothing.
    assert joined(both, few) == joined(both, asked(replace(SMOKE, only="white*", count=20)))
    assert {one.name: one for one in joined(both, more).cells} == {c.name: c for c in both.cells}
    must_continue(both, joined(both, few), "the run")
    with pytest.raises(StoreError, match="white linf untargeted"):
        must_continue(both, joined(both, asked(replace(SMOKE, only="white*", count=30))), "it")


def test_models_that_would_be_attacked_through_themselves_are_refused_when_joined() -> None:
    """The substitute of the second part is written as a text, since it is no model of it."""
    before = asked(replace(SMOKE, only="white*"))
    after = asked(replace(SMOKE, only="transfer*", models=("natural",)))
    with pytest.raises(InputError, match="would be attacked through itself"):
        joined(before, after)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(), "several data sets: --data cifar10 or digits or imagenet"),
        (Choice("cifar"), "did you mean 'cifar10'"),
        (replace(SMOKE, size="smok"), "did you mean 'smoke'"),
        (replace(SMOKE, only="grey*"), "matches no cell"),
        (replace(SMOKE, models=("natural", "natural")), "lists 'natural' twice"),
        (Choice("imagenet", models=("fd",)), "is absent: feature denoising"),
    ],
)
def test_wrong_choices_are_told(choice: Choice, said: str) -> None:
    with pytest.raises((InputError, UnknownNameError)) as told:
        asked(choice)
    assert said in str(told.value)
    with pytest.raises(UnknownNameError, match="has one size, leave --size out"):
        asked(Choice(size="bench"), DIGITS)


def test_a_run_of_any_size_and_models_belongs_to_its_study() -> None:
    mine = asked(replace(SMOKE, models=("zoo:digits-pgd-at", "m=zoo:digits-natural+bits")))
    assert study_of(mine) is REALSAFE
    other = mine.cells[0].model_copy(update={"threat": "linf:0.2"})
    changed = mine.model_copy(update={"cells": (other, *mine.cells[1:])})
    assert study_of(changed) is None
    assert REALSAFE.differences(changed) == [f"the cell '{other.name}'"]
    renamed = mine.model_copy(update={"models": {"natural": "zoo:digits-pgd-at"}})
    assert REALSAFE.differences(renamed) == ["the model 'natural'"]
    assert REALSAFE.differences(mine.model_copy(update={"data": "mnist"})) == ["other data"]
    attack = mine.cells[0].model_copy(update={"attacks": ("minimal(pgd)",)})
    assert REALSAFE.differences(mine.model_copy(update={"cells": (attack,)})) != []


def test_a_size_without_numbers_changes_nothing() -> None:
    study = replace(REALSAFE, sizes={"same": Size("as it is")})
    assert asked(Choice("digits", "same"), study) == read_benchmark(REALSAFE.specs["digits"])


@pytest.mark.parametrize(
    ("table", "said"),
    [('natural = "x"', "it is one of \\[models\\]"), ("natural = 3", "absent.natural")],
)
def test_an_absent_model_is_no_model(tmp_path: Path, table: str, said: str) -> None:
    text = DIGITS.spec.read_text()
    (tmp_path / "a.toml").write_text(text.replace("[tags]", f"[absent]\n{table}\n[tags]"))
    with pytest.raises(InputError, match=said):
        read_benchmark(tmp_path / "a.toml")


def test_a_size_asks_for_no_more_images_than_the_data_have() -> None:
    study = STUDIES.get("realsafe")
    bench, _ = chosen(study, Choice("digits", "bench"))
    assert bench.count == 397
    assert {cell.count for cell in bench.cells} == {None, 100, 50}
    assert chosen(study, Choice("cifar10", "bench"))[0].count == 500
    assert chosen(study, Choice("imagenet", "paper"))[0].count == 1000
    # A number that is given is meant, and refused where there are fewer images.
    assert chosen(study, Choice("digits", "bench", count=500))[0].count == 500
