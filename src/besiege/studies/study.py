"""A study: a benchmark in the package, and the claims that its results answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from besiege.bench.benchmark_files import read_benchmark
from besiege.core.errors import InputError, UnknownNameError, near
from besiege.core.registry import Registry
from besiege.studies.answers import Answer, Measured, decide, images_needed, level_of_each

if TYPE_CHECKING:
    from besiege.bench.benchmark import Benchmark, Cell
    from besiege.bench.board import Board
    from besiege.bench.display import Figure, Grid
    from besiege.studies.choosing import Size


class Measure(Protocol):
    """From a board to what it says, with an interval of this level."""

    def __call__(self, board: Board, *, level: float) -> Measured: ...


@dataclass(frozen=True)
class Claim:
    """A claim that a run can answer.

    Attributes
    ----------
    id, text : str
        Its name within the study, and the claim as a sentence.
    measure : callable
        From a board and the level of the interval to what the board says, as
        ``measure(board, level=0.99)``. An `UnknownNameError` means that it was not run.
    smallest, denied : float
        The smallest effect that the claim means, such as 0.01 for a percentage point, and the one
        that it denies; see `besiege.studies.decide`.
    paper : str
        The value of the publication.
    caveat : str
        What limits every answer.
    data : tuple of str
        The data sets that it is about; any by default.
    """

    id: str
    text: str
    measure: Measure
    smallest: float = 0.01
    denied: float = 0.0
    paper: str = ""
    caveat: str = ""
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of a study.

    Attributes
    ----------
    name : str
        Its name in ``besiege export RUN FILE --table NAME``.
    make : callable
        From a board to the table. An `UnknownNameError` means that the board has nothing for it.
    long : bool
        Whether it has too many rows for a terminal; pages fold it.
    file_only : bool
        Whether it has too many rows for a page, too: only exports have it.
    """

    name: str
    make: Callable[[Board], Grid]
    long: bool = False
    file_only: bool = False


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes
    ----------
    name, title, source : str
        Its name, what it is about, and the publication.
    spec : Path
        The TOML file of its benchmark, which ``besiege run`` takes; or a folder with one for each
        data set, such as ``cifar10.toml``.
    claims : tuple of Claim
        Its claims, declared before the run.
    tables : tuple of Table
        Its tables.
    figures : callable
        From a board to the figures.
    readings : callable
        From a board to sentences that stand beside the tables: how they are not to be read.
    sizes : mapping
        Numbers of images and queries by name, such as ``smoke``; see `besiege.studies.choosing`.
    tags : mapping
        For every tag and value, patterns of the texts of models that have it, for models that are
        chosen on the command line.
    only : mapping
        For patterns of cells the tag and value of the models that belong there.
    steps : mapping
        The queries of one step of attacks whose tries are limited through ``steps=``.
    parts : tuple of str
        Patterns of cells that are run one after the other where the whole takes too long.
    differs : tuple of str
        What differs from the publication, as sentences.
    """

    name: str
    title: str
    source: str
    spec: Path
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    figures: Callable[[Board], Sequence[Figure]] = lambda board: ()
    readings: Callable[[Board], Sequence[str]] = lambda board: ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    only: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def specs(self) -> dict[str, Path]:
        """Its specifications by their data; the only one of a study has its own name."""
        if self.spec.suffix == ".toml":
            return {self.name: self.spec}
        return {path.stem: path for path in sorted(self.spec.glob("*.toml"))}

    def benchmarks(self) -> list[Benchmark]:
        """The benchmarks of its specifications."""
        return [read_benchmark(path) for path in self.specs.values()]

    def differences(self, benchmark: Benchmark | None) -> list[str]:
        """What makes a run that of another benchmark, in which names may mean something else.

        The numbers of images and queries, and other models and cells besides, are free.
        """
        if benchmark is None:
            return ["it is no run of a benchmark"]
        found = [
            mine
            for mine in self.benchmarks()
            if (mine.data, mine.split) == (benchmark.data, benchmark.split)
        ]
        if not found:
            return ["other data"]
        there = {cell.name: cell for cell in found[0].cells}
        wrong = [
            f"the model '{name}'"
            for name, text in found[0].models.items()
            if benchmark.models.get(name, text) != text
        ]
        return wrong + [
            f"the cell '{cell.name}'"
            for cell in benchmark.cells
            if cell.name in there and self._kind(cell) != self._kind(there[cell.name])
        ]

    def _kind(self, cell: Cell) -> Cell:
        """A cell without what sizes and models change."""
        attacks = None if cell.attacks is None else tuple(map(self._stepless, cell.attacks))
        free: dict[str, Any] = {"count": None, "queries": None, "models": None, "substitute": {}}
        return cell.model_copy(update={**free, "beside": (), "attacks": attacks})

    def _stepless(self, attack: str) -> str:
        for name in self.steps:
            attack = re.sub(rf"({re.escape(name)}\(steps=)\d+", r"\1", attack)
        return attack

    def must_be_of(self, benchmark: Benchmark | None, source: str) -> None:
        """Refuse the run of another benchmark."""
        if wrong := self.differences(benchmark):
            raise InputError(
                f"{source} is not a run of the study '{self.name}': {', '.join(wrong)}. "
                f"`besiege study {self.name}` says how to run it"
            )

    def answers(self, board: Board) -> tuple[Answer, ...]:
        """The answers to all claims about the data of a board.

        Any of them is false in at most 5 % of all experiments: every interval has the level
        `level`, which counts the declared claims, whether they were run or not.
        """
        data = {cell.data for cell in board.cells}
        mine = (one for one in self.claims if not one.data or data & set(one.data))
        return tuple(_answer(claim, _measured(claim, board, self.level)) for claim in mine)

    @property
    def level(self) -> float:
        """The level of the interval of each claim."""
        return level_of_each(len(self.claims))

    def table(self, name: str, board: Board) -> Grid:
        """The table of a name."""
        names = [one.name for one in self.tables]
        if name not in names:
            have = near(name, names) if names else "it has none"
            raise UnknownNameError(f"no table of the study '{self.name}' is '{name}': {have}")
        return self.tables[names.index(name)].make(board)

    def shown(self, board: Board, *, long: bool = False) -> dict[str, Grid]:
        """The tables by their names, without those that the board has nothing for.

        `long` ones are other tables than those that are not.
        """
        found = {}
        for one in (each for each in self.tables if each.long == long and not each.file_only):
            with suppress(UnknownNameError):
                found[one.name] = one.make(board)
        return found


def study_of(benchmark: Benchmark | None) -> Study | None:
    """The study that a benchmark belongs to, if any."""
    if benchmark is None or benchmark.name not in STUDIES:
        return None
    found = STUDIES.get(benchmark.name)
    return None if found.differences(benchmark) else found


def _measured(claim: Claim, board: Board, level: float) -> Measured | str:
    """What the board says, or why it says nothing."""
    try:
        return claim.measure(board, level=level)
    except UnknownNameError as problem:
        return str(problem)


def _answer(claim: Claim, found: Measured | str) -> Answer:
    nothing = Answer(claim.id, claim.text, "not run", claim.smallest, claim.denied)
    nothing = replace(nothing, paper=claim.paper)
    if isinstance(found, str):
        why = found[:1].upper() + found[1:]
        return replace(nothing, caveat=_joined(f"{why}.", claim.caveat))
    verdict, needed = decide(found.low, found.high, claim.smallest, denied=claim.denied), None
    if verdict == "cannot tell":
        needed = found.needed or images_needed(found, claim.smallest, claim.denied)
        # An effect that more images do not settle, such as one of few models, needs no more.
        needed = needed if needed > found.count else None
    caveat = _joined(found.caveat, claim.caveat)
    return replace(nothing, verdict=verdict, effect=found, needed=needed, caveat=caveat)


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


STUDIES: Registry[Study] = Registry(
    "study",
    (
        "besiege.studies.digits",
        "besiege.studies.realsafe.realsafe",
        "besiege.studies.autoattack.autoattack",
        "besiege.studies.deepsec.deepsec",
        "besiege.studies.su.su",
    ),
    group="besiege.studies",
)
