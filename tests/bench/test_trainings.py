"""Models of a benchmark that are trained first: each once, killed and resumed like any task."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.bench.records import content, finished
from tests.bench.test_workers import claimed
from tests.children import forked

import besiege
from besiege.bench.benchmark import Benchmark
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.engines.ray_cluster import needed
from besiege.bench.expanding import declared
from besiege.bench.forecast import forecast
from besiege.bench.importing import import_images
from besiege.bench.merging import merge
from besiege.bench.overview import open_run, status, trained
from besiege.bench.preparing import prepare_benchmark
from besiege.bench.single import measure
from besiege.bench.spec import Machine
from besiege.bench.store import Store
from besiege.bench.work_estimate import Event
from besiege.cli import main
from besiege.core.errors import InputError, StoreError, VictimError
from besiege.training import epochs, fit
from besiege.training.checkpoints import Checkpoint
from besiege.training.epochs import Training

SPEC = """
name = "trained"
data = "digits"
count = 8
shard = 4
[models]
plain = "zoo:digits-natural"
natural = {train = "natural(epochs=2)", arch = "digits_mlp"}
trades = {train = "trades(epochs=2, held_out=100)", arch = "digits_mlp", data = "digits", seed = 1}
[[cells]]
name = "white"
threat = "linf:0.15"
attacks = ["fgsm", "bim(steps=3)"]
examine = "none"
[[cells]]
name = "transfer"
threat = "linf:0.15"
attacks = ["bim(steps=3)"]
substitute = {default = "trades", trades = "natural"}
examine = "none"
"""
HAND = {"natural": ("natural(epochs=2)", 0), "trades": ("trades(epochs=2, held_out=100)", 1)}


def spec(**changes: Any) -> Benchmark:
    """The benchmark, with some values of its file changed."""
    return benchmark_of({**tomllib.loads(SPEC), **changes})


def run(folder: Path, benchmark: Benchmark | None = None, **how: Any) -> besiege.Evaluations:
    torch.set_num_threads(1)
    return measure(declared(benchmark or spec(), Path()), out=folder, **how)


def keys(folder: Path) -> dict[str, str]:
    """The key of every training, by the name of its model."""
    return {plan.model.name: plan.name for plan in open_run(folder)[1].trainings}


def weights(folder: Path) -> dict[str, bytes]:
    records = folder / "records"
    return {n: (records / k / "weights.safetensors").read_bytes() for n, k in keys(folder).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert all(one.complete for one in run(folder))
    return folder


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """The folder of the same evaluations by `fit` and `evaluate`, and the files of the weights."""
    torch.set_num_threads(1)
    base = tmp_path_factory.mktemp("hand")
    made = {
        name: fit(how, "digits", "digits_mlp", base / f"{name}.safetensors", seed=seed)
        for name, (how, seed) in HAND.items()
    }
    texts = {name: f"digits_mlp:{path}" for name, path in made.items()}
    texts["plain"] = "zoo:digits-natural"
    ask: dict[str, Any] = {"threat": "linf:0.15", "count": 8, "shard": 4, "curve": "none"}
    ask |= {"examine": "none", "out": base / "run"}
    for name, text in texts.items():
        besiege.evaluate(text, "digits", attacks=["fgsm", "bim(steps=3)"], **ask)
        source = texts["natural" if name == "trades" else "trades"]
        besiege.evaluate(text, "digits", attacks="bim(steps=3)", substitute=source, **ask)
    return base / "run", made


def test_the_records_are_those_of_fit_and_evaluate(
    whole: Path, by_hand: tuple[Path, dict[str, Path]]
) -> None:
    folder, made = by_hand
    assert weights(whole) == {name: path.read_bytes() for name, path in made.items()}
    trainings = set(keys(whole).values())
    mine = {key: about for key, about in content(whole).items() if key not in trainings}
    assert mine == content(folder)
    assert not (whole / "trainings").exists(), "checkpoints are gone once the weights are there"


def test_the_card_and_the_epoch_are_kept_with_the_weights(whole: Path) -> None:
    store, key = Store(whole), keys(whole)["trades"]
    card = json.loads((store.records / key / "weights.json").read_text())
    assert card["name"] == "trades" and card["source"] == "digits_mlp:weights.safetensors"
    assert card["recipe"].startswith("trades@digits(epochs=2")
    record = store.read(key)
    assert record is not None and record.identity["arch"] == "digits_mlp"
    assert record.identity["seed"] == "1" and "digits train" in record.identity["data"]
    assert store.rows([key])["number"].tolist() == [card["epoch"]["number"]]


def test_a_model_is_called_by_its_name_everywhere(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    plans = open_run(whole)[1].plans
    assert {plan.model.name for plan in plans} == {"zoo:digits-natural", "natural", "trades"}
    assert {text for plan in plans for text in plan.request.substitute} == {"natural", "trades"}
    assert main(["report", str(tmp_path / "run")]) in (0, 4)
    for page in (tmp_path / "run").rglob("*.html"):
        assert "weights.safetensors" not in page.read_text(), page.name
    about = (tmp_path / "run" / "site" / "models" / "trades.html").read_text()
    assert "digits_mlp trained by trades(epochs=2, held_out=100) on digits, seed 1" in about


def test_a_run_that_was_moved_is_read_and_resumed(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "a+b, (c)"
    shutil.copytree(whole, moved)
    assert main(["status", str(moved)]) == 0
    assert f"records/{keys(whole)['trades']}" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("records/*/*")}
    run(moved)
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("records/*/*")} == before
    names = [entry.plan for entry in open_run(moved)[1].entries]
    assert names == [entry.plan for entry in open_run(whole)[1].entries]


def _at_a_step(number: int) -> None:
    """Kill this process at a step of a training."""
    batch, seen = Training._step, list[int]()

    def killing(self: Training, *given: Any) -> Any:
        seen.append(1)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch(self, *given)

    Training._step = killing  # type: ignore[assignment,method-assign]  # in a child


def _at_a_checkpoint(number: int, written: bool) -> None:
    """Kill this process before or after it writes a checkpoint."""
    write, seen = Checkpoint.write, list[int]()

    def killing(self: Checkpoint, path: Path) -> None:
        seen.append(1)
        if len(seen) == number and not written:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, path)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.write = killing  # type: ignore[method-assign]  # in a child


def _at_the_record() -> None:
    """Kill this process when weights are written, and their record is not."""

    def killing(self: Store, *given: Any) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    Store.commit = killing  # type: ignore[assignment,method-assign]  # in a child


# How a child is killed, and the epochs that are left then of the two trainings.
MOMENTS: list[tuple[str, Callable[[], None], list[int]]] = [
    ("in the first epoch", lambda: _at_a_step(5), [1, 2, 1, 2]),
    ("before the first checkpoint", lambda: _at_a_checkpoint(1, written=False), [1, 2, 1, 2]),
    ("after the first checkpoint", lambda: _at_a_checkpoint(1, written=True), [2, 1, 2]),
    ("in the last epoch", lambda: _at_a_step(30), [2, 1, 2]),
    ("before the weights are written", lambda: _at_a_checkpoint(2, written=True), [1, 2]),
    ("before the record is written", _at_the_record, [1, 2]),
    ("in the second model", lambda: _at_a_checkpoint(3, written=True), [2]),
]


# After these as much is left as after another one.
LATER = (
    *("before the first checkpoint", "in the last epoch"),
    "before the weights are written",
)


@pytest.mark.parametrize(
    ("kill", "left"),
    [
        pytest.param(*how, id=name, marks=pytest.mark.slow if name in LATER else [])
        for name, *how in MOMENTS
    ],
)
def test_a_killed_training_resumes_exactly(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kill: Callable[[], None],
    left: list[int],
) -> None:
    folder, epochs = tmp_path / "run", list[int]()

    killed(folder, kill)
    assert not all(one.complete for one in status(folder)) or not status(folder)
    epoch = Training.epoch

    def counted(self: Training, *given: Any) -> None:
        epochs.append(len(self.history) + 1)
        epoch(self, *given)

    monkeypatch.setattr(Training, "epoch", counted)
    assert all(one.complete for one in run(folder))
    assert epochs == left
    assert weights(folder) == weights(whole) and content(folder) == content(whole)
    assert not (folder / "trainings").exists() and not list((folder / "claims").iterdir())


def killed(folder: Path, kill: Callable[[], None], benchmark: Benchmark | None = None) -> None:
    """A run in a child that is killed."""

    def child() -> None:
        kill()
        run(folder, benchmark)

    assert os.WIFSIGNALED(os.waitpid(forked(child), 0)[1])


def test_a_damaged_checkpoint_is_not_used(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed(folder, lambda: _at_a_checkpoint(1, written=True))
    (checkpoint,) = folder.glob("trainings/*/weights.checkpoint")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-4] + b"\0\0\0\0")
    run(folder)
    assert weights(folder) == weights(whole)


def test_a_distillation_resumes_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    taught = {"taught": {"train": "distilled(epochs=2)", "arch": "digits_mlp"}}
    benchmark = spec(models=taught, cells=[_cell()])
    run(tmp_path / "whole", benchmark)
    killed(tmp_path / "run", lambda: _at_a_checkpoint(3, written=True), benchmark)
    (tmp_path / "run").rename(tmp_path / "moved")
    run(tmp_path / "moved", benchmark)
    assert weights(tmp_path / "moved") == weights(tmp_path / "whole")


@pytest.mark.slow
def test_workers_train_every_model_once_though_one_is_killed(whole: Path, tmp_path: Path) -> None:
    folder, events, dead = tmp_path / "run", list[Event](), list[int]()

    def watch(event: Event) -> None:
        events.append(event)
        if event.text == "training" and not dead and (busy := claimed(folder)):
            os.kill(busy[0].pid, signal.SIGKILL)
            dead.append(busy[0].pid)

    run(folder, workers=2, watch=watch)
    assert dead and weights(folder) == weights(whole) and content(folder) == content(whole)
    done = Counter(key for some in finished(folder).values() for key in some)
    assert set(done.values()) == {1}
    during = [event for event in events if event.text == "training"]
    assert {event.title for event in during} == {
        "1 of 8: training of natural",
        "2 of 8: training of trades",
    }


def test_processes_on_one_folder_train_every_model_once(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    children = [
        forked(lambda part=part: run(folder, part=(part, 2)))  # type: ignore[misc]
        for part in (1, 2)
    ]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    done = Counter(key for some in finished(folder).values() for key in some)
    assert {done[key] for key in keys(folder).values()} == {1}
    assert weights(folder) == weights(whole) and content(folder) == content(whole)


def test_progress_inside_a_training_is_reported(tmp_path: Path) -> None:
    events = list[Event]()
    slow = {"slow": {"train": "pgd-at(epochs=3)", "arch": "digits_cnn"}}
    run(tmp_path / "run", spec(models=slow, cells=[_cell()]), watch=events.append)
    during = [event.done / event.total for event in events if event.text == "training"]
    assert len(during) > 3 and during == sorted(during) and 0 < during[1] < during[-1] < 1
    assert events[-1].done == events[-1].total


def _cell(**values: Any) -> dict[str, Any]:
    return {"name": "one", "threat": "linf:0.15", "attacks": ["fgsm"], "examine": "none", **values}


@pytest.mark.parametrize("then", [{}, pytest.param({"workers": 2}, marks=pytest.mark.slow)])
def test_a_training_that_diverges_is_a_failed_task_and_the_others_go_on(
    then: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = {"train": "natural(epochs=2, rate=1e30, optimiser='sgd')", "arch": "digits_mlp"}
    tame = {"train": "natural(epochs=1)", "arch": "digits_mlp"}
    models = {"plain": "zoo:digits-natural", "wild": wild, "tame": tame}
    cells = [_cell(), _cell(name="from wild", models=["plain"], substitute="wild")]
    benchmark, folder = spec(models=models, cells=cells), tmp_path / "run"
    for how in ({}, then):
        with pytest.raises(VictimError, match=r"training of the model 'wild' failed.*diverged"):
            run(folder, benchmark, **how)
        found = {one.plan.model.name: one.complete for one in status(folder)}
        assert found == {"zoo:digits-natural": True, "tame": True}
        _, written = open_run(folder)
        assert {(one.cell, one.model) for one in written.unfit} == {
            ("one", "wild"),
            ("from wild", "plain"),
        }
    states = {one.model: (one.done, one.failure or "") for one in trained(folder)}
    assert states["tame"] == (True, "") and states["wild"][1].startswith("TrainingError: ")
    done = Counter(key for some in finished(folder).values() for key in some)
    assert done[keys(folder)["tame"]] == 1 and done[keys(folder)["wild"]] == 2, "it is tried again"
    assert main(["status", str(folder)]) == 3
    assert "wild: its training failed: TrainingError" in capsys.readouterr().out


def test_a_run_none_of_whose_models_could_be_trained_says_so(tmp_path: Path) -> None:
    wild = {"train": "natural(epochs=2, rate=1e30, optimiser='sgd')", "arch": "digits_mlp"}
    with pytest.raises(VictimError, match="training of the model 'wild' failed"):
        run(tmp_path / "run", spec(models={"wild": wild}, cells=[_cell()]))


def test_weights_that_changed_are_trained_again(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    path = folder / "records" / keys(folder)["natural"] / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    run(folder)
    assert weights(folder) == weights(whole) and len(list((folder / "damaged").iterdir())) == 1


def test_layers_of_a_recipe_stand_before_the_model(tmp_path: Path) -> None:
    coded = {"coded": {"train": "thermometer(epochs=1)", "arch": "digits_cnn"}}
    run(tmp_path / "run", spec(models=coded, cells=[_cell()]))
    (plan,) = open_run(tmp_path / "run")[1].plans
    made = fit("thermometer(epochs=1)", "digits", "digits_cnn", tmp_path / "hand.safetensors")
    source = json.loads(made.with_suffix(".json").read_text())["source"]
    assert "+thermometer" in source
    assert plan.model.kind == "Defended"
    assert plan.model.digest == besiege.defenses.load(source).digest()


PROBLEMS = [
    ({"trian": "natural", "arch": "digits_mlp"}, "models.new.trian: unknown key, did you mean"),
    ({"train": "natural"}, "models.new.arch: it is missing"),
    ({"train": "natural", "arch": 3}, "models.new.arch: it should be a valid string"),
    ({"train": "natral", "arch": "digits_mlp"}, "models.new.train: no recipe is called 'natral'"),
    (
        {"train": "natural(epoch=1)", "arch": "digits_mlp"},
        "models.new.train: a recipe has no field",
    ),
    ({"train": "natural", "arch": "digits_mpl"}, "models.new.arch: no architecture is called"),
    ({"train": "natural", "arch": "digits_mlp", "data": "cifra"}, "models.new: no data set is"),
    ({"train": "natural", "arch": "digits_mlp(size=9)"}, "models.new: "),
    ({"train": "adp", "arch": "digits_mlp"}, "models.new: 'digits_mlp' has no members"),
    ({"train": "natural(held_out=9999)", "arch": "digits_mlp"}, "models.new: the recipe holds out"),
    ({"train": "natural", "arch": "net.py:make"}, "models.new: the weights of "),
    (5, "models.new: it should be a valid string"),
    (tomllib.loads(SPEC)["models"]["natural"], "models.new: it is the same model as 'natural'"),
]


@pytest.mark.parametrize(("given", "said"), PROBLEMS, ids=[said for _, said in PROBLEMS])
def test_a_problem_is_found_before_anything_is_written(
    given: Any, said: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    with pytest.raises(InputError) as found:
        models = {**tomllib.loads(SPEC)["models"], "new": given}
        measure(declared(spec(models=models), tmp_path), out=tmp_path / "run")
    assert said in str(found.value)
    assert not (tmp_path / "run").exists()


def test_problems_of_trainings_and_attacks_are_told_together(tmp_path: Path) -> None:
    models = {"a": {"train": "trade", "arch": "digits_mpl"}}
    with pytest.raises(InputError, match="has 3 problems"):
        declared(spec(models=models, cells=[_cell(attacks=["fgsn"])]), tmp_path)


def test_trainings_of_one_identity_are_one_model(tmp_path: Path) -> None:
    models = {
        "one": {"train": "natural(epochs=2)", "arch": "digits_mlp"},
        "other": {"train": "natural@digits(epochs=2)", "arch": "digits_mlp", "data": "digits"},
    }
    with pytest.raises(InputError, match=r"models\.other: it is the same model as 'one'"):
        run(tmp_path / "run", spec(models=models, cells=[_cell()]))
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_changed_is_refused_and_a_new_one_is_trained(
    whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    models = tomllib.loads(SPEC)["models"]
    other = {**models, "natural": {**models["natural"], "seed": 7}}
    with pytest.raises(StoreError, match=r"models\.natural"):
        run(tmp_path / "run", spec(models=other))
    more = {**models, "more": {**models["natural"], "seed": 7}}
    assert all(one.complete for one in run(tmp_path / "run", spec(models=more)))
    assert list(keys(tmp_path / "run")) == ["natural", "trades", "more"]
    old = content(whole)
    assert {key: v for key, v in content(tmp_path / "run").items() if key in old} == old


def test_only_models_that_a_cell_uses_are_trained(tmp_path: Path) -> None:
    cells = [_cell(models=["plain"], substitute="natural")]
    run(tmp_path / "run", spec(cells=cells))
    assert list(keys(tmp_path / "run")) == ["natural"]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], float]]:
    """A clock that shows the images that linear layers answered: it is the same under any load."""
    answered = 0.0

    def count(module: object, given: tuple[Any, ...]) -> None:
        nonlocal answered
        answered += len(given[0]) if isinstance(module, torch.nn.Linear) else 0

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    monkeypatch.setattr(epochs, "time", SimpleNamespace(perf_counter=lambda: answered))
    yield lambda: answered
    hook.remove()


def test_the_forecast_counts_and_times_trainings(tmp_path: Path, work: Callable[[], float]) -> None:
    models = {
        **tomllib.loads(SPEC)["models"],
        "taught": {"train": "distilled(epochs=1)", "arch": "digits_mlp"},
    }
    prepared = prepare_benchmark(declared(spec(), Path()), tmp_path, None, Machine())
    found = forecast(prepared, work)
    assert [(one.model, one.epochs) for one in found.trainings] == [("natural", 2), ("trades", 2)]
    natural, trades = (one.seconds or 0.0 for one in found.trainings)
    # Two epochs of all images, each through the three layers of the network once.
    assert natural == 2 * 3 * len(besiege.data.load("digits", "train"))
    # Trades attacks each image, and holds 100 images out.
    assert trades > natural
    assert found.tasks == 2 + sum(cell.tasks for cell in found.cells)
    assert found.seconds is not None and found.seconds > natural + trades
    taught = prepare_benchmark(declared(spec(models=models), Path()), tmp_path, None, Machine())
    assert forecast(taught).trainings[-1].seconds is None, "its teacher does not exist yet"
    assert not list(tmp_path.iterdir())


def test_images_made_elsewhere_are_judged_on_a_trained_model(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    found = import_images(folder, whole, model="trades")
    assert found.taken


def test_weights_travel_with_the_jobs_that_name_their_model(whole: Path) -> None:
    store, run = open_run(whole)
    plan = next(one for one in run.plans if one.model.name == "natural")
    task = next(iter(plan.tasks()))
    sent = needed(task, store, [keys(whole)["natural"]])
    assert "weights.safetensors" in sent[keys(whole)["natural"]]


def test_merged_folders_have_the_trainings_of_both(whole: Path, tmp_path: Path) -> None:
    models = {n: v for n, v in tomllib.loads(SPEC)["models"].items() if n != "trades"}
    cells = tomllib.loads(SPEC)["cells"][:1]
    run(tmp_path / "part", spec(models=models, cells=cells))
    merge(tmp_path / "joined", [tmp_path / "part", whole])
    assert keys(tmp_path / "joined") == keys(whole)
    assert all(one.done for one in trained(tmp_path / "joined"))
    assert content(tmp_path / "joined") == content(whole)
