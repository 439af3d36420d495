"""Files for other programs: results in the format that the suffix of a file names.

A format is one function that writes an `Export` to an open file, registered under its suffix. It
imports no torch: results are exported on machines without a model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from besiege.core.errors import InputError, StoreError, UnknownNameError, near
from besiege.core.files import replacing
from besiege.core.registry import Registry

if TYPE_CHECKING:
    from besiege.bench.board import Board
    from besiege.bench.display import Grid
    from besiege.bench.evaluations import Evaluation


@dataclass(frozen=True)
class Export:
    """What is to be written.

    Attributes
    ----------
    evaluations : sequence of Evaluation
        The results, at least one.
    attack : str, optional
        The attack whose images are wanted; formats without images refuse it.
    board : Board, optional
        The run as a board, where its table is wanted: a row for each cell, model and attack.
    table : Grid, optional
        The table that is wanted in place of the results, such as one of a study.
    """

    evaluations: Sequence[Evaluation]
    attack: str | None = None
    board: Board | None = None
    table: Grid | None = None

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the results come from: versions, and the inputs and figures of each evaluation."""
        kept = ("model", "data", "threat", "seed", "suite", "command", "made", "commit")
        shown = (*kept, "complete", "clean", "robust", "warnings")
        run = self.evaluations[0]._run
        content = [one.figures.plain() for one in self.evaluations]
        return {
            "created": run.created,
            "versions": dict(run.versions),
            "evaluations": [{name: one[name] for name in shown} for one in content],
        }


Writer = Callable[[Export, BinaryIO], None]

EXPORTS: Registry[Writer] = Registry(
    "export",
    modules=(
        "besiege.bench.exports.tables",
        "besiege.bench.exports.images",
        "besiege.report.paper",
    ),
    group="besiege.exports",
)
"""Writers by suffix, without the dot; other packages add theirs as entry points."""
WITH_ATTACK = {"npz"}
"""Suffixes of formats that take the images of one attack."""
WITH_BOARD = {"csv", "json", "md", "parquet", "tex"}
"""Suffixes of formats that take the board of a run."""


def export(
    evaluations: Sequence[Evaluation],
    path: Path | str,
    *,
    attack: str | None = None,
    force: bool = False,
    board: bool = False,
    table: Grid | None = None,
) -> Path:
    """Write results into a file, in the format of its suffix; its content appears as a whole.

    Parameters
    ----------
    evaluations : sequence of Evaluation
        The results.
    path : path
        The file; its folder must exist.
    attack : str, optional
        The attack whose images are wanted, in formats with images.
    force : bool
        Whether to replace an existing file.
    board : bool
        Whether to write the board of the whole run: a row for each cell, model and attack.
    table : Grid, optional
        The table to write in place of the results.
    """
    from besiege.bench.folder import telling

    target = Path(os.path.expanduser(path)) if isinstance(path, str) else Path(path)
    writer = _writer(target)
    if attack is not None and target.suffix[1:].lower() not in WITH_ATTACK:
        raise InputError(
            f"attack='{attack}' chooses images, and {target.name} holds none: leave it out, or "
            "write an .npz file"
        )
    if (board or table is not None) and target.suffix[1:].lower() not in WITH_BOARD:
        what = "the board of a run" if table is None else "a table"
        raise InputError(
            f"{target.name} cannot hold {what}: write one of "
            f"{', '.join(f'.{suffix}' for suffix in sorted(WITH_BOARD))}"
        )
    _must_be_free(target, force)
    wanted = Export(evaluations, attack, _board(evaluations) if board else None, table)
    with telling(target, advice=""), replacing(target) as file:
        writer(wanted, file)
    return target


def _board(evaluations: Sequence[Evaluation]) -> Board:
    from besiege.bench.board_reading import board_of

    return board_of(evaluations[0].folder)


def _writer(path: Path) -> Writer:
    suffix = path.suffix[1:].lower()
    known = {f".{name}": name for name in EXPORTS.names()}
    if suffix not in known.values():
        ends = f"ends in '{path.suffix}'" if suffix else "has no suffix"
        raise UnknownNameError(
            f"{path} {ends}, but the suffix decides what is written: {near(path.suffix, known)}"
        )
    return EXPORTS.get(suffix)


def _must_be_free(path: Path, force: bool) -> None:
    """Refuse a path that cannot be written, or a file that is there and not to be replaced."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file, such as {path / 'results.csv'}")
    if not path.parent.is_dir():
        raise StoreError(f"{path.parent} does not exist: create this folder first")
    if os.path.lexists(path) and not force:
        raise StoreError(f"{path} exists: choose another name, or replace it with force=True")
    full = path.resolve()
    for above in full.parents:
        if (above / "run.json").is_file() and full.relative_to(above).parts[0] in _OF_A_RUN:
            raise StoreError(f"{path} is a file of the run in {above}: choose another name")


_OF_A_RUN = ("run.json", "figures.json", "records", "figures", "names", "damaged")
"""Files and folders of a run folder that are never replaced."""
