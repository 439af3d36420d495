"""Types, texts and completion of the options that several commands share."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

from cyclopts import Parameter

from besiege.core.errors import InputError
from besiege.core.text import MOST, number, short, whole
from besiege.models.secrecy import must_hold_no_secret

if TYPE_CHECKING:
    from cyclopts import Token
    from cyclopts.completion import CompletionContext

F = TypeVar("F", bound=Callable[..., Any])

WRITTEN = """\
How things are written:
  MODEL   zoo:digits-pgd-at              a model that comes with besiege
          public:cifar10_resnet20        published weights below BESIEGE_DATA
          resnet20:weights.safetensors   your weights, besiege's architecture;
                                         with "(mean=..., std=...)" if needed
          torchvision:resnet50           or timm:NAME, hf:REPO,
                                         robustbench:DATA/THREAT/NAME
          path/to/model.py:make          what your function make() returns
          path/file.onnx                 an ONNX file: scores or labels
          http://HOST:PORT/PATH          a model behind HTTP; "(format=png)"
          "MODEL+bits(depth=3)"          any of them with a defense
  DATA    digits, mnist, cifar10, ...    by name: `besiege data` lists them
          path/to/folder                 one folder of images per class;
                                         "photos(resize=256, crop=224)"
          path/to/file.npz               arrays x (images) and y (labels)
  THREAT  linf:8/255, l2:0.5, l1:12      norm and budget, pixels from 0 to 1
          linf                           no budget: smallest perturbation
          "linf:8/255 targeted:random"   with a goal, or an access such as score
  ATTACK  pgd                            by name: `besiege attacks` lists them
          "pgd(steps=100, loss=margin)"  with parameters: `besiege show pgd`
          "minimal(pgd)"                 made of another attack
          path/to/file.py:MyAttack       your own attack"""

Goals = Literal["untargeted", "targeted:random", "targeted:least-likely", "targeted:second"]
Accesses = Literal["gradient", "score", "decision"]
Curves = Literal["short", "full", "none"]


def examples(*lines: str, written: bool = False) -> str:
    """The end of a help page: example commands, and how arguments are written if `written`."""
    tried = "Examples:\n" + "\n".join(f"  {line}" for line in lines)
    return f"{WRITTEN}\n\n{tried}" if written else tried


def known_models(context: CompletionContext) -> Iterable[tuple[str, str]]:
    """Names of models, for completion."""
    from besiege.models.catalogue import listing

    return [(row.name, f"{row.architecture}, {row.data}") for row in listing()]


def known_data(context: CompletionContext) -> Iterable[tuple[str, str]]:
    """Names of data sets, for completion."""
    from besiege.data.catalogue import CATALOGUE

    return [(name, entry.title) for name, entry in CATALOGUE.items()]


def known_suites(context: CompletionContext) -> Iterable[tuple[str, str]]:
    """Names of suites, for completion."""
    from besiege.attacks.suites import SUITES

    return [(name, suite.told) for name, suite in SUITES.items()]


def known_architectures(context: CompletionContext) -> Iterable[tuple[str, str]]:
    """Names of architectures, for completion."""
    from besiege.models.catalogue import CATALOGUE

    return [(name, architecture.about) for name, architecture in CATALOGUE.items()]


def known_recipes(context: CompletionContext) -> Iterable[tuple[str, str]]:
    """Names of recipes, for completion."""
    from besiege.training.catalogue import CATALOGUE

    return [(name, family.title) for name, family in CATALOGUE.items()]


def flowing(function: F) -> F:
    """Join the lines of every paragraph of a docstring, so that a help page can wrap them."""
    lines = (function.__doc__ or "").splitlines()
    text = lines[:1]
    for above, line in pairwise(lines):
        same = line.strip() and _indent(line) == _indent(above) and above is not lines[0]
        if same and "---" not in above + line:
            text[-1] += " " + line.strip()
        else:
            text.append(line)
    function.__doc__ = "\n".join(text)
    return function


def counted(*least: int) -> Parameter:
    """An option of whole numbers, one for each of the minima in `least`."""

    def read(_: Any, tokens: Sequence[Token]) -> int | tuple[int, ...]:
        pairs = zip(tokens, least, strict=True)
        numbers = tuple(whole(token.value, _option(token), low) for token, low in pairs)
        return numbers if len(numbers) > 1 else numbers[0]

    return Parameter(converter=read, n_tokens=len(least))


def _read_real(_: Any, tokens: Sequence[Token]) -> float:
    """Read a finite number."""
    (token,) = tokens
    try:
        return float(number(token.value))
    except (InputError, OverflowError):
        raise InputError(
            f"{_option(token)} is '{short(token.value)}', but a number such as 0.1 is needed"
        ) from None


def _option(token: Token) -> str:
    return token.keyword or "the number"


def laid_out(data: str, split: str, layout: str | None) -> Any:
    """The name of the data, or the data themselves where a layout was given."""
    if layout is None:
        return data
    from besiege.data import load

    return load(data, split=split, layout=layout)


def as_options(text: str, command: Callable[..., Any]) -> str:
    """A message in which Python keywords are written as options of a command.

    Parameters of attacks and models, in their parentheses, stay as they are.

    Examples
    --------
    >>> def command(*, substitute, resume): ...
    >>> as_options("pass substitute='zoo:NAME' (resume=False) to pgd(resume=1)", command)
    'pass --substitute zoo:NAME (--no-resume) to pgd(resume=1)'
    """
    known = _options(command)

    def option(keyword: re.Match[str]) -> str:
        if keyword["name"] not in known or _called(text[: keyword.start()]):
            return keyword[0]
        name, value = keyword["name"].replace("_", "-"), keyword["value"]
        if value in ("True", "False"):
            return f"--{name}" if value == "True" else f"--no-{name}"
        return f"--{name} {shlex.quote(value.strip(QUOTES))}"

    return _KEYWORD.sub(option, text)


def _options(command: Callable[..., Any]) -> set[str]:
    """The names of a command's parameters; of those that are several options, of each."""
    hints = get_type_hints(command)
    names = set()
    for name in signature(command).parameters:
        kind = hints.get(name)
        names |= {one.name for one in fields(kind)} if is_dataclass(kind) else {name}
    return names


