"""Checkpoints: whatever interrupts a training, it ends with the same weights, bit by bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import besiege
from besiege.attacks.attack import Attack
from besiege.core.errors import DataError, InputError
from besiege.core.files import partial_in
from besiege.core.victim import Victim
from besiege.data import Data
from besiege.models import Classifier
from besiege.training import Epoch, Recipe, fresh, natural, pgd_at, recipe, train
from besiege.training.checkpoints import Checkpoint, replace_file
from besiege.training.epochs import Training
from besiege.training.fitting import build
from besiege.training.losses import CrossEntropy

EVERYTHING = replace(
    pgd_at,
    epochs=4,
    batch=16,
    optimiser="sgd",
    rate=0.05,
    decay=1e-3,
    decayed="weights",
    warmup=0.2,
    objective=CrossEntropy(smoothing=0.1),
    average=0.9,
    crop=1,
    flip=True,
    early=pgd_at.attack,
    early_share=0.5,
    held_out=20,
    whole=True,
).within("linf:0.1")


class Stop(Exception):
    pass


def net() -> nn.Module:
    return fresh(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, 1, 1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(256, 10),
        ),
        0,
    )


def some(count: int = 100, shift: float = 0.0) -> Data:
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 8, 8, generator=draws) * (1 - shift)
    labels = (images.mean((1, 2, 3)) * 97).long() % 10
    return Data("made", "train", images, labels, torch.arange(count), 10, tuple("0123456789"))


def interrupted_at(moment: int) -> Callable[[int, int], None]:
    def tick(done: int, total: int) -> None:
        if done == moment:
            raise Stop

    return tick


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(k == q and torch.equal(v, w) for (k, v), (q, w) in pairs)


@pytest.mark.parametrize(
    "recipe",
    [EVERYTHING, replace(natural, epochs=4, batch=16), replace(EVERYTHING, optimiser="adam")],
    ids=["everything", "natural", "adam"],
)
def test_an_interrupted_training_ends_with_the_same_weights(recipe: Recipe, tmp_path: Path) -> None:
    straight, stopped = net(), net()
    history = train(straight, some(), recipe)
    steps: list[int] = []
    train(net(), some(), recipe, tick=lambda done, total: steps.append(total))
    path = tmp_path / "new" / "training.checkpoint"
    per_epoch = steps[0] // 4
    for moment in (2, per_epoch, 2 * per_epoch + 1, 3 * per_epoch + 1):
        stopped = net()
        with pytest.raises(Stop):
            train(stopped, some(), recipe, checkpoint=path, tick=interrupted_at(moment))
    stopped = net()
    told: list[Epoch] = []
    # Another global state and another start: neither may matter.
    torch.rand(5)
    with torch.no_grad():
        next(stopped.parameters()).add_(1.0)
    assert train(stopped, some(), recipe, checkpoint=path, watch=told.append) == history
    assert same(stopped, straight)
    assert [epoch.number for epoch in told] == [4], "what was done is not done again"
    assert [p.name for p in path.parent.iterdir()] == ["training.checkpoint"]
    # All is done: the same weights once more, at once.
    last = net()
    assert train(last, some(), recipe, checkpoint=path, tick=interrupted_at(1)) == history
    assert same(last, straight)


def test_the_best_epoch_may_lie_before_the_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(
        self: Training, victim: Victim, held: Data, attack: Attack | None
    ) -> tuple[float, float]:
        return 0.5, 0.9 if len(self.history) == 0 else 0.3

    monkeypatch.setattr(Training, "_accuracy", scored)
    first, resumed = net(), net()
    train(first, some(), EVERYTHING)
    with pytest.raises(Stop):
        train(net(), some(), EVERYTHING, checkpoint=tmp_path / "c", tick=interrupted_at(11))
    train(resumed, some(), EVERYTHING, checkpoint=tmp_path / "c")
    assert same(first, resumed)


def test_checkpoints_come_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    path, seen = tmp_path / "c", []

    def watch(epoch: object) -> None:
        facts = Checkpoint.read(path).facts if path.exists() else {"history": []}
        seen.append(len(facts["history"]))

    train(net(), some(), replace(natural, epochs=5), checkpoint=path, every=2, watch=watch)
    assert seen == [0, 2, 2, 4, 5]
    with pytest.raises(InputError, match="every"):
        train(net(), some(), natural, checkpoint=path, every=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: (net(), some(), replace(natural, epochs=3), 0), "recipe natural.epochs=2"),
        (lambda: (net(), some(), replace(natural, epochs=2), 1), "seed 0, not 1"),
        (lambda: (net(), some(shift=0.1), replace(natural, epochs=2), 0), "data made train"),
        (
            lambda: (Classifier(net(), mean=0.1, std=0.2), some(), replace(natural, epochs=2), 0),
            "model Sequential",
        ),
    ],
    ids=["recipe", "seed", "data", "model"],
)
def test_the_checkpoint_of_another_training_is_refused(
    change: Callable[[], tuple[nn.Module, Data, Recipe, int]], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    train(net(), some(), replace(natural, epochs=2), checkpoint=path)
    before = path.read_bytes()
    model, data, recipe, seed = change()
    with pytest.raises(InputError, match=f"belongs to another training .*{said}"):
        train(model, data, recipe, seed=seed, checkpoint=path)
    assert path.read_bytes() == before


def test_what_is_no_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    train(net(), some(), replace(natural, epochs=1), checkpoint=path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-7] ^= 1
    tensors = load_file(path)
    spoiled = [b"", b"junk" * 10, whole[:-5], bytes(flipped)]
    save_file(tensors, tmp_path / "bare")
    spoiled.append((tmp_path / "bare").read_bytes())
    for content in spoiled:
        path.write_bytes(content)
        with pytest.raises(DataError, match="damaged or not a checkpoint"):
            train(net(), some(), replace(natural, epochs=1), checkpoint=path)
    header = {"schema": 99, "identity": {}, "facts": {}, "sha256": ""}
    save_file(tensors, path, {"besiege": json.dumps(header)})
    with pytest.raises(DataError, match="schema 99"):
        Checkpoint.read(path)


def test_a_place_that_takes_no_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "c", tmp_path):
        with pytest.raises(DataError, match="cannot be written"):
            train(net(), some(), natural, checkpoint=place, tick=interrupted_at(1))


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    replace_file(path, b"one")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one" and [p.name for p in tmp_path.iterdir()] == ["c"]


def test_what_a_killed_process_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from besiege.core.files import partial_in; "
        "partial_in(pathlib.Path(sys.argv[1])).touch()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    mine = partial_in(tmp_path)
    mine.touch()
    assert len(list(tmp_path.iterdir())) == 2
    train(net(), some(), replace(natural, epochs=1), checkpoint=tmp_path / "c")
    assert {path.name for path in tmp_path.iterdir()} == {"c", mine.name}


def subject(which: str) -> tuple[nn.Module | Classifier, Data, Recipe]:
    """A model with initial weights, its data and its recipe."""
    if which == "everything":
        return net(), some(), EVERYTHING
    data = besiege.data.load("digits", "train", count=300)
    arch = "joint(of='digits_mlp', members=3)" if which == "adp" else "digits_cnn"
    return build(arch, data)[0], data, recipe(f"{which}(epochs=20)", "digits")


CHILD = """
import sys
sys.path.insert(0, {folder!r})
from test_checkpoints import subject
import torch
from besiege.training import train
torch.set_num_threads(1)
say = lambda done, total: print(done, flush=True)
train(*subject({which!r}), checkpoint={path!r}, device={device!r}, tick=say)
"""


def killed(path: Path, which: str, after: int, pause: float = 0.0, device: str = "cpu") -> bool:
    """Train in a process of its own; SIGKILL it after so many steps. Whether it was killed."""
    folder = str(Path(__file__).parent)
    code = CHILD.format(folder=folder, which=which, path=str(path), device=device)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for count, _ in enumerate(child.stdout, 1):
            if count == after:
                time.sleep(pause)
                child.send_signal(signal.SIGKILL)
    return child.returncode == -signal.SIGKILL


def ten_moments(which: str) -> list[tuple[int, float]]:
    """Steps and seconds after them; all together fewer steps than a training of 20 epochs has."""
    draws = random.Random(which)
    return [(draws.randint(1, 8), draws.uniform(0, 0.05)) for _ in range(10)]


@pytest.mark.parametrize(
    ("which", "kills"),
    [
        ("everything", [(12, 0.0)]),
        # About a minute each; epochs have five steps, so that some begin twice.
        *(
            pytest.param(which, ten_moments(which), marks=pytest.mark.slow)
            for which in ("everything", "trades", "awp", "free-at", "adp")
        ),
    ],
)
def test_a_killed_process_loses_nothing(
    which: str, kills: list[tuple[int, float]], tmp_path: Path
) -> None:
    path = tmp_path / "c"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = sum(killed(path, which, *moment) for moment in kills)
        # The training with everything is over after some of ten.
        assert times >= min(len(kills), 5 if which == "everything" else 10)
        straight, data, plan = subject(which)
        resumed, *_ = subject(which)
        history = train(straight, data, plan)
        assert train(resumed, data, plan, checkpoint=path) == history
    finally:
        torch.set_num_threads(threads)
    modules = [one.module if isinstance(one, Classifier) else one for one in (straight, resumed)]
    assert same(*modules) and [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.gpu
@pytest.mark.parametrize("which", ["trades", "awp", "free-at", "adp"])
def test_a_process_killed_on_a_gpu_ends_with_the_same_accuracy(which: str, tmp_path: Path) -> None:
    path = tmp_path / "c"
    assert sum(killed(path, which, *moment, device="cuda") for moment in ten_moments(which)) == 10
    found = []
    test = besiege.data.load("digits")
    for checkpoint in (None, path):
        model, data, plan = subject(which)
        train(model, data, plan, device="cuda", checkpoint=checkpoint)
        victim = model if isinstance(model, Classifier) else Classifier(model)
        with victim.held(), torch.no_grad():
            answers = victim.to("cuda")(test.images.to("cuda")).argmax(1).cpu()
        found.append(float((answers == test.labels).double().mean()))
    assert abs(found[0] - found[1]) <= 0.005, found
