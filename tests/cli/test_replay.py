"""``besiege replay``: both figures in one sentence, and refusals in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Besiege

from besiege.bench.single import evaluate
from besiege.cli.replay import sentence
from besiege.metrics.attack_values import ReplayFigures
from besiege.metrics.intervals import Rate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    how: dict[str, Any] = {"threat": "linf:0.15", "count": 25, "curve": False, "examine": "none"}
    evaluate("zoo:digits-natural", "digits", attacks="bim(steps=5)", out=folder, **how)
    return folder


def test_it_says_both_figures(besiege: Besiege, made: Path) -> None:
    shutil.copytree(made, "run")
    said = besiege("replay", "run", "--on", "zoo:digits-pgd-at")
    words = " ".join(said.out.split())
    assert said.code == 0 and "transfer(zoo:digits-natural, bim(steps=5))" in words
    assert "which is transfer. On this model itself, the same attack leaves " in words
    (told,) = json.loads(besiege("replay", "run", "--on", "zoo:digits-pgd-at", "--json").out)
    assert told["adaptive"]["value"] < told["right"]["value"]
    assert f"all attacks leave {100 * told['adaptive']['value']:.1f} %" in words
    said = besiege("replay", "run", "--model", "zoo:digits-natural", "--through", "bits(depth=1)")
    assert "replay(bim(steps=5), bits(depth=1))" in said.out and "transfer." not in said.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run",), "name a transformation that they pass first"),
        (("none",), "does not exist"),
        (("run", "--through", "blurr"), "did you mean"),
        (("run", "--on", "zoo:digits-pgd"), "did you mean"),
        (("run", "--through", "bits", "--attack", "pgd"), "no attack on"),
    ],
)
def test_it_refuses_in_one_line(
    besiege: Besiege, made: Path, words: tuple[str, ...], expected: str
) -> None:
    shutil.copytree(made, "run")
    said = besiege("replay", *words)
    assert said.code == 2 and expected in " ".join(said.err.split())


def test_without_an_attack_on_the_model_it_is_not_to_be_quoted() -> None:
    rate = Rate.of(3, 10)
    bare = ReplayFigures("transfer(a, pgd)", "a", "pgd", "", False, rate, rate, None, None)
    assert "do not quote this" in sentence(bare)
