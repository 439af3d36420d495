"""Tables of the study: distances, laws, success, means of transfer, families, and matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from besiege.bench.board import Board
from besiege.bench.display import Grid, rows_of
from besiege.core.errors import UnknownNameError
from besiege.metrics.clever import MARKS, refuted_by
from besiege.metrics.distances import quantile
from besiege.metrics.frontier import ALWAYS, Line
from besiege.metrics.intervals import Rate
from besiege.studies.study import Table
from besiege.studies.su.laws import Fitted, laws_of
from besiege.studies.su.reading import (
    UNTARGETED,
    Setting,
    crossed_of,
    estimates,
    families,
    settings_of,
    usual_top,
)
from besiege.studies.su.transfer import TransferMatrix, transfer_matrix


def distances(board: Board) -> Grid:
    """Every model's distortions: the mean over successes, and the median over all images."""
    found = [one for one in laws_of(board) if not one.control]
    if not found:
        raise UnknownNameError("no distances were measured")
    models = found[0].sizes.models
    columns = [*dict.fromkeys((one.sizes.name, one.sizes.goal) for one in found)]
    data, rows = [], []
    for model in models:
        cells = []
        for name, goal in columns:
            both = [o for o in found if (o.sizes.name, o.sizes.goal) == (name, goal)]
            cells.append(_distances(both, model))
            data += [_distance(one, model) for one in both if model in one.sizes.models]
        rows.append((model, *cells))
    note = (
        "Mean over successes (their number of all) / median over all images that the model "
        "classifies correctly, with failures as infinity. CLEVER is an estimate, never a bound."
    )
    titles = (f"{name}, {goal}" for name, goal in columns)
    return Grid("Distortions", ("model", *titles), tuple(rows), note, rows_of(data))


def _distance(one: Fitted, model: str) -> dict[str, Any]:
    m = one.sizes.models.index(model)
    return {
        "model": model,
        "measure": one.sizes.name,
        "goal": one.sizes.goal,
        "of": one.kind,
        "error": float(one.law.error[m]),
        "distortion": float(one.law.distortion[m]),
        "successes": int(one.successes[m]),
        "images": int(one.images[m]),
    }


def _distances(both: Sequence[Fitted], model: str) -> str:
    words = []
    for one in sorted(both, key=lambda each: each.median):
        if model not in one.sizes.models:
            return "not run"
        m = one.sizes.models.index(model)
        size = short(float(one.law.distortion[m]))
        counts = f" ({one.successes[m]:.0f} of {one.images[m]:.0f})"
        words.append(size if one.median else size + counts)
    return " / ".join(words)


def short(value: float) -> str:
    """A distortion with three digits.

    Examples
    --------
    >>> short(0.01234), short(1.234e-5), short(float("inf"))
    ('0.0123', '1.23e-05', 'inf')
    """
    return f"{value:.3g}" if np.isfinite(value) else "inf"


def law(board: Board) -> Grid:
    """The law of every measure and goal, beside the printed lines."""
    found = [*laws_of(board)]
    if not found:
        raise UnknownNameError("no distances were measured")
    columns = (
        *("distortion", "images", "of", "slope", "intercept", "R2", "through", "rank correlation"),
        *("frontier", "published"),
    )
    rows = tuple(_law(one) for one in found)
    why = [*dict.fromkeys(one.law.why for one in found if one.law.why)]
    note = (
        "Least squares of distortion on ln(error), error being 1 - accuracy on these images, with "
        "95 % intervals of images that are resampled for all models together. Lines hold between "
        "the accuracies of these models only; along the frontier distortion falls with accuracy by "
        "definition. Spearman's rank correlation of error and distortion, "
        "with a permutation test. Models of the frontier in brackets are on it in fewer than "
        f"{ALWAYS:.0%} of the resamples. {' '.join(why)}"
    )
    data = [one for each in found for one in _lines(each)]
    return Grid("The law: distortion against ln(error)", columns, rows, note.strip(), rows_of(data))


