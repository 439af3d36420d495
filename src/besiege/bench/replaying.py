"""Replays: successes of one evaluation, judged on another model or through a transformation.

What another model withstands of images that were not made on it says nothing about an attacker who
knows it. Therefore the model is attacked itself, in the same way, before it is shown such images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import numpy as np

from besiege.bench.benchmark import Shown
from besiege.bench.claims import Claims
from besiege.bench.context import Context, context_of
from besiege.bench.given import Given, Placed, must_fit, place
from besiege.bench.image_pairs import by_record, originals_of, stored_pixels
from besiege.bench.importing import add_all, asked_again, chosen_plans
from besiege.bench.opening import read_evaluations
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.preparing import Prepared, prepare
from besiege.bench.reading import gather
from besiege.bench.recorded import must_answer_as_recorded
from besiege.bench.request import ResolvedRequest
from besiege.bench.results import write_figures
from besiege.bench.run import Run, RunEntry, read_run
from besiege.bench.spec import Machine
from besiege.bench.store import Store
from besiege.core.errors import ChangedError, InputError, StoreError, UnknownNameError, near
from besiege.core.threat import Goal, Threat
from besiege.defenses.layers import LANGUAGE
from besiege.metrics.attack_values import ReplayFigures
from besiege.metrics.evidence import Evidence, Origin, Trial

_SEEN = (Goal.LEAST_LIKELY, Goal.SECOND)
"""Goals whose targets follow from what the attack saw of the model it was run on."""


def replay(
    folder: Path | str,
    *,
    on: str | None = None,
    through: str = "",
    model: str | None = None,
    threat: str | None = None,
    attack: str | None = None,
    how: Machine | None = None,
) -> tuple[ReplayFigures, ...]:
    """Judge the successes of a run's attacks on another model, or through a transformation.

    A model that was not evaluated in the run is evaluated first, with the same attacks on the same
    samples: what it withstands of images made on another model stands beside that.

    Parameters
    ----------
    folder : path
        The run folder, which has the images and receives the verdicts.
    on : str, optional
        The model that judges the images; by default the one they were made on.
    through : str
        A layer that the images pass first, such as ``jpeg(quality=90)`` or
        ``pil_blur(radius=0.5)``.
    model, threat, attack : str, optional
        Only images made on this model, against this threat, by this attack.
    how : Machine, optional
        Where it is computed.

    Returns
    -------
    tuple of ReplayFigures
        What the images do, one for each attack.
    """
    how = how or Machine()
    passed = LANGUAGE.read(through) if through else None
    layer = "" if passed is None else str(passed)
    store, run = open_run(folder)
    plans = chosen_plans(run, model, threat)
    if on is not None and model is None:
        plans = [plan for plan in plans if not _is(run, plan, on)] or plans
    _must_change(run, plans, on, layer)
    sources = [(plan, _own(store, plan, attack)) for plan in plans]
    if on is not None:
        _evaluate(store.folder, run, plans, on, how)
        store, run = open_run(folder)
    texts: list[tuple[str, str]] = []
    for plan, (evidence, trials) in sources:
        judge = plan if on is None else _evaluated(run, plan, on)
        if judge is None:  # it was evaluated, but not on these samples
            raise InputError(
                f"'{on}' was not evaluated on the samples of {plan.title}: it takes another range "
                "of pixel values, or other images are left out for it. Name another model with --on"
            )
        same = judge.model.digest == plan.model.digest
        name = run.title_of(plan)
        given = [
            replace(
                _given(store, plan, evidence, trial, Origin(name, trial.text, layer, same)),
                layer="" if passed is None else passed.identity(),
            )
            for trial in trials
        ]
        texts += [(judge.name, text) for text in _add(store, run, judge, given, how)]
    write_figures(store.folder)
    return tuple(_found(folder, dict.fromkeys(texts)))


def _is(run: Run, plan: Plan, name: str) -> bool:
    return name in (plan.model.name, plan.request.model, run.title_of(plan))


def _must_change(run: Run, plans: list[Plan], on: str | None, layer: str) -> None:
    """Refuse images that are shown, as they are, to the model that they were made on."""
    same = [plan for plan in plans if on is None or _is(run, plan, on)]
    if same and not layer:
        raise InputError(
            f"the images of '{run.title_of(same[0])}' were judged on it already: name a "
            "transformation that they pass first (--through 'jpeg(quality=90)') or another model "
            "(--on MODEL)"
        )


def _own(store: Store, plan: Plan, attack: str | None) -> tuple[Evidence, list[Trial]]:
    """The attacks of a plan that broke something; without guards, images made elsewhere, transfers.

    An attack that is not among them is refused with near matches.
    """
    evidence = gather(store, plan).evidence
    own = [t for t in evidence.attacks if t.access != "transfer"]
    names = [trial.text for trial in own]
    if attack is not None and attack not in names:
        raise UnknownNameError(f"no attack on {plan.title} is '{attack}': {near(attack, names)}")
    some = [t for t in own if attack in (None, t.text) and evidence.broken(t).any()]
    if not some:
        raise StoreError(
            f"no attack on {plan.title} broke an image, so that there is nothing to replay: "
            "finish the run, or use a larger budget or stronger attacks"
        )
    return evidence, some


def _evaluated(run: Run, plan: Plan, on: str) -> Plan | None:
    """The evaluation of a model against the same threat on the same samples, if there is one.

    One with a substitute attacks another model, and does only for images of such a one.
    """
    for one in run.current:
        alike = one.threat == plan.threat and one.data.digest == plan.data.digest
        alike = alike and (not one.request.substitute or bool(plan.request.substitute))
        if alike and one.shards == plan.shards and _is(run, one, on):
            return one
    return None


def _evaluate(folder: Path, run: Run, plans: list[Plan], on: str, how: Machine) -> None:
    """Attack the model itself, in the same way on the same samples, where that was not done."""
    from besiege.bench.single import measure  # which shows the images that benchmarks declare

    lacking = [plan for plan in plans if _evaluated(run, plan, on) is None]
    requests = [
        (asked_again(plan).model_copy(update={"model": on, "command": ""}), None)
        for plan in lacking
    ]
    if requests:
        measure(requests, out=folder, how=how)


def _given(store: Store, plan: Plan, evidence: Evidence, trial: Trial, origin: Origin) -> Given:
    """The successes of an attack as images made elsewhere."""
    rows = trial.rows.where(evidence.broken(trial))
    originals = originals_of(evidence, rows)
    order = np.argsort(originals["record"].astype(str), kind="stable")
    rows, originals = rows.where(order), originals.where(order)
    parts = [stored_pixels(some, store) for some in by_record(rows, originals)]
    return Given(
        str(origin),
        np.concatenate(parts),
        rows["sample"],
        rows["label"],
        threat=plan.threat,
        origin=origin,
        targets=rows["target"] if Threat.parse(plan.threat).goal in _SEEN else None,
    )


def _add(store: Store, run: Run, plan: Plan, given: list[Given], how: Machine) -> list[str]:
    """Add images to the evaluation of a model, and judge them; what it calls them."""
    prepared = prepare([(asked_again(plan), None)], store.folder, run, how)
    (fresh,), (resolved,) = prepared.plans, prepared.resolved
    if fresh.name != plan.name:
        raise ChangedError(
            f"the model '{plan.model.name}', its data or its attacks changed since the evaluation "
            f"against {plan.threat}: evaluate it again first"
        )
    work = _placed(store, plan, resolved, given, how)
    with store.writing(), Claims(store) as claims:
        (plan,) = add_all(store, [work], claims)
    return plan.called(one.replay for one in work[2])


def _placed(
    store: Store, plan: Plan, resolved: ResolvedRequest, given: list[Given], how: Machine
) -> tuple[Plan, Context, list[Placed]]:
    """Images among the samples of an evaluation."""
    context = context_of(store, resolved, plan, how)
    placed: list[Placed] = []
    for one in given:
        must_fit(plan, one)
        placed.append(place(plan, one, context))
    must_answer_as_recorded(store, plan, context)
    return plan, context, placed


def replay_declared(store: Store, prepared: Prepared, how: Machine) -> None:
    """Judge the images that a benchmark shows to its models, as far as they are not judged yet.

    Only evaluations that are complete are read, and only models that were attacked themselves, in
    the same threat on the same samples, are shown images of another one.
    """
    run = read_run(store)
    declared = () if prepared.benchmark is None else prepared.benchmark.replays
    if run is None or not declared:
        return
    plans = {plan.name: plan for plan in run.plans}  # names are digests, which take a while
    names = run.short_names
    wanted = _wanted(run, declared, plans)
    own: dict[str, tuple[Evidence, list[Trial]]] = {}
    resolved = dict(zip((plan.name for plan in prepared.plans), prepared.resolved, strict=True))

    def title(source: str) -> str:
        model = plans[source].model.name
        return names.get(model, model)

    def each() -> Iterator[tuple[Plan, Context, list[Placed]]]:
        for judge, sources in wanted.items():
            for source in {source for source, _ in sources} - own.keys():
                own[source] = _successes(store, plans[source])
            shown = [(title(source), plans[source], own[source], one) for source, one in sources]
            given = [*_fresh(store, plans[judge], shown)]
            if given and judge in resolved:
                yield _placed(store, plans[judge], resolved[judge], given, how)

    with store.writing(), Claims(store) as claims:
        add_all(store, each(), claims)


Named = dict[str, dict[tuple[str, str], None]]


def _wanted(run: Run, declared: Sequence[Shown], plans: Mapping[str, Plan]) -> Named:
    """By evaluation, those whose images its model is shown, and the layers that they pass."""
    found: Named = {}
    entries = [entry for entry in run.entries if entry.plan in plans]
    for shown, entry in product(declared, entries):
        if entry.model == shown.source and fnmatchcase(entry.cell, shown.cells):
            for model in shown.on or (shown.source,):
                judge = _judge_of(entries, entry, plans, model)
                layers = shown.through or ("",)
                if judge:
                    found.setdefault(judge, {}).update({(entry.plan, one): None for one in layers})
    return found


def _judge_of(
    entries: Sequence[RunEntry], entry: RunEntry, plans: Mapping[str, Plan], model: str
) -> str:
    """The evaluation of a model against the same threat on the same samples.

    Best the same cell, then one that attacks the model itself.
    """
    source = plans[entry.plan]
    alike = [
        one
        for one in entries
        if one.model == model
        and one.seed == entry.seed
        and (plans[one.plan].threat, plans[one.plan].shards) == (source.threat, source.shards)
    ]
    alike.sort(key=lambda one: (one.cell != entry.cell, bool(plans[one.plan].request.substitute)))
    return alike[0].plan if alike else ""


def _successes(store: Store, plan: Plan) -> tuple[Evidence, list[Trial]]:
    """The attacks of an evaluation that broke something; none of one that is not complete."""
    gathered = gather(store, plan)
    evidence = gathered.evidence
    own = [t for t in evidence.attacks if t.access != "transfer" and evidence.broken(t).any()]
    return evidence, own if gathered.complete else []


def _fresh(
    store: Store, plan: Plan, sources: Iterable[tuple[str, Plan, tuple[Evidence, list[Trial]], str]]
) -> Iterator[Given]:
    """The images of other evaluations, by title and layer, that this one does not have yet.

    Two evaluations may list one attack. Where the plan has fewer images of an origin than are
    shown, all of them are given: equal ones are added once.
    """
    shown: list[tuple[Plan, Evidence, Trial, Origin, str]] = []
    for title, source, (evidence, trials), text in sources:
        passed = LANGUAGE.read(text) if text else None
        words, layer = ("", "") if passed is None else (str(passed), passed.identity())
        same = source.model.digest == plan.model.digest
        for trial in trials:
            shown.append((source, evidence, trial, Origin(title, trial.text, words, same), layer))
    asked = Counter((origin, layer) for *_, origin, layer in shown)
    known = Counter(
        (Origin(**replay.attack.spelled["origin"]), replay.layer)
        for replay in plan.replays
        if "origin" in replay.attack.spelled
    )
    for source, evidence, trial, origin, layer in shown:
        if known[origin, layer] < asked[origin, layer]:
            yield replace(_given(store, source, evidence, trial, origin), layer=layer)


def _found(folder: Path | str, texts: Iterable[tuple[str, str]]) -> Iterator[ReplayFigures]:
    """The figures of replays, by the names of their evaluations and their texts."""
    known = {
        (each.figures.name, one.text): one
        for each in read_evaluations(folder)
        for one in each.figures.replays
    }
    for key in texts:
        if key in known:
            yield known[key]
