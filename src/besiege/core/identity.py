"""What identifies a module or a value: source, attributes, parameters and buffers.

Two modules with one fingerprint answer alike, in this process and in any other. What cannot be read
(a class typed into a console, an attribute that is an object of its own) is therefore equal to
itself alone, for as long as this process lives. Module and file names are left out where the
source is read: a file that is moved or touched still holds the same network.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

# Stands in for code that cannot be read: what one process calls by a name, another may not.
_THIS_PROCESS = os.urandom(16).hex()

# Read once: a file that is edited later does not change what was made of it before.
_sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_files: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

# Modules whose fingerprint is being taken: what hangs on one may lead back to it.
_open = threading.local()

# What every module has; the tensors and parts among them are covered elsewhere.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HEAP = 1 << 9  # set for classes that were made by a class statement
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# How a thing prints and what its annotations say decides no answer.
_IDLE = ("__repr__", "__str__", "__annotate__", "__annotate_func__")


def fingerprint(module: nn.Module, *about: object) -> str:
    """SHA-256, as hexadecimal text, of all that decides what a module answers.

    Parameters
    ----------
    module : nn.Module
        Its classes go in with their source and what that uses of its own file, its parts with
        their attributes, its parameters and buffers with every bit, wherever they are.
    *about
        What else distinguishes it, such as a normalisation; printable.
    """
    outer: frozenset[int] = getattr(_open, "modules", frozenset())
    _open.modules = outer | {id(module)}
    try:
        return _fingerprint(module, about)
    finally:
        _open.modules = outer


def _fingerprint(module: nn.Module, about: tuple[object, ...]) -> str:
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        for part in parts:
            content = part if isinstance(part, memoryview) else memoryview(str(part).encode())
            digest.update(content.nbytes.to_bytes(8, "big"))
            digest.update(content)

    add("classifier", *about)
    codes: dict[type, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        kind = type(part)
        if kind not in codes:
            codes[kind] = code(kind)
        add(path, codes[kind])
        for key, value in _attributes(part):
            add(key, plain(value))
    for path, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        add(path, tensor.dtype, tuple(tensor.shape), _content(tensor))
    return digest.hexdigest()


def remember(module: nn.Module) -> None:
    """Read the source of a module's classes now, before the files can change."""
    for kind in {type(part) for part in module.modules()}:
        code(kind)


def code(thing: Any, seen: set[Any] | None = None) -> str:
    """Source of a class or function, of its bases, and of what it uses of its own module.

    torch's own and Python's things go by name alone. Of installed modules what is used directly is
    read, of other files of the user's all that is reached.
    """
    seen = set() if seen is None else seen
    parts: list[str] = []
    pending = [thing]
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            parts.append(one.__qualname__)
            continue
        seen.add(id(one))
        parts.append(_named_source(one))
        if not _is_foreign(one) and one.__module__ != thing.__module__:
            parts.append(_own_file(one, seen))
            continue
        if _is_foreign(one):
            continue
        for name, used in _uses(one):
            if inspect.isfunction(used) or inspect.isclass(used):
                pending.append(used)
            elif isinstance(used, ModuleType):
                parts.append(f"{name}={_own_file(used, seen)}")
            else:
                parts.append(f"{name}={plain(used, seen)}")
    return "\n".join(parts)


def plain(value: object, seen: set[Any] | None = None) -> str:
    """Text of a value that may decide what a module computes."""
    seen = set() if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, range, slice)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.device, Enum)):
        return repr(value)
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}{hashlib.sha256(_content(value)).hexdigest()}"
    array: Any = value
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and not array.dtype.hasobject:
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        return _container(value, seen)
    if isinstance(value, partial):
        return "partial" + plain((value.func, value.args, value.keywords), seen)
    bound = getattr(value, "__self__", None)
    # A method of something else than a module or a class: its object decides as well.
    whole = bound is None or isinstance(bound, (nn.Module, type, ModuleType))
    if inspect.ismethod(value) and not whole:
        return f"{code(value.__func__, seen)} of {plain(bound, seen)}"
    if inspect.isclass(value) or (inspect.isroutine(value) and whole):
        return code(value, seen)
    if is_dataclass(value) and not isinstance(value, type):
        held = {f.name: getattr(value, f.name) for f in fields(value)}
        return code(type(value), seen) + plain(held, seen)
    if isinstance(value, nn.Module):
        if id(value) in getattr(_open, "modules", ()):
            return "again"
        return _once(value, seen, lambda: fingerprint(value))
    kind = type(value)
    if kind is object:
        return "object"
    # A plain object is what its class and its attributes are; one written in C hides what it is.
    if hasattr(value, "__dict__") and _is_python(kind):
        held = vars(value)
        return _once(value, seen, lambda: code(kind, seen) + plain(held, seen))
    # Equal to itself alone.
    return f"{type(value).__module__}.{type(value).__qualname__} {_THIS_PROCESS} {id(value)}"


def lasts(text: str) -> bool:
    """Whether a text of `plain` or `code` means the same in another process."""
    return _THIS_PROCESS not in text


def _once(value: object, seen: set[Any], text: Callable[[], str]) -> str:
    """The text of a value that may contain itself."""
    if id(value) in seen:
        return "again"
    seen.add(id(value))
    return text()


def _is_python(kind: type) -> bool:
    """Whether a class and its bases are written in Python, so that attributes are all there is."""
    return all(
        base is object or base is SimpleNamespace or bool(base.__flags__ & _HEAP)
        for base in kind.__mro__
    )


