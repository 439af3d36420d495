"""Images that a detector was calibrated on: recognised, left out of all models, and counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.crowd import crowd

import besiege
from besiege.bench.board_reading import board_of
from besiege.bench.comparison import compare_runs
from besiege.bench.preparing import prepare_benchmark
from besiege.bench.run import read_run
from besiege.bench.single import measure
from besiege.bench.spec import Machine
from besiege.bench.standings import settings_of
from besiege.bench.store import Store
from besiege.bench.withheld import calibrated_on
from besiege.cli.spec import read_spec
from besiege.core.errors import ComparisonError, InputError, StoreError
from besiege.core.samples import Withheld
from besiege.data.contents import contents
from besiege.defenses import load
from besiege.defenses.detector_files import ZOO
from besiege.training.detectors import fit_detector

MODEL = "zoo:digits-natural"
TEST = besiege.data.load("digits", "test")
HOW: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "curve": "none", "examine": "none"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model behind a detector that was calibrated on the last 198 images of the test set."""
    out = tmp_path_factory.mktemp("detector") / "squeezing.safetensors"
    return f"{MODEL}+detector('{fit_detector('squeezing', MODEL, 'digits', out)}')"


def withheld(text: str) -> Withheld:
    found = load(text).withheld
    assert found is not None
    return found


def samples(found: besiege.Evaluation) -> list[int]:
    return list(dict.fromkeys(found.rows["sample"].tolist()))


def said(found: besiege.Evaluation, rule: str) -> str:
    return " ".join(one.seen for one in found.warnings if one.id == rule)


def test_models_of_one_call_leave_out_the_same_images(guarded: str) -> None:
    plain, behind = besiege.evaluate([MODEL, guarded], "digits", count=30, **HOW)
    assert samples(plain) == samples(behind) and len(samples(plain)) == 30
    assert not {*samples(plain)} & {*withheld(guarded).ids}
    for one in (plain, behind):
        assert "198 images of digits (test), on which a detector was calibrated" in said(one, "W51")
    found = plain.compare(behind)
    assert found.groups[0].count == 30


def test_the_command_of_each_reproduces_it_alone(guarded: str) -> None:
    plain, behind = besiege.evaluate([MODEL, guarded], "digits", count=30, **HOW)
    assert "--beside" in plain.figures.command and "--beside" not in behind.figures.command
    alone = besiege.evaluate(MODEL, "digits", count=30, beside=guarded, **HOW)
    assert alone.figures.name == plain.figures.name and samples(alone) == samples(plain)
    with pytest.raises(InputError, match=r"has no detector.*leave --beside out"):
        besiege.evaluate(MODEL, "digits", count=30, beside=["zoo:digits-pgd-at"], **HOW)


def test_nothing_changes_for_models_without_detectors() -> None:
    models = [MODEL, "zoo:digits-pgd-at"]
    one, other = besiege.evaluate(models, "digits", count=30, **HOW)
    assert samples(one) == samples(other) == TEST.subset(30, 0).ids.tolist()
    assert not said(one, "W51") and "--beside" not in one.figures.command


def test_two_detectors_leave_out_the_images_of_both(guarded: str, tmp_path: Path) -> None:
    out = tmp_path / "random.safetensors"
    fit_detector("magnet(blur)", MODEL, "digits", out, count=50, chosen="random", fit_on=50)
    other = f"{MODEL}+detector('{out}')"
    both = {*withheld(guarded).ids} | {*withheld(other).ids}
    found = besiege.evaluate([guarded, other], TEST, **HOW)
    rest = [one for one in TEST.ids.tolist() if one not in both]
    assert all(samples(one) == rest for one in found)
    assert all(f"{len(both)} images" in said(one, "W51") for one in found)


def test_victims_in_memory_and_workers_share_their_images(guarded: str, tmp_path: Path) -> None:
    victim = load(guarded)
    plain, behind = besiege.evaluate([load(MODEL), victim], "digits", count=30, **HOW)
    apart = besiege.evaluate(
        [MODEL, guarded], "digits", count=30, out=tmp_path / "run", workers=1, **HOW
    )
    assert samples(plain) == samples(behind) == samples(apart[0]) == samples(apart[1])


