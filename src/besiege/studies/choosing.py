"""The benchmark of a study by data, size, models and cells: the specification, changed as asked.

Each change gives a benchmark that a user could have written into a file. Nothing here runs or
reads a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from besiege.bench.benchmark import DEFAULT, Benchmark, Cell, Compare, Shown
from besiege.bench.benchmark_files import benchmark_of, read_benchmark
from besiege.core.errors import InputError, UnknownNameError, near
from besiege.core.text import MOST, short

if TYPE_CHECKING:
    from besiege.studies.study import Study


@dataclass(frozen=True)
class Size:
    """Numbers of images and queries; None leaves those of the specification.

    Attributes
    ----------
    about : str
        The size in words.
    count, queries : int, optional
        Images, and queries of one try of attacks that are limited.
    cells : mapping
        Other numbers for the cells whose name matches a pattern, the last one that does: images
        and queries.
    """

    about: str
    count: int | None = None
    queries: int | None = None
    cells: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def of(self, cell: str) -> tuple[int | None, int | None]:
        """The numbers of images and queries of a cell."""
        found: tuple[int | None, int | None] = (None, self.queries)
        for pattern, numbers in self.cells.items():
            if fnmatchcase(cell, pattern):
                found = numbers
        return found


@dataclass(frozen=True)
class Choice:
    """What a user asks of a study.

    Attributes
    ----------
    data, size : str, optional
        The names of the specification and of the size; the study may have one only.
    models : tuple of str
        Models in place of those of the specification: their names there, texts, or ``NAME=TEXT``.
    count, queries : int, optional
        At most so many images, and queries of a try, in every cell.
    only : str, optional
        A pattern of the names of cells.
    """

    data: str | None = None
    size: str | None = None
    models: tuple[str, ...] = ()
    count: int | None = None
    queries: int | None = None
    only: str | None = None


def chosen(study: Study, choice: Choice) -> tuple[Benchmark, Path]:
    """The benchmark that is asked for, and the specification that it comes from."""
    path = spec_of(study, choice.data)
    benchmark = read_benchmark(path)
    if choice.models:
        benchmark = with_models(study, benchmark, choice.models)
    benchmark = resized(study, benchmark, size_of(study, choice.size))
    if (choice.count, choice.queries) != (None, None):
        benchmark = limited(study, benchmark, choice.count, choice.queries)
    asked = with_cells(benchmark, choice.only)
    return _sound(asked, f"the study '{study.name}' as asked"), path


def spec_of(study: Study, data: str | None) -> Path:
    """The specification for a data set."""
    specs = study.specs
    if data is None and len(specs) == 1:
        return next(iter(specs.values()))
    if data is None:
        raise InputError(f"the study '{study.name}' has several data sets: --data {_or(specs)}")
    if data not in specs:
        raise UnknownNameError(
            f"the study '{study.name}' has no data '{data}': {near(data, specs)}"
        )
    return specs[data]


def size_of(study: Study, size: str | None) -> Size:
    """The size of a name; without one that of the specification."""
    if size is None:
        return Size("as specified")
    if size not in study.sizes:
        have = near(size, study.sizes) if study.sizes else "it has one size, leave --size out"
        raise UnknownNameError(f"the study '{study.name}' has no size '{size}': {have}")
    return study.sizes[size]


def resized(study: Study, benchmark: Benchmark, size: Size) -> Benchmark:
    """The benchmark with the numbers of images and queries of a size, or all images of its data."""
    cells, most = [], benchmark.available or MOST
    for cell in benchmark.cells:
        count, queries = size.of(cell.name)
        if size.count is not None or count is not None:
            cell = cell.model_copy(update={"count": count and min(count, most)})
        cells.append(cell if queries is None else within(study, cell, queries))
    header = {} if size.count is None else {"count": min(size.count, most)}
    return benchmark.model_copy(update={**header, "cells": tuple(cells)})


def limited(
    study: Study, benchmark: Benchmark, count: int | None, queries: int | None
) -> Benchmark:
    """The benchmark with at most so many images, and queries of a try, in every cell."""
    cells = []
    for cell in benchmark.cells:
        if count is not None and cell.count is not None:
            cell = cell.model_copy(update={"count": min(cell.count, count)})
        cells.append(cell if queries is None else within(study, cell, queries))
    header = {} if count is None else {"count": count}
    return benchmark.model_copy(update={**header, "cells": tuple(cells)})


def within(study: Study, cell: Cell, queries: int) -> Cell:
    """The cell with so many queries for a try of each attack that has a limit.

    A limit on a whole search would be spent by its first radius, so that the tries of a search are
    limited through their steps. The others have the limit of their cell.
    """
    attacks = tuple(_stepped(study, cell, one, queries) for one in cell.attacks or ())
    given = {} if cell.queries is None else {"queries": queries}
    return cell.model_copy(update={**given, "attacks": attacks or None})


def _stepped(study: Study, cell: Cell, attack: str, queries: int) -> str:
    for name, each in study.steps.items():
        if not re.search(rf"(?<![\w@-]){re.escape(name)}(?![\w@-])", attack):
            continue
        if queries < each:
            raise InputError(
                f"{queries:,} queries are less than one step of {name}, which takes {each:,} "
                f"(cell '{cell.name}'): give more with --queries"
            )
        pattern = rf"({re.escape(name)}\(steps=)\d+"
        attack = re.sub(pattern, rf"\g<1>{queries // each}", attack)
    return attack


def with_cells(benchmark: Benchmark, only: str | None) -> Benchmark:
    """The benchmark with the cells whose name matches a pattern, such as ``white*``."""
    if only is None:
        return benchmark
    cells = tuple(cell for cell in benchmark.cells if fnmatchcase(cell.name, only))
    if not cells:
        names = [cell.name for cell in benchmark.cells]
        raise UnknownNameError(f"--only '{short(only)}' matches no cell: {near(only, names)}")
    return benchmark.model_copy(update={"cells": cells})


def joined(before: Benchmark, now: Benchmark) -> Benchmark:
    """A benchmark with the cells and models that its run already has.

    A part that was run before stays: a run may grow by cells and models, and lose none. Each part
    keeps its own number of images.
    """
    if now.count != before.count:
        every = now.count or now.available
        own = {cell.name: cell.count or every for cell in now.cells}
        cells = tuple(cell.model_copy(update={"count": own[cell.name]}) for cell in now.cells)
        now = now.model_copy(update={"count": before.count, "cells": cells})
    mine = {cell.name for cell in now.cells}
    added = tuple(cell for cell in before.cells if cell.name not in mine)
    tags = {tag: {**before.tags.get(tag, {}), **values} for tag, values in now.tags.items()}
    pairs = dict.fromkeys((*before.compare.pairs, *now.compare.pairs))
    replays = dict.fromkeys((*before.replays, *now.replays))
    models = {**before.models, **now.models}
    both = now.model_copy(
        update={
            "models": models,
            "tags": {**before.tags, **tags},
            "cells": (*added, *now.cells),
            "compare": Compare(pairs=tuple(pairs)),
            "replays": tuple(replays),
            "absent": {name: why for name, why in now.absent.items() if name not in models},
        }
    )
    return _sound(both, "the run with what is added")


def _sound(benchmark: Benchmark, source: str) -> Benchmark:
    """The benchmark, read again: its problems are those of a file."""
    return benchmark_of(benchmark.model_dump(mode="json", exclude_defaults=True), source)


# Models.


def with_models(study: Study, benchmark: Benchmark, given: Sequence[str]) -> Benchmark:
    """The benchmark with other models; substitutes stay, as texts where they are not listed."""
    models = dict(_named(benchmark, given))
    tags = {tag: _tagged(study, benchmark, tag, models) for tag in (*benchmark.tags, *study.tags)}
    texts = {name: text for name, text in benchmark.models.items() if isinstance(text, str)}
    cells = []
    for cell in benchmark.cells:
        mine = cell.models and tuple(name for name in cell.models if name in models)
        for pattern, (tag, value) in study.only.items():
            if fnmatchcase(cell.name, pattern):
                mine = tuple(name for name in models if tags.get(tag, {}).get(name) == value)
        if mine != ():  # a cell of none of these models is not run
            substitute = _substitutes(cell, texts, models)
            others = tuple(name for name in cell.beside if name in models)
            own = {"models": mine, "substitute": substitute, "beside": others}
            cells.append(cell.model_copy(update=own))
    pairs = tuple(pair for pair in benchmark.compare.pairs if set(pair) <= set(models))
    update: dict[str, object] = {
        "models": models,
        "tags": tags,
        "cells": tuple(cells),
        "absent": {},
    }
    update["replays"] = tuple(_among(benchmark, models))
    return benchmark.model_copy(update={**update, "compare": Compare(pairs=pairs)})


def _among(benchmark: Benchmark, models: Mapping[str, object]) -> Iterator[Shown]:
    """The replays whose source is among the models, on those that are."""
    for one in benchmark.replays:
        on = tuple(name for name in one.on if name in models)
        if one.source in models and (on or not one.on):
            yield one.model_copy(update={"on": on})


def _named(benchmark: Benchmark, given: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Names and texts of models: those of the specification where it has them."""
    names = {text: name for name, text in benchmark.models.items() if isinstance(text, str)}
    seen: set[str] = set()
    for one in given:
        written = re.match(r"([\w.-]+)=(.+)", one.strip())
        text = written[2] if written else one.strip()
        if text in benchmark.absent:
            raise InputError(f"the model '{text}' is absent: {benchmark.absent[text]}")
        found = benchmark.models.get(text, text)
        name = text if text in benchmark.models else names.get(text, text.partition(":")[2] or text)
        name = written[1] if written else name[:80]
        if name in seen:
            raise InputError(f"--models lists '{short(name)}' twice: give each a name, NAME=MODEL")
        seen.add(name)
        yield name, found


