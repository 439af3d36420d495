"""Digests see the code that runs, wherever it hides; where they cannot, they say so."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from threading import Lock
from types import MethodType
from typing import Any

import pytest
import torch
from tests.children import from_a_child
from torch import Tensor, nn
from torch.nn.utils import parametrize

from besiege.core.identity import noting
from besiege.models import Classifier, load

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit:DeprecationWarning", "ignore:Sparse CSR:UserWarning"
)


def digest(module: nn.Module) -> str:
    return Classifier(module).digest()


def lasting(module: nn.Module) -> bool:
    with noting() as names:
        digest(module)
    return not names


class Held(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


# TorchScript.


def tripled(x: Tensor) -> Tensor:
    return x * 3


class Scripted(nn.Module):
    def __init__(self, gain: float = 2.0, shift: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        nn.init.constant_(self.linear.weight, 0.5)
        nn.init.constant_(self.linear.bias, 0.5)
        self.gain, self.shift = gain, torch.full((3,), shift)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = tripled(self.linear(x.flatten(1))) * self.gain + self.shift
        return y


class Otherwise(Scripted):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x.flatten(1)) * self.gain - self.shift
        return y


class Deep(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y


def as_script(module: nn.Module) -> nn.Module:
    made: nn.Module = torch.jit.script(module)
    return made


def as_trace(module: nn.Module) -> nn.Module:
    made: nn.Module = torch.jit.trace(module, torch.ones(2, 1, 2, 2))  # type: ignore[no-untyped-call]  # torch
    return made


def as_loaded(module: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    buffer.seek(0)
    made: nn.Module = torch.jit.load(buffer)  # type: ignore[no-untyped-call]  # torch
    return made


@pytest.mark.parametrize("make", [as_script, as_trace, as_loaded])
def test_torchscript_is_its_code_its_constants_and_its_attributes(
    make: Callable[[nn.Module], nn.Module],
) -> None:
    kinds = (
        Scripted(),
        Otherwise(),
        Scripted(gain=3.0),
        Scripted(shift=2.0),
        Deep(Scripted()),
        Deep(Otherwise()),
    )
    made = [make(kind) for kind in kinds]
    digests = [digest(module) for module in made]
    assert len(set(digests)) == len(made)
    assert digest(make(Scripted())) == digests[0]
    made[0](torch.ones(1, 1, 2, 2))
    with Classifier(made[0]).held():  # neither the mode nor a first call is part of it
        assert digest(made[0]) == digests[0]
    assert lasting(made[0])
    assert len({digest(Held(module)) for module in made}) == len(made)


def test_a_loaded_file_has_one_digest_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from besiege.models import Classifier\n"
        "for path in sys.argv[1:]: print(Classifier(torch.jit.load(path)).digest())"
    )
    said, paths = [], []
    for name, module in (("a", Scripted()), ("b", Scripted()), ("c", Otherwise())):
        path = tmp_path / f"{name}.pt"
        torch.jit.save(torch.jit.script(module), path)
        said.append(digest(torch.jit.load(path)))  # type: ignore[no-untyped-call]  # torch
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == said
    assert said[0] == said[1] != said[2]


# Imports.

IMPORTING = """
import torch
from tests.children import from_a_child


class Net(torch.nn.Module):
    def forward(self, x):
        {line}
        return {call}(x).flatten(1)[:, :10]


def make():
    return Net()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("late_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("import late_aid", "late_aid.squeeze"),
        ("from late_aid import squeeze", "squeeze"),
        ("import late_pack.part", "late_pack.part.squeeze"),
        ("from late_pack import part", "part.squeeze"),
        ("from late_pack.part import squeeze as s", "s"),
    ],
)
def test_what_forward_imports_is_part_of_the_network(folder: Path, line: str, call: str) -> None:
    (folder / "net.py").write_text(IMPORTING.format(line=line, call=call))
    (folder / "late_pack").mkdir()
    (folder / "late_pack" / "__init__.py").write_text("")
    digests = []
    for body, deep in (("x", "1"), ("x * 2", "1"), ("x", "2"), ("x", "1")):
        text = "def squeeze(x):\n    from late_deep import MORE\n"
        text += f"    return MORE * ({body})\n"
        for file in ("late_aid.py", "late_pack/part.py"):
            (folder / file).write_text(text)
        (folder / "late_deep.py").write_text(f"MORE = {deep}\n")
        victim = load(f"{folder / 'net.py'}:make")
        digests.append(victim.digest())
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3
    victim(torch.rand(2, 1, 8, 8))  # now it is imported
    assert victim.digest() == digests[0]


