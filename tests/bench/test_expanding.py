"""A benchmark becomes requests, and its run: each task once, all problems first."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.bench.small import SMALL
from torch import Tensor

import besiege
from besiege.bench.benchmark import Benchmark
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.board_reading import board_of
from besiege.bench.comparison import compare_runs
from besiege.bench.expanding import beside, declared
from besiege.bench.run import read_run
from besiege.bench.shards import Read
from besiege.bench.single import measure
from besiege.bench.spec import Request
from besiege.bench.store import Store
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, ChangedError, InputError, StoreError
from besiege.core.victim import Victim

SPEC = f"""{SMALL}[[cells]]
name = "curve"
threat = "l2:1"
attacks = ["fgsm", "ddn(steps=5)"]
budget = "search"
models = ["natural"]
examine = "none"
[[cells]]
name = "transfer"
threat = "linf"
budgets = ["0.1", "0.2"]
attacks = ["bim(steps=3)"]
substitute = {{default = "pgd-at", pgd-at = "natural"}}
examine = "none"
"""


def spec(**changes: Any) -> Benchmark:
    """The benchmark, with some values of its file changed."""
    return benchmark_of({**tomllib.loads(SPEC), **changes})


def cell(**values: Any) -> dict[str, Any]:
    return {"name": "one", "threat": "linf:0.15", "attacks": ["fgsm"], "examine": "none", **values}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "small"
    measure(declared(spec(), Path()), out=folder)
    return folder


def test_every_cell_model_budget_and_seed_is_a_request() -> None:
    entries = declared(spec(seed=3), Path()).entries
    assert [entry.key for entry in entries] == [
        ("white", "natural", "0.15", 3),
        ("white", "pgd-at", "0.15", 3),
        ("curve", "natural", None, 3),
        *(("transfer", model, eps, 3) for model in ("natural", "pgd-at") for eps in ("0.1", "0.2")),
    ]
    assert all(entry.request.curve == "none" for entry in entries)
    searched = entries[2].request
    assert searched.threat == "l2" and searched.attacks == ("minimal(fgsm)", "ddn(steps=5)")
    assert entries[-1].request.substitute == ("zoo:digits-natural",)
    assert entries[-1].request.threat == "linf:0.2"


def test_a_cell_may_have_its_own_seeds_and_number_of_images() -> None:
    cells = [cell(seeds=[1, 2], count=5, queries=9, models=["natural"]), cell(name="two")]
    one, two, *others = (
        entry.request for entry in declared(spec(cells=cells, seed=7), Path()).entries
    )
    assert [(r.seed, r.count, r.queries) for r in (one, two)] == [(1, 5, 9), (2, 5, 9)]
    assert {(r.seed, r.count, r.queries) for r in others} == {(7, 12, None)}


def test_models_that_are_paid_for_are_not_shared() -> None:
    """They count their queries for each evaluation."""
    read = Read()
    for metered, times in ((True, 2), (False, 1)):
        victims = [read.model(metered, partial(Counted, metered)) for _ in range(2)]
        assert len({id(victim) for victim in victims}) == times


class Counted(Victim):
    """A victim that may be metered."""

    def __init__(self, metered: bool) -> None:
        self.metered = metered

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        raise AssertionError("it is not queried")


def test_a_suite_is_searched_attack_by_attack() -> None:
    cells = [cell(attacks=None, suite="quick", budget="search")]
    del cells[0]["attacks"]
    (entry, _) = declared(spec(cells=cells), Path()).entries
    assert entry.request.suite is None
    assert all("minimal(" in text or "fab" in text for text in entry.request.attacks or ())


def test_data_have_a_text_with_options() -> None:
    words = {"model": "m", "threat": "linf"}
    found = Request.of(data="path/photos (resize=256, crop=224x200,channels=1)", **words)
    assert (found.data, found.resize, found.crop) == ("path/photos", "256", "224x200")
    assert found.channels == 1
    for same in ("photos (1)", "a(b=c)", "f(resize)"):
        assert Request.of(data=same, **words).data == same
    with pytest.raises(InputError, match="resize is '64'"):
        Request.of(data="photos(resize=256)", resize="64", **words)


def test_files_are_relative_to_the_benchmark(tmp_path: Path) -> None:
    for name in ("net.py", "w.safetensors", "x.npz"):
        (tmp_path / name).touch()
    assert beside("net.py:make(width=2)+bits(depth=3)", tmp_path) == (
        f"{tmp_path}/net.py:make(width=2)+bits(depth=3)"
    )
    assert beside("resnet20(mean=0.5):w.safetensors", tmp_path) == (
        f"resnet20(mean=0.5):{tmp_path}/w.safetensors"
    )
    assert beside("universal(file='w.safetensors', steps=3)", tmp_path) == (
        f"universal(file='{tmp_path}/w.safetensors', steps=3)"
    )
    for same in ("zoo:digits-natural", "http://x.npz/y", "/net.py:make", "other.py:make"):
        assert beside(same, tmp_path) == same
    (entry, *_) = declared(spec(data="x.npz"), tmp_path).entries
    assert entry.request.data == str(tmp_path / "x.npz")


def test_all_problems_of_attacks_are_told_at_once() -> None:
    cells = [
        cell(attacks=["fgms", "bim(stepps=3)", "bim", "bim"]),
        cell(name="two", goal="targeted:rando"),
        cell(name="three", substitute={"default": "zoo:digits-natural+bits"}, budget="search"),
    ]
    with pytest.raises(InputError) as found:
        declared(spec(cells=cells), Path()).entries
    told = str(found.value)
    for said in (
        "5 problems",
        "attacks[1] 'fgms': no attack or piece is called 'fgms': did you mean 'fgsm'",
        "attacks[2] 'bim(stepps=3)'",
        "attacks[4] 'bim': the attack 'bim' is listed twice",
        'cells[2] "two": the goal',
        "cells[3] \"three\".attacks[1] 'fgsm': images crafted on another model are sent once",
    ):
        assert said in told, told


def test_the_run_knows_its_benchmark_and_every_evaluation(run: Path) -> None:
    found = read_run(Store(run))
    assert found is not None and found.benchmark == spec()
    assert [entry.key for entry in found.entries] == [
        e.key for e in declared(spec(), Path()).entries
    ]
    assert {entry.plan for entry in found.entries} == {plan.name for plan in found.current}
    assert len(found.current) == 7 and not found.unfit


def test_each_task_is_done_once(run: Path) -> None:
    """Images crafted on a source are judged on every target, but crafted once."""
    found = read_run(Store(run))
    assert found is not None
    tasks = [task for plan in found.current for task in plan.tasks()]
    keys = {task.key for task in tasks}
    assert len(keys) < len(tasks)  # clean images are shared by cells
    assert Store(run).present() == keys


@pytest.mark.usefixtures("examined")
@pytest.mark.parametrize("suite", [False, True])
def test_records_of_one_model_are_those_of_evaluate(tmp_path: Path, suite: bool) -> None:
    how: dict[str, Any] = {"suite": "quick"} if suite else {"attacks": "fgsm, bim(steps=3)"}
    listed = how if suite else {"attacks": ["fgsm", "bim(steps=3)"]}
    one = {"name": "one", "threat": "linf:0.15", **listed}
    alone = spec(models={"natural": "zoo:digits-natural"}, cells=[one])
    measure(declared(alone, Path()), out=tmp_path / "mine")
    words: dict[str, Any] = {"threat": "linf:0.15", "curve": "none", "count": 12, "shard": 6}
    besiege.evaluate("zoo:digits-natural", "digits", out=tmp_path / "theirs", **how, **words)
    mine, theirs = Store(tmp_path / "mine"), Store(tmp_path / "theirs")
    assert mine.present() == theirs.present() and len(mine.present()) >= 13
    for key in theirs.present():
        first, second = mine.read(key), theirs.read(key)
        assert first is not None and second is not None
        assert first.files == second.files and first.totals == second.totals
        assert first.identity == second.identity and first.findings == second.findings


def test_models_that_do_not_fit_are_left_out_unless_listed(tmp_path: Path) -> None:
    models = {"natural": "zoo:digits-natural", "random": "zoo:digits-natural+resize_pad"}
    some = spec(models=models, cells=[cell()])
    measure(declared(some, Path()), out=tmp_path / "run")
    found = read_run(Store(tmp_path / "run"))
    assert found is not None and [entry.model for entry in found.entries] == ["natural"]
    assert [(one.cell, one.model) for one in found.unfit] == [("one", "random")]
    for cells, said in (
        ([cell(models=["random"])], "cells[1] \"one\", model 'random': "),
        ([cell(), cell(name="two", models=["random"])], "cells[2] \"two\", model 'random': "),
    ):
        with pytest.raises(InputError) as problem:
            measure(declared(spec(models=models, cells=cells), Path()), out=tmp_path / "other")
        assert said in str(problem.value)
    alone = spec(models={"random": models["random"]}, cells=[cell()])
    with pytest.raises(InputError, match=r'cells.1. "one": no model fits'):
        measure(declared(alone, Path()), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_problems_of_models_are_told_at_once(tmp_path: Path) -> None:
    models = {"a": "zoo:digits-naturall", "b": "net.py:make", "c": "zoo:digits-natural"}
    wrong = spec(models=models, cells=[cell(), cell(name="two")])
    with pytest.raises(InputError) as problem:
        measure(declared(wrong, Path()), out=tmp_path / "run")
    assert "2 problems" in str(problem.value) and "models.a: " in str(problem.value)
    same = spec(models={"a": "zoo:digits-natural", "b": "zoo:digits-natural "}, cells=[cell()])
    with pytest.raises(InputError, match=r"models.b: it is the same model as 'a'"):
        measure(declared(same, Path()), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"count": 13}, "count"),
    ({"seed": 1}, "seed"),
    ({"models": {"natural": "zoo:digits-natural", "pgd-at": "zoo:cifar10-pgd-at"}}, "models.pgd"),
    ({"cells": [cell()]}, 'cells "white", cells "curve", cells "transfer"'),
    ({"compare": {"pairs": [["natural", "pgd-at"]]}}, "compare.pairs"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[said for _, said in CHANGES])
def test_a_benchmark_that_changed_under_its_run_is_refused(
    run: Path, change: dict[str, Any], said: str
) -> None:
    before = (run / "run.json").read_bytes()
    with pytest.raises(StoreError, match=said):
        measure(declared(spec(**change), Path()), out=run)
    assert (run / "run.json").read_bytes() == before


def test_cells_and_models_may_be_added(tmp_path: Path) -> None:
    small = spec(cells=[cell()], models={"natural": "zoo:digits-natural"})
    measure(declared(small, Path()), out=tmp_path)
    before = Store(tmp_path).present()
    wider = spec(
        cells=[cell(), cell(name="two", threat="linf:0.1")],
        compare={"pairs": [["natural", "pgd-at"]]},
    )
    measure(declared(wider, Path()), out=tmp_path)
    found = read_run(Store(tmp_path))
    assert found is not None and len(found.entries) == 4 and len(found.plans) == 4
    assert before < Store(tmp_path).present()


NET = """import torch
from torch import nn
def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_a_model_that_changed_since_it_was_planned_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    mine = spec(models={"mine": "net.py:make"}, cells=[cell()])
    for _ in range(2):
        measure(declared(mine, tmp_path), out=tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "net.py").write_text(NET.replace("10))", "10), nn.Tanh())"))
    with pytest.raises(ChangedError, match="the model 'mine'"):
        measure(declared(mine, tmp_path), out=tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == before


def test_a_benchmark_that_moved_is_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "net.py").write_text(NET)
    mine = spec(models={"mine": "net.py:make"}, cells=[cell()])
    measure(declared(mine, tmp_path / "a"), out=tmp_path / "run")
    records = Store(tmp_path / "run").present()
    (tmp_path / "a").rename(tmp_path / "b")
    measure(declared(mine, tmp_path / "b"), out=tmp_path / "run")
    found = read_run(Store(tmp_path / "run"))
    assert found is not None and len(found.plans) == 1
    assert found.plans[0].model.name == f"{tmp_path}/b/net.py:make"
    assert Store(tmp_path / "run").present() == records


