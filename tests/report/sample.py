"""Made-up figures, and pictures to go with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import Finding
from besiege.metrics import EvaluationFigures, Rate, RunFigures
from besiege.metrics.attack_values import (
    AttackCurve,
    AttackFigures,
    AttackSizes,
    BudgetCurve,
    Descent,
    Distances,
    Sizes,
    Stage,
)
from besiege.metrics.defense_values import AttackSpread, Draws, Probability, Spread, Tries
from besiege.metrics.values import (
    Became,
    ClassFigures,
    Confusion,
    Cost,
    DataFigures,
    ModelFigures,
    Picture,
    ThreatFigures,
)

Figures = RunFigures


def rate(hits: int, count: int = 397) -> Rate:
    return Rate.of(hits, count)


def attack(text: str, left: int, alone: int = 0, **changes: Any) -> AttackFigures:
    usual: dict[str, Any] = {
        "told": f"What {text} does (Someone et al. 2018).",
        "steps": 40,
        "transfer": False,
        "accuracy": rate(left),
        "broken": 383 - left,
        "alone": alone,
        "median_distance": 0.149,
        "forwards": 9000,
        "backwards": 8500,
        "queries": 9000,
        "seconds": 3.24,
        "complete": True,
        "failure": None,
    }
    return AttackFigures(text=text, **usual | changes)


def _points(hits: list[int], x: list[float], count: int) -> dict[str, Any]:
    rates = [rate(k, count) for k in hits]
    columns = {key: tuple(getattr(r, key) for r in rates) for key in ("value", "low", "high")}
    return {"x": tuple(x), **columns, "count": count}


def curve(hits: list[int], x: list[float], count: int = 397, *, attack: str) -> AttackCurve:
    return AttackCurve(attack, **_points(hits, x, count))


def budget_curve(hits: list[int], x: list[float], count: int = 397, **about: Any) -> BudgetCurve:
    return BudgetCurve(**_points(hits, x, count), **about)


def item(sample: int, **changes: Any) -> Picture:
    usual: dict[str, Any] = {
        "attack": "pgd",
        "label": 3,
        "clean_prediction": 3,
        "clean_confidence": 0.991,
        "prediction": 8,
        "confidence": 0.713,
        "distance": 0.15,
        "norm": "linf",
        "distances": {},
        "clean": "records/aa",
        "clean_row": sample,
        "record": "records/bb",
        "row": sample,
    }
    return Picture(sample=sample, **usual | changes)


def stage(text: str, before: int, left: int, **changes: Any) -> Stage:
    usual: dict[str, Any] = {
        "unknown": 0,
        "queries_to_break": 12.0,
        "queries": 9000,
        "forwards": 9000,
        "backwards": 8500,
        "seconds": 3.24,
    }
    return Stage(text, before, before - left, left, **usual | changes)


def suite() -> Figures:
    """Four attacks one after the other, the last with nothing to break."""
    lefts = {"apgd": 120, "apgdt": 80, "fabt": 78, "square(steps=5000, rescale=True)": 78}
    stages, before = [], 383
    for text, left in lefts.items():
        queries = None if left == before else 12.0
        stages.append(stage(text, before, left, queries_to_break=queries))
        before = left
    attacks = [attack(s.text, s.left, broken=s.broken) for s in stages]
    return figures(
        evaluation(mode="suite", suite="standard", robust=rate(78), attacks=attacks, cascade=stages)
    )


def by_chance() -> Figures:
    """A model that answers by chance."""
    (found,) = suite().evaluations
    within = (Tries(1, 0.2151), Tries(5, 0.1253), Tries(10, 0.0876))
    attacks = tuple(AttackSpread(0.3, 0.01, one.text, within) for one in found.attacks)
    likely = (Probability(0.0, 0.0, 0.522, 25), Probability(1.0, 0.478, 1.0, 175))
    spreads = Spread(0.9605, 0.0031), Spread(0.2151, 0.0102)
    drawn = Draws(5, *spreads, attacks, within, likely)
    model = replace(found.model, stochastic=True, draws=10)
    return figures(replace(found, chance=drawn, model=model))


MODEL = ModelFigures(
    "zoo:digits-natural",
    "c951b60a92eb35bd" * 4,
    "Classifier",
    10,
    12345,
    (0.0, 1.0),
    stochastic=False,
    draws=1,
    undefended=True,
)
DATA = DataFigures(
    "digits",
    "test",
    397,
    1797,
    0,
    "9f2c1b60a92eb35b" * 4,
    ("zero", "one", "two", "three", *"4567", "eight", "nine"),
    (1, 8, 8),
    scaled=False,
    standard=None,
)


def classes(count: int = 10, median: bool = False) -> list[ClassFigures]:
    """Classes of twenty images each, which withstand less and less up to the last."""
    return [
        ClassFigures(
            label,
            rate(20 - label % 3, 20),
            rate(round(15 * (count - 1 - label) / count), 20),
            0.5 + label / count if median else None,
        )
        for label in range(count)
    ]


def confusion(count: int = 10) -> Confusion:
    """Every class became the next one, the first ones more often."""
    pairs = [Became(label, (label + 1) % count, count - label) for label in range(count)]
    return Confusion(sum(pair.count for pair in pairs), len(pairs), tuple(pairs))


def evaluation(**changes: Any) -> EvaluationFigures:
    usual: dict[str, Any] = {
        "name": "0123456789abcdef",
        "model": MODEL,
        "data": DATA,
        "threat": threat("linf:0.15", 0.15),
        "mode": "attacks",
        "suite": None,
        "seed": 0,
        "command": "",
        "complete": True,
        "clean": rate(383),
        "robust": rate(47),
        "chance": None,
        "attacks": [attack("fgsm", 69), attack("pgd", 51, 4), attack("mim", 60, 1)],
        "cascade": [stage("fgsm", 383, 69), stage("pgd", 69, 48), stage("mim", 48, 47)],
        "steps_curve": [
            curve([383, 200, 90, 60, 51], [0, 1, 2, 3, 4], attack="pgd"),
            curve([383, 300, 55], [0, 1, 2], attack="mim"),
        ],
        "queries_curve": (),
        "eps_curve": budget_curve(
            [192, 150, 100, 40, 0],
            [0.0, 0.05, 0.1, 0.15, 0.21],
            200,
            attack="minimal(pgd(steps=20))",
            norm="linf",
            median=0.1,
            unbroken=0,
        ),
        "eps_curves": (),
        "distances": None,
        "no_curve": None,
        "warnings": [
            Finding(
                "W24", "The interval is 6.6 points wide.", "Use more samples (--count).", "note"
            )
        ],
        "gallery": [item(sample) for sample in range(8)],
        "cost": Cost(27000, 25500, 27001, 1588, 9.7),
        "by_class": classes(),
        "confusion": confusion(),
    }
    given: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in (usual | changes).items()
    }
    return EvaluationFigures(**given)


def threat(text: str, eps: float | None, eps_text: str = "0.15") -> ThreatFigures:
    return ThreatFigures(
        text,
        text.partition(":")[0].split()[0],
        eps,
        None if eps is None else eps_text,
        "untargeted",
        "gradient",
        None,
        (),
        (0.0, 1.0),
        "Every pixel may change by at most 0.15. Any wrong answer counts as a success.",
    )


def figures(*evaluations: EvaluationFigures, **changes: Any) -> Figures:
    usual: dict[str, Any] = {
        "schema": 1,
        "created": "2026-11-15T18:40:00+00:00",
        "command": "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15",
        "versions": {"besiege": "0.2.0", "python": "3.11.9", "torch": "2.13.0"},
        "complete": True,
        "evaluations": evaluations or (evaluation(),),
    }
    return RunFigures(**usual | changes)


def pictures(
    item: Picture, shape: tuple[int, int, int] = (1, 8, 8)
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """An image of whole bytes, and the same with every value moved by a tenth, within the box."""
    random = np.random.default_rng(item.sample)
    clean = (random.integers(0, 256, shape) / 255).astype(np.float32)
    moved = clean + 0.1 * random.choice([-1.0, 1.0], shape)
    return clean, np.clip(moved, 0, 1).astype(np.float32)


def broken_run() -> Figures:
    """An evaluation in which all went wrong that can: an error, a failure, an unfinished attack."""
    seen = "The model answered the same images differently."
    error = Finding("W14", seen, "Make it deterministic.", "stop")
    attacks = [
        attack("fgsm", 69, accuracy=None, failure="MemoryError: no room", complete=False, broken=0),
        attack("pgd(steps=100, restarts=5, loss=margin, schedule=cosine)", 51, complete=False),
        attack("mim", 60),
    ]
    model = replace(MODEL, name="path/to/a/deeply/nested/folder/models.py:make_network")
    return figures(evaluation(warnings=[error], attacks=attacks, model=model), complete=False)


def minimal_run() -> Figures:
    """The smallest change, among a thousand classes with long names."""
    found = evaluation(threat=threat("linf", None), mode="suite", suite="standard", warnings=[])
    names = tuple(f"class number {i}, with its synonyms" for i in range(1000))
    return figures(
        replace(
            found,
            data=replace(DATA, class_names=names),
            model=replace(MODEL, classes=1000),
            by_class=tuple(classes(1000, median=True)),
            confusion=confusion(200),
            gallery=(item(1, label=999, clean_prediction=998, prediction=7),),
            steps_curve=found.steps_curve[:1],
        )
    )


def smallest_run(attacks: int = 4) -> Figures:
    """The smallest change by several attacks, one of which fails on most images."""
    names = ["fabt", "minimal(pgd(steps=100, restarts=5, loss=margin))", "cw", "ddn(steps=1000)"]
    names = names[:attacks]
    marks = (*range(1, 10), 10, 12, 15, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    whole = Descent((10, 20, 50_000), (None, 0.5, 0.46), 0.459, 20_500.0)
    each_sizes = [
        AttackSizes(
            0.459 + 0.1 * k,
            0.457,
            0.805,
            0.457 + 0.05 * k,
            0.947,
            0,
            Descent(
                marks[: 21 - k],
                (None,) * 9 + (0.5 + k,) * (12 - k),
                None if k == 1 else 0.459 + 0.1 * k,
                150.25 * (k + 1),
            ),
            name,
            200 - 50 * k,
            1 - 0.1234 * k,
        )
        for k, name in enumerate(names)
    ]
    if attacks > 1:
        each_sizes[1] = replace(each_sizes[1], median=None, mean=None, p90=None, unbroken=250)
    all_sizes = Sizes(0.459, 0.457, 0.805, 0.457, 0.947, 0, whole)
    distances = Distances(397, 383, all_sizes, tuple(each_sizes))
    together = budget_curve(
        [383, 200, 40, 0],
        [0.0, 0.459, 0.805, 0.947],
        attack=", ".join(names),
        norm="l2",
        median=0.459,
        unbroken=0,
    )
    each = [
        curve([383, 210, 50, 9], [0.0, 0.46 + 0.1 * k, 0.85 + 0.1 * k, 9.0], attack=name)
        for k, name in enumerate(names)
    ]
    norms = {"l0": 61.0, "l1": 2.43, "l2": 0.459, "linf": 0.157}
    found = evaluation(
        threat=threat("l2", None),
        attacks=[attack(name, 0, median_distance=0.481) for name in names],
        robust=rate(0),
        steps_curve=[],
        eps_curve=together,
        eps_curves=each if attacks > 1 else [],
        distances=distances,
        gallery=[item(n, norm="l2", distance=0.459, distances=norms) for n in range(8)],
    )
    return figures(found)


def four() -> Figures:
    """Two models, each against two threats."""
    made = []
    for model, left in (("zoo:digits-natural", 47), ("zoo:digits-pgd-at", 297)):
        for against, eps, text in (("linf:8/255", 8 / 255, "8/255"), ("l2:0.5", 0.5, "0.5")):
            named = replace(MODEL, name=model)
            made.append(
                evaluation(threat=threat(against, eps, text), robust=rate(left), model=named)
            )
            left += 30
    return figures(*made)


def eight() -> Figures:
    """Four models, one of them with a very long name, in another order under each threat."""
    names = ["zoo:digits-natural", "zoo:digits-pgd-at", "zoo:digits-natural+bits(depth=2)"]
    names.append("path/to/a/deeply/nested/folder/of_models.py:make_the_network_of_tuesday(width=2)")
    made = []
    left = {"linf:0.15": (47, 297, 160, 20), "l2:1": (10, 297, 40, 90)}
    for against, eps in (("linf:0.15", 0.15), ("l2:1", 1.0)):
        for k, name in enumerate(names):
            found = evaluation(
                threat=threat(against, eps, against.partition(":")[2]),
                robust=rate(left[against][k]),
                model=replace(MODEL, name=name),
                command=f"besiege evaluate {name} --threat {against}",
            )
            made.append(found)
    return figures(*made)


def vast() -> Figures:
    """Ten thousand images and attacks that took their time: the widest figures there are."""
    attacks = [
        attack(
            name,
            0,
            accuracy=rate(4567, 10_000),
            broken=5433,
            alone=1234,
            median_distance=12.34 / 255,
            forwards=50_000_000,
            seconds=45_296.0,
        )
        for name in ("pgd(steps=100, restarts=5)", "minimal(pgd(steps=20))")
    ]
    return figures(
        evaluation(
            threat=threat("linf:16/255", 16 / 255, "16/255"),
            clean=rate(9173, 10_000),
            robust=rate(4321, 10_000),
            attacks=attacks,
        )
    )


def crowded() -> Figures:
    """Eight attacks with curves, some of them with long names."""
    names = ["pgd", "mim", "apgd(loss=dlr)", "minimal(pgd(steps=100, restarts=5, loss=margin))"]
    names += ["dim", "tim(kernel=5)", "sinifgsm", "bim(steps=200)"]
    found = evaluation(
        attacks=[attack(name, 51 + 3 * k) for k, name in enumerate(names)],
        steps_curve=[
            curve([383 - 9 * k, 200 - 7 * k, 60 - k, 51], [0, 1, 2, 40 + k], attack=name)
            for k, name in enumerate(names)
        ],
    )
    return figures(found)