def test_what_a_neighbour_takes_by_value_is_part_of_it(folder: Path) -> None:
    (folder / "net.py").write_text(
        "import torch\nfrom late_aid import squeeze\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        return squeeze(x)\ndef make():\n    return Net()\n"
    )
    (folder / "late_aid.py").write_text(
        "from late_deep import MORE\ndef squeeze(x):\n    return x * MORE\n"
    )
    digests = []
    for deep in ("1", "2"):
        for name in ("late_aid", "late_deep"):
            sys.modules.pop(name, None)
        (folder / "late_deep.py").write_text(f"MORE = {deep}\n")
        os.utime(folder / "net.py", ns=(int(deep), int(deep)))
        digests.append(load(f"{folder / 'net.py'}:make").digest())
    assert digests[0] != digests[1]


# Values that are more than their content.


class Named(list[int]):
    gain: float


class Scaled(dict[str, int]):
    def __init__(self, scale: int) -> None:
        super().__init__(a=1)
        self.scale = scale


class Sloped(list[int]):
    __slots__ = ("slope",)


class Loud(float):
    gain: float


class Doubling(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 2 * super().__getitem__(key)


class Act(Enum):
    ONE = 1

    def apply(self, x: Tensor) -> Tensor:
        return x


def holding(value: Any, **attributes: object) -> Any:
    for name, held in attributes.items():
        setattr(value, name, held)
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (holding(Named([1]), gain=1.0), holding(Named([1]), gain=2.0)),
        (Scaled(1), Scaled(2)),
        (holding(Sloped([1]), slope=1), holding(Sloped([1]), slope=2)),
        (holding(Loud(1.0), gain=1.0), holding(Loud(1.0), gain=2.0)),
        (Doubling(a=1), {"a": 1}),
        (defaultdict(lambda: 1), defaultdict(lambda: 2)),
        (defaultdict(int), defaultdict(list)),
    ],
)
def test_subclasses_count_with_what_they_add(one: object, other: object) -> None:
    assert digest(Held(one)) != digest(Held(other))
    assert digest(Held(one)) == digest(Held(one))
    assert lasting(Held(one))


def test_plain_containers_count_by_their_content_alone() -> None:
    pair = namedtuple("pair", "a b")
    assert digest(Held(Named([1]))) == digest(Held([1]))
    assert digest(Held(pair(1, 2))) == digest(Held((1, 2)))
    assert digest(Held(defaultdict(None, a=1))) == digest(Held({"a": 1}))
    assert lasting(Held(pair))
    assert "apply" in Act.__dict__
    assert digest(Held(Act.ONE)) != digest(Held(repr(Act.ONE)))


# Hooks, patches and decorators.


def net() -> nn.Sequential:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    nn.init.constant_(module.get_parameter("1.weight"), 0.5)
    nn.init.constant_(module.get_parameter("1.bias"), 0.5)
    return module


def doubled(*_: object) -> None:
    """Does nothing; what it stands for decides."""


def tripled_hook(*_: object, **__: object) -> None:
    """Another one."""


def test_hooks_of_every_kind_count() -> None:
    before = digest(net())
    digests = {before}
    for hook in (doubled, tripled_hook):
        for name in (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
        ):
            module = net()
            getattr(module[1], name)(hook)
            digests.add(digest(module))
    module = net()
    module[1].register_forward_hook(tripled_hook, with_kwargs=True)
    digests.add(digest(module))
    assert len(digests) == 10


def test_hooks_on_all_modules_count() -> None:
    before, register = digest(net()), nn.modules.module
    for name in (
        "register_module_forward_hook",
        "register_module_forward_pre_hook",
        "register_module_full_backward_hook",
        "register_module_full_backward_pre_hook",
    ):
        handle = getattr(register, name)(doubled)
        try:
            assert digest(net()) != before, name
        finally:
            handle.remove()
    assert digest(net()) == before


