"""Digests: the same for the same network everywhere, another one for another."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.children import from_a_child
from torch import nn

import besiege
from besiege.models import Classifier, load
from besiege.models.small import digits_mlp

FILE = """
import logging
from dataclasses import dataclass
from functools import wraps

import torch
from torch import nn

from beside import nudge

SCALE = 2.0
TABLE = {"act": torch.tanh}
CALLS = 0
log = logging.getLogger(__name__)


def shift(x):
    log.debug("shifted")
    return x + 1


class Base(nn.Module):
    power = 1

    def last(self, x):
        return x ** self.power


@dataclass(frozen=True)
class Settings:
    depth: int = 3


class Net(Base):
    def __init__(self, hidden=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)
        self._hidden = hidden
        self.settings = Settings()
        self.act = lambda x: x * hidden

    @property
    def gain(self):
        return SCALE

    @torch.no_grad()
    def peek(self, x):
        return x

    def forward(self, x):
        global CALLS
        CALLS += 1
        x = nudge(shift(TABLE["act"](x.flatten(1))))
        return self.last(self.linear(self.act(x)) * self.gain)


def make(hidden=0.5):
    return Net(hidden)
"""
NEIGHBOUR = "def nudge(x):\n    return x\n"


def written(folder: Path, file: str = FILE, neighbour: str = NEIGHBOUR) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "beside.py").write_text(neighbour)
    path = folder / "nets.py"
    path.write_text(file)
    return path


def test_another_process_gives_the_same_digest(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    save_file(digits_mlp().state_dict(), weights)
    sources = [
        "zoo:digits-natural",
        f"digits_mlp(mean=0.5, std=0.5):{weights}",
        f"{written(tmp_path / 'a')}:make",
        "zoo:digits-natural+bits(depth=3)+resize_pad",
    ]
    if os.environ.get("BESIEGE_DATA"):
        sources.append("public:cifar10_resnet2b_adv")
    code = (
        "import sys; from besiege.defenses import load\n"
        "for text in sys.argv[1:]: print(load(text).digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *sources],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest(text) for text in sources]
    assert len(set(done.stdout.split())) == len(sources)


def digest(text: str) -> str:
    """In this process; the neighbour is imported anew, as another process would."""
    sys.modules.pop("beside", None)
    victim = besiege.defenses.load(text)
    assert isinstance(victim, (Classifier, besiege.defenses.Defended))
    return victim.digest()


def test_touching_or_moving_a_file_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    first = digest(f"{path}:make")
    os.utime(path, ns=(1, 1))
    assert digest(f"{path}:make") == first
    moved = written(tmp_path / "b")
    assert digest(f"{moved}:make") == first
    (tmp_path / "b" / "nets.py").rename(tmp_path / "b" / "other.py")
    assert digest(f"{tmp_path / 'b' / 'other.py'}:make") == first
    assert digest(f"{path}:make(hidden=0.5)") == first
    assert digest(f"{path}:make(hidden=0.25)") != first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("self.linear(self.act(x))", "self.linear(x)"),
        ("return x ** self.power", "return -x ** self.power"),
        ("power = 1", "power = 2"),
        ("return x + 1", "return x + 2"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("depth: int = 3", "depth: int = 4"),
        ("torch.tanh", "torch.relu"),
        ("lambda x: x * hidden", "lambda x: x + hidden"),
        ("self._hidden = hidden", "self._hidden = 2 * hidden"),
        ("torch.manual_seed(0)", "torch.manual_seed(1)"),
    ],
)
def test_any_change_that_decides_answers_changes_the_digest(
    tmp_path: Path, before: str, after: str
) -> None:
    first = digest(f"{written(tmp_path / 'a')}:make")
    assert before in FILE
    path = written(tmp_path / "b", FILE.replace(before, after))
    assert digest(f"{path}:make") != first


def test_what_a_neighbour_does_counts_too(tmp_path: Path) -> None:
    first = digest(f"{written(tmp_path / 'a')}:make")
    path = written(tmp_path / "b", neighbour=NEIGHBOUR.replace("return x", "return -x"))
    assert digest(f"{path}:make") != first


def test_what_does_not_decide_answers_does_not_count(tmp_path: Path) -> None:
    first = digest(f"{written(tmp_path / 'a')}:make")
    more = FILE + "\n\ndef unrelated():\n    return 3\n"
    victim = load(f"{written(tmp_path / 'b', more)}:make")
    assert victim.digest() == first
    # Neither does a count of calls that the network keeps for itself.
    victim(torch.rand(2, 1, 8, 8))
    assert victim.digest() == first


def test_an_edited_file_does_not_change_a_model_made_before(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    victim = load(f"{path}:make")
    path.write_text(FILE.replace("return x ** self.power", "return -x"))
    os.utime(path, ns=(5, 5))
    assert victim.digest() == digest(f"{written(tmp_path / 'b')}:make")
    assert victim.digest() != digest(f"{path}:make")


class Wrapper(nn.Module):
    """What it holds is a plain attribute, out of torch's sight."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held


