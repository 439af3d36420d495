"""A benchmark: many models under many threats, declared in one TOML file.

``read_benchmark`` finds all problems of a file at once, each with its place. Nothing here imports
torch: `besiege.bench.expanding` checks whether attacks exist and models fit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from besiege.attacks.suites import SUITES
from besiege.bench.clever_text import read_clever
from besiege.bench.spec import Model, Seed, Trained, Value
from besiege.core.errors import BesiegeError, InputError, StoreError, near
from besiege.core.files import read_file
from besiege.core.text import MOST, quoted, short
from besiege.core.threat import Threat
from besiege.data.catalogue import CATALOGUE

V = TypeVar("V", bound=Value)
DEFAULT = "default"
"""The key of the substitute for all models that a cell does not name."""
Count = Field(default=None, ge=1, le=MOST)


class Compare(Value):
    """Pairs of models, declared before the run: p-values are corrected for these (Holm)."""

    pairs: tuple[tuple[str, str], ...] = ()


class Keep(Value):
    """What is kept besides verdicts: all adversarial images, those that pages show, or none."""

    images: Literal["all", "shown", "none"] = "all"


class Cell(Value):
    """One threat and its attacks; each model under it is an evaluation.

    Attributes
    ----------
    threat : str
        The threat. With a search its budget is the one that tables show.
    attacks, suite
        Attacks that each run on every sample, or a suite.
    budget : {"search"}, optional
        Search for the smallest perturbation, which gives accuracy at every budget.
    budgets : tuple of str
        Several budgets in the threat's norm, one evaluation each.
    substitute : mapping
        By model, or for all others under ``default``, the models that attacks are crafted on.
    models : tuple of str, optional
        Names of models; by default all that the attacks fit.
    seeds, count, queries, goal, access, examine
        As in `besiege.evaluate`; seed and count are by default those of the benchmark.
    clever : str, optional
        CLEVER scores of the images besides, such as ``clever(batches=100)``.
    certify : str, optional
        Method that also proves which images no perturbation within the budget can break, such as
        ``crown``.
    beside : tuple of str
        Models of other cells whose calibration images are left out here, too, so that this cell
        has the same images as theirs.
    crop : {"model"}, optional
        Each model gets the images cropped to its own side. Images keep their ids, so that models of
        all sizes are compared on the same ones. By default the benchmark's data say the size.
    across : {"grey", "white"}, optional
        The images that are crafted on each model are judged on all others of the cell, too. Models
        of another size get their middle, or a border in this colour around them.
    """

    name: str = Field(min_length=1, max_length=80)
    threat: str
    attacks: tuple[str, ...] | None = None
    suite: str | None = None
    budget: Literal["search"] | None = None
    budgets: tuple[str, ...] = ()
    substitute: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    models: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = ()
    count: int | None = Count
    queries: int | None = Count
    goal: str | None = None
    access: Literal["gradient", "score", "decision"] | None = None
    examine: Literal["full", "short", "none"] = "short"
    clever: str | None = None
    certify: str | None = None
    beside: tuple[str, ...] = ()
    crop: Literal["model"] | None = None
    across: Literal["grey", "white"] | None = None

    @field_validator("attacks", "models", "beside", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        return [given] if isinstance(given, str) else given

    @field_validator("substitute", mode="before")
    @classmethod
    def _by_model(cls, given: object) -> object:
        """One substitute, or several that form an ensemble, may stand without a table."""
        given = given if isinstance(given, Mapping) else {DEFAULT: given}
        return {k: [v] if isinstance(v, str) else v for k, v in given.items()}

    @field_validator("budgets", mode="before")
    @classmethod
    def _texts(cls, given: object) -> object:
        """Budgets may be numbers: 0.5 is the text "0.5"."""
        if not isinstance(given, (list, tuple)):
            return given
        return [
            str(one) if isinstance(one, (int, float)) and not isinstance(one, bool) else one
            for one in given
        ]

    @property
    def searches(self) -> bool:
        """Whether attacks search for the smallest perturbation."""
        return self.budget is not None

    def substitutes(self, model: str) -> tuple[str, ...]:
        """The models that attacks on a model are crafted on; none where it is attacked itself."""
        return self.substitute.get(model, self.substitute.get(DEFAULT, ()))

    def threats(self) -> list[tuple[str | None, str]]:
        """The budgets, and the text of the threat within each; a search has neither."""
        first, *others = self.threat.split()
        norm, _, written = first.partition(":")
        if self.searches:
            return [(None, " ".join([norm, *others]))]
        return [(one, " ".join([f"{norm}:{one}", *others])) for one in self.budgets or (written,)]


class Shown(Value):
    """Images of one model that are shown to others, or again to itself through a layer.

    They are judged once the attacks are over, as transfer or as a replay, and never counted as
    robustness (`besiege.bench.replaying`).

    Attributes
    ----------
    source : str
        The model that the images were made on.
    on : tuple of str
        The models that judge them; by default the source itself.
    through : tuple of str
        Layers that the images pass first, each by itself, such as ``jpeg(quality=90)``.
    cells : str
        A pattern of the names of cells; in each, the source and the judging model are needed.
    """

    source: str
    on: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    cells: str = "*"

    @field_validator("on", "through", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        return [given] if isinstance(given, str) else given


class Benchmark(Value):
    """Models, data and cells: all that a benchmark measures, declared before it runs.

    Attributes
    ----------
    name : str
        The name of the benchmark, and of its default folder.
    data, split, count, seed, shard
        The samples, as in `besiege.evaluate`.
    models : mapping
        Short names of models, and their texts or trainings.
    tags : mapping
        For every tag a value for some models; nothing that is measured depends on them.
    cells : tuple of Cell
        Threats and attacks.
    absent : mapping
        Models that belong to the benchmark and cannot be evaluated yet, and their texts or the
        reason: reports show them as absent, so that no model is left out silently.
    replays : tuple of Shown
        Images of some models that others are shown.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)
    data: str
    count: int | None = Count
    seed: int = Seed
    split: str = "test"
    shard: int | None = Count
    models: Mapping[str, Model]
    tags: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    cells: tuple[Cell, ...]
    compare: Compare = Compare()
    store: Keep = Keep()
    absent: Mapping[str, str] = Field(default_factory=dict)
    replays: tuple[Shown, ...] = ()

    @property
    def trained(self) -> dict[str, Trained]:
        """The models that are trained, by their names."""
        return {name: one for name, one in self.models.items() if isinstance(one, Trained)}

    def cell(self, name: str) -> Cell:
        """The cell of a name."""
        return next(one for one in self.cells if one.name == name)

    @property
    def available(self) -> int | None:
        """How many images its data have, where that is known without reading them."""
        name = self.data.partition("(")[0].strip()
        return CATALOGUE[name].images.get(self.split) if name in CATALOGUE else None

    def seeds(self, cell: Cell) -> tuple[int, ...]:
        """The seeds of a cell."""
        return cell.seeds or (self.seed,)


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
    raw = content.get("models")
    models = raw if isinstance(raw, dict) else {}
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