class Mine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Third(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 3


def test_parametrizations_hide_neither_themselves_nor_the_class_below() -> None:
    digests = set()
    for kind in (nn.Linear, Mine):
        for part in (None, Half(), Third()):
            module = kind(4, 3)
            nn.init.constant_(module.weight, 0.5)
            nn.init.constant_(module.bias, 0.5)
            if part is not None:
                parametrize.register_parametrization(module, "weight", part)
            digests.add(digest(module))
            assert lasting(module)
    assert len(digests) == 6


def test_a_forward_put_in_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def negative(self: nn.Module, x: Tensor) -> Tensor:
        return -x

    patched = net()
    patched.forward = MethodType(negative, patched)  # type: ignore[method-assign]
    borrowed, other = net(), net()
    borrowed.forward = other.forward  # type: ignore[method-assign]
    digests = {digest(net()), digest(patched), digest(borrowed)}
    nn.init.constant_(other.get_parameter("1.weight"), 0.25)
    digests.add(digest(borrowed))
    monkeypatch.setattr(nn.Flatten, "forward", negative)
    digests.add(digest(net()))
    assert len(digests) == 5


def test_a_part_that_listens_to_itself_changes_nothing_else() -> None:
    """Parts are covered where they stand, whoever holds one of their methods."""

    class Listening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            nn.init.constant_(self.linear.weight, 0.5)
            nn.init.constant_(self.linear.bias, 0.5)
            self.linear.register_forward_hook(self.hear)

        def hear(self, module: nn.Module, given: object, answer: Tensor) -> Tensor:
            return answer

    made = [digest(nn.Sequential(Listening())) for _ in range(2)]
    assert made[0] == made[1]


def times(gain: float) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        @wraps(function)
        def inner(self: nn.Module, x: Tensor) -> Any:
            return function(self, x) * gain

        return inner

    return decorate


def test_what_a_decorator_does_counts() -> None:
    def made(gain: float) -> type[nn.Module]:
        class Net(nn.Module):
            @times(gain)
            def forward(self, x: Tensor) -> Tensor:
                return x

        return Net

    assert digest(made(1.0)()) == digest(made(1.0)()) != digest(made(2.0)())
    assert lasting(made(1.0)())


# Tensors of every kind, and what cannot be read.


@pytest.mark.parametrize("layout", ["coo", "csr", "mkldnn", "complex", "conjugated"])
def test_tensors_of_other_kinds_count_by_their_content(layout: str) -> None:
    def tensor(value: float) -> Tensor:
        plain = torch.tensor([[0.0, value], [1.0, 0.0]])
        match layout:
            case "coo":
                return plain.to_sparse()
            case "csr":
                return plain.to_sparse_csr()
            case "mkldnn":
                return plain.to_mkldnn()
            case "complex":
                return plain.to(torch.complex64) * 1j
            case _:
                return (plain.to(torch.complex64) * 1j).conj()

    assert digest(Held(tensor(1.0))) == digest(Held(tensor(1.0))) != digest(Held(tensor(2.0)))
    for value in (1.0, 2.0):
        module = Held(None)
        module.register_buffer("held", tensor(value))
        assert digest(module) == digest(module)
        assert lasting(module)


def test_what_could_not_be_read_is_named() -> None:
    with noting() as names:
        digest(Held(Lock()))
        assert names == ["_thread.lock"]
    typed: dict[str, Any] = {"nn": nn}
    exec("class Typed(nn.Module):\n    def forward(self, x): return x", typed)
    with noting() as names:
        digest(typed["Typed"]())
    assert "Typed" in names[0]


# Methods that are generated and then wrapped, as configurations of transformers have them.


def checked(kind: Any) -> Any:
    """A class decorator that replaces the generated ``__init__`` of a dataclass."""

    @wraps(kind.__init__)
    def begin(self: Any, depth: int) -> None:
        self.depth = int(depth)

    kind.__init__ = begin
    return kind


@checked
@dataclass
class Settings:
    depth: int = 3


class Plain(Settings):
    """Not a dataclass of its own: its attributes are read."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)


def test_a_wrapper_of_a_generated_method_is_read() -> None:
    one, same, other = (Held(Plain(depth)) for depth in (3, 3, 4))
    assert lasting(one) and digest(one) == digest(same) != digest(other)


def test_imports_of_long_code_are_found(tmp_path: Path) -> None:
    """Beyond 256 names an import has an instruction more."""
    names = "\n".join(f"NAME_{k} = 'constant {k}'" for k in range(300))
    late = "\n\ndef change(x):\n    from third import shift\n    return x + shift\n"
    (tmp_path / "long_file.py").write_text(f"{names}\nfrom third import shift{late}")
    net = "import long_file\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
    net += "    def forward(self, x):\n        return long_file.change(x.flatten(1))\n"
    (tmp_path / "net.py").write_text(net)

    def digest_now() -> str:
        sys.path.insert(0, str(tmp_path))
        return Classifier(importlib.import_module("net").Net()).digest()

    seen = []
    for shift in (1, 2, 2):
        (tmp_path / "third.py").write_text(f"shift = {shift}\n")
        seen.append(from_a_child(digest_now, forget=("net", "long_file", "third")))
    assert seen[0] != seen[1] == seen[2]
