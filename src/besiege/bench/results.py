"""From records to ``figures.json``: everything a report shows, computed once and written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.reading import Gathered, beside, counterpart, elsewhere, gather
from besiege.bench.spec import AttackSpec
from besiege.bench.store import Store
from besiege.core.errors import Finding, StoreError
from besiege.core.threat import Goal, Linf, Norm, Threat
from besiege.metrics import figures, warnings
from besiege.metrics.cascade import cascade_figures
from besiege.metrics.distances import distance_figures
from besiege.metrics.rows import Column
from besiege.metrics.stochastic import chance_figures

FILE = "figures.json"
SCHEMA = 1


def summarise(folder: Path | str) -> dict[str, Any]:
    """The figures of all evaluations of a run folder, from its judged records alone."""
    store, run = open_run(folder)
    gathered = [gather(store, plan) for plan in run.plans]
    evaluations = [_evaluation(one, gathered) for one in gathered]
    return {
        "schema": SCHEMA,
        "created": run.created,
        "command": run.plans[-1].request.command if run.plans else "",
        "versions": run.versions,
        "complete": all(e["complete"] for e in evaluations),
        "evaluations": evaluations,
    }


def write_figures(folder: Path | str, figures: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write ``figures.json`` into a run folder, summarised now where no figures are given."""
    found = summarise(folder) if figures is None else figures
    Store(folder).write_file(FILE, json.dumps(found, indent=1, allow_nan=False).encode())
    return found


def _evaluation(gathered: Gathered, others: Sequence[Gathered]) -> dict[str, Any]:
    plan = gathered.plan
    evidence = replace(
        gathered.evidence,
        elsewhere=elsewhere(gathered, others),
        beside=beside(gathered, others),
        counterpart=counterpart(gathered, others),
    )
    threat = Threat.parse(plan.threat)
    by_chance = plan.model.stochastic
    chance = chance_figures(evidence, plan.model.draws) if by_chance else None
    attacks = [_attack(gathered, spec) for spec in plan.attacks]
    told = [
        *threat.findings(plan.model.box),
        *gathered.findings,
        *warnings.findings(evidence),
        *_incomplete(gathered),
    ]
    unique = {(f.id, f.seen): f for f in told}
    order = {"error": 0, "warning": 1, "note": 2}
    ordered = sorted(unique.values(), key=lambda f: (order[f.level], f.id))
    by_strength = sorted(evidence.trials, key=evidence.accuracy)
    return {
        "name": plan.name,
        "model": plan.model.model_dump(mode="json"),
        "data": plan.data.model_dump(mode="json"),
        "threat": {
            "text": plan.threat,
            "norm": str(threat.norm),
            "eps": None if threat.eps is None else float(threat.eps),
            "eps_text": threat.written,
            "goal": str(threat.goal),
            "access": str(threat.access),
            "queries": plan.request.queries,
            "substitute": list(plan.request.substitute),
            "box": list(plan.model.box),
            "words": in_words(threat, plan.model.box, plan.request.queries, plan.data.shape)
            + _transfer(plan)
            + _chance(gathered, chance),
        },
        "mode": "suite" if plan.chained else "attacks",
        "suite": plan.request.suite,
        "seed": plan.request.seed,
        "command": plan.request.command,
        "complete": gathered.complete,
        "clean": figures.clean_rate(evidence),
        "robust": figures.robust_rate(evidence),
        "chance": chance,
        "attacks": attacks,
        "cascade": [
            {**stage, "seconds": gathered.seconds.get(stage["text"], 0.0)}
            for stage in cascade_figures(evidence)
        ],
        "steps_curve": figures.steps_figures(evidence),
        "queries_curve": figures.queries_figures(evidence),
        "eps_curve": figures.budget_figures(evidence),
        "eps_curves": figures.budget_curves(evidence),
        "distances": distance_figures(evidence),
        "no_curve": plan.no_curve,
        "warnings": [vars(finding) for finding in ordered],
        "gallery": figures.gallery(evidence, by_strength),
        "cost": {
            **{
                what: sum(attack[what] for attack in attacks) + _curve_cost(gathered, what)
                for what in ("forwards", "backwards", "queries")
            },
            "judged": gathered.judged,
            "seconds": sum(gathered.seconds.values()),
        },
    }


def _chance(gathered: Gathered, chance: dict[str, Any] | None) -> str:
    """How a model that answers by chance was judged, and its accuracy in expectation."""
    draws = gathered.plan.model.draws
    if not gathered.plan.model.stochastic:
        return ""
    told = (
        f" The model answers by chance: every image was judged by {draws} draws, and counts as "
        "broken when half of them or more are. "
    )
    if chance is not None:
        found = chance["robust"]
        return told + (
            f"Over {chance['evaluations']} evaluations of one draw each the accuracy under the "
            f"worst attack is {100 * found['mean']:.1f} % on average, with a standard deviation "
            f"of {100 * found['deviation']:.2f} points."
        )
    expected = figures.expected_accuracy(gathered.evidence)
    known = "unknown" if expected is None else f"{100 * expected:.1f} %"
    return told + (f"In expectation over its draws the accuracy under the worst attack is {known}.")


