"""Compares evaluations sample by sample: which model is more robust, and how sure that is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from besiege.bench.comparable import (
    Candidate,
    attacks_of,
    candidates_of,
    have_other_pixels,
    names_of,
    same_pixels,
    sort_out,
    width_of,
)
from besiege.bench.compared import Compared, Group, Pair, PairedComparison
from besiege.bench.incomparable import must_meet
from besiege.bench.overview import open_run
from besiege.bench.utilities import Utilities
from besiege.core.threat import written_unit
from besiege.metrics.comparing import Aligned, distances_of
from besiege.metrics.crossings import along_budget
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Numbers
from besiege.metrics.paired import holm, samples_needed
from besiege.metrics.rows import places


def compare_runs(
    folders: Sequence[Path | str],
    *,
    models: Sequence[str] = (),
    common: bool = False,
    history: bool = False,
) -> PairedComparison:
    """Compare the evaluations of one or several run folders.

    In the folder of a benchmark only the pairs that it declares are compared, or all pairs of
    models in a cell.

    Parameters
    ----------
    folders : sequence of path
        Run folders.
    models : sequence of str
        Only these models; by default all of them.
    common : bool
        Compare evaluations on other samples of the same data, on the samples that all have.
    history : bool
        Include earlier evaluations, which newer ones of the same request replaced.

    Returns
    -------
    PairedComparison
    """
    candidates = candidates_of(folders, models, history)
    one_folder = len({one.folder for one in candidates}) == 1 and not history
    run = open_run(folders[0])[1] if one_folder else None
    found = compare(candidates, common=common, pairs=None if run is None else run.compared())
    benchmark = None if run is None else run.benchmark
    return found if benchmark is None else replace(found, declared=benchmark.compare.pairs)


def compare(
    candidates: Sequence[Candidate],
    *,
    common: bool = False,
    pairs: Collection[frozenset[str]] | None = None,
) -> PairedComparison:
    """Compare evaluations; an error where one of their sources can be compared with no other.

    `pairs` are the names of plans that are compared; by default all of them.
    """
    # A result and the folder that holds it are one evaluation; copied weights are two models.
    known = {(one.folder.resolve(), one.plan.name, one.model): one for one in candidates}
    candidates = list(known.values())
    found = sort_out(candidates, common)
    must_meet(candidates, found.groups)
    groups = [_group(group, common, pairs) for group in found.groups]
    every = [pair for group in groups for pair in group.pairs]
    corrected = iter(
        replace(pair, p=p, needed=samples_needed(pair.change, len(every)))
        for pair, p in zip(every, holm([pair.change.p for pair in every]), strict=True)
    )
    return PairedComparison(
        tuple(replace(g, pairs=tuple(next(corrected) for _ in g.pairs)) for g in groups),
        tuple((f"{one.title} in {one.folder}", why) for one, why in found.left_out),
    )


def _group(
    candidates: Sequence[Candidate], common: bool, chosen: Collection[frozenset[str]] | None
) -> Group:
    aligned = Aligned.of([one.outline for one in candidates], common)
    names = names_of(candidates)
    shown = [_compared(one, aligned, n, names[n]) for n, one in enumerate(candidates)]
    order = sorted(range(len(shown)), key=lambda place: _rank(shown[place]))
    ranked = [shown[place] for place in order]
    paired = [
        pair
        for one, other in combinations(order, 2)
        if (chosen is None or _plans(candidates[one], candidates[other]) in chosen)
        and (pair := _pair(aligned, names, one, other)) is not None
    ]
    where = [(names.index(pair.first), names.index(pair.second)) for pair in paired]
    threat = candidates[0].figures.threat
    unit = written_unit(threat.norm, threat.eps_text) or 1
    crossed = along_budget(_distances(candidates, aligned), where, unit=unit)
    utilities = Utilities(candidates, names, aligned.samples)
    pairs = tuple(
        replace(pair, crossing=one, base=names[min(two)], measure=partial(utilities.of, *two))
        for pair, one, two in zip(paired, crossed, where, strict=True)
    )
    smallest = min(candidates, key=lambda one: one.plan.data.count)
    return Group(
        threat,
        smallest.figures.data,
        len(aligned.samples),
        tuple(ranked),
        pairs,
        tuple(_notes(candidates, names, len(aligned.samples) if common else None)),
    )


def _distances(candidates: Sequence[Candidate], aligned: Aligned) -> Numbers:
    """The smallest perturbations of all evaluations, in the unit of the first one's budget."""
    widths = [width_of(one) for one in candidates]
    return np.stack(
        [
            distances_of(one.outline, aligned.samples) * (widths[0] / width)
            for one, width in zip(candidates, widths, strict=True)
        ]
    )


