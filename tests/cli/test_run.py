"""`besiege run` and `besiege spec`: a benchmark from its file to its table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.bench.small import SMALL
from tests.cli.conftest import Besiege

from besiege.bench.overview import open_run, status
from besiege.bench.store import Store
from besiege.cli.status import _side_by_side

ROOT = Path(__file__).parents[2]
SPEC = f"""{SMALL}[[cells]]
name = "curve"
threat = "linf:0.15"
attacks = ["bim(steps=3)"]
budget = "search"
[[cells]]
name = "free"
threat = "l2"
attacks = ["ddn(steps=5)"]
budget = "search"
models = ["natural"]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


def test_a_benchmark_runs_resumes_and_ends_in_a_table(besiege: Besiege, spec: Path) -> None:
    said = besiege("run", "small.toml")
    assert said.code == 0, said.err
    lines = [line.split() for line in said.out.splitlines()]
    (heading,) = [line for line in said.out.splitlines() if "clean" in line and "white" in line]
    assert "white, at 0.15" in heading and "of 12" in said.out
    assert any(line[:1] == ["pgd-at"] and line.count("%") >= 2 for line in lines)
    assert "median" in said.out  # a search without a budget has no accuracy
    folder = Path("besiege-runs/small")
    assert f"besiege report {folder}" in said.out and all(one.complete for one in status(folder))
    told = besiege("status", str(folder))
    assert told.code == 0 and ["pgd-at", "complete", "complete", "-"] in [
        line.split() for line in told.out.splitlines()
    ]
    shown = besiege("report", str(folder))
    assert "white, at 0.15" in shown.out and "strongest" not in shown.out
    assert f"site  {folder / 'site' / 'index.html'}" in shown.out
    _, run = open_run(folder)
    assert {plan.request.command for plan in run.current} == {"besiege run small.toml"}
    before = {path: path.stat().st_mtime_ns for path in (folder / "records").iterdir()}
    again = besiege("run", "small.toml")
    assert again.code == 0 and f"nothing is left to do: all records are in {folder}" in again.err
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "records").iterdir()}
    spec.write_text(SPEC.replace("steps=3", "steps=4", 1))
    changed = besiege("run", "small.toml")
    assert changed.code == 2 and 'a change of cells "white"' in changed.flat


def test_a_search_has_the_accuracy_of_its_budget(besiege: Besiege, spec: Path) -> None:
    said = besiege("run", "small.toml", "--count", "6", "--json", "--out", "run")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert len(found["entries"]) == 5 == len(found["evaluations"])
    curve = next(one for one in found["evaluations"] if one["threat"]["text"] == "linf")
    ends = [x for x in curve["eps_curve"]["x"] if x <= 0.15]
    from besiege.bench.results import summarise
    from besiege.report.cells import robust_at

    figures = next(one for one in summarise("run").evaluations if one.name == curve["name"])
    rate = robust_at(figures, "linf:0.15")
    assert rate is not None and rate.count == 6
    assert rate.value == curve["eps_curve"]["value"][len(ends) - 1]
    assert rate.hits == sum(x > 0.15 for x in _ends(Path("run"), figures.name))


def _ends(folder: Path, name: str) -> list[float]:
    """The smallest perturbation of every image, from the verdicts."""
    store, run = open_run(folder)
    plan = run.plan(name)
    assert plan is not None
    ends = []
    for task in plan.tasks():
        if task.kind == "judge":
            for row in store.rows([task.key]).records():
                ends.append(0.0 if not row["correct"] else row["linf"] if row["success"] else 9.0)
    return ends


def test_dry_run_and_show_tell_the_cost_and_write_nothing(besiege: Besiege, spec: Path) -> None:
    show, dry = besiege("spec", "show", "small.toml"), besiege("run", "small.toml", "--dry-run")
    assert show.code == dry.code == 0, show.err + dry.err
    assert "in all" in show.out and "MB" in show.out and "white" in dry.out
    told = json.loads(besiege("spec", "show", "small.toml", "--json").out)
    assert [cell["cell"] for cell in told["cells"]] == ["white", "curve", "free"]
    assert sum(cell["tasks"] for cell in told["cells"]) == told["tasks"], "shared ones once"
    assert told["seconds"] > 0 and told["paces"].keys() == {"natural", "pgd-at"}
    assert not Path("besiege-runs").exists()
    assert besiege("run", "small.toml").code == 0
    # Examinations of the model are left out of fast tests, and records are those foretold.
    _, run = open_run("besiege-runs/small")
    assert told["tasks"] == len({task.key for plan in run.current for task in plan.tasks()})
    assert len(Store("besiege-runs/small").present()) == told["tasks"]
    images = (Path("besiege-runs/small") / "records").glob("*/images.safetensors")
    assert sum(path.stat().st_size for path in images) <= told["image_bytes"] + 200 * told["tasks"]


def test_check_tells_all_problems(besiege: Besiege, spec: Path) -> None:
    assert besiege("spec", "check", "small.toml").out.strip() == (
        "small.toml is a benchmark: 5 evaluations of 2 models."
    )
    spec.write_text(SPEC.replace("fgsm", "fgms").replace("ddn(", "ddm("))
    said = besiege("spec", "check", "small.toml")
    assert said.code == 2 and "2 problems" in said.err
    assert "'fgms'" in said.flat and "'ddm(steps=5)'" in said.flat


