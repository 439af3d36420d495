"""A network with one output more than there are classes: a mistake, or a class of rejection."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import besiege
from besiege.core.errors import InputError
from besiege.defenses import load

WORDS: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "count": 9, "curve": False}
PAGE = Path(__file__).parents[2] / "docs" / "detectors.md"


def net(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)).eval()


def example(name: str, folder: Path) -> Path:
    """A file of the page, written into a folder."""
    found = re.search(rf"```python\n(# {name}\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    (folder / name).write_text(found[1], "utf-8")
    return folder / name


def test_one_output_too_many_may_be_a_rejection() -> None:
    with pytest.raises(InputError, match="11 classes, but digits has 10") as found:
        besiege.evaluate(net(11), "digits", **WORDS)
    assert "rejects = True" in str(found.value) and "Detected" in str(found.value)
    with pytest.raises(InputError, match="12 classes, but digits has 10") as found:
        besiege.evaluate(net(12), "digits", **WORDS)
    assert "rejects" not in str(found.value)


def test_what_the_message_says_works(tmp_path: Path) -> None:
    path = example("my_rejecting.py", tmp_path)
    found = besiege.evaluate(f"{path}:make", "digits", **WORDS)
    assert found.complete and found.figures.model.rejects and found.figures.model.classes == 10


def test_the_example_of_the_page_is_calibrated_and_rejects(tmp_path: Path) -> None:
    text = f"{example('my_detector.py', tmp_path)}:make"
    victim = load(text)
    assert victim.nominal_rejections == 0.05 and victim.withheld is not None
    clean = besiege.data.load("digits")
    held = torch.isin(clean.ids, torch.tensor(victim.withheld.ids))
    rejected = victim(clean.images).argmax(1) == 10
    assert int(held.sum()) == 198 and 5 <= int(rejected[held].sum()) <= 9, "9 of 198 are 5 %"
    asked = {**WORDS, "threat": "linf:0.15", "count": 20}
    found = besiege.evaluate(text, "digits", **{**asked, "attacks": "oblivious(pgd)"})
    assert found.robust == found.clean
    both = besiege.evaluate(text, "digits", **{**asked, "attacks": "pgd(loss=margin)"})
    assert both.robust is not None and both.clean is not None
    assert both.robust.value < both.clean.value / 2


def test_a_threshold_set_by_hand_has_no_nominal_rate(tmp_path: Path) -> None:
    from besiege.defenses import BitDepth, Calibration, Detected, Squeezing

    squeezing = Squeezing((BitDepth(1),))
    victim = Detected("zoo:digits-natural", squeezing, Calibration(threshold=0.5))
    found = besiege.evaluate(victim, "digits", **WORDS)
    assert found.figures.model.nominal_rejections is None
    assert "was set for" not in found.page(tmp_path / "page.html").read_text("utf-8")
