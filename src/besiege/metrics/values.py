"""An evaluation and a run as frozen values of figures; ``figures.json`` has the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from besiege.core.errors import Finding
from besiege.core.examination import Examination
from besiege.metrics.attack_values import (
    AttackCurve,
    AttackFigures,
    AttackQueries,
    AttackUtility,
    BudgetCurve,
    Distances,
    ReplayFigures,
    Stage,
)
from besiege.metrics.defense_values import Certified, DefenseFigures, Draws, Rejections
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import Difference

SCHEMA = 1
"""The schema of ``figures.json``."""


@dataclass(frozen=True)
class ClassFigures:
    """The accuracy of one class, without and under attack.

    ``robust`` is None where no image of the class was judged under every attack; ``median``, the
    median smallest perturbation, is None with a budget or where it is infinite.
    """

    label: int
    clean: Rate | None
    robust: Rate | None
    median: float | None


@dataclass(frozen=True)
class Became:
    """The number of broken images of a class that were classified as another."""

    label: int
    prediction: int
    count: int


@dataclass(frozen=True)
class Confusion:
    """What broken images were classified as.

    Attributes
    ----------
    count : int
        The number of broken images.
    distinct : int
        The number of different pairs of classes.
    pairs : tuple of Became
        The most frequent pairs, most frequent first. A stochastic model may give a broken image its
        own class on average.
    """

    count: int
    distinct: int
    pairs: tuple[Became, ...]


@dataclass(frozen=True)
class Picture:
    """A broken sample: the model's answers, and where both images are stored."""

    sample: int
    attack: str
    label: int
    clean_prediction: int
    clean_confidence: float | None
    prediction: int
    confidence: float | None
    distance: float
    norm: str
    distances: Mapping[str, float]
    clean: str
    clean_row: int
    record: str
    row: int


@dataclass(frozen=True)
class Cost:
    """The cost of the whole evaluation."""

    forwards: int
    backwards: int
    queries: int
    judged: int
    seconds: float


@dataclass(frozen=True)
class ModelFigures:
    """The attacked model.

    ``name`` is its text; ``declared`` is its name in the benchmark, if it is of one; ``surrogates``
    are its layers whose gradient is that of a surrogate; ``passes`` are the forward passes of its
    networks for one answer; ``rounds`` says that a layer does not tell pixel values apart which the
    attack `beam` searches. Of a model that may reject images, ``nominal_rejections`` is the share
    of clean images that its threshold was set to reject on ``calibrated_on`` images, of which
    ``calibrated_here`` are evaluated here.
    """

    name: str
    digest: str
    kind: str
    classes: int
    parameters: int | None
    box: tuple[float, float]
    stochastic: bool
    draws: int
    undefended: bool
    declared: str | None = None
    surrogates: tuple[str, ...] = ()
    pooled: int = 1
    passes: int = 1
    rejects: bool = False
    rounds: bool = False
    nominal_rejections: float | None = None
    calibrated_on: int = 0
    calibrated_here: int = 0

    @property
    def title(self) -> str:
        """What it is called where it is shown: by the name in the benchmark, or by its text."""
        return self.name if self.declared is None else self.declared

    @property
    def counted(self) -> str:
        """When an image counts as right, in words; empty where the model answers it once.

        An attack breaks an image by success in half of the draws, so that most are right otherwise.
        """
        return f"right in most of {self.draws} draws" if self.stochastic else ""

    def is_called(self, name: str) -> bool:
        """Whether a name is that in the benchmark, or its text."""
        return name in (self.declared, self.name)


@dataclass(frozen=True)
class DataFigures:
    """The attacked samples."""

    name: str
    split: str
    count: int
    total: int | None
    seed: int | None
    digest: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    scaled: bool
    standard: float | None


@dataclass(frozen=True)
class ThreatFigures:
    """What the attacker may do, in parts and in words."""

    text: str
    norm: str
    eps: float | None
    eps_text: str | None
    goal: str
    access: str
    queries: int | None
    substitute: tuple[str, ...]
    box: tuple[float, float]
    words: str