def test_check_tells_problems_of_models_with_those_of_the_file(
    besiege: Besiege, spec: Path
) -> None:
    wrong = SPEC.replace("zoo:digits-natural", "zoo:digits-natrual").replace("fgsm", "fgms")
    spec.write_text(wrong.replace('threat = "l2"', 'threat = "l7"'))
    said = besiege("spec", "check", "small.toml")
    assert said.code == 2 and "3 problems" in said.err
    assert "models.natural: the zoo has no model 'digits-natrual'" in said.flat
    assert "'fgms'" in said.flat and 'cells[3] "free".threat: ' in said.flat
    spec.write_text(wrong.replace("count = 12", "count = -1").replace("pgd-at =", "pgd-at = 3 #"))
    said = besiege("spec", "check", "small.toml")
    assert said.code == 2 and "4 problems" in said.err, said.err
    assert "count: " in said.flat and "models.pgd-at: " in said.flat


def test_a_run_that_writes_nothing_names_no_folder(besiege: Besiege, spec: Path) -> None:
    spec.write_text(SPEC.replace("zoo:digits-natural", "zoo:digits-natrual"))
    said = besiege("run", "small.toml", "--out", "run")
    assert said.code == 2 and not Path("run").exists()
    assert "records are kept" not in said.err


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["other.toml"], "there is no file other.toml"),
        (["small.toml", "--part", "5/4"], "--part is '5/4': write I/N"),
        (["small.toml", "--part", "x"], "--part is 'x'"),
        (["small.toml", "--count", "0"], "--count"),
        (["small.toml", "--devices", "some"], "--devices"),
    ],
)
def test_wrong_input_is_refused(
    besiege: Besiege, spec: Path, tokens: list[str], words: str
) -> None:
    said = besiege("run", *tokens)
    assert said.code == 2 and words in said.flat and not Path("besiege-runs").exists()


def test_the_example_is_a_benchmark_of_many_tasks(besiege: Besiege) -> None:
    path = ROOT / "examples" / "digits.toml"
    told = json.loads(besiege("spec", "show", str(path), "--json").out)
    assert told["tasks"] >= 250 and len(told["paces"]) == 3


def test_the_example_with_trainings_counts_them(besiege: Besiege) -> None:
    path = ROOT / "examples" / "trained.toml"
    told = json.loads(besiege("spec", "show", str(path), "--json").out)
    assert [one["model"] for one in told["trainings"]] == ["natural", "pgd-at", "trades", "fast-at"]
    assert all(one["epochs"] == 20 and one["seconds"] > 0 for one in told["trainings"])
    shown = besiege("spec", "show", str(path)).out
    assert "digits_cnn trained by trades(epochs=20)" in shown and "trained first" in shown


@pytest.mark.slow
def test_a_shortened_example_runs(besiege: Besiege) -> None:
    path = ROOT / "examples" / "digits.toml"
    said = besiege("run", str(path), "--count", "4", "--out", "run")
    assert said.code == 0, said.err
    assert "coarse" in said.out and all(one.complete for one in status("run"))


def test_a_resumed_run_has_one_line_about_what_was_done(besiege: Besiege, spec: Path) -> None:
    assert besiege("run", "small.toml", "--out", "run").code == 0
    store, run = open_run("run")
    for plan in run.plans:
        if plan.request.attacks == ("fgsm", "bim(steps=3)"):
            for task in plan.stages()[-1].parts[-1]:
                shutil.rmtree(store.records / task.key)
    shown = besiege("report", "run")
    lines = [line for line in shown.err.splitlines() if line.startswith("incomplete: ")]
    assert len(lines) == 1 and "2 of 5 evaluations, the first of them natural" in lines[0]
    said = besiege("run", "small.toml", "--out", "run")
    assert said.code == 0 and "resuming in run" in said.err
    assert "an attack of an evaluation was done before" in said.err
    assert "(done before)" not in said.err and "bim(steps=3) broke" in said.err


def test_status_of_many_cells_is_several_tables_that_fit() -> None:
    cells = ["linf", "linf, least likely", "l2 random, slow", "a cell with a name " * 6]
    shares = {"interclass-3": ["complete"] * 4, "pat": ["-", "66 %", "complete", "-"]}
    assert _side_by_side(cells, shares, 400) == [[0, 1, 2, 3]]
    for width in (40, 60, 80):
        places = _side_by_side(cells, shares, width)
        assert [place for some in places for place in some] == [0, 1, 2, 3]
        assert places[-1] == [3]  # a cell that never fits has a table of its own
        for some in places[:-1]:
            wide = [max(len(cells[place]), len("complete")) + 2 for place in some]
            assert len("interclass-3") + 2 + sum(wide) <= width
    assert _side_by_side(cells, shares, 60)[0] == [0, 1]


def test_status_shows_models_by_cells_of_an_incomplete_run(besiege: Besiege, spec: Path) -> None:
    assert besiege("run", "small.toml", "--out", "run").code == 0
    _, run = open_run("run")
    first = next(entry for entry in run.entries if entry.cell == "white")
    plan = run.plan(first.plan)
    assert plan is not None
    lost = [task.key for task in plan.tasks() if task.kind == "judge"]
    for key in lost[:2]:
        shutil.rmtree(Path("run/records") / key)
    told = besiege("status", "run")
    assert told.code == 3 and "besiege run small.toml --out run" in told.out
    (row,) = [line.split() for line in told.out.splitlines() if line.startswith("natural")]
    assert row == ["natural", "66", "%", "complete", "complete"]
    assert len(json.loads(besiege("status", "run", "--json").out)["entries"]) == 5