def _container(value: Any, seen: set[Any]) -> str:
    if id(value) in seen:
        return "again"  # it contains itself
    seen.add(id(value))
    if isinstance(value, dict):
        texts = [f"{plain(k, seen)}:{plain(v, seen)}" for k, v in value.items()]
    else:
        texts = [plain(v, seen) for v in value]
    seen.discard(id(value))  # the next one may live at the same address
    if isinstance(value, (set, frozenset)):
        texts.sort()
    # A list and a tuple of the same things decide the same.
    ends = "()" if isinstance(value, (tuple, list)) else "{}"
    return ends[0] + ",".join(texts) + ends[1]


def _attributes(part: nn.Module) -> Iterator[tuple[str, object]]:
    if isinstance(part, fx.GraphModule):
        yield "code", part.code
    if not _is_foreign(type(part)):
        hidden = _OF_EVERY_MODULE
    else:  # a class of torch derives its private attributes from the others
        hidden = _OF_EVERY_MODULE | {key for key in vars(part) if key.startswith("_")}
    yield from sorted((k, v) for k, v in vars(part).items() if k not in hidden)
    for hooks in _HOOKS:
        for hook in getattr(part, hooks).values():
            # torch's own hooks, such as weight normalisation's, are objects with plain fields.
            known = type(hook).__module__.startswith("torch.") and hasattr(hook, "__dict__")
            yield hooks, (type(hook), vars(hook)) if known else hook


def _is_foreign(thing: Any) -> bool:
    """Whether it is torch's or Python's, whose versions are recorded elsewhere."""
    home = str(getattr(thing, "__module__", None)).split(".")[0]
    return home == "torch" or home in sys.stdlib_module_names


def _own_file(thing: Any, seen: set[Any]) -> str:
    """The whole file a module, class or function lives in, and those it reaches.

    Nothing where it is not a user's file, or was read before.
    """
    try:
        file = inspect.getsourcefile(inspect.unwrap(thing) if callable(thing) else thing)
    except TypeError:  # built in
        file = None
    home = str(getattr(thing, "__module__", None) or getattr(thing, "__name__", "")).split(".")[0]
    if file is None or file in seen or not _is_own(file, home):
        return ""
    seen.add(file)
    try:
        if thing not in _files:
            _files[thing] = Path(file).read_text()
        parts = [_files[thing]]
    except (OSError, ValueError, TypeError):
        parts = [f"{thing.__name__}\nunread {_THIS_PROCESS}"]
    for value in list(_surroundings(thing).values()):
        if isinstance(value, (ModuleType, FunctionType, type)):
            parts.append(_own_file(value, seen))
    return "\n".join(filter(None, parts))


def _surroundings(thing: Any) -> dict[str, Any]:
    if isinstance(thing, ModuleType):
        return vars(thing)
    if isinstance(thing, FunctionType):
        return thing.__globals__
    home = sys.modules.get(thing.__module__)
    return {} if home is None else vars(home)


def _is_own(file: str, home: str) -> bool:
    """Whether a file is a user's: not Python's, not installed, not ours."""
    where = Path(file).parts
    installed = "site-packages" in where or "dist-packages" in where
    return not (installed or home in ("torch", "besiege") or home in sys.stdlib_module_names)


def _named_source(thing: Any) -> str:
    name = f"{thing.__module__}.{thing.__qualname__}"
    if _is_foreign(thing) or inspect.isbuiltin(thing):
        return name
    try:
        if thing not in _sources:
            _sources[thing] = inspect.getsource(thing)
        return f"{thing.__qualname__}{_place(thing)}\n{_sources[thing]}"
    except (OSError, TypeError):
        return f"{name}\nunread {_THIS_PROCESS}"


def _place(thing: Any) -> str:
    """Where in its lines a lambda stands: two on one line have the same source."""
    if getattr(thing, "__name__", "") != "<lambda>":
        return ""
    body: CodeType = thing.__code__
    places = [(line, column) for line, _, column, _ in body.co_positions() if line and column]
    line, column = min(places, default=(body.co_firstlineno, 0))
    return f" {line - body.co_firstlineno}:{column}"


def _uses(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a class or function refers to, by name: its bases and members, or its surroundings."""
    if inspect.isclass(thing):
        yield from ((base.__qualname__, base) for base in thing.__mro__[1:-1])
        for name, member in vars(thing).items():
            if name in _IDLE:
                continue
            for inner in _functions(member):
                yield name, inner
            if not name.startswith("__") and isinstance(member, (bool, int, float, str, tuple)):
                yield name, member
        return
    function = inspect.unwrap(getattr(thing, "__func__", thing))
    if not isinstance(function, FunctionType):
        return
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    surroundings = dict(_enclosed(function))
    for name in sorted(_globals_read(function.__code__)):
        if name in function.__globals__:
            surroundings[name] = function.__globals__[name]
    for name, value in surroundings.items():
        used = inspect.unwrap(value) if callable(value) else value
        silent = isinstance(used, logging.Logger)
        if not silent and type(used).__module__ != "typing":
            yield name, used


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents


def _functions(member: Any) -> Iterator[FunctionType]:
    """The functions behind a member of a class: methods of every kind, properties."""
    wrapped = (getattr(member, name, None) for name in ("__func__", "fget", "fset"))
    for function in (member, *wrapped):
        # What dataclasses write for a class has no file, and follows from the class's source.
        if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith("<"):
            yield function


def _globals_read(body: CodeType) -> set[str]:
    """Names of its module that a function reads and never sets, those of inner functions too."""
    steps = list(dis.get_instructions(body))
    read = {str(s.argval) for s in steps if s.opname == "LOAD_GLOBAL"}
    kept = {str(s.argval) for s in steps if s.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for constant in body.co_consts:
        if isinstance(constant, CodeType):
            read |= _globals_read(constant)
    return read - kept


def _content(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
