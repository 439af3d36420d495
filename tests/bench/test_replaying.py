"""Replays: the same images on another model or transformed, always beside adaptive attacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bench.records import content

from besiege.bench.importing import import_images
from besiege.bench.opening import read_evaluations
from besiege.bench.overview import status
from besiege.bench.replaying import replay
from besiege.bench.run import read_run
from besiege.bench.single import evaluate
from besiege.bench.store import Store
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError, StoreError, UnknownNameError
from besiege.defenses import Jpeg
from besiege.models import load
from besiege.report import write_page

SOURCE, OTHER = "zoo:digits-natural", "zoo:digits-pgd-at"
HOW: dict[str, Any] = {
    "threat": "linf:0.15",
    "count": 40,
    "curve": False,
    "examine": "none",
    "shard": 17,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replaying") / "run"
    evaluate(SOURCE, "digits", attacks="fgsm, bim(steps=5)", out=folder, **HOW)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def rows(folder: Path, model: str, attack: str) -> Any:
    (found,) = (one for one in read_evaluations(folder) if one.figures.model.name == model)
    return found.rows.where(found.rows["attack"] == attack)


def test_another_model_is_attacked_itself_first(run: Path) -> None:
    found = replay(run, on=OTHER)
    assert [one.text for one in found] == [
        f"transfer({SOURCE}, fgsm)",
        f"transfer({SOURCE}, bim(steps=5))",
    ]
    adaptive = next(o for o in read_evaluations(run) if o.figures.model.name == OTHER)
    assert [a.text for a in adaptive.figures.attacks][:2] == ["fgsm", "bim(steps=5)"]
    source = rows(run, SOURCE, "bim(steps=5)")
    broke = source.where(source["success"] & source["correct"])
    theirs = rows(run, OTHER, found[1].text)
    one = found[1]
    assert np.array_equal(np.sort(theirs["sample"]), np.sort(broke["sample"]))
    assert one.still is not None and one.right is not None and one.adaptive is not None
    assert one.still.hits == theirs["reached"].sum() and one.still.count == broke.count
    assert one.right.hits == (theirs["prediction"] == theirs["label"]).sum()
    own = rows(run, OTHER, "bim(steps=5)")
    own = own.where(np.isin(own["sample"], broke["sample"]))
    assert one.same_attack is not None
    assert one.same_attack.hits == (own["correct"] & ~own["success"]).sum()
    assert one.adaptive.value <= one.same_attack.value < one.right.value
    assert not one.same and one.through == ""


def test_a_layer_is_passed_before_the_verdict(run: Path) -> None:
    (found,) = replay(run, through="jpeg(quality=20)", attack="bim(steps=5)")
    assert found.text == "replay(bim(steps=5), jpeg(quality=20))" and found.same
    assert found.through == "jpeg(quality=20) (not Guetzli)" and found.adaptive is None
    store = Store(run)
    source = rows(run, SOURCE, "bim(steps=5)")
    broke = source.where(source["success"] & source["correct"])
    victim, theirs = load(SOURCE), rows(run, SOURCE, found.text)
    assert theirs.count == broke.count > 5
    for before in broke.records():
        arrays = store.images(before["record"])
        image = torch.from_numpy(arrays["images"][arrays["rows"] == before["row"]])
        passed = Jpeg(20)(image, (0.0, 1.0), Dice.throw(0, torch.tensor([before["sample"]])))
        (after,) = theirs.where(theirs["sample"] == before["sample"]).records()
        assert victim(passed).argmax(1).item() == after["prediction"]
    assert found.still is not None and found.still.hits == theirs["reached"].sum()
    assert found.still.hits < found.still.count, "compression undoes some"


def test_old_keys_stay_and_the_layer_joins_only_where_it_is_named(
    run: Path, tmp_path: Path
) -> None:
    keys = set(Store(run).present())
    replay(run, through="bits(depth=2)", attack="fgsm")
    replay(run, through="bits(depth=3)", attack="fgsm")
    store = Store(run)
    assert keys < set(store.present())
    records = [store.read(key) for key in store.present()]
    replayed = [one.identity for one in records if one and one.identity["kind"] == "replay"]
    assert {one["through"] for one in replayed} == {"bits(depth=2)", "bits(depth=3)"}
    assert len({one["images"] for one in replayed}) * 2 == len(replayed), "the same images"
    found = next(iter(read_evaluations(run))).figures.replays
    assert [one.text for one in found] == [
        "replay(fgsm, bits(depth=2))",
        "replay(fgsm, bits(depth=3))",
    ]
    other = tmp_path / "other"
    evaluate(SOURCE, "digits", attacks="fgsm", out=other, **HOW)
    import_images(other, run)
    records = [Store(other).read(key) for key in Store(other).present()]
    imported = [one.identity for one in records if one and one.identity["kind"] == "replay"]
    assert imported and not any("through" in one for one in imported)


def test_a_replay_is_done_once_and_is_no_change_of_the_plan(run: Path) -> None:
    names = [plan.name for plan in read_run(Store(run)).plans]  # type: ignore[union-attr]
    found = replay(run, through="pil_blur(radius=0.5)")
    before = content(run)
    assert replay(run, through="pil_blur(radius=0.5)") == found
    assert content(run) == before
    again = read_run(Store(run))
    assert again is not None and [plan.name for plan in again.plans] == names
    assert all(one.complete for one in status(run))
    assert len(found) == 2 and all(one.through == "pil_blur" for one in found)


def test_two_evaluations_with_one_attack_keep_their_own_images(run: Path) -> None:
    name = "bim(steps=5)"
    evaluate(SOURCE, "digits", suite=f"bim(steps=1), {name}", out=run, **HOW)
    evaluate(OTHER, "digits", attacks="fgsm", out=run, **HOW)
    found = replay(run, on=OTHER, attack=name)
    text = f"transfer({SOURCE}, {name})"
    assert [one.text for one in found] == [text, f"{text.removesuffix(')')}, 2)"]
    mine = [one.rows for one in read_evaluations(run) if one.figures.model.name == SOURCE]
    broken = [some["success"] & some["correct"] & (some["attack"] == name) for some in mine]
    plain, suite = (some["sample"][where] for some, where in zip(mine, broken, strict=True))
    assert 0 < len(suite) < len(plain)
    for one, ids in zip(found, (plain, suite), strict=True):
        assert one.still is not None and one.still.count == len(ids)
        assert set(rows(run, OTHER, one.text)["sample"].tolist()) == set(ids.tolist())
    assert all(one.complete for one in status(run)), "all of them were judged"
    assert replay(run, on=OTHER, attack=name) == found


def test_a_model_meets_the_suite_whose_images_it_is_shown(tmp_path: Path) -> None:
    run = tmp_path / "run"
    how = HOW | {"threat": "linf:0.2"}
    evaluate(OTHER, "digits", suite="fgsm, bim(steps=10)", out=run, **how)
    found = replay(run, on=SOURCE)
    assert [one.attack for one in found] == ["fgsm", "bim(steps=10)"]
    last, mine = found[-1], rows(run, SOURCE, found[-1].text)["sample"]
    broken = rows(run, SOURCE, "fgsm")
    broken = broken["sample"][broken["success"] & broken["correct"]]
    assert set(broken.tolist()) > set(mine.tolist()), "fgsm breaks them, so that bim never runs"
    assert last.same_attack is not None and last.same_attack.count == len(mine)
    assert last.same_attack.hits == 0


def test_both_figures_stand_on_one_line_of_the_page(run: Path) -> None:
    found = replay(run, on=OTHER, attack="fgsm")[0]
    page = write_page(run).read_text()
    line = next(
        line
        for line in page.splitlines()
        if "fgsm" in line
        and SOURCE in line
        and '<span class="badge">transfer</span>' in line
        and "<td" in line
    )
    assert found.right is not None and found.adaptive is not None
    for rate in (found.right, found.adaptive):
        assert f"{100 * rate.value:.1f}".rstrip("0").rstrip(".") in line


def test_least_likely_targets_are_those_of_the_source(tmp_path: Path) -> None:
    run = tmp_path / "run"
    how = HOW | {"threat": "linf:0.3 targeted:least-likely", "count": 20}
    evaluate(SOURCE, "digits", attacks="bim(steps=15)", out=run, **how)
    (found,) = replay(run, through="bits(depth=8)")
    source = rows(run, SOURCE, "bim(steps=15)")
    theirs = rows(run, SOURCE, found.text)
    where = [source["sample"].tolist().index(one) for one in theirs["sample"].tolist()]
    assert theirs.count and np.array_equal(theirs["target"], source["target"][where])
    assert np.array_equal(theirs["reached"], theirs["prediction"] == theirs["target"])


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        ({}, InputError, "name a transformation"),
        ({"on": SOURCE}, InputError, "name a transformation"),
        ({"through": "jpg"}, BesiegeError, "jpeg"),
        ({"through": "bits", "attack": "bim"}, UnknownNameError, r"known: bim\(steps=5\), fgsm"),
        ({"through": "bits", "model": OTHER}, UnknownNameError, "no model of this run"),
        ({"through": "crop_rescale(size=6)"}, InputError, "keeps the size"),
        ({"on": "zoo:digits-pgd"}, BesiegeError, "did you mean 'digits-pgd-at'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    run: Path, asked: dict[str, Any], kind: type[BesiegeError], words: str
) -> None:
    before, whole = content(run), (run / "run.json").read_bytes()
    if "crop_rescale(size=6)" in asked.values():
        asked = {"through": "resize_pad(least=1, to=20, fill=0.5)"}
    with pytest.raises(kind, match=words):
        replay(run, **asked)
    assert content(run) == before and (run / "run.json").read_bytes() == whole


def test_images_are_shown_where_the_model_itself_was_attacked(run: Path) -> None:
    how = {**HOW, "attacks": "fgsm", "out": run}
    evaluate(OTHER, "digits", substitute=SOURCE, **how)
    (found,) = replay(run, on=OTHER, model=SOURCE, attack="fgsm")
    assert found.adaptive is not None and found.same_attack is not None
    assert not any(w.id == "W32" for one in read_evaluations(run) for w in one.warnings)


def test_a_model_of_another_range_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ranged.py").write_text(
        "import besiege, torch\n\n\ndef make():\n"
        "    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "    torch.nn.init.zeros_(net[1].weight)\n"
        "    torch.nn.init.zeros_(net[1].bias)\n"
        "    return besiege.Classifier(net, box=(-1.0, 1.0))\n"
    )
    with pytest.raises(InputError, match="another range of pixel values"):
        replay(run, on=f"{tmp_path / 'ranged.py'}:make")


def test_images_that_were_let_go_are_refused_with_the_fix(run: Path) -> None:
    store = Store(run)
    for key in store.present():
        record = store.read(key)
        if record is not None and record.identity["kind"] == "craft":
            store.release(key, None)
    with pytest.raises(StoreError, match='images = "all"'):
        replay(run, through="bits")