def spec(guarded: str, cells: str) -> str:
    return f"""
name = "bm"
data = "digits"
count = 30
[models]
natural = "{MODEL}"
guarded = "{guarded}"
{cells}
"""


def test_models_of_a_cell_share_their_images_and_other_cells_keep_theirs(
    guarded: str, tmp_path: Path
) -> None:
    file = tmp_path / "bm.toml"
    cell = '[[cells]]\nthreat = "linf:0.1"\nattacks = ["fgsm"]\nexamine = "none"\n'
    both = cell + 'name = "both"\n'
    alone = cell + 'name = "alone"\nmodels = ["natural"]\n'
    file.write_text(spec(guarded, both + alone))
    measure(read_spec(file), out=tmp_path / "run")
    board = board_of(tmp_path / "run")
    shared = board.cell("both")
    assert shared.known.all() and shared.known.shape == (2, 30)
    assert not {*shared.samples.tolist()} & {*withheld(guarded).ids}
    assert board.cell("alone").samples.tolist() == TEST.subset(30, 0).ids.tolist()
    usual = besiege.evaluate(MODEL, "digits", count=30, **HOW)
    assert usual.figures.name in {one.name for one in board.figures.evaluations}
    (setting,) = (one for one in settings_of(board) if len(one.standings) == 2)
    assert len(setting.pairs) == 1 and setting.common == 30 and setting.images == "30 images"
    # The same file again plans the same evaluations.
    run = read_run(Store(tmp_path / "run"))
    again = prepare_benchmark(read_spec(file), tmp_path / "run", run, Machine())
    assert run is not None and {one.name for one in again.plans} == {p.name for p in run.plans}
    file.write_text(spec(guarded, both + cell + 'name = "alone"\n'))
    with pytest.raises(StoreError, match='cells "alone"'):
        prepare_benchmark(read_spec(file), tmp_path / "run", run, Machine())


def test_models_without_common_images_are_not_ranked_among_each_other() -> None:
    board = crowd(3, 4, 60)
    cell = board.cells[1]
    (usual,) = (one for one in settings_of(board) if one.cells == (1,))
    assert usual.common == 60 and usual.images == "60 images" and len(usual.pairs) == 3
    names = list(cell.models)

    def known(*parts: slice) -> Any:
        mask = torch.zeros(3, 60, dtype=torch.bool).numpy()
        for row, part in enumerate(parts):
            mask[row, part] = True
        changed = replace(cell, known=mask, robust=cell.robust & mask)
        return replace(board, cells=(board.cells[0], changed, *board.cells[2:]))

    apart = known(slice(0, 30), slice(30, 60), slice(0, 20))
    found = [one for one in settings_of(apart) if one.cells == (1,)]
    assert [{two.model for two in one.standings} for one in found] == [
        {names[0], names[2]},
        {names[1]},
    ]
    assert [len(one.pairs) for one in found] == [1, 0] and [one.common for one in found] == [20, 30]
    assert [(two.low, two.high) for two in found[1].standings] == [(1, 1)]
    assert found[0].images == "20 to 30 images by model, 20 in common"
    partly = known(slice(0, 60), slice(30, 60), slice(0, 60))
    (one,) = (one for one in settings_of(partly) if one.cells == (1,))
    assert one.common == 30 and len(one.pairs) == 3
    # The chain of the first two and the last two does not make one table.
    chain = known(slice(0, 40), slice(20, 60), slice(41, 60))
    found = [one for one in settings_of(chain) if one.cells == (1,)]
    assert [len(one.standings) for one in found] == [2, 1]