def _plans(one: Candidate, other: Candidate) -> frozenset[str]:
    return frozenset((one.plan.name, other.plan.name))


def _compared(one: Candidate, aligned: Aligned, place: int, name: str) -> Compared:
    values = aligned.values[place][aligned.known[place]]
    clean = one.outline.outcomes
    chosen = places(aligned.samples, clean["sample"]) >= 0
    minimal = one.outline.eps is None
    withstood = np.isinf(values) if minimal else values > 0
    median = quantile(values) if minimal and len(values) else None
    return Compared(
        name,
        one.figures,
        one.folder,
        Rate.of(int(clean["correct"][chosen].sum()), int(chosen.sum())),
        Rate.of(int(withstood.sum()), len(values)) if len(values) else None,
        median if median is None or np.isfinite(median) else None,
        aligned.alone(place),
        aligned.alone(place, best=False),
    )


def _rank(one: Compared) -> tuple[float, float]:
    """The most robust first. A median that no budget reaches is larger than any other."""
    if one.robust is None:
        return np.inf, -one.clean.value
    minimal = one.figures.threat.eps is None
    median = np.inf if one.median is None else one.median
    return (-median if minimal else -one.robust.value, -one.clean.value)


def _pair(aligned: Aligned, names: Sequence[str], one: int, other: int) -> Pair | None:
    """Two evaluations, the more robust one first; None without common samples."""
    change = aligned.difference(one, other)
    if change is None:
        return None
    if change.value < 0:
        return _pair(aligned, names, other, one)
    ids = aligned.better(one, other), aligned.better(other, one)
    return Pair(names[one], names[other], change, change.p, None, *ids)


def _notes(
    candidates: Sequence[Candidate], names: Sequence[str], common: int | None
) -> Iterator[str]:
    """Sentences about what differs besides the models; `common` is the number of shared samples."""
    first = candidates[0]
    if len({_spelled(one) for one in candidates}) > 1:
        by_attacks: dict[str, list[str]] = {}
        for one, name in zip(candidates, names, strict=True):
            by_attacks.setdefault(attacks_of(one), []).append(name)
        each = "; ".join(f"{', '.join(group)} under {words}" for words, group in by_attacks.items())
        yield (
            f"Not the same attacks: {each}. Stronger attacks leave a lower accuracy, so a "
            "difference may be that of the attacks."
        )
    if common is not None and common < max(one.plan.data.count for one in candidates):
        yield f"Compared on the {common:,} images that all of them have."
        if any(have_other_pixels(first, one) for one in candidates[1:]):
            yield "Images with the same ids are not the same images: their pixels differ."
    elif not all(same_pixels(first, one) for one in candidates):
        shapes = dict.fromkeys("x".join(map(str, one.plan.data.shape)) for one in candidates)
        why = f"sizes {' and '.join(shapes)}" if len(shapes) > 1 else "their digests differ"
        yield f"The images have the same ids and labels, but perhaps not the same pixels: {why}."


def _spelled(one: Candidate) -> str:
    """All that decides the attacks of an evaluation, as one text."""
    parts = [[spec.spelled, spec.source, spec.advice, spec.starts] for spec in one.plan.judged]
    return str((parts, one.plan.chained))
