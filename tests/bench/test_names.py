"""No name of a folder changes a figure, or fails: the laws of paths."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import besiege
from besiege.bench.overview import status
from besiege.bench.parquet import packed, unpacked
from besiege.bench.pictures import pictures
from besiege.bench.results import summarise
from besiege.bench.store import Store
from besiege.core.shell import shell

KNOWN = [
    *("l2=3", "correct=1", "success=0", "linf=0.1", "eps=inf", "exp/l2=0.5", "record=x", "row=1"),
    *("sample=2024-01-01", "label=null/prediction=true", "filename=1", "file_row_number=7"),
    *("*", "?", "**", "q[x]", "[!a]", "{a,b}", "a*b?c", "[", "]", "q\\", "\\*", "a\\b"),
    *("it's", 'a"b', "`a`", "'", '"', "two\nlines", "tab\there", "bell\x07", "\x1b[31mred"),
    *("~", "~root", "$HOME", "%s", "%41", "100%", "#a", "a?b#c", "a;b", "a|b", "a&b", "<a>", "!"),
    *("-x", "--out", " ", " a ", "a b", "a,b", "a:b", "file:x", "s3:", ":memory:", "memory:x"),
    *("Ωμέγα", "日本語", "العربية", "e\u0301", "🙂", "\u202egnp.exe", "\u200b", "\udcff\udcfe"),
    *("...", ".hidden", "CON", "a" * 255, "d/" * 40 + "deep", "records", "run.json", "{{x}}"),
]
LETTERS = "=*?[]{}'\"\\\n\t~%$#&;|<>!^`() -.,:@+0aZéλ日🙂\x01\x7f\udc80"
ASK: dict[str, Any] = {"threat": "l2", "attacks": "fmn(steps=3)", "count": 12, "curve": False}


def nested(names: list[str], size: int) -> list[str]:
    """Several names in one path each: any of them could change what is read below."""
    return ["/".join(names[n : n + size]) for n in range(0, len(names), size)]


def drawn(count: int) -> list[str]:
    """Names of chance, the same in every run."""
    chance = random.Random(22)
    found = ["".join(chance.choices(LETTERS, k=chance.randint(1, 20))) for _ in range(count)]
    return [name for name in found if name not in (".", "..")]


def evaluated(folder: Path) -> dict[str, Any]:
    """The figures of one short evaluation."""
    besiege.evaluate("zoo:digits-natural", "digits", out=folder, **ASK)
    return plain(folder)


def plain(folder: Path) -> dict[str, Any]:
    """All figures of a folder but for the times and the words that asked for them."""
    found = summarise(folder)
    one = found.evaluations[0].plain()
    one["cost"].pop("seconds")
    del one["made"], one["commit"]
    for stage in (*one["attacks"], *one["cascade"], *one["attack_utility"]):
        stage.pop("seconds")
    return one


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("names") / "run"
    return folder, evaluated(folder)


def test_no_name_changes_a_figure(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, expected = run
    here = folder
    try:
        for name in [*KNOWN[:6], *nested([*KNOWN[6:], *drawn(80)], 8)]:
            there = tmp_path / name
            there.parent.mkdir(parents=True, exist_ok=True)
            here.rename(there)
            here = there
            shutil.rmtree(there / "figures")  # or nothing would be read from the records
            assert plain(there) == expected, repr(name)
            assert status(there)[0].complete, repr(name)
        (item, *_) = summarise(here).evaluations[0].gallery
        assert pictures(Store(here), [item])(item)[0].shape == (1, 8, 8)
    finally:
        here.rename(folder)


@pytest.mark.parametrize("name", ["l2=3", "q[x]\n*?", "'\"\\~", "\udcff=%41", "~"])
def test_an_evaluation_is_the_same_under_any_name(
    run: tuple[Path, dict[str, Any]], tmp_path: Path, name: str
) -> None:
    assert evaluated(tmp_path / name) == run[1]
    assert besiege.report.write_page(tmp_path / name).stat().st_size > 10_000


def test_no_name_reads_the_rows_of_another_folder(
    run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, expected = run
    for name in ("qx", "q[x]"):
        shutil.copytree(folder, tmp_path / name)
    for rows in (tmp_path / "qx").rglob("rows.parquet"):  # past every digest
        rows.write_bytes(packed({"sample": unpacked([("0", rows.read_bytes())])["sample"]}))
    assert plain(tmp_path / "q[x]") == expected


def test_a_command_is_read_back_by_a_shell() -> None:
    names = [Path(name) for name in (*KNOWN, *drawn(200))]
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {shell(names)}"], capture_output=True, check=True
    )
    found = [Path(os.fsdecode(one)) for one in said.stdout.split(b"\0")[:-1]]
    assert found == names
    assert shell(names).isprintable()
