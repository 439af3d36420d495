"""Tables III to IX of DEEPSEC for the models of a board, each beside what it printed.

Every accuracy under replayed images stands beside that under attacks on the model itself, and has
the same images as its denominator for all attacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np

from besiege.bench.board import Board
from besiege.bench.display import Grid, rows_of
from besiege.core.errors import UnknownNameError
from besiege.metrics.attack_values import AttackUtility
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import benjamini_hochberg
from besiege.studies.deepsec.answers import LINF_AND_L2, change_of, utilities
from besiege.studies.deepsec.attacks import SAME_BUT_GOAL, DataName, Form
from besiege.studies.deepsec.critique import critique
from besiege.studies.deepsec.published import (
    DETECTED,
    REPLAYED,
    TRANSFERRED,
    UTILITY,
    UTILITY_OF_DEFENSES,
)
from besiege.studies.deepsec.reading import (
    BLUR,
    COMPRESSED,
    DEFENSE,
    DETECTOR,
    ENSEMBLE,
    OTHERS,
    data_of,
    detected,
    look,
    model_of,
    models,
    rate,
    replayed,
    rows_of_tables,
    source_of,
    utility_of,
    wins,
    withstood,
)
from besiege.studies.study import Table

_LOOKS = {
    "ACAC": "acac", "ACTC": "actc", "NTE": "nte", "L0": "l0", "L2": "l2", "Linf": "linf",
    "ASS": "ass", "ASS range 2": "ass_published", "PSD": "psd", "PSD paper": "psd_paper",
}  # fmt: skip
"""Columns of table III, and their names in figures."""
_PRINTED_AS = {"ASS range 2": "ASS"}
_BROKEN = 0.01
"""What an attack leaves at most of a model that it breaks."""
STANDS_FOR = "stands_for"
"""The tag with the printed defense or detector that a model stands for."""


def printed(of: Mapping[str, Any], data: DataName, row: str, column: str) -> float:
    """A printed value; not a number where there is none."""
    found = of.get(data, {}).get(row, {}).get(column, np.nan)
    return float(found)


def beside(text: str, value: float, digits: int = 1) -> str:
    """A text with the printed value in brackets, if there is one."""
    return f"{text} ({value:.{digits}f})" if np.isfinite(value) else text


def percent(found: Rate | None) -> str:
    """A rate in percent."""
    return "-" if found is None else f"{100 * found.value:.1f}"


# Tables III and XIV


def attack_utility(board: Board) -> Grid:
    """Tables III and XIV: what the successes on the undefended model look like."""
    found = [_utility(board, row) for row in rows_of_tables(board)]
    columns = ("MR", "n", *_LOOKS, "RGB", "RIC", "passes", "seconds")
    rows = tuple((one["as run"], *(_shown(one, name) for name in columns)) for one in found)
    note = (
        f"On '{source_of(board)}'. MR is of {found[0]['N']:,} or fewer images that it classifies "
        "correctly, the same for all attacks of a cell; everything else is a mean over the n "
        "successes, on which attacks with other n do not compare. Linf, L2: plain norms of values "
        "from 0 to 1; L0: share of values that differ after rounding to 8 bits. ASS has the data "
        "range 255, 'range 2' is the one DEEPSEC published; PSD has 1 - std, 'paper' 1 / std. RGB "
        "and RIC: successes that a blur and JPEG 90 (not Guetzli) leave. In brackets: printed."
    )
    heads = ("attack", *columns)
    return Grid("Tables III and XIV: attack utility", heads, rows, note, rows_of(found))


def called(board: Board, row: Form) -> str:
    """The name of a row, with the number of steps where this was chosen: few find little."""
    chosen = re.search(r"\(steps=(\d+)\)$", look(board, source_of(board), row).text)
    return f"{row.name}, {int(chosen[1]):,} steps" if chosen else row.name


def _utility(board: Board, row: Form) -> dict[str, Any]:
    source, data = source_of(board), data_of(board)
    found = utility_of(board, source, row)
    mr = found.mr if found.mr is not None else rate(wins(board, source, row))
    named = {"attack": row.name, "as run": called(board, row)}
    one: dict[str, Any] = {**named, "N": mr.count, "n": found.count, "MR": mr.value}
    for name, own in _LOOKS.items():
        one[name] = _number(found, own)
    for name, layer in (("RGB", BLUR), ("RIC", COMPRESSED)):
        one[name] = np.nan
        with suppress(UnknownNameError):
            still = replayed(board, source, row, through=layer).still
            one[name] = np.nan if still is None else still.value
    one |= {"passes": _number(found, "passes"), "seconds": _number(found, "seconds")}
    for name in ("MR", *_LOOKS, "RGB", "RIC"):
        value = printed(UTILITY, data, row.name, _PRINTED_AS.get(name, name))
        absent = name in ("ASS", "PSD paper")  # which it did not print in this form
        one[f"printed {name}"] = np.nan if absent else value
    return one


def _number(found: AttackUtility, name: str) -> float:
    value = getattr(found, name)
    return np.nan if value is None else float(value)


def _shown(one: Mapping[str, Any], name: str) -> str:
    value, theirs = one[name], one.get(f"printed {name}", np.nan)
    if name == "n":
        return f"{value:,}"
    if not np.isfinite(value):
        return beside("-", theirs, 3)
    if name == "MR":
        return beside(f"{100 * value:.1f}", theirs)
    digits = 0 if name == "passes" or value >= 1000 else 3
    return beside(f"{value:,.{digits}f}", theirs, 3)


# Table IV


def defense_utility(board: Board) -> Grid:
    """Table IV: what defenses do to clean images."""
    data, rows, numbers = data_of(board), [], []
    for name, one in utilities(board, DEFENSE, ENSEMBLE).items():
        assert abs(one.cav.value - (one.crr.value - one.csr.value)) < 1e-9, "CAV = CRR - CSR"
        theirs = model_of(board, name).tags.get(STANDS_FOR, "")
        values = {
            "CAV": 100 * one.cav.value,
            "CRR": 100 * one.crr.value,
            "CSR": 100 * one.csr.value,
            "CCV": np.nan if one.ccv is None else 100 * one.ccv.value,
            "COS": np.nan if one.cos is None else one.cos.value,
        }
        shown = []
        for metric, value in values.items():
            digits = 4 if metric == "COS" else 2
            text = f"{value:+.{digits}f}" if metric == "CAV" else f"{value:.{digits}f}"
            text = text if np.isfinite(value) else "undefined"
            shown.append(beside(text, printed(UTILITY_OF_DEFENSES, data, theirs, metric), digits))
        rows.append((f"{name} [{theirs}]" if theirs else name, f"{one.crr.count:,}", *shown))
        numbers.append({"model": name, "images": one.crr.count, **values})
    note = (
        f"Beside '{source_of(board)}', in points and percent of the clean images; CCV and COS over "
        "those that both classify correctly, undefined for answers that are labels only. In "
        "brackets: printed for its own networks; ours are re-implementations. Its CCV of PAT and "
        "IGR are swapped in its text, and 83.25 of EIT contradicts its own CAV."
    )
    heads = ("model", "images", "CAV", "CRR", "CSR", "CCV", "COS")
    return Grid("Table IV: utility of defenses", heads, tuple(rows), note, rows_of(numbers))


# Tables V, XV, IX and XVIII


def replays(board: Board) -> Grid:
    """Tables V and XV: replayed images on defenses, beside attacks on these themselves."""
    names = models(board, DEFENSE)
    theirs = {name: model_of(board, name).tags.get(STANDS_FOR, "") for name in names}
    return _beside_adaptive(
        board, names, theirs, REPLAYED, "Tables V and XV: defenses under replayed images"
    )


def ensembles(board: Board) -> Grid:
    """Tables IX and XVIII: the same of ensembles."""
    names = models(board, ENSEMBLE)
    theirs = {name: name.partition(",")[0] for name in names}
    return _beside_adaptive(
        board, names, theirs, TRANSFERRED, "Tables IX and XVIII: ensembles under replayed images"
    )


def _beside_adaptive(
    board: Board,
    names: list[str],
    theirs: Mapping[str, str],
    of: Mapping[str, Any],
    title: str,
) -> Grid:
    data, source = data_of(board), source_of(board)
    rows, numbers = [], []
    for row in rows_of_tables(board):
        line = [called(board, row)]
        for name in names:
            pair = [_held(board, name, row, source), _held(board, name, row, "")]
            value = printed(of, data, row.name, theirs[name])
            shown = "not run" if pair[0] is None else " / ".join(map(percent, pair))
            line.append(beside(shown, value))
            if pair[0] is not None:
                numbers.append(_numbers(board, row, name, source, pair, value))
        rows.append(tuple(line))
    if not numbers:
        raise UnknownNameError("no images of the undefended model were shown to these models")
    for transfer, words in ((True, "all replayed, linf"), (False, "adaptive, linf")):
        rows.append((words, *(percent(_worst(board, name, transfer)) for name in names)))
    note = (
        f"Two figures: images made on '{source}' and replayed (transfer, no robustness) / the same "
        "attack on the model itself. Percent of all images that both classify correctly that "
        "withstand: with a target, those that do not become it. The last rows are worst cases, "
        "image by image, within the budget of FGSM; the adaptive one is what counts, and has the "
        "suite adaptive too. In brackets: printed accuracy on its successful images, which are "
        "others for every attack."
    )
    return Grid(title, ("attack", *names), tuple(rows), note, rows_of(numbers))


def _numbers(
    board: Board, row: Form, name: str, source: str, pair: list[Rate | None], value: float
) -> dict[str, Any]:
    made = None
    with suppress(UnknownNameError):
        made = replayed(board, name, row, source).right
    return {
        "attack": row.name,
        "model": name,
        "transfer": np.nan if pair[0] is None else pair[0].value,
        "adaptive": np.nan if pair[1] is None else pair[1].value,
        "images": 0 if pair[0] is None else pair[0].count,
        "replayed": 0 if made is None else made.count,
        "accuracy_of_replayed": np.nan if made is None else made.value,
        "printed": value,
    }


def _held(board: Board, model: str, row: Form, source: str) -> Rate | None:
    """The share of images that withstand a row; None where it was not run."""
    try:
        found = rate(wins(board, model, row, source))
    except UnknownNameError:
        return None
    return Rate.of(found.count - found.hits, found.count)


def _worst(board: Board, model: str, transfer: bool) -> Rate | None:
    try:
        found = withstood(board, model, transfer=transfer)
    except UnknownNameError:
        return None
    return Rate.of(int(found.held.sum()), len(found.held)) if len(found.held) else None


# Tables VI, VII and XVI


def detection(board: Board) -> Grid:
    """Tables VI, VII and XVI: detectors, each with one threshold for all attacks."""
    data, source, names = data_of(board), source_of(board), models(board, DETECTOR)
    rows, numbers = [], []
    for row in rows_of_tables(board):
        line = [called(board, row)]
        for name, made_on in product(names, (source, "")):
            theirs = model_of(board, name).tags.get(STANDS_FOR, "")
            shown = "not run"
            with suppress(UnknownNameError):
                one = detected(board, name, row, made_on)
                area = np.nan if one.auc is None else one.auc.value
                shown = f"{percent(one.rejected)}, {'-' if np.isnan(area) else f'{area:.3f}'}"
                value = printed(DETECTED, data, row.name, f"{theirs} AUC") if made_on else np.nan
                shown = beside(shown, value / 100, 3)
                numbers.append(
                    {
                        "attack": row.name,
                        "model": name,
                        "crafted_on": made_on or name,
                        "rejected": np.nan if one.rejected is None else one.rejected.value,
                        "images": 0 if one.rejected is None else one.rejected.count,
                        "auc": area,
                        "auc_low": np.nan if one.auc is None else one.auc.low,
                        "auc_high": np.nan if one.auc is None else one.auc.high,
                        "printed_auc": value / 100,
                    }
                )
            line.append(shown)
        rows.append(tuple(line))
    if not numbers:
        raise UnknownNameError("no detector was evaluated")
    flipped = sorted({str(one["model"]) for one in numbers if float(str(one["auc_high"])) < 0.5})
    note = (
        "Percent of the errors that the detector rejects at its one threshold, and the area under "
        f"the ROC curve: of images made on '{source}' (oblivious), then on classifier and detector "
        f"together. {_clean_rejections(board, names)} In brackets: the printed area, of oblivious "
        "images, each at a threshold of its own; its rows of JSMA and BLB on MNIST are probably "
        "exchanged."
    )
    if flipped:
        note += f" An area far below one half, as of {', '.join(flipped)}, is a flipped sign."
    heads = ("attack", *(f"{name}, {how}" for name in names for how in ("oblivious", "adaptive")))
    return Grid("Tables VI, VII and XVI: detection", heads, tuple(rows), note, rows_of(numbers))


def _clean_rejections(board: Board, names: list[str]) -> str:
    """The false positive rate of each detector, once, of the clean images of its largest cell."""
    told = []
    for name in names:
        found = [
            rejection.clean.rejected
            for cell in board.cells
            if name in cell.models
            and (rejection := board.evaluation(cell, cell.models.index(name)).rejection)
        ]
        if found:
            told.append(f"{name} {max(found, key=lambda one: one.count)}")
    return f"Clean images rejected: {'; '.join(told)}."


# Tables VIII and XVII


def transferability(board: Board) -> Grid:
    """Tables VIII and XVII: images of the undefended model on others without a defense."""
    data, source, names = data_of(board), source_of(board), models(board, *OTHERS)
    rows, numbers = [], []
    for row in rows_of_tables(board):
        line = [called(board, row)]
        for name in names:
            shown, role = "not run", model_of(board, name).tags["role"]
            with suppress(UnknownNameError):
                found = rate(wins(board, name, row, source))
                own = _held(board, name, row, "")
                adaptive = "-" if own is None else f"{100 * (1 - own.value):.1f}"
                value = printed(TRANSFERRED, data, row.name, role)
                shown = beside(f"{percent(found)} / {adaptive}", value)
                numbers.append(
                    {"attack": row.name, "model": name, "success": found.value,
                     "images": found.count, "printed": value}
                )  # fmt: skip
            line.append(shown)
        rows.append(tuple(line))
    if not numbers:
        raise UnknownNameError("no images of the undefended model were shown to another one")
    note = (
        f"Success in percent of all images that both classify correctly: made on '{source}' and "
        "replayed / made on the model itself. Every model here is without a defense: what it "
        "withstands of replayed images is no robustness. In brackets: printed, of the successes."
    )
    heads = ("attack", *names)
    return Grid("Tables VIII and XVII: transferability", heads, tuple(rows), note, rows_of(numbers))


def pairs(board: Board) -> Grid:
    """Remark 7 pair by pair, with q-values over all of them."""
    data, source, found = data_of(board), source_of(board), []
    for name, pair in product(models(board, *OTHERS), (*SAME_BUT_GOAL, *LINF_AND_L2)):
        with suppress(UnknownNameError):
            found.append((name, pair, change_of(board, name, source, data, pair)))
    if not found:
        raise UnknownNameError("no pair of attacks was replayed on another model")
    q = benjamini_hochberg([one.p for *_, one in found])
    rows = tuple(
        (f"{pair[0]} less {pair[1]}, {name}", f"{100 * one.value:+.1f}", f"{one.count:,}",
         f"{one.p:.2g}", f"{value:.2g}")
        for (name, pair, one), value in zip(found, q, strict=True)
    )  # fmt: skip
    note = "Differences of transfer in points, image by image; q-values by Benjamini and Hochberg."
    heads = ("pair", "difference", "images", "p", "q")
    return Grid("Remark 7: pairs of attacks", heads, rows, note)


def readings(board: Board) -> Iterator[str]:
    """How the tables are not to be read, first of all the artefact of replayed images."""
    source = source_of(board)
    for name in models(board, *OTHERS):
        for row in (one for one in rows_of_tables(board) if one.name in ("DF", "CW2")):
            pair = [_held(board, name, row, source), _held(board, name, row, "")]
            # Few steps of a search say nothing about the model.
            if pair[0] is not None and pair[1] is not None and pair[1].value <= _BROKEN:
                yield (
                    f"'{name}' has no defense, and {percent(pair[0])} % of its images withstand "
                    f"replayed {row.name}, {percent(pair[1])} % {row.name} on itself: the first "
                    "figure is what such tables call a defense."
                )
    yield (
        "No mean over attacks is shown: one weak attack raises it. Attacks of several norms, goals "
        "and budgets have no common figure."
    )


TABLES = (
    Table("utility", attack_utility),
    Table("clean", defense_utility),
    Table("replayed", replays),
    Table("detection", detection),
    Table("transfer", transferability),
    Table("ensembles", ensembles),
    Table("critique", critique),
    Table("pairs", pairs, long=True),
)
