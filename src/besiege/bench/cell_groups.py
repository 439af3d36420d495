"""Which evaluations of a run are the cells of its board.

A benchmark declares its cells. The cells of a plain run are evaluations that differ in the model
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from besiege.bench.benchmark import Benchmark
from besiege.bench.plan import Plan
from besiege.bench.run import Run
from besiege.bench.words import told_apart
from besiege.core.threat import Threat

TRANSFER = "transfer"
"""What the attacker knows where attacks are crafted on a substitute."""


@dataclass(frozen=True)
class Grouped:
    """The evaluations of one cell, by their places among the current ones of a run.

    ``eps`` and ``eps_text`` are the budget that a specification names for a search.
    """

    name: str
    models: tuple[str, ...]
    plans: tuple[int, ...]
    eps: float | None = None
    eps_text: str | None = None


def groups_of(run: Run) -> list[Grouped]:
    """The cells of a run: those of its benchmark, or evaluations that differ in the model only."""
    return _alike_groups(run) if run.benchmark is None else _declared_groups(run, run.benchmark)


def _declared_groups(run: Run, benchmark: Benchmark) -> list[Grouped]:
    """The cells that a benchmark declares; every budget and every seed is one of its own."""
    where = {plan.name: place for place, plan in enumerate(run.current)}
    groups: dict[tuple[str, str | None, int], dict[str, int]] = {}
    for entry in run.entries:
        if entry.plan in where:
            key = entry.cell, entry.budget, entry.seed
            groups.setdefault(key, {})[entry.model] = where[entry.plan]
    found = []
    for (name, budget, seed), group in groups.items():
        budgets = {other for cell, other, _ in groups if cell == name}
        seeds = {other for cell, _, other in groups if cell == name}
        words = [name]
        words += [f"{budget}"] if len(budgets) > 1 else []
        words += [f"seed {seed}"] if len(seeds) > 1 else []
        # The budget of a search is the one at which tables show it.
        threat = Threat.parse(benchmark.cell(name).threat)
        eps = None if threat.eps is None else float(threat.eps)
        places = tuple(group.values())
        found.append(Grouped(", ".join(words), tuple(group), places, eps, threat.written))
    return found


def _alike_groups(run: Run) -> list[Grouped]:
    """The cells of a plain run folder."""
    plans = run.current
    names = _model_names(plans)
    groups: dict[tuple[Any, ...], dict[str, int]] = {}
    for place, plan in enumerate(plans):
        # Of two evaluations of one model that differ only in what is not compared, the newer one.
        key = plan.request.substitute, _alike(plan)
        groups.setdefault(key, {})[names[place]] = place
    merged = _merged(groups)
    # A single cell is not told from any other: it is called by its threat.
    traits = [[*_traits([plans[place] for place in group.values()])] for group in merged]
    titles = told_apart(traits) if len(merged) > 1 else [one[0] for one in traits]
    return [
        Grouped(title, tuple(group), tuple(group.values()))
        for title, group in zip(titles, merged, strict=True)
    ]


def _merged(groups: Mapping[tuple[Any, ...], dict[str, int]]) -> list[dict[str, int]]:
    """The groups, with transfers from several substitutes joined where no model has two of them.

    A model is not attacked from itself, so that a transfer to all models has several substitutes.
    """
    transfers: dict[Any, list[dict[str, int]]] = {}
    for (substitute, alike), group in groups.items():
        transfers.setdefault((bool(substitute), alike), []).append(group)
    found = []
    for members in transfers.values():
        names = [name for group in members for name in group]
        if len(set(names)) == len(names):
            members = [{name: place for group in members for name, place in group.items()}]
        found += members
    return found


def _alike(plan: Plan) -> tuple[Any, ...]:
    """What the evaluations of one cell have in common."""
    request, data = plan.request, plan.data
    attacks = tuple(spec.title for spec in plan.attacks)
    asked = (plan.threat, attacks, plan.chained, request.queries, request.seed)
    return (*asked, data.name, data.split, data.count)


def _model_names(plans: Sequence[Plan]) -> list[str]:
    """The model of each plan; different models of one name have their digest added."""
    digests: dict[str, set[str]] = {}
    for plan in plans:
        digests.setdefault(plan.model.name, set()).add(plan.model.digest)
    return [
        name if len(digests[name := plan.model.name]) == 1 else f"{name} ({plan.model.digest[:8]})"
        for plan in plans
    ]


def _traits(plans: Sequence[Plan]) -> Iterator[str]:
    plan = plans[0]
    request = plan.request
    yield plan.threat
    yield TRANSFER if request.substitute else ""
    yield "from " + ", ".join(dict.fromkeys(name for p in plans for name in p.request.substitute))
    yield f"{request.queries:,} queries" if request.queries is not None else ""
    yield plan.data.name
    yield f"seed {request.seed}"
    yield f"{plan.data.count:,} images"
    attacks = ", ".join(spec.title for spec in plan.attacks)
    yield f"suite {request.suite}" if request.suite else attacks