def test_a_run_without_a_benchmark_is_written_as_before(tmp_path: Path) -> None:
    besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.1", attacks="fgsm", count=4, out=tmp_path
    )
    written = json.loads((tmp_path / "run.json").read_text())
    assert written.keys() == {"schema_number", "created", "versions", "plans"}


def test_models_and_data_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from besiege.bench import model_spec, shards
    from besiege.evaluation import transfer

    loaded: list[str] = []
    for module, name in ((model_spec, "load_victim"), (transfer, "load"), (shards, "load_data")):
        real = getattr(module, name)

        def counting(text: str, *args: Any, real: Any = real, **words: Any) -> Any:
            loaded.append(text)
            return real(text, *args, **words)

        monkeypatch.setattr(module, name, counting)
    cells = [cell(), cell(name="two", threat="l2:1")]
    cells.append(cell(name="three", substitute={"default": "pgd-at", "pgd-at": "natural"}))
    with pytest.raises(BesiegeError, match="enough"):
        measure(declared(spec(cells=cells), Path()), out=tmp_path, accept=_enough)
    assert sorted(set(loaded)) == ["digits", "zoo:digits-natural", "zoo:digits-pgd-at"]
    assert loaded.count("digits") == 1 and len(loaded) <= 5  # substitutes name their device


