"""The figures of an evaluation as frozen values; ``figures.json`` has the same names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from besiege.core.errors import Finding
from besiege.core.examination import Examination
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import Difference

SCHEMA = 1
"""The schema of ``figures.json``."""
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class AttackCurve:
    """Accuracy under one attack: ``value[i]`` from ``x[i]`` up to ``x[i + 1]``."""

    attack: str
    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    count: int


@dataclass(frozen=True)
class BudgetCurve:
    """Accuracy against the budget, the median distance, and the number of unbroken images."""

    attack: str
    norm: str
    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    count: int
    median: float | None
    unbroken: int

    def at(self, budget: float) -> Rate:
        """The accuracy at a budget, with its interval: that of the last point up to it."""
        place = max(bisect_right(self.x, budget) - 1, 0)
        return Rate.of(round(self.value[place] * self.count), self.count)


@dataclass(frozen=True)
class AttackFigures:
    """Result and cost of one attack; ``accuracy`` is None where no image was judged.

    A ``guard`` tests the other attacks on some of the images that they left: ``tried`` images.
    Images that were ``given`` were made elsewhere, of some samples, and nothing is known about
    their cost.
    """

    text: str
    told: str
    steps: int | None
    transfer: bool
    accuracy: Rate | None
    broken: int
    alone: int
    median_distance: float | None
    forwards: int
    backwards: int
    queries: int
    seconds: float
    complete: bool
    failure: str | None
    guard: bool = False
    given: bool = False
    tried: int | None = None


@dataclass(frozen=True)
class AttackQueries:
    """Queries per image of one query-based attack, over the ``count`` images that it attacked.

    ``to_break`` is the median number up to the first success, over the images it broke.
    """

    text: str
    count: int
    mean: float
    median: float
    to_break: float | None


@dataclass(frozen=True)
class Stage:
    """One attack of the list: ``before`` is ``broken + left + unknown``."""

    text: str
    before: int
    broken: int
    left: int
    unknown: int
    queries_to_break: float | None
    queries: int
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of an accuracy over evaluations of one draw each.

    Examples
    --------
    >>> str(Spread(0.4556, 0.002))
    '45.56 % (0.20)'
    """

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f} % ({100 * self.deviation:.2f})"


@dataclass(frozen=True)
class Tries:
    """The accuracy where an attacker may try any of so many draws: one success is enough."""

    count: int
    accuracy: float


@dataclass(frozen=True)
class Probability:
    """The images with one success probability per draw, and its exact 95 % interval."""

    probability: float
    low: float
    high: float
    images: int


@dataclass(frozen=True)
class AttackSpread(Spread):
    """The spread of the accuracy under one attack, and its accuracy within several draws."""

    text: str
    within: tuple[Tries, ...] = ()


@dataclass(frozen=True)
class Draws:
    """The accuracy of a stochastic model, clean, under each attack and under the worst.

    ``within`` is the accuracy under the worst attack where any of several draws may be tried, and
    ``probabilities`` are the success probabilities of its images.
    """

    evaluations: int
    clean: Spread
    robust: Spread
    attacks: tuple[AttackSpread, ...]
    within: tuple[Tries, ...] = ()
    probabilities: tuple[Probability, ...] = ()


@dataclass(frozen=True)
class Auc:
    """The area under a ROC curve with its 95 % interval, over ``count`` adversarial images."""

    value: float
    low: float
    high: float
    count: int

    @property
    def reversed(self) -> bool:
        """Whether adversarial images are surely less suspicious than clean ones."""
        return self.high < 0.5


