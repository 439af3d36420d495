"""``besiege import``: says what images made elsewhere broke, and refuses others in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Besiege

from besiege.bench.single import evaluate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("import")
    for name, attack in (("strong", "pgd"), ("weak", "fgsm")):
        options: dict[str, Any] = {
            "threat": "linf:0.15",
            "attacks": attack,
            "count": 60,
            "curve": False,
        }
        found = evaluate("zoo:digits-pgd-at", "digits", out=base / name, **options)
        found.export(base / f"{name}.npz")
    return base


def test_it_says_what_the_images_broke(besiege: Besiege, made: Path) -> None:
    shutil.copytree(made / "weak", "run")
    said = besiege("import", "run", str(made / "strong.npz"))
    words = " ".join(said.out.split())
    assert said.code == 0 and "zoo:digits-pgd-at against linf:0.15, replay(strong.npz)" in words
    assert "images broke the model: " in words and "of them withstood every attack before" in words
    assert "; robust " in words and " % -> " in words
    told = json.loads(besiege("import", "run", str(made / "strong.npz"), "--json").out)
    assert told["taken"][0]["after"]["value"] < told["taken"][0]["before"]["value"]
    said = besiege("report", "run")
    assert "replay(strong.npz)" in said.out and "accuracy on these only" in " ".join(
        said.out.split()
    )


def test_images_beyond_the_budget_are_counted(besiege: Besiege, made: Path) -> None:
    shutil.copytree(made / "weak", "run")
    np.savez("far.npz", x=np.full((60, 1, 8, 8), 0.5, np.float32))
    said = besiege("import", "run", "far.npz")
    assert "0 of 60 images broke the model" in " ".join(said.out.split())
    assert "60 are beyond the budget, and do not count." in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "none.npz"), "cannot be read"),
        (("none", "weak.npz"), "does not exist"),
        (("run", "weak.npz", "--model", "zoo:digits-pgd"), "did you mean 'zoo:digits-pgd-at'?"),
        (("run", "weak.npz", "--threat", "linf:0.1"), "did you mean 'linf:0.15'?"),
    ],
)
def test_bad_input(besiege: Besiege, made: Path, words: tuple[str, ...], expected: str) -> None:
    shutil.copytree(made / "weak", "run")
    shutil.copy(made / "weak.npz", "weak.npz")
    said = besiege("import", *words)
    assert said.code == 2 and expected in said.flat and "Traceback" not in said.err
