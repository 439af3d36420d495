"""What an attack is: a frozen value with a text form that reads back, and one method, `run`."""

from __future__ import annotations

import ast
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from besiege.core.errors import AttackError, UnknownNameError, near
from besiege.core.oracle import Access
from besiege.core.registry import Registry
from besiege.core.siege import ATTACKS, Siege
from besiege.core.threat import ALL_GOALS, ALL_NORMS, Goal, Norm

T = TypeVar("T")
PIECES: Registry[Any] = Registry("piece", ("besiege.attacks.losses", "besiege.attacks.pieces"))


class Attack(ABC):
    """An attack as a frozen dataclass: fields are its parameters, `run` is what it does.

    Class attributes declare what it needs and can do; they are checked before any work starts.
    """

    access: ClassVar[Access] = Access.GRADIENT
    norms: frozenset[Norm] = ALL_NORMS
    goals: frozenset[Goal] = ALL_GOALS
    minimal: ClassVar[bool] = False
    """Whether it looks for the smallest change, so that a threat without a budget makes sense."""
    revision: ClassVar[int] = 1
    """Part of the identity in content keys: raised when the same text gives other results."""

    @abstractmethod
    def run(self, siege: Siege) -> None:
        """Attack the rows of the siege."""

    @property
    def draws(self) -> int:
        """Over how many chances of a stochastic victim each answer is averaged."""
        return 1

    @property
    def one_step(self) -> bool:
        """Whether success need not grow with the budget, so that a search must scan."""
        return False

    def title(self) -> str:
        """The registered name, or the class name of an attack nobody registered."""
        return _name_of(self)

    def __str__(self) -> str:
        return text(self)


def piece(name: str) -> Callable[[type[T]], type[T]]:
    """Register a slot value under a name of the text form."""

    def keep(cls: type[T]) -> type[T]:
        PIECES.add(name, cls)
        cls.__str__ = text  # type: ignore[method-assign]  # every piece prints as text
        return cls

    return keep


def text(value: object) -> str:
    """The text that `parse` reads back to an equal value; defaults are left out."""
    if isinstance(value, tuple):
        return "(" + ", ".join(map(text, value)) + ("," if len(value) == 1 else "") + ")"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    name = _name_of(value)
    standard = ATTACKS.get(name) if name in ATTACKS else None
    shown = []
    for place, f in enumerate(fields(value)):
        if not (f.compare and f.init) or f.name == "name":
            continue
        given = getattr(value, f.name)
        if f.metadata.get("positional"):
            shown.append(text(given))
            continue
        if f.metadata.get("each"):
            shown.extend(text(g) for g in given)
            continue
        if is_dataclass(standard) and not isinstance(standard, type):
            usual = getattr(standard, f.name)
        else:
            usual = f.default_factory() if f.default_factory is not MISSING else f.default
        if usual is MISSING and place == 0:
            shown.append(text(given))
        elif given != usual:
            shown.append(f"{f.name}={text(given)}")
    return f"{name}({', '.join(shown)})" if shown else name


def parse(source: str | Attack) -> Attack:
    """An attack from its text, such as ``pgd(steps=100)`` or ``path/to/file.py:MyAttack``.

    Examples
    --------
    >>> str(parse("minimal(pgd(steps=20))"))
    'minimal(pgd(steps=20))'
    """
    if isinstance(source, Attack):
        return source
    if not isinstance(source, str):
        raise AttackError(
            f"an attack is a name, a text such as 'pgd(steps=20)' or an Attack value, "
            f"not {type(source).__name__}"
        )
    path, colon, rest = source.rpartition(".py:")
    if colon:
        return _attack(_from_file(Path(path + ".py"), rest), source)
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        raise AttackError(
            f"'{source}' cannot be read as an attack: write for example 'pgd(steps=20)'"
        ) from None
    return _attack(_value(tree, source), source)


def configured(attack: Attack, source: str, parameters: dict[str, Any]) -> Attack:
    """The attack with some parameters changed, or an error that names the nearest ones."""
    known = [f.name for f in fields(cast(Any, attack)) if f.init and f.compare and f.name != "name"]
    for name in parameters:
        if name not in known:
            raise AttackError(
                f"the attack '{source}' has no parameter '{name}': {near(name, known)}"
            )
    try:
        changed: Attack = replace(cast(Any, attack), **parameters)
        return changed
    except (TypeError, ValueError) as problem:
        raise AttackError(f"the attack '{source}' refused {parameters}: {problem}") from None


