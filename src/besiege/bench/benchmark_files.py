"""Reads the TOML file of a benchmark, and finds all its problems at once, each with its place.

Nothing here imports torch: `besiege.bench.expanding` checks whether attacks exist and models fit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from besiege.attacks.suites import SUITES
from besiege.bench.benchmark import DEFAULT, Benchmark, Cell
from besiege.bench.clever_text import read_clever
from besiege.bench.spec import Trained, Value
from besiege.core.errors import BesiegeError, InputError, StoreError, near
from besiege.core.files import read_file
from besiege.core.text import MOST, quoted, short
from besiege.core.threat import Threat

V = TypeVar("V", bound=Value)


def read_benchmark(path: Path | str, problems: list[str] | None = None) -> Benchmark:
    """The benchmark of a TOML file; one error has all its problems.

    Parameters
    ----------
    path : path
        The file. Files that it names are relative to its folder.
    problems : list of str, optional
        Where its problems are added in place of the error. What is wrong has a stand-in then.
    """
    path = Path(path)
    try:
        content = tomllib.loads(read_file(path).decode())
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: name the TOML file of a benchmark") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InputError(f"{path} is not TOML: {problem}") from None
    return benchmark_of(content, str(path), problems)


def benchmark_of(
    content: Mapping[str, Any], source: str = "the benchmark", found: list[str] | None = None
) -> Benchmark:
    """The benchmark of the content of a TOML file; its problems are raised, or added to `found`."""
    problems: list[str] = []
    header = {name: value for name, value in content.items() if name != "cells"}
    stand_ins = {"name": "benchmark", "data": "", "models": {}, "cells": ()}
    benchmark, unread = _valid(Benchmark, header, stand_ins, "", problems)
    raw = content.get("models", {})
    models = raw if isinstance(raw, dict) else {}
    if isinstance(raw, dict):  # without the models' names, no other problem can be named
        problems += _header_problems(benchmark, models)
    cells: list[Cell] = []
    given = content.get("cells")
    if not isinstance(given, list) or not given:
        problems.append("cells: none is declared, write at least one table [[cells]]")
        given = []
    for number, one in enumerate(given, 1):
        table = one if isinstance(one, dict) else {}
        place = place_of(number, table.get("name"))
        cell, wrong = _valid(Cell, table, {"name": place, "threat": "linf:1"}, place, problems)
        if cell.name in [other.name for other in cells]:
            problems.append(f"{place}.name: another cell has it, but every cell needs its own")
        # What follows from a wrong value is no problem of its own.
        problems += [
            f"{place}{problem}"
            for problem in _cell_problems(cell, models)
            if not (wrong and problem.startswith((":", *(f".{name}" for name in wrong))))
        ]
        cells.append(cell)
    if found is None:
        must_be_sound(source, problems)
    else:
        found += problems
    known = benchmark.models
    if "models" in unread:  # one of them: the others are checked all the same
        known = {name: text for name, text in models.items() if isinstance(text, str)}
    return benchmark.model_copy(update={"models": known, "cells": tuple(cells)})


def _valid(
    kind: type[V], given: Mapping[str, Any], needed: Mapping[str, Any], place: str, found: list[str]
) -> tuple[V, set[str]]:
    """A value without the keys that are wrong, and these; their problems are added to `found`."""
    wrong: set[str] = set()
    try:
        kind.model_validate({**({"cells": ()} if "cells" in needed else {}), **given})
    except ValidationError as problem:
        wrong = {str(one["loc"][0]) for one in problem.errors()}
        found += _told(problem, kind, place)
    right = {name: value for name, value in given.items() if name not in wrong}
    return kind.model_validate({**needed, **right}), wrong


def must_be_sound(source: str, problems: Iterable[str]) -> None:
    """Raise one error with all problems of a benchmark, if there are any."""
    listed = list(dict.fromkeys(problems))
    if listed:
        count = "a problem" if len(listed) == 1 else f"{len(listed)} problems"
        raise InputError("\n".join([f"{source} has {count}:", *(f"- {one}" for one in listed)]))


def must_continue(old: Benchmark, new: Benchmark, source: str) -> None:
    """Refuse a benchmark that changed under its run: cells and models may only be added.

    Pairs are declared before the run, so new ones must be about new models. Tags, and what is
    kept, change no result.
    """
    changed = [
        name
        for name in ("name", "data", "count", "seed", "split", "shard")
        if getattr(old, name) != getattr(new, name)
    ]
    changed += [
        f"models.{name}" for name, text in old.models.items() if new.models.get(name) != text
    ]
    now = {cell.name: cell for cell in new.cells}
    changed += [f'cells "{cell.name}"' for cell in old.cells if now.get(cell.name) != cell]
    before = set(old.compare.pairs)
    added = [pair for pair in new.compare.pairs if pair not in before]
    if before - set(new.compare.pairs) or any(set(pair) <= set(old.models) for pair in added):
        changed.append("compare.pairs")
    if changed:
        raise StoreError(
            f"{source} is a run of this benchmark as it was before a change of "
            f"{', '.join(changed)}: cells and models may be added to a run, but not changed. "
            "Choose another folder; records are not shared between folders"
        )


def place_of(number: int, name: object) -> str:
    """The place of a cell in messages; cells are counted from 1."""
    return f"cells[{number}]" + (f' "{short(name)}"' if isinstance(name, str) else "")


def _told(found: ValidationError, kind: type[Value], place: str) -> Iterator[str]:
    """The problems that pydantic found, each with its place and, for a key, a near match."""
    for one in found.errors():
        where, inside = place, kind
        for depth, part in enumerate(one["loc"]):
            if one["loc"][0] == "models" and depth == 2:  # the form of the model
                inside = Trained
                continue
            if isinstance(part, int):
                where += f"[{part + 1}]"
                continue
            where += f".{part}" if where else part
            field = inside.model_fields.get(part)
            annotation = None if field is None else field.annotation
            if isinstance(annotation, type) and issubclass(annotation, Value):
                inside = annotation
        if one["type"] == "extra_forbidden":
            yield f"{where}: unknown key, {near(str(one['loc'][-1]), inside.model_fields)}"
        elif one["type"] == "missing" and one["loc"] != ("models",):
            yield f"{where}: it is missing"
        elif one["type"] != "missing":
            message = one["msg"].replace("Input should", "it should", 1)
            message = message.replace("a valid dictionary", "a table of NAME = VALUE")
            yield f"{where}: {message}, but it is {quoted(one['input'])}"


def _header_problems(benchmark: Benchmark, models: Mapping[str, Any]) -> Iterator[str]:
    if not models:
        yield "models: none is declared, write a table [models] of NAME = MODEL"
    texts = list(models.values())
    for number, (name, text) in enumerate(models.items()):
        if text in texts[:number]:
            yield f"models.{name}: it is the same model as '{list(models)[texts.index(text)]}'"
        if name == DEFAULT or not name.strip() or len(name) > 80:
            yield f"models.{short(name)}: choose another name of at most 80 letters"
    for name in benchmark.absent:
        if name in models:
            yield f"absent.{name}: it is one of [models], so it is not absent"
    for tag, values in benchmark.tags.items():
        for model in values:
            if model not in models and model not in benchmark.absent:
                yield f"tags.{tag}.{model}: {_no_model(model, models)}"
    yield from _replay_problems(benchmark, models)
    seen: set[frozenset[str]] = set()
    for number, pair in enumerate(benchmark.compare.pairs, 1):
        where = f"compare.pairs[{number}]"
        yield from (f"{where}: {_no_model(one, models)}" for one in pair if one not in models)
        if pair[0] == pair[1]:
            yield f"{where}: '{pair[0]}' is compared with itself"
        if frozenset(pair) in seen:
            yield f"{where}: the pair is declared twice"
        seen.add(frozenset(pair))


def _replay_problems(benchmark: Benchmark, models: Mapping[str, Any]) -> Iterator[str]:
    if benchmark.replays and benchmark.store.images != "all":
        yield 'replays: the images must be there: write images = "all" in [store]'
    for number, one in enumerate(benchmark.replays, 1):
        where = f"replays[{number}]"
        for name in (one.source, *one.on):
            if name not in models:
                yield f"{where}: {_no_model(name, models)}"
        if one.source in one.on:
            yield f"{where}.on: '{one.source}' is the source itself: leave on out, and name a layer"
        if not one.on and not one.through:
            yield f"{where}: name other models (on), or layers that the images pass (through)"


def _no_model(name: str, models: Mapping[str, Any]) -> str:
    return f"no model of [models] is called '{short(name)}', {near(name, models)}"


def _cell_problems(cell: Cell, models: Mapping[str, Any]) -> Iterator[str]:
    """The problems of a cell, each after its place."""
    if (cell.attacks is None) == (cell.suite is None):
        yield ": give attacks or a suite, one of the two"
    if cell.clever is not None:
        try:
            read_clever(cell.clever).of(cell.threat.partition(":")[0].split()[0])
        except BesiegeError as problem:
            yield f".clever: {problem}"
    if cell.attacks is not None and not cell.attacks:
        yield '.attacks: none is listed, write for example attacks = ["pgd"]'
    if cell.suite is not None and cell.suite not in SUITES and not set(cell.suite) & set(",(:"):
        yield f".suite: no suite is called '{short(cell.suite)}', {near(cell.suite, SUITES)}"
    for number, seed in enumerate(cell.seeds, 1):
        if not -MOST - 1 <= seed <= MOST or seed in cell.seeds[: number - 1]:
            yield f".seeds[{number}]: {quoted(seed)} is listed twice, or too large"
    yield from _threat_problems(cell)
    for key, names in (("models", cell.models or ()), ("beside", cell.beside)):
        for number, name in enumerate(names, 1):
            if name not in models:
                yield f".{key}[{number}]: {_no_model(name, models)}"
    if cell.models is not None and len(set(cell.models)) < max(1, len(cell.models)):
        yield ".models: list at least one, and each once"
    if cell.across is not None and (cell.substitute or cell.suite is not None):
        what = "substitute" if cell.substitute else "suite"
        yield f".across: it is for attacks = [...] on the models themselves: leave {what} out"
    yield from _substitute_problems(cell, models)


def _threat_problems(cell: Cell) -> Iterator[str]:
    try:
        threat = Threat.parse(cell.threat)
    except BesiegeError as problem:
        yield f".threat: {problem}"
        return
    if cell.searches and cell.budgets:
        yield ": give budget or budgets, not both: a search has every budget"
    if not (cell.searches or cell.budgets or threat.eps is not None):
        yield (
            f".threat: '{cell.threat}' has no budget: write one such as "
            f"'{threat.norm.example}', or budgets = [...], or budget = \"search\""
        )
    sizes = []
    for number, (_, text) in enumerate(cell.threats() if cell.budgets else (), 1):
        try:
            eps = Threat.parse(text).eps
        except BesiegeError as problem:
            yield f".budgets[{number}]: {problem}"
            continue
        if eps in sizes:
            yield f".budgets[{number}]: the budget is listed twice"
        sizes.append(eps)
    if cell.budgets and threat.eps is not None and threat.eps not in sizes:
        yield (
            f".threat: its budget is none of the budgets: write '{threat.norm}', or add it to them"
        )


def _substitute_problems(cell: Cell, models: Mapping[str, Any]) -> Iterator[str]:
    for target, sources in cell.substitute.items():
        where = f".substitute.{target}"
        if target != DEFAULT and target not in models:
            yield f"{where}: {_no_model(target, models)}"
        if not sources:
            yield f"{where}: no model is listed"
        # A model that is not evaluated itself may be written as a text.
        unknown = [one for one in sources if one not in models and ":" not in one]
        yield from (f"{where}: {_no_model(one, models)}" for one in unknown)
    for target in models if cell.models is None else cell.models:
        sources = cell.substitutes(target)
        if cell.substitute and not sources:
            yield f".substitute: there is none for '{target}': name one, or a {DEFAULT}"
        if any(models.get(one, one) == models.get(target) for one in sources):
            yield (
                f".substitute: '{target}' would be attacked through itself: write "
                f"substitute = {{{DEFAULT} = ..., {target} = OTHER}}, or models = [...] without it"
            )
