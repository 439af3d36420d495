"""Images crafted on each model of a cell and judged on all others: the same as one by one."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from tests.bench.records import content, finished

import besiege
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.board import Across, Board
from besiege.bench.board_reading import board_of
from besiege.bench.expanding import Declared, declared
from besiege.bench.merging import merge
from besiege.bench.overview import open_run
from besiege.bench.results import summarise
from besiege.bench.single import measure
from besiege.bench.store import Store
from besiege.core.errors import InputError

MODELS = {"natural": "zoo:digits-natural", "pgd-at": "zoo:digits-pgd-at"}
SPEC = """
name = "across"
data = "digits"
count = 12
shard = 5
[models]
natural = "zoo:digits-natural"
pgd-at = "zoo:digits-pgd-at"
blurred = "zoo:digits-natural+median"
[[cells]]
name = "untargeted"
threat = "linf:0.2"
attacks = ["fgsm@su", "bim@su(steps=4)"]
across = "grey"
examine = "none"
[[cells]]
name = "targeted"
threat = "linf:0.2 targeted:random"
attacks = ["bim@su(steps=4)"]
across = "grey"
models = ["natural", "pgd-at"]
examine = "none"
"""
LARGE = """
name = "sizes"
data = "imagenet-sample"
count = 2
[models]
small = "public:imagenet_squeezenet1.1"
mobile = "public:imagenet_mobilenet_v1_0.75"
other = "public:imagenet_mobilenet_v2_1.0"
[[cells]]
name = "one"
threat = "linf:0.3"
attacks = ["fgsm@su"]
crop = "model"
across = "white"
"""


def read(text: str) -> Declared:
    return declared(benchmark_of(tomllib.loads(text)), Path())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("across") / "run"
    measure(read(SPEC), out=out)
    return out


@pytest.fixture(scope="module")
def board(folder: Path) -> Board:
    return board_of(folder)


def across(board: Board, cell: str) -> Across:
    found = board.cell(cell).across
    assert found is not None
    return found


@pytest.mark.parametrize(("cell", "threat"), [("untargeted", ""), ("targeted", " targeted:random")])
def test_the_verdicts_are_those_of_evaluations_one_by_one(
    board: Board, cell: str, threat: str
) -> None:
    found, names = across(board, cell), board.cell(cell).models
    for s, source in enumerate(MODELS):
        for t, target in enumerate(MODELS):
            asked: dict[str, Any] = {"count": 12, "curve": False, "examine": "none"}
            # The diagonal is the white-box run.
            asked |= {} if s == t else {"substitute": MODELS[source]}
            attacks = list(board.cell(cell).attacks)
            target_text, told = MODELS[target], f"linf:0.2{threat}"
            rows = besiege.evaluate(
                target_text, "digits", threat=told, attacks=attacks, **asked
            ).rows
            place = names.index(source), names.index(target)
            assert found.judged[place].all()
            for a, text in enumerate(board.cell(cell).attacks):
                mine = rows.where(rows["attack"] == text)
                mine = mine.where(np.argsort(mine["sample"]))
                right = mine["correct"].astype(bool)
                assert np.array_equal(found.seen[place], right)
                wrong = mine["prediction"] != mine["label"]
                if s == t and not threat:
                    # There an image leaves at its first success, so that it may differ.
                    assert np.array_equal(found.fooled[place][a] & right, mine["success"] & right)
                elif s != t:
                    assert np.array_equal(found.fooled[place][a], wrong)
                if threat and s != t:
                    assert np.array_equal(found.rank[place][a], mine["rank"].astype(int))


def test_a_model_behind_a_layer_is_another_model(board: Board) -> None:
    found, names = across(board, "untargeted"), board.cell("untargeted").models
    assert found.fooled.shape == (3, 3, 2, 12)
    natural, blurred = names.index("natural"), names.index("blurred")
    assert not np.array_equal(found.fooled[natural, natural], found.fooled[natural, blurred])


def test_a_run_again_does_nothing_and_a_lost_record_is_made_again(folder: Path) -> None:
    before, work = content(folder), finished(folder)
    measure(read(SPEC), out=folder)
    assert finished(folder) == work
    mine = [key for key, (identity, *_) in before.items() if identity["kind"] == "across"]
    assert len(mine) == 3 * 2 * 3 + 2 * 3  # sources, attacks and shards
    shutil.rmtree(folder / "records" / mine[0])
    measure(read(SPEC), out=folder)
    assert content(folder) == before


def test_answers_to_images_that_are_no_longer_there_are_given_again(
    folder: Path, tmp_path: Path
) -> None:
    """As where one machine has made the images again, and the answers of another one are joined."""
    mine = Path(shutil.copytree(folder, tmp_path / "run"))
    plan = next(one for one in open_run(mine)[1].current if one.model.name == MODELS["natural"])
    craft = plan.stages_of("craft")[0].parts[0][0].key
    answers = plan.stages_of("across")[0].parts[0][0].key
    store = Store(mine)
    record, rows, arrays = store.read(craft), store.rows([craft]), store.images(craft)
    assert record is not None
    store.discard(craft)
    kept = {name: column for name, column in rows.items() if name not in ("record", "row")}
    arrays = {**arrays, "images": np.zeros_like(arrays["images"])}
    store.commit(record, kept, {"images.safetensors": save(arrays)})
    measure(read(SPEC), out=mine)
    board = board_of(mine)
    shutil.rmtree(mine / "records" / answers)
    merge(mine, [folder])
    summary = summarise(mine)
    assert not summary.complete
    assert any("no longer there" in one.seen for e in summary.evaluations for one in e.warnings)
    measure(read(SPEC), out=mine)
    assert summarise(mine).complete
    for name in ("fooled", "judged"):
        again, before = (getattr(across(b, "untargeted"), name) for b in (board_of(mine), board))
        assert np.array_equal(again, before)


def test_models_of_another_size_are_behind_a_layer_that_adapts() -> None:
    asked = {one.model: one.request for one in read(LARGE).entries}
    adapted = "public:imagenet_{}+adapt(size={}, how='white')"
    assert asked["small"].crop == "227" and asked["small"].across == (
        adapted.format("mobilenet_v1_0.75", 224),
        adapted.format("mobilenet_v2_1.0", 224),
    )
    assert asked["mobile"].crop == "224" and asked["mobile"].across == (
        adapted.format("squeezenet1.1", 227),
        "public:imagenet_mobilenet_v2_1.0",
    )


def test_what_cannot_judge_is_refused(tmp_path: Path) -> None:
    for layer, what in (("resize_pad", "draws"), ("bits(depth=3)", None)):
        text = SPEC.replace("+median", f"+{layer}").replace("count = 12", "count = 2")
        if what is None:
            measure(read(text), out=tmp_path / "fine")
            continue
        with pytest.raises(InputError, match=f"{what}: it cannot judge images of other models"):
            measure(read(text), out=tmp_path / what)
    for key, what in (('substitute = "pgd-at"', "substitute"), ('suite = "quick"', "suite")):
        text = SPEC.replace('examine = "none"', key, 1)
        text = (
            text.replace('attacks = ["fgsm@su", "bim@su(steps=4)"]\n', "")
            if what == "suite"
            else text
        )
        with pytest.raises(InputError, match=rf"across: .*leave {what} out"):
            read(text)
    with pytest.raises(InputError, match=r"across: it should be 'grey' or 'white'"):
        read(SPEC.replace('across = "grey"', 'across = "black"', 1))


def test_the_plan_says_who_judges(folder: Path) -> None:
    plans = open_run(folder)[1].plans
    names = {plan.model.name: [one.name for one in plan.across] for plan in plans}
    assert names["zoo:digits-natural+median"] == [*MODELS.values()]
    assert len({plan.name for plan in plans}) == len(plans) == 5
    assert all(
        spec.keep == "last" and spec.leave == "end" for plan in plans for spec in plan.attacks
    )
