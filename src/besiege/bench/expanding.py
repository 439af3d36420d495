"""Expands a benchmark: every cell, model, budget and seed becomes one request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from besiege.attacks.attack import Attack, parse
from besiege.bench.benchmark import Benchmark, Cell, must_be_sound, place_of
from besiege.bench.request import read_attacks, read_threat, suite_attacks
from besiege.bench.spec import Request
from besiege.core.errors import BesiegeError
from besiege.core.text import short
from besiege.core.threat import Access, Threat
from besiege.data.catalogue import CATALOGUE


@dataclass(frozen=True)
class Entry:
    """One evaluation of a benchmark.

    Attributes
    ----------
    cell, model : str
        Names in the benchmark.
    budget : str, optional
        The budget as written; None for a search.
    seed : int
        The seed.
    request : Request
        What is evaluated.
    """

    cell: str
    model: str
    budget: str | None
    seed: int
    request: Request

    @property
    def key(self) -> tuple[str, str, str | None, int]:
        """What distinguishes it from the others of the benchmark."""
        return self.cell, self.model, self.budget, self.seed


@dataclass(frozen=True)
class Declared:
    """A benchmark and all its evaluations."""

    benchmark: Benchmark
    entries: tuple[Entry, ...]
    source: str = "the benchmark"

    def place(self, entry: Entry) -> str:
        """The place of an evaluation in messages."""
        names = [cell.name for cell in self.benchmark.cells]
        return f"{place_of(names.index(entry.cell) + 1, entry.cell)}, model '{entry.model}'"


def declared(benchmark: Benchmark, base: Path, source: str = "the benchmark") -> Declared:
    """A benchmark with its evaluations; files that it names are relative to `base`."""
    return Declared(benchmark, expand(benchmark, base, source), source)


def expand(benchmark: Benchmark, base: Path, source: str = "the benchmark") -> tuple[Entry, ...]:
    """All evaluations of a benchmark, cell by cell; one error has all problems of its attacks."""
    problems: list[str] = []
    entries: list[Entry] = []
    for number, cell in enumerate(benchmark.cells, 1):
        found = _cell(benchmark, cell, base, problems, place_of(number, cell.name))
        entries += found
    must_be_sound(source, problems)
    return tuple(entries)


def _cell(
    benchmark: Benchmark, cell: Cell, base: Path, problems: list[str], place: str
) -> Iterator[Entry]:
    """The evaluations of a cell; none where its attacks have problems."""
    before = len(problems)
    asked = [
        (budget, text, _attacks(cell, text, base, problems, place))
        for budget, text in cell.threats()
    ]
    if len(problems) > before:
        return
    for model in benchmark.models if cell.models is None else cell.models:
        for budget, text, attacks in asked:
            for seed in benchmark.seeds(cell):
                request = Request.of(
                    model=beside(benchmark.models[model], base),
                    data=benchmark.data,
                    threat=text,
                    attacks=attacks,
                    suite=None if attacks or cell.suite is None else beside(cell.suite, base),
                    goal=cell.goal,
                    access=cell.access,
                    queries=cell.queries,
                    curve="none",
                    count=benchmark.count if cell.count is None else cell.count,
                    seed=seed,
                    split=benchmark.split,
                    shard=benchmark.shard,
                    substitute=tuple(
                        beside(benchmark.models.get(one, one), base)
                        for one in cell.substitutes(model)
                    ),
                    examine=cell.examine,
                )
                if request.data not in CATALOGUE:
                    request = request.model_copy(update={"data": str(base / request.data)})
                yield Entry(cell.name, model, budget, seed, request)


def _attacks(
    cell: Cell, text: str, base: Path, problems: list[str], place: str
) -> tuple[str, ...] | None:
    """The texts of a cell's attacks under a threat; None for a suite, which has its own."""
    try:
        threat = read_threat(text, cell.goal, cell.access)
        if cell.attacks is None and not cell.searches:
            read_attacks(None, cell.suite, threat)
            return None
        listed: Sequence[str | Attack] = cell.attacks or suite_attacks(cell.suite or "", threat)
    except BesiegeError as problem:
        problems.append(f"{place}: {problem}")
        return None
    found: list[str] = []
    for number, one in enumerate(listed, 1):
        where = f"{place}.{'suite' if cell.attacks is None else f'attacks[{number}]'}"
        try:
            written = beside(str(one), base)
            read_attacks([*found, _searching(cell, written, threat)], None, threat)
            found.append(_searching(cell, written, threat))
        except BesiegeError as problem:
            problems.append(f"{where} '{short(str(one))}': {problem}")
    return tuple(found)


def _searching(cell: Cell, text: str, threat: Threat) -> str:
    """The text of an attack in its cell: a search for the smallest perturbation, if asked for."""
    if not cell.searches:
        return text
    attack = parse(text, threat)
    if cell.substitute and attack.access is Access.GRADIENT:
        raise BesiegeError(
            "images crafted on a substitute are sent once, so that nothing can be searched on the "
            'victim: write budgets = [...] in place of budget = "search"'
        )
    return text if attack.minimal else f"minimal({text})"


_WORD = re.compile(r"""[^'"()=,+:\s][^'"()=,+:]*""")


def beside(text: str, base: Path) -> str:
    """The text of a model or an attack, in which files beside the benchmark have their path.

    Examples
    --------
    >>> beside("zoo:digits-natural", Path("specs"))
    'zoo:digits-natural'
    """

    def placed(word: re.Match[str]) -> str:
        name = word[0].rstrip()
        named = "." in name or "/" in name
        there = named and not Path(name).is_absolute() and (base / name).exists()
        return str(base / name) + word[0][len(name) :] if there else word[0]

    remote = text.startswith(("http://", "https://"))
    return text if remote else _WORD.sub(placed, text)
