"""Code as text: the source of a class or function, the user's files it reaches, TorchScript.

Code that cannot be read gets a text that differs in every process, so that no record of it is used
by another process. `noting` reports it to the caller that computes a digest.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from io import BytesIO
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary
from zipfile import ZipFile

# Part of the text of unreadable code: the same name may mean other code in another process.
_THIS_PROCESS = os.urandom(16).hex()

# Read once: editing a file later does not change objects that were made from it before.
_sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_files: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

# Wrappers without the functions they wrap; kept alive, since `seen` holds addresses.
_bare: WeakKeyDictionary[FunctionType, FunctionType] = WeakKeyDictionary()

_heard = threading.local()
_MANGLED = re.compile(r"___torch_mangle_\d+\.?")


def unread(what: str, own: object = "") -> str:
    """The text of something unreadable; `own` distinguishes it from others of this process."""
    getattr(_heard, "names", []).append(what)
    return f"{what}\nunread {_THIS_PROCESS} {own}"


def lasts(text: str) -> bool:
    """Whether a text of `plain` or `code` means the same in another process."""
    return _THIS_PROCESS not in text


@contextmanager
def noting() -> Iterator[list[str]]:
    """Collect the names of what could not be read inside the block, in this thread."""
    outer = getattr(_heard, "names", None)
    names: list[str] = []
    _heard.names = names
    try:
        yield names
    finally:
        if outer is None:
            del _heard.names
        else:
            _heard.names = outer
            outer.extend(names)


def is_foreign(thing: Any) -> bool:
    """Whether it belongs to torch or Python, whose versions are recorded elsewhere."""
    home = str(getattr(thing, "__module__", None)).split(".")[0]
    return home == "torch" or home in sys.stdlib_module_names


def is_own(file: str, home: str) -> bool:
    """Whether a file is the user's: not of Python, not installed, not of besiege."""
    where = Path(file).parts
    installed = "site-packages" in where or "dist-packages" in where
    return not (installed or home in ("torch", "besiege") or home in sys.stdlib_module_names)


def named_source(thing: Any) -> str:
    """The name and the source of a class or function; only the name where it is foreign."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    if is_foreign(thing) or inspect.isbuiltin(thing):
        return name
    try:
        if thing not in _sources:
            _sources[thing] = inspect.getsource(thing)
        return f"{thing.__qualname__}{_place(thing)}\n{_sources[thing]}"
    except (OSError, TypeError):
        if inspect.isclass(thing) and issubclass(thing, tuple) and hasattr(thing, "_fields"):
            # A class made by namedtuple has no file; its fields determine it.
            defaults = getattr(thing, "_field_defaults", {})
            if all(value is None or isinstance(value, (int, str)) for value in defaults.values()):
                return f"{thing.__qualname__} {thing._fields} {defaults}"
        if isinstance(thing, FunctionType) and hasattr(thing, "__wrapped__"):
            # A wrapper around a generated method: that one follows from the class's source.
            with suppress(OSError, TypeError):
                return f"{thing.__qualname__}\n{inspect.getsource(thing.__code__)}"
        return unread(name)


def _place(thing: Any) -> str:
    """Where in its lines a lambda begins: two on one line have the same source."""
    if getattr(thing, "__name__", "") != "<lambda>":
        return ""
    body: CodeType = thing.__code__
    places = [(line, column) for line, _, column, _ in body.co_positions() if line and column]
    line, column = min(places, default=(body.co_firstlineno, 0))
    return f" {line - body.co_firstlineno}:{column}"


def wrappers(thing: Any) -> Iterator[FunctionType]:
    """The user's functions that decorators put around one, from the outside in."""
    while (inner := getattr(thing, "__wrapped__", None)) is not None:
        if isinstance(thing, FunctionType):
            home = str(thing.__globals__.get("__name__", "")).split(".")[0]
            if is_own(thing.__code__.co_filename, home):
                if thing not in _bare:
                    _bare[thing] = FunctionType(
                        thing.__code__,
                        thing.__globals__,
                        thing.__code__.co_name,
                        thing.__defaults__,
                        thing.__closure__,
                    )
                    _bare[thing].__kwdefaults__ = thing.__kwdefaults__
                yield _bare[thing]
        thing = inner


def own_file(thing: Any, seen: set[Any]) -> str:
    """The file of a module, class or function, and the user's files that it reaches.

    Empty where it is not the user's file, or was read before.
    """
    try:
        file = inspect.getsourcefile(inspect.unwrap(thing) if callable(thing) else thing)
    except TypeError:  # built in
        file = None
    if file is None:  # perhaps compiled: then its bytes are hashed
        home = thing if isinstance(thing, ModuleType) else _home(thing)
        file = getattr(home, "__file__", None)
    name = str(getattr(thing, "__module__", None) or getattr(thing, "__name__", ""))
    if file is None or file in seen or not is_own(file, name.split(".")[0]):
        return ""
    seen.add(file)
    text = _text(file, thing)
    parts = [text]
    for value in list(_surroundings(thing).values()):
        if isinstance(value, (ModuleType, FunctionType, type)):
            parts.append(own_file(value, seen))
    parts += _imports_of_file(file, text, name, seen)
    return "\n".join(filter(None, parts))


