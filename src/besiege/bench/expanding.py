"""Expands a benchmark: every cell, model, budget and seed becomes one request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from besiege.attacks.attack import Attack, parse
from besiege.bench.attack_lists import Listed, read_attacks, suite_attacks
from besiege.bench.benchmark import Benchmark, Cell
from besiege.bench.benchmark_files import must_be_sound, place_of
from besiege.bench.clever_text import clever_of
from besiege.bench.request import read_threat
from besiege.bench.spec import Request, Trained
from besiege.core.errors import BesiegeError
from besiege.core.text import short
from besiege.core.threat import Access, Threat
from besiege.data.catalogue import CATALOGUE
from besiege.defenses.layers import LANGUAGE
from besiege.models.public import side_of
from besiege.training.fitting import read_architecture
from besiege.training.recipes import recipe


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
    """A benchmark and all its evaluations.

    Attributes
    ----------
    benchmark : Benchmark
        The benchmark.
    entries : tuple of Entry
        Its evaluations; with problems, those of sound cells.
    source : str
        Its name in messages.
    models : mapping
        The names of its models that are not trained, and their texts with the paths of files.
    problems : tuple of str
        What is wrong with it: an error names these together with the problems of its models.
    trainings : mapping
        The models that are trained first, by their names, which are also their texts in requests.
    """

    benchmark: Benchmark
    entries: tuple[Entry, ...]
    source: str
    models: Mapping[str, str]
    problems: tuple[str, ...] = ()
    trainings: Mapping[str, Trained] = field(default_factory=dict)

    def place(self, entry: Entry) -> str:
        """The place of an evaluation in messages."""
        names = [cell.name for cell in self.benchmark.cells]
        return f"{place_of(names.index(entry.cell) + 1, entry.cell)}, model '{entry.model}'"


def declared(
    benchmark: Benchmark,
    base: Path,
    source: str = "the benchmark",
    problems: list[str] | None = None,
) -> Declared:
    """A benchmark with its evaluations; files that it names are relative to `base`.

    Problems of its texts are raised in one error. With a list of the problems of its file, they
    are added to these, and stay in the result.
    """
    found = [] if problems is None else problems
    wrong = [*_training_problems(benchmark, base)]
    entries = _expanded(benchmark, base, found)
    found += _layer_problems(benchmark)
    found += [problem for _, problem in wrong]
    if problems is None:
        must_be_sound(source, found)
    ready = {name: text for name, text in benchmark.models.items() if isinstance(text, str)}
    models = {name: beside(text, base) for name, text in ready.items()}
    used = {name for entry in entries for name in (entry.model, *entry.request.substitute)}
    sound = used - {name for name, _ in wrong}
    names = [name for name in benchmark.trained if name in sound]
    trainings = {name: _placed(benchmark, name, base) for name in names}
    return Declared(benchmark, entries, source, models, tuple(found), trainings)


def _expanded(benchmark: Benchmark, base: Path, problems: list[str]) -> tuple[Entry, ...]:
    """All evaluations of a benchmark, cell by cell; problems of its attacks are added to others.

    Cells with problems are left out. Where data or models may be wrong there is no evaluation.
    """
    entries: list[Entry] = []
    for number, cell in enumerate(benchmark.cells, 1):
        if not any(one.startswith(place_of(number, None)) for one in problems):
            entries += _cell(benchmark, cell, base, problems, place_of(number, cell.name))
    of_cells = all(one.startswith("cells[") for one in problems)
    return tuple(entries) if of_cells else ()


def _layer_problems(benchmark: Benchmark) -> Iterator[str]:
    """The problems of the layers that replayed images pass."""
    for number, one in enumerate(benchmark.replays, 1):
        for text in one.through:
            try:
                LANGUAGE.read(text)
            except BesiegeError as problem:
                yield f"replays[{number}].through '{short(text)}': {problem}"


def _training_problems(benchmark: Benchmark, base: Path) -> Iterator[tuple[str, str]]:
    """Models and problems of their recipes and architectures, as far as texts show them."""
    for name in benchmark.trained:
        given = _placed(benchmark, name, base)
        try:
            recipe(given.train, given.data)
        except BesiegeError as problem:
            yield name, f"models.{name}.train: {problem}"
        try:
            read_architecture(given.arch)
        except BesiegeError as problem:
            yield name, f"models.{name}.arch: {problem}"


def _placed(benchmark: Benchmark, name: str, base: Path) -> Trained:
    """A training of a benchmark, with its data and the paths of files beside the benchmark."""
    given = benchmark.trained[name]
    data = benchmark.data if given.data is None else given.data
    return given.model_copy(
        update={
            "train": beside(given.train, base),
            "arch": beside(given.arch, base),
            "data": _data(data, base),
        }
    )


def _data(text: str, base: Path) -> str:
    """The text of data; a path, possibly with options, is relative to the benchmark."""
    named = text.partition("(")[0].strip()
    there = named not in CATALOGUE and any((base / one).exists() for one in (text, named))
    return str(base / text) if there else text


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
    listed = benchmark.models if cell.models is None else cell.models
    sides = {model: _side(benchmark, cell, model, problems, place) for model in listed}
    if len(problems) > before:
        return
    for model in (one for one in listed if one in benchmark.models):
        for budget, text, attacks in asked:
            for seed in benchmark.seeds(cell):
                request = Request.of(
                    model=_model(benchmark, model, base),
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
                        _model(benchmark, one, base) for one in cell.substitutes(model)
                    ),
                    examine=cell.examine,
                    clever=clever_of(cell.clever or False),
                    across=_across(benchmark, cell, model, sides, base),
                    certify=cell.certify,
                    **({} if sides[model] is None else {"crop": sides[model]}),
                )
                if request.data not in CATALOGUE:
                    request = request.model_copy(update={"data": str(base / request.data)})
                yield Entry(cell.name, model, budget, seed, request)


def _side(
    benchmark: Benchmark, cell: Cell, model: str, problems: list[str], place: str
) -> str | None:
    """The side of the images that a model gets; None where the benchmark's data say it."""
    if cell.crop is None or model not in benchmark.models:
        return None
    text = benchmark.models[model]
    name = text.partition("+")[0].strip() if isinstance(text, str) else ""
    found = side_of(name)
    if found is None:
        problems.append(
            f"{place}.crop: the side of '{model}' is not known: leave crop out, and write the side "
            "with the data, such as imagenet-sample(crop=224)"
        )
    elif "crop=" in benchmark.data.replace(" ", ""):
        problems.append(f"{place}.crop: the data '{benchmark.data}' have a side already")
    return None if found is None else str(found)


