"""Which evaluations can be compared: the same threat on the same samples, with names apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from besiege.bench.image_pairs import stored_images
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.results import complete_figures
from besiege.bench.store import Store
from besiege.bench.summaries import Summary, summary_of
from besiege.bench.words import told_apart
from besiege.core.errors import ComparisonError, StoreError, UnknownNameError, near
from besiege.core.threat import Access, Norm, Threat
from besiege.metrics.comparing import Aligned, Outline
from besiege.metrics.rows import Column
from besiege.metrics.values import EvaluationFigures


@dataclass(frozen=True, eq=False)
class Candidate:
    """An evaluation that is to be compared.

    Attributes
    ----------
    plan, figures, outline
        The evaluation, its figures with all findings, and its outcomes by sample.
    folder : Path
        Its run folder.
    source : str
        What the user named: a run folder, or one result. Each must meet another.
    """

    plan: Plan
    figures: EvaluationFigures
    outline: Outline
    folder: Path
    source: str

    @property
    def model(self) -> str:
        return self.figures.model.title

    @property
    def title(self) -> str:
        return f"{self.model} against {self.plan.threat}"


def candidates_of(
    folders: Sequence[Path | str], models: Sequence[str] = (), history: bool = False
) -> list[Candidate]:
    """The evaluations of run folders, or only those of some models.

    Parameters
    ----------
    folders : sequence of path
        Run folders; one that is named twice counts once.
    models : sequence of str
        Names of models: those of a benchmark, or texts, with or without what stands before the
        colon (``zoo:``).
    history : bool
        Whether earlier evaluations, which newer ones replaced, are included.
    """
    unique = {Path(folder).resolve(): Path(folder) for folder in folders}
    found = [one for folder in unique.values() for one in _in_folder(folder, history)]
    known = {one.model for one in found}
    for name in models:
        if not any(_is_called(one, name) for one in found):
            raise UnknownNameError(f"no evaluation of '{name}' is there: {near(name, known)}")
    kept = [one for one in found if not models or any(_is_called(one, n) for n in models)]
    for folder in unique.values() if len(unique) > 1 else ():
        if str(folder) not in {one.source for one in kept}:
            theirs = {one.model for one in found if one.source == str(folder)}
            raise ComparisonError(
                f"{folder} has no evaluation of {' or '.join(models)}, but of "
                f"{' and '.join(sorted(theirs))}: name one of them, or leave the folder out"
                if theirs
                else f"{folder} has no evaluation: run besiege evaluate with that folder first"
            )
    return kept


def candidate_of(folder: Path, plan: Plan, figures: EvaluationFigures, source: object) -> Candidate:
    """A candidate of a result in Python."""
    outline = summary_of(Store(folder), plan).outline
    return Candidate(plan, figures, outline, folder, str(source))


def _in_folder(folder: Path, history: bool) -> Iterator[Candidate]:
    store, run = open_run(folder)
    plans, names = run.histories(), run.short_names
    summaries = [summary_of(store, plan) for plan, _ in plans]
    for mine, (_, before) in zip(summaries, plans, strict=True):
        # Later ones are measured against earlier ones, so these come first.
        earlier = reversed(before) if history else ()
        for one in (*(summary_of(store, plan) for plan in earlier), mine):
            yield _candidate(one, complete_figures(one, summaries, names), folder)


def _candidate(summary: Summary, figures: EvaluationFigures, folder: Path) -> Candidate:
    return Candidate(summary.plan, figures, summary.outline, folder, str(folder))


def _is_called(one: Candidate, name: str) -> bool:
    model = one.figures.model
    return model.is_called(name) or name == model.name.partition(":")[2]


# Groups.


class Terms(NamedTuple):
    """What the attacker may do; evaluations on other terms are never compared.

    ``eps`` is a share of the width of a pixel value's range, so that models which take images in
    [0, 1] and in [0, 255] meet. Without a budget, distances compare within one width only.
    """

    norm: Norm
    eps: Fraction | None
    width: float
    aim: str
    access: Access
    queries: int | None


def terms_of(one: Candidate) -> Terms:
    """The terms of an evaluation."""
    threat, width = Threat.parse(one.plan.threat), width_of(one)
    queries = one.plan.request.queries
    if threat.eps is None:
        return Terms(threat.norm, None, width, threat.aim, threat.access, queries)
    eps = Fraction(threat.eps) / Fraction(width)
    return Terms(threat.norm, eps, 1.0, threat.aim, threat.access, queries)


def width_of(one: Candidate) -> float:
    """The width of the range of a pixel value, in which distances are measured; 1 of counts."""
    low, high = one.plan.model.box
    return 1.0 if Threat.parse(one.plan.threat).norm is Norm.L0 else high - low


@dataclass(frozen=True, eq=False)
class Sorted:
    """The groups of evaluations to compare, and those that are left out, with the reason."""

    groups: tuple[tuple[Candidate, ...], ...]
    left_out: tuple[tuple[Candidate, str], ...]


def sort_out(candidates: Sequence[Candidate], common: bool = False) -> Sorted:
    """Group evaluations by threat and samples.

    With `common`, evaluations of one data set meet even if their samples differ.
    """
    groups: list[tuple[Candidate, ...]] = []
    left_out: list[tuple[Candidate, str]] = []
    judged = [one for one in candidates if one.outline.count]
    left_out += [
        (one, "no image was judged under every attack yet")
        for one in candidates
        if not one.outline.count
    ]
    for same_terms in by_terms(judged):
        for group in by_samples(same_terms, common):
            if len(group) > 1:
                groups.append(group)
            else:
                why = "other samples" if len(same_terms) > 1 else "no other has this threat"
                left_out.append((group[0], why))
    return Sorted(tuple(groups), tuple(left_out))


def by_terms(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Sets of evaluations on the same terms."""
    found: dict[Terms, list[Candidate]] = {}
    for one in candidates:
        found.setdefault(terms_of(one), []).append(one)
    return list(found.values())


