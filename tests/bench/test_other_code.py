"""Records of one model are never used for another, nor by who cannot know that it is the same."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.bench.evaluations import Evaluation
from besiege.bench.single import evaluate
from besiege.core.errors import ChangedError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class Upright(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = besiege.models.load("zoo:digits-natural").module

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return y


class Reversed(Upright):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return -y


def measured(model: nn.Module, out: Path) -> Evaluation:
    return evaluate(
        model, "digits", threat="linf:0.1", attacks="fgsm", count=12, curve=False, out=out
    )


def test_torchscript_with_the_same_weights_is_measured_itself(tmp_path: Path) -> None:
    clean = []
    for kind in (Upright, Reversed):
        path = tmp_path / f"{kind.__name__}.pt"
        torch.jit.save(torch.jit.script(kind()), path)
        loaded = torch.jit.load(path)  # type: ignore[no-untyped-call]  # torch
        found = measured(loaded, tmp_path / "run")
        assert not [f for f in found.warnings if f.id == "W43"]
        clean.append(found.clean.value)
    assert clean[0] > 0.9 and clean[1] < 0.1


def test_what_cannot_be_read_is_measured_again_by_another_process_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Upright()
    model.held = Lock()  # type: ignore[assignment]
    runs = []
    for process in ("one", "two"):
        monkeypatch.setattr("besiege.core.sourcing._THIS_PROCESS", process)
        found = measured(model, tmp_path)
        (finding,) = [f for f in found.warnings if f.id == "W43"]
        assert "_thread.lock" in finding.seen and finding.level == "note"
        assert "do not reuse its records" in finding.advice
        runs.append({path.name for path in (tmp_path / "records").iterdir()})
    assert runs[0] < runs[1] and len(runs[1]) == 2 * len(runs[0])
    measured(model, tmp_path)
    assert {path.name for path in (tmp_path / "records").iterdir()} == runs[1]


class Reading(Upright):
    """It reads a file whenever it answers, which no digest can know."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(float(self.file.read_text()) * x)
        return y


def test_a_model_that_answers_otherwise_than_recorded_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gain.txt"
    file.write_text("1.0")
    first = measured(Reading(file), tmp_path / "run")
    assert measured(Reading(file), tmp_path / "run").robust == first.robust
    file.write_text("0.3")
    with pytest.raises(ChangedError, match="answers images otherwise than when they were recorded"):
        measured(Reading(file), tmp_path / "run")
    assert measured(Reading(file), tmp_path / "other").clean < first.clean
