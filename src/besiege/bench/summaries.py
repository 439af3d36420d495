"""The figures of one evaluation: computed once from its records, then cached in the run folder.

``figures/NAME.json`` has the figures of a complete evaluation, and the outline that comparisons
with other evaluations need. It is derived and can be deleted. It is used only while code, plan and
records are the same: the keys of the records, and times, sizes and inodes of their files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter

import besiege
from besiege.bench import kept
from besiege.bench.image_pairs import pairs_in
from besiege.bench.plan import Plan
from besiege.bench.reading import Gathered, gather, is_free
from besiege.bench.store import Store, key_of
from besiege.bench.words import in_words, incomplete
from besiege.core import presets
from besiege.core.errors import Finding, StoreError
from besiege.core.files import read_file
from besiege.core.threat import Goal, Threat
from besiege.metrics import warnings
from besiege.metrics.comparing import Comparison, Outline
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Outcomes
from besiege.metrics.registry import Case, registered
from besiege.metrics.rows import Rows
from besiege.metrics.values import (
    DataFigures,
    EvaluationFigures,
    ModelFigures,
    ThreatFigures,
    plain,
)

FOLDER = kept.FOLDER


@dataclass(frozen=True)
class Summary:
    """The outline of an evaluation, and its figures without comparisons with others."""

    plan: Plan
    figures: EvaluationFigures
    outline: Outline


def summary_of(store: Store, plan: Plan) -> Summary:
    """The summary of an evaluation: the cached one, or computed now from the records."""
    stamp = _stamp(store, plan)  # before reading, so that records changed meanwhile are noticed
    path = store.folder / FOLDER / f"{plan.name}.json"
    known = _read(path, stamp)
    if known is not None:
        return Summary(plan, *known)
    gathered = gather(store, plan)
    made = _computed(gathered, store)
    if gathered.complete:
        with suppress(OSError, StoreError):  # a read-only folder works without a cache
            path.parent.mkdir(exist_ok=True)
            store.write_file(f"{FOLDER}/{path.name}", _written(made, stamp))
        kept.keep(store, plan.name, Outcomes.of(gathered.evidence), stamp)
    return made


def outcomes_of(store: Store, plan: Plan) -> Outcomes:
    """The outcomes of an evaluation: the cached ones, or computed now from the records."""
    stamp = _stamp(store, plan)
    known = kept.outcomes(store, plan.name, stamp)
    if known is not None:
        return known
    gathered = gather(store, plan)
    found = Outcomes.of(gathered.evidence)
    if gathered.complete:
        kept.keep(store, plan.name, found, stamp)
    return found


def _computed(gathered: Gathered, store: Store) -> Summary:
    plan, evidence = gathered.plan, gathered.evidence
    threat = Threat.parse(plan.threat)
    model = plan.model
    case = Case(
        evidence,
        model.draws if model.stochastic else 0,
        gathered.judged,
        gathered.seconds,
        gathered.failures,
        {
            stage.name: stage.attack.described
            for stage in plan.stages()
            if stage.attack is not None and not stage.curve
        },
        gathered.missing.keys(),
        pairs_in(store, model.box),
    )
    computed = {one.name: one.compute(case) for one in registered() if one.compute is not None}
    own = {one.name for one in fields(EvaluationFigures)}
    findings = [
        *threat.findings(model.box),
        *(
            finding
            for spec in plan.attacks
            for finding in presets.findings(spec.written or "", threat, model.box)
        ),
        *gathered.findings,
        *warnings.findings(evidence),
        *(() if computed["examination"] is None else computed["examination"].findings),
        *incomplete(gathered),
    ]
    figures = EvaluationFigures(
        name=plan.name,
        model=ModelFigures(**dict(model)),
        data=DataFigures(**plan.data.model_dump(exclude={"withheld"})),
        threat=ThreatFigures(
            plan.threat,
            str(threat.norm),
            None if threat.eps is None else float(threat.eps),
            threat.written,
            threat.aim,
            str(threat.access),
            plan.request.queries,
            plan.request.substitute,
            model.box,
            in_words(plan, evidence, computed["chance"]),
        ),
        mode="suite" if plan.chained else "attacks",
        suite=plan.request.suite,
        seed=plan.request.seed,
        command=plan.request.command,
        complete=gathered.complete,
        no_curve=plan.no_curve,
        warnings=tuple(findings),
        others={k: v for k, v in computed.items() if k not in own and v is not None},
        **{name: value for name, value in computed.items() if name in own},
    )
    return Summary(plan, figures, Outline.of(evidence, plan.threat))


# Comparisons.


def comparison(mine: Summary, others: list[Summary], names: Mapping[str, str]) -> Comparison:
    """The input of the rules that compare an evaluation with others of its run folder.

    `names` are those of models in the benchmark, by their texts.
    """
    plan, threat = mine.plan, Threat.parse(mine.plan.threat)
    elsewhere: dict[float, dict[str, float]] = {}
    beside: list[Outline] = []
    for other in _comparable(mine, others):
        their, same_seed = other.outline, other.plan.request.seed == plan.request.seed
        # Targets given for each image may differ; random ones follow from image and label.
        if threat.goal is not Goal.GIVEN or threat.target is not None:
            beside.append(their)
        fixed = mine.outline.eps is not None and their.eps is not None
        if fixed and same_seed and their.norm == mine.outline.norm and not other.plan.chained:
            elsewhere.setdefault(their.eps or 0.0, {}).update(their.accuracy)
    counterpart = _counterpart(mine, others, names)
    return Comparison(mine.outline, elsewhere, beside, counterpart, _targeted(mine, others))


def differing(one: Plan, other: Plan) -> str:
    """What differs between two evaluations besides the model, so that their results do not compare.

    Empty where the same images were attacked in the same way, within the same budget.
    """
    if one.data.digest != other.data.digest:
        return "other images"
    if one.model.box != other.model.box:
        return "another range of pixel values"
    return "" if attacked_alike(one, other) else "other attacks"


def attacked_alike(one: Plan, other: Plan) -> bool:
    """Whether two plans attack in the same way, seeds and starting points apart."""
    ways = [
        [[a.spelled, a.threat, a.queries, a.source, a.advice] for a in plan.judged]
        for plan in (one, other)
    ]
    return ways[0] == ways[1] and one.chained == other.chained


def _comparable(mine: Summary, others: list[Summary]) -> Iterator[Summary]:
    """Other evaluations of the same victim, samples, goal, access, query limit and substitute."""
    plan, threat = mine.plan, Threat.parse(mine.plan.threat)
    for other in others:
        if other.plan.name != plan.name and _alike(other.plan, plan):
            their = Threat.parse(other.plan.threat)
            if (their.aim, their.access) == (threat.aim, threat.access):
                yield other


def _alike(one: Plan, other: Plan) -> bool:
    """Whether two plans have the same victim, samples, query limit and substitute."""
    return (
        one.model.digest == other.model.digest
        and one.shards == other.shards
        and one.request.queries == other.request.queries
        and one.request.substitute == other.request.substitute
    )


def _targeted(mine: Summary, others: list[Summary]) -> list[Outline]:
    """Targeted evaluations of the same victim, samples, access and budget, of an untargeted one."""
    plan, threat = mine.plan, Threat.parse(mine.plan.threat)
    if threat.goal is not Goal.UNTARGETED:
        return []
    same = replace(threat, written=None)
    return [
        other.outline
        for other in others
        if _alike(other.plan, plan)
        and other.plan.threat != plan.threat
        and replace(Threat.parse(other.plan.threat), written=None, goal=threat.goal, target=None)
        == same
    ]


def _counterpart(
    mine: Summary, others: list[Summary], names: Mapping[str, str]
) -> tuple[str, Rate] | None:
    """A victim without a defense under the same attacks on the same samples, if there is one."""
    plan = mine.plan
    if plan.model.undefended or not is_free(plan, Threat.parse(plan.threat)):
        return None
    for other in others:
        theirs = other.plan
        if (
            theirs.model.undefended
            and theirs.threat == plan.threat
            and theirs.shards == plan.shards
            and [one.spelled for one in theirs.attacks] == [one.spelled for one in plan.attacks]
            and other.outline.count
        ):
            name = names.get(theirs.model.name, theirs.model.name)
            return name, Rate.of(other.outline.left, other.outline.count)
    return None


# The cache.


def _stamp(store: Store, plan: Plan) -> str:
    """A digest of everything that decides the figures: code, plan, and files of the records."""
    records = [
        (key, *(about(store.records / key / name) for name in ("record.json", "rows.parquet")))
        for key in sorted({task.key for task in plan.tasks()})
    ]
    asked = plan.model_dump(mode="json", by_alias=True, exclude={"made", "commit"})
    return key_of({"code": _code(), "plan": asked, "changed": plan.changed, "records": records})


def about(path: Path) -> list[int] | None:
    """Times, size and inode of a file, which change when its content does; None without it."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return [stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino]


