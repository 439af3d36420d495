"""Evaluations compared sample by sample: which can be, who is alone, and what is left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tests.metrics.test_aligned import outline

import besiege
from besiege.bench.comparable import Candidate, candidate_of, names_of, same_samples, terms_of
from besiege.bench.compared import PairedComparison
from besiege.bench.comparison import compare, compare_runs
from besiege.bench.evaluations import Evaluation, Evaluations
from besiege.bench.run import read_run
from besiege.bench.store import Store
from besiege.core.errors import (
    ComparisonError,
    Finding,
    InputError,
    Level,
    StoreError,
    UnknownNameError,
)
from besiege.metrics.comparing import Aligned
from besiege.metrics.paired import Difference, holm, samples_needed
from besiege.metrics.rows import Rows
from besiege.models.catalogue import ZOO
from besiege.report.comparison import ComparisonTable

WORDS: dict[str, Any] = {"attacks": "fgsm", "count": 60, "curve": False}
MODELS = ["zoo:digits-natural", "zoo:digits-pgd-at", "zoo:digits-natural+bits(depth=3)"]


def standing(found: Evaluation) -> np.ndarray[Any, Any]:
    """Which samples withstood, counted without the code under test."""
    return np.asarray(found.by_sample["fate"] == "standing")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def several(place: Path) -> Evaluations:
    """Three models under two threats, in one folder."""
    return besiege.evaluate(
        MODELS, "digits", threat=["linf:0.1", "l2:1"], out=place / "several", **WORDS
    )


@pytest.fixture(scope="module")
def pair(several: Evaluations) -> tuple[Evaluation, Evaluation]:
    one, two = (
        several["zoo:digits-natural against linf:0.1"],
        several[MODELS[1] + " against linf:0.1"],
    )
    return one, two


@pytest.fixture(scope="module")
def more(place: Path) -> Evaluation:
    """One of the models on more samples, in a folder of its own."""
    given = {**WORDS, "count": 80}
    return besiege.evaluate(MODELS[0], "digits", threat="linf:0.1", out=place / "more", **given)


Change = Callable[..., Candidate]


@pytest.fixture
def candidate(pair: tuple[Evaluation, Evaluation]) -> Change:
    """An evaluation whose plan is changed, to be compared."""

    def made(source: str = "0", number: int = 0, **changes: Any) -> Candidate:
        found = pair[number]
        one = candidate_of(found.folder, found._plan, found.figures, source)
        for part in ("model", "data", "request"):
            if part in changes:
                changes[part] = getattr(one.plan, part).model_copy(update=changes[part])
        return replace(one, plan=one.plan.model_copy(update=changes))

    return made


# What is computed.


def test_a_pair_is_that_of_the_judged_samples(pair: tuple[Evaluation, Evaluation]) -> None:
    natural, trained = pair
    found = natural.compare(trained)
    (one,) = found.pairs
    assert (one.first, one.second) == ("zoo:digits-pgd-at", "zoo:digits-natural")
    first, second, ids = standing(trained), standing(natural), natural.by_sample["sample"]
    assert one.change == Difference.of(first, second)
    assert sorted(one.only_first) == sorted(ids[first & ~second]) and len(one.only_first) > 5
    assert sorted(one.only_second) == sorted(ids[second & ~first])
    assert one.p == one.change.p and one.clear
    (group,) = found.groups
    best, other = group.evaluations
    assert (best.name, best.robust, best.clean) == (one.first, trained.robust, trained.clean)
    assert (other.name, other.robust, other.clean) == (one.second, natural.robust, natural.clean)
    assert list(best.only) == list(one.only_first) == list(other.all_but)
    assert group.count == 60 and group.notes == () and found.left_out == ()
    assert "withstands more than" in repr(found)


def test_every_pair_of_every_threat_is_corrected_for_all_of_them(several: Evaluations) -> None:
    found = several.compare()
    assert [len(group.evaluations) for group in found.groups] == [3, 3]
    assert len(found.pairs) == 6
    assert [pair.p for pair in found.pairs] == holm([pair.change.p for pair in found.pairs])
    assert any(pair.p > pair.change.p for pair in found.pairs)
    for pair in found.pairs:
        assert pair.needed == samples_needed(pair.change, 6)
        assert pair.change.value >= 0
    for group in found.groups:
        rates = [one.robust.value for one in group.evaluations if one.robust]
        assert rates == sorted(rates, reverse=True)
    assert repr(found).count("corrected p") == sum(pair.change.value > 0 for pair in found.pairs)
    assert "against l2:1:" in repr(found)


def test_alone_means_among_all_of_a_group(several: Evaluations) -> None:
    (group, _) = several.compare().groups
    results = {one.figures.model.name: standing(one) for one in several if "linf" in str(one)}
    assert len(results) == 3
    for one in group.evaluations:
        others = [results[name] for name in results if name != one.name]
        mine = results[one.name]
        assert len(one.only) == (mine & ~others[0] & ~others[1]).sum()
        assert len(one.all_but) == (~mine & others[0] & others[1]).sum()
    assert any(len(one.only) for one in group.evaluations)


def test_without_a_budget_the_smallest_perturbations_are_compared(place: Path) -> None:
    words: dict[str, Any] = {"attacks": "minimal(pgd(steps=5))", "count": 25}
    one, two = besiege.evaluate(MODELS[:2], "digits", threat="linf", **words)
    (pair,) = one.compare(two).pairs
    mine, theirs = one.smallest, two.smallest
    assert (mine["sample"] == theirs["sample"]).all()
    larger = theirs["distance"] > mine["distance"]
    smaller = theirs["distance"] < mine["distance"]
    assert pair.first == MODELS[1]
    assert (pair.change.only_first, pair.change.only_second) == (larger.sum(), smaller.sum())
    (group,) = one.compare(two).groups
    assert two.figures.eps_curve is not None
    assert group.evaluations[0].median == two.figures.eps_curve.median
    assert "needs larger perturbations than" in repr(one.compare(two))
    assert pair.crossing is not None and pair.crossing.count == 25
    for x, value in zip(pair.crossing.x, pair.crossing.value, strict=True):
        gap = (theirs["distance"] > x).mean() - (mine["distance"] > x).mean()
        assert value == pytest.approx(gap)
    assert repr(one.compare(two)).splitlines()[1].startswith("These 25 images cannot tell")


def test_evaluations_with_curves_are_compared_along_the_budget(
    place: Path, pair: tuple[Evaluation, Evaluation]
) -> None:
    """The curve of an evaluation is a search; one without a curve has no distances."""
    words: dict[str, Any] = {"threat": "linf:8/255", "attacks": "pgd(steps=5)", "count": 25}
    one, two = besiege.evaluate(MODELS[:2], "digits", **words)
    (found,) = one.compare(two).pairs
    assert found.crossing is not None
    sizes = {each.figures.model.name: each.smallest["distance"] for each in (one, two)}
    x = found.crossing.x
    assert np.allclose(x * 255, np.round(x * 255, 1))
    for at in (1, 5, 15):
        held = [(sizes[name] > x[at]).mean() for name in (found.first, found.second)]
        assert found.crossing.value[at] == pytest.approx(held[0] - held[1])
    (without,) = pair[0].compare(pair[1]).pairs
    assert without.crossing is None


def test_distances_are_measured_in_widths_of_the_range(candidate: Change) -> None:
    from besiege.bench.comparison import _distances

    one, other = candidate(number=0), candidate(number=1, model={"box": (0.0, 255.0)})
    sizes = Rows({"sample": one.outline.outcomes["sample"], "distance": np.full(60, 51.0)})
    other = replace(other, outline=replace(other.outline, smallest=sizes))
    found = _distances([one, other], Aligned.of([one.outline, other.outline]))
    assert np.isnan(found[0]).all() and np.allclose(found[1], 0.2)


# Folders.


def test_folders_say_what_results_say(
    pair: tuple[Evaluation, Evaluation], several: Evaluations
) -> None:
    from_folder = compare_runs([several.folder])
    assert from_folder.plain(True) == several.compare().plain(True)
    (only,) = compare_runs([several.folder], models=["digits-natural", MODELS[1]]).groups[:1]
    (same,) = pair[0].compare(pair[1]).groups
    assert [one.change for one in only.pairs] == [one.change for one in same.pairs]
    assert json.loads(json.dumps(from_folder.plain(True))) == from_folder.plain(True)
    assert "images" not in from_folder.plain()["groups"][0]["pairs"][0]


def test_a_result_and_the_folder_that_holds_it_are_compared_once(
    pair: tuple[Evaluation, Evaluation], several: Evaluations
) -> None:
    found = pair[0].compare(several.folder)
    assert len(found.pairs) == 6
    assert pair[0].compare(str(several.folder), several).plain() == found.plain()
    with pytest.raises(ComparisonError, match="only evaluation to compare"):
        pair[0].compare(pair[0])


def test_a_model_that_is_not_there_is_answered_with_those_that_are(several: Evaluations) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'zoo:digits-natural'"):
        compare_runs([several.folder], models=["digits-naturel"])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no run folder"):
        compare_runs([tmp_path])
    with pytest.raises(StoreError, match="does not exist"):
        compare_runs([tmp_path / "nowhere"])


def test_one_evaluation_alone_is_told_what_to_do(more: Evaluation) -> None:
    with pytest.raises(ComparisonError, match=r"name a second run .* or evaluate another model"):
        compare_runs([more.folder])


def test_a_named_run_without_the_model(several: Evaluations, more: Evaluation) -> None:
    with pytest.raises(ComparisonError, match=r"more has no evaluation of digits-pgd-at, but of"):
        compare_runs([several.folder, more.folder], models=["digits-pgd-at"])


# Other samples.


def test_other_samples_are_refused_and_the_common_ones_offered(
    several: Evaluations, more: Evaluation
) -> None:
    with pytest.raises(ComparisonError) as told:
        compare_runs([several.folder, more.folder])
    message = str(told.value)
    assert "not on the same samples" in message
    assert "60 of the 397 images of digits (test), chosen with seed 0" in message
    assert "80 of the 397 images" in message and "They share 60 images: pass common=True" in message
    found = compare_runs([several.folder, more.folder], common=True)
    group = found.groups[0]
    assert group.count == 60 and len(group.evaluations) == 4
    assert group.notes == ("Compared on the 60 images that all of them have.",)
    same = next(
        p
        for p in group.pairs
        if {p.first, p.second} == {"zoo:digits-natural (several)", "zoo:digits-natural (more)"}
    )
    assert same.change == Difference.counted(0, 0, 60) and not same.clear
    rates = {one.name: (one.robust, one.clean) for one in group.evaluations}
    assert rates["zoo:digits-natural (more)"][1].count == 60
    assert rates["zoo:digits-natural (more)"] == rates["zoo:digits-natural (several)"]


def test_samples_of_another_seed_share_a_few(place: Path, more: Evaluation) -> None:
    other = besiege.evaluate(MODELS[1], "digits", threat="linf:0.1", **{**WORDS, "seed": 1})
    shared = np.intersect1d(other.by_sample["sample"], more.by_sample["sample"])
    with pytest.raises(ComparisonError) as told:
        other.compare(more)
    assert "zoo:digits-pgd-at: 60 of the 397 images of digits (test), chosen with seed 1" in str(
        told.value
    ), "no temporary folder is named"
    assert f"They share {len(shared)} images: pass common=True" in str(told.value)
    (pair,) = other.compare(more, common=True).pairs
    assert pair.change.count == len(shared)
    mine, theirs = standing(other), standing(more)
    first = mine[np.isin(other.by_sample["sample"], shared)]
    second = theirs[np.isin(more.by_sample["sample"], shared)]
    assert pair.change.value == pytest.approx(abs(first.mean() - second.mean()))


def test_other_data_cannot_be_compared_at_all(pair: tuple[Evaluation, Evaluation]) -> None:
    data = besiege.data.load("digits", count=60)
    images, labels = data.images, data.labels
    other = besiege.evaluate(
        MODELS[1], (images, labels), threat="linf:0.1", **{**WORDS, "count": None}
    )
    for common in (False, True):
        with pytest.raises(
            ComparisonError, match="only be compared on the same data set and split"
        ):
            pair[0].compare(other, common=common)


def test_the_same_ids_with_other_images_are_noticed() -> None:
    data = besiege.data.load("digits", count=30)
    words = {**WORDS, "count": None, "threat": "linf:0.1"}
    one = besiege.evaluate(MODELS[0], (data.images, data.labels), **words)
    two = besiege.evaluate(MODELS[1], (data.images.flip(3), data.labels), **words)
    with pytest.raises(
        ComparisonError, match="Ids and labels are the same, but the images are not"
    ):
        one.compare(two)
    found = one.compare(two, common=True)
    assert found.groups[0].notes == (
        "The images have the same ids and labels, but perhaps not the same pixels: their digests "
        "differ.",
    )


def test_common_ids_with_other_images_are_said() -> None:
    data = besiege.data.load("digits", count=30)
    words = {**WORDS, "count": None, "threat": "linf:0.1"}
    one = besiege.evaluate(MODELS[0], (data.images, data.labels), **words)
    fewer = data.images[:20], data.labels[:20]
    compared = "Compared on the 20 images that all of them have."
    same = besiege.evaluate(MODELS[1], fewer, **words)
    assert one.compare(same, common=True).groups[0].notes == (compared,)
    other = besiege.evaluate(MODELS[1], (fewer[0].flip(3), fewer[1]), **words)
    mixed = torch.cat([fewer[0][:18], fewer[0][18:].flip(3)]), fewer[1]
    last = besiege.evaluate(MODELS[1], mixed, **words)
    assert len(one.compare(last, common=True).groups[0].notes) == 2, "any image counts"
    assert one.compare(other, common=True).groups[0].notes == (
        compared,
        "Images with the same ids are not the same images: their pixels differ.",
    )


def test_samples_in_another_size_or_shard_are_the_same_samples(candidate: Change) -> None:
    one = candidate()
    other = {"digest": "0" * 64}
    assert not same_samples(one, candidate("1", 1, data=other))
    resized = candidate("1", 1, data={**other, "shape": (1, 16, 16)})
    assert same_samples(one, resized)
    (note,) = compare([one, resized]).groups[0].notes
    assert "sizes 1x8x8 and 1x16x16" in note
    assert same_samples(one, candidate("1", 1, data=other, shards=one.plan.shards * 2))
    assert not same_samples(
        one, candidate("1", 1, data={**other, "shape": (1, 9, 9), "split": "train"})
    )


# Other threats and attacks.


def test_a_run_with_another_threat_meets_nobody(
    pair: tuple[Evaluation, Evaluation], several: Evaluations
) -> None:
    other = several[MODELS[1] + " against l2:1"]
    with pytest.raises(ComparisonError, match=r"no two evaluations of .* have the same threat"):
        pair[0].compare(other)
    elsewhere = replace(other, folder=shutil.copytree(other.folder, other.folder.with_name("else")))
    with pytest.raises(ComparisonError, match=r"no threat .* of .*several and .*else is that of"):
        pair[0].compare(elsewhere)


def test_an_evaluation_that_nothing_else_fits_is_left_out(candidate: Change) -> None:
    aside = candidate(threat="linf:0.3", request={"seed": 1})
    found = compare([candidate(), candidate(number=1), aside])
    ((name, why),) = found.left_out
    assert name.startswith("zoo:digits-natural against linf:0.3 in ")
    assert why == "no other has this threat" and len(found.pairs) == 1
    fewer = candidate(data={"digest": "0" * 64}, request={"seed": 1})
    assert compare([candidate(), candidate(number=1), fewer]).left_out[0][1] == "other samples"


@pytest.mark.parametrize(
    "changes",
    [
        {"threat": "linf:0.2"},
        {"threat": "l2:0.1"},
        {"threat": "linf:0.1 targeted:random"},
        {"threat": "linf:0.1 targeted:class=3"},
        {"threat": "linf:0.1 score"},
        {"request": {"queries": 100}},
        {"threat": "linf"},
    ],
)
def test_other_terms_are_never_compared(candidate: Change, changes: dict[str, Any]) -> None:
    assert terms_of(candidate()) == terms_of(candidate(number=1))
    assert terms_of(candidate()) != terms_of(candidate(**changes))
    with pytest.raises(ComparisonError, match="threat"):
        compare([candidate(), candidate("1", 1, **changes)])


def test_a_budget_is_a_share_of_the_range_of_a_pixel_value(candidate: Change) -> None:
    usual = terms_of(candidate(threat="linf:8/255"))
    assert terms_of(candidate(threat="linf:8", model={"box": (0.0, 255.0)})) == usual
    assert terms_of(candidate(threat="linf:16/255", model={"box": (-1.0, 1.0)})) == usual
    assert terms_of(candidate(threat="linf:8/255", model={"box": (-1.0, 1.0)})) != usual
    counted = terms_of(candidate(threat="l0:8"))
    assert terms_of(candidate(threat="l0:8", model={"box": (0.0, 255.0)})) == counted


def test_other_attacks_are_compared_and_said(pair: tuple[Evaluation, Evaluation]) -> None:
    words = {**WORDS, "attacks": None, "suite": "fgsm, pgd(steps=5)"}
    other = besiege.evaluate(MODELS[1], "digits", threat="linf:0.1", **words)
    (note,) = pair[0].compare(other).groups[0].notes
    assert note.startswith("Not the same attacks: zoo:digits-natural under fgsm; zoo:digits-pgd-at")
    assert "under suite fgsm, pgd(steps=5)" in note and "Stronger attacks" in note
    assert note in repr(pair[0].compare(other))


def test_random_targets_do_not_depend_on_the_seed(candidate: Change) -> None:
    terms = {"threat": "linf:0.1 targeted:random"}
    other = candidate("1", 1, **terms, request={"seed": 5})
    assert compare([candidate(**terms), other]).groups[0].notes == ()
    words = {**WORDS, "threat": "linf:0.1 targeted:random", "attacks": "fgsm", "count": 20}
    data = besiege.data.load("digits", count=20)
    targets = [
        besiege.evaluate(
            MODELS[0], (data.images, data.labels), **{**words, "count": None, "seed": seed}
        ).rows["target"]
        for seed in (0, 5)
    ]
    assert np.array_equal(*targets)


def test_copied_weights_are_two_models(tmp_path: Path) -> None:
    natural = ZOO / "digits-natural.safetensors"
    for name in ("a", "b"):
        shutil.copy(natural, tmp_path / f"{name}.safetensors")
    models = [f"digits_cnn:{tmp_path / name}.safetensors" for name in ("a", "b")]
    words = {**WORDS, "threat": "linf:0.1"}
    for model in models:
        besiege.evaluate(model, "digits", out=tmp_path / "run", **words)
    found = compare_runs([tmp_path / "run"])
    assert {one.name for one in found.groups[0].evaluations} == set(models)


def test_runs_that_only_compare_within_themselves_are_refused(candidate: Change) -> None:
    other = {"digest": "0" * 64}
    first = [candidate("first"), candidate("first", 1)]
    second = [candidate("second", number, data=other, request={"seed": 1}) for number in range(2)]
    assert len(compare([*first, *second][:2]).pairs) == 1
    with pytest.raises(ComparisonError, match="Ids and labels are the same, but the images are"):
        compare([*first, *second])
    assert len(compare([*first, *second], common=True).pairs) == 6


def test_the_more_robust_one_on_the_shared_images_comes_first(candidate: Change) -> None:
    few, all_of = outline([1, 2, 3, 4], [1, 1, 0, 0]), outline([*range(1, 11)], [1, 1, 1, *[0] * 7])
    found = compare([replace(candidate(), outline=few), replace(candidate("1", 1), outline=all_of)])
    (group,) = found.groups
    assert [one.name for one in group.evaluations] == MODELS[:2], "50 % and 30 %, each of its own"
    (pair,) = found.pairs
    assert (pair.first, pair.second) == (MODELS[1], MODELS[0])
    assert pair.change == Difference.counted(1, 0, 4) and pair.only_first.tolist() == [3]


# Names.


def test_equal_names_are_told_apart(candidate: Change, tmp_path: Path) -> None:
    one = candidate()

    def named(*others: Candidate) -> list[str]:
        return names_of([one, *others])

    away = replace(one, folder=tmp_path / "v2")
    assert named(candidate(number=1)) == ["zoo:digits-natural", "zoo:digits-pgd-at"]
    assert named(away) == ["zoo:digits-natural (several)", "zoo:digits-natural (v2)"]
    twin = replace(one, folder=tmp_path / "several")
    assert named(twin)[1] == f"zoo:digits-natural ({tmp_path}/several)"
    later = candidate(made="2030-01-02T03:04:05+00:00")
    assert named(later)[1] == "zoo:digits-natural (2030-01-02 03:04)"
    changed = candidate(model={"digest": "f00d" * 16})
    assert named(changed)[1] == "zoo:digits-natural (f00df00d)"
    assert named(one) == ["zoo:digits-natural (1)", "zoo:digits-natural (2)"]
    both = named(away, replace(later, folder=away.folder))
    assert len(set(both)) == 3 and both[2] == "zoo:digits-natural (v2, 2030-01-02 03:04)"


def test_temporary_folders_name_nothing() -> None:
    class Net(torch.nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(sign * torch.linspace(-1, 1, 640).view(64, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) @ self.weight

    words = {**WORDS, "count": 20, "threat": "linf:0.1"}
    one, two = (besiege.evaluate(Net(sign), "digits", **words) for sign in (1.0, -1.0))
    names = {each.name for each in one.compare(two).evaluations}
    assert len(names) == 2
    for found in (one, two):
        digest = found.figures.model.digest[:8]
        minute = (found.figures.made or "")[:16].replace("T", " ")
        assert names & {f"Net ({digest})", f"Net ({minute})"}


# History.


def test_history_is_included_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {**WORDS, "threat": "linf:0.15", "attacks": "pgd(steps=5)", "out": "run"}
    found = []
    for name in ("natural", "pgd-at"):
        shutil.copy(ZOO / f"digits-{name}.safetensors", "mine.safetensors")
        found.append(besiege.evaluate("digits_cnn:mine.safetensors", "digits", **words))
    with pytest.raises(ComparisonError, match="history=True for its 1 earlier result"):
        compare_runs(["run"])
    (pair,) = compare_runs(["run"], history=True).pairs
    assert pair.change.value > 0 and pair.clear
    assert pair.first != pair.second and pair.first.startswith("digits_cnn:mine.safetensors (")
    (same,) = found[1].compare(found[0]).pairs
    assert same.change == pair.change, "an earlier result in Python is still there"


# Files.


def test_images_from_files_are_listed_by_their_names(tmp_path: Path) -> None:
    data = besiege.data.load("digits", count=60)
    for image, label, number in zip(data.images, data.labels, data.ids, strict=True):
        folder = tmp_path / "digits" / str(int(label))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * image[0]).byte().numpy()).save(folder / f"{int(number)}.png")
    words = {**WORDS, "count": None, "threat": "linf:0.1"}
    one, two = besiege.evaluate(MODELS[:2], tmp_path / "digits", **words)
    found = one.compare(two)
    (group,), (pair,) = found.groups, found.pairs
    rows = one.by_sample
    files = dict(zip(rows["sample"].tolist(), rows["file"].tolist(), strict=True))
    wanted = {files[sample] for sample in pair.only_first.tolist()}
    assert len(wanted) > 5 and set(group.files.values()) >= wanted
    assert set(found.plain(images=True)["groups"][0]["files"].values()) >= wanted
    console = Console(width=200, color_system=None)
    with console.capture() as held:
        console.print(ComparisonTable(found, images=True))
    assert ", ".join(sorted(wanted)) in " ".join(held.get().split())


def test_images_without_files_have_no_names(pair: tuple[Evaluation, Evaluation]) -> None:
    assert pair[0].compare(pair[1]).groups[0].files == {}


# Results that are missing, or not to be quoted.


def test_an_incomplete_evaluation_is_compared_on_what_is_known(
    several: Evaluations, tmp_path: Path
) -> None:
    folder = shutil.copytree(several.folder, tmp_path / "run")
    run = read_run(Store(folder))
    assert run is not None
    plan = next(p for p in run.current if p.model.name == MODELS[0] and p.threat == "linf:0.1")
    # All shards of an evaluation are judged in one record here: without it nothing is known.
    judged = plan.stages()[1].parts[0][-1].key
    shutil.rmtree(folder / "records" / judged)
    found = compare_runs([folder])
    assert found.left_out == (
        (
            f"zoo:digits-natural against linf:0.1 in {folder}",
            "no image was judged under every attack yet",
        ),
    )
    with pytest.raises(ComparisonError, match="was judged under every attack yet, so there is"):
        compare_runs([folder], models=["digits-natural"])
    assert "Not compared: zoo:digits-natural" in repr(found)


def test_half_an_evaluation_is_marked(tmp_path: Path) -> None:
    words = {**WORDS, "shard": 30, "threat": "linf:0.1"}
    one, two = besiege.evaluate(MODELS[:2], "digits", out=tmp_path / "run", **words)
    key = one._plan.stages()[1].parts[0][-1].key
    shutil.rmtree(tmp_path / "run" / "records" / key)
    found = compare_runs([tmp_path / "run"])
    (pair,) = found.pairs
    assert pair.change.count == 30 and found.groups[0].count == 60
    half = next(each for each in found.evaluations if each.name == MODELS[0])
    assert not half.complete and half.robust is not None and half.robust.count == 30
    ids = one.by_sample["sample"][30:]
    assert set(pair.only_first) == set(ids[(standing(two) & ~standing(one))[30:]])
    assert "zoo:digits-natural is not complete: 30 of 60 images" in repr(found)


def test_figures_that_must_not_be_quoted_are_marked(candidate: Change) -> None:
    one, two = candidate(), candidate("1", 1)
    fine = [Finding("W24", "few samples.", "Use more.", level) for level in get_args(Level)[1:]]
    one = replace(one, figures=replace(one.figures, warnings=tuple(fine)))
    assert not any(each.stops for each in compare([one, two]).evaluations)
    wrong = Finding("W14", "it answers differently.", "Declare it.", get_args(Level)[0])
    two = replace(two, figures=replace(two.figures, warnings=(wrong,)))
    found = compare([one, two])
    (stopped,) = (each for each in found.evaluations if each.stops)
    assert stopped.name == MODELS[1] and stopped.stops == (wrong,)
    said = repr(found)
    assert "(Not to be quoted.)" in said
    assert "! Do not quote the figures of zoo:digits-pgd-at (W14): It answers differently." in said


def test_something_else_is_refused(pair: tuple[Evaluation, Evaluation]) -> None:
    wrong: Any = 3
    with pytest.raises(InputError, match="but not int"):
        pair[0].compare(wrong)


def test_the_result_is_what_the_docs_name(pair: tuple[Evaluation, Evaluation]) -> None:
    assert isinstance(pair[0].compare(pair[1]), PairedComparison)
