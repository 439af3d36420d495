"""What the commands say of a benchmark: names, declared pairs, transfer, warnings."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

import besiege as package
from besiege.cli import main

SPEC = """
name = "words"
data = "digits"
count = 20
[models]
plain = "zoo:digits-natural"
trained = "zoo:digits-pgd-at"
coarse = "zoo:digits-natural+bits(depth=2)"
[[cells]]
name = "white"
threat = "linf:0.15"
attacks = ["fgsm", "bim(steps=3)", "mim(steps=4)"]
[[cells]]
name = "from another"
threat = "linf:0.2"
attacks = ["bim(steps=3)"]
substitute = { default = "trained", trained = "plain" }
models = ["plain", "trained"]
[compare]
pairs = [["trained", "plain"]]
"""
TEXTS = re.compile(r"zoo:\S+")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("words")
    (place / "words.toml").write_text(SPEC)
    assert main(["run", str(place / "words.toml"), "--out", str(place / "run")]) == 0
    return place / "run"


def test_models_are_shown_by_their_names_in_the_benchmark(
    besiege: Besiege, run: Path, tmp_path: Path
) -> None:
    for words in (("compare",), ("status",), ("history",)):
        assert not TEXTS.findall(besiege(*words, str(run)).out.replace("besiege run", ""))
    report = besiege("report", str(run)).out
    assert "(trained against linf:0.15" in " ".join(report.split())
    assert not TEXTS.findall(report.partition("To run next")[0]), "commands need the texts"
    pages = " ".join(page.read_text() for page in (run / "site" / "cells").glob("*.html"))
    assert "crafted on plain<" in pages and "crafted on zoo:" not in pages
    table = tmp_path / "table.md"
    besiege("export", str(run), str(table))
    assert "| coarse |" in table.read_text() and not TEXTS.findall(table.read_text())
    rows = tmp_path / "rows.csv"
    besiege("export", str(run), str(rows))
    assert {row["model"] for row in csv.DictReader(rows.read_text().splitlines())} == {
        "plain",
        "trained",
        "coarse",
    }


def test_progress_has_the_names_of_the_benchmark(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "words.toml").write_text(SPEC)
    said = besiege("run", "words.toml", "--count", "5", "--out", "small")
    assert "1 of 5: plain against linf:0.15" in said.err and not TEXTS.findall(said.err)


@pytest.mark.parametrize(
    "names", [("plain", "trained"), ("zoo:digits-natural", "zoo:digits-pgd-at"), ("plain",)]
)
def test_names_and_texts_choose_models(besiege: Besiege, run: Path, names: tuple[str, ...]) -> None:
    chosen = [word for name in names for word in ("--model", name)]
    if len(names) > 1:
        content = json.loads(besiege("compare", str(run), *chosen, "--json").out)
        shown = {one["name"] for group in content["groups"] for one in group["evaluations"]}
        assert shown == {"plain", "trained"}
    assert besiege("export", str(run), f"{len(names)}.md", "--force", *chosen[:2]).code == 0
    table = Path(f"{len(names)}.md").read_text()
    assert "| plain |" in table and "| trained |" not in table


def test_names_and_texts_choose_results_in_python(run: Path) -> None:
    found = package.open(run)
    assert isinstance(found, package.Evaluations)
    by_name, by_text = (
        found[f"{name} against linf:0.2"] for name in ("trained", "zoo:digits-pgd-at")
    )
    assert by_name is by_text and "trained against linf:0.2" in found.names


def test_an_unknown_name_is_told_with_near_names(besiege: Besiege, run: Path) -> None:
    said = besiege("compare", str(run), "--model", "plane")
    assert said.code == 2 and "did you mean 'plain'" in said.flat
    said = besiege("export", str(run), "x.md", "--model", "plane")
    assert said.code == 2 and "did you mean 'plain'" in said.flat


def test_a_comparison_says_that_only_declared_pairs_are_tested(besiege: Besiege, run: Path) -> None:
    flat = " ".join(besiege("compare", str(run)).out.split())
    assert "declares in [compare] are tested: trained and plain. Pairs are declared" in flat
    assert "p is corrected for 2 comparisons" in flat
    content = json.loads(besiege("compare", str(run), "--json").out)
    assert content["declared"] == [["trained", "plain"]] and content["comparisons"] == 2
    other = besiege("compare", str(run), "--model", "coarse", "--model", "plain")
    assert "are tested: trained and plain" in " ".join(other.out.split())


def test_captions_say_where_attacks_were_crafted_on_substitutes(
    besiege: Besiege, run: Path, tmp_path: Path
) -> None:
    said = besiege("compare", str(run)).out
    assert "against linf:0.15\n" in said and "against linf:0.2, transfer\n" in said
    groups = json.loads(besiege("compare", str(run), "--json").out)["groups"]
    assert [group["transfer"] for group in groups] == [False, True]
    board, table = tmp_path / "board.md", tmp_path / "table.md"
    besiege("export", str(run), str(board), "--board")
    assert "; linf:0.15, white box. " in board.read_text()
    assert "; linf:0.2, transfer. " in board.read_text()
    besiege("export", str(run), str(table))
    assert "| trained | linf:0.2, transfer |" in table.read_text()
    besiege("export", str(run), str(table), "--threat", "linf:0.2", "--force")
    assert "; linf:0.2, transfer." in table.read_text()


def test_a_run_ends_with_the_number_of_its_warnings(besiege: Besiege, run: Path) -> None:
    said = besiege("run", str(run.parent / "words.toml"), "--out", str(run))
    head = besiege("report", str(run)).out.splitlines()[0]
    assert re.match(r"\d+ (warning|note)s?: W\d\d", head)
    words = head.replace("(explained below)", "(explained by besiege report)")
    assert words in said.out and f"Pages and warnings: besiege report {run}" in said.out
