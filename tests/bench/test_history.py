"""A run keeps every evaluation: the newest of a request is current, earlier ones are compared."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import besiege
from besiege.bench.overview import open_run, status
from besiege.bench.results import summarise
from besiege.models.catalogue import ZOO

WORDS: dict[str, Any] = {
    "threat": "linf:0.15",
    "attacks": "pgd(steps=5)",
    "curve": False,
    "count": 60,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str) -> None:
    shutil.copy(ZOO / f"digits-{name}.safetensors", "mine.safetensors")


def measured(**changes: Any) -> besiege.Evaluation:
    given: dict[str, Any] = {**WORDS, **changes}
    threat: str = given.pop("threat")
    return besiege.evaluate(
        "digits_cnn:mine.safetensors", "digits", threat=threat, out="run", **given
    )


def test_new_weights_do_not_hide_the_earlier_result(here: Path) -> None:
    put("natural")
    first = measured()
    assert first.figures.history == () and first.figures.made is not None
    put("pgd-at")
    second = measured()
    (old,) = second.figures.history
    assert old.name == first.figures.name and old.robust == first.robust
    assert repr(second).splitlines()[3].startswith(f"  was {first.robust}, now ")
    assert "\n  was " not in repr(first)
    assert old.model == first.figures.model.digest != second.figures.model.digest
    one, two = (found.by_sample["fate"] == "standing" for found in (second, first))
    assert old.change is not None
    assert (old.change.only_first, old.change.only_second) == (
        (one & ~two).sum(),
        (two & ~one).sum(),
    )
    assert second.robust is not None and first.robust is not None
    assert old.change.value == pytest.approx(second.robust.value - first.robust.value)
    assert old.change.p < 0.001 and old.change.count == 60
    # One evaluation is shown, and nothing of the earlier one is lost.
    assert len(summarise("run").evaluations) == 1 and len(status("run")) == 1
    assert len(open_run("run")[1].plans) == 2


def test_going_back_makes_the_first_one_current_again(here: Path) -> None:
    for name in ("natural", "pgd-at", "natural"):
        put(name)
        found = measured()
    store, run = open_run("run")
    records = store.present()
    assert [plan.name for plan in run.current] == [found.figures.name] and len(run.plans) == 2
    assert len(found.figures.history) == 1
    assert measured().figures.history == found.figures.history and store.present() == records


def test_the_same_budget_written_otherwise_is_the_same_request(here: Path) -> None:
    put("natural")
    measured(count=None)
    put("pgd-at")
    second = measured(count=397)
    third = measured(threat="linf:3/20", count=None)
    assert third.figures.name == second.figures.name and len(third.figures.history) == 1
    assert [one.model.digest for one in summarise("run").evaluations] == [
        second.figures.model.digest
    ]


def test_a_copy_of_the_weights_leaves_the_history_of_the_first(here: Path) -> None:
    put("natural")
    measured()
    put("pgd-at")
    second = measured()
    shutil.copy("mine.safetensors", "copy.safetensors")
    words = {**WORDS, "out": "run"}
    copy = besiege.evaluate("digits_cnn:copy.safetensors", "digits", **words)
    assert copy.figures.name == second.figures.name
    assert copy.figures.model.name == "digits_cnn:copy.safetensors" and not copy.figures.history
    mine, other = summarise("run").evaluations
    assert mine.model.digest == other.model.digest == second.figures.model.digest
    assert (len(mine.history), len(other.history)) == (1, 0)


def test_requests_keep_their_order_and_their_own_history(here: Path) -> None:
    put("natural")
    measured()
    measured(threat="linf:0.1")
    put("pgd-at")
    measured()
    found = summarise("run").evaluations
    assert [one.threat.text for one in found] == ["linf:0.15", "linf:0.1"]
    assert [len(one.history) for one in found] == [1, 0]


def test_other_images_are_listed_and_not_compared(here: Path) -> None:
    images = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    import numpy as np

    for labels in (np.zeros(24, int), np.ones(24, int)):
        np.savez("mine.npz", x=images, y=labels)
        found = besiege.evaluate(
            "zoo:digits-natural",
            "mine.npz",
            threat="linf:0.1",
            attacks="fgsm",
            curve=False,
            out="run",
        )
    (old,) = found.figures.history
    assert old.change is None and old.data != found.figures.data.digest


def test_without_a_budget_the_larger_perturbations_are_counted(here: Path) -> None:
    for name in ("natural", "pgd-at"):
        put(name)
        found = measured(threat="linf", attacks="fmn(steps=10)", count=30)
    (old,) = found.figures.history
    assert old.change is not None and old.median is not None
    assert old.change.only_first + old.change.only_second <= old.change.count == 30
    assert old.change.value > 0.5  # almost every image needs a larger perturbation


def test_the_commit_of_the_users_repository_is_kept(here: Path) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    put("natural")
    git("init", "-q")
    git("add", "mine.safetensors")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    assert measured().figures.commit == git("rev-parse", "--short=10", "HEAD")
    put("pgd-at")
    assert measured().figures.commit == git("rev-parse", "--short=10", "HEAD") + "+"


def test_a_run_without_dates_is_read(here: Path) -> None:
    put("natural")
    measured()
    content = json.loads(Path("run/run.json").read_text())
    for plan in content["plans"]:
        del plan["made"], plan["commit"], plan["digest"]
    Path("run/run.json").write_text(json.dumps(content))
    assert summarise("run").evaluations[0].made is None
    put("pgd-at")
    (old,) = measured().figures.history
    assert old.made is None and old.change is not None


def test_changed_images_are_not_called_the_same(here: Path) -> None:
    import numpy as np

    data = besiege.data.load("digits", count=40)
    for brightness in (1.0, 0.5):
        np.savez("mine.npz", x=brightness * data.images.numpy(), y=data.labels.numpy())
        found = besiege.evaluate(
            "zoo:digits-natural",
            "mine.npz",
            threat="linf:0.1",
            attacks="fgsm",
            curve=False,
            out="run",
        )
    (old,) = found.figures.history
    assert old.change is None, "ids and labels are the same, the images are not"


def test_other_attacks_and_other_boxes_are_not_compared(here: Path) -> None:
    source = (
        "from dataclasses import dataclass\nfrom besiege import Attack\n"
        "from besiege.attacks import parse\n@dataclass(frozen=True)\nclass Mine(Attack):\n"
        "    def run(self, siege):\n        parse('{}').run(siege)\n"
    )
    for text in ("pgd(steps=5)", "fgsm"):
        Path("mine.py").write_text(source.format(text))
        found = besiege.evaluate(
            "zoo:digits-natural",
            "digits",
            threat="linf:0.1",
            attacks="mine.py:Mine",
            curve=False,
            count=20,
            out="attacks",
        )
    (old,) = found.figures.history
    assert old.change is None and old.why_not == "other attacks"
    model = (
        "import besiege\ndef make():\n    net = besiege.models.load('zoo:digits-natural').module\n"
        "    return besiege.Classifier(net, box=(0, {}))\n"
    )
    for high in (1, 4):
        Path("net.py").write_text(model.format(high))
        found = besiege.evaluate(
            "net.py:make",
            "digits",
            threat="linf:0.1",
            attacks="fgsm",
            curve=False,
            count=20,
            out="boxes",
        )
    (old,) = found.figures.history
    assert old.change is None and old.why_not


def test_changes_of_several_evaluations_are_corrected(here: Path) -> None:
    for name in ("natural", "pgd-at"):
        put(name)
        alone = measured()
        for threat in ("linf:0.1", "linf:0.05"):
            measured(threat=threat)
    changes = [one.history[0] for one in summarise("run").evaluations]
    assert [old.comparisons for old in changes] == [3, 3, 3]
    first = alone.figures.history[0].change  # the only one at that time
    now = changes[0].change
    assert first is not None and now is not None and now.p >= first.p