def _enough(plan: object) -> None:
    raise BesiegeError("enough")


def test_only_declared_pairs_are_compared(tmp_path: Path) -> None:
    models = {**tomllib.loads(SPEC)["models"], "coarse": "zoo:digits-natural+bits(depth=2)"}
    on_natural = {"default": "natural", "natural": "pgd-at"}
    cells = [cell(), cell(name="two", substitute=on_natural)]
    asked = spec(models=models, cells=cells, compare={"pairs": [["pgd-at", "natural"]]})
    measure(declared(asked, Path()), out=tmp_path)
    found = compare_runs([tmp_path])
    named = {"natural", "pgd-at"}
    assert len(found.pairs) == 2, "one in each cell, although both have the same threat"
    for pair in found.pairs:
        assert {pair.first.split(" ")[0], pair.second.split(" ")[0]} == named
        assert pair.p == min(1.0, 2 * pair.change.p) or pair.p == max(p.p for p in found.pairs)
    run = read_run(Store(tmp_path))
    assert run is not None and run.benchmark is not None
    every = run.model_copy(update={"benchmark": spec(models=models, cells=cells)}).compared()
    assert every is not None and len(every) == 6, "all pairs of three models in two cells"


LARGE = """
name = "large"
data = "imagenet-sample"
count = 6
[models]
small = "public:imagenet_squeezenet1.1"
mobile = "public:imagenet_mobilenet_v2_1.0+bits(depth=4)"
[[cells]]
name = "own"
threat = "linf:0.1"
attacks = ["fgsm"]
crop = "model"
examine = "none"
[[cells]]
name = "other"
threat = "linf:0.1"
attacks = ["fgsm"]
models = ["mobile"]
"""


