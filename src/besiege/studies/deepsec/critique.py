"""The points that Carlini (2019) holds against DEEPSEC, each with the figure that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from besiege.bench.board import Board
from besiege.bench.display import Grid
from besiege.core.errors import UnknownNameError
from besiege.metrics.intervals import Rate
from besiege.studies.deepsec.attacks import form
from besiege.studies.deepsec.published import MEANS
from besiege.studies.deepsec.reading import (
    DEFENSE,
    DETECTOR,
    OTHERS,
    data_of,
    detected,
    in_threat,
    look,
    models,
    rate,
    replayed,
    source_of,
    utility_of,
    wins,
    withstood,
)


@dataclass(frozen=True)
class Point:
    """A point: what DEEPSEC did, what is done here, and the figure that shows the difference."""

    did: str
    here: str
    figure: Callable[[Board], str]


def critique(board: Board) -> Grid:
    """All points as a table."""
    rows = tuple(
        (str(number), one.did, one.here, _figure(one, board))
        for number, one in enumerate(POINTS, 1)
    )
    heads = ("point", "what DEEPSEC did", "what is done here", "the figure")
    return Grid("The critique, point by point", heads, rows, _NOTE, sentences=True)


_NOTE = (
    "The points are those of Carlini's review of DEEPSEC (2019). 'Replayed' is the worst case over "
    "images made on the undefended model, 'adaptive' that over attacks on the model itself, image "
    "by image, within the budget of FGSM."
)


def _figure(point: Point, board: Board) -> str:
    try:
        return point.figure(board)
    except UnknownNameError as problem:
        return f"not run: {problem}"


def percent(found: Rate | None) -> str:
    """A rate in percent."""
    return "-" if found is None else f"{100 * found.value:.1f} %"


def _success(board: Board, name: str, model: str = "", source: str = "") -> str:
    row = form(data_of(board), name)
    return percent(rate(wins(board, model or source_of(board), row, source)))


def _kept(board: Board, model: str, transfer: bool) -> str:
    found = withstood(board, model, transfer=transfer)
    return f"{100 * found.held.mean():.1f} %" if len(found.held) else "-"


def _lines(found: Iterator[str], nothing: str) -> str:
    listed = list(found)
    if not listed:
        raise UnknownNameError(nothing)
    return "; ".join(listed)


def _adaptive(board: Board) -> str:
    def each() -> Iterator[str]:
        for name in models(board, DEFENSE):
            try:
                pair = _kept(board, name, True), _kept(board, name, False)
            except UnknownNameError:
                continue
            yield f"{name}: {pair[0]} replayed, {pair[1]} adaptive"

    return _lines(each(), "no defense was attacked both ways")


def _means(board: Board) -> str:
    theirs = MEANS.get(data_of(board), "")
    crossed = f"printed means ~~{theirs}~~; " if theirs else ""
    return f"{crossed}worst cases here: {_worst(board)}"


def _worst(board: Board) -> str:
    def each() -> Iterator[str]:
        for name in models(board, DEFENSE):
            try:
                yield f"{name} {_kept(board, name, False)}"
            except UnknownNameError:
                continue

    return _lines(each(), "no defense was attacked itself")


def _fgsm(board: Board) -> str:
    return f"FGSM succeeds on {_success(board, 'FGSM')} here"


def _training(board: Board) -> str:
    source = source_of(board)
    for cell in in_threat(board, form(data_of(board), "FGSM").threat):
        for name in models(board, DEFENSE):
            if name == "pat" and name in cell.models and source in cell.models:
                clean = percent(board.evaluation(cell, cell.models.index(name)).clean)
                return f"pat, a re-implementation: {clean} clean, {_kept(board, name, False)} left"
    raise UnknownNameError("no adversarially trained model was evaluated")


def _apart(board: Board) -> str:
    threats = {cell.threat for cell in board.cells}
    return f"{len(threats)} threats, each with its own figures, and none over several"


def _subsets(board: Board) -> str:
    found = []
    for name in ("LLC", "ILLC"):
        mine = wins(board, source_of(board), form(data_of(board), name))
        found.append(f"{name} succeeds on {int(mine.success.sum())} of {len(mine.success)}")
    return ", ".join(found)


def _budgets(board: Board) -> str:
    for cell in in_threat(board, form(data_of(board), "FGSM").threat):
        usual = board.evaluation(cell, 0).data.standard
        if usual and cell.eps:
            fired = sum(
                one.id == "W28" for each in board.figures.evaluations for one in each.warnings
            )
            return (
                f"{cell.eps:g} is {cell.eps / usual:.1f} times the usual budget; W28 is shown "
                f"{fired} times"
            )
    raise UnknownNameError("the usual budget of these data is not known")


def _thresholds(board: Board) -> str:
    def each() -> Iterator[str]:
        for name in models(board, DETECTOR):
            found = {
                str(shares.clean.rejected)
                for cell in board.cells
                if name in cell.models
                and (shares := board.evaluation(cell, cell.models.index(name)).rejection)
            }
            if found:
                yield f"{name}: {' and '.join(sorted(found))} of clean images, whatever the attack"

    return _lines(each(), "no detector was evaluated")


def _stronger(board: Board) -> str:
    names = ("FGSM", "FGSM, larger", "BIM")
    return ", ".join(f"{name} {_success(board, name)}" for name in names)


def _targeted(board: Board) -> str:
    source, row = source_of(board), form(data_of(board), "T-MI-FGSM")
    for name in models(board, *OTHERS):
        found = replayed(board, name, row, source)
        return (
            f"T-MI-FGSM on {name}: {percent(found.still)} become the target, "
            f"{percent(found.right)} are classified correctly"
        )
    raise UnknownNameError("no model was shown these images")


def _forms(board: Board) -> str:
    one = utility_of(board, source_of(board), form(data_of(board), "FGSM"))
    pairs = (
        ("ALD_2", one.l2, one.l2_relative),
        ("ASS", one.ass, one.ass_published),
        ("PSD", one.psd, one.psd_paper),
    )
    said = [f"{n} {a:.3f} and {b:.3f}" for n, a, b in pairs if a is not None and b is not None]
    return f"FGSM in both forms: {', '.join(said)}" if said else "its images are not there"


def _known(board: Board) -> str:
    names = ("JSMA", "BIM", "PGD", "U-MI-FGSM", "T-MI-FGSM")
    return ", ".join(f"{name} {_success(board, name)}" for name in names)


def _aware(board: Board) -> str:
    def each() -> Iterator[str]:
        data, source = data_of(board), source_of(board)
        for name in models(board, DETECTOR):
            row = form(data, "PGD")
            try:
                pair = [detected(board, name, row, made_on) for made_on in (source, "")]
                found = look(board, name, row)
            except UnknownNameError:
                continue
            both = board.evaluation(found.cell, found.row).rejection
            wrong = percent(None if both is None or both.together is None else both.together.wrong)
            yield (
                f"{name} rejects {percent(pair[0].rejected)} of oblivious PGD's errors, "
                f"{percent(pair[1].rejected)} of adaptive PGD's; {wrong} of all images end wrong "
                "and accepted"
            )

    return _lines(each(), "no detector was attacked")


POINTS = (
    Point(
        "Attacks were never run on the defenses: images of an undefended model were replayed.",
        "Every defense is attacked itself; replayed images are called transfer.",
        _adaptive,
    ),
    Point(
        "Defenses were ranked by means over attacks.",
        "The worst case counts, image by image, within one threat.",
        _means,
    ),
    Point(
        "FGSM was too weak: 30.4 % on MNIST at 0.3, 38.3 % run again, 61 % by another library.",
        "Every attack is compared with an independent implementation, row by row.",
        _fgsm,
    ),
    Point(
        "Adversarial training had a mixed loss, a small network and 20 epochs: 80.2 % clean "
        "instead of 87.3 %.",
        "Networks trained here are called re-implementations, with both figures.",
        _training,
    ),
    Point(
        "Averages mixed norms, goals and budgets.",
        "No figure is about several threats.",
        _apart,
    ),
    Point(
        "Attacks were compared on different images: LLC on 134, ILLC on 1,000.",
        "All rates have the same images as denominator; metrics of successes carry n.",
        _subsets,
    ),
    Point(
        "Budgets were three to six times the usual ones on CIFAR-10.",
        "Budgets above twice the usual are noted (W28), and nothing is ranked at 0.5.",
        _budgets,
    ),
    Point(
        "Every attack had its own detector threshold: 1.5 to 9.0 % of clean images.",
        "One threshold, set once on clean images that are left out.",
        _thresholds,
    ),
    Point(
        "A larger budget looked weaker, since the attack was FGSM.",
        "Iterative attacks stand beside single steps (W02, W04).",
        _stronger,
    ),
    Point(
        "Targeted attacks were scored by accuracy.",
        "Whether the target is reached, and accuracy, are two figures.",
        _targeted,
    ),
    Point(
        "Text, tables and code disagree.",
        "Metrics exist in both forms; every record has its parameters, version and seed.",
        _forms,
    ),
    Point(
        "JSMA 76 % where 90 to 95 % are known, BIM and PGD 75.6 and 82.4 % where 100 % are; a "
        "targeted attack beat the untargeted one.",
        "An iterative attack that leaves a natural model standing is an error (W22, W19).",
        _known,
    ),
    Point(
        "Conclusions about detection assumed an attacker who does not know the detector.",
        "Attacks see detector and classifier together; the oblivious figure stands beside.",
        _aware,
    ),
)
