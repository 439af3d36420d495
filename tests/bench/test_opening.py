"""`besiege.open`: a run folder gives what `evaluate` gave, without torch; files have names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import besiege
from besiege.bench.file_names import FOLDER
from besiege.bench.opening import read_evaluations
from besiege.bench.overview import open_run
from besiege.bench.store import Store
from besiege.core.errors import BesiegeError, InputError, StoreError, UnknownNameError
from besiege.metrics.rows import Rows
from besiege.models.catalogue import ZOO

BOTH = ["zoo:digits-natural", "zoo:digits-pgd-at"]
WORDS: dict[str, Any] = {"attacks": "fgsm, pgd(steps=3)", "curve": False, "count": 20, "shard": 7}


def equal(one: Rows, other: Rows) -> bool:
    return list(one) == list(other) and all(
        np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f")
        for name in one
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opening") / "run"
    besiege.evaluate(BOTH, "digits", threat=["linf:0.15", "l2:1"], out=folder, **WORDS)
    return folder


def one_of(folder: Path | str) -> besiege.Evaluation:
    found = besiege.open(folder)
    assert isinstance(found, besiege.Evaluation)
    return found


def several_of(folder: Path | str) -> besiege.Evaluations:
    found = besiege.open(folder)
    assert isinstance(found, besiege.Evaluations)
    return found


def test_one_evaluation_is_what_evaluate_gave(tmp_path: Path) -> None:
    words: dict[str, Any] = {"attacks": "fgsm, pgd(steps=3)", "count": 20, "out": tmp_path}
    made = besiege.evaluate(BOTH[0], "digits", threat="linf:0.15", **words)
    found = one_of(str(tmp_path))
    assert found.figures == made.figures and found.complete
    assert (found.clean, found.robust) == (made.clean, made.robust)
    assert dict(found.by_attack) == dict(made.by_attack) and found.warnings == made.warnings
    for mine, theirs in (
        (found.rows, made.rows),
        (found.by_sample, made.by_sample),
        (found.smallest, made.smallest),
    ):
        assert mine.count and equal(mine, theirs)
    assert repr(found) == repr(made) and found.page() == tmp_path / "report.html"
    assert found.history == () and found.folder == tmp_path


def test_several_evaluations_have_names_and_one_table(run: Path) -> None:
    found = several_of(run)
    assert found.names[1] == "zoo:digits-natural against l2:1" and len(found) == 4
    assert found.complete and found.missing == ()
    rows = found.rows
    assert list(rows)[:6] == ["model", "data", "threat", "evaluation", "attack", "sample"]
    assert rows.count == sum(one.rows.count for one in found) == 4 * 2 * 20
    mine = rows.where((rows["model"] == BOTH[1]) & (rows["threat"] == "l2:1"))
    for name in ("sample", "success", "l2", "attack"):
        assert np.array_equal(mine[name], found[3].rows[name])


def test_some_of_them_are_chosen_by_model_and_threat(run: Path) -> None:
    found = several_of(run)
    assert found.of(BOTH[1]).names == [f"{BOTH[1]} against linf:0.15", f"{BOTH[1]} against l2:1"]
    (one,) = found.of(BOTH[0], "l2:1")
    assert one.figures == found[1].figures
    assert len(found.of()) == 4
    with pytest.raises(UnknownNameError, match=r"no model .*did you mean 'zoo:digits-natural'"):
        found.of("zoo:digits-naturl")
    with pytest.raises(UnknownNameError, match="no threat of this run is 'l2:2'"):
        found.of(threat="l2:2")
    with pytest.raises(UnknownNameError, match=r"not evaluated against 'l2:1': .*'linf:0.15'"):
        besiege.Evaluations([found[0], found[3]]).of(BOTH[0], "l2:1")


def test_nothing_of_it_needs_torch(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import besiege\n"
        "found = besiege.open(sys.argv[1])\n"
        "print(found[0].robust, found.rows.count, found[0].by_sample.count, found[0].history)\n"
        "for suffix in ('csv', 'parquet', 'json', 'tex', 'md'):\n"
        "    found.export(f'{sys.argv[2]}/out.{suffix}')\n"
        "found[0].export(sys.argv[2] + '/out.npz')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["20", "()"]
    assert len(list(tmp_path.iterdir())) == 6


def test_earlier_results_are_results_with_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for name, scale in (("natural", 1), ("pgd-at", 1), ("natural", 2)):
        weights = load_file(ZOO / f"digits-{name}.safetensors")
        save_file({key: array * scale for key, array in weights.items()}, "mine.safetensors")
        made.append(
            besiege.evaluate(
                "digits_cnn:mine.safetensors", "digits", threat="linf:0.15", out="run", **WORDS
            )
        )
    digests = [one.figures.model.digest for one in made]
    assert len(set(digests)) == 3
    found = one_of("run")
    assert [old.figures.model.digest for old in found.history] == digests[1::-1]
    assert [old.name for old in found.figures.history] == [o.figures.name for o in found.history]
    first = found.earlier(2)
    assert first is found.history[1] and first.robust == made[0].robust != found.robust
    assert equal(first.rows, made[0].rows) and first.figures.made == made[0].figures.made
    assert found.history[0].history[0].figures.name == first.figures.name
    assert first.history == ()
    with pytest.raises(InputError, match="has 2 earlier results, and earlier=3 was requested"):
        found.earlier(3)
    with pytest.raises(InputError, match="no earlier result"):
        first.earlier()
    with pytest.raises(BesiegeError):
        found.earlier(0)


def test_an_interrupted_run_is_read_as_far_as_it_got(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(folder / "figures")
    store, opened = open_run(folder)
    # All records of the second model are gone, and one of the first.
    kept = {task.key for plan in opened.current[:2] for task in plan.tasks()}
    lost = opened.current[0].stages()[2].parts[1][-1].key
    for key in (store.present() - kept) | {lost}:
        shutil.rmtree(store.records / key)
    found = several_of(folder)
    assert len(found) == 2 and not found.complete and not found[0].complete and found[1].complete
    assert found.missing == (f"{BOTH[1]} against linf:0.15", f"{BOTH[1]} against l2:1")
    assert "zoo:digits-pgd-at against l2:1: no result yet" in repr(found)
    assert found[0].rows.count == 2 * 20 - 7
    for key in store.present():
        shutil.rmtree(store.records / key)
    with pytest.raises(StoreError, match=r"has no result yet.*besiege evaluate zoo:digits-natural"):
        besiege.open(folder)


def a_file(run: Path, tmp_path: Path) -> Path:
    return run / "run.json"


def absent(run: Path, tmp_path: Path) -> Path:
    return run.parent / "runs"


def above(run: Path, tmp_path: Path) -> Path:
    return run.parent


def empty(run: Path, tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (a_file, r"run\.json is a file of a run: name its folder, .*run$"),
        (absent, r"runs does not exist: did you mean 'run'\? Name a folder"),
        (above, r"is no run folder, but holds some: name one \(.*run\)"),
        (empty, r"empty is no run folder: name a folder that besiege evaluate --out has written"),
    ],
)
def test_a_folder_that_is_no_run(
    place: Callable[[Path, Path], Path], said: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=said):
        besiege.open(place(run, tmp_path))


def test_many_folders_beside_are_not_all_listed(tmp_path: Path) -> None:
    for number in range(120):  # more than are tried
        (tmp_path / f"run {number:03}").mkdir()
        (tmp_path / f"run {number:03}" / "run.json").write_text("{}")
    with pytest.raises(
        StoreError, match=r"^\S+/quite-different does not exist: name a folder that"
    ):
        besiege.open(tmp_path / "quite-different")
    with pytest.raises(StoreError, match=r"holds some: name one \(.* and \d+ more\)"):
        besiege.open(tmp_path)


def test_no_path_at_all() -> None:
    given: Any = 3
    with pytest.raises(InputError, match="is a int: give its path"):
        besiege.open(given)


# Names of files.


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "pictures"
    data = besiege.data.load("digits", count=24)
    for image, label, number in zip(data.images, data.labels, data.ids, strict=True):
        place = folder / f"class {int(label)}" / "some"
        place.mkdir(parents=True, exist_ok=True)
        pixels = (255 * image[0]).round().byte().numpy()
        Image.fromarray(pixels).save(place / f"é {int(number)}.png")
    return folder


@pytest.fixture(scope="module")
def of_files(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of_files") / "run"
    words: dict[str, Any] = {**WORDS, "threat": "linf:0.15", "out": folder}
    besiege.evaluate(BOTH[0], pictures, **words)
    return folder


def test_rows_of_files_have_their_names(of_files: Path, pictures: Path) -> None:
    found = one_of(of_files)
    classes = sorted(place.name for place in pictures.iterdir())
    for rows in (found.rows, found.by_sample):
        assert rows.count in (20, 40)
        for row in rows.records():
            file = pictures / row["file"]
            assert file.is_file() and file.parts[-3] == classes[row["label"]]
            assert besiege.data.folders.file_id(row["file"]) == row["sample"]
    assert list(found.rows)[:3] == ["attack", "sample", "file"]
    assert "file" in found.smallest


def test_chosen_and_decoded_samples_keep_their_names(pictures: Path) -> None:
    data = besiege.data.load(str(pictures))
    assert data.decoded and data.files is not None and len(data.files) == 24
    some = data.subset(9, 3).take([4, 2])
    assert some.files is not None
    ids = [besiege.data.folders.file_id(name) for name in some.files]
    assert ids == some.ids.tolist()
    assert besiege.data.load("digits", count=5).files is None


def test_runs_without_names_of_files_still_open(of_files: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(of_files, tmp_path / "run"))
    (names,) = (folder / FOLDER).iterdir()
    names.write_bytes(names.read_bytes()[:100])
    assert "file" not in one_of(folder).rows
    shutil.rmtree(folder / FOLDER)
    found = one_of(folder)
    assert "file" not in found.rows and found.rows.count == 40
    # They come back with the next evaluation of the same data, which computes nothing.
    records = Store(folder).present()
    words: dict[str, Any] = {**WORDS, "threat": "linf:0.15", "out": folder}
    plan = found._plan
    besiege.evaluate(BOTH[0], plan.request.data, **words)
    assert "file" in one_of(folder).rows and Store(folder).present() == records


def test_names_stand_beside_the_rows_of_data_without(of_files: Path, run: Path) -> None:
    both = besiege.Evaluations([one_of(of_files), several_of(run)[0]])
    rows = both.rows
    assert list(rows)[:5] == ["model", "data", "threat", "evaluation", "file"]
    named = rows["file"] != ""
    assert named.sum() == 40 and (rows["data"][named] == "pictures").all()


def test_names_that_are_not_utf8_are_kept_in_a_readable_form(tmp_path: Path) -> None:
    from besiege.bench.file_names import keep_file_names, with_file_names

    store = Store(tmp_path)
    keep_file_names(store, "d" * 64, np.array([5, 3]), ["a/\udcff.png", "a/ü.png"])
    rows = with_file_names(Rows({"sample": np.array([3, 4, 5])}), store, "d" * 64)
    assert rows["file"].tolist() == ["a/ü.png", "", "a/\\udcff.png"]


def test_a_sequence_also_of_one(of_files: Path) -> None:
    found = read_evaluations(of_files)
    assert len(found) == 1 and found.names == [BOTH[0]]


def test_evaluations_of_other_counts_are_told_apart(tmp_path: Path) -> None:
    for count in (10, 20):
        besiege.evaluate(
            "zoo:digits-natural",
            "digits",
            threat="linf:0.1",
            attacks="fgsm",
            count=count,
            curve=False,
            out=tmp_path,
        )
    found = besiege.open(tmp_path)
    assert isinstance(found, besiege.Evaluations)
    names, counts = np.unique(found.rows["evaluation"], return_counts=True)
    assert len(names) == 2 and sorted(counts) == [10, 20]