def _law(one: Fitted) -> tuple[str, ...]:
    line = one.law.on_frontier or one.law.of_all
    names = [
        name if share >= ALWAYS else f"({name})"
        for name, on, share in zip(
            one.sizes.models, one.law.frontier.member, one.law.frontier.share, strict=True
        )
        if on
    ]
    rank = one.law.rank
    printed = "" if one.printed is None else f"{one.printed[0]:.3g}, {one.printed[1]:.3g}"
    fitted = ("", "", "", "none") if line is None else (
        _ends(line.slope), _ends(line.intercept), f"{line.r2:.2f}",
        f"{'frontier' if line is one.law.on_frontier else 'all models'}, {line.models}",
    )  # fmt: skip
    return (
        f"{one.sizes.name}, {one.sizes.goal}",
        "common to all" if one.control else "all",
        one.kind,
        *fitted,
        "" if rank is None else f"{rank.value:+.2f}, p {rank.p:.3g}",
        ", ".join(names),
        printed,
    )


def _ends(three: tuple[float, float, float]) -> str:
    return f"{three[0]:.3g} [{three[1]:.3g}, {three[2]:.3g}]"


def _lines(one: Fitted) -> Iterator[dict[str, Any]]:
    lines: tuple[tuple[str, Line | None], ...] = (
        ("frontier", one.law.on_frontier),
        ("all models", one.law.of_all),
    )
    for through, line in lines:
        if line is not None:
            ends = {
                f"{name}{end}": value
                for name, three in (("slope", line.slope), ("intercept", line.intercept))
                for end, value in zip(("", "_low", "_high"), three, strict=True)
            }
            printed = (np.nan, np.nan) if one.printed is None else one.printed
            yield {
                **{"measure": one.sizes.name, "goal": one.sizes.goal, "of": one.kind},
                **{"common": one.control, "through": through, "models": line.models},
                **ends,
                **{"r2": line.r2, "printed_slope": printed[0], "printed_intercept": printed[1]},
            }


def success(board: Board) -> Grid:
    """White-box success of every attack on every model, over images classified correctly."""
    found = [*_successes(board)]
    if not found:
        raise UnknownNameError("no attack was judged by all models")
    models = [*dict.fromkeys(one["model"] for one in found)]
    by_place = {(one["form"], one["goal"], one["model"]): one for one in found}
    rows = [
        (f"{form}, {goal}", *(_rate(by_place.get((form, goal, model))) for model in models))
        for form, goal in dict.fromkeys((form, goal) for form, goal, _ in by_place)
    ]
    note = (
        "In percent of the images that the model classifies correctly: another class, or the "
        "target class, at the last iterate of FGSM and I-FGSM. C&W and EAD-L1 have failed where no "
        "point of that confidence was found."
    )
    return Grid("Success", ("attack", *models), tuple(rows), note, rows_of(found))


def _successes(board: Board) -> Iterator[dict[str, Any]]:
    parameters = {one.name: one.parameters for one in board.models}
    for one in settings_of(board):
        cell = board.cell(one.cell)
        for m, model in enumerate(cell.models):
            rate = success_rate(board, one, m)
            if rate is not None:
                yield {
                    **{"form": one.form, "goal": one.goal, "model": model},
                    "parameters": float(parameters.get(model) or np.nan),
                    **{"success": rate.value, "low": rate.low, "high": rate.high},
                    "images": rate.count,
                }


def success_rate(board: Board, one: Setting, m: int) -> Rate | None:
    """The white-box success of an attack on a model, by its place in the cell."""
    cell = board.cell(one.cell)
    right = cell.covered[m, one.place] & cell.correct[m]
    won = right & cell.success[m, one.place]
    return Rate.of(int(won.sum()), int(right.sum())) if right.any() else None


def _rate(one: dict[str, Any] | None) -> str:
    return "not run" if one is None else f"{100 * one['success']:.1f}"


@lru_cache(maxsize=2)
def matrices_of(board: Board) -> tuple[tuple[Setting, TransferMatrix], ...]:
    """The matrix of every attack."""
    return tuple(
        (one, transfer_matrix(crossed_of(board, one), targeted=one.goal != UNTARGETED))
        for one in settings_of(board)
    )


