"""Replays that a benchmark declares: shown once, after the attacks, to the models it names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from besiege.bench.benchmark import Shown
from besiege.bench.benchmark_files import benchmark_of, read_benchmark
from besiege.bench.board import Board
from besiege.bench.board_reading import board_of
from besiege.bench.expanding import declared
from besiege.bench.opening import read_evaluations
from besiege.bench.run import read_run
from besiege.bench.single import measure
from besiege.bench.store import Store
from besiege.core.errors import InputError
from besiege.studies.choosing import joined

TEXT = """
name = "shown"
data = "digits"
count = 40
shard = 20

[models]
natural = "zoo:digits-natural"
pgd-at = "zoo:digits-pgd-at"

[models.again]
train = "natural@digits(epochs=3)"
arch = "digits_mlp"

[[cells]]
name = "a"
threat = "linf:0.15"
attacks = ["fgsm", "bim(steps=5)"]
examine = "none"

[[cells]]
name = "alone"
threat = "linf:0.15"
attacks = ["mim(steps=3)"]
models = ["natural"]
examine = "none"

[[cells]]
name = "other"
threat = "linf:0.1"
attacks = ["fgsm"]
examine = "none"

[[replays]]
source = "natural"
through = ["pil_blur(radius=0.5)", "jpeg(quality=90)"]
cells = "a"

[[replays]]
source = "natural"
on = ["pgd-at", "again"]
cells = "a*"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    (folder / "shown.toml").write_text(TEXT)
    measure(declared(read_benchmark(folder / "shown.toml"), folder), out=folder / "run")
    return folder / "run"


def attacks(board: Board, cell: str) -> set[str]:
    found = board.cell(cell)
    return {text for text in found.attacks if text.startswith(("transfer(", "replay("))}


def test_images_are_shown_to_the_models_that_are_named(run: Path) -> None:
    board = board_of(run)
    through = {f"replay({a}, {layer})" for a in ("fgsm", "bim(steps=5)")
               for layer in ("pil_blur", "jpeg(quality=90)")}  # fmt: skip
    crossed = {f"transfer(natural, {a})" for a in ("fgsm", "bim(steps=5)", "mim(steps=3)")}
    assert attacks(board, "a") == through | crossed
    assert not attacks(board, "alone") and not attacks(board, "other")
    cell = board.cell("a")
    natural, pgd, again = (cell.models.index(n) for n in ("natural", "pgd-at", "again"))
    for text in crossed:
        place = cell.attacks.index(text)
        assert cell.covered[pgd, place].any() and cell.covered[again, place].any()
        assert not cell.covered[natural, place].any()
    for text in through:
        assert cell.covered[natural, cell.attacks.index(text)].any()


def test_a_transfer_stands_beside_attacks_on_the_model_itself(run: Path) -> None:
    found = [one.figures for one in read_evaluations(run) if one.figures.replays]
    on = {one.model.name: one.replays for one in found}
    assert len(on) == 3
    for one in on["zoo:digits-pgd-at"]:
        assert not one.same and one.adaptive is not None
        assert not any(finding.id == "W32" for f in found for finding in f.warnings)
    assert all(one.same for one in on["zoo:digits-natural"])