def by_samples(candidates: Sequence[Candidate], common: bool) -> list[tuple[Candidate, ...]]:
    """Sets of evaluations on the same samples; with `common`, of the same data set and split."""
    found: list[list[Candidate]] = []
    for one in candidates:
        for group in found:
            fits = _common(one, group) if common else same_samples(one, group[0])
            if fits:
                group.append(one)
                break
        else:
            found.append([one])
    return [tuple(group) for group in found]


def _common(one: Candidate, group: Sequence[Candidate]) -> bool:
    return same_data(one, group[0]) and in_common([one, *group]) > 0


def same_data(one: Candidate, other: Candidate) -> bool:
    """Whether two evaluations used one data set and split."""
    mine, theirs = one.plan.data, other.plan.data
    return (mine.name, mine.split) == (theirs.name, theirs.split)


def same_pixels(one: Candidate, other: Candidate) -> bool:
    """Whether the images of two evaluations are known to be equal."""
    return one.plan.data.digest == other.plan.data.digest


def have_other_pixels(one: Candidate, other: Candidate) -> bool:
    """Whether stored images with the same id differ.

    Images of other sizes or ranges are not compared: models may take the same image differently.
    """
    if same_pixels(one, other):
        return False
    ids = Aligned.of([one.outline, other.outline], common=True).samples
    mine, theirs = (_clean_images(each, ids) for each in (one, other))
    return any(
        mine[i].shape == theirs[i].shape and not np.array_equal(mine[i], theirs[i])
        for i in mine.keys() & theirs.keys()
        if one.plan.model.box == other.plan.model.box
    )


def _clean_images(one: Candidate, ids: NDArray[np.int64]) -> dict[int, Column]:
    """The stored clean images of some samples, by id."""
    store, found = Store(one.folder), dict[int, Column]()
    for stage in one.plan.stages_of("clean"):
        for task in (task for tasks in stage.parts for task in tasks):
            if len(found) == len(ids):
                return found
            with suppress(StoreError):
                samples = store.rows([task.key])["sample"]
                if np.isin(samples, ids).any():
                    images = stored_images(store.images(task.key))
                    chosen = np.flatnonzero(np.isin(samples, ids))
                    found |= {int(samples[row]): images[row] for row in chosen}
    return found


def same_samples(one: Candidate, other: Candidate) -> bool:
    """Whether two evaluations used the same samples.

    Digests of equal samples may differ: they depend on the size of the images, on how a model takes
    them, and for large folders on the size of the shards. Then ids and labels decide.
    """
    if not same_data(one, other):
        return False
    if same_pixels(one, other):
        return True
    if _digest_terms(one.plan) == _digest_terms(other.plan):
        return False
    mine, theirs = one.outline.outcomes, other.outline.outcomes
    return all(np.array_equal(mine[name], theirs[name]) for name in ("sample", "label"))


def _digest_terms(plan: Plan) -> tuple[object, ...]:
    """All that a digest of samples depends on besides the samples."""
    sizes = tuple(shard.count for shard in plan.shards)
    return plan.data.shape, sizes, plan.model.kind, plan.model.box


def in_common(candidates: Sequence[Candidate]) -> int:
    """The number of samples that all these evaluations have, with equal labels."""
    return len(Aligned.of([one.outline for one in candidates], common=True).samples)


# Names.


def names_of(group: Sequence[Candidate]) -> list[str]:
    """A name for each evaluation of a group: the model's, and what tells equal ones apart."""
    names = [one.model for one in group]
    for model in {name for name in names if names.count(name) > 1}:
        places = [place for place, name in enumerate(names) if name == model]
        marks = told_apart([[*_traits(group[place])] for place in places])
        for place, mark in zip(places, marks, strict=True):
            names[place] = f"{model} ({mark})"
    return names


def _traits(one: Candidate) -> Iterator[str]:
    named = not is_temporary(one.folder)
    yield one.folder.name if named else ""
    yield str(one.folder) if named else ""
    yield attacks_of(one)
    yield (one.plan.made or "date unknown")[:16].replace("T", " ")
    yield one.plan.model.digest[:8]
    yield one.plan.name[:8]


def is_temporary(folder: Path) -> bool:
    """Whether a folder is that of a result without a folder of its own, whose name says nothing."""
    return folder.name.startswith("besiege-") and folder.parent == Path(gettempdir())


def attacks_of(one: Candidate) -> str:
    """The attacks of an evaluation in a few words."""
    plan = one.plan
    some = plan.judged[len(plan.attacks) if plan.request.suite else 0 :]
    suite = [f"suite {plan.request.suite}"] if plan.request.suite else []
    words = ", ".join([*suite, *(spec.title for spec in some)])
    several = " and ".join(one.figures.threat.substitute)
    return f"{words}, crafted on {several}" if several else words