def test_every_model_may_get_the_images_at_its_own_side() -> None:
    found = declared(benchmark_of(tomllib.loads(LARGE)), Path())
    crops = {(one.cell, one.model): one.request.crop for one in found.entries}
    assert crops == {("own", "small"): "227", ("own", "mobile"): "224", ("other", "mobile"): None}
    assert {one.request.data for one in found.entries} == {"imagenet-sample"}


def test_data_of_a_benchmark_may_have_a_side() -> None:
    text = LARGE.replace('"imagenet-sample"', '"imagenet-sample(crop=224)"')
    with pytest.raises(InputError, match=r"own.*\.crop: the data .*crop=224.* have a side already"):
        declared(benchmark_of(tomllib.loads(text)), Path())
    plain = text.replace('crop = "model"\n', "")
    found = declared(benchmark_of(tomllib.loads(plain)), Path())
    assert {(one.request.data, one.request.crop) for one in found.entries} == {
        ("imagenet-sample", "224")
    }


def test_a_model_of_unknown_side_is_named() -> None:
    text = LARGE.replace("public:imagenet_squeezenet1.1", "zoo:digits-natural")
    with pytest.raises(InputError, match=r"the side of 'small' is not known: leave crop out"):
        declared(benchmark_of(tomllib.loads(text)), Path())


@pytest.mark.slow
def test_rows_of_models_of_two_sides_pair(tmp_path: Path) -> None:
    """Image files keep their ids, whatever is cropped from them."""
    text = LARGE.replace("+bits(depth=4)", "").partition('[[cells]]\nname = "other"')[0]
    measure(declared(benchmark_of(tomllib.loads(text)), Path()), out=tmp_path)
    (cell,) = board_of(tmp_path).cells
    assert cell.models == ("small", "mobile") and len(cell.samples) == 6
    assert cell.known.all() and cell.covered.all()
