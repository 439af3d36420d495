"""Digests of modules and values, from source, attributes, parameters and buffers.

Two modules with the same fingerprint answer alike, in this process and in any other. Code and
objects that cannot be read (a class typed into a console, an object written in C) therefore equal
only themselves, and only in this process; `noting` reports them. Module and file names are left out
where the source is read: a file that is moved or touched still holds the same network.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as _all_modules

from besiege.core.sourcing import (
    imports,
    is_foreign,
    methods,
    named_source,
    own_file,
    script,
    unread,
    wrappers,
)
from besiege.core.sourcing import lasts as lasts
from besiege.core.sourcing import noting as noting
from besiege.core.unchanged import once

# Modules whose fingerprint is being computed, and their parts: attributes may refer back to them.
_open = threading.local()

# Attributes of every module; the tensors and parts among them are hashed separately.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HEAP = 1 << 9  # the flag of classes that were made by a class statement
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Types whose repr is their value.
_PRINTED = (bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, Enum)
_BUILT_IN = frozenset(
    {bool, int, float, str, bytes, tuple, list, dict, set, type(None), Tensor, nn.Parameter}
)
# Printing and annotations decide no answer.
_IDLE = ("__repr__", "__str__", "__annotate__", "__annotate_func__")


def fingerprint(module: nn.Module, *about: object) -> str:
    """SHA-256, as hexadecimal text, of everything that decides a module's answers.

    Parameters
    ----------
    module : nn.Module
        Hashed are the source of its classes with what that uses of its own file, the attributes
        of its parts, and every bit of its parameters and buffers, on any device.
    *about
        Further values that distinguish it, such as a normalisation; printable.
    """
    if getattr(_open, "modules", None):  # its text depends on the modules around it
        return _within(module, *about)
    return once(_within, module, *about)


def _within(module: nn.Module, *about: object) -> str:
    outer: frozenset[int] = getattr(_open, "modules", frozenset())
    parts: frozenset[int] = getattr(_open, "parts", frozenset())
    _open.modules = outer | {id(module)}
    _open.parts = parts.union(map(id, module.modules()))
    try:
        return _fingerprint(module, about)
    finally:
        _open.modules, _open.parts = outer, parts


def _fingerprint(module: nn.Module, about: tuple[object, ...]) -> str:
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        for part in parts:
            content = part if isinstance(part, memoryview) else memoryview(str(part).encode())
            digest.update(content.nbytes.to_bytes(8, "big"))
            digest.update(content)

    add("classifier", *about)
    codes: dict[type, str] = {}
    scripted: tuple[str, ...] = ()
    for path, part in module.named_modules(remove_duplicate=False):
        kind = type(part)
        if kind not in codes:
            codes[kind] = code(kind)
        add(path, codes[kind])
        if isinstance(part, torch.jit.ScriptModule) and not path.startswith(scripted or " "):
            add(script(part, path or kind.__name__))
            scripted = (*scripted, f"{path}." if path else "")
        for key, value in _attributes(part):
            add(key, plain(value, set()))
    for name in _HOOKS:
        for hook in getattr(_all_modules, f"_global{name}").values():
            add(f"global{name}", plain(hook, set()))
    for path, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        add(path, tensor.dtype, tuple(tensor.shape), *_contents(tensor))
        if added := _added(tensor, set()):
            add(added)
    return digest.hexdigest()


def remember(module: nn.Module) -> None:
    """Read the source of a module's classes now, before the files can change."""
    for kind in {type(part) for part in module.modules()}:
        code(kind)


def code(thing: Any, seen: set[Any] | None = None) -> str:
    """Source of a class or function, of its bases, and of what it uses of its own module.

    Things of torch and Python go in by name only. Of installed modules, what is used directly is
    read; of the user's other files, everything that is reached.
    """
    seen = set() if seen is None else seen
    parts: list[str] = []
    pending, home = [thing], thing.__module__
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            parts.append(one.__qualname__)
            continue
        seen.add(id(one))
        parts.append(named_source(one))
        if is_foreign(one):
            if one is thing and (inner := _inside(one)):
                pending, home = inner, inner[0].__module__
            continue
        if one.__module__ != home:
            parts.append(own_file(one, seen))
            continue
        for name, used in _uses(one):
            if inspect.isfunction(used) or inspect.isclass(used):
                pending.append(used)
            elif isinstance(used, ModuleType):
                parts.append(f"{name}={own_file(used, seen)}")
            else:
                parts.append(f"{name}={plain(used, seen)}")
        function = inspect.unwrap(getattr(one, "__func__", one))
        if isinstance(function, FunctionType):
            parts += imports(function, seen)
    return "\n".join(parts)


