"""Clean logits in records, and the utility of one evaluated model against another."""

from __future__ import annotations

import shutil
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.bench.test_written_before import ASKED, BEFORE
from torch import Tensor

import besiege
from besiege.bench.compared import Pair, PairedComparison
from besiege.bench.comparison import compare_runs
from besiege.bench.evaluations import Evaluation, Evaluations
from besiege.bench.store import IMAGES, LOGITS, Record, Store
from besiege.core.dice import Dice
from besiege.core.errors import ComparisonError
from besiege.core.samples import Samples
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.defenses import load
from besiege.evaluation.judging import predict_clean
from besiege.report.comparison import ComparisonTable
from besiege.report.utility import utility_sentence

WORDS: dict[str, Any] = {
    "threat": "linf:0.1",
    "attacks": "averaged(fgsm, 2)",
    "curve": False,
    "examine": "none",
}
NATURAL, TRAINED = "zoo:digits-natural", "zoo:digits-pgd-at"
MODELS = [NATURAL, TRAINED, f"{NATURAL}+bits(depth=2)", f"{TRAINED}+bits(depth=2)"]
MODELS += [f"{NATURAL}+resize_pad"]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Evaluations:
    """Deterministic models and a stochastic one, on all test images in two shards."""
    folder = tmp_path_factory.mktemp("utility") / "several"
    return besiege.evaluate(MODELS, "digits", out=folder, shard=200, **WORDS)


@pytest.fixture(scope="module")
def compared(several: Evaluations) -> PairedComparison:
    return several.compare()


def recorded(one: Evaluation) -> Tensor:
    """The recorded logits of an evaluation, by sample id."""
    store, (stage,) = Store(one.folder), one._plan.stages_of("clean")
    keys = [task.key for (task,) in stage.parts]
    logits = torch.cat([torch.from_numpy(store.logits(key)) for key in keys])
    return logits[store.rows(keys)["sample"].argsort()]


def pair_of(found: PairedComparison, one: str, other: str) -> Pair:
    (pair,) = (pair for pair in found.pairs if {pair.first, pair.second} == {one, other})
    return pair


# Records.


@pytest.mark.parametrize("number", range(4))
def test_a_clean_record_has_the_logits_of_the_model(several: Evaluations, number: int) -> None:
    data = besiege.data.load("digits")
    logits = recorded(several[number])
    assert logits.dtype == torch.float32 and logits.shape == (397, 10)
    with torch.no_grad():
        assert torch.allclose(logits, load(MODELS[number])(data.images), atol=1e-4)


def test_those_of_a_stochastic_model_have_the_mean_probabilities(several: Evaluations) -> None:
    """The confidence in the rows is the largest mean probability over all draws."""
    one = several[4]
    rows = Store(one.folder).rows([t.key for (t,) in one._plan.stages_of("clean")[0].parts])
    assert rows["confidence"].max() < 1
    found = torch.softmax(recorded(one).double(), 1).max(1)
    order = rows["sample"].argsort()
    assert np.allclose(found.values, rows["confidence"][order], atol=1e-6)
    assert (found.indices.numpy() == rows["prediction"][order]).all()


def test_tables_and_exports_do_not_have_them(several: Evaluations, tmp_path: Path) -> None:
    assert not any("logit" in name for name in several[0].rows)
    path = several[0].export(tmp_path / "rows.csv")
    assert "logit" not in path.read_text().splitlines()[0]
    (key,) = {t.key for (t,) in several[0]._plan.stages_of("clean")[0].parts[:1]}
    folder = several.folder / "records" / key
    assert (folder / LOGITS).stat().st_size < 200 * 10 * 4 + 200, "4 bytes each, and a header"
    assert (folder / IMAGES).exists()


class Plain(Victim):
    """The natural digits model."""

    def __init__(self) -> None:
        self.net = load(NATURAL)

    @property
    def parts(self) -> tuple[Victim, ...]:
        return (self.net,)

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return self.net(x)


class LabelsOnly(Plain):
    access = Access.DECISION


class Rejecting(Plain):
    """The same with a column more, which is the largest for images with little ink."""

    rejects = True

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits = super().__call__(x)
        sign = (x.mean((1, 2, 3)) < 0.28).float() * 2 - 1
        return torch.cat([logits, logits.amax(1, keepdim=True) + 30 * sign[:, None]], 1)


def test_a_victim_that_returns_labels_has_no_logits(tmp_path: Path) -> None:
    data = besiege.data.load("digits", count=20)
    samples = Samples.of(data.images, data.labels)
    assert predict_clean(LabelsOnly(), samples).logits is None
    assert predict_clean(Plain(), samples).logits is not None
    words = {**WORDS, "access": "decision", "attacks": "noise", "count": 20}
    base = besiege.evaluate(NATURAL, "digits", **words)
    labels = besiege.evaluate(LabelsOnly(), "digits", out=tmp_path / "labels", **words)
    assert not list(labels.folder.rglob(LOGITS))
    (pair,) = base.compare(labels).pairs
    assert pair.utility is not None and pair.utility.cav.value == 0 and pair.utility.cos is None
    assert "No CCV and COS: LabelsOnly: it returns labels only." in utility_sentence(pair)


