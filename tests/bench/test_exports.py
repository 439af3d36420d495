"""Exported files read back: the same values, images that the model classifies as stated."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from torch import nn

import besiege
from besiege.bench.exports.images import broken_images
from besiege.bench.reading import gather
from besiege.bench.store import Store
from besiege.core.errors import BesiegeError, InputError, StoreError, UnknownNameError
from besiege.report.paper import short_names

NATURAL = "zoo:digits-natural"
BOTH = [NATURAL, "zoo:digits-pgd-at"]
WORDS: dict[str, Any] = {
    "attacks": "fgsm, pgd(steps=3), pgd(steps=5)",
    "curve": False,
    "count": 30,
    "shard": 8,
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    folder = tmp_path_factory.mktemp("one") / "it's a run"
    return besiege.evaluate(NATURAL, "digits", threat="linf:0.15", out=folder, **WORDS)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluations:
    folder = tmp_path_factory.mktemp("several") / "run"
    return besiege.evaluate(BOTH, "digits", threat=["linf:0.15", "l2:1"], out=folder, **WORDS)


@pytest.fixture(scope="module")
def minimal(tmp_path_factory: pytest.TempPathFactory) -> besiege.Evaluation:
    folder = tmp_path_factory.mktemp("minimal") / "run"
    attacks = "fmn(steps=10), ddn(steps=20)"
    return besiege.evaluate(NATURAL, "digits", threat="l2", attacks=attacks, count=20, out=folder)


def columns(found: besiege.Evaluation | besiege.Evaluations) -> dict[str, list[Any]]:
    """What a file must hold, as plain values."""
    rows = found.rows.without("record", "row")
    return {name: column.tolist() for name, column in rows.items()}


def same(mine: list[Any], theirs: list[Any]) -> bool:
    return len(mine) == len(theirs) and all(
        a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(mine, theirs, strict=True)
    )


def read_as(text: str, value: Any) -> Any:
    """A cell of a CSV file, as the type that it was written from."""
    if isinstance(value, bool):
        return {"true": True, "false": False}[text]
    return math.nan if isinstance(value, float) and text == "" else type(value)(text)


def test_csv_reads_back(
    one: besiege.Evaluation, minimal: besiege.Evaluation, tmp_path: Path
) -> None:
    for found in (one, minimal):
        path = found.export(tmp_path / f"{found.figures.name}.csv")
        with path.open(newline="", encoding="utf-8") as file:
            head, *lines = list(csv.reader(file))
        assert head[:3] == ["model", "data", "threat"] and len(lines) == found.rows.count
        for name, values in columns(found).items():
            place = head.index(name)
            cells = [read_as(line[place], value) for line, value in zip(lines, values, strict=True)]
            assert same(cells, values), name
        assert {line[0] for line in lines} == {NATURAL}
        assert set(head) == {"model", "data", "threat", "evaluation", *columns(found)}


def test_parquet_reads_back_with_its_provenance(one: besiege.Evaluation, tmp_path: Path) -> None:
    path = one.export(str(tmp_path / "out.PARQUET"))
    with duckdb.connect() as duck:
        (tmp_path / "plain.parquet").write_bytes(path.read_bytes())
        source = str(tmp_path / "plain.parquet")
        read = duck.execute("SELECT * FROM read_parquet(?)", [source]).fetchnumpy()
        ((text,),) = duck.execute(
            "SELECT value FROM parquet_kv_metadata(?) WHERE key = 'besiege'", [source]
        ).fetchall()
    for name, values in columns(one).items():
        missing = math.nan if read[name].dtype.kind == "f" else None
        assert same(np.ma.filled(read[name], missing).tolist(), values), name
    about = json.loads(text)
    (mine,) = about["evaluations"]
    assert mine["model"]["digest"] == one.figures.model.digest
    assert mine["robust"]["hits"] == one.figures.robust.hits  # type: ignore[union-attr]  # judged
    assert mine["command"] == one.figures.command and "'fgsm, pgd" in mine["command"]
    assert about["versions"]["besiege"] == besiege.__version__


def test_json_reads_back_without_numbers_that_json_lacks(
    minimal: besiege.Evaluation, tmp_path: Path
) -> None:
    content = json.loads(minimal.export(tmp_path / "out.json").read_text("utf-8"))
    expected = columns(minimal)
    assert any(isinstance(v, float) and not math.isfinite(v) for c in expected.values() for v in c)
    for name, values in expected.items():
        finite = [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
        assert [row[name] for row in content] == finite, name


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_rows_of_several_evaluations_say_whose_they_are(
    several: besiege.Evaluations, suffix: str, tmp_path: Path
) -> None:
    path = several.export(tmp_path / f"out.{suffix}")
    with duckdb.connect() as duck:
        groups = duck.execute(
            "SELECT model, data, threat, count(*) FROM "
            f"read_{suffix}{'_auto' if suffix != 'parquet' else ''}('{path}') "
            "GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert groups == [(m, "digits", t, 90) for m in BOTH for t in ("l2:1", "linf:0.15")]


# Images.


def broken(found: besiege.Evaluation) -> set[int]:
    mine = found.by_sample
    return set(mine["sample"][mine["fate"] == "broken"].tolist())


def test_the_model_classifies_exported_images_as_stated(
    one: besiege.Evaluation, tmp_path: Path
) -> None:
    path = one.export(tmp_path / "out.npz")
    with np.load(path, allow_pickle=False) as file:
        held = {name: file[name] for name in file.files}
    victim = besiege.models.load(NATURAL)
    x, clean = torch.from_numpy(held["x"]), torch.from_numpy(held["clean"])
    assert x.dtype == clean.dtype == torch.float32 and len(x) == len(broken(one)) > 5
    with torch.no_grad():
        assert victim(x).argmax(1).tolist() == held["predictions"].tolist()
        assert victim(clean).argmax(1).tolist() == held["y"].tolist()
    assert (held["predictions"] != held["y"]).all()
    assert set(held["ids"].tolist()) == broken(one)
    data = besiege.data.load("digits")
    rows = [data.ids.tolist().index(number) for number in held["ids"].tolist()]
    assert torch.equal(clean, data.images[rows])
    assert held["y"].tolist() == data.labels[rows].tolist()
    moved = (x - clean).abs().flatten(1).amax(1)
    assert torch.allclose(moved.double(), torch.from_numpy(held["distances"]), atol=1e-7)
    assert moved.max() <= 0.15 * (1 + 1e-6)
    assert held["box"].tolist() == [0.0, 1.0] and held["class_names"].tolist() == list("0123456789")
    about = json.loads(str(held["provenance"]))
    assert about["evaluations"][0]["model"]["name"] == NATURAL


def test_each_image_is_that_of_the_first_attack_that_broke_its_sample(
    one: besiege.Evaluation, tmp_path: Path
) -> None:
    with np.load(one.export(tmp_path / "out.npz")) as file:
        attacks = dict(zip(file["ids"].tolist(), file["attacks"].tolist(), strict=True))
    mine = one.by_sample
    first = dict(zip(mine["sample"].tolist(), mine["attack"].tolist(), strict=True))
    assert attacks == {number: first[number] for number in attacks}
    assert len(set(attacks.values())) > 1
    ordered = [number for number in mine["sample"].tolist() if number in attacks]
    assert list(attacks) == ordered, "in the order of the samples"


def test_images_of_one_attack(one: besiege.Evaluation, tmp_path: Path) -> None:
    with np.load(one.export(tmp_path / "out.npz", attack="pgd(steps=3)")) as file:
        ids, attacks = file["ids"].tolist(), set(file["attacks"].tolist())
    rows = one.rows
    won = rows.where(rows["success"] & (rows["attack"] == "pgd(steps=3)"))
    right = set(one.by_sample["sample"][one.by_sample["fate"] != "wrong"].tolist())
    assert attacks == {"pgd(steps=3)"} and set(ids) == set(won["sample"].tolist()) & right
    with pytest.raises(UnknownNameError, match=r"no attack .*'pgd\(steps=4\)'.*did you mean"):
        one.export(tmp_path / "more.npz", attack="pgd(steps=4)")
    assert not (tmp_path / "more.npz").exists()


def test_without_a_budget_the_smallest_perturbations_are_taken(
    minimal: besiege.Evaluation, tmp_path: Path
) -> None:
    with np.load(minimal.export(tmp_path / "out.npz")) as file:
        found = dict(zip(file["ids"].tolist(), file["distances"].tolist(), strict=True))
        x, clean = file["x"], file["clean"]
    mine = minimal.smallest
    size = dict(zip(mine["sample"].tolist(), mine["distance"].tolist(), strict=True))
    assert found == {n: d for n, d in size.items() if 0 < d < math.inf}
    moved = np.sqrt(((x - clean).astype(np.float64) ** 2).reshape(len(x), -1).sum(1))
    assert np.allclose(moved, list(found.values()), rtol=1e-6)


def test_besiege_reads_the_images_as_data(one: besiege.Evaluation, tmp_path: Path) -> None:
    path = one.export(tmp_path / "out.npz")
    data = besiege.data.load(str(path))
    with np.load(path) as file:
        assert torch.equal(data.images, torch.from_numpy(file["x"][np.argsort(file["ids"])]))
        assert sorted(data.ids.tolist()) == sorted(file["ids"].tolist())
    again = besiege.evaluate(NATURAL, str(path), threat="linf:0.01", attacks="fgsm", curve=False)
    assert again.clean.value == 0.0


def test_images_of_a_file_have_its_name(tmp_path: Path) -> None:
    from PIL import Image

    data = besiege.data.load("digits", count=80)
    for image, label, number in zip(data.images, data.labels, data.ids, strict=True):
        place = tmp_path / "pictures" / str(int(label))
        place.mkdir(parents=True, exist_ok=True)
        pixels = (255 * image[0]).round().byte().numpy()
        Image.fromarray(pixels).save(place / f"{int(number)}.png")
    found = besiege.evaluate(
        NATURAL, tmp_path / "pictures", threat="linf:0.15", attacks="fgsm", curve=False
    )
    with np.load(found.export(tmp_path / "out.npz")) as file:
        for name, clean in zip(file["files"].tolist(), file["clean"], strict=True):
            seen = np.asarray(Image.open(tmp_path / "pictures" / name), np.float32) / 255
            assert np.array_equal(seen, clean[0])
    csv_text = found.export(tmp_path / "out.csv").read_text("utf-8")
    assert csv_text.splitlines()[0].split(",")[4:7] == ["file", "attack", "sample"]


class Wide(nn.Module):
    """The digits model for pixels from -1 to 3."""

    def __init__(self) -> None:
        super().__init__()
        self.net = besiege.models.load(NATURAL).module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net((x + 1) / 4)  # type: ignore[no-any-return]


def test_images_in_another_box_are_as_stored(tmp_path: Path) -> None:
    model = besiege.Classifier(Wide(), box=(-1.0, 3.0), name="wide")
    found = besiege.evaluate(
        model, "digits", threat="linf:0.6", attacks="fgsm", curve=False, count=20
    )
    with np.load(found.export(tmp_path / "out.npz")) as file:
        x, clean = torch.from_numpy(file["x"]), torch.from_numpy(file["clean"])
        assert file["box"].tolist() == [-1.0, 3.0] and float(clean.max()) > 1.5
        with torch.no_grad():
            assert model(x).argmax(1).tolist() == file["predictions"].tolist()
            assert model(clean).argmax(1).tolist() == file["y"].tolist()


def test_no_broken_sample_is_an_empty_array(tmp_path: Path) -> None:
    found = besiege.evaluate(
        BOTH[1], "digits", threat="linf:0.001", attacks="fgsm", curve=False, count=10
    )
    with np.load(found.export(tmp_path / "out.npz")) as file:
        assert file["x"].shape == file["clean"].shape == (0, 1, 8, 8) and len(file["ids"]) == 0


def test_a_damaged_image_is_not_exported(one: besiege.Evaluation, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one.folder, tmp_path / "run"))
    found = besiege.open(folder)
    assert isinstance(found, besiege.Evaluation)
    rows = broken_images(gather(Store(folder), found._plan).evidence)
    path = folder / "records" / str(rows["record"][0]) / "images.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"images\.safetensors that was changed"):
        found.export(tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists() and not list(tmp_path.glob(".partial*"))


def test_images_of_several_evaluations_are_refused(
    several: besiege.Evaluations, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"of one evaluation, but there are 4 .*model='NAME'"):
        several.export(tmp_path / "out.npz")
    assert several.of(BOTH[0], "l2:1").export(tmp_path / "out.npz").exists()


# Tables for papers.


def test_the_table_for_a_paper(several: besiege.Evaluations, tmp_path: Path) -> None:
    text = several.export(tmp_path / "out.tex").read_text("utf-8")
    lines = [line.strip() for line in text.splitlines()]
    body = lines[lines.index("\\midrule") + 1 : lines.index("\\bottomrule")]
    (head,) = [line for line in lines if line.startswith("Model &")]
    assert head == ("Model & Threat & Clean & fgsm & pgd 1 & pgd 2 & Robust & 95 \\% interval \\\\")
    assert "\\begin{tabular}{llrrrrrr}" in lines and len(body) == 4
    for line, one in zip(body, several, strict=True):
        cells = [cell.strip() for cell in line.removesuffix("\\\\").split("&")]
        assert len(cells) == 8 and cells[0] == one.figures.model.name
        assert cells[1] in ("$\\ell_\\infty$ 0.15", "$\\ell_2$ 1")
        rates = [one.clean, *one.by_attack.values(), one.robust]
        assert cells[2:7] == [f"{100 * rate.value:.1f}" for rate in rates if rate is not None]
        assert one.robust is not None
        assert cells[7] == f"{{[}}{100 * one.robust.low:.1f}, {100 * one.robust.high:.1f}]"
    assert "pgd 1 is pgd(steps=3) and pgd 2 is pgd(steps=5)" in text
    assert "30 of the 397 images of digits" in text
    assert "Not to be quoted" not in text


def test_the_table_for_a_readme(several: besiege.Evaluations, tmp_path: Path) -> None:
    lines = several.export(tmp_path / "out.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:6]]
    assert cells[0][:3] == ["Model", "Threat", "Clean"] and len({len(row) for row in cells}) == 1
    assert [row[0] for row in cells[2:]] == [BOTH[0], BOTH[0], BOTH[1], BOTH[1]]
    assert cells[2][1] == "linf:0.15" and cells[2][-1].startswith("\\[")


def test_a_table_of_smallest_perturbations(
    minimal: besiege.Evaluation, one: besiege.Evaluation, tmp_path: Path
) -> None:
    text = minimal.export(tmp_path / "out.tex").read_text("utf-8")
    assert "Model & Clean & fmn & ddn & Median \\\\" in text and "; $\\ell_2$." in text
    sizes = minimal.figures.distances
    assert sizes is not None and sizes.all.median is not None
    assert f"& {sizes.all.median:.3g} \\\\" in text
    both = besiege.Evaluations([minimal, one]).export(tmp_path / "both.tex").read_text("utf-8")
    assert both.count("\\begin{table}") == 2


def test_signs_of_latex_and_markdown_are_escaped(tmp_path: Path) -> None:
    name = "50%_of #1 & {x}|\\a~^$ [b] <c>\n*d*"
    net = besiege.models.load(NATURAL).module
    found = besiege.evaluate(
        besiege.Classifier(net, name=name),
        "digits",
        threat="linf:0.1",
        attacks="fgsm",
        curve=False,
        count=10,
    )
    text = found.export(tmp_path / "out.tex").read_text("utf-8")
    (row,) = [line for line in text.splitlines() if "of \\#1" in line and "&" in line]
    assert row.strip().startswith(
        "50\\%\\_of \\#1 \\& \\{x\\}\\textbar{}\\textbackslash{}a\\textasciitilde{}"
        "\\textasciicircum{}\\$ {[}b] \\textless{}c\\textgreater{}"
    )
    row = found.export(tmp_path / "out.md").read_text("utf-8").splitlines()[2]
    assert row.count("|") - row.count("\\|") == 6 and "\\_of" in row and "&lt;c>" in row


def test_figures_not_to_be_quoted_say_so(one: besiege.Evaluation, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one.folder, tmp_path / "run"))
    store = Store(folder)
    lost = one._plan.stages()[1].parts[0][-1].key
    shutil.rmtree(store.records / lost)
    found = besiege.open(folder)
    assert not found.complete
    assert (
        "% Not to be quoted. zoo:digits-natural" in found.export(tmp_path / "out.tex").read_text()
    )
    assert found.export(tmp_path / "out.md").read_text().startswith("**Not to be quoted.** zoo:")


def test_heads_of_columns_are_short_and_different() -> None:
    texts = ["fgsm", "pgd@madry", "path/to/file.py:Mine", "apgd(loss=ce)", "apgd(loss=dlr)"]
    assert list(short_names(texts).values()) == ["fgsm", "pgd@madry", "Mine", "apgd 1", "apgd 2"]


# Bad input.


def test_an_existing_file_stays_unless_forced(one: besiege.Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    path.write_text("mine")
    with pytest.raises(StoreError, match=r"exists: choose another name, or .*force=True"):
        one.export(path)
    assert path.read_text() == "mine"
    assert one.export(path, force=True) == path and "Model" in path.read_text()
    link = tmp_path / "nowhere.csv"
    link.symlink_to(tmp_path / "absent")
    with pytest.raises(StoreError, match="exists"):
        one.export(link)


def test_files_of_a_run_are_never_replaced(one: besiege.Evaluation, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one.folder, tmp_path / "run"))
    (rows, *_) = sorted((folder / "records").glob("*/rows.parquet"))
    for path in (folder / "run.json", folder / "figures.json", rows, rows.with_name("new.csv")):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(StoreError, match="is a file of the run in"):
            one.export(path, force=True)
        assert (path.read_bytes() if path.exists() else None) == before
    assert one.export(folder / "results.csv").exists(), "another file in the folder is fine"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("out.xlsx", UnknownNameError, r"ends in '\.xlsx'.*\.csv, \.json, \.md"),
        ("out.parket", UnknownNameError, r"did you mean '\.parquet'"),
        ("out", UnknownNameError, "has no suffix"),
        ("out.csv.gz", UnknownNameError, r"ends in '\.gz'"),
        ("absent/out.csv", StoreError, "absent does not exist: create this folder first"),
        ("folder.csv", StoreError, r"is a folder: name a file, such as .*results\.csv"),
    ],
)
def test_files_that_cannot_be_written(
    one: besiege.Evaluation, name: str, kind: type[BesiegeError], said: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(kind, match=said):
        one.export(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_only_images_have_an_attack(one: besiege.Evaluation, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"chooses images, and out\.csv holds none"):
        one.export(tmp_path / "out.csv", attack="fgsm")


def test_a_read_only_folder_is_said(one: besiege.Evaluation, tmp_path: Path) -> None:
    probe = Path("/proc/self/out.csv")
    if not probe.parent.is_dir():
        pytest.skip("there is no /proc, whose folders nobody may write to")
    with pytest.raises(StoreError, match=r"out\.csv (cannot be written|is not a folder)"):
        one.export(probe)


def test_a_suffix_from_outside_is_one_function(one: besiege.Evaluation, tmp_path: Path) -> None:
    code = (
        "import sys, besiege\n"
        "from besiege.bench.exports import EXPORTS\n"
        "@EXPORTS.register('txt')\n"
        "def to_text(wanted, file):\n"
        "    for one in wanted.evaluations:\n"
        "        file.write(f'{one.figures.model.name} {one.robust}'.encode())\n"
        "print(besiege.open(sys.argv[1]).export(sys.argv[2]))\n"
    )
    path = tmp_path / "out.txt"
    subprocess.run([sys.executable, "-c", code, str(one.folder), str(path)], check=True)
    assert path.read_text() == f"{NATURAL} {one.robust}"


def test_csv_is_utf8_with_quotes_where_needed(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    name = 'größer, "besser"\nund mehr'
    found = besiege.evaluate(
        besiege.Classifier(net, name=name), "digits", threat="linf:0.1", attacks="fgsm",
        curve=False, count=5,
    )  # fmt: skip
    text = found.export(tmp_path / "out.csv").read_bytes().decode("utf-8")
    lines = list(csv.reader(io.StringIO(text, newline="")))
    assert len(lines) == 6 and {line[0] for line in lines[1:]} == {name}


# The board of a run.


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_the_board_has_a_row_for_each_cell_model_and_attack(
    several: besiege.Evaluations, tmp_path: Path, suffix: str
) -> None:
    path = several.export(tmp_path / f"board.{suffix}", board=True)
    if suffix == "json":
        rows = json.loads(path.read_text())
    else:
        duck = duckdb.sql(f"SELECT * FROM '{path}'")
        assert duck is not None
        names = [column[0] for column in duck.description]
        rows = [dict(zip(names, row, strict=True)) for row in duck.fetchall()]
    assert len(rows) == 2 * 2 * (3 + 1)
    for found in several:
        mine = [
            row
            for row in rows
            if (row["model"], row["threat"])
            == (found.figures.model.name, found.figures.threat.text)
        ]
        accuracies = {row["attack"] or "": row["accuracy"] for row in mine}
        assert accuracies.pop("") == pytest.approx(found.robust.value if found.robust else None)
        assert accuracies == pytest.approx({n: r.value for n, r in found.by_attack.items()})
        right = int((found.by_sample["fate"] != "wrong").sum())
        for row in mine:
            assert (row["images"], row["correct"]) == (30, right)
            if row["attack"]:
                broken = found.rows["success"] & (found.rows["attack"] == row["attack"])
                wrong = found.by_sample["sample"][found.by_sample["fate"] == "wrong"]
                broken &= ~np.isin(found.rows["sample"], wrong)
                assert row["success_rate"] == pytest.approx(broken.sum() / right)


def test_the_board_has_median_and_area_of_searches(tmp_path: Path) -> None:
    models = ["zoo:digits-natural", "zoo:digits-pgd-at"]
    found = besiege.evaluate(models, "digits", threat="l2", attacks="deepfool", count=20)
    rows = json.loads(found.export(tmp_path / "board.json", board=True).read_text())
    assert len(rows) == 4 and len({row["area_to"] for row in rows}) == 1
    for row in rows:
        (mine,) = [one for one in found if one.figures.model.name == row["model"]]
        sizes = np.sort(mine.smallest["distance"])
        assert row["median"] == sizes[9] and row["median_per_value"] == pytest.approx(sizes[9] / 8)
        assert row["area"] == pytest.approx(np.minimum(sizes, row["area_to"]).mean())


def test_the_board_for_a_paper_ranks_the_models_under_each_threat(
    several: besiege.Evaluations, tmp_path: Path
) -> None:
    text = several.export(tmp_path / "board.md", board=True).read_text()
    assert text.count("| Model | Rank | Clean | fgsm | pgd 1 | pgd 2 | Worst |") == 2
    assert "Ranks are 95 % ranges" in text and "linf:0.15" in text and "l2:1" in text
    tex = several.export(tmp_path / "board.tex", board=True).read_text()
    assert tex.count("\\begin{tabular}{llrrrrrr}") == 2 and "\\ell_\\infty" in tex


def test_a_board_is_of_the_whole_run(several: besiege.Evaluations, tmp_path: Path) -> None:
    from besiege.cli import main

    with pytest.raises(InputError, match="cannot hold the board"):
        several.export(tmp_path / "board.npz", board=True)
    run, out = str(several.folder), str(tmp_path / "b.csv")
    assert main(["export", run, out, "--board"]) == 0
    assert main(["export", run, out, "--board", "--force", "--threat", "l2:1"]) == 2
