"""The files of examples/ci: they parse, name options that exist, and do what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]  # it ships no types
from tests.report.schema import Schema

from besiege.cli import main
from besiege.cli.app import APP

CI = Path(__file__).parents[1] / "examples" / "ci"
SCHEMA = Schema(Path(__file__).parent / "report" / "junit.xsd")
MODEL = "from besiege.models import load\n\n\ndef make():\n    return load('zoo:digits-pgd-at')\n"


def hook() -> dict[str, Any]:
    (repository,) = yaml.safe_load((CI / ".pre-commit-config.yaml").read_text())["repos"]
    (only,) = repository["hooks"]
    return dict(only)


def steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load((CI / "robustness.yml").read_text())
    return list(workflow["jobs"]["robustness"]["steps"])


def scripts() -> dict[str, str]:
    """The scripts of the workflow's steps, by name."""
    return {step.get("name", ""): step["run"] for step in steps() if "run" in step}


@pytest.mark.parametrize("text", [hook()["entry"], scripts()["Gate"]], ids=["hook", "workflow"])
def test_its_options_exist(text: str) -> None:
    command = text[text.index("besiege evaluate") :].replace("\\\n", " ")
    known = {name for one in APP["evaluate"].assemble_argument_collection() for name in one.names}
    written = re.findall(r"(?<!\S)(--[a-z-]+)", command + text.replace("(", " "))
    assert {"--fail-under", "--threat"} <= set(written) <= known


def test_the_files_have_what_their_programs_need() -> None:
    assert {"id", "name", "entry", "language"} <= hook().keys()
    assert re.match(hook()["files"], "model.py") and re.match(hook()["files"], "weights/a.pt")
    workflow = yaml.safe_load((CI / "robustness.yml").read_text())
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads `on` as a truth value
    assert all(("uses" in step) != ("run" in step) for step in steps())
    saved = [step["with"]["path"] for step in steps() if "cache/" in step.get("uses", "")]
    assert saved == ["runs/main", "runs/main"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a model and images, as the examples expect."""
    from PIL import Image

    from besiege.data import load

    (tmp_path / "model.py").write_text(MODEL)
    data = load("digits", count=60)
    for image, label, number in zip(data.images, data.labels, data.ids, strict=True):
        folder = tmp_path / "data" / "test" / str(int(label))
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (255 * image[0]).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"{int(number)}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def smaller(text: str) -> str:
    """The same gate on fewer images and with fewer attacks."""
    return re.sub(r"--suite quick --count \d+", "--attacks fgsm --count 60", text)


def test_the_hook_runs_again_without_work(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(smaller(hook()["entry"]))[1:]
    assert main(words) == 0
    assert "fail-under 35 passed: model.py:make against linf:8/255" in capsys.readouterr().err
    assert main(words) == 0
    assert "nothing is left to do" in capsys.readouterr().err


@pytest.mark.slow
def test_the_workflow_compares_with_the_main_branch(project: Path) -> None:
    place = project / "bin"
    place.mkdir()
    (place / "besiege").write_text(f'#!/bin/sh\nexec {sys.executable} -m besiege "$@"\n')
    (place / "besiege").chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    environment["GITHUB_STEP_SUMMARY"] = str(project / "summary.md")

    def obey(script: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    gate = smaller(scripts()["Gate"]).replace("linf:8/255", "linf:0.1")
    gate = gate.replace("--fail-under 45", "--fail-under 20")
    first = obey(gate)
    assert first.returncode == 0 and "not-worse-than" not in first.stderr, first.stderr
    assert obey(scripts()["Keep the run of the main branch"]).returncode == 0
    (project / "model.py").write_text(MODEL.replace("pgd-at", "natural"))
    other = obey(gate.replace("linf:0.1", "linf:0.2"))
    assert other.returncode == 2 and "no evaluation with the threat 'linf:0.2'" in other.stderr
    environment["GITHUB_REF"] = "refs/heads/main"
    begun = obey(gate.replace("linf:0.1", "linf:0.2").replace("runs/new", "runs/begun"))
    assert begun.returncode == 1, "the main branch begins a new series, with its other gates"
    assert "fail-under 20 failed" in begun.stderr and "not-worse-than" not in begun.stderr[-300:]
    del environment["GITHUB_REF"]
    second = obey(gate)
    assert second.returncode == 1, second.stderr
    assert "fail-under 20 passed" in second.stderr
    assert "not-worse-than runs/main failed: model.py:make against linf:0.1: worse" in second.stderr
    assert (project / "summary.md").read_text().count("## Robustness: ") == 3
    assert SCHEMA.problems((project / "robustness.xml").read_bytes()) == []
    assert (project / "runs" / "new" / "report.html").exists()
