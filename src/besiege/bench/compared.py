"""Models beside each other, sample by sample, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from besiege.bench.file_names import with_file_names
from besiege.bench.store import Store
from besiege.core.errors import Finding
from besiege.metrics.comparing import Ids
from besiege.metrics.crossings import Change, Crossing
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import LEVEL, Difference
from besiege.metrics.rows import Rows
from besiege.metrics.utility import Utility
from besiege.metrics.values import DataFigures, EvaluationFigures, ThreatFigures, plain


@dataclass(frozen=True, eq=False)
class Compared:
    """One evaluation of a comparison, on the samples of its group.

    Attributes
    ----------
    name : str
        The model's name; where two are equal, with the folder, the attacks or the date.
    figures : EvaluationFigures
        All its figures, on all its own samples.
    folder : Path
        Its run folder.
    clean, robust : Rate
        Its accuracies on the compared samples; robust is over those judged under every attack, and
        None without such samples.
    median : float, optional
        The median smallest perturbation, where the threat has no budget.
    only, all_but : array of int
        Ids of the samples that only this model withstands, and of those that all others withstand;
        without a budget, those with the largest and the smallest perturbation of all.
    """

    name: str
    figures: EvaluationFigures
    folder: Path
    clean: Rate
    robust: Rate | None
    median: float | None
    only: Ids
    all_but: Ids

    @property
    def complete(self) -> bool:
        """Whether all records of the evaluation exist."""
        return self.figures.complete

    @property
    def stops(self) -> tuple[Finding, ...]:
        """The findings because of which its figures must not be quoted."""
        return tuple(f for f in self.figures.warnings if f.level == "stop")

    def plain(self, images: bool = False) -> dict[str, Any]:
        """The evaluation as JSON."""
        return {
            "name": self.name,
            "model": self.figures.model.name,
            "digest": self.figures.model.digest,
            "evaluation": self.figures.name,
            "folder": str(self.folder),
            "made": self.figures.made,
            "commit": self.figures.commit,
            "attacks": [attack.text for attack in self.figures.attacks],
            "suite": self.figures.suite,
            "clean": plain(self.clean),
            "robust": plain(self.robust),
            "median": self.median,
            "only": self.only.tolist() if images else len(self.only),
            "all_but": self.all_but.tolist() if images else len(self.all_but),
            "complete": self.complete,
            "stops": plain(self.stops),
        }


@dataclass(frozen=True, eq=False)
class Pair:
    """Two evaluations of a group; the first is the more robust one.

    Attributes
    ----------
    first, second : str
        Their names.
    change : Difference
        The first less the second, with its interval and its own p-value.
    p : float
        The p-value corrected for the number of pairs of the whole comparison (Holm).
    needed : int, optional
        About how many samples would show a difference of this size; None where it is zero.
    only_first, only_second : array of int
        Ids of the samples that only the first, and only the second, withstands; without a budget,
        those for which it needs the larger perturbation.
    crossing : Crossing, optional
        Whether the order of the two changes with the budget, where searches found the smallest
        perturbations of both. Its band holds for all pairs of the group together.
    base : str, optional
        The one of the two that was named before the other; `utility` is that of the other against
        it.
    measure : callable, optional
        Computes `utility`, which needs the clean logits of both.
    """

    first: str
    second: str
    change: Difference
    p: float
    needed: int | None
    only_first: Ids
    only_second: Ids
    crossing: Crossing | None = None
    base: str | None = None
    measure: Callable[[], Utility] | None = None

    @cached_property
    def utility(self) -> Utility | None:
        """What `model` does to clean images, against `base`; computed when it is first read."""
        return None if self.measure is None else self.measure()

    @property
    def model(self) -> str:
        """The one of the two that is not the base."""
        return self.second if self.base == self.first else self.first

    @property
    def clear(self) -> bool:
        """Whether the samples show that the first is more robust than the second."""
        return self.p < 1 - LEVEL

    def plain(self, images: bool = False) -> dict[str, Any]:
        """The pair as JSON."""
        ids = {"only_first": self.only_first.tolist(), "only_second": self.only_second.tolist()}
        return {
            "first": self.first,
            "second": self.second,
            **plain(self.change),
            "corrected_p": self.p,
            "clear": self.clear,
            "needed": self.needed,
            "crossing": None if self.crossing is None else self._crossing(self.crossing),
            "utility": None if self.utility is None else self._utility(self.utility),
            **({"images": ids} if images else {}),
        }

    def _utility(self, found: Utility) -> dict[str, Any]:
        """The utility as JSON, with the names of both."""
        return {"model": self.model, "base": self.base, **plain(found)}

    def _crossing(self, found: Crossing) -> dict[str, Any]:
        """The crossing as JSON, with names instead of places."""
        changes = [self._change(one) for one in found.changes]
        suggested = None if found.suggested is None else self._change(found.suggested)
        curves = {"budgets": found.x, "difference": found.value, "low": found.low}
        curves["high"] = found.high
        return {
            "verdict": found.verdict,
            "changes": changes,
            "suggested": suggested,
            "needed": found.needed,
            "count": found.count,
            **{name: column.tolist() for name, column in curves.items()},
        }

    def _change(self, one: Change) -> dict[str, Any]:
        names = (self.first, self.second) if one.leader else (self.second, self.first)
        where = {"before": one.before, "after": one.after, "at": one.at}
        return {"from": names[0], "to": names[1], **where}


@dataclass(frozen=True, eq=False)
class Group:
    """Evaluations of the same threat on the same samples, the most robust first.

    Attributes
    ----------
    threat : ThreatFigures
        What the attacker may do.
    data : DataFigures
        The samples; of several choices, the smallest one.
    count : int
        Number of samples.
    evaluations : tuple of Compared
        Sorted by robust accuracy, or by the median smallest perturbation.
    pairs : tuple of Pair
        All pairs, or those that a benchmark declares.
    notes : tuple of str
        What differs besides the models.
    """

    threat: ThreatFigures
    data: DataFigures
    count: int
    evaluations: tuple[Compared, ...]
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    @property
    def transfer(self) -> bool:
        """Whether the attacks on all of them were crafted on substitutes."""
        return all(one.figures.threat.substitute for one in self.evaluations)

    @cached_property
    def files(self) -> Mapping[int, str]:
        """The files of the samples on which models differ, where images were read from files."""
        ids = [ids for one in self.evaluations for ids in (one.only, one.all_but)]
        ids += [ids for pair in self.pairs for ids in (pair.only_first, pair.only_second)]
        asked = Rows({"sample": np.unique(np.concatenate(ids))})
        for one in self.evaluations:
            rows = with_file_names(asked, Store(one.folder), one.figures.data.digest)
            if "file" in rows:
                named = zip(rows["sample"].tolist(), rows["file"].tolist(), strict=True)
                return {sample: str(file) for sample, file in named if file}
        return {}

    def plain(self, images: bool = False) -> dict[str, Any]:
        """The group as JSON."""
        files = self.files if images else {}
        return {
            "threat": self.threat.text,
            "queries": self.threat.queries,
            "transfer": self.transfer,
            "data": {"name": self.data.name, "split": self.data.split, "count": self.count},
            "evaluations": [one.plain(images) for one in self.evaluations],
            "pairs": [pair.plain(images) for pair in self.pairs],
            "notes": list(self.notes),
            **({"files": {str(id): file for id, file in files.items()}} if images else {}),
        }


@dataclass(frozen=True, eq=False, repr=False)
class PairedComparison:
    """Evaluations compared sample by sample; printed, it says the result in sentences.

    Attributes
    ----------
    groups : tuple of Group
        The evaluations that can be compared with each other: one threat, one set of samples.
    left_out : tuple of (str, str)
        Evaluations that were not compared, each with the reason.
    declared : tuple of (str, str)
        The pairs of models that a benchmark declares: only these are compared. Empty where all
        pairs are.
    """

    groups: tuple[Group, ...]
    left_out: tuple[tuple[str, str], ...]
    declared: tuple[tuple[str, str], ...] = ()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of all groups. P-values are corrected for their number."""
        return tuple(pair for group in self.groups for pair in group.pairs)

    @property
    def evaluations(self) -> tuple[Compared, ...]:
        """The evaluations of all groups."""
        return tuple(one for group in self.groups for one in group.evaluations)

    def plain(self, images: bool = False) -> dict[str, Any]:
        """The comparison as JSON; with `images`, ids of the samples on which models differ."""
        return {
            "comparisons": len(self.pairs),
            "groups": [group.plain(images) for group in self.groups],
            "left_out": [{"evaluation": name, "why": why} for name, why in self.left_out],
            "declared": [list(pair) for pair in self.declared],
        }

    def __repr__(self) -> str:
        from besiege.report.comparison import in_words

        return str(in_words(self))
