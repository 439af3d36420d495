"""A study as a page in Markdown, such as those in docs/studies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from besiege.bench.board import Board
from besiege.bench.display import Grid
from besiege.report.formats import listed
from besiege.studies.answers import Answer
from besiege.studies.study import Study

_FOLDER = re.compile(r"--out \S*/(?=[^\s/]+(\s|$))")
"""Where a run folder was, which is nobody else's."""


def study_page(study: Study, board: Board) -> str:
    """Answers and tables of a run, with how it was made."""
    lines = [f"# {_title(study, board)}", "", f"{study.source}.", "", *_made(board), ""]
    lines += ["## Answers", "", "| claim | answer | effect | published |", "|---|---|---|---|"]
    answers = study.answers(board)
    lines += [_row(one) for one in answers]
    lines += ["", _level(study), ""]
    lines += [f"- **{one.id}:** {one.caveat}" for one in answers if one.caveat]
    for grid in study.shown(board).values():
        lines += ["", *_table(grid)]
    readings = study.readings(board)
    lines += ["", "## Reading these figures", "", *(f"- {one}" for one in readings)] * bool(
        readings
    )
    if study.differs:
        lines += ["", "## What differs from the publication", ""]
        lines += [f"- {one}" for one in study.differs]
    lines += _commands(study)
    if board.absent:
        lines += ["", "## Absent", ""]
        lines += [f"- {_text(name)}: {_text(why)}" for name, why in board.absent.items()]
    if board.unfit:
        lines += ["", "## Left out", ""]
        lines += sorted({f"- {_text(m)}: {_text(why)}" for _, m, why in board.unfit})
    return "\n".join(lines).rstrip() + "\n"


def _title(study: Study, board: Board) -> str:
    """The title of a page; of a study with several data sets, with those of the run."""
    data = listed([*dict.fromkeys(cell.data for cell in board.cells)])
    return f"{study.title}, on {data}" if len(study.specs) > 1 else study.title


def _commands(study: Study) -> Iterator[str]:
    """How to run the study on every data set, in parts that resume."""
    if not study.sizes:
        return
    yield from ("", "## Run it", "")
    yield from (f"- `--size {name}`: {size.about}." for name, size in study.sizes.items())
    yield from ("", "A folder takes the parts one after the other, and each resumes:", "")
    for data in study.specs:
        for part in study.parts or ("*",):
            words = f"--data {data} --size SIZE --only '{part}' --out {study.name}-{data}"
            yield f"    besiege study {study.name} {words}"


def _made(board: Board) -> Iterator[str]:
    """Date, versions, commit, sizes and commands."""
    found = board.figures.evaluations
    commits = sorted({(one.commit or "")[:10] for one in found} - {""})
    told = dict(board.figures.versions)
    where = f" on {told.pop('platform')}" if "platform" in told else ""
    versions = ", ".join(f"{name} {text}" for name, text in told.items())
    made = f"Run of {board.figures.created[:10]}{where} with {versions}"
    yield made + (f", commit {listed(commits)}" if commits else "") + "."
    yield ""
    yield f"{size_in_words(board)}"
    yield ""
    for command in [*dict.fromkeys(one.command for one in found if one.command)][:8]:
        yield f"    {_FOLDER.sub('--out ', command)}"
    if not board.figures.complete:
        yield ""
        yield "**This run is not complete.** Missing records never count as robust."


def size_in_words(board: Board) -> str:
    """The numbers of images and queries of the cells of a board, in words."""
    sizes: dict[tuple[int, int | None], list[str]] = {}
    for cell in board.cells:
        words = sizes.setdefault((len(cell.samples), cell.queries), [])
        if cell.knowledge not in words:
            words.append(cell.knowledge)
    data = listed([*dict.fromkeys(cell.data for cell in board.cells)])
    parts = [
        f"{count:,} images{f' with {queries:,} queries each' if queries else ''} ({listed(words)})"
        for (count, queries), words in sizes.items()
    ]
    return f"Size, on {data}: {listed(parts)}."


def _level(study: Study) -> str:
    return (
        f"Effects are in points, with intervals of {100 * study.level:.4g} %: any of the answers "
        "is false in at most 5 % of all experiments."
    )


def _row(one: Answer) -> str:
    effect = ""
    if one.effect is not None:
        value, low, high = (100 * x for x in (one.effect.value, one.effect.low, one.effect.high))
        effect = f"{value:+.1f} [{low:.1f}, {high:.1f}], {one.effect.count:,} {one.unit}"
    words = (f"**{one.id}** {one.claim}", one.verdict, effect, one.paper)
    return f"| {' | '.join(map(_text, words))} |"


def _table(grid: Grid) -> Iterator[str]:
    yield f"## {grid.title}"
    yield ""
    yield f"| {' | '.join(map(_text, grid.columns))} |"
    yield "|---|" + ("---|" if grid.sentences else "--:|") * (len(grid.columns) - 1)
    for row in grid.rows:
        yield f"| {' | '.join(map(_text, row))} |"
    if grid.note:
        yield ""
        yield grid.note


def _text(text: str) -> str:
    """A text inside a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