def test_a_rejected_image_is_not_right_and_the_column_is_no_class(tmp_path: Path) -> None:
    data = besiege.data.load("digits", count=60)
    samples = Samples.of(data.images, data.labels)
    plain, rejecting = (predict_clean(one, samples) for one in (Plain(), Rejecting()))
    assert plain.logits is not None and rejecting.logits is not None
    rejected = rejecting.rejection.rejected
    assert 5 < int(rejected.sum()) < 55
    assert torch.equal(rejecting.correct, plain.correct & ~rejected)
    assert rejecting.logits.shape == (60, 10) and torch.equal(rejecting.logits, plain.logits)
    words = {**WORDS, "count": 60}
    one, other = (besiege.evaluate(model, "digits", **words) for model in (Plain(), Rejecting()))
    (pair,) = one.compare(other).pairs
    found = pair.utility
    assert found is not None and (pair.base, pair.model) == ("Plain", "Rejecting")
    assert found.crr.hits == 0 and found.csr.hits == int((plain.correct & rejected).sum()) > 0
    assert found.ccv is not None and found.ccv.value == 0 and found.ccv.count < 60
    assert found.cos is not None and found.cos.value == 0, "they answer accepted images alike"


# Pairs.


def test_the_figures_are_those_of_the_recorded_answers(
    several: Evaluations, compared: PairedComparison
) -> None:
    labels = besiege.data.load("digits").labels
    for one, other in combinations(range(len(MODELS)), 2):
        pair = pair_of(compared, MODELS[one], MODELS[other])
        assert (pair.base, pair.model) == (MODELS[one], MODELS[other])
        found = pair.utility
        assert found is not None and found.ccv is not None and found.cos is not None
        right = [several[k].by_sample["fate"] != "wrong" for k in (one, other)]
        gain = Fraction(found.crr.hits, 397) - Fraction(found.csr.hits, 397)
        assert gain == Fraction(int(right[1].sum()) - int(right[0].sum()), 397)
        assert gain == Fraction(found.cav.only_first - found.cav.only_second, found.cav.count)
        both = torch.from_numpy(right[0] & right[1])
        p, q = (torch.softmax(recorded(several[k]).double(), 1)[both] for k in (one, other))
        label = labels[both, None]
        m = ((p + q) / 2).log()
        divergence = ((p * (p.log() - m)).sum(1) + (q * (q.log() - m)).sum(1)) / 2
        change = (p.gather(1, label) - q.gather(1, label)).abs()
        assert found.ccv.value == pytest.approx(float(change.mean()), rel=1e-9)
        assert found.cos.value == pytest.approx(float(divergence.mean()), rel=1e-7)
        assert found.ccv.count == found.cos.count == int(both.sum())
        assert 0 < found.cos.low < found.cos.value < found.cos.high


def test_the_one_that_is_named_first_is_the_base(several: Evaluations) -> None:
    first, second = several[0], several[1]
    (there,), (back,) = first.compare(second).pairs, second.compare(first).pairs
    assert (there.base, there.model) == (back.model, back.base) == (NATURAL, TRAINED)
    assert there.utility is not None and back.utility is not None
    assert there.utility.cav.value == -back.utility.cav.value > 0
    assert there.utility.cos == back.utility.cos


def test_an_earlier_result_is_the_base_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from besiege.models.catalogue import ZOO

    monkeypatch.chdir(tmp_path)
    natural, trained = (
        load_file(ZOO / f"digits-{name}.safetensors") for name in ("natural", "pgd-at")
    )
    clean = []
    for weights in (natural, trained, {name: 1.001 * one for name, one in natural.items()}):
        save_file(weights, "mine.safetensors")
        words = {**WORDS, "count": 100}
        found = besiege.evaluate("digits_cnn:mine.safetensors", "digits", out="run", **words)
        clean.append(found.clean.value)
    gains = {
        one.utility.cav.value for one in compare_runs(["run"], history=True).pairs if one.utility
    }
    assert clean[0] == clean[2] < clean[1]
    assert sorted(gains) == pytest.approx([clean[2] - clean[1], 0, clean[1] - clean[0]])


