"""The pytest plugin in sessions of its own, as an installed package would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.installing import python_path

from besiege.core.errors import GateError, InputError
from besiege.testing import Robustness

pytest_plugins = ("pytester",)
ASK = 'threat="linf:0.1", attacks="fgsm", count=50, examine="none"'
TESTS = f"""
    import os, pathlib, pytest

    def measured(robustness):
        found = robustness("zoo:digits-natural", "digits", {ASK})
        with pathlib.Path("workers.txt").open("a") as file:
            file.write(os.environ.get("PYTEST_XDIST_WORKER", "alone") + "\\n")
        return found

    def test_passes(robustness):
        found = measured(robustness)
        assert found.robust.at_least(0.2)
        assert found.robust < 0.9 and float(found.clean) > 0.8

    def test_fails(robustness):
        assert measured(robustness).robust.at_least(0.9)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose environment has the entry points that pyproject.toml declares."""
    monkeypatch.setenv("PYTHONPATH", python_path(pytester.path / "site"))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(test_model=TESTS)
    return pytester


def run_folder(project: pytest.Pytester) -> Path:
    (folder,) = (project.path / ".pytest_cache" / "d" / "besiege").glob("zoo-*")
    return Path(folder)


def records(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mtime_ns for one in (folder / "records").iterdir()}


def test_a_session_measures_and_the_next_one_resumes(project: pytest.Pytester) -> None:
    done = project.runpytest_subprocess()
    done.assert_outcomes(passed=1, failed=1)
    folder = run_folder(project)
    page = os.path.relpath(folder / "report.html", project.path)
    done.stdout.re_match_lines(
        [
            r"E +.*assert \d+\.\d % \[\d+\.\d, \d+\.\d\]: the lower limit \d+\.\d % is below 90 %; "
            rf"\d+ passes in \d+\.\d s; page {page}$"
        ]
    )
    assert (folder / "report.html").stat().st_size > 10_000
    before = records(folder)
    again = project.runpytest_subprocess()
    again.assert_outcomes(passed=1, failed=1)
    assert records(run_folder(project)) == before and before, "nothing was computed again"


@pytest.mark.slow
def test_processes_of_xdist_share_one_evaluation(project: pytest.Pytester) -> None:
    done = project.runpytest_subprocess("-n", "2", "--dist", "each", "-k", "passes")
    done.assert_outcomes(passed=2)
    assert sorted((project.path / "workers.txt").read_text().split()) == ["gw0", "gw1"]
    folder = run_folder(project)
    assert len(records(folder)) == 3, "clean, craft and judge, each once"
    assert not (folder / "damaged").exists()


def test_it_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "scipy", "rich", "pydantic", "duckdb", "besiege.bench"}
    code = f"import sys, besiege.testing.plugin; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_cannot_be_quoted_is_no_result(tmp_path: Path) -> None:
    import torch

    from besiege.models import load

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = load("zoo:digits-natural").module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.inner(x)
            return logits + 0.01 * torch.randn_like(logits)

    robustness = Robustness(tmp_path)
    ask: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "count": 10}
    with pytest.raises(GateError, match=r"W14: .*allow=\['W14'\] accepts them"):
        robustness(Noisy(), "digits", **ask)
    assert robustness(Noisy(), "digits", allow="W14", **ask).robust is not None
    with pytest.raises(InputError, match="no rule that stops"):
        robustness(Noisy(), "digits", allow=["W99"], **ask)


def test_an_attack_that_failed_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "from dataclasses import dataclass\n"
        "from besiege import Attack\n"
        "@dataclass(frozen=True)\n"
        "class Failing(Attack):\n"
        "    def run(self, siege):\n"
        "        raise RuntimeError('broken on purpose')\n"
    )
    attacks = f"fgsm, {tmp_path / 'failing.py'}:Failing"
    with pytest.raises(GateError, match=r"no gate is decided: .*broken on purpose"):
        Robustness(tmp_path)(
            "zoo:digits-natural", "digits", threat="linf:0.1", attacks=attacks, count=10
        )


def test_a_folder_holds_many_models_of_one_name(tmp_path: Path) -> None:
    import torch

    from besiege.data import load

    few = load("digits", count=12)
    data = (few.images, few.labels)
    robustness = Robustness(tmp_path)
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        found.append(robustness(net, data, threat="linf:0.1", attacks="fgsm"))
    assert found[0].folder == found[1].folder and found[0].folder.parent == tmp_path
    assert found[0].figures.model.digest != found[1].figures.model.digest
    elsewhere = tmp_path / "named"
    again = robustness(net, data, threat="linf:0.1", attacks="fgsm", out=elsewhere)
    assert again.folder == elsewhere and again.robust == found[1].robust
