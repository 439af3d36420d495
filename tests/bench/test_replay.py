"""Images made elsewhere: judged like ours, only where there are some, and refused if they are of
something else.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.records import content

import besiege
from besiege.bench import importing
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.claims import Claims
from besiege.bench.expanding import declared
from besiege.bench.importing import Imported, import_images
from besiege.bench.merging import merge
from besiege.bench.opening import read_evaluations
from besiege.bench.overview import status
from besiege.bench.run import read_run
from besiege.bench.single import evaluate, measure
from besiege.bench.store import ReleasedError, Store
from besiege.bench.working import attempt
from besiege.core.errors import BesiegeError, DataError, InputError, ThreatError, UnknownNameError
from besiege.report import write_page

MODEL, COUNT = "zoo:digits-pgd-at", 60
HOW: dict[str, Any] = {"threat": "linf:0.15", "count": COUNT, "curve": False}
WEAK: dict[str, Any] = {**HOW, "attacks": "fgsm", "shard": 20}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a strong and a weak attack, and the images of the strong one."""
    base = tmp_path_factory.mktemp("replay")
    strong = evaluate(MODEL, "digits", out=base / "strong", attacks="pgd", shard=25, **HOW)
    evaluate(MODEL, "digits", out=base / "weak", **WEAK)
    strong.export(base / "images.npz")
    return base


@pytest.fixture
def weak(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "weak", tmp_path / "weak"))


def only(folder: Path, source: Path, **choice: Any) -> Imported:
    (found,) = import_images(folder, source, **choice).taken
    return found


def arrays(made: Path, *names: str) -> dict[str, Any]:
    with np.load(made / "images.npz") as file:
        return {name: file[name] for name in names}


def written(path: Path, **content: Any) -> Path:
    np.savez(path, **content)
    return path


def test_exported_images_get_the_same_verdicts(made: Path, weak: Path) -> None:
    (strong,) = read_evaluations(made / "strong")
    before = besiege.open(weak)
    found = only(weak, made / "images.npz")
    after = besiege.open(weak)
    assert isinstance(before, besiege.Evaluation) and isinstance(after, besiege.Evaluation)
    theirs = strong.rows.where(strong.rows["success"] & strong.rows["correct"])
    mine = after.rows.where(after.rows["attack"] == "replay(images.npz)")
    assert mine.count == theirs.count == found.images == found.broken
    for name in ("sample", "prediction", "success", "linf", "l2", "confidence"):
        assert np.array_equal(mine[name], theirs[name]), name
    assert after.robust == found.after and before.robust == found.before
    fell = set(theirs["sample"].tolist()) - {
        int(s) for s, ok in zip(before.rows["sample"], before.rows["success"], strict=True) if ok
    }
    assert found.new == len(fell) > 0
    assert after.robust is not None and before.robust is not None
    assert after.robust.hits == before.robust.hits - found.new
    assert after.robust.count == COUNT, "samples without an image are not missing"


def test_it_is_an_attack_of_the_evaluation(made: Path, weak: Path) -> None:
    name = read_evaluations(weak)[0].figures.name
    found = only(weak, made / "images.npz")
    (after,) = read_evaluations(weak)
    assert after.complete and after.figures.name == name
    row = after.figures.attacks[-1]
    assert (row.text, row.transfer, row.given, row.complete) == (found.attack, True, True, True)
    assert row.accuracy is not None and row.accuracy.count == found.images
    assert (row.forwards, row.backwards, row.queries) == (0, 0, 0)
    assert not [one for one in after.warnings if one.level == "stop"]
    (weak_ones,) = (one for one in after.warnings if one.id == "W50")
    assert f"examples for {found.new} of the " in weak_ones.seen
    stage = after.figures.cascade[-1]
    assert stage.unknown == 0 and stage.broken == found.new
    page = write_page(weak).read_text()
    assert (
        page.count("replay(images.npz)") > 1
        and '<td role="cell" data-label="Time" class="n">-</td>' in page
    )
    again = evaluate(MODEL, "digits", out=weak, **WEAK)
    assert again.robust == found.after, "the same request keeps them"


