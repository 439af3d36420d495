"""What users type: numbers, sizes, and texts of literals and calls such as ``pgd(steps=20)``.

Nothing in a text is executed: only literals, arithmetic of numbers and calls of known names are
understood. `besiege.core.vocabulary` says what a name stands for.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from besiege.core.errors import BesiegeError, InputError, UnknownNameError, described, near

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Div: operator.truediv,
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}

Call = Callable[[str, list[Any], dict[str, Any]], Any]


class WrongWord(InputError):
    """A value of the parameter `name` that is none of the words it may be."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


MOST = 2**63 - 1
"""The largest whole number that tensors and tables can hold."""
LONGEST, DEEPEST = 10_000, 50
"""Characters of a text, and levels of its syntax tree; a call inside a call takes two levels."""
_LONGEST_NUMBER = 500
_DIGITS = "[0-9](?:_?[0-9])*"
_NUMBER = re.compile(
    rf"[+-]?(?:{_DIGITS}(?:/{_DIGITS})?|(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?[0-9]{{1,3}})?)"
)


def number(text: str) -> Fraction:
    """The exact value of a number: ASCII digits, a fraction, a decimal point or an exponent.

    Every number that a user types outside a call is parsed here. The length is bounded before the
    value is computed, because ``1e999999999`` has a billion digits.

    Examples
    --------
    >>> number("8/255"), number("1e-3")
    (Fraction(8, 255), Fraction(1, 1000))
    """
    try:
        if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text):
            return Fraction(text)
    except ZeroDivisionError:
        pass
    raise InputError(f"'{short(text)}' is not a number: write for example 20, 0.5 or 8/255")


def fractions(text: str) -> str:
    """A text whose long decimals are written as the fractions that they are, where there is one.

    Examples
    --------
    >>> fractions("randmix(sigma=0.06274509803921569)"), fractions("step=0.16666666666666666")
    ('randmix(sigma=16/255)', 'step=1/6')
    """
    return re.sub(r"(?<![\w.])\d+\.\d{7,}(?![\w.])", lambda found: _fraction(found[0]), text)


def _fraction(decimal: str) -> str:
    exact = float(decimal)
    for most in (30, 255):
        near_ = Fraction(exact).limit_denominator(most)
        if float(near_) == exact and (most == 30 or 255 % near_.denominator == 0):
            bottom = near_.denominator if most == 30 else 255
            return f"{near_.numerator * bottom // near_.denominator}/{bottom}"
    return decimal


def whole(text: str, name: str, least: int = 1, most: int = MOST) -> int:
    """The value of a whole number in a range; nothing is rounded.

    Examples
    --------
    >>> whole("20", "--count"), whole("1e3", "--count")
    (20, 1000)
    """
    try:
        value = number(text)
    except InputError:
        value = Fraction(1, 2)  # refused below, as any fraction is
    if value.denominator != 1 or not least <= value <= most:
        raise InputError(f"{name} is '{short(text)}', but {whole_range(least, most)} is needed")
    return int(value)


def check_whole(value: object, name: str, least: int = 1, most: int = MOST) -> None:
    """Refuse a value that is not a whole number in a range."""
    if not is_whole(value, least, most):
        raise InputError(f"{name} is {quoted(value)}, but {whole_range(least, most)} is needed")


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether a value is a whole number in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def quoted(value: object) -> str:
    """A value as error messages quote it."""
    # A number of thousands of digits cannot even be printed.
    if isinstance(value, int) and abs(value) > 10**_LONGEST_NUMBER:
        return "far too large"
    return short(repr(value))


def whole_range(least: int, most: int) -> str:
    """A range of whole numbers, as error messages name it."""
    low = "" if least < -MOST else f" from {least}"
    return f"a whole number{low}" + (" of at most 64 bits" if most == MOST else f" to {most:,}")


def short(text: str, length: int = 60) -> str:
    """A text as error messages quote it: only the beginning of a long one.

    Examples
    --------
    >>> short("pgd" * 100, 10)
    'pgdpgdpgdp...'
    """
    return text if len(text) <= length else text[:length] + "..."


def read(source: str, call: Call | None = None) -> Any:
    """The value of a text of literals, arithmetic and, where `call` makes them, named values."""
    return _value(_parsed(source), short(source), call)