def _attack(gathered: Gathered, spec: AttackSpec) -> dict[str, Any]:
    evidence, name = gathered.evidence, spec.text
    trial = next(t for t in evidence.trials if t.text == name)
    return {
        "text": name,
        "told": spec.described,
        "steps": spec.steps,
        "transfer": spec.source is not None,
        **figures.attack_figures(evidence, trial),
        "seconds": gathered.seconds.get(name, 0.0),
        "complete": name not in gathered.missing and name not in gathered.failures,
        "failure": gathered.failures.get(name),
    }


def _curve_cost(gathered: Gathered, what: str) -> int:
    curve = gathered.evidence.curve
    if curve is None or any(curve is trial for trial in gathered.evidence.trials):
        return 0
    return int(curve.rows[what].sum())


def _incomplete(gathered: Gathered) -> list[Finding]:
    """What is missing is said with the figures, since they may only look good for lack of it."""
    found = []
    for attack, failure in gathered.failures.items():
        found.append(
            Finding(
                "FAILED",
                f"'{attack}' failed on part of the samples: {failure}",
                "It counts as not run there, never as robustness. Running again tries it again.",
                "error",
            )
        )
    curve = gathered.plan.curve
    if gathered.missing:
        parts = ", ".join(f"{name} ({n})" for name, n in sorted(gathered.missing.items()))
        seen = f"records are missing: {parts}."
        advice = "The figures are of what is there. Running the same command again goes on."
        if curve is not None and set(gathered.missing) == {curve.attack.text}:
            found.append(Finding("UNFINISHED", seen, advice, "note"))
        else:
            found.append(Finding("UNFINISHED", seen, advice, "error"))
    for text in gathered.damaged:
        found.append(
            Finding("DAMAGED", f"{text}.", "Running the same command again redoes it.", "error")
        )
    return found


def picture(folder: Path | str, item: dict[str, Any]) -> tuple[Column, Column]:
    """The clean and the adversarial image of an item of the gallery, ``[channels, h, w]``."""
    store = Store(folder)
    clean = stored_images(store.images(item["clean"].removeprefix("records/")))
    found = store.images(item["record"].removeprefix("records/"))
    where = np.flatnonzero(found["rows"] == item["row"])
    if not len(where):
        raise StoreError(f"the image of sample {item['sample']} is not in {item['record']}")
    return clean[item["clean_row"]], found["images"][where[0]]


def stored_images(arrays: dict[str, Column]) -> Column:
    """Clean images as float32; those of whole bytes are stored as bytes."""
    images = arrays["images"]
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / np.float32(255)
    return images


def _transfer(plan: Plan) -> str:
    """That images were crafted on another model than the one they are judged on, if they were."""
    several = " and ".join(plan.request.substitute)
    if any(spec.source is not None for spec in plan.attacks):
        return (
            f" Attacks that need gradients were crafted on a substitute ({several}), not on the "
            "model itself, which was shown each image once: what they leave standing may still "
            "fall to an attack on the model."
        )
    return f" The attacker also has a model of its own: {several}." if several else ""


def in_words(
    threat: Threat, box: tuple[float, float], queries: int | None, shape: tuple[int, ...]
) -> str:
    """A threat as sentences."""
    size = "any size, the smallest that works" if threat.eps is None else threat.written
    width = box[1] - box[0]
    if threat.eps is None:
        what = f"The attacker looks for the smallest change in the {threat.norm} norm that works."
    elif threat.norm is Linf:
        grey = 255 * threat.radius / width
        what = (
            f"Every pixel value may change by at most {size} (pixels range from {box[0]:g} to "
            f"{box[1]:g}; that is about {grey:.3g} of 255 grey levels)."
        )
    elif threat.norm is Norm.L2:
        rms = threat.radius / float(np.prod(shape)) ** 0.5 / width * 255
        what = (
            f"The change, as a vector of all pixel values, may have a Euclidean length of at most "
            f"{size} (spread evenly, about {rms:.2g} of 255 grey levels for every value)."
        )
    elif threat.norm is Norm.L1:
        what = f"The changes of all pixel values may add up to at most {size}."
    else:
        what = f"At most {size} values of the image may change, each as far as it likes."
    goals = {
        Goal.UNTARGETED: "Any wrong answer counts as a success.",
        Goal.RANDOM: "Success means that the model answers one wrong class, chosen at random.",
        Goal.LEAST_LIKELY: "Success means the class that seemed least likely at first.",
        Goal.SECOND: "Success means the wrong class that seemed likeliest at first.",
        Goal.GIVEN: "Success means the class that was given for each image.",
    }
    sees = {
        "gradient": "The attacker knows the model completely, its gradients included.",
        "score": "The attacker sees the model's scores for every class, not its inside.",
        "decision": "The attacker sees only the class the model answers.",
    }[str(threat.access)]
    asks = "" if queries is None else f" At most {queries} answers may be used for each image."
    return f"{what} {goals[threat.goal]} {sees}{asks}"