def test_importing_twice_adds_nothing(made: Path, weak: Path) -> None:
    found = only(weak, made / "images.npz")
    whole = content(weak)
    assert only(weak, made / "images.npz") == found
    assert only(weak, made / "strong") == found, "the same images from the run"
    assert content(weak) == whole
    other = arrays(made, "x", "ids")
    path = written(weak.parent / "images.npz", images=other["x"][:5], ids=other["ids"][:5])
    assert only(weak, path).attack == "replay(images.npz, 2)"


def test_of_two_evaluations_in_one_import_the_second_comes_after_the_first(
    made: Path, weak: Path
) -> None:
    both = Path(shutil.copytree(made / "strong", weak.parent / "both"))
    evaluate(MODEL, "digits", out=both, attacks="bim(steps=20)", **HOW)
    before = besiege.open(weak)
    one, two = import_images(weak, both).taken
    after = besiege.open(weak)
    assert isinstance(before, besiege.Evaluation) and isinstance(after, besiege.Evaluation)
    assert one.before == before.robust and two.after == after.robust
    assert one.after == two.before
    assert one.before is not None and two.after is not None
    assert one.new + two.new == one.before.hits - two.after.hits > 0
    assert list(import_images(weak, both).taken) == [one, two]


@pytest.mark.parametrize("when", ["before the plan", "before the verdicts"])
def test_a_killed_import_resumes(
    made: Path, weak: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path(shutil.copytree(weak, weak.parent / "whole"))
    only(whole, made / "images.npz")
    calls: list[str] = []

    def killed(tasks: Any, *others: Any) -> Any:
        calls.extend(task.kind for task in tasks)
        if calls.count("judge") == 2:
            raise KeyboardInterrupt
        return working(tasks, *others)

    def never(*given: Any) -> Any:
        raise KeyboardInterrupt

    working: Callable[..., Any] = attempt
    with monkeypatch.context() as patch:
        if when == "before the plan":
            patch.setattr(importing, "update_run", never)
        else:
            patch.setattr(importing, "attempt", killed)
        with pytest.raises(KeyboardInterrupt):
            import_images(weak, made / "images.npz")
    assert status(weak)[0].complete is (when == "before the plan")
    other = Path(shutil.copytree(weak, weak.parent / "other"))
    only(weak, made / "images.npz")
    assert content(weak) == content(whole) and status(weak)[0].complete
    if when == "before the verdicts":  # the evaluation itself completes it, too
        evaluate(MODEL, "digits", out=other, **WEAK)
        assert content(other) == content(whole)


def test_images_beyond_the_budget_never_count(made: Path, weak: Path) -> None:
    given = arrays(made, "x", "clean", "ids")
    far = np.clip(given["clean"] + 3 * (given["x"] - given["clean"]), 0, 1)
    found = only(weak, written(weak.parent / "far.npz", images=far, ids=given["ids"]))
    assert found.outside == found.images and found.broken == found.new == 0
    assert found.before == found.after
    (after,) = read_evaluations(weak)
    assert not [one for one in after.warnings if one.level == "stop"], "they claimed nothing"


def test_without_ids_there_is_one_for_every_sample(made: Path, weak: Path) -> None:
    clean = besiege.data.load("digits", count=COUNT, seed=0).images.numpy()
    assert only(weak, written(weak.parent / "all.npz", x=np.moveaxis(clean, 1, 3))).images == COUNT
    with pytest.raises(InputError, match="59 images without ids, but 60 samples"):
        import_images(weak, written(weak.parent / "few.npz", x=clean[1:]))


def _wrong(made: Path) -> dict[str, tuple[dict[str, Any], type[BesiegeError], str]]:
    given = arrays(made, "x", "ids", "y", "clean")
    images, ids = given["x"], given["ids"]
    broken = images.copy()
    broken[0, 0, 0, 0] = np.nan
    return {
        "shape": ({"images": images[:, :, 1:], "ids": ids}, InputError, "have the shape"),
        "ids": ({"images": images, "ids": ids + 5000}, InputError, "not among those of the 60"),
        "twice": ({"images": images, "ids": ids * 0 + ids[0]}, InputError, "occurs"),
        "box": ({"images": images * 2, "ids": ids}, InputError, "images go from 0 to"),
        "nan": ({"images": broken, "ids": ids}, InputError, "NaN"),
        "texts": ({"images": images, "ids": ids.astype(str)}, DataError, "whole numbers"),
        "labels": ({"images": images, "ids": ids, "y": given["y"] + 1}, InputError, "other data"),
        "clean": (
            {"images": images, "ids": ids, "clean": 1 - given["clean"]},
            InputError,
            "clean images of some ids",
        ),
        "names": ({"pictures": images}, DataError, "has no 'images' and no 'x'"),
    }


@pytest.mark.parametrize(
    "what", ["shape", "ids", "twice", "box", "nan", "texts", "labels", "clean", "names"]
)
def test_other_images_are_refused(made: Path, weak: Path, what: str) -> None:
    before, whole = content(weak), (weak / "run.json").read_bytes()
    arrays, kind, words = _wrong(made)[what]
    with pytest.raises(kind, match=words):
        import_images(weak, written(weak.parent / "wrong.npz", **arrays))
    assert content(weak) == before and (weak / "run.json").read_bytes() == whole


def test_other_files_and_evaluations_are_refused(made: Path, weak: Path) -> None:
    (weak.parent / "text.npz").write_text("no archive")
    (weak.parent / "image.png").write_text("no archive")
    for name, words in (("text.npz", "not an"), ("image.png", "no run folder"), ("none", "read")):
        with pytest.raises(DataError, match=words):
            import_images(weak, weak.parent / name)
    with pytest.raises(UnknownNameError, match="did you mean 'zoo:digits-pgd-at'"):
        import_images(weak, made / "images.npz", model="zoo:digits-pgd")
    with pytest.raises(UnknownNameError, match=r"did you mean 'linf:0\.15'"):
        import_images(weak, made / "images.npz", threat="linf:0.1")
    evaluate(MODEL, "digits", out=weak, **{**WEAK, "threat": "l2:1"})
    found = import_images(weak, made / "strong")
    assert [one.threat for one in found.taken] == ["linf:0.15"]
    assert "made for 'linf:0.15'" in found.left_out[0]
    with pytest.raises(ThreatError, match="made for"):
        import_images(weak, made / "strong", threat="l2:1")


def test_a_search_takes_smaller_perturbations(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "search"
    options = {**WEAK, "threat": "linf", "attacks": "minimal(fgsm)"}
    evaluate(MODEL, "digits", out=run, **options)
    before = read_evaluations(run)[0].smallest["distance"]
    found = only(run, made / "images.npz")
    (after,) = read_evaluations(run)
    nearer = after.smallest["distance"] < before
    assert found.new == nearer.sum() and found.outside == 0
    nearer = after.smallest["distance"] < 0.99 * before
    assert any(one.id == "W50" for one in after.warnings) == nearer.any()
    sizes = after.figures.distances
    assert sizes is not None and [one.text for one in sizes.attacks] == ["minimal(fgsm)"]
    assert write_page(run).is_file()


def test_a_suite_and_a_stochastic_model(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "suite"
    options = {**WEAK, "attacks": None, "suite": "fgsm, bim(steps=2)"}
    evaluate(MODEL, "digits", out=run, **options)
    found = only(run, made / "images.npz")
    (after,) = read_evaluations(run)
    assert after.by_attack[found.attack] == after.robust == found.after
    noisy = tmp_path / "noisy"
    evaluate(f"{MODEL}+resize_pad", "digits", out=noisy, **{**WEAK, "attacks": "averaged(fgsm)"})
    found = only(noisy, made / "images.npz")
    (after,) = read_evaluations(noisy)
    chance = after.figures.chance
    assert chance is not None and [one.text for one in chance.attacks][-1] == found.attack


@pytest.mark.parametrize("how", [{}, {"budget": "search"}])
def test_a_benchmark_says_how_images_are_imported(how: dict[str, Any]) -> None:
    cell = {"name": "weak", "threat": "linf:0.15", "attacks": ["fgsm", "replay(images.npz)"], **how}
    about = {"name": "small", "data": "digits", "cells": [cell], "models": {"mine": MODEL}}
    with pytest.raises(
        InputError, match=r"attacks\[2\] .*: images made .* besiege import RUN FILE"
    ):
        declared(benchmark_of(about), Path())


def test_released_images(made: Path, tmp_path: Path) -> None:
    cells = [{"name": "weak", "threat": "linf:0.15", "attacks": ["fgsm"]}]
    about = {"name": "small", "data": "digits", "count": COUNT, "shard": 20, "cells": cells}
    about |= {"models": {"mine": MODEL}, "store": {"images": "none"}}
    run = tmp_path / "run"
    spec = declared(benchmark_of(about), Path())
    measure(spec, out=run)
    with pytest.raises(ReleasedError, match="were let go"):
        import_images(made / "weak", run)
    found = only(run, made / "images.npz")
    (again,) = measure(spec, out=run)
    assert again.robust == found.after and again.complete
    kept = Store(run)
    records = {key: kept.read(key) for key in kept.present()}
    mine = [k for k, one in records.items() if one is not None and one.identity["kind"] == "replay"]
    assert mine and not any(kept.released(key) for key in mine), "nothing can make them again"


def test_merged_runs_have_the_images_of_both(made: Path, weak: Path) -> None:
    both = Path(shutil.copytree(weak, weak.parent / "both"))
    found = only(weak, made / "images.npz")
    merge(both, [weak])
    (after,) = read_evaluations(both)
    assert after.robust == found.after and after.complete


def test_images_that_are_gone_are_told(made: Path, weak: Path) -> None:
    found = only(weak, made / "images.npz")
    store = Store(weak)
    for key in store.present():
        record = store.read(key)
        if record is not None and record.identity["kind"] == "replay":
            shutil.rmtree(store.records / key)
    evaluate(MODEL, "digits", out=weak, **WEAK)
    (after,) = read_evaluations(weak)
    assert not after.complete and "import them again" in str(after.figures.attacks[-1].failure)
    assert only(weak, made / "images.npz") == found and status(weak)[0].complete


def test_an_import_waits_for_images_that_another_process_stores(made: Path, weak: Path) -> None:
    other = Path(shutil.copytree(weak, weak.parent / "other"))
    found = only(other, made / "images.npz")
    stored = set(Store(other).present()) - set(Store(weak).present())
    with Claims(Store(weak)) as claims:
        assert all(map(claims.take, stored))
        ended: list[bool] = []

        def release() -> None:
            ended.append(bool(set(Store(weak).present()) & stored))
            for key in stored:
                claims.release(key)

        later = threading.Timer(0.5, release)
        later.start()
        assert only(weak, made / "images.npz") == found
        later.join()
    assert ended == [False]


def test_plans_of_before_have_none(weak: Path) -> None:
    path = weak / "run.json"
    run = json.loads(path.read_text())
    for plan in run["plans"]:
        del plan["replays"], plan["digest"]
    path.write_text(json.dumps(run))
    read = read_run(Store(weak))
    assert read is not None and read.plans[0].replays == ()


def test_a_plan_that_is_written_again_keeps_them(made: Path, weak: Path) -> None:
    only(weak, made / "images.npz")
    run = read_run(Store(weak))
    assert run is not None
    (plan,) = run.plans
    begun_before = plan.model_copy(update={"replays": ()})
    assert plan.replays and run.with_plan(begun_before).plans[0].replays == plan.replays