def _parsed(source: str) -> ast.expr:
    """The syntax tree of a text, which is neither too long nor too deep."""
    bounded(source)
    quoted = short(source)
    if "#" in _STRINGS.sub("", source):  # Python would take the rest for a comment
        raise InputError(f"'{quoted}' cannot be read: write for example pgd(steps=20)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # refuse texts that Python finds ambiguous
            node = ast.parse(_as_words(source).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise InputError(f"'{quoted}' cannot be read: write for example pgd(steps=20)") from None
    except (RecursionError, MemoryError):  # the parser's own limits, above ours
        node = None
    if node is None or not _shallow(node):
        raise InputError(f"'{quoted}' is nested too deeply: write it in at most {DEEPEST} levels")
    return node


_STRINGS = re.compile(r"""'[^']*'|"[^"]*\"""")
_PRESET = re.compile(r"""'[^']*'|"[^"]*"|[A-Za-z_]\w*@[A-Za-z0-9](?:[\w-]*\w)?""", re.ASCII)
_SIGNS, _LETTERS = "@-", "\u01c0\u01c1"


def _as_words(source: str) -> str:
    """The text with every preset such as ``bim@realsafe-code`` as one Python name.

    Python would read the two signs as operators. Each becomes a letter that is refused in the text
    itself, so that `_as_written` can restore it.
    """
    if any(letter in source for letter in _LETTERS):
        raise InputError(f"'{short(source)}' contains a letter that no name may have")
    to_letters = str.maketrans(_SIGNS, _LETTERS)

    def word(match: re.Match[str]) -> str:
        return match[0] if match[0][0] in "'\"" else match[0].translate(to_letters)

    return _PRESET.sub(word, source) if "@" in source else source


def _as_written(word: str) -> str:
    """A word or a piece of text as it was written."""
    return word.translate(str.maketrans(_LETTERS, _SIGNS))


def bounded(source: str) -> str:
    """The text itself; one longer than `LONGEST` is refused before it is parsed."""
    if len(source) > LONGEST:
        raise InputError(
            f"'{short(source)}' has {len(source):,} characters: write at most {LONGEST:,}"
        )
    return source


def _shallow(node: ast.AST) -> bool:
    """Whether a tree has no more levels than `_value` may descend; computed without recursion."""
    level: list[ast.AST] = [node]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
        if not level:
            return True
    return False


def read_arguments(source: str, call: Call | None = None) -> dict[str, Any]:
    """Keyword arguments: ``mean=(0.5, 0.5, 0.5), std=63/255``; literals only without `call`."""

    def named(name: str, args: list[Any], given: dict[str, Any]) -> Any:
        if name != "arguments" and call is not None:
            return call(name, args, given)
        if name != "arguments" or args:
            raise InputError("write name=value pairs of numbers, tuples and text in quotes")
        return given

    return dict(read(f"arguments({source})", named))


def read_each(source: str, calls: Callable[[str], Call | None]) -> dict[str, Any]:
    """Keyword arguments whose names mean something else in each: `calls` says what by argument.

    Examples
    --------
    >>> read_each("epochs=30, loss=sum(2)", lambda name: lambda call, args, given: (name, args))
    {'epochs': 30, 'loss': ('loss', [2])}
    """
    node, quoted = _parsed(f"arguments({source})"), short(source)
    if not isinstance(node, ast.Call) or node.args:
        raise InputError(f"'{quoted}' has values without names: write epochs=30")
    written = [keyword.arg for keyword in node.keywords]
    if None in written or len(set(written)) < len(written):
        raise InputError(f"'{quoted}' gives a parameter twice, or with '**'")
    return {str(k.arg): _value(k.value, quoted, calls(str(k.arg))) for k in node.keywords}


def from_file(source: str) -> tuple[Any, str]:
    """The object that ``path/to/file.py:name`` names, and the text from ``name`` on.

    Runs the file, once for every version of it. It can import the files beside it.
    """
    where, _, rest = source.rpartition(".py:")
    path = Path(where + ".py")
    if not os.path.isfile(path):  # Path.is_file raises for some texts
        looked = "" if path.is_absolute() else f" in the folder {Path.cwd()}"
        raise InputError(
            f"'{short(source)}' names the file {path}, which does not exist{looked}{_alike(path)}"
        )
    attribute = rest.partition("(")[0].strip()
    module = _module(path.resolve(), source)
    thing = getattr(module, attribute, None)
    if thing is None:
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownNameError(f"{path.name} has no '{attribute}': {near(attribute, known)}")
    return thing, rest


def _alike(path: Path) -> str:
    """The Python files beside a missing one with similar names, as the end of a message."""
    if not os.path.isdir(path.parent):
        return ""
    beside = [other.name for other in path.parent.iterdir() if other.suffix == ".py"]
    close = get_close_matches(path.name, beside, n=3, cutoff=0.6)
    return f": did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def _module(path: Path, source: str) -> Any:
    # One module name per file and version, so that Python finds the source of its classes.
    stamp = f"{path}\n{path.stat().st_mtime_ns}"
    name = f"besiege_file_{sha256(stamp.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None  # a .py file always has one
    module = sys.modules[name] = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        # Not by the loader, which takes the compiled code of a file changed within the same second.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except BaseException as problem:
        del sys.modules[name]
        if isinstance(problem, (BesiegeError, KeyboardInterrupt)):
            raise
        raise InputError(f"'{source}' could not be run: {described(problem)}") from problem
    finally:
        sys.path.remove(str(path.parent))
    return module


def _value(node: ast.expr, source: str, call: Call | None) -> Any:
    match node:
        case ast.Constant(value=bool() | str() | None as value):
            return value
        case ast.Constant(value=int() | float() as value):
            return _held(value, source)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value(part, source, call) for part in parts)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -_number(part, source)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            try:
                result = _OPERATORS[type(op)](_number(left, source), _number(right, source))
                return _held(result, source)
            except ZeroDivisionError:
                shown = short(_as_written(ast.unparse(node)))
                raise InputError(f"'{shown}' in '{source}' divides by 0") from None
        case ast.Name(id=name) if call is not None:
            return call(_as_written(name), [], {})
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if call is not None:
            written = [k.arg for k in keywords]
            if None in written or len(set(written)) < len(written):
                raise InputError(f"'{source}' gives a parameter twice, or with '**'")
            return _called(_as_written(name), args, keywords, source, call)
    shown = short(_as_written(ast.unparse(node)))
    if isinstance(node, ast.Name):
        raise InputError(
            f"'{shown}' in '{source}' is not understood: write a number, or a word in quotes, "
            f"such as {shown!r}"
        )
    raise InputError(
        f"'{shown}' in '{source}' is not understood: names, numbers, tuples and calls such as "
        "pgd(steps=20) are"
    )


def _called(
    name: str, args: list[ast.expr], keywords: list[ast.keyword], source: str, call: Call
) -> Any:
    """The value of a call; where a word lacks its quotes, an error that says so."""
    parts: dict[int | str, ast.expr] = {
        **dict(enumerate(args)),
        **{str(k.arg): k.value for k in keywords},
    }
    values: dict[int | str, Any] = {}
    bare: dict[int | str, BesiegeError] = {}
    for place, part in parts.items():
        try:
            values[place] = _value(part, source, call)
        except UnknownNameError as problem:
            if not isinstance(part, ast.Name):
                raise
            bare[place] = problem
    if not bare:
        try:
            return _applied(name, values, call)
        except WrongWord as problem:  # a word such as zero may also be a name
            if not isinstance(parts.get(problem.name), ast.Name):
                raise
            bare[problem.name] = problem
    for place in bare:
        word = _as_written(ast.unparse(parts[place]))
        try:
            _applied(name, {**values, place: word}, call)
        except WrongWord as wrong:
            if wrong.name == place:
                raise wrong from None
        except BesiegeError:
            continue
        else:
            label = "" if isinstance(place, int) else f"{place}="
            raise InputError(
                f"'{short(word)}' in '{source}' is a word: write it in quotes, {label}{word!r}"
            )
    raise next(iter(bare.values())) from None


def _applied(name: str, values: Mapping[int | str, Any], call: Call) -> Any:
    """The value of a call of a name with values by place and by name."""
    args = [values[place] for place in sorted(one for one in values if isinstance(one, int))]
    return call(name, args, {k: v for k, v in values.items() if isinstance(k, str)})


def _held(value: float, source: str) -> float:
    """The number itself; one that does not fit into 64 bits is refused."""
    if -MOST <= value <= MOST if isinstance(value, int) else math.isfinite(value):
        return value
    raise InputError(f"a number in '{source}' is too large: it must be finite and fit into 64 bits")


def _number(node: ast.expr, source: str) -> float:
    value = _value(node, source, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"'{short(_as_written(ast.unparse(node)))}' in '{source}' is not a number")
    return value


_HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]"
)


def harmless(text: str) -> str:
    r"""A text that is safe to print: control and text-direction characters are escaped.

    Examples
    --------
    >>> print(harmless("a \x1b[31mname"))
    a \x1b[31mname
    """
    return _HARMFUL.sub(lambda match: ascii(match[0])[1:-1], text)


def side(text: str | None, option: str) -> int | tuple[int, int] | None:
    """A length or ``HEIGHTxWIDTH`` in pixels.

    Examples
    --------
    >>> side("32", "--resize"), side("32x48", "--resize")
    (32, (32, 48))
    """
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?", text)
    if match is None:
        raise InputError(f"{option} is '{short(text)}': write a length such as 224, or 224x224")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def broken_up(name: str, room: int) -> str:
    """A long name in lines of `room` characters, broken after punctuation where possible.

    Examples
    --------
    >>> broken_up("minimal(pgd(steps=20))", 14).splitlines()
    ['minimal(pgd(', 'steps=20))']
    """
    lines = [""]
    for piece in re.findall(r"[^(,/:\s]+[(,/:)]*\s*|[(,/:)\s]+", name):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > room:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)