def _across(
    benchmark: Benchmark, cell: Cell, source: str, sides: Mapping[str, str | None], base: Path
) -> tuple[str, ...]:
    """The other models of a cell; those of another side behind a layer that adapts the images."""
    if cell.across is None:
        return ()
    found = []
    for name in (one for one in sides if one != source and one in benchmark.models):
        other = sides[name] != sides[source]
        layer = f"+adapt(size={sides[name]}, how='{cell.across}')" if other else ""
        found.append(_model(benchmark, name, base) + layer)
    return tuple(found)


def _model(benchmark: Benchmark, name: str, base: Path) -> str:
    """The text of a model by its name, or of one that the benchmark does not name."""
    found = benchmark.models.get(name, name)
    return name if isinstance(found, Trained) else beside(found, base)


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
    found, known = [], Listed()
    for number, one in enumerate(listed, 1):
        where = f"{place}.{'suite' if cell.attacks is None else f'attacks[{number}]'}"
        try:
            written = beside(str(one), base)
            found.append(_searching(cell, written, threat))
            known.add(found[-1], threat)
        except BesiegeError as problem:
            problems.append(f"{where} '{short(str(one))}': {problem}")
    return tuple(found)


def _searching(cell: Cell, text: str, threat: Threat) -> str:
    """The text of an attack in its cell: a search for the smallest perturbation, if asked for."""
    if not cell.searches:
        return text
    attack = parse(text, threat)
    if attack.oblivious or (cell.substitute and attack.access is Access.GRADIENT):
        raise BesiegeError(
            "images crafted on another model are sent once, so that nothing can be searched on the "
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