@dataclass(frozen=True)
class AttackUtility:
    """What the successes of one attack on one model look like, and what they cost (DEEPSEC).

    Everything but `mr` and the cost is a mean over the successes, of `count` or, where images are
    compared, of `measured` of them. None is a value that is not known; `lacking` says why.

    Attributes
    ----------
    text : str
        The attack.
    transfer : bool
        Whether it was crafted on another model, or its images were made elsewhere.
    mr : Rate, optional
        The share of successes, of all images that are classified correctly when clean.
    count : int
        The number of successes.
    acac, actc, nte, entropy : float, optional
        Probability of the predicted class, of the true class, the lead of the former over the
        second largest, and entropy in natural logarithms.
    measured : int
        The number of successes whose images were compared, the first by their samples.
    l0, l2, linf : float, optional
        Average distortion as in DEEPSEC's code: norms of values from 0 to 1, for l0 the share of
        values that differ after rounding to 8 bits.
    l0_relative, l2_relative, linf_relative : float, optional
        As in its paper: norms of the perturbation over those of the clean image.
    ass, ass_published : float, optional
        Average structural similarity with the data range 255, and with 2 as DEEPSEC published it.
    psd, psd_paper : float, optional
        Perturbation sensitivity distance with ``1 - std``, as its code, and ``1 / std``, its paper.
    seconds, passes : float, optional
        Time, and forward and backward passes, for each attacked image.
    lacking : mapping
        Why values are None: sentences by ``mr``, ``probabilities``, ``images``, ``window`` and
        ``cost``.
    """

    text: str
    transfer: bool
    mr: Rate | None
    count: int
    acac: float | None = None
    actc: float | None = None
    nte: float | None = None
    entropy: float | None = None
    measured: int = 0
    l0: float | None = None
    l2: float | None = None
    linf: float | None = None
    l0_relative: float | None = None
    l2_relative: float | None = None
    linf_relative: float | None = None
    ass: float | None = None
    ass_published: float | None = None
    psd: float | None = None
    psd_paper: float | None = None
    seconds: float | None = None
    passes: float | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayFigures:
    """What images do that were made on another model, or passed a transformation since then.

    Attributes
    ----------
    text : str
        What tables call them: ``transfer(MODEL, ATTACK)`` or ``replay(ATTACK, LAYER)``.
    model, attack, through : str
        The model they were made on, the attack, and the layer they passed, if any.
    same : bool
        Whether they were made on the model that judges them.
    still : Rate, optional
        The share that still reaches the goal, of all replayed images, whatever their distance.
    right : Rate, optional
        The share that the model classifies correctly. It is no robustness.
    adaptive : Rate, optional
        The share of the same samples that withstands every attack on the model itself.
    same_attack : Rate, optional
        The same for the one attack that made the images, run on this model.
    """

    text: str
    model: str
    attack: str
    through: str
    same: bool
    still: Rate | None
    right: Rate | None
    adaptive: Rate | None
    same_attack: Rate | None


@dataclass(frozen=True)
class Shares:
    """What a model that may reject images does with a set of images: three shares that sum to 1.

    Attributes
    ----------
    text : str
        The attack that made the images; empty for clean images.
    right, wrong, rejected : Rate
        Accepted and classified correctly, accepted and misclassified, and rejected.
    alone : Rate
        Classified correctly by the classifier without its detector.
    transfer : bool
        Whether the images were crafted on another model, such as the undefended one.
    """

    text: str
    right: Rate
    wrong: Rate
    rejected: Rate
    alone: Rate
    transfer: bool = False


@dataclass(frozen=True)
class Detection:
    """How well rejection finds the adversarial images of one attack that the classifier gets wrong.

    Attributes
    ----------
    text : str
        The attack.
    transfer : bool
        Whether its images were crafted on another model.
    rejected : Rate, optional
        The share of these images that the model rejects (true positive rate). None without any.
    auc : Auc, optional
        The area under the ROC curve of their suspicion against that of their clean images. DeLong's
        interval, paired by image. None where a suspicion is not known.
    fpr, tpr : tuple of float
        The points of that curve.
    """

    text: str
    transfer: bool
    rejected: Rate | None
    auc: Auc | None
    fpr: Numbers = ()
    tpr: Numbers = ()