def test_json_has_them(compared: PairedComparison) -> None:
    pair = compared.plain()["groups"][0]["pairs"][0]
    found = pair["utility"]
    assert {found["model"], found["base"]} == {pair["first"], pair["second"]}
    for name in ("cav", "crr", "csr", "ccv", "cos"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"], name
    assert found["lacking"] == {}


# Samples.


def test_other_samples_are_refused_and_common_ones_compared(
    several: Evaluations, tmp_path: Path
) -> None:
    other = besiege.evaluate(TRAINED, "digits", count=90, out=tmp_path / "other", **WORDS)
    with pytest.raises(ComparisonError, match="not on the same samples"):
        several[0].compare(other)
    (pair,) = several[0].compare(other, common=True).pairs
    ids = other.by_sample["sample"]
    right = [one.by_sample["fate"] != "wrong" for one in (several[0], other)]
    before = right[0][np.isin(several[0].by_sample["sample"], ids)]
    assert pair.utility is not None and pair.utility.cav.count == 90
    assert pair.utility.cav.value == pytest.approx(right[1].mean() - before.mean())
    (same,) = several[1].compare(other, common=True).pairs
    assert same.utility is not None and same.utility.cos is not None
    assert same.utility.cos.value == 0, "each image with itself, in any shard"
    group = several[0].compare(several[1], other, common=True)
    counts = [one.utility.cav.count for one in group.pairs if one.utility]
    assert counts == [90] * 3, "the samples of the group, also of two that share more"


def test_clean_images_that_are_missing_do_not_count(several: Evaluations, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(several.folder, tmp_path / "part"))
    (stage,) = several[1]._plan.stages_of("clean")
    gone = stage.parts[0][0].key
    left = Store(folder).rows([stage.parts[1][0].key])["sample"]
    shutil.rmtree(folder / "records" / gone)
    found = pair_of(compare_runs([folder], models=[NATURAL, TRAINED]), NATURAL, TRAINED)
    assert found.utility is not None and found.utility.cav.count == len(left) == 197
    assert found.utility.cos is not None and found.utility.cos.value > 0


# Records without logits.


def without_logits(folder: Path, keys: list[str]) -> None:
    """Write records again as releases without clean logits wrote them."""
    store = Store(folder)
    for key in keys:
        record, files = store.with_files(key, None) or pytest.fail(key)
        rows = {n: c for n, c in store.rows([key]).items() if n not in ("record", "row")}
        store.discard(key)
        old = Record(record.identity, record.totals, record.findings, record.provenance)
        assert store.commit(old, rows, {IMAGES: files[IMAGES]}) == key
        assert store.logits(key) is None


@pytest.mark.parametrize("shards", [1, 2])
def test_records_of_earlier_releases_have_shares_and_say_what_is_missing(
    several: Evaluations, compared: PairedComparison, tmp_path: Path, shards: int
) -> None:
    folder = Path(shutil.copytree(several.folder, tmp_path / "old"))
    (stage,) = several[0]._plan.stages_of("clean")
    without_logits(folder, [task.key for (task,) in stage.parts[:shards]])
    models = [NATURAL, TRAINED]
    found = compare_runs([folder], models=models)
    pair, whole = (pair_of(one, *models) for one in (found, compared))
    assert pair.utility is not None and whole.utility is not None
    assert pair.utility.ccv is pair.utility.cos is None
    for name in ("cav", "crr", "csr"):
        assert getattr(pair.utility, name) == getattr(whole.utility, name)
    said = utility_sentence(pair)
    assert "CCV n/a, COS n/a. No CCV and COS: zoo:digits-natural: its clean images were" in said
    assert "recorded without logits, by an earlier release" in said
    shown = _printed(found)
    assert "n/a" in shown and shown.count("by an earlier release") == 1


def test_a_folder_that_an_earlier_release_wrote(tmp_path: Path) -> None:
    model, given = ASKED[2]
    before = Path(shutil.copytree(BEFORE, tmp_path / "before"))
    besiege.evaluate(TRAINED, "digits", out=tmp_path / "now", **given)
    found = compare_runs([before, tmp_path / "now"])
    (pair,) = found.pairs
    assert (pair.base, pair.model) == (model, TRAINED)
    assert pair.utility is not None and pair.utility.cav.count == 12
    assert pair.utility.lacking.keys() == {"ccv", "cos"}


def test_logits_that_were_changed_are_not_used(several: Evaluations, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(several.folder, tmp_path / "changed"))
    (stage,) = several[0]._plan.stages_of("clean")
    path = folder / "records" / stage.parts[0][0].key / LOGITS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    pair = pair_of(compare_runs([folder], models=[NATURAL, TRAINED]), NATURAL, TRAINED)
    assert pair.utility is not None and pair.utility.cos is None
    assert "logits.safetensors that was changed" in pair.utility.lacking["cos"][0]


def _printed(found: PairedComparison) -> str:
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as captured:
        console.print(ComparisonTable(found))
    return " ".join(captured.get().split())


def test_the_table_has_a_row_for_each_pair(compared: PairedComparison) -> None:
    shown = _printed(compared)
    assert "on the clean images model base CAV CRR CSR CCV COS" in shown
    pair = pair_of(compared, NATURAL, TRAINED)
    assert pair.utility is not None
    rank = {one.name: n for n, one in enumerate(compared.groups[0].evaluations, 1)}
    cav, crr = pair.utility.cav, pair.utility.crr
    row = f"{rank[TRAINED]} {rank[NATURAL]} {100 * cav.value:+.1f} {100 * crr.value:.1f} %"
    assert row in shown
    assert pair.utility.ccv is not None and f" {100 * pair.utility.ccv.value:.3g} " in shown
    assert "CAV accuracy gained" in shown