def _code() -> list[object]:
    """A value that changes with the code of figures, those of other packages included."""
    modules = {one.compute.__module__ for one in registered() if one.compute is not None}
    found = (getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules))
    files = [Path(path) for path in found if path is not None]
    return [besiege.__version__, *_own_code(), *((path.name, about(path)) for path in files)]


@cache
def _own_code() -> list[object]:
    """The files of this package that decide figures; a process keeps the code that it loaded."""
    ours = Path(besiege.__file__).parent
    parts = ("core", "metrics", "bench", "attacks/presets")
    files = [path for part in parts for path in sorted((ours / part).rglob("*.py"))]
    return [(path.name, about(path)) for path in files]


def _written(summary: Summary, stamp: str) -> bytes:
    outline = {
        one.name: _packed(value)
        if isinstance(value := getattr(summary.outline, one.name), Rows)
        else value
        for one in fields(Outline)
    }
    own = plain(summary.figures)
    for name in summary.figures.others:
        del own[name]
    body = {"figures": own, "others": plain(summary.figures.others), "outline": outline}
    text = json.dumps(body, allow_nan=False).encode()
    head = {"stamp": stamp, "digest": hashlib.sha256(text).hexdigest()}
    return json.dumps(head).encode() + b"\n" + text


def _read(path: Path, stamp: str) -> tuple[EvaluationFigures, Outline] | None:
    """The cached values; None where the stamp differs or the file is damaged."""
    try:
        head, _, text = read_file(path).partition(b"\n")
        if json.loads(head) != {"stamp": stamp, "digest": hashlib.sha256(text).hexdigest()}:
            return None
        body = json.loads(text)
        others = {name: _adapter(name).validate_python(v) for name, v in body["others"].items()}
        figures = _figures().validate_python({**body["figures"], "others": others})
        outline = body["outline"] | {name: _unpacked(body["outline"][name]) for name in _TABLES}
        return figures, Outline(**outline)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@cache
def _figures() -> TypeAdapter[EvaluationFigures]:
    return TypeAdapter(EvaluationFigures)


def _adapter(name: str) -> TypeAdapter[Any]:
    """The adapter that reads a figure of another package, by its return annotation."""
    compute = next(one.compute for one in registered() if one.name == name)
    return TypeAdapter(get_type_hints(compute).get("return", Any))


_TABLES = ("smallest", "nearest", "outcomes")


def _packed(rows: Rows) -> dict[str, list[str]]:
    return {
        name: [column.dtype.str, base64.b64encode(column.tobytes()).decode()]
        for name, column in rows.items()
    }


def _unpacked(packed: dict[str, list[str]]) -> Rows:
    return Rows(
        {name: np.frombuffer(base64.b64decode(text), kind) for name, (kind, text) in packed.items()}
    )


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Every finding once, the most serious first."""
    unique = {(one.id, one.seen): one for one in findings}
    return tuple(sorted(unique.values(), key=lambda one: one.rank))
