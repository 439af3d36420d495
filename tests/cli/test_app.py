"""The door: help, overview, exit codes, errors in one calm line, terminals of all kinds."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

from besiege.attacks.suites import DEFAULT, DEFAULT_TRANSFER, SUITES
from besiege.cli import main
from besiege.cli.app import _COMMANDS, _MODULES, APP

COMMANDS = (
    "evaluate",
    "run",
    "slurm",
    "examine",
    "clever",
    "certify",
    "attack",
    "train",
    "substitute",
    "detector",
    "status",
    "report",
    "serve",
    "history",
    "export",
    "import",
    "replay",
    "merge",
    "compare",
    "spec",
    "study",
    "attacks",
    "defenses",
    "show",
    "models",
    "data",
    "completion",
    "version",
)


def test_every_command_is_there() -> None:
    assert {name for name in APP if not name.startswith("-")} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(command: str) -> None:
    listed = next(names[command] for names in _COMMANDS.values() if command in names)
    module = import_module(f"besiege.cli.{_MODULES.get(command, command)}")
    assert (module.command.default_command.__doc__ or "").splitlines()[0] == listed


def test_help_imports_no_command_and_nothing_slow() -> None:
    code = (
        "import sys; from besiege.cli import main; code = main(['--help'])\n"
        "slow = {'torch', 'numpy', 'pydantic', 'duckdb', 'besiege.cli.evaluate'}\n"
        "print(code, *slow & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0"] and "Read results" in done.stdout


def test_alone_it_gives_an_overview_of_one_screen_with_three_examples(besiege: Besiege) -> None:
    said = besiege()
    assert said.code == 0
    assert said.out.count("  besiege ") == 3
    assert len(said.out.splitlines()) <= 24
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_fits_80_columns(besiege: Besiege, command: str) -> None:
    said = besiege(command, "--help")
    assert said.code == 0 and said.err == ""
    assert f"Examples:\n  besiege {command}" in said.out or "  BESIEGE_DATA" in said.out
    assert "--debug" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    assert "``" not in said.out and "Parameters\n---" not in said.out


def test_the_help_of_a_command_has_all_of_its_text(besiege: Besiege) -> None:
    for words in (("history", "--help"), ("help", "history"), ("--debug", "history", "--help")):
        assert "A run keeps every evaluation." in besiege(*words).out, words


def test_help_names_every_suite_and_the_usual_attacks(besiege: Besiege) -> None:
    said = " ".join(besiege("evaluate", "--help").out.replace("│", " ").split())
    for name in SUITES:
        assert f"{name}," in said, name
    for listed in (DEFAULT, DEFAULT_TRANSFER):
        assert f'"{", ".join(listed)}"' in said


def test_a_command_in_the_overview_can_be_copied(besiege: Besiege) -> None:
    lines = besiege().out.splitlines()
    for line, after in pairwise(lines):
        if after.startswith("    "):
            assert line.endswith(" \\")


def test_the_first_help_page_says_how_things_are_written(besiege: Besiege) -> None:
    for page in (besiege("--help").out, besiege("evaluate", "--help").out):
        for word in ("zoo:digits-pgd-at", "model.py:make", "linf:8/255", "pgd(steps=100", ".npz"):
            assert word in page
    assert "completion" in besiege("--help").out


def test_help_may_be_asked_as_a_word(besiege: Besiege) -> None:
    assert besiege("help").out == besiege("--help").out
    assert besiege("help", "show").out == besiege("show", "--help").out


def test_version(besiege: Besiege) -> None:
    import besiege as package

    assert besiege("--version").out.strip() == package.__version__
    said = besiege("version")
    assert f"besiege {package.__version__}" in said.out and "torch" in said.out


def test_looking_things_up_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from besiege.cli import main\n"
        f"for name in {COMMANDS}:\n"
        "    assert main([name, '--help']) == 0, name\n"
        "for tokens in ([], ['--help'], ['version'], ['data'], ['models'], ['models', '--json'],\n"
        "               ['completion', 'bash'], ['show', 'digits'], ['show', 'quick'],\n"
        "               ['show', 'zoo:digits-natural'], ['__complete', 'evaluate', 'zoo']):\n"
        "    assert main(tokens) == 0, tokens\n"
        "assert main(['status', 'nowhere']) == 2\n"
        "assert main(['report', 'nowhere']) == 2\n"
        "assert main(['evalaute']) == 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "zoo:digits-natural" in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_script_is_installed_under_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["besiege"] == "besiege.cli:main"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m besiege models | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].startswith("model")
    assert done.stdout.splitlines()[1] in ("0", "141")  # whether it had been written by then


def test_a_terminal_without_utf8_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["attacks"]) == 0
    assert main(["--help"]) == 0
    stream.flush()
    text = held.getvalue().decode("ascii")
    assert "Tram?r" in text and "+- Measure" in text


def test_piped_output_is_plain(besiege: Besiege) -> None:
    for tokens in (("models",), ("attacks",), ("--help",)):
        text = besiege(*tokens).out
        assert "\x1b" not in text
        assert not any(line != line.rstrip() for line in text.splitlines())


def test_a_mistake_shows_no_traceback_unless_asked(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in besiege("show", "pdg").err
    said = besiege("show", "pdg", "--debug")
    assert said.code == 2 and "Traceback" in said.err and "did you mean 'pgd'" in said.flat
    monkeypatch.setenv("BESIEGE_DEBUG", "1")
    assert "Traceback" in besiege("show", "pdg").err
    monkeypatch.setenv("BESIEGE_DEBUG", "0")
    assert "Traceback" not in besiege("show", "pdg").err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("evaluate my.py:make --data digits", "--threat is missing: write for example --threat l"),
        ("evaluate my.py:make --threat linf:0.1", "--data is missing: write for example --data d"),
        ("evaluate my.py:make --data digits --threat", "--threat needs a value, such as --threat"),
        ("evaluate --data digits --threat linf:0.1", "MODEL is missing, as in: besiege evaluate z"),
        ("detector squeezing --data digits", "--model is missing: write for example --model zoo:"),
        ("attack", "MODEL is missing, as in: besiege attack zoo:digits-natural --images digits"),
    ],
)
def test_what_is_missing_is_said_with_an_example(besiege: Besiege, words: str, answer: str) -> None:
    said = besiege(*words.split())
    assert said.code == 2 and answer in said.flat and "--help` shows" in said.flat


def test_the_unexpected_is_said_in_a_line_with_exit_code_70(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("somewhere inside")

    monkeypatch.setattr("besiege.models.catalogue.listing", broken)
    said = besiege("models")
    assert said.code == 70
    assert "ZeroDivisionError: somewhere inside" in said.flat and "--debug" in said.flat
    assert "Traceback" not in said.err


def test_interrupted_anywhere(besiege: Besiege, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("besiege.models.catalogue.listing", stop)
    said = besiege("models")
    assert said.code == 130 and said.flat == "Interrupted."


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(besiege: Besiege, shell: str) -> None:
    script = besiege("completion", shell).out
    assert "besiege" in script and "evaluate" in script and "targeted" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_completion_is_written_where_it_is_asked_for(besiege: Besiege, tmp_path: Path) -> None:
    said = besiege("completion", "fish", "--out", "besiege.fish")
    assert said.code == 0 and (tmp_path / "besiege.fish").read_text().startswith("#")


def test_names_are_completed(besiege: Besiege) -> None:
    assert "zoo:digits-natural" in besiege("__complete", "evaluate", "zoo").out
    assert "fashion-mnist" in besiege("__complete", "evaluate", "x", "--data", "").out
    assert "digits_cnn" in besiege("__complete", "train", "natural", "--arch", "").out


def test_the_environment_is_left_alone(besiege: Besiege) -> None:
    before = dict(os.environ)
    besiege("models")
    assert dict(os.environ) == before


def test_threads_that_wait_soon_sleep_unless_the_user_says_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given, wanted in (
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ):
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert main(["--version"]) == 0
        assert os.environ.get("GOMP_SPINCOUNT") == wanted