def imports(function: FunctionType, seen: set[Any]) -> list[str]:
    """The user's files that a function imports when it runs, and those that they reach.

    They are looked up and read, not imported: the text is the same before and after the first run.
    """
    package = str(function.__globals__.get("__package__") or "")
    return _imported(function.__code__, package, seen)


def _imports_of_file(file: str, text: str, name: str, seen: set[Any]) -> list[str]:
    """The same for all imports anywhere in a file; its global names were followed before."""
    if not file.endswith(".py"):
        return []
    try:
        body = compile(text, file, "exec")
    except (SyntaxError, ValueError):
        return []
    is_package = Path(file).name == "__init__.py"
    return _imported(body, name if is_package else name.rpartition(".")[0], seen)


def _imported(body: CodeType, package: str, seen: set[Any]) -> list[str]:
    parts: list[str] = []
    for name in _names_imported(body, package):
        for spec in _specs(name, str(Path(body.co_filename).parent)):
            file = spec.origin
            if file is None or file in seen or not Path(file).is_file():
                continue
            if not is_own(file, name.split(".")[0]):
                continue
            seen.add(file)
            text = _text(file, sys.modules.get(spec.name))
            parts += [text, *_imports_of_file(file, text, spec.name, seen)]
    return list(filter(None, parts))


def _names_imported(body: CodeType, package: str) -> Iterator[str]:
    """Full names that byte code imports, inner functions included; some may not be modules."""
    # In long code the names have numbers of two bytes, with an instruction of their own.
    steps = [step for step in dis.get_instructions(body) if step.opname != "EXTENDED_ARG"]
    for place, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, names = steps[place - 2].argval, steps[place - 1].argval
        name = str(step.argval)
        if level:
            above = package.split(".")[: len(package.split(".")) - (level - 1)]
            name = ".".join(filter(None, [*above, name]))
        yield name
        # `from package import part` may name a module.
        yield from (f"{name}.{part}" for part in names or () if part != "*")
    for constant in body.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_imported(constant, package)


def _specs(name: str, folder: str) -> Iterator[ModuleSpec]:
    """The specs of a module and of the packages around it, found without importing them."""
    words, places = name.split("."), None
    if words[0] in sys.stdlib_module_names or words[0] in ("torch", "besiege", ""):
        return
    for count in range(1, len(words) + 1):
        full = ".".join(words[:count])
        spec = getattr(sys.modules.get(full), "__spec__", None)
        if not isinstance(spec, ModuleSpec):
            spec = None
            with suppress(Exception):  # finders of other packages may raise anything
                spec = PathFinder.find_spec(full, places)
                if spec is None and places is None:
                    spec = PathFinder.find_spec(full, [folder])
        if spec is None:
            return
        yield spec
        places = list(spec.submodule_search_locations or [])


def _text(file: str, thing: Any) -> str:
    """A file as text; for a compiled one, the digest of its bytes."""
    try:
        if thing is not None and thing in _files:
            return _files[thing]
        path = Path(file)
        if file.endswith(".py"):
            text = path.read_text()
        else:
            text = f"{path.name.split('.')[0]} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        if thing is not None:
            _files[thing] = text
        return text
    except (OSError, ValueError, TypeError):
        return unread(str(getattr(thing, "__name__", Path(file).stem)))


def _surroundings(thing: Any) -> dict[str, Any]:
    if isinstance(thing, ModuleType):
        return vars(thing)
    if isinstance(thing, FunctionType):
        return thing.__globals__
    home = _home(thing)
    return {} if home is None else vars(home)


def _home(thing: Any) -> ModuleType | None:
    return sys.modules.get(str(getattr(thing, "__module__", None)))


def script(thing: Any, name: str) -> str:
    """The code and the constants of a TorchScript module or function and of all that it calls.

    Left out are the numbers that torch appends to names to make them unique in a process. The
    order in which torch writes definitions does not matter.
    """
    try:
        content = bytes(thing.save_to_buffer())
    except Exception:  # a script that calls back into Python cannot be saved
        return unread(name)
    blocks, digest = [], hashlib.sha256()
    with ZipFile(BytesIO(content)) as held:
        for path in held.namelist():
            inner = path.partition("/")[2]
            if inner.startswith("code/") and inner.endswith(".py"):
                text = _MANGLED.sub("", held.read(path).decode())
                blocks += re.split(r"^(?=\S)", text, flags=re.MULTILINE)
            elif inner.startswith("constants"):
                digest.update(held.read(path))
    return "".join(sorted(blocks)) + digest.hexdigest()


def methods(part: Any) -> str:
    """The code of the methods of one TorchScript module, without its parts."""
    names = sorted(part._c._method_names())
    texts = [f"{name}\n{part._c._get_method(name).code}" for name in names]
    return _MANGLED.sub("", "\n".join(texts))
