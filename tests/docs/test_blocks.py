"""Every command and every block of code of the pages for people runs, on data made on the spot."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import DOCS, Block, blocks
from tests.installing import python_path
from tests.models.serving import serving

from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.expanding import declared
from besiege.bench.exports import EXPORTS
from besiege.cli import main

SKIPPED = {
    "pip install": "it would install",
    "examples/serve.py": "it would never end; the test of the page has the server answer",
    "imagenet-sample": "it needs a data root; tests/cli/test_imagenet.py has it",
    "conform(": "tests/laws/test_example.py runs it",
    "import pandas": "it is not installed; tests/peers/test_frames.py has it",
}
"""What is not run here, and why."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with the examples beside; modules from it are forgotten."""
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BESIEGE_OFFLINE", "1")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


def run(page: str, port: int = 8000) -> dict[str, Any]:
    """Run a page from top to bottom; the names its Python blocks leave behind.

    A server of the page answers on another port than it says, one that was free.
    """
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page):
        block = Block(block.language, block.text.replace(":8000/", f":{port}/"))
        if any(part in block.text for part in SKIPPED):
            continue
        if block.language == "sh":
            for command in block.commands():
                assert obey(command) == 0, command
        elif block.language == "python" and block.file:
            Path(block.file).write_text(block.text, "utf-8")
        elif block.language == "python":
            exec(compile(block.text, page, "exec"), names)
        else:
            assert block.language in ("text", "toml"), block.language
    return names


def obey(command: str) -> int:
    """The exit code of a command, run in this process, which has torch already."""
    program, *words = shlex.split(command)
    if program == "python":
        runpy.run_path(words[0], run_name="__main__")
        return 0
    assert program == "besiege", f"no reader has a program called {program}"
    return main(words)


def test_a_block_is_read_with_its_continued_lines() -> None:
    assert Block("sh", "besiege a \\\n  b\npip c\n").commands() == ["besiege a b", "pip c"]
    assert Block("python", "# mine.py\nx = 1\n").file == "mine.py"
    assert Block("python", "x = 1\n").file is None


@pytest.mark.slow
def test_the_five_minutes_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("start.md")
    said = capsys.readouterr().out
    assert "my_model.py:make against linf:8/255" in said
    assert (place / "my-run" / "report.html").exists()
    assert len(list((place / "besiege-runs").glob("*/report.html"))) == 4
    assert 0 < names["result"].robust.value <= names["result"].clean.value
    assert "images broken" in said


def test_an_attack_of_ones_own_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("own-attack.md")
    said = capsys.readouterr().out
    assert said.startswith("zoo:digits-natural against linf:0.1")
    assert "minimal(my_attack(steps=5))" in said


def test_results_are_used_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXPORTS, "_known", dict(EXPORTS.items()))  # what it registers is forgotten
    names = run("results.md")
    assert len(names["found"]) == 2 and names["natural"].complete
    for suffix in ("csv", "parquet", "txt"):
        assert (place / f"results.{suffix}").stat().st_size > 50
    rows = set(names["natural"].rows) | {"file", "draws"}
    told = set(re.findall(r"`(\w+)`", (DOCS / "results.md").read_text("utf-8")))
    assert {name for name in rows if not name.startswith("best_")} <= told


@pytest.mark.slow
def test_a_defense_of_ones_own_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("own-defense.md")
    said = capsys.readouterr().out
    assert "my_defense.py:make against linf:0.1" in said
    assert "my_defense.py:noisy against linf:0.1" in said
    assert "my_victim.py:make against linf:0.1" in said and "digest_identifies" in said


@pytest.mark.slow
def test_certificates_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("certificates.md")
    assert "noisy.safetensors+smoothed(sigma=0.25, draws=50)" in capsys.readouterr().out
    values = names["curve"].value.tolist()
    assert values == sorted(values, reverse=True) and values[0] > 0.5


