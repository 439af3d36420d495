"""Values as text: a small language of names, numbers and calls that reads back what it prints.

Attacks, their pieces and layers of defenses are frozen dataclasses registered under names;
``pgd(steps=100)`` and ``bits(depth=3)`` are such values. Nothing in a text is executed: only
literals, arithmetic of numbers and calls of registered names are understood.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from besiege.core.errors import BesiegeError, InputError, UnknownNameError, described, near
from besiege.core.registry import Registry

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Div: operator.truediv,
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}

Call = Callable[[str, list[Any], dict[str, Any]], Any]


class Vocabulary:
    """Registered names as a language.

    A name stands for a class, whose call makes the value, or for a value, whose call changes some
    of its fields. Fields marked ``positional`` are printed without their names, those marked
    ``each`` as one argument per element.

    Parameters
    ----------
    *registries : Registry
        Where names are looked up, in this order.
    """

    def __init__(self, *registries: Registry[Any]) -> None:
        self.registries = registries

    def names(self) -> list[str]:
        """All names known."""
        return [name for registry in self.registries for name in registry.names()]

    def name_of(self, value: object) -> str:
        """The registered name of a value, or the name of its class if nobody registered it."""
        own = getattr(value, "name", None)
        if isinstance(own, str) and own:
            return own
        for registry in self.registries:
            for name, thing in registry.items():
                if thing is type(value):
                    return name
        return type(value).__name__

    def text(self, value: object) -> str:
        """The text that `read` turns into an equal value; defaults are left out."""
        if isinstance(value, tuple):
            return "(" + ", ".join(map(self.text, value)) + ("," if len(value) == 1 else "") + ")"
        if not is_dataclass(value) or isinstance(value, type):
            return repr(value)
        name = self.name_of(value)
        standard = self._find(name)
        shown: list[str] = []
        for first, f in enumerate(parameters(value)):
            given = getattr(value, f.name)
            usual = _usual(f, standard)
            if given is None and usual is None:
                continue
            if f.metadata.get("each"):
                shown.extend(map(self.text, given))
            elif f.metadata.get("positional") or (usual is MISSING and first == 0):
                shown.append(self.text(given))
            elif given != usual:
                shown.append(f"{f.name}={self.text(given)}")
        return f"{name}({', '.join(shown)})" if shown else name

    def read(self, source: str) -> Any:
        """The value of a text; a bare name of a class is a call without arguments."""
        return read(source, self.make)

    def call(self, thing: Any, source: str, args: list[Any], given: dict[str, Any]) -> Any:
        """Make a value of a class, or change some fields of a value."""
        has_fields = is_dataclass(thing)
        if not has_fields:
            kind = "class" if isinstance(thing, type) else type(thing).__name__
            raise InputError(
                f"'{source}' names a {kind} that is no dataclass: write @dataclass(frozen=True) "
                "above the class, so that its fields are its parameters"
            )
        known = [f.name for f in parameters(thing)]
        for name in given:
            if name not in known:
                raise InputError(f"'{source}' has no parameter '{name}': {near(name, known)}")
        try:
            if not isinstance(thing, type):
                if args:
                    raise TypeError("write parameters with their names, such as steps=20")
                return replace(thing, **given)
            if any(f.metadata.get("each") for f in parameters(thing)):
                return thing(tuple(args), **given)
            return thing(*args, **given)
        except (TypeError, ValueError) as problem:
            missing = re.search(r"missing .* argument: '(\w+)'", str(problem))
            said = f"it needs an {missing[1]}, such as {source}(pgd)" if missing else str(problem)
            raise InputError(f"'{source}' cannot be built: {said}") from None

    def _find(self, name: str) -> Any:
        return next((r.get(name) for r in self.registries if name in r), None)

    def make(self, name: str, args: list[Any], given: dict[str, Any]) -> Any:
        """The value of a call of a registered name."""
        thing = self._find(name)
        if thing is None:
            first = self.registries[0]
            close = near(name, self.names())
            if not close.startswith("did you mean"):
                close = near(name, first.names())  # not the whole language, what was wanted
            kinds = " or ".join(registry.kind for registry in self.registries)
            raise UnknownNameError(f"no {kinds} is called '{name}': {close}")
        return self.call(thing, name, args, given)


def parameters(value: Any) -> list[Field[Any]]:
    """The fields that make up a value's identity."""
    return [f for f in fields(value) if f.init and f.compare and f.name != "name"]