def test_the_same_again_does_nothing(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shown.toml"
    folder.write_text(TEXT)
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    before = {path: os.stat(path).st_mtime_ns for path in (copy / "records").rglob("*.*")}
    measure(declared(read_benchmark(folder), tmp_path), out=copy)
    assert {path: os.stat(path).st_mtime_ns for path in (copy / "records").rglob("*.*")} == before


def test_replays_may_be_added_to_a_run(run: Path, tmp_path: Path) -> None:
    """Those that were shown stay, and only new ones are judged."""
    place = tmp_path / "shown.toml"
    place.write_text(TEXT + '\n[[replays]]\nsource = "natural"\non = "pgd-at"\ncells = "other"\n')
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    count = len(list((copy / "records").iterdir()))
    measure(declared(read_benchmark(place), tmp_path), out=copy)
    board = board_of(copy)
    assert attacks(board, "other") == {"transfer(natural, fgsm)"}
    assert len(attacks(board, "a")) == 7
    assert len(list((copy / "records").iterdir())) > count


def test_a_cell_that_is_added_shows_its_images_under_a_name_that_is_taken(tmp_path: Path) -> None:
    text = (
        TEXT[: TEXT.index("[models.again]")]
        + """
[[cells]]
name = "a"
threat = "linf:0.1"
attacks = ["pgd(steps=5)"]
examine = "none"
"""
        + """
[[replays]]
source = "natural"
on = "pgd-at"
"""
    )
    more = """
[[cells]]
name = "b"
threat = "linf:0.1"
suite = "fgsm, pgd(steps=5)"
models = ["natural"]
examine = "none"
"""
    shown = []
    for folder, texts in (("begun", (text, text + more)), ("whole", (text + more,))):
        for one in texts:
            (tmp_path / "shown.toml").write_text(one)
            run = tmp_path / folder
            measure(declared(read_benchmark(tmp_path / "shown.toml"), tmp_path), out=run)
        board = board_of(run)
        shown.append({a: board.cell("a").covered[1, board.cell("a").attacks.index(a)].sum()
                      for a in attacks(board, "a")})  # fmt: skip
        assert all(one.complete for one in read_evaluations(run))
    assert shown[0] == shown[1]
    text = "transfer(natural, pgd(steps=5))"
    assert 0 < shown[0][f"{text.removesuffix(')')}, 2)"] < shown[0][text]


def test_what_was_lost_is_judged_again(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (tmp_path / "shown.toml").write_text(TEXT)
    found = read_run(Store(copy))
    assert found is not None
    plans = [plan for plan in found.current if plan.replays]
    tasks = plans[0].stages_of("replay")[0].parts[0]
    shutil.rmtree(copy / "records" / tasks[-1].key)
    before = board_of(run).cell("a")
    measure(declared(read_benchmark(tmp_path / "shown.toml"), tmp_path), out=copy)
    after = board_of(copy).cell("a")
    assert (after.success == before.success).all() and (after.covered == before.covered).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "nobody", "on": ["natural"]}, "replays\\[1\\]: no model"),
        ({"source": "natural"}, "name other models"),
        ({"source": "natural", "on": ["natural"]}, "is the source itself"),
        ({"source": "natural", "through": ["jpg"]}, "replays\\[1\\].through 'jpg'"),
        ({"source": "natural", "onto": ["pgd-at"]}, "replays.*onto"),
    ],
)
def test_wrong_replays_are_told_before_any_work(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    content = {
        "name": "x", "data": "digits", "replays": [change],
        "models": {"natural": "zoo:digits-natural", "pgd-at": "zoo:digits-pgd-at"},
        "cells": [{"name": "a", "threat": "linf:0.1", "attacks": ["fgsm"]}],
    }  # fmt: skip
    with pytest.raises(InputError, match=said):
        declared(benchmark_of(content), tmp_path)


def test_images_must_be_kept(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(TEXT + '\n[store]\nimages = "shown"\n')
    with pytest.raises(InputError, match="images = "):
        read_benchmark(tmp_path / "x.toml")


def test_parts_of_a_study_keep_their_replays() -> None:
    (base,) = [benchmark_of(_content())]
    more = base.model_copy(update={"replays": (Shown(source="pgd-at", on=("natural",)),)})
    assert joined(base, more).replays == (*base.replays, *more.replays)
    assert joined(base, base).replays == base.replays


def _content() -> dict[str, object]:
    return {
        "name": "x", "data": "digits", "replays": [{"source": "natural", "on": "pgd-at"}],
        "models": {"natural": "zoo:digits-natural", "pgd-at": "zoo:digits-pgd-at"},
        "cells": [{"name": "a", "threat": "linf:0.1", "attacks": ["fgsm"]}],
    }  # fmt: skip