def split(source: str) -> list[str]:
    """A list of attacks at its top-level commas.

    Examples
    --------
    >>> split("pgd(steps=20,restarts=2),mim")
    ['pgd(steps=20,restarts=2)', 'mim']
    """
    parts, depth = [""], 0
    for letter in source:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [p.strip() for p in parts if p.strip()]


def _attack(value: object, source: str) -> Attack:
    if isinstance(value, type) and issubclass(value, Attack):
        value = _build(value, [], {}, source)
    if not isinstance(value, Attack):
        raise AttackError(f"'{source}' is not an attack but {type(value).__name__}")
    return value


def _value(node: ast.expr, source: str) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, source)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left, source) / _value(right, source)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_value(e, source) for e in elements)
        case ast.Name(id=name):
            thing = _named(name)
            return _build(thing, [], {}, source) if isinstance(thing, type) else thing
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            given = {k.arg: _value(k.value, source) for k in keywords if k.arg is not None}
            positional = [_value(a, source) for a in args]
            return _build(_named(name), positional, given, source)
    raise AttackError(
        f"'{ast.unparse(node)}' in '{source}' is not part of an attack's text: names, numbers and "
        "calls such as pgd(steps=20) are"
    )


def _named(name: str) -> Any:
    if name in ATTACKS:
        return ATTACKS.get(name)
    if name in PIECES:
        return PIECES.get(name)
    raise UnknownNameError(
        f"no attack is called '{name}': {near(name, [*ATTACKS.names(), *PIECES.names()])}"
    )


def _build(thing: Any, args: list[Any], given: dict[str, Any], source: str) -> Any:
    if isinstance(thing, Attack):
        if args:
            raise AttackError(f"write the parameters in '{source}' with their names: steps=20")
        return configured(thing, source, given)
    names = [f.name for f in fields(thing)]
    for name in given:
        if name not in names:
            raise AttackError(f"'{source}': no parameter '{name}': {near(name, names)}")
    each = next((f for f in fields(thing) if f.metadata.get("each")), None)
    try:
        if each is not None:
            return thing(tuple(args), **given)
        return thing(*args, **given)
    except (TypeError, ValueError) as problem:
        raise AttackError(f"'{source}' cannot be built: {problem}") from None


def _name_of(value: object) -> str:
    own = getattr(value, "name", None)
    if isinstance(own, str) and own:
        return own
    for registry in (PIECES, ATTACKS):
        for name, thing in registry.items():
            if thing is type(value):
                return name
    return type(value).__name__


def _from_file(path: Path, rest: str) -> Any:
    """Run a Python file of the user's and take an attack from it, perhaps with parameters."""
    if not path.is_file():
        raise UnknownNameError(f"there is no file '{path}' to take the attack '{rest}' from")
    name = "besiege_file_" + sha256(str(path.resolve()).encode()).hexdigest()[:16]
    module = sys.modules.get(name)
    if module is None or getattr(module, "__besiege_mtime__", None) != path.stat().st_mtime_ns:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        module.__dict__["__besiege_mtime__"] = path.stat().st_mtime_ns
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as problem:
            del sys.modules[name]
            raise AttackError(f"the file '{path}' could not be run: {problem}") from problem
    attribute, bracket, _ = rest.partition("(")
    thing = getattr(module, attribute, None)
    if thing is None:
        known = [
            k for k, v in vars(module).items() if isinstance(v, type) and not k.startswith("_")
        ]
        raise UnknownNameError(f"'{path}' has no '{attribute}': {near(attribute, known)}")
    if not bracket:
        return thing
    tree = ast.parse(rest, mode="eval").body
    if not isinstance(tree, ast.Call):
        raise AttackError(f"'{rest}' cannot be read as an attack: write 'MyAttack(steps=20)'")
    given = {k.arg: _value(k.value, rest) for k in tree.keywords if k.arg is not None}
    return _build(thing, [_value(a, rest) for a in tree.args], given, rest)
