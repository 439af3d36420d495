"""Wrong input in every position: exit code 2, what to do, no traceback, nothing written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.conftest import Besiege, Said

MODEL, DATA, THREAT = "zoo:digits-natural", "digits", "linf:0.15"


def ask(model: str = MODEL, data: str = DATA, threat: str = THREAT, *more: str) -> list[str]:
    return ["evaluate", model, "--data", data, "--threat", threat, "--count", "2", *more]


def attacking(
    *more: str, images: str = DATA, threat: str = THREAT, attack: str = "pgd"
) -> list[str]:
    fixed = ["attack", MODEL, "--images", images, "--attack", attack, "--threat", threat]
    return [*fixed, "--out", "out", *more]


def training(recipe: str = "natural", arch: str = "digits_mlp", *more: str) -> list[str]:
    fixed = ["train", recipe, "--data", DATA, "--arch", arch, "--out", "new/mine.safetensors"]
    return [*fixed, "--epochs", "1", *more]


def _numbered(option: str, value: str) -> list[str]:
    words = ask(MODEL, DATA, THREAT, "--attacks", "fgsm")
    return [*words[: words.index("--count")], option, value, "--attacks", "fgsm"]


def _stealing(*more: str) -> list[str]:
    fixed = ["substitute", MODEL, "--data", DATA, "--arch", "digits_mlp"]
    return [*fixed, "--out", "new/mine.safetensors", *more]


def refused(said: Said, folder: Path, *words: str) -> None:
    assert said.code == 2, said
    assert said.out == "" and "Traceback" not in said.err
    assert said.err.startswith("error: ")
    assert len(said.err.splitlines()) <= 12, "a calm message is a short one"
    for word in words:
        assert word in said.flat, said.flat
    assert not (folder / "besiege-runs").exists() and not (folder / "out").exists()


UNKNOWN: dict[str, tuple[Sequence[str], str]] = {
    "command": (["evalaute", MODEL], 'Did you mean "evaluate"'),
    "option": (ask(MODEL, DATA, THREAT, "--cuont", "3"), "--count"),
    "option of all": (["models", "--debgu"], "--debug"),
    "model": (ask("zoo-digits-natural"), "'zoo:digits-natural'"),
    "zoo name": (ask("zoo:digits-naturl"), "'digits-natural'"),
    "public name": (ask("public:cifar10_resnet21"), "'cifar10_resnet20'"),
    "architecture": (ask("resnet21:weights.safetensors"), "'resnet20'"),
    "defense": (ask(f"{MODEL}+bitz"), "'bits'"),
    "data": (ask(MODEL, "digist"), "'digits'"),
    "split": (ask(MODEL, DATA, THREAT, "--split", "tset"), "'test'"),
    "norm": (ask(MODEL, DATA, "lnf:0.1"), "'linf'"),
    "goal in the threat": (ask(MODEL, DATA, "linf:0.1 targeted:randm"), "'targeted:random'"),
    "goal": (ask(MODEL, DATA, THREAT, "--goal", "targeted:randm"), "targeted:random"),
    "access": (ask(MODEL, DATA, THREAT, "--access", "gradent"), "gradient"),
    "curve": (ask(MODEL, DATA, THREAT, "--curve", "shrt"), "short"),
    "attack": (ask(MODEL, DATA, THREAT, "--attacks", "fgsm,pdg"), "'pgd'"),
    "parameter": (ask(MODEL, DATA, THREAT, "--attacks", "pgd(stpes=3)"), "'steps'"),
    "loss": (ask(MODEL, DATA, THREAT, "--attacks", "pgd(loss=margn)"), "'margin'"),
    "suite": (ask(MODEL, DATA, THREAT, "--suite", "quik"), "'quick'"),
    "device": (ask(MODEL, DATA, THREAT, "--device", "cdua"), "'cuda'"),
    "attack of attack": (attacking(attack="pdg"), "'pgd'"),
    "images of attack": (attacking(images="digist"), "'digits'"),
    "choice of attack": (attacking("--exact", "npy"), "npz"),
    "recipe": (training("pgd-att"), "'pgd-at'"),
    "recipe's field": (training("pgd-at(epohcs=3)"), "'epochs'"),
    "architecture of train": (training("natural", "digits_cn"), "'digits_cnn'"),
    "attack of train": (training("pgd-at", "digits_mlp", "--attack", "pdg"), "'pgd'"),
    "norm of train": (training("pgd-at", "digits_mlp", "--threat", "lnf:0.1"), "'linf'"),
    "data of train": (
        ["train", "natural", "--data", "digist", "--arch", "lenet", "--out", "a.safetensors"],
        "'digits'",
    ),
    "anything shown": (["show", "pdg"], "'pgd'"),
    "shell": (["completion", "bahs"], "bash"),
}


@pytest.mark.parametrize("position", UNKNOWN)
def test_an_unknown_name_gets_the_nearest_ones(
    besiege: Besiege, tmp_path: Path, position: str
) -> None:
    tokens, hint = UNKNOWN[position]
    refused(besiege(*tokens), tmp_path, hint)
    assert not list(tmp_path.iterdir())


TYPED: dict[str, tuple[Sequence[str], str, str]] = {
    "substitute": (
        ask(MODEL, DATA, THREAT, "--access", "score", "--attacks", "prgf"),
        "pass --substitute zoo:NAME,",
        "substitute=",
    ),
    "attacks": (ask(MODEL, DATA, "linf", "--access", "score"), "with --attacks geoda", "attacks="),
    "of attack": (
        attacking(attack="repeat(prgf, 2)"),
        "use `besiege evaluate` with --substitute MODEL",
        "substitute=",
    ),
    "nothing typed": (
        ask(MODEL, DATA, "l0:3", "--access", "decision"),
        "no default attacks",
        "'rays'",
    ),
}


@pytest.mark.parametrize("position", TYPED)
def test_what_to_do_is_said_in_what_can_be_typed(
    besiege: Besiege, tmp_path: Path, position: str
) -> None:
    tokens, hint, never = TYPED[position]
    said = besiege(*tokens)
    refused(said, tmp_path, hint)
    assert never not in said.flat


WRONG: dict[str, tuple[Sequence[str], str]] = {
    "nothing to attack": (["evaluate"], "MODEL is missing"),
    "a stochastic model and the default attacks": (
        ["evaluate", "zoo:digits-natural+resize_pad", "--data", DATA, "--threat", "linf:0.1"],
        "'zoo:digits-natural+resize_pad' is stochastic: a gradient is one draw, and 'fgsm' would "
        "mistake noise for robustness. Evaluate it with --suite adaptive",
    ),
    "a folder that is not there and no name": (
        ["evaluate", MODEL, "--data", "my_images", "--threat", "linf:0.1"],
        "no folder here is; `besiege data` lists the names",
    ),
    "a name with a slip": (
        ["evaluate", MODEL, "--data", "digit", "--threat", "linf:0.1"],
        "did you mean 'digits'",
    ),
    "a layer without bounds": (
        ["certify", "zoo:digits-natural+jpeg", "--data", DATA, "--threat", "l2:0.1"],
        "the method smoothing and 'zoo:digits-natural+jpeg+smoothed(sigma=0.25)'",
    ),
    "no threat": (["evaluate", MODEL, "--data", DATA], "--threat"),
    "a word as a count": (ask(MODEL, DATA, THREAT, "--seed", "many"), "--seed"),
    "no images": (
        ["evaluate", MODEL, "--data", DATA, "--threat", THREAT, "--count", "0"],
        "--count",
    ),
    "too many images": (
        ["evaluate", MODEL, "--data", DATA, "--threat", THREAT, "--count", "100000"],
        "397",
    ),
    "a batch of none": (ask(MODEL, DATA, THREAT, "--batch", "0"), "--batch"),
    "255-units": (ask(MODEL, DATA, "linf:8"), "linf:8/255"),
    "255-units to attack": (attacking(threat="linf:8"), "linf:8/255"),
    "a negative budget": (ask(MODEL, DATA, "linf:-1"), "negative"),
    "no budget at all": (ask(MODEL, DATA, "linf:0"), "changes nothing"),
    "a budget below float32": (ask(MODEL, DATA, "linf:1e-300"), "float32"),
    "a budget that no pixel notices": (attacking(threat="linf:1e-9"), "larger"),
    "a budget of a billion digits": (ask(MODEL, DATA, "linf:1e999999999"), "not a budget"),
    "a budget in other digits": (ask(MODEL, DATA, "linf:٠.١"), "not a budget"),
    **{
        f"{option} {value[:9]}": (_numbered(option, value), f"{option} is '{value[:9]}")
        for option in ("--count", "--seed", "--shard", "--queries", "--batch", "--threads")
        for value in ("2.5", "٣", "9" * 25, "9" * 5000)
    },
    **{
        f"{option} beyond 64 bits": (attacking(option, "9" * 25), f"{option} is '999")
        for option in ("--count", "--seed", "--queries", "--batch", "--target")
    },
    **{
        f"{option} {value[:9]}": (training("natural", "digits_mlp", option, value), f"{option} is")
        for option, value in (("--every", "9" * 25), ("--rate", "nan"), ("--rate", "1e400"))
    },
    "epochs of a fraction": ([*training()[:-1], "1.5"], "--epochs is '1.5'"),
    **{
        f"{option} {value[:9]} of a substitute": (_stealing(option, value), f"{option} is")
        for option, value in (("--lam", "inf"), ("--tau", "9" * 25), ("--rounds", "1.5"))
    },
    "a reservoir of a fraction": (_stealing("--reservoir", "1", "2.5"), "--reservoir is '2.5'"),
    "channels that are rounded": (
        ask(MODEL, "pictures", THREAT, "--channels", "3.2"),
        "--channels",
    ),
    "threads beyond reason": (ask(MODEL, DATA, THREAT, "--threads", "100000000"), "cores"),
    "labels beyond 64 bits": (attacking("--labels", f"{'9' * 25},1,2", images="flat"), "a label"),
    "labels in other digits": (attacking("--labels", "٣,١,٢", images="flat"), "not a file"),
    "steps that never end": (attacking(attack=f"pgd(steps={10**23})"), "64 bits"),
    "many steps": (attacking(attack=f"pgd(steps={10**10})"), "1,000,000,000"),
    "searches in searches": (attacking(attack="minimal(" * 9 + "pgd" + ")" * 9), "nest fewer"),
    "many searches": (attacking(attack="minimal(" * 90 + "pgd" + ")" * 90), "too deeply"),
    "many signs": (attacking(attack="pgd(steps=" + "-" * 20_000 + "1)"), "20,012 characters"),
    "a megabyte of attacks": (
        ask(MODEL, DATA, THREAT, "--attacks", "pgd," * 250_000),
        "1,000,000 characters",
    ),
    "an open layout": (ask(MODEL, "open.npz"), "pass --layout nchw or --layout nhwc"),
    "an open layout to attack": (attacking(images="open.npz"), "--layout nchw"),
    "a layout of pictures": (
        attacking("--layout", "nchw", images="flat"),
        "layout is for arrays",
    ),
    "a layout of a data set": (ask(MODEL, DATA, THREAT, "--layout", "nchw"), "layout is for"),
    "objects to attack": (attacking(images="objects.npz"), "Python objects"),
    "a scalar to attack": (attacking(images="scalar.npz"), "the shape ()"),
    "a wrong checksum to attack": (attacking(images="checksum.npz"), "damaged"),
    "a pipe in a class folder": (ask(MODEL, "with_pipe"), "a named pipe"),
    "two ways to say the curve": (
        ask(MODEL, DATA, THREAT, "--curve", "full", "--no-curve"),
        "disagree",
    ),
    "attacks and a suite": (
        ask(MODEL, DATA, THREAT, "--attacks", "pgd", "--suite", "quick"),
        "both",
    ),
    "a gradient attack without gradients": (
        ask(MODEL, DATA, THREAT, "--attacks", "pgd", "--access", "decision"),
        "gradient",
    ),
    "images of another shape": (ask("zoo:digits-natural", "colour.npz"), "could not take images"),
    "images of another shape to attack": (attacking(images="colour.npz"), "could not take images"),
    "a data folder that is not there": (ask(MODEL, "no/such/folder"), "no/such/folder"),
    "a file that is not there": (ask("nowhere.py:make"), "nowhere.py"),
    "a factory that is not there": (ask("mine.py:maek"), "'make'"),
    "weights that are not there": (ask("digits_cnn:nowhere.safetensors"), "nowhere.safetensors"),
    "a resize that is none": (ask(MODEL, "pictures", THREAT, "--resize", "big"), "224"),
    "no device": (ask(MODEL, DATA, THREAT, "--device", "cuda:99"), "--device"),
    "labels that do not fit": (ask(MODEL, "labels.npz"), "12"),
    "labels that do not fit to attack": (attacking(images="labels.npz"), "12"),
    "a corrupt archive": (ask(MODEL, "corrupt.npz"), "corrupt.npz"),
    "a corrupt archive to attack": (attacking(images="corrupt.npz"), "corrupt.npz"),
    "a corrupt image": (ask(MODEL, "pictures"), "bad.png"),
    "a corrupt image to attack": (attacking(images="pictures"), "bad.png"),
    "corrupt weights": (ask("digits_cnn:corrupt.safetensors"), "corrupt.safetensors"),
    "a checkpoint that would run code": (ask("digits_cnn:evil.pt"), "safetensors"),
    "labels for images that have some": (attacking("--labels", "3"), "--labels"),
    "too few labels": (attacking("--labels", "3,4", images="flat"), "2 labels"),
    "labels of nowhere": (attacking("--labels", "nowhere.txt", images="flat"), "nowhere.txt"),
    "a target that is the label": (
        attacking("--labels", "3,3,3", "--target", "3", images="flat"),
        "--target 3",
    ),
    "a target the model does not know": (
        attacking("--labels", "3,3,3", "--target", "12", images="flat"),
        "12",
    ),
    "nothing to write": (attacking("--no-png"), "--exact"),
    "images of no folder": (attacking(images="nowhere"), "nowhere"),
    "weights of another kind": (
        ["train", "natural", "--data", DATA, "--arch", "digits_mlp", "--out", "mine.pt"],
        ".safetensors",
    ),
    "no run": (["status", "pictures"], "run folder"),
    "no run to report": (["report", "nowhere"], "does not exist"),
}


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """A folder with everything that can be wrong with a file."""
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "colour.npz", x=np.stack([grey] * 3, 1), y=[0, 1, 2])
    np.savez(tmp_path / "labels.npz", x=grey, y=[0, 1, 12])
    (tmp_path / "corrupt.npz").write_bytes(b"PK\x03\x04 and then nothing of the kind")
    (tmp_path / "corrupt.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{broken")
    torch.save({"weights": _Evil(str(tmp_path / "burnt"))}, tmp_path / "evil.pt")
    np.savez(tmp_path / "open.npz", x=np.zeros((3, 3, 8, 3), np.float32), y=[0, 1, 2])
    np.savez(tmp_path / "objects.npz", x=np.array([{}, 1], dtype=object))
    np.savez(tmp_path / "scalar.npz", x=np.float32(3))
    np.savez(tmp_path / "checksum.npz", x=grey)
    flipped = bytearray((tmp_path / "checksum.npz").read_bytes())
    flipped[flipped.find(b"NUMPY") + 140] ^= 255
    (tmp_path / "checksum.npz").write_bytes(flipped)
    (tmp_path / "mine.py").write_text("def make():\n    return None\n")
    for folder in ("pictures/a", "pictures/b", "flat", "with_pipe/a", "with_pipe/b"):
        (tmp_path / folder).mkdir(parents=True)
    os.mkfifo(tmp_path / "with_pipe/b/q.png")
    for place in ("pictures/a/1", "pictures/b/1", "flat/1", "flat/2", "flat/3", "with_pipe/a/1"):
        Image.fromarray(grey[0]).save(tmp_path / f"{place}.png")
    (tmp_path / "pictures/b/bad.png").write_bytes(b"no image")
    return tmp_path


class _Evil:
    """What an attacker would put into a pickle: it writes a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_refused_before_anything_is_written(
    besiege: Besiege, messy: Path, what: str
) -> None:
    before = sorted(messy.rglob("*"))
    tokens, hint = WRONG[what]
    refused(besiege(*tokens), messy, hint)
    assert [p for p in sorted(messy.rglob("*")) if "__pycache__" not in p.parts] == before


def test_what_is_in_the_way_is_never_overwritten(besiege: Besiege, messy: Path) -> None:
    (messy / "taken").mkdir()
    (messy / "taken/notes.txt").write_text("mine")
    for out, hint in (("taken", "not empty"), ("flat/new", "elsewhere"), ("flat", "elsewhere")):
        tokens = attacking(images="flat")
        tokens[tokens.index("--out") + 1] = out
        refused(besiege(*tokens), messy, hint)
    tokens[tokens.index("--out") + 1] = "mine.py"
    refused(besiege(*tokens), messy, "is a file")
    assert (messy / "taken/notes.txt").read_text() == "mine"
    assert not (messy / "flat/new").exists()


def test_a_run_folder_that_cannot_be_made(besiege: Besiege, messy: Path) -> None:
    said = besiege(*ask(), "--out", "mine.py")
    refused(said, messy, "mine.py", "not a folder")