def _tagged(
    study: Study, benchmark: Benchmark, tag: str, models: Mapping[str, object]
) -> dict[str, str]:
    """The values of a tag: of the specification, else by the patterns of the study."""
    own = {
        benchmark.models[name]: value
        for name, value in benchmark.tags.get(tag, {}).items()
        if name in benchmark.models
    }
    found = {name: own[text] for name, text in models.items() if text in own}
    for value, patterns in study.tags.get(tag, {}).items():
        for name, text in models.items():
            if any(fnmatchcase(str(text), pattern) for pattern in patterns):
                found.setdefault(name, value)
    return found


def _substitutes(
    cell: Cell, texts: Mapping[str, str], models: Mapping[str, object]
) -> dict[str, tuple[str, ...]]:
    """The substitutes of a cell for other models.

    A substitute that is no longer listed is written as a text. A model that is the substitute for
    all has the one that the specification has for it, under any name.
    """
    written = {
        name: tuple(one if one in models else texts.get(one, one) for one in sources)
        for name, sources in cell.substitute.items()
    }
    found = {DEFAULT: written[DEFAULT]} if DEFAULT in written else {}
    mine = {texts.get(name): sources for name, sources in written.items() if name != DEFAULT}
    return found | {name: mine[text] for name, text in models.items() if text in mine}


def _or(names: Mapping[str, object]) -> str:
    return " or ".join(names)