@pytest.mark.slow
def test_the_smallest_change_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("smallest.md")
    said = capsys.readouterr().out
    assert "The median smallest perturbation that breaks an image is" in said
    assert (place / "change.safetensors").exists()


def test_models_are_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("compare.md")
    said = capsys.readouterr().out
    (shown,) = [b.text for b in blocks("compare.md") if b.text.startswith("against")]
    told = " ".join(said.split())
    for sentence in re.findall(r"zoo:\S+ withstands more than zoo:[^:]+:", " ".join(shown.split())):
        assert sentence in told, sentence
    for line in shown.splitlines()[3:8] + shown.splitlines()[-2:]:  # columns and explanations
        assert line.split("  ")[0] in said
    assert names["pair"].clear and "better by 4" in said


@pytest.mark.slow
def test_transfer_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(labels_only=True) as server:
        names = run("transfer.md", server.server_address[1])
        assert server.images == 600 + 1  # a known one on the way
    said = capsys.readouterr().out
    assert "--substitute digits_cnn:sub.safetensors" in said
    assert int(names["right"].sum()) < 0.7 * len(names["right"])
    assert "zoo:digits-natural+adapt(size=8, how='white') against linf:0.1" in said


@pytest.mark.slow
def test_defenses_are_attacked_as_described(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("adaptive.md")
    assert "tvm(backward='implicit')" in capsys.readouterr().out


@pytest.mark.slow
def test_asking_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("queries.md")
    assert "nattack" in capsys.readouterr().out


def test_a_model_that_only_answers_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(labels_only=True) as server:
        names = run("endpoints.md", server.server_address[1])
        said = capsys.readouterr()
        assert f"{server.images:,} images sent" in " ".join(said.err.split())
    assert "Nothing was sent." in said.out
    assert bool(names["result"].success.any())


@pytest.mark.slow
def test_gates_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("gates.md")
    said = capsys.readouterr()
    assert "fail-under 70 passed: zoo:digits-pgd-at against linf:0.1" in said.err
    assert "not-worse-than first passed: zoo:digits-pgd-at against linf:0.1: not worse" in said.err
    assert "is at least 70 %" in said.out
    assert (place / "robustness.xml").exists() and (place / "summary.md").exists()
    environment = {**os.environ, "PYTHONPATH": python_path(place / "site")}
    words = [sys.executable, "-m", "pytest", "-q", "test_model.py"]
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_the_first_command_is_the_same_everywhere() -> None:
    command = importlib.import_module("pages.examples").EVALUATION
    for page in ("index.md", "start.md", "report.md", "../README.md"):
        commands = [c for block in blocks(page) if block.language == "sh" for c in block.commands()]
        assert command in commands, page


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in importlib.import_module("besiege.attacks").names() if n != "my_attack"]
)
def test_the_shell_example_of_an_attack_runs(name: str, place: Path) -> None:
    attacks, examples = (importlib.import_module(f"pages.{m}") for m in ("attacks", "examples"))
    text = attacks.example(name)
    command = examples.in_shell(text, importlib.import_module("besiege.attacks").parse(text))
    (line,) = Block("sh", command).commands()
    assert obey(line) == 0


@pytest.mark.slow
def test_a_benchmark_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("benchmark.md")
    said = capsys.readouterr().out
    (shown,) = [b.text for b in blocks("benchmark.md") if b.text.startswith("         clean")]
    for line in shown.splitlines()[:-1]:  # the last says that it goes on
        assert line in said
    texts = [b.text for b in blocks("benchmark.md") if b.language == "toml"]
    written, others, trained = map(tomllib.loads, texts)
    assert len(declared(benchmark_of(written), Path()).entries) == 6
    models = {**written["models"], **trained["models"]}
    assert len(declared(benchmark_of({**written, "models": models}), Path()).entries) == 9
    kept = {"store": {"images": "all"}}  # which replays need
    assert len(declared(benchmark_of({**written, **others, **kept}), Path()).benchmark.replays) == 2