def _inside(thing: Any) -> list[Any]:
    """The user's code in a class of torch: bases of a run-time class, a replaced forward."""
    if not inspect.isclass(thing) or not issubclass(thing, nn.Module):
        return []
    mine = [base for base in thing.__mro__ if issubclass(base, nn.Module) and not is_foreign(base)]
    graph = issubclass(thing, fx.GraphModule)  # its forward is generated from its code
    put = [vars(base).get("forward") for base in thing.__mro__ if is_foreign(base) and not graph]
    return mine[:1] + [one for one in put if isinstance(one, FunctionType) and not is_foreign(one)]


def plain(value: object, seen: set[Any] | None = None) -> str:
    """Text of a value that may decide what a module computes."""
    top = seen is None
    seen = set() if seen is None else seen
    if value is None or isinstance(value, _PRINTED):
        return repr(value) + _added(value, seen)
    if isinstance(value, Tensor):
        digest = hashlib.sha256(b"".join(_contents(value))).hexdigest()
        return f"{value.dtype}{tuple(value.shape)}{digest}{_added(value, seen)}"
    array: Any = value
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and not array.dtype.hasobject:
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        return _container(value, seen)
    if isinstance(value, partial):
        return "partial" + plain((value.func, value.args, value.keywords), seen)
    if isinstance(value, torch.jit.ScriptFunction):
        return script(value, str(value.name))
    if inspect.ismethod(value) or inspect.isclass(value) or inspect.isroutine(value):
        text = _routine(value, seen, top)
        if text is not None:
            return text
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
    # An object is determined by its class and attributes; one written in C hides its state.
    if hasattr(value, "__dict__") and _is_python(kind):
        held = vars(value)
        return _once(value, seen, lambda: code(kind, seen) + plain(held, seen))
    # Equal only to itself.
    return unread(f"{kind.__module__}.{kind.__qualname__}", id(value))


def _routine(value: Any, seen: set[Any], top: bool) -> str | None:
    """The text of a class, function or method; None for anything else."""
    bound = getattr(value, "__self__", None)
    # A method of an object that is no module and no class depends on that object, too.
    free = bound is None or isinstance(bound, (nn.Module, type, ModuleType))
    if inspect.ismethod(value) and not free:
        return f"{code(value.__func__, seen)} of {plain(bound, seen)}"
    if not (inspect.isclass(value) or free):
        return None
    text = code(value, seen)
    if top or not isinstance(bound, nn.Module) or id(bound) in getattr(_open, "parts", ()):
        return text
    return f"{text} of {plain(bound, seen)}"  # a method of another network depends on its weights


def _once(value: object, seen: set[Any], text: Callable[[], str]) -> str:
    """The text of a value that may contain itself."""
    if id(value) in seen:
        return "again"
    seen.add(id(value))
    return text()


def _is_python(kind: type) -> bool:
    """Whether a class and its bases are written in Python, so that attributes are all its state."""
    return all(
        base is object or base is SimpleNamespace or bool(base.__flags__ & _HEAP)
        for base in kind.__mro__
    )


def _container(value: Any, seen: set[Any]) -> str:
    if id(value) in seen:
        return "again"  # it contains itself
    seen.add(id(value))
    # Read with the methods of the built-in class: a subclass may override them.
    base: Any = next(base for base in type(value).__mro__ if is_foreign(base))
    if isinstance(value, dict):
        texts = [f"{plain(k, seen)}:{plain(v, seen)}" for k, v in base.items(value)]
    else:
        texts = [plain(v, seen) for v in base.__iter__(value)]
    added = _added(value, seen)
    seen.discard(id(value))  # the next one may live at the same address
    if isinstance(value, (set, frozenset)):
        texts.sort()
    # A list and a tuple of the same values count as equal.
    ends = "()" if isinstance(value, (tuple, list)) else "{}"
    return ends[0] + ",".join(texts) + ends[1] + added


