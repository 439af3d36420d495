"""What an attack's successes look like: the attack utility metrics of DEEPSEC (Ling et al. 2019).

The share of successes has all attacked images as its denominator; everything else is a mean over
the successes and carries their number. Without a success it is not a number, never 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import InputError
from besiege.metrics import similarity
from besiege.metrics.attack_values import AttackUtility
from besiege.metrics.evidence import Trial
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.rows import Column, Rows, places

CERTAINTY = ("confidence", "p_label", "p_second")
"""Columns of judged rows that the probability metrics need."""
FEWEST = 50
"""Attacks are compared on at least so many common successes."""

IMAGES, VALUES = 1000, 1 << 25
"""Figures compare at most so many images of an attack, and so many pixel values."""

Images = NDArray[np.generic]


@dataclass(frozen=True)
class Certain:
    """Probabilities of the answers to successful images, as means over them.

    Attributes
    ----------
    acac : float
        Average confidence of the adversarial class: the probability of the predicted class.
    actc : float
        Average confidence of the true class.
    nte : float
        Noise tolerance estimation: the probability of the predicted class less the second largest.
    entropy : float
        Entropy of the probabilities, in natural logarithms.
    """

    acac: float
    actc: float
    nte: float
    entropy: float


@dataclass(frozen=True)
class Likeness:
    """How alike successful images and clean ones are, as means over the successes.

    Attributes
    ----------
    ald : mapping
        Average distortion in each norm as in DEEPSEC's code and tables: plain norms of values from
        0 to 1, for l0 the share of values that differ after rounding to 8 bits.
    ald_relative : mapping
        The same as in its paper: norms of the perturbation over those of the clean image.
    ass, ass_published : float
        Average structural similarity with the data range 255, and with 2 as DEEPSEC published it;
        not a number where images are smaller than the window.
    psd, psd_paper : float
        Perturbation sensitivity distance with ``1 - std``, as its code and tables, and with
        ``1 / std``, as its paper.
    """

    ald: Mapping[str, float]
    ald_relative: Mapping[str, float]
    ass: float
    ass_published: float
    psd: float
    psd_paper: float


@dataclass(frozen=True)
class Cost:
    """What an attack costs for each attacked image; seconds depend on the machine, passes do not.

    ``seconds`` is not a number where they are not known, such as of images made elsewhere.
    """

    seconds: float
    passes: float


def misclassification(success: Column) -> Rate:
    """MR, the share of attacked images on which the attack succeeds, with its exact interval.

    Parameters
    ----------
    success : array
        Whether the attack succeeded, one value for every attacked image.

    Examples
    --------
    >>> misclassification(np.array([True, True, False, True])).value
    0.75
    """
    found = np.asarray(success, bool)
    if not len(found):
        raise InputError("a share of no images is none: give one image at least")
    return Rate.of(int(found.sum()), len(found))


def certain(rows: Rows) -> Certain:
    """ACAC, ACTC and NTE of the successful rows; not numbers where there are none.

    Parameters
    ----------
    rows : Rows
        Judged rows of successes only. Records of earlier releases lack the columns, and victims
        that return labels only have NaN there: both are refused.

    Examples
    --------
    >>> odds = {"confidence": [0.6, 0.9], "p_label": [0.3, 0.05], "p_second": [0.3, 0.06]}
    >>> found = certain(Rows({**odds, "entropy": [0.9, 0.4]}))
    >>> round(found.acac, 3), round(found.actc, 3), round(found.nte, 3)
    (0.75, 0.175, 0.57)
    """
    if not rows.count:
        return Certain(*[np.nan] * 4)
    if why := _unknown(rows):
        raise InputError(why)
    top, label, second = (rows[name].astype(np.float64) for name in CERTAINTY)
    entropy = rows["entropy"] if "entropy" in rows else np.full(len(top), np.nan)
    return Certain(*(float(each.mean()) for each in (top, label, top - second, entropy)))


def _unknown(rows: Rows) -> str:
    """Why the probability metrics of some rows are not known, with what would do; empty if not."""
    if not rows.count:
        return ""
    if any(name not in rows for name in CERTAINTY):
        return (
            "records of an earlier release do not have the probabilities of the true and the "
            "second class: evaluate into another folder"
        )
    known = np.stack([rows[name].astype(np.float64) for name in CERTAINTY])
    gone = int(np.isnan(known).any(0).sum())
    if gone == 0:
        return ""
    if np.isnan(known[0]).all():
        return (
            "the model returns labels only, so its probabilities are not known: evaluate it with "
            "access to scores"
        )
    return (
        f"{gone} of {rows.count} rows are of an earlier release, which did not store the "
        "probabilities of the true and the second class: evaluate into another folder"
    )


def likeness(clean: Images, adversarial: Images, *, window: int = similarity.WINDOW) -> Likeness:
    """ALD, ASS and PSD of pairs of a clean and a successful image; not numbers without a pair.

    Parameters
    ----------
    clean, adversarial : array
        Images ``[images, channels, height, width]`` with values from 0 to 1.
    window : int
        Side of the window of SSIM; of smaller images it is not a number.

    Examples
    --------
    >>> clean = np.full((2, 1, 8, 8), 0.5)
    >>> found = likeness(clean, clean + 0.1)
    >>> {norm: round(value, 3) for norm, value in found.ald.items()}
    {'l0': 1.0, 'l2': 0.8, 'linf': 0.1}
    """
    norms = similarity.NORMS
    fits = clean.ndim != 4 or min(clean.shape[2:]) >= window
    surrounded = clean.ndim != 4 or min(clean.shape[2:]) >= 2

    def alike(data_range: float) -> float:
        return mean(similarity.ssim(clean, adversarial, data_range, window)) if fits else np.nan

    def sensitive(form: similarity.Sensitivity) -> float:
        return mean(similarity.psd(clean, adversarial, form)) if surrounded else np.nan

    return Likeness(
        {norm: mean(similarity.distance(clean, adversarial, norm)) for norm in norms},
        {norm: mean(similarity.distance(clean, adversarial, norm, "relative")) for norm in norms},
        alike(255.0),
        alike(2.0),
        sensitive("code"),
        sensitive("paper"),
    )


def mean(values: NDArray[np.float64]) -> float:
    """The mean; not a number without values, or where one is none."""
    return float(values.mean()) if len(values) else np.nan


def cost(rows: Rows, seconds: float = np.nan) -> Cost:
    """CC: seconds and forward and backward passes for each attacked image.

    Parameters
    ----------
    rows : Rows
        ``forwards`` and ``backwards`` of every attacked image.
    seconds : float
        The time of all.

    Examples
    --------
    >>> cost(Rows({"forwards": [10, 20], "backwards": [5, 5]}), seconds=4.0)
    Cost(seconds=2.0, passes=20.0)
    """
    if not rows.count:
        return Cost(np.nan, np.nan)
    # Those on the model that images were crafted on are in a column of their own.
    names = [name for name in ("forwards", "backwards", "aside") if name in rows]
    passes = np.sum([rows[name].astype(np.int64) for name in names], 0)
    return Cost(seconds / rows.count, float(passes.mean()))


def attack_utility_figures(case: Case) -> tuple[AttackUtility, ...]:
    """The attack utility of every attack of an evaluation, those of the guards apart."""
    return tuple(_of(case, one) for one in case.evidence.trials if not one.guard and one.rows.count)


def _of(case: Case, trial: Trial) -> AttackUtility:
    evidence = case.evidence
    won = trial.rows.where(evidence.newly_broken(trial))
    lacking: dict[str, str] = {}
    rate = None
    if evidence.chained or trial.partial:
        lacking["mr"] = SOME if trial.partial else SURVIVORS
    else:
        asked = evidence.covered(trial) & evidence.right
        rate = Rate.of(won.count, int(asked.sum())) if asked.any() else None
    sure = {}
    if unknown := _unknown(won):
        lacking["probabilities"] = unknown
    else:
        sure = _known(asdict(certain(won)))
    measured, alike = _alike(case, won, lacking)
    spent: dict[str, float | None] = {}
    if trial.given:
        lacking["cost"] = "what images made elsewhere cost is not known"
    else:
        spent = _known(
            asdict(cost(trial.rows.where(~trial.spared), case.seconds.get(trial.text, np.nan)))
        )
    transfer = trial.access == "transfer"
    return AttackUtility(
        text=trial.text,
        transfer=transfer,
        mr=rate,
        count=won.count,
        measured=measured,
        lacking=lacking,
        **sure,
        **alike,
        **spent,
    )


SURVIVORS = "in a suite, each attack runs on what those before it left"
SOME = "these images are of some samples only"
GONE = (
    "its images are not there any more: run the benchmark into another folder with images = "
    '"all", where the same seed makes the same images'
)


def _alike(case: Case, won: Rows, lacking: dict[str, str]) -> tuple[int, dict[str, float | None]]:
    """How many pairs of images were compared, and their means by the names of the figure."""
    clean = case.evidence.clean
    if case.images is None or not won.count:
        return 0, {}
    order = np.argsort(won["sample"], kind="stable")
    few = won.where(order[: min(IMAGES, max(1, VALUES // max(case.evidence.pixels, 1)))])
    pairs = case.images(few, clean.where(places(clean["sample"], few["sample"])))
    if pairs is None:
        lacking["images"] = GONE
        return 0, {}
    found = likeness(*pairs)
    if np.isnan(found.ass):
        lacking["window"] = f"images smaller than {similarity.WINDOW} pixels have no SSIM"
    values = {
        **found.ald,
        **{f"{norm}_relative": value for norm, value in found.ald_relative.items()},
        **{name: getattr(found, name) for name in ("ass", "ass_published", "psd", "psd_paper")},
    }
    return few.count, _known(values)


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    """Values with None for what is not a number, which JSON does not have."""
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


_NAMES = {
    **{name.upper(): name for name in ("mr", "acac", "actc", "nte")},
    **{"L0": "l0", "L2": "l2", "Linf": "linf"},
    **{"L0_relative": "l0_relative", "L2_relative": "l2_relative"},
    **{"Linf_relative": "linf_relative", "ASS": "ass", "ASS_range_2": "ass_published"},
    **{"PSD": "psd", "PSD_paper": "psd_paper", "seconds": "seconds", "passes": "passes"},
}
COLUMNS = ("attack", "transfer", "N", "n", *_NAMES)
"""Columns of `table`."""


def table(found: Iterable[AttackUtility]) -> Rows:
    """The attack utility of several attacks as a table, a row for each; NaN where not known.

    ``N`` is the number of attacked images, -1 where there is no share of successes, and ``n`` that
    of the successes.

    Examples
    --------
    >>> table([]).count
    0
    """
    every = list(found)
    columns: dict[str, Column] = {
        "attack": np.array([one.text for one in every], object),
        "transfer": np.array([one.transfer for one in every], bool),
        "N": np.array([one.mr.count if one.mr else -1 for one in every], np.int64),
        "n": np.array([one.count for one in every], np.int64),
    }
    for name, own in _NAMES.items():
        columns[name] = np.array([_number(getattr(one, own)) for one in every], np.float64)
    return Rows(columns)


def _number(value: Rate | float | None) -> float:
    if value is None:
        return float("nan")
    return value.value if isinstance(value, Rate) else value


def on_common(
    successes: Mapping[str, Column], values: Mapping[str, Column]
) -> tuple[int, dict[str, float]]:
    """Means of a metric of several attacks over the images on which all of them succeed.

    Parameters
    ----------
    successes : mapping
        By attack, on which images it succeeded, ``[images]``.
    values : mapping
        By attack, the metric of each image; only those of common successes count.

    Returns
    -------
    (int, dict)
        The number of common successes, and the means; with fewer than 50, nothing can be told and
        the means are not numbers.

    Examples
    --------
    >>> wins = {"a": np.array([1, 1, 0]), "b": np.array([1, 0, 1])}
    >>> on_common(wins, {"a": np.ones(3), "b": np.ones(3)})[0]
    1
    """
    if not successes or set(successes) != set(values):
        raise InputError("give the successes and the values of the same attacks, one at least")
    both = np.logical_and.reduce([np.asarray(each, bool) for each in successes.values()])
    count = int(both.sum())
    told = count >= FEWEST
    return count, {
        name: float(np.asarray(each, np.float64)[both].mean()) if told else np.nan
        for name, each in values.items()
    }
