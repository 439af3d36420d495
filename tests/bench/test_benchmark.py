"""A benchmark as a TOML file: its values, and all problems of a wrong one at once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from besiege.bench.benchmark import Benchmark, Cell
from besiege.bench.benchmark_files import benchmark_of, read_benchmark
from besiege.core.errors import InputError

GOOD = """
name = "digits"
data = "digits"
count = 50
[models]
natural = "zoo:digits-natural"
pgd-at = "zoo:digits-pgd-at"
coarse = "zoo:digits-natural+bits(depth=2)"
[tags]
defense = {natural = "none", pgd-at = "adversarial training"}
[[cells]]
name = "white"
threat = "linf:0.15 targeted:random"
attacks = ["fgsm", "bim"]
budget = "search"
[[cells]]
name = "transfer"
threat = "linf"
budgets = ["0.1", 0.2]
attacks = "bim"
seeds = [1, 2]
substitute = {default = "pgd-at", pgd-at = ["natural", "zoo:digits-natural+bits(depth=3)"]}
[compare]
pairs = [["pgd-at", "natural"]]
[store]
images = "shown"
"""


def changed(old: str, new: str) -> str:
    """The problems of the good benchmark with one change."""
    assert old in GOOD
    with pytest.raises(InputError) as found:
        benchmark_of(tomllib.loads(GOOD.replace(old, new, 1)))
    return str(found.value)


def test_a_good_one_is_read_and_read_back() -> None:
    found = benchmark_of(tomllib.loads(GOOD))
    white, transfer = found.cells
    assert white.threats() == [(None, "linf targeted:random")]
    assert transfer.threats() == [("0.1", "linf:0.1"), ("0.2", "linf:0.2")]
    assert transfer.substitutes("natural") == ("pgd-at",) and white.substitutes("natural") == ()
    assert transfer.substitutes("pgd-at") == ("natural", "zoo:digits-natural+bits(depth=3)")
    assert found.seeds(white) == (0,) and found.seeds(transfer) == (1, 2)
    assert list(found.models) == ["natural", "pgd-at", "coarse"]
    assert Benchmark.model_validate_json(found.model_dump_json()) == found
    plain = Cell.model_validate({"name": "a", "threat": "l2:0.5", "attacks": ["pgd"]})
    assert plain.threats() == [("0.5", "l2:0.5")] and plain.examine == "short"


PROBLEMS: list[tuple[str, str, str]] = [
    ("count = 50", "cuont = 50", "cuont: unknown key, did you mean 'count'"),
    ("budget =", "bugdet =", 'cells[1] "white".bugdet: unknown key, did you mean \'budget'),
    ("images =", "image =", "store.image: unknown key, did you mean 'images'"),
    ('"shown"', '"some"', "store.images: it should be 'all', 'shown' or 'none'"),
    ("count = 50", "count = 0", "count: it should be greater than or equal to 1"),
    ('"search"', '"8/255"', "cells[1] \"white\".budget: it should be 'search'"),
    ('["fgsm", "bim"]', '["fgsm", 3]', 'cells[1] "white".attacks[2]: it should be a valid string'),
    ('attacks = ["fgsm", "bim"]', "", 'cells[1] "white": give attacks or a suite'),
    ('attacks = ["fgsm", "bim"]', 'suite = "standrd"', "did you mean 'standard'"),
    ("linf:0.15", "linff:0.15", 'cells[1] "white".threat: '),
    ('budget = "search"', 'budgets = ["0.1"]', "its budget is none of the budgets"),
    ('budgets = ["0.1", 0.2]', "", "cells[2] \"transfer\".threat: 'linf' has no budget"),
    ('["0.1", 0.2]', '["0.1", "1/10"]', 'cells[2] "transfer".budgets[2]: the budget is listed'),
    ('"transfer"', '"white"', 'cells[2] "white".name: another cell has it'),
    ("[1, 2]", '[1, 2]\nmodels = ["natura"]', ".models[1]: no model of [models] is called"),
    ("[1, 2]", "[1, 1]", 'cells[2] "transfer".seeds[2]'),
    ('default = "pgd-at"', 'default = "pgdat"', "did you mean 'pgd-at'"),
    ('default = "pgd-at", ', "", "there is none for 'natural'"),
    ('default = "pgd-at"', 'default = "natural"', "'natural' would be attacked through itself"),
    ('default = "pgd-at"', 'default = "zoo:digits-natural"', "attacked through itself"),
    ('[["pgd-at", "natural"]]', '[["pgd-at", "other"]]', "compare.pairs[1]: no model of [models]"),
    ('[["pgd-at", "natural"]]', '[["pgd-at", "pgd-at"]]', "is compared with itself"),
    ('natural = "none"', 'natrual = "none"', "tags.defense.natrual: no model of [models]"),
    ("zoo:digits-pgd-at", "zoo:digits-natural", "models.pgd-at: it is the same model as 'natural'"),
    ("pgd-at =", "default =", "models.default: choose another name"),
    ('name = "digits"', 'name = "a/b"', "name: "),
    ('data = "digits"', "", "data: it is missing"),
]


@pytest.mark.parametrize(("old", "new", "said"), PROBLEMS, ids=[said for *_, said in PROBLEMS])
def test_a_problem_is_named_with_its_place(old: str, new: str, said: str) -> None:
    assert said in changed(old, new)


def test_all_problems_are_told_at_once() -> None:
    content: dict[str, Any] = tomllib.loads(GOOD)
    content["sed"] = 1
    content["store"] = {"images": "some"}
    content["compare"] = {"pairs": [["pgd-at", "other"]]}
    content["cells"][0]["models"] = ["natura"]
    content["cells"][1]["count"] = "many"
    content["cells"][1]["substitute"] = "natural"
    with pytest.raises(InputError) as found:
        benchmark_of(content, "digits.toml")
    lines = str(found.value).splitlines()
    assert lines[0] == "digits.toml has 6 problems:" and len(lines) == 7


def test_a_list_of_models_is_told_the_table() -> None:
    content: dict[str, Any] = tomllib.loads(GOOD) | {"models": ["zoo:digits-natural"]}
    with pytest.raises(InputError) as found:
        benchmark_of(content, "digits.toml")
    said = str(found.value)
    assert "- models: it should be a table of NAME = VALUE, but it is ['zoo:" in said
    assert "models: none is declared" not in said


def test_files_that_are_no_benchmark_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("name = ")
    (tmp_path / "b.toml").write_text("")
    (tmp_path / "c.toml").write_bytes(b"\xff")
    for name, said in (
        ("a.toml", "is not TOML"),
        ("b.toml", "models: none is declared"),
        ("c.toml", "is not TOML"),
        ("d.toml", "there is no file"),
        (".", "cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            read_benchmark(tmp_path / name)