def _added(value: Any, seen: set[Any]) -> str:
    """What a value of a subclass has besides its content: methods, attributes, a factory."""
    kind, texts = type(value), []
    if kind in _BUILT_IN:
        return ""
    mine = [base for base in kind.__mro__ if not is_foreign(base)]
    if any(_has_methods(base) for base in mine):
        texts.append(code(kind, seen))
    held = {} if isinstance(value, (Enum, Tensor)) else getattr(value, "__dict__", {})
    slots = {
        name: getattr(value, name)
        for base in mine
        for name in getattr(base, "__slots__", ())
        if hasattr(value, name)
    }
    if held or slots:
        texts.append(plain({**held, **slots}, seen))
    if isinstance(value, defaultdict) and value.default_factory is not None:
        texts.append(plain(value.default_factory, seen))
    return "".join(f" with {text}" for text in texts)


def _has_methods(kind: type) -> bool:
    return any(not is_foreign(f) for member in vars(kind).values() for f in _functions(member))


def _attributes(part: nn.Module) -> Iterator[tuple[str, object]]:
    if isinstance(part, fx.GraphModule):
        yield "code", part.code
    if isinstance(part, torch.jit.ScriptModule):
        yield from _scripted(part)
    else:
        hidden = _OF_EVERY_MODULE
        if all(map(is_foreign, type(part).__mro__)):  # torch derives its private attributes
            hidden |= {key for key in vars(part) if key.startswith("_")}
        yield from sorted((k, v) for k, v in vars(part).items() if k not in hidden)
    for hooks in _HOOKS:
        for number, hook in getattr(part, hooks).items():
            # Hooks of torch, such as weight normalisation, are objects with plain attributes.
            known = type(hook).__module__.startswith("torch.") and hasattr(hook, "__dict__")
            yield hooks, (type(hook), vars(hook)) if known else hook
            if number in getattr(part, f"{hooks}_with_kwargs", ()):
                yield f"{hooks}_with_kwargs", True


def _scripted(part: Any) -> Iterator[tuple[str, object]]:
    """What a TorchScript module holds besides tensors and parts."""
    yield "methods", methods(part)
    elsewhere = set(_OF_EVERY_MODULE).union(
        *(held.keys() for held in (part._parameters, part._buffers, part._modules))
    )
    for name in sorted(part._concrete_type.get_attributes()):
        if name not in elsewhere:
            yield name, getattr(part, name)


def _uses(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a class or function refers to, by name: bases and members, or closure and globals."""
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
    yield from (("wrapper", one) for one in wrappers(getattr(thing, "__func__", thing)))
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    surroundings = dict(_enclosed(function))
    for name in sorted(_globals_read(function.__code__)):
        if name in function.__globals__:
            surroundings[name] = function.__globals__[name]
    for name, value in surroundings.items():
        used = inspect.unwrap(value) if callable(value) else value
        if not isinstance(used, logging.Logger) and type(used).__module__ != "typing":
            yield name, used


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents


def _functions(member: Any) -> Iterator[FunctionType]:
    """The functions behind a member of a class: methods of every kind, properties."""
    wrapped = (getattr(member, name, None) for name in ("__func__", "fget", "fset"))
    for function in (member, *wrapped):
        # Methods that `dataclass` generates have no file; they follow from the class's source.
        if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith("<"):
            yield function


def _globals_read(body: CodeType) -> set[str]:
    """Global names that a function reads and never sets, those of inner functions included."""
    steps = list(dis.get_instructions(body))
    read = {str(s.argval) for s in steps if s.opname == "LOAD_GLOBAL"}
    kept = {str(s.argval) for s in steps if s.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for constant in body.co_consts:
        if isinstance(constant, CodeType):
            read |= _globals_read(constant)
    return read - kept


def _contents(tensor: Tensor) -> list[memoryview]:
    """The bits of a tensor: of a sparse one those of its parts, of a meta tensor none."""
    tensor = tensor.detach()
    if tensor.is_meta:
        return [memoryview(b"meta")]
    try:
        return [_bits(part) for part in _parts(tensor)]
    except Exception:  # a tensor subclass of another package
        return [memoryview(unread(f"a tensor {tensor.dtype}", id(tensor)).encode())]


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor.to_dense(),)


def _bits(tensor: Tensor) -> memoryview:
    flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
