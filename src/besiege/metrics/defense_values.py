"""Figures of models that draw, reject images or are certified, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from besiege.metrics.intervals import Rate


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
    fpr: tuple[float, ...] = ()
    tpr: tuple[float, ...] = ()


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

    x: tuple[float, ...]
    certified: tuple[float, ...]
    attacked: tuple[float, ...] | None
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
