"""An earlier run that evaluations are compared with, sample by sample.

Two figures compare only if the same samples were attacked in the same way. What differs is found
from the plans, so that a wrong run is refused before any work starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.results import summarise
from besiege.bench.store import Store
from besiege.bench.summaries import attacked_alike, summary_of
from besiege.core.errors import InputError, near
from besiege.core.threat import Threat
from besiege.metrics.comparing import difference
from besiege.metrics.gates import NotWorse
from besiege.metrics.paired import Difference
from besiege.metrics.values import EvaluationFigures


@dataclass(frozen=True, eq=False)
class Baseline:
    """The evaluations of a run folder that later ones must not be worse than."""

    folder: Path
    store: Store
    plans: tuple[Plan, ...]

    @classmethod
    def of(cls, folder: Path, elsewhere: Sequence[Path] = ()) -> Baseline:
        """The current evaluations of a run folder; one of the folders `elsewhere` is refused.

        A run that is compared with itself would pass, whatever it replaced.
        """
        if any(folder.resolve() == other.resolve() for other in elsewhere):
            raise InputError(
                f"the run to compare with, {folder}, is also the run folder of this command: give "
                "the earlier run a folder of its own with --out, and name that"
            )
        figures = summarise(folder).evaluations
        plans = plans_of(folder, figures)
        if not plans:
            commands = [one.command for one in figures if one.command]
            again = f": run its command again ({commands[-1]})" if commands else ""
            raise InputError(f"no evaluation of {folder} is complete{again}")
        return cls(folder, Store(folder), tuple(plans.values()))

    def counterpart(self, plan: Plan) -> Plan:
        """The evaluation of the baseline with the same threat, samples and attacks.

        Of several models, it is that of the same name. Whatever differs is named in the error.
        """
        threats = [p.threat for p in self.plans]
        found = [p for p in self.plans if _threat(p) == _threat(plan)]
        if not found:
            raise InputError(
                f"{self.folder} has no evaluation with the threat '{plan.threat}': "
                f"{near(plan.threat, threats)}"
            )
        same = [p for p in found if _samples(p) == _samples(plan)]
        if not same:
            raise InputError(
                f"{self.folder} has other samples, and only the same ones can be compared: "
                f"{_differing(found[-1], plan)}. Evaluate both on the same samples"
            )
        names = list(dict.fromkeys(p.model.name for p in same))
        if len(names) > 1:
            name = plan.model.name
            same = [p for p in same if p.model.name == name]
            if not same:
                raise InputError(
                    f"{self.folder} has several models on these samples, and none is called "
                    f"'{name}': {near(name, names)}"
                )
        alike = [p for p in same if attacked_alike(p, plan)]
        if not alike:
            raise InputError(
                f"{self.folder} was attacked in another way, by {_titles(same[-1])}, and not by "
                f"{_titles(plan)}: accuracies under other attacks do not compare. Evaluate both "
                "with the same attacks and query limit"
            )
        return alike[-1]

    def gate(self, folder: Path, evaluations: Sequence[EvaluationFigures]) -> NotWorse:
        """The gate that evaluations of a run folder must pass; incomplete ones are left out."""
        store, plans = Store(folder), plans_of(folder, evaluations)
        differences = {name: self._difference(store, plan) for name, plan in plans.items()}
        return NotWorse(str(self.folder), differences)

    def _difference(self, store: Store, plan: Plan) -> Difference:
        mine, theirs = summary_of(store, plan), summary_of(self.store, self.counterpart(plan))
        found = difference(mine.outline, theirs.outline)
        # Both are complete, and the digests of their samples are equal.
        assert found is not None and found.count == mine.outline.count, "the same samples"
        return found


def plans_of(folder: Path, evaluations: Sequence[EvaluationFigures]) -> dict[str, Plan]:
    """The plans of the complete evaluations of a run folder, by their names."""
    names = {one.name for one in evaluations if one.complete}
    return {plan.name: plan for plan in open_run(folder)[1].plans if plan.name in names}


def _threat(plan: Plan) -> Threat:
    """The threat, however its budget was written."""
    return replace(Threat.parse(plan.threat), written=None)


def _titles(plan: Plan) -> str:
    listed = ", ".join(attack.title for attack in plan.attacks)
    turn = ", one after the other" if plan.chained and len(plan.attacks) > 1 else ""
    queries = "" if plan.request.queries is None else f", with {plan.request.queries} queries"
    return f"{listed}{turn}{queries}"


def _samples(plan: Plan) -> list[object]:
    """All that decides which images are attacked, and on which scale."""
    return [plan.data.digest, plan.model.box]


def _differing(theirs: Plan, mine: Plan) -> str:
    """What distinguishes the samples of two plans, in words."""
    one, other = theirs.data, mine.data
    pairs = {
        "data": (one.name, other.name),
        "split": (one.split, other.split),
        "images": (f"{one.count:,}", f"{other.count:,}"),
        "seed of the choice": (one.seed, other.seed),
        "shape": (one.shape, other.shape),
        "range of pixels": (theirs.model.box, mine.model.box),
    }
    differ = [f"{name} {a} there and {b} here" for name, (a, b) in pairs.items() if a != b]
    if differ:
        return ", ".join(differ)
    # The digest of images that are decoded when needed is that of their records.
    shards = (theirs.request.shard, mine.request.shard)
    if shards[0] != shards[1]:
        return f"{shards[0]} images per record there and {shards[1]} here (--shard)"
    return "the same names and numbers, but other images or labels"