def counted(board: Board) -> str:
    """What counts as a transferred image, in words."""
    top = usual_top(board)
    among = "predicted" if top == 1 else f"among the first {top}"
    return f"Untargeted: any error. Targeted: the target class is {among}."


def means(board: Board) -> Grid:
    """Mean transfer from each source, and to each target, with intervals."""
    found = [*_means(board)]
    if not found:
        raise UnknownNameError("no attack was judged by all models")
    models = [*dict.fromkeys(one["model"] for one in found)]
    by_place = {(one["form"], one["goal"], one["side"], one["model"]): one for one in found}
    rows = []
    for form, goal, side in dict.fromkeys((f, g, s) for f, g, s, _ in by_place):
        cells = (by_place[form, goal, side, model] for model in models)
        texts = (
            f"{100 * c['mean']:.0f} [{100 * c['low']:.0f}, {100 * c['high']:.0f}]" for c in cells
        )
        rows.append((f"{form}, {goal}, {side}", *texts))
    note = (
        "In percent of the images of a source, those that it classifies correctly, mean over the "
        f"other models, with 95 % intervals. {counted(board)}"
    )
    return Grid("Mean transfer", ("attack", *models), tuple(rows), note, rows_of(found))


def _means(board: Board) -> Iterator[dict[str, Any]]:
    for one, matrix in matrices_of(board):
        for side, part in (("from it", matrix.rows), ("to it", matrix.columns)):
            for m, model in enumerate(matrix.models):
                yield {
                    **{"form": one.form, "goal": one.goal, "side": side, "model": model},
                    "mean": float(part.value[m]),
                    **{"low": float(part.low[m]), "high": float(part.high[m])},
                }


def by_family(board: Board) -> Grid:
    """Transfer within and between families, for every attack."""
    found: list[dict[str, Any]] = []
    for one, matrix in matrices_of(board):
        family = families(board, matrix.models)
        names = np.array([family[name] for name in matrix.models])
        same = names[:, None] == names
        inside = same & ~np.eye(len(names), dtype=bool)
        found.append(
            {
                **{"form": one.form, "goal": one.goal},
                "within": float(matrix.rate[inside].mean()) if inside.any() else np.nan,
                "between": float(matrix.rate[~same].mean()) if not same.all() else np.nan,
            }
        )
    if not found:
        raise UnknownNameError("no attack was judged by all models")
    rows = tuple(
        (f"{one['form']}, {one['goal']}", *(_share(one[side]) for side in ("within", "between")))
        for one in found
    )
    alone = _alone(board)
    note = f"Mean over pairs of different models, in percent. {alone}".strip()
    columns = ("attack", "within families", "between families")
    return Grid("Transfer by family", columns, rows, note, rows_of(found))


def _alone(board: Board) -> str:
    """The families with one member, which have no transfer within."""
    values = [one.tags.get("family", "") for one in board.models]
    found = sorted({one for one in values if one and values.count(one) == 1})
    return f"One model only: {', '.join(found)}." if found else ""


def _share(value: float) -> str:
    return f"{100 * value:.1f}" if np.isfinite(value) else "–"


def cells(board: Board) -> Grid:
    """Every cell of every matrix, with both denominators and corrected p-values."""
    found: list[dict[str, Any]] = []
    for one, matrix in matrices_of(board):
        for s, source in enumerate(matrix.models):
            for t, target in enumerate(matrix.models):
                found.append(
                    {
                        **{"form": one.form, "goal": one.goal, "source": source, "target": target},
                        "rate": float(matrix.rate[s, t]),
                        "images": int(matrix.count[s, t]),
                        "rate_of_right": float(matrix.of_right[s, t]),
                        "right": int(matrix.right[s, t]),
                        "q": float(matrix.q[s, t]),
                    }
                )
    if not found:
        raise UnknownNameError("no attack was judged by all models")
    columns = ("attack", "from", "to", "transferred, %", "of images it gets right, %", "q")
    rows = tuple(
        (f"{c['form']}, {c['goal']}", c["source"], c["target"],
         f"{_share(c['rate'])} of {c['images']:,}",
         f"{_share(c['rate_of_right'])} of {c['right']:,}",
         f"{c['q']:.2g}" if np.isfinite(c["q"]) else "")
        for c in found
    )  # fmt: skip
    note = (
        f"{counted(board)} All images of the source, and beside them those that the target "
        "classifies correctly before the attack. q: Benjamini and Hochberg's correction of "
        "McNemar's test that the attack raises the errors of the target."
    )
    return Grid("All matrices", columns, rows, note, rows_of(found))