def test_compare_names_the_cause_of_other_images(guarded: str, tmp_path: Path) -> None:
    for name, text in (("plain", MODEL), ("guarded", guarded)):
        besiege.evaluate(text, "digits", count=30, out=tmp_path / name, **HOW)
    apart = [tmp_path / "plain", tmp_path / "guarded"]
    with pytest.raises(ComparisonError) as problem:
        compare_runs(apart)
    words = str(problem.value)
    assert "leaves out the images that a detector was calibrated on" in words
    assert "in one command" in words and "besiege evaluate" in words
    assert "the same seed and count" not in words
    besiege.evaluate([MODEL, guarded], "digits", count=30, out=tmp_path / "both", **HOW)
    assert compare_runs([tmp_path / "both"]).groups[0].count == 30


# Which images they are.


def test_tensors_are_evaluated_as_they_are_and_w26_counts_them(guarded: str) -> None:
    held = torch.isin(TEST.ids, torch.tensor(withheld(guarded).ids))
    mine, others = TEST.take(held).take(range(20)), TEST.take(~held).take(range(30))
    pixels = torch.cat([mine.images, others.images]), torch.cat([mine.labels, others.labels])
    found = besiege.evaluate(guarded, pixels, **HOW)
    assert len(samples(found)) == 50 and not said(found, "W51")
    assert "20 of the 50 evaluated images are among those" in said(found, "W26")
    assert "20 of the" not in said(besiege.evaluate(guarded, "digits", count=20, **HOW), "W26")


def test_images_are_recognised_by_their_pixels(guarded: str) -> None:
    known = withheld(guarded)
    held = torch.isin(TEST.ids, torch.tensor(known.ids))
    order = torch.randperm(len(TEST), generator=torch.Generator().manual_seed(0))
    shuffled = besiege.data.load((TEST.images[order], TEST.labels[order]))
    for given in (known, Withheld(known.data, known.split, known.ids, known.digest)):
        # Cards of earlier versions name ids of a named data set only: its images tell.
        assert torch.equal(calibrated_on(shuffled, given), held[order])
        assert torch.equal(calibrated_on(TEST, given), held)
    scaled = besiege.data.load((TEST.images * 2 - 1, TEST.labels), box=(-1.0, 1.0))
    assert torch.equal(calibrated_on(scaled, known, (-1.0, 1.0)), held)
    inside = replace(TEST, name="tensors", images=TEST.images * 7 - 3)
    assert torch.equal(calibrated_on(inside, known, (-3.0, 4.0)), held)
    assert not calibrated_on(replace(TEST, name="tensors", images=1 - TEST.images), known).any()
    assert len(set(contents(TEST))) == len(TEST)
    left = besiege.evaluate(guarded, shuffled, **HOW)
    assert len(samples(left)) == int((~held).sum()) and "198 images" in said(left, "W51")


def test_other_images_with_the_ids_of_the_calibration_stay(tmp_path: Path) -> None:
    half, rest = TEST.take(range(200)), TEST.take(range(200, 397))
    data = besiege.data.load((half.images, half.labels))
    out = fit_detector("squeezing", MODEL, data, tmp_path / "d.safetensors", count=100)
    text = f"{MODEL}+detector('{out}')"
    others = besiege.data.load((rest.images, rest.labels))
    assert (others.name, others.split) == (withheld(text).data, withheld(text).split)
    assert not calibrated_on(others, withheld(text)).any()
    assert int(calibrated_on(data, withheld(text)).sum()) == 100


def test_shipped_detectors_keep_their_images() -> None:
    for card in sorted(ZOO.glob("*.json")):
        about = json.loads(card.read_text())["calibration"]
        assert "contents" not in about and about["ids"] and len(about["digest"]) == 64


def test_w24_promises_the_images_that_are_left(guarded: str) -> None:
    found = besiege.evaluate(guarded, "digits", count=190, **HOW)
    (one,) = (one for one in found.warnings if one.id == "W24")
    assert "All 199 images of the data set on which no detector was calibrated" in one.advice
    plain = besiege.evaluate(MODEL, "digits", count=190, **HOW)
    (one,) = (one for one in plain.warnings if one.id == "W24")
    assert "All 397 images of the data set give" in one.advice
