"""Paths on the command line, and disks that take no more."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Besiege

ASK = ("evaluate", "zoo:digits-natural", "--data", "digits", "--threat", "linf:0.15")
SMALL = (*ASK, "--count", "6", "--attacks", "fgsm", "--no-curve")
IMAGES = ("--images", "digits", "--count", "6")
CRAFT = ("attack", "zoo:digits-natural", *IMAGES, "--attack", "fgsm", "--threat", "linf:0.15")
TRAIN = ("train", "natural", "--data", "digits", "--arch", "digits_mlp", "--epochs", "1")


def refuse(number: int) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


def no_room_for_a_page(part: Path, target: Path, replace: Any = os.replace) -> None:
    if target.name == "report.html":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    replace(part, target)


@pytest.mark.parametrize(
    "tokens", [(*SMALL, "--out", ""), ("report", ""), ("status", ""), (*CRAFT, "--out=")]
)
def test_an_empty_path_is_refused(besiege: Besiege, tmp_path: Path, tokens: tuple[str]) -> None:
    said = besiege(*tokens)
    assert said.code == 2 and "empty path" in said.flat
    assert not list(tmp_path.iterdir())


def test_a_path_that_no_shell_expanded_is_expanded(
    besiege: Besiege, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert besiege(*SMALL, "--out=~/x").code == 0
    assert besiege("report", "~/x").code == besiege("status", "~/x").code == 0
    assert besiege(*SMALL, "--out", "./~").code == 0
    assert sorted(os.listdir(tmp_path)) == ["home", "~"]


@pytest.mark.parametrize("name", ["-x", "eps=inf", "two\nlines", "[bold]\udcff"])
def test_odd_names_are_taken_and_told(besiege: Besiege, tmp_path: Path, name: str) -> None:
    said = besiege(*SMALL, f"--out={name}")
    assert said.code == 0, said.err
    assert besiege("report", f"./{name}").code == besiege("status", f"./{name}").code == 0
    command = json.loads((tmp_path / name / "run.json").read_text())["plans"][0]["asked"]["command"]
    assert command.isprintable() and command.partition("--out ")[2].startswith(("./", "$'", "eps"))


def test_a_folder_below_a_file_is_refused_at_once(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for tokens in (SMALL, CRAFT):
        said = besiege(*tokens, "--out", "file/below")
        assert said.code == 2 and "is not a folder" in said.flat


@pytest.mark.parametrize(
    ("place", "full", "tokens"),
    [
        ("besiege.bench.store._flush", refuse(errno.ENOSPC), SMALL),
        ("os.replace", no_room_for_a_page, SMALL),
        ("besiege.cli.crafting.write_png", refuse(errno.EDQUOT), CRAFT),
        ("os.replace", refuse(errno.ENOSPC), TRAIN),
    ],
)
def test_a_full_disk_has_one_exit_code(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, place: str, full: Any, tokens: tuple[str]
) -> None:
    monkeypatch.setattr(place, full)
    said = besiege(*tokens, "--out", "out.safetensors")
    assert said.code == 3, said.err
    assert "full" in said.flat or "No space left" in said.flat
    assert ("robust" in said.out) == (full is no_room_for_a_page)


def test_a_run_that_may_only_be_read_is_reported(
    besiege: Besiege, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert besiege(*SMALL, "--no-page", "--out", "run").code == 0
    with monkeypatch.context() as patch:
        patch.setattr("besiege.bench.store.replace_file", refuse(errno.EROFS))
        said = besiege("report", "run")
        assert said.code == 0 and "robust" in said.out and "page" not in said.out
        assert "run cannot be written" in said.flat and "--out FILE" in said.flat
        assert besiege("report", "run", "--open").code == 2
        assert besiege("report", "run", "--out", "page.html").code == 0
    assert (tmp_path / "page.html").exists() and not (tmp_path / "run/report.html").exists()


def test_a_changed_plan_is_said_to_be(besiege: Besiege, tmp_path: Path) -> None:
    assert besiege(*SMALL, "--no-page", "--out", "run").code == 0
    plan = tmp_path / "run/run.json"
    plan.write_text(plan.read_text().replace('"name": "zoo:digits-natural"', '"name": "mine"'))
    changed = "what run.json says of mine against linf:0.15 was changed after it was written"
    for command in ("report", "status"):
        said = besiege(command, "run")
        assert said.code == 3 and changed in " ".join(said.out.split()).replace("What", "what")
    said = besiege(*SMALL, "--no-page", "--out", "run")
    assert said.code == 0 and changed in said.flat and "nothing is left to do" in said.flat
    assert besiege("status", "run").code == 0