def read(source: str, call: Call | None = None) -> Any:
    """The value of a text of literals, arithmetic and, where `call` makes them, named values."""
    try:
        node = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        raise InputError(f"'{source}' cannot be read: write for example pgd(steps=20)") from None
    return _value(node, source, call)


def read_arguments(source: str) -> dict[str, Any]:
    """Keyword arguments of literals: ``mean=(0.5, 0.5, 0.5), std=63/255``."""

    def named(name: str, args: list[Any], given: dict[str, Any]) -> dict[str, Any]:
        if name != "arguments" or args:
            raise InputError("write name=value pairs of numbers, tuples and text")
        return given

    return dict(read(f"arguments({source})", named))


def from_file(source: str) -> tuple[Any, str]:
    """The thing that ``path/to/file.py:name`` names, and the text ``name`` with what follows.

    Runs the file, once for every version of it. Its neighbours can be imported by it.
    """
    where, _, rest = source.rpartition(".py:")
    path = Path(where + ".py")
    if not path.is_file():
        raise InputError(f"'{source}' names the file {path}, which does not exist")
    attribute = rest.partition("(")[0].strip()
    module = _module(path.resolve(), source)
    thing = getattr(module, attribute, None)
    if thing is None:
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownNameError(f"{path.name} has no '{attribute}': {near(attribute, known)}")
    return thing, rest


def _module(path: Path, source: str) -> Any:
    # One name per file and version, so that the classes inside can find their source again.
    stamp = f"{path}\n{path.stat().st_mtime_ns}"
    name = f"besiege_file_{sha256(stamp.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = sys.modules[name] = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:
        del sys.modules[name]
        if isinstance(problem, (BesiegeError, KeyboardInterrupt)):
            raise
        raise InputError(f"'{source}' could not be run: {described(problem)}") from problem
    finally:
        sys.path.remove(str(path.parent))
    return module


def _usual(f: Field[Any], standard: Any) -> Any:
    if standard is not None and not isinstance(standard, type):
        return getattr(standard, f.name)
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _value(node: ast.expr, source: str, call: Call | None) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value(part, source, call) for part in parts)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -_number(part, source)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            try:
                return _OPERATORS[type(op)](_number(left, source), _number(right, source))
            except ZeroDivisionError:
                raise InputError(f"'{ast.unparse(node)}' in '{source}' divides by 0") from None
        case ast.Name(id=name) if call is not None:
            return call(name, [], {})
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if call is not None:
            written = [k.arg for k in keywords]
            if None in written or len(set(written)) < len(written):
                raise InputError(f"'{source}' gives a parameter twice, or with '**'")
            given = {str(k.arg): _value(k.value, source, call) for k in keywords}
            return call(name, [_value(a, source, call) for a in args], given)
    raise InputError(
        f"'{ast.unparse(node)}' in '{source}' is not understood: names, numbers, tuples and calls "
        "such as pgd(steps=20) are"
    )


def _number(node: ast.expr, source: str) -> float:
    value = _value(node, source, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"'{ast.unparse(node)}' in '{source}' is not a number")
    return value


_HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]"
)


def harmless(text: str) -> str:
    r"""A text for a terminal: what would steer it, or turn the direction of writing, is spelled.

    Examples
    --------
    >>> print(harmless("a \x1b[31mname"))
    a \x1b[31mname
    """
    return _HARMFUL.sub(lambda found: ascii(found[0])[1:-1], text)
