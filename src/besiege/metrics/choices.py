"""Warning rules about which attacks were chosen: their family, and how they were tuned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from besiege.core.errors import Finding
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.weakness import suite

TOLERANCE = 0.005
"""Difference in accuracy that tells two values of a parameter apart."""
FEWEST = 3
"""Values of a parameter that make a grid."""


def w29_edge_of_grid(evidence: Evidence) -> Iterator[Finding]:
    """The best value of a tuned parameter must lie inside its grid: beyond may be a better one."""
    if evidence.chained:
        return
    for grid in grids(evidence.attacks):
        known = evidence.covered_by_all()
        if not known.any():
            return
        left = [float(evidence.left_by(trial)[known].mean()) for trial in grid.trials]
        best = min(range(len(left)), key=left.__getitem__)
        edge, inwards = (0, 1) if best == 0 else (len(left) - 1, len(left) - 2)
        if best != edge or left[inwards] - left[edge] <= TOLERANCE:
            continue
        beyond = "smaller" if edge == 0 else "larger"
        yield Finding(
            "W29",
            f"of {len(left)} values of {grid.name}, {beyond[:-2]}est is best: "
            f"'{grid.trials[edge].text}' leaves {100 * left[edge]:.1f} %, "
            f"'{grid.trials[inwards].text}' {100 * left[inwards]:.1f} %.",
            f"The best value lies at the edge of its grid, so that a {beyond} one may break more: "
            f"add {beyond} values until the best lies inside.",
        )


class Grid(NamedTuple):
    """Attacks that differ in one number only: its name, and the attacks by ascending number."""

    name: str
    trials: Sequence[Trial]


def grids(trials: Sequence[Trial]) -> Iterator[Grid]:
    """The grids among attacks: three or more that differ in one number only.

    Numbers of steps and restarts are no grid, because more of them never hurt (W05, W06).
    """
    found: dict[tuple[str, str], dict[float, Trial]] = {}
    for trial in trials:
        if not trial.series.startswith("{"):  # no single ascent
            continue
        leaves = dict(_leaves(json.loads(trial.series), ""))
        for name, value in leaves.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            rest = {**leaves, name: None, "steps": trial.steps, "restarts": trial.restarts}
            key = name, json.dumps(rest, sort_keys=True)
            found.setdefault(key, {})[float(value)] = trial
    for (name, _), values in found.items():
        if len(values) >= FEWEST:
            yield Grid(name, [values[number] for number in sorted(values)])


def _leaves(spelled: object, path: str) -> Iterator[tuple[str, object]]:
    """All values of a spelled-out attack by their paths, such as ``schedule.size``."""
    inside = spelled.items() if isinstance(spelled, dict) else None
    if isinstance(spelled, list):
        inside = {str(place): part for place, part in enumerate(spelled)}.items()
    if inside is None:
        yield path, spelled
        return
    for name, part in inside:
        yield from _leaves(part, f"{path}.{name}" if path else str(name))


def w34_one_family(evidence: Evidence) -> Iterator[Finding]:
    """Attacks of one family fail together: gradient ascents of cross-entropy where it saturates."""
    own = [one for one in evidence.trials if one.access != "transfer" and one.rows.count]
    seeing = all(one.sees for one in own)
    ascents = all(one.losses and _all_cross_entropy(one) for one in own)
    left = evidence.standing().any()  # a hidden gradient hides what stands
    if own and left and evidence.eps is not None and seeing and ascents:
        names = ", ".join(f"'{one.text}'" for one in own[:3]) + (", ..." if len(own) > 3 else "")
        yield Finding(
            "W34",
            f"every attack follows the gradient of cross-entropy: {names}.",
            "Whatever hides that gradient hides from all of them: add an attack with a margin loss "
            f"(pgd(loss=margin)){_others(evidence)}, or run --suite {suite(evidence)}.",
            "note",
        )


def _others(evidence: Evidence) -> str:
    """Other attacks to add; each of them averages over the draws of a stochastic model."""
    if evidence.stochastic:
        return " and one without gradients (square), each as averaged(ATTACK, 20)"
    return ", one of the smallest perturbation (fab) and one without gradients (square)"


def _all_cross_entropy(trial: Trial) -> bool:
    return all(name.partition("/")[0] == "cross_entropy" for name in trial.losses)