@dataclass(frozen=True)
class Earlier:
    """An earlier evaluation of the same request, and the change since.

    Attributes
    ----------
    name, made, commit : str
        The evaluation, its date, and the commit of the user's repository, as far as known.
    model, data : str
        The digests of its model and of its samples.
    clean, robust, median
        Its accuracies, and the median smallest perturbation where the threat has no budget.
    complete : bool
        Whether all its records exist.
    change : Difference, optional
        The current evaluation less this one on the samples that both were judged on: of images
        that withstood every attack, or, without a budget, of images with the larger smallest
        perturbation. Its p is corrected for all changes of the run (Holm). None where they cannot
        be compared.
    why_not : str
        Why they cannot be compared: what differs besides the model.
    comparisons : int
        The number of changes that p is corrected for.
    """

    name: str
    made: str | None
    commit: str | None
    model: str
    data: str
    clean: Rate | None
    robust: Rate | None
    median: float | None
    complete: bool
    change: Difference | None
    why_not: str = ""
    comparisons: int = 1


@dataclass(frozen=True)
class NextStep:
    """A command, the rules whose advice it follows, and what to do before it is run."""

    rules: tuple[str, ...]
    command: str
    first: str = ""


@dataclass(frozen=True)
class EvaluationFigures:
    """All figures of one evaluation.

    ``others`` has the figures registered outside this package, by name (`register`); `plain` and
    ``figures.json`` list them with all others.
    """

    name: str
    model: ModelFigures
    data: DataFigures
    threat: ThreatFigures
    mode: str
    suite: str | None
    seed: int
    command: str
    complete: bool
    clean: Rate | None
    robust: Rate | None
    chance: Draws | None
    attacks: tuple[AttackFigures, ...]
    cascade: tuple[Stage, ...]
    steps_curve: tuple[AttackCurve, ...]
    queries_curve: tuple[AttackCurve, ...]
    eps_curve: BudgetCurve | None
    eps_curves: tuple[AttackCurve, ...]
    distances: Distances | None
    no_curve: str | None
    warnings: tuple[Finding, ...]
    gallery: tuple[Picture, ...]
    cost: Cost
    made: str | None = None
    commit: str | None = None
    history: tuple[Earlier, ...] = ()
    queries: tuple[AttackQueries, ...] = ()
    by_class: tuple[ClassFigures, ...] = ()
    confusion: Confusion | None = None
    examination: Examination | None = None
    next_steps: tuple[NextStep, ...] = ()
    rejection: Rejections | None = None
    attack_utility: tuple[AttackUtility, ...] = ()
    replays: tuple[ReplayFigures, ...] = ()
    certified: Certified | None = None
    defense: DefenseFigures | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Model and threat: ``zoo:digits-natural against linf:0.1``."""
        return f"{self.model.title} against {self.threat.text}"

    def figure(self, name: str) -> Any:
        """The figure of a name, also one registered outside this package; None without one."""
        return self.others.get(name, getattr(self, name, None))

    def plain(self) -> dict[str, Any]:
        """The figures as in ``figures.json``: dictionaries, lists and numbers."""
        content: dict[str, Any] = plain(self)
        return content


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run folder: all of ``figures.json``."""

    schema: int
    created: str
    command: str
    versions: Mapping[str, str]
    complete: bool
    evaluations: tuple[EvaluationFigures, ...]

    @classmethod
    def of(cls, evaluation: EvaluationFigures) -> RunFigures:
        """The figures of one evaluation without its run."""
        return cls(SCHEMA, "", evaluation.command, {}, evaluation.complete, (evaluation,))

    def plain(self) -> dict[str, Any]:
        """The content of ``figures.json``."""
        content: dict[str, Any] = plain(self)
        return content


def plain(value: Any) -> Any:
    """A value as JSON: frozen dataclasses as dictionaries, tuples as lists."""
    if is_dataclass(value):
        content = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return content | content.pop("others") if isinstance(value, EvaluationFigures) else content
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        numbers = value and isinstance(value[0], (int, float, str, type(None)))
        return list(value) if numbers else [plain(one) for one in value]
    return value
