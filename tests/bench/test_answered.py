"""What was answered is shown again without loading anything, unless something changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import besiege
from besiege.bench.answered import _own_code, answered
from besiege.bench.single import measure
from besiege.bench.spec import Request
from besiege.models.catalogue import ZOO

WEIGHTS = {name: ZOO / f"digits-{name}.safetensors" for name in ("natural", "pgd-at")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(WEIGHTS["natural"], "mine.safetensors")
    return tmp_path


def request(**changes: object) -> Request:
    words = {"model": "digits_cnn:mine.safetensors", "data": "digits", "threat": "linf:0.1"}
    return Request.of(**{**words, "attacks": "fgsm", "count": 8, "curve": "none", **changes})


def test_the_same_request_is_answered_without_torch(here: Path) -> None:
    asked = request()
    assert answered(here / "run", asked) is None
    (found,) = measure([(asked, None)], out=here / "run")
    known = answered(here / "run", asked.model_copy(update={"command": "typed otherwise"}))
    assert known is not None and known[1] == found.figures
    script = (
        "import sys; from besiege.cli.app import main\n"
        "code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    words = "evaluate digits_cnn:mine.safetensors --data digits --threat linf:0.1 --attacks fgsm"
    typed = [*words.split(), "--count", "8", "--no-curve", "--examine", "none", "--out", "run"]
    done = subprocess.run([sys.executable, "-c", script, *typed], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nothing is left to do" in done.stderr and "page" in done.stdout


@pytest.mark.parametrize(
    "changes", [{"count": 9}, {"seed": 1}, {"threat": "linf:0.2"}, {"attacks": "fgsm, pgd"}]
)
def test_another_request_is_not(here: Path, changes: dict[str, object]) -> None:
    measure([(request(), None)], out=here / "run")
    assert answered(here / "run", request(**changes)) is None


def test_what_changed_is_measured_again(here: Path) -> None:
    (first,) = measure([(request(), None)], out=here / "run")
    shutil.copy(WEIGHTS["pgd-at"], "mine.safetensors")
    assert answered(here / "run", request()) is None
    (second,) = measure([(request(), None)], out=here / "run")
    assert second.figures.model.digest != first.figures.model.digest
    known = answered(here / "run", request())
    assert known is not None and known[1].model.digest == second.figures.model.digest


def test_other_code_of_the_package_measures_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure([(request(), None)], out=here / "run")
    package = here / "besiege"
    package.mkdir()
    (package / "changed.py").touch()
    with monkeypatch.context() as patch:
        patch.setattr(besiege, "__file__", str(package / "__init__.py"))
        _own_code.cache_clear()
        assert answered(here / "run", request()) is None
    _own_code.cache_clear()
    assert answered(here / "run", request()) is not None


def test_weights_that_change_during_the_run_are_noticed(here: Path) -> None:
    def swap(event: object) -> None:
        if "swapped" not in os.listdir():
            Path("swapped").touch()
            shutil.copy(WEIGHTS["pgd-at"], "mine.safetensors")

    measure([(request(), None)], out=here / "run", watch=swap)
    assert answered(here / "run", request()) is None


@pytest.mark.parametrize("file", ["rows.parquet", "record.json"])
def test_a_record_that_changed_is_looked_at(here: Path, file: str) -> None:
    measure([(request(), None)], out=here / "run")
    path = next((here / "run" / "records").glob(f"*/{file}"))
    path.write_bytes(path.read_bytes()[:-2])
    assert answered(here / "run", request()) is None
    assert measure([(request(), None)], out=here / "run").complete
    assert answered(here / "run", request()) is not None


def test_code_of_the_users_is_always_run(here: Path) -> None:
    Path("mine.py").write_text(
        "import besiege\ndef make():\n    return besiege.models.load('zoo:digits-natural')\n"
    )
    for model in ("mine.py:make", "zoo:digits-natural+bits(depth=3)"):
        measure([(request(model=model), None)], out=here / "run")
        assert answered(here / "run", request(model=model)) is None


def test_attacks_that_are_no_text_answer_no_other_request(here: Path) -> None:
    asked = request(attacks=None)
    besiege.evaluate(
        asked.model,
        "digits",
        threat="linf:0.1",
        attacks=["fgsm"],
        count=8,
        curve=False,
        examine=asked.examine,
        out="run",
    )
    assert answered(here / "run", asked) is None, "these are not the default attacks"


def test_an_attack_that_names_a_file_is_always_run(here: Path) -> None:
    save_file({"perturbation": torch.full((1, 8, 8), 0.1)}, "v.safetensors")
    asked = request(attacks="uap(file='v.safetensors')")
    measure([(asked, None)], out=here / "run")
    assert answered(here / "run", asked) is None
