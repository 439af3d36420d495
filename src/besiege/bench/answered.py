"""Requests that were answered before and depend on nothing that changed since: no torch needed.

Loading a model to find out that nothing is left to do takes seconds. Where model, data and attacks
are files that can be named, what the file system says of them is enough. Everything else, a
model made by code of the user's above all, takes the long way.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import besiege
from besiege.bench.results import summarise
from besiege.bench.run import read_run
from besiege.bench.spec import Request
from besiege.bench.store import Store, key_of
from besiege.bench.summaries import FOLDER, about
from besiege.core.errors import StoreError
from besiege.core.files import read_file
from besiege.data.catalogue import CATALOGUE as DATA
from besiege.data.places import locate
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.models.catalogue import CATALOGUE as ARCHITECTURES
from besiege.models.catalogue import ZOO, public_path

FILE = f"{FOLDER}/answered.json"


def answered(folder: Path, request: Request) -> tuple[RunFigures, EvaluationFigures] | None:
    """The figures of a folder and of a request that it answers completely; None where unsure."""
    store, stamp = Store(folder), stamp_of(request)
    name = None if stamp is None else _known(store).get(stamp)
    run = None if name is None else read_run(store)
    if run is None or any(plan.changed for plan in run.plans):
        return None
    if [plan.name for plan in run.current].count(name or "") != 1:
        return None
    figures = summarise(folder)
    mine = next(one for one in figures.evaluations if one.name == name)
    return (figures, mine) if figures.complete else None


def remember(store: Store, stamp: str | None, name: str) -> None:
    """Write down that the evaluation of this name answers a request of this stamp.

    The stamp is taken before the model is loaded: a file that changes meanwhile is noticed.
    """
    if stamp is None:
        return
    # Others are kept while they may still hold; a folder that cannot be written does without.
    known = {old: other for old, other in _known(store).items() if other != name}
    with suppress(OSError, StoreError):
        (store.folder / FOLDER).mkdir(exist_ok=True)
        store.write_file(FILE, json.dumps({**known, stamp: name}).encode())


def _known(store: Store) -> dict[str, str]:
    try:
        known = json.loads(read_file(store.folder / FILE))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def stamp_of(request: Request) -> str | None:
    """A digest of all that the answer depends on; None where that cannot be listed."""
    listed = " ".join(filter(None, (request.suite, *(_texts(request.attacks)))))
    plugins = any(name.startswith("besiege.") for name in entry_points().groups)
    # A quoted parameter may name a file, such as that of a universal perturbation.
    if not request.textual or plugins or any(mark in listed for mark in (".py:", "'", '"')):
        return None
    models = (request.model, *request.substitute, *request.across, *request.beside)
    files = [_data(request), *map(_model, models)]
    if any(part is None for part in files):
        return None
    named = [path for part in files if part is not None for path in part]
    try:
        versions = [version(name) for name in ("torch", "numpy", "safetensors")]
    except PackageNotFoundError:
        return None
    return key_of(
        {
            "request": request.model_dump(mode="json", exclude={"command"}),
            "files": _states(named),
            "code": _own_code(),
            "versions": [besiege.__version__, platform.python_version(), *versions],
        }
    )


def _states(paths: Iterable[Path]) -> list[tuple[str, list[int] | None]]:
    """What the file system says of files."""
    return [(str(path.absolute()), about(path)) for path in paths]


@cache
def _own_code() -> str:
    """A digest of the files of this package; a process keeps the code that it loaded."""
    return key_of({"files": _states(sorted(Path(besiege.__file__).parent.rglob("*.py")))})


def _texts(attacks: tuple[str, ...] | str | None) -> Iterator[str]:
    yield from () if attacks is None else (attacks,) if isinstance(attacks, str) else attacks


def _model(text: str) -> list[Path] | None:
    """The files of a model that is weights of a known architecture, without layers."""
    scheme, _, name = text.partition(":")
    if "+" in text:
        return None
    if scheme == "zoo":
        return _existing(ZOO / f"{name}.safetensors", ZOO / f"{name}.json")
    if scheme == "public":
        return _existing(public_path(name))
    found = re.fullmatch(r"(\w+)(?:\(.*\))?:(.+)", text, re.DOTALL)
    return _existing(Path(found[2])) if found and found[1] in ARCHITECTURES else None


def _data(request: Request) -> list[Path] | None:
    """The files of a named data set, or an ``.npz`` file."""
    entry = DATA.get(request.data)
    if entry is None:
        return _existing(Path(request.data)) if request.data.endswith(".npz") else None
    if request.split not in entry.images:
        return None
    if entry.shipped:
        found = find_spec("sklearn")
        if found is None or found.origin is None:
            return None
        return _existing(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz")
    place = locate(entry, request.split)
    return None if place is None else _existing(*place.files)


def _existing(*paths: Path | None) -> list[Path] | None:
    there = [path for path in paths if path is not None and path.is_file()]
    return there if len(there) == len(paths) else None
