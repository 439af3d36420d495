"""Weights from files: what fits is loaded, what would run code is not."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from besiege.core.errors import DataError
from besiege.models import load
from besiege.models.residual import resnet20
from besiege.models.small import digits_mlp

X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> nn.Sequential:
    return digits_mlp()


def renamed(state: dict[str, Tensor], before: str) -> dict[str, Tensor]:
    return {before + name: tensor for name, tensor in state.items()}


WRAPPED: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "bare": lambda s: s,
    "ordered": OrderedDict,
    "state_dict": lambda s: {"epoch": 3, "state_dict": s, "best": torch.tensor(0.9)},
    "model, not the optimiser": lambda s: {"optimizer": {"state": {}, "lr": 0.1}, "model": s},
    "the model, not its average": lambda s: {"ema": renamed(s, "ema."), "net": s},
    "another name": lambda s: {"epoch": 3, "my_net": s},
    "data parallel": lambda s: {"state_dict": renamed(s, "module.")},
    "compiled and parallel": lambda s: renamed(s, "module._orig_mod."),
    "a script's own wrapper": lambda s: renamed(s, "model."),
    "parameters": lambda s: {k: nn.Parameter(v) for k, v in s.items()},
    "half precision": lambda s: {k: v.half().float().half() for k, v in s.items()},
}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".th", ".ckpt", ".bin", ".pth.tar"])
@pytest.mark.parametrize("modern", [True, False], ids=["zip", "legacy"])
def test_a_pickled_checkpoint_of_any_name_and_age_is_read(
    tmp_path: Path, net: nn.Sequential, suffix: str, modern: bool
) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save(net.state_dict(), path, _use_new_zipfile_serialization=modern)
    assert torch.equal(load(f"digits_mlp:{path}")(X), net(X))


@pytest.mark.parametrize("how", WRAPPED)
def test_weights_are_found_where_training_scripts_put_them(
    tmp_path: Path, net: nn.Sequential, how: str
) -> None:
    path = tmp_path / "w.pt"
    torch.save(WRAPPED[how](net.state_dict()), path)
    victim = load(f"digits_mlp:{path}")
    if how == "half precision":
        net = net.half().float()
    assert torch.equal(victim(X), net(X))
    assert {p.dtype for p in victim.module.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in victim.module.parameters())


def test_prefixes_are_stripped_from_safetensors_too(tmp_path: Path, net: nn.Sequential) -> None:
    path = tmp_path / "w.safetensors"
    save_file(renamed(net.state_dict(), "module."), path)
    assert torch.equal(load(f"digits_mlp:{path}")(X), net(X))


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def zipped(trap: object, path: Path) -> None:
    torch.save({"state_dict": {}, "trap": trap}, path)


def legacy(trap: object, path: Path) -> None:
    torch.save({"trap": trap}, path, _use_new_zipfile_serialization=False)


def bare(trap: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(trap))


def archived(trap: object, path: Path) -> None:
    """The oldest layout: a real tar archive of pickles."""
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            content = pickle.dumps(trap)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("write", [zipped, legacy, bare, archived])
@pytest.mark.parametrize("suffix", [".pt", ".bin", ".tar"])
def test_a_checkpoint_that_would_run_code_is_refused_unopened(
    tmp_path: Path, write: Callable[[object, Path], None], suffix: str
) -> None:
    path, mark = tmp_path / f"w{suffix}", tmp_path / "executed"
    write(Trap(mark), path)
    with pytest.raises(DataError, match=r"would run code|tar archive") as caught:
        load(f"digits_mlp:{path}")
    assert not mark.exists()
    if write in (zipped, legacy):
        assert "mkdir" in str(caught.value)
    # The trap is real: opened freely, each of them springs.
    if write is not archived:
        opened = torch.load if write is not bare else lambda p, **_: pickle.loads(p.read_bytes())
        opened(path, weights_only=False)
        assert mark.exists()


def test_the_safe_way_that_the_refusal_names_works(
    tmp_path: Path, net: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.pt"
    torch.save(net, path)  # a whole module, as beginners do
    with pytest.raises(DataError) as caught:
        load(f"digits_mlp:{path}")
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert len(lines) == 2
    monkeypatch.chdir(tmp_path)
    exec("\n".join(line.strip() for line in lines), {})
    assert torch.equal(load("digits_mlp:w.safetensors")(X), net(X))


def test_torchscript_is_refused(tmp_path: Path, net: nn.Sequential) -> None:
    path = tmp_path / "w.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to retire it
        torch.jit.save(torch.jit.trace(net, X), path)  # type: ignore[no-untyped-call]  # torch's own
    with pytest.raises(DataError, match="TorchScript program: opening it would run code"):
        load(f"digits_mlp:{path}")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense", b"\x80\x02}q"])
def test_a_damaged_checkpoint_is_said_to_be_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"w\.pt is damaged"):
        load(f"digits_mlp:{path}")


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"epoch": 3, "lr": 0.1}, "a dictionary of 'epoch', 'lr'"),
        ([torch.zeros(2)], "holds a list"),
        (torch.zeros(2), "holds a Tensor"),
        ({}, "holds a dict"),
    ],
)
def test_a_checkpoint_without_weights_says_what_it_holds(
    tmp_path: Path, held: object, says: str
) -> None:
    path = tmp_path / "w.pt"
    torch.save(held, path)
    with pytest.raises(DataError, match=says):
        load(f"digits_mlp:{path}")


def test_what_does_not_fit_is_said_briefly(tmp_path: Path, net: nn.Sequential) -> None:
    path = tmp_path / "w.safetensors"
    save_file(net.state_dict(), path)
    with pytest.raises(DataError, match="does not fit resnet20") as caught:
        load(f"resnet20:{path}")
    said = str(caught.value)
    assert "it lacks conv1.weight, bn1.weight, bn1.bias and 94 more" in said
    assert "it also has 1.bias, 1.weight, 3.bias and 3 more" in said
    assert len(said) < 300
    state = net.state_dict()
    state["5.bias"] = torch.zeros(7)
    save_file(state, path)
    with pytest.raises(DataError, match=r"5\.bias \[7\] where \[10\] is expected"):
        load(f"digits_mlp:{path}")
    state["5.bias"] = torch.zeros(10, dtype=torch.int8)
    save_file(state, path)
    with pytest.raises(DataError, match=r"no floating-point numbers in 5\.bias"):
        load(f"digits_mlp:{path}")


def test_old_files_that_do_not_count_batches_are_read(tmp_path: Path) -> None:
    net = resnet20()
    path = tmp_path / "w.safetensors"
    save_file({k: v for k, v in net.state_dict().items() if "num_batches" not in k}, path)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load(f"resnet20:{path}")(x), net.eval()(x))


def test_reading_changes_nothing_on_disk(tmp_path: Path, net: nn.Sequential) -> None:
    path = tmp_path / "w.safetensors"
    save_file(net.state_dict(), path)
    before = path.read_bytes()
    load(f"digits_mlp:{path}")
    assert path.read_bytes() == before and set(load_file(path)) == set(net.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_weights_that_are_no_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(DataError, match="a named pipe"):
        load(f"digits_mlp:{tmp_path}/pipe.safetensors")