def scaled(scale: float) -> object:
    return lambda x: x * scale


def test_closures_are_told_apart_by_what_they_enclose() -> None:
    digests = [Classifier(Wrapper(scaled(s))).digest() for s in (1.0, 2.0, 1.0)]
    assert digests[0] == digests[2] != digests[1]


def test_containers_that_contain_themselves_are_no_trouble() -> None:
    loop: list[object] = [1]
    loop.append(loop)
    assert Classifier(Wrapper(loop)).digest() != Classifier(Wrapper([1])).digest()
    assert Classifier(Wrapper({2, 1})).digest() == Classifier(Wrapper({1, 2})).digest()


def test_arrays_are_told_apart_by_their_content() -> None:
    digests = [Classifier(Wrapper(np.full(3, v))).digest() for v in (1.0, 2.0, 1.0)]
    assert digests[0] == digests[2] != digests[1]
    loose = [Classifier(Wrapper(np.array([object()]))) for _ in range(2)]
    assert loose[0].digest() != loose[1].digest()


def test_hooks_decide_answers() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    before = Classifier(module).digest()
    digests = {before}
    for hook in (lambda m, x, y: -y, lambda m, x, y: 2 * y):
        handle = module.register_forward_hook(hook)
        digests.add(Classifier(module).digest())
        handle.remove()
    assert len(digests) == 3
    assert Classifier(module).digest() == before


def test_traced_networks_are_told_apart_by_their_code() -> None:
    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) + 1

    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) + 2

    one, two = (Classifier(torch.fx.symbolic_trace(m)) for m in (One(), Two()))
    assert one.digest() != two.digest()
    assert one.digest() == Classifier(torch.fx.symbolic_trace(One())).digest()


def test_a_method_is_known_by_its_object_and_of_an_unknown_one_by_itself_alone() -> None:
    class Holder:
        def __init__(self, held: object) -> None:
            self.held = held

        def act(self, x: torch.Tensor) -> torch.Tensor:
            return x

    kept = [Holder(held) for held in (1.0, 1.0, 2.0)]
    one, same, other = (Classifier(Wrapper(holder.act)).digest() for holder in kept)
    assert one == same != other
    first = Wrapper(Holder(Lock()).act)
    assert Classifier(first).digest() == Classifier(first).digest()
    assert Classifier(first).digest() != Classifier(Wrapper(Holder(Lock()).act)).digest()


def test_what_a_neighbour_computes_is_part_of_the_network(tmp_path: Path) -> None:
    net = "import torch\nimport aid\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
    net += "        return aid.squeeze(x).flatten(1)[:, :10]\ndef make():\n    return Net()\n"
    folder = tmp_path / "nets"
    folder.mkdir()
    (folder / "net.py").write_text(net)
    digests = []
    for aid, deep in (("x", "1"), ("x * 2", "1"), ("x", "2")):
        (folder / "aid.py").write_text(
            f"import deeper\ndef squeeze(x):\n    return deeper.more({aid})\n"
        )
        (folder / "deeper.py").write_text(f"def more(x):\n    return x * {deep}\n")
        model = f"{folder / 'net.py'}:make"
        digests.append(from_a_child(partial(digest, model), ["aid", "deeper"]))
    assert len(set(digests)) == 3


class Cfg:
    def __init__(self, depth: int) -> None:
        self.depth = depth


class Held(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


def test_plain_objects_count_by_what_they_hold() -> None:
    def digest_of(value: object) -> str:
        return Classifier(Held(value)).digest()

    assert digest_of(Cfg(1)) == digest_of(Cfg(1)) != digest_of(Cfg(2))
    assert digest_of(SimpleNamespace(a=1)) == digest_of(SimpleNamespace(a=1))
    assert digest_of(SimpleNamespace(a=1)) != digest_of(SimpleNamespace(a=2))
    assert digest_of(object()) == digest_of(object())
    loop = Cfg(1)
    loop.me = loop  # type: ignore[attr-defined]  # it contains itself
    assert digest_of(loop) == digest_of(loop)
    nets = [nn.Linear(2, 2) for _ in range(2)]
    assert digest_of([nets[0]]) != digest_of([nets[1]])


def test_a_hook_may_know_the_module_it_hangs_on() -> None:
    class Listener:
        def __init__(self, module: nn.Module, size: float) -> None:
            self.module, self.size = module, size
            module.register_forward_hook(self.hear)

        def hear(self, module: nn.Module, given: object, answer: torch.Tensor) -> torch.Tensor:
            return answer * self.size

    def made(size: float) -> Classifier:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        Listener(net, size)
        return Classifier(net)

    assert made(1.0).digest() == made(1.0).digest() != made(2.0).digest()