def estimated(board: Board) -> Grid:
    """CLEVER scores of every model: means, fits, and the images where an attack refutes them."""
    found = [*_estimated(board)]
    if not found:
        raise UnknownNameError("no CLEVER scores were sampled")
    columns = ("model", "scores of", "images", "mean score", "median distance found", "refuted")
    rows = tuple(
        (c["model"], c["cell"], f"{c['images']:,}", short(c["score"]), short(c["distance"]),
         f"{c['refuted']:,}" + (f": {c['samples']}" if c["samples"] else ""))
        for c in found
    )  # fmt: skip
    note = (
        "Scores are estimates of the l2 distance to the decision boundary, never bounds. Refuted: "
        "images whose score exceeds the smallest perturbation that C&W found, by their ids."
    )
    return Grid("CLEVER beside attacks", columns, rows, note, rows_of(found))


def _estimated(board: Board) -> Iterator[dict[str, Any]]:
    for cell in (one for one in board.cells if estimates(one)):
        for m, model in enumerate(cell.models):
            known = np.isfinite(cell.estimate[m]) & cell.correct[m]
            if not known.any():
                continue
            # Unknown counts as not found; infinities stay what they are.
            found = np.where(np.isnan(cell.smallest[m]), np.inf, cell.smallest[m])
            over = refuted_by(cell.estimate[m], found) & known
            ids = cell.samples[over].tolist()
            more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
            yield {
                **{"cell": cell.name, "model": model, "images": int(known.sum())},
                "score": float(cell.estimate[m][known].mean()),
                "distance": quantile(found[known]),
                "refuted": int(over.sum()),
                "samples": ", ".join(map(str, ids[:10])) + more,
            }


def batches(board: Board) -> Grid:
    """How the scores of ten images of every model depend on the number of batches."""
    found = [*_batches(board)]
    if not found:
        raise UnknownNameError("no CLEVER scores were kept after fewer batches")
    counts = [n for n in MARKS if any(np.isfinite(one[f"after_{n}"]) for one in found)]
    columns = ("model", "scores of", "image", *(f"{n} batches" for n in counts), "all")
    rows = tuple(
        (c["model"], c["cell"], str(c["sample"]), *(short(c[f"after_{n}"]) for n in counts),
         short(c["all"]))
        for c in found
    )  # fmt: skip
    note = (
        "The estimated largest gradient rises with the batches, and the score falls with it: where "
        "it still does, there were too few."
    )
    return Grid("CLEVER against the number of batches", columns, rows, note, rows_of(found))


TEN = 10
"""Images of each model that show how scores depend on the batches."""


def _batches(board: Board) -> Iterator[dict[str, Any]]:
    for cell in (one for one in board.cells if estimates(one) and one.estimates.size):
        for m, model in enumerate(cell.models):
            known = np.isfinite(cell.estimates[m]).any(1) & cell.correct[m]
            for at in np.flatnonzero(known)[:TEN].tolist():
                yield {
                    **{"cell": cell.name, "model": model, "sample": int(cell.samples[at])},
                    **{f"after_{n}": float(cell.estimates[m, at, k]) for k, n in enumerate(MARKS)},
                    "all": float(cell.estimate[m, at]),
                }


TABLES = (
    Table("law", law),
    Table("distances", distances),
    Table("success", success),
    Table("means", means, long=True),
    Table("families", by_family),
    Table("estimates", estimated),
    Table("batches", batches, long=True),
    Table("matrices", cells, file_only=True),
)
