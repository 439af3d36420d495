"""Errors about evaluations that cannot be compared: which differ in what, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from besiege.bench.comparable import (
    Candidate,
    by_samples,
    by_terms,
    in_common,
    is_temporary,
    same_data,
)
from besiege.bench.overview import open_run
from besiege.core.errors import ComparisonError
from besiege.core.shell import shell


def must_meet(candidates: Sequence[Candidate], groups: Sequence[Sequence[Candidate]]) -> None:
    """Raise an error where nothing can be compared, or a source meets no other one."""
    sources = {one.source for one in candidates}
    met: set[str] = set()
    for group in groups:
        together = {one.source for one in group}
        if len(together) > 1 or len(sources) == 1:
            met |= together
    lonely = {one for one in candidates if one.source not in met}
    if not lonely and candidates:
        return
    judged = [one for one in candidates if one.outline.count]
    if len(judged) < 2 or not lonely.intersection(judged):
        raise ComparisonError(_too_few(candidates, judged))
    for same_terms in by_terms(judged):
        several = len({one.source for one in same_terms}) > 1
        several |= len(sources) == 1 and len(same_terms) > 1
        if several and lonely.intersection(same_terms):
            raise ComparisonError(_other_samples(same_terms))
    raise ComparisonError(_other_threats(candidates, lonely))


def _too_few(candidates: Sequence[Candidate], judged: Sequence[Candidate]) -> str:
    unfinished = [one for one in candidates if one not in judged]
    if unfinished:
        return (
            f"no image of {unfinished[0].title} ({unfinished[0].folder}) was judged under every "
            "attack yet, so there is nothing to compare: run its evaluation again to resume it"
        )
    if not judged:
        return "there is no evaluation to compare: run besiege evaluate first"
    (one,) = judged
    _, run = open_run(one.folder)
    earlier = len(run.earlier(one.plan))
    results = "result" if earlier == 1 else "results"
    before = f", or pass history=True for its {earlier} earlier {results}" if earlier else ""
    return (
        f"{one.title} is the only evaluation to compare in {one.folder}: name a second run "
        f"(besiege compare RUN OTHER), or evaluate another model into the same folder{before}"
    )


def _other_threats(candidates: Sequence[Candidate], lonely: Collection[Candidate]) -> str:
    by_folder: dict[str, dict[str, None]] = {}
    for one in candidates:
        limit = "" if one.plan.request.queries is None else f" ({one.plan.request.queries} queries)"
        by_folder.setdefault(str(one.folder), {})[f"{one.plan.threat}{limit}"] = None
    if len(by_folder) == 1:
        ((folder, threats),) = by_folder.items()
        return (
            f"no two evaluations of {folder} have the same threat: it has {_listed(threats)}. "
            "Evaluate another model under one of them, or name a second run"
        )
    each = "; ".join(f"{folder} has {_listed(threats)}" for folder, threats in by_folder.items())
    alone = _listed(dict.fromkeys(str(one.folder) for one in candidates if one in lonely))
    return (
        f"no threat (norm, budget, goal, access and query limit) of {alone} is that of another "
        f"run: {each}. Evaluate them under the same threat"
    )


def _other_samples(candidates: Sequence[Candidate]) -> str:
    """Which samples each evaluation used, and how many they have in common."""
    from besiege.report.answer import sample_choice

    each = []
    for group in by_samples(candidates, common=False):
        names = dict.fromkeys(_placed(one) for one in group)
        each.append(f"{_listed(names)}: {sample_choice(group[0].figures)}")
    message = f"the evaluations are not on the same samples. {'; '.join(each)}. "
    if not all(same_data(candidates[0], one) for one in candidates):
        return f"{message}Models can only be compared on the same data set and split"
    count = in_common(candidates)
    cause = _withheld(candidates)
    if not count:
        together = cause or ": evaluate them with the same seed and count"
        return f"{message}They have no image in common{together}"
    if _same_ids(candidates):
        return (
            f"{message}Ids and labels are the same, but the images are not: files or arrays were "
            "changed. If that does not matter, pass common=True"
        )
    images = f"{count:,} image" + ("s" if count > 1 else "")
    common = "pass common=True to compare them on these"
    if cause:
        return f"{message}They share {images}{cause}. Or {common}"
    return f"{message}They share {images}: {common}"


def _withheld(candidates: Sequence[Candidate]) -> str:
    """That some evaluations leave out the calibration images of a detector, and what to do."""
    without = [one for one in candidates if _leaves_out(one)]
    others = [one for one in candidates if not _leaves_out(one)]
    # Those of one command leave out the same images: these have another cause.
    if not without or not others:
        return ""
    names = [f"'{one}'" for one in dict.fromkeys(one.model for one in without)]
    all_of = dict.fromkeys(one.plan.request.model for one in (*without, *others))
    leave = "leaves" if len(names) == 1 else "leave"
    first = candidates[0].plan
    models = shell(all_of)
    return (
        f": {_listed(names)} {leave} out the images that a detector was calibrated on, and the "
        "others do not. Evaluate them in one command, which leaves the same images out of all of "
        f"them: besiege evaluate {models} --data {shell([first.request.data])} --threat "
        f"{shell([first.threat])}, with the other options as before"
    )


def _leaves_out(one: Candidate) -> bool:
    """Whether images were left out that a detector was calibrated on."""
    left = one.plan.data.withheld
    return bool(one.plan.model.calibrated_on if left is None else left)


def _placed(one: Candidate) -> str:
    return one.model if is_temporary(one.folder) else f"{one.model} in {one.folder}"


def _same_ids(candidates: Sequence[Candidate]) -> bool:
    """Whether ids and labels are the same, so that only the content of images can differ."""
    first = candidates[0].outline.outcomes
    return all(
        np.array_equal(first[name], one.outline.outcomes[name])
        for one in candidates
        for name in ("sample", "label")
    )


def _listed(words: Iterable[str]) -> str:
    return " and ".join(words)
