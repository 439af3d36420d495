"""Evaluations of victims with detectors: records of forced ones, and of interrupted ones."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_array_equal

import besiege
from besiege.core.errors import ChangedError
from besiege.defenses import (
    BitDepth,
    Calibration,
    Detected,
    Detector,
    Examined,
    Median,
    Squeezing,
    load,
)
from besiege.defenses.detected import forced
from besiege.training import fit_detector

MODEL = "zoo:digits-natural"
SAME = (
    "pgd(steps=5, loss=margin), apgdt(steps=5), fab(steps=5), cw(rounds=2, steps=10), "
    "square(steps=40), hopskipjump(steps=2)"
)
"""Attacks that treat victims with and without a detector alike: opgd does not, by design."""
ATTACKS = f"oblivious(pgd(steps=5)), opgd(steps=5), {SAME}"
HOW: dict[str, Any] = {"threat": "linf:0.1", "count": 16, "curve": False, "examine": "none"}
NEW = {"rejected", "suspicion"}
KILLS = 10


def rows_of(victim: Any, attacks: str, folder: Path) -> besiege.Evaluation:
    found: besiege.Evaluation = besiege.evaluate(
        victim, "digits", attacks=attacks, out=folder, **HOW
    )
    return found


def guarded(threshold: float) -> Detected:
    victim = Detected(MODEL, Squeezing((BitDepth(1), Median(2))), Calibration(0.5, 0.2, 5.0))
    return forced(victim, threshold)


def test_forced_acceptance_has_the_records_of_the_bare_model(tmp_path: Path) -> None:
    ours = rows_of(guarded(math.inf), SAME, tmp_path / "ours")
    bare = rows_of(load(MODEL), SAME, tmp_path / "bare")
    assert {*ours.rows} - {*bare.rows} == NEW
    for name in {*bare.rows} - {"record"}:  # the keys name the model
        assert_array_equal(ours.rows[name], bare.rows[name], name)
    assert not ours.rows["rejected"].any()
    assert bare.robust is not None and bare.robust.hits < 16


def test_forced_rejection_leaves_no_success(tmp_path: Path) -> None:
    found = rows_of(guarded(-math.inf), ATTACKS, tmp_path / "shut")
    assert found.rows["rejected"].all() and not found.rows["success"].any()
    assert found.clean.hits == 0, "a rejected clean image is an error"
    figures = found.figures.rejection
    assert figures is not None and figures.clean.rejected.value == 1


@dataclass(frozen=True)
class Reading(Detector):
    """A detector whose score depends on a file, which no digest covers."""

    file: str

    def examine(self, victim: Any, x: Any, dice: Any, numbers: Any) -> Examined:
        scale = float(Path(self.file).read_text())
        return Examined(victim(x, dice), scale * x.mean((1, 2, 3)))


def test_a_run_is_resumed_unless_rejections_changed(tmp_path: Path) -> None:
    file = tmp_path / "scale.txt"
    file.write_text("1.0")
    victim = Detected(MODEL, Reading(str(file)), Calibration(0.4, 0.05, 5.0))
    first = rows_of(victim, "pgd(steps=2)", tmp_path / "run")
    more = rows_of(victim, "pgd(steps=2), pgd(steps=3)", tmp_path / "run")
    assert more.clean == first.clean and len(more.by_attack) == 2
    file.write_text("0.9")
    with pytest.raises(ChangedError, match="answers images otherwise than when they were recorded"):
        rows_of(victim, "pgd(steps=2)", tmp_path / "run")


@pytest.mark.parametrize("threshold", [math.inf, 0.2, -math.inf])
def test_records_are_used_again_whatever_is_rejected(tmp_path: Path, threshold: float) -> None:
    first = rows_of(guarded(threshold), "pgd(steps=2)", tmp_path / "run")
    more = rows_of(guarded(threshold), "pgd(steps=2), fgsm", tmp_path / "run")
    mine = more.rows.where(more.rows["attack"] == "pgd(steps=2)")
    assert_array_equal(mine["record"], first.rows["record"])


def _command(detector: Path, folder: Path) -> list[str]:
    model = f"{MODEL}+detector('{detector}')"
    words = ["--data", "digits", "--count", "60", "--threat", "linf:0.1", "--attacks", ATTACKS]
    return [sys.executable, "-m", "besiege", "evaluate", model, *words, "--out", str(folder)]


def _records(folder: Path) -> dict[str, bytes]:
    """The rows of every record, by key."""
    return {path.parent.name: path.read_bytes() for path in folder.glob("records/*/rows.parquet")}


@pytest.mark.slow  # some minutes
def test_ten_kills_leave_the_same_records(tmp_path: Path) -> None:
    detector = fit_detector("squeezing", MODEL, "digits", tmp_path / "squeezing.safetensors")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    began = time.monotonic()
    subprocess.run(_command(detector, whole), check=True, capture_output=True, env=os.environ)
    took, draw, kills = time.monotonic() - began, random.Random(0), 0
    for _ in range(4 * KILLS):
        child = subprocess.Popen(
            _command(detector, broken), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            child.wait(draw.uniform(0.2, 0.6) * took)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
        if kills == KILLS:
            break
    subprocess.run(_command(detector, broken), check=True, capture_output=True)
    assert kills >= KILLS // 2, "it was done too early"
    assert _records(broken) == _records(whole)