QUOTES = "'\""
_KEYWORD = re.compile(
    r"(?<![\w-])(?P<name>[a-z_]+)=(?P<value>'[^']*'|\"[^\"]*\"|\w+(?:[.:/-]\w+)*)"
)


def _called(before: str) -> bool:
    """Whether a text ends inside the parentheses of a call."""
    calls: list[bool] = []
    for place, letter in enumerate(before):
        if letter == "(":
            calls.append(place > 0 and (before[place - 1].isalnum() or before[place - 1] == "_"))
        elif letter == ")" and calls:
            calls.pop()
    return any(calls)


def _path(_: type, tokens: Sequence[Token]) -> Path:
    """Read a path; a shell does not expand the ``~`` of ``--out=~/x``."""
    if not tokens[0].value:
        raise ValueError("an empty path names nothing; '.' is the current folder")
    return Path(os.path.expanduser(tokens[0].value))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _may_be_shown(_: type, model: str) -> None:
    """Refuse a model text that contains a key before the progress bar shows it."""
    must_hold_no_secret(model)


Place = Annotated[Path, Parameter(converter=_path)]
Model = Annotated[str, Parameter(completer=known_models, validator=_may_be_shown)]
DataSource = Annotated[str, Parameter(completer=known_data, metavar="DATA")]
ThreatText = Annotated[str, Parameter(metavar="THREAT")]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Choice = Annotated[bool | None, Parameter(show_default=False)]
Whole = Annotated[int, counted(1), Parameter(metavar="N")]
FromZero = Annotated[int, counted(0), Parameter(metavar="N")]
Count = Annotated[int | None, counted(1), Parameter(metavar="N")]
MaybeCount = Annotated[
    tuple[str, ...] | None,
    Parameter(metavar="[N]", consume_multiple=(0, 1), negative="", show_default=False),
]
Seed = Annotated[int, counted(-MOST - 1), Parameter(metavar="N")]
Real = Annotated[float, Parameter(metavar="X", converter=_read_real)]
MaybeReal = Annotated[float | None, Parameter(metavar="X", converter=_read_real)]
Layout = Annotated[
    Literal["nchw", "nhwc"] | None,
    Parameter(
        help="Order of the axes of x in an .npz file, where its shape is ambiguous: channels "
        "before height and width (nchw) or after them (nhwc)."
    ),
]
Device = Annotated[
    str | None, Parameter(help="Device: cpu, cuda, cuda:1, mps; by default a GPU if there is one.")
]
Threads = Annotated[int | None, counted(1), Parameter(metavar="N", help="Number of CPU threads.")]
AsJson = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON only.")
]
