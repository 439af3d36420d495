"""A study: a benchmark in the package, and the claims that its results answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from besiege.bench.benchmark import read_benchmark
from besiege.core.errors import InputError, UnknownNameError
from besiege.core.registry import Registry
from besiege.studies.answers import Answer, Measured, decide, images_needed, level_of_each

if TYPE_CHECKING:
    from besiege.bench.benchmark import Benchmark
    from besiege.bench.board import Board
    from besiege.metrics.bands import Bands


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
    """

    id: str
    text: str
    measure: Measure
    smallest: float = 0.01
    denied: float = 0.0
    paper: str = ""
    caveat: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of a study."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Curves:
    """A figure of a study: a curve with bands for each name."""

    title: str
    axis: str
    names: tuple[str, ...]
    bands: Bands


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes
    ----------
    name, title, source : str
        Its name, what it is about, and the publication.
    spec : Path
        The TOML file of its benchmark, which ``besiege run`` takes.
    claims : tuple of Claim
        Its claims, declared before the run.
    tables, figures : callable
        From a board to the tables and figures of the study.
    """

    name: str
    title: str
    source: str
    spec: Path
    claims: tuple[Claim, ...]
    tables: Callable[[Board], Sequence[Grid]] = lambda board: ()
    figures: Callable[[Board], Sequence[Curves]] = lambda board: ()

    def must_be_of(self, benchmark: Benchmark | None, source: str) -> None:
        """Refuse the run of another benchmark, in which names may mean something else.

        The number of images, and other models and cells besides, are free.
        """
        mine = read_benchmark(self.spec)
        wrong = [] if benchmark is not None else ["it is no run of a benchmark"]
        if benchmark is not None:
            there = {cell.name: cell for cell in benchmark.cells}
            same = [mine.data == benchmark.data, mine.split == benchmark.split]
            wrong += [] if all(same) else ["other data"]
            wrong += [
                f"the model '{name}'"
                for name, text in mine.models.items()
                if benchmark.models.get(name) != text
            ]
            wrong += [
                f"the cell '{cell.name}'"
                for cell in mine.cells
                if cell.name in there and there[cell.name] != cell
            ]
        if wrong:
            raise InputError(
                f"{source} is not a run of the study '{self.name}': {', '.join(wrong)}. Run "
                f"`besiege run {self.spec}`; `besiege study {self.name}` says more"
            )

    def answers(self, board: Board) -> tuple[Answer, ...]:
        """The answers to all claims.

        Any of them is false in at most 5 % of all experiments: every interval has the level
        `level`, which counts the declared claims, whether they were run or not.
        """
        return tuple(_answer(claim, _measured(claim, board, self.level)) for claim in self.claims)

    @property
    def level(self) -> float:
        """The level of the interval of each claim."""
        return level_of_each(len(self.claims))

    def shown(self, board: Board) -> Sequence[Grid]:
        """The tables; none of a board without the cells and models that they are about."""
        try:
            return self.tables(board)
        except UnknownNameError:
            return ()


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
        return replace(nothing, caveat=_joined(f"{found}.", claim.caveat))
    verdict, needed = decide(found.low, found.high, claim.smallest, denied=claim.denied), None
    if verdict == "cannot tell":
        needed = found.needed or images_needed(found, claim.smallest, claim.denied)
    caveat = _joined(found.caveat, claim.caveat)
    return replace(nothing, verdict=verdict, effect=found, needed=needed, caveat=caveat)


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


STUDIES: Registry[Study] = Registry("study", ("besiege.studies.digits",), group="besiege.studies")