@dataclass(frozen=True)
class Rejections:
    """The figures of a model that may reject images.

    Attributes
    ----------
    nominal : float, optional
        The share of clean images that its threshold was set to reject, if it is known.
    clean : Shares
        Those of clean images; ``clean.rejected`` is the realised false positive rate.
    attacks : tuple of Shares
        Those of the images of each attack; in a suite, the worst for each image so far.
    together : Shares, optional
        Those of the worst for each image over all attacks and the clean image: wrong is worse than
        rejected, rejected than right. None where no image was judged under every attack.
    detection : tuple of Detection
        For each attack, detection of the classifier's own errors.
    """

    nominal: float | None
    clean: Shares
    attacks: tuple[Shares, ...]
    together: Shares | None
    detection: tuple[Detection, ...]


@dataclass(frozen=True)
class DefenseFigures:
    """Accuracy under attackers who ignore the defense, and under all, who know it too."""

    ignored: Rate
    known: Rate

    def __str__(self) -> str:
        ignored, known = 100 * self.ignored.value, 100 * self.known.value
        return f"{ignored:.1f} % if the defense is ignored, {known:.1f} % if it is known"


@dataclass(frozen=True)
class CertifiedCurve:
    """Certified and empirical accuracy against the radius, of the same images.

    Attributes
    ----------
    x : tuple of float
        Radii.
    certified, attacked : tuple of float
        The share of images proved at a radius, and of those that no attack broke within it; None
        for `attacked` where no curve of the attacks was computed.
    count : int
        Number of images.
    """

    x: Numbers
    certified: Numbers
    attacked: Numbers | None
    count: int


@dataclass(frozen=True)
class Votes:
    """What certificates of randomised smoothing rest on.

    Attributes
    ----------
    n : int
        Votes that estimate the probability of a class.
    alpha : float
        Probability that a certificate is wrong, for each image.
    certified : int
        Images with a radius around the right class.
    abstains : int
        Images without a radius, where no class has surely more than half of the votes.
    false : float
        Wrong certificates to expect at most.
    """

    n: int
    alpha: float
    certified: int
    abstains: int
    false: float


@dataclass(frozen=True)
class Certified:
    """What is proved beside what attacks found, over the same images.

    Attributes
    ----------
    method : str
        The method of the proofs.
    clean, empirical, certified : Rate
        Accuracy on clean images, under all attacks, and proved: each at most the one before.
    proved, broken, open : int
        Images whose class is proved, those that are classified correctly and have a known
        adversarial image, and those about which neither is known. With `wrong` these are all.
    contradicted : int
        Images that are proved and broken: the proof or the attack is wrong.
    curve : CertifiedCurve, optional
        Both accuracies against the radius.
    votes : Votes, optional
        What certificates of smoothing rest on; None for proofs.
    spared : int
        Proved images that attacks were not run on; their results are known.
    """

    method: str
    clean: Rate
    empirical: Rate
    certified: Rate
    proved: int
    broken: int
    open: int
    contradicted: int
    curve: CertifiedCurve | None = None
    votes: Votes | None = None
    spared: int = 0

    @property
    def wrong(self) -> int:
        """Images that are not right when clean: attacks have nothing to break there."""
        return self.clean.count - self.clean.hits

    @property
    def bracket(self) -> str:
        """The two ends, in words: between what is proved and what attacks left."""
        low, high = 100 * self.certified.value, 100 * self.empirical.value
        return f"between {low:.1f} % (proved) and {high:.1f} % (attacked)"


@dataclass(frozen=True)
class Descent:
    """The median of the best distances within numbers of passes and in all, and the mean passes."""

    passes: tuple[int, ...]
    median: tuple[float | None, ...]
    in_all: float | None
    spent: float


@dataclass(frozen=True)
class Sizes:
    """Sizes of the smallest perturbations; None where infinite."""

    median: float | None
    mean: float | None
    p90: float | None
    area: float
    area_to: float
    unbroken: int
    cost: Descent | None


@dataclass(frozen=True)
class AttackSizes(Sizes):
    """The sizes of one attack.

    ``best`` counts the images for which it found the smallest perturbation of all;
    ``optimality`` is `local_optimality`.
    """

    text: str
    best: int
    optimality: float


@dataclass(frozen=True)
class Distances:
    """The sizes of each attack and of the best of all, over the same samples."""

    count: int
    broken: int
    all: Sizes
    attacks: tuple[AttackSizes, ...]


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
