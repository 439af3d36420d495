"""Detectors, and `Detected`: a victim that rejects images whose score is above a threshold.

A kind of detector is a frozen dataclass in a file of its own, registered under a name. It makes a
score of every image, higher where the image is more suspicious. `besiege.training.fit_detector`
fits and calibrates one, and writes a file that ``MODEL+detector('FILE')`` reads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from besiege.core.cells import coarsest
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.identity import plain
from besiege.core.oracle import Oracle, full_precision
from besiege.core.registry import Registry
from besiege.core.samples import Samples, Withheld
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.core.vocabulary import Vocabulary
from besiege.defenses.layers import LAYERS, Layer, cells_of, straight
from besiege.models.classifier import Classifier

T = TypeVar("T")
DETECTORS: Registry[type[Detector]] = Registry(
    "detector",
    tuple(f"besiege.defenses.{name}" for name in ("lid", "magnet", "squeezing")),
    group="besiege.detectors",
)
LANGUAGE = Vocabulary(DETECTORS, LAYERS)
_LARGEST = 1e38
"""Bound of the column of rejection: infinite logits would be refused."""
_STEEPEST = 1e30
"""Bound of its slope, so that gradients are finite for any spread."""
_AT_ONCE = 200
"""Calibration images between two reports of progress."""


class Examined(NamedTuple):
    """The answer to some images.

    Attributes
    ----------
    logits : Tensor
        float32 ``[rows, classes]``: what the victim answers where it accepts.
    score : Tensor
        float32 ``[rows]``, higher where the image is more suspicious. Gradients flow through it.
    """

    logits: Tensor
    score: Tensor


@dataclass(frozen=True)
class Material:
    """The images that a detector is fitted on, in the victim's box.

    Attributes
    ----------
    clean : Tensor
        Clean images ``[rows, channels, height, width]``, none of them a reference or held out for
        calibration.
    reference : Tensor
        The images that queries are compared with; none unless the detector asks for `references`.
    adversarial, noisy : Tensor
        The clean images after FGSM, and with Gaussian noise of the same mean l2 norm; empty unless
        the detector asks for `contrast`.
    kept : Tensor
        Numbers of the clean images that `adversarial` and `noisy` were made of, in this order.
    """

    clean: Tensor
    reference: Tensor
    adversarial: Tensor
    noisy: Tensor
    kept: Tensor


class Detector(ABC):
    """A kind of detector: its parameters. What `fit` learns is kept in tensors beside it.

    A detector of your own is a frozen dataclass with ``@detector("name")`` above it. Its score is
    differentiable, or has surrogates as layers do: attacks follow its gradient.
    """

    revision: ClassVar[int] = 1
    """Part of the digest: raised when the same tensors give other scores."""
    follows_twin: ClassVar[bool] = True
    """Whether attacks may search on an accelerated copy of the network, whose layers are fused."""

    def __str__(self) -> str:
        return LANGUAGE.text(self)

    @property
    def layers(self) -> Sequence[Layer]:
        """Layers inside; some have surrogates, whose gradients attacks follow."""
        return ()

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        """Networks inside, apart from the victim's; by default those of its layers."""
        return [part for layer in self.layers for part in layer.parts]

    @property
    def passes(self) -> int:
        """Forward passes of the victim for one answer."""
        return 1

    @property
    def references(self) -> int:
        """Number of reference images that it compares queries with."""
        return 0

    def contrast(self, shape: Sequence[int]) -> float | None:
        """Size of the FGSM that it is fitted on, as a share of the box; None without any."""
        return None

    def suited(self, shape: Sequence[int]) -> Detector:
        """The detector with the parameters that depend on the shape of the images."""
        return self

    def must_fit(self, victim: Victim) -> None:  # noqa: B027  # most kinds guard any victim
        """Refuse a victim that it cannot guard."""

    def fit(self, victim: Victim, material: Material) -> dict[str, Tensor]:
        """What it learns from images, as float32 tensors by name."""
        return {}

    @abstractmethod
    def examine(self, victim: Victim, x: Tensor, dice: Dice, numbers: Numbers) -> Examined:
        """Logits and scores of images; `numbers` holds what was fitted."""


class Numbers(nn.Module):
    """The tensors of a fitted detector, by name, and `known`: values derived from them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone())
        self._derived: dict[Any, Any] = {}

    def known(self, key: Any, make: Callable[[], T]) -> T:
        """A value that is made once, such as the activations of reference images."""
        if key not in self._derived:
            # Outside the caller's inference mode: later calls compute gradients with it.
            with torch.inference_mode(False), torch.no_grad():
                self._derived[key] = make()
        made: T = self._derived[key]
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Numbers:
        return Numbers(dict(self.named_buffers()))

    def digest(self) -> str:
        """SHA-256 of all tensors."""
        return digest_of(dict(self.named_buffers()))


def detector(name: str) -> Callable[[T], T]:
    """Register a kind of detector under a name."""
    return DETECTORS.register(name)


@dataclass(frozen=True)
class Calibration:
    """Where a detector rejects, as measured on clean images that it was not fitted on.

    Attributes
    ----------
    threshold : float
        Images with a score above it are rejected.
    spread : float
        The standard deviation of the clean scores: the unit of scores.
    gain : float
        The median lead of the top logit over the second on clean images: how far the column of
        rejection rises with a spread of the score.
    fpr : float, optional
        The nominal share of clean images that are rejected; none for a threshold set by hand.
    withheld : Withheld, optional
        The images it was measured on, which must not be evaluated.
    """

    threshold: float
    spread: float = 1.0
    gain: float = 1.0
    fpr: float | None = None
    withheld: Withheld | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.threshold) or not (0 < self.spread < math.inf):
            raise InputError(
                f"the threshold is {self.threshold} and the spread {self.spread}: calibrate the "
                "detector on images whose scores are finite and differ"
            )
        if not 0 < self.gain < math.inf:
            raise InputError(f"the gain is {self.gain}, but a finite number above 0 is needed")


class Detected(Victim):
    """A victim whose detector rejects suspicious images.

    It answers one column more than it has classes: the top logit plus
    ``gain (score - threshold) / spread``. This is larger than all others exactly when the score is
    above the threshold. To an attacker a rejection is as good as the right class
    (`besiege.core.refusal`), so every attack attacks detector and classifier together.

    Parameters
    ----------
    victim : Victim, nn.Module or str
        The model to guard, with its layers. It must not be stochastic.
    detector : Detector
        The kind of detector.
    calibration : Calibration
        Where it rejects.
    tensors : mapping, optional
        What `Detector.fit` learned.
    text : str, optional
        How the detector is written after the model: ``detector('FILE')``.

    Examples
    --------
    >>> from besiege.defenses import BitDepth, Calibration, Detected, Median, Squeezing
    >>> squeezing = Squeezing((BitDepth(1), Median(2)))
    >>> victim = Detected("zoo:digits-natural", squeezing, Calibration(threshold=0.5))
    >>> victim.rejects, victim.classes, victim.passes
    (True, 10, 3)
    """

    def __init__(
        self,
        victim: Victim | nn.Module | str,
        detector: Detector,
        calibration: Calibration,
        tensors: Mapping[str, Tensor] | None = None,
        text: str | None = None,
    ) -> None:
        if isinstance(victim, str):
            from besiege.defenses.defended import load

            victim = load(victim)
        inner = self.adopt(Classifier.of(victim))
        must_be_guardable(inner, detector)
        self.victim, self.detector, self.calibration = inner, detector, calibration
        self.text = str(detector) if text is None else text
        self.rejects = True
        self.passes = detector.passes * inner.passes
        squeezed = (cells_of(one, inner.box) for one in detector.layers)
        self.cells = coarsest([inner.cells, *squeezed])
        self.withheld = calibration.withheld
        self.nominal_rejections = calibration.fpr
        about = {name: getattr(calibration, name) for name in ("threshold", "spread", "gain")}
        single = {name: torch.tensor(value, dtype=torch.float32) for name, value in about.items()}
        self.numbers = Numbers({**(tensors or {}), **single}).to(inner.device)

    @cached_property
    def name(self) -> str:
        """The text that `load` reads back, if the model's name is one and the detector a file."""
        return f"{self.victim.name}+{self.text}"

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        """The victim, the detector's tensors and its networks."""
        return (self.victim, self.numbers, *self.detector.parts)

    @property
    def bare(self) -> Victim:
        """The model without detector and layers."""
        return self.victim.bare

    def examine(self, x: Tensor, dice: Dice | None = None) -> Examined:
        """Logits of the classes and scores of images."""
        if dice is None:
            dice = Dice(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        return self.detector.examine(self.victim, x, dice, self.numbers)

    def score(self, x: Tensor) -> Tensor:
        """Scores ``[rows]`` of images: higher is more suspicious."""
        return self.examine(x).score

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits ``[rows, classes + 1]``; the last column is the largest where it rejects."""
        logits, score = self.examine(x, dice)
        kept = dict(self.numbers.named_buffers())
        last = rejection(logits, score, kept["threshold"], kept["spread"], kept["gain"])
        return torch.cat([logits, last[:, None]], 1)

    def digest(self) -> str:
        """SHA-256 of the victim's digest, the kind of detector with its layers, and its tensors."""
        parts = [self.victim.digest(), str(self.detector), str(self.detector.revision)]
        parts += [layer.identity() for layer in self.detector.layers]
        inside = {id(part) for layer in self.detector.layers for part in layer.parts}
        others = [part for part in self.detector.parts if id(part) not in inside]
        parts += [Classifier.of(part).digest() for part in others]
        if not type(self.detector).__module__.startswith("besiege.defenses."):
            parts.append(plain(self.detector))  # the source of another package's detector
        return sha256("\n".join([*parts, self.numbers.digest()]).encode()).hexdigest()

    def twin(
        self,
        samples: Samples,
        threat: Threat,
        *,
        seed: int = 0,
        compiled: bool = False,
        precision: torch.dtype = torch.float32,
    ) -> Victim | None:
        """The detector in front of an accelerated copy of the victim, if there is one."""
        if not self.detector.follows_twin:
            return None
        inner = self.victim.twin(samples, threat, seed=seed, compiled=compiled, precision=precision)
        if inner is None:
            return None
        fitted = dict(self.numbers.named_buffers())
        return Detected(inner, self.detector, self.calibration, fitted, self.text)

    def __repr__(self) -> str:
        return self.name


def rejection(
    logits: Tensor, score: Tensor, threshold: Tensor, spread: Tensor, gain: Tensor
) -> Tensor:
    """The column of rejection: ``max(z) + gain (score - threshold) / spread``.

    In float32 the sum may round to the top logit or past it. The result is therefore at least the
    next number above the top logit where the score is above the threshold, and at most the next one
    below it everywhere else, so that signs are exact. Gradients are those of the sum.

    Examples
    --------
    >>> import torch
    >>> one = torch.tensor(1.0)
    >>> rejection(torch.tensor([[0.0, 2.0]]), torch.tensor([0.5]), one, one, one)
    tensor([1.5000])
    """
    top = logits.amax(1)
    # Bounded: an infinite ratio would make NaN of a score that equals the threshold.
    usual = top + (score - threshold) * (gain / spread).clamp(max=_STEEPEST)
    with torch.no_grad():
        high, low = (torch.full_like(top, bound) for bound in (torch.inf, -torch.inf))
        # An infinite threshold accepts everything, and minus infinity rejects everything.
        bounded = usual.clamp(-_LARGEST, _LARGEST)
        above = torch.maximum(bounded, torch.nextafter(top, high))
        below = torch.minimum(bounded, torch.nextafter(top, low))
        exact = torch.where(score > threshold, above, below)
        exact = torch.where(score.isnan(), score, exact)
    return straight(usual, exact)


def threshold_at(scores: Tensor, fpr: float) -> float:
    """The threshold that rejects at most a share of clean images: ``s[ceil(n (1 - fpr)) - 1]``.

    Parameters
    ----------
    scores : Tensor
        Scores ``[n]`` of clean images.
    fpr : float
        The nominal false positive rate, such as 0.05; ``n fpr`` must be 1 or more.

    Examples
    --------
    >>> import torch
    >>> threshold_at(torch.arange(1.0, 101.0), 0.05)
    95.0
    """
    must_be_rate(fpr, len(scores))
    if not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"{int((~torch.isfinite(scores)).sum())} of {len(scores)} clean images have a score "
            "that is NaN or infinite: no threshold can be set; check the model's weights"
        )
    # As a fraction: 100 * (1 - 0.07) is not 93 in floating point.
    place = len(scores) - math.floor(len(scores) * Fraction(str(fpr))) - 1
    return float(scores.sort().values[place])


def must_be_rate(fpr: float, count: int) -> None:
    """Refuse a false positive rate outside (0, 1), or too small for a number of images."""
    if not _is_share(fpr):
        raise InputError(
            f"fpr is {fpr!r}, but the false positive rate is a share between 0 and 1, such as 0.05"
        )
    if count == 0:
        raise InputError("no images are left to calibrate the detector on: give more data")
    if count * Fraction(str(fpr)) < 1:
        raise InputError(
            f"a false positive rate of {fpr:g} is less than one of {count} calibration images: "
            f"give {math.ceil(1 / Fraction(str(fpr)))} images or more, or a larger rate"
        )


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1


def calibrate(
    victim: Victim,
    detector: Detector,
    tensors: Mapping[str, Tensor],
    images: Tensor,
    fpr: float,
    withheld: Withheld | None = None,
    tick: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The calibration of a fitted detector on held-out clean images in the victim's box.

    Parameters
    ----------
    victim : Victim
        The model to guard.
    detector : Detector
        The kind of detector.
    tensors : mapping
        What `Detector.fit` learned; empty where there is nothing to learn.
    images : Tensor
        Clean images ``[count, channels, height, width]`` that neither has seen.
    fpr : float
        The share of them that is rejected: at most, and one image fewer is less.
    withheld : Withheld, optional
        Which images these are, so that evaluations leave them out.
    tick : callable, optional
        Called with the images done and their number.

    Returns
    -------
    Calibration
        Threshold, spread and gain.

    Examples
    --------
    >>> from besiege.data import load as load_data
    >>> from besiege.defenses import BitDepth, Squeezing, calibrate, load
    >>> images = load_data("digits").images[199:]
    >>> found = calibrate(load("zoo:digits-natural"), Squeezing((BitDepth(1),)), {}, images, 0.05)
    >>> found.fpr, found.threshold > 0
    (0.05, True)
    """
    must_be_rate(fpr, len(images))
    scores, leads = [], []
    trial = Detected(victim, detector, Calibration(0.0), tensors)
    for place, part in enumerate(torch.split(images, _AT_ONCE)):
        found = examined(trial, part)
        scores.append(found.score)
        best = found.logits.topk(2, dim=1).values
        leads.append(best[:, 0] - best[:, 1])
        if tick is not None:
            tick(min((place + 1) * _AT_ONCE, len(images)), len(images))
    score, lead = torch.cat(scores), torch.cat(leads)
    threshold = threshold_at(score, fpr)
    spread = float(score.double().std(unbiased=False))
    # Scores that are all alike have no spread: any unit will do that float32 can divide by.
    spread = max(spread, 1e-6 * abs(threshold), 1e-12)
    gain = max(float(lead.double().median()), 1e-6)
    return Calibration(threshold, spread, gain, fpr, withheld)


def examined(victim: Detected, images: Tensor) -> Examined:
    """Logits and scores of images, padded, held and in full precision as in a siege."""
    plainly = _Scored(victim)
    with victim.held(), full_precision(victim.device):
        answers = Oracle(plainly).logits(images.to(victim.device))
    return Examined(answers[:, :-1], answers[:, -1])


class _Scored(Victim):
    """A detected victim whose last column is the score itself: it says nothing about rejection."""

    def __init__(self, victim: Detected) -> None:
        self.adopt(victim)
        self.inner = victim

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits, score = self.inner.examine(x, dice)
        return torch.cat([logits, score[:, None]], 1)


def must_be_guardable(victim: Victim, detector: Detector) -> None:
    """Refuse a victim that a detector cannot guard."""
    if not isinstance(detector, Detector):
        raise InputError(
            f"the detector is a {type(detector).__name__}: give an object of a class that derives "
            "from besiege.defenses.Detector, such as Squeezing()"
        )
    if victim.rejects:
        raise InputError(f"'{victim.name}' rejects images already: write one detector")
    if victim.stochastic:
        raise InputError(
            f"'{victim.name}' is stochastic, and a threshold set with some draws does not hold for "
            "others: leave out the stochastic layers, or the detector"
        )
    if victim.access < Access.SCORE:
        raise InputError(
            f"'{victim.name}' returns labels only, and a detector compares scores: give a model "
            "that returns logits or probabilities"
        )
    detector.must_fit(victim)


def digest_of(value: Victim | nn.Module | Layer | Mapping[str, Tensor]) -> str:
    """SHA-256 of weights, structure and preprocessing, not of code.

    A detector's file names its model by this digest: `Victim.digest` also covers the source of the
    network, so that an edit of a comment there would make every file one of another model.
    """
    from besiege.defenses.defended import Defended  # it reads files of detectors
    from besiege.models.ensemble import Ensemble

    if isinstance(value, Layer):
        written = [f"{value}, revision {value.revision}", *map(digest_of, value.parts)]
    elif isinstance(value, Classifier):
        about = (value.mean, value.std, value.box, value.outputs, value.grid, value.sizing)
        written = [repr(about), digest_of(value.module)]
    elif isinstance(value, Defended):
        written = ["Defended", *map(digest_of, value.layers), digest_of(value.victim)]
    elif isinstance(value, Ensemble):
        how = f"Ensemble {value.fuse} {value.equalise} {value.weights}"
        written = [how, *map(digest_of, value.members)]
    elif isinstance(value, Victim):
        return value.digest()
    elif isinstance(value, nn.Module):
        named = value.named_modules(remove_duplicate=False)
        written = [f"{path}: {_structure(part)}" for path, part in named]
        written.append(_tensors(value.state_dict()))
    else:
        return _tensors(value)
    return sha256("\n".join(written).encode()).hexdigest()


def _structure(part: nn.Module) -> str:
    """A module without those inside it: its class, and its settings."""
    kind = type(part)
    if kind.__module__.startswith("torch."):
        return f"{kind.__name__}({part.extra_repr()})"
    kept = (bool, int, float, str, tuple, type(None))
    shown = {k: v for k, v in vars(part).items() if k[0] != "_" and isinstance(v, kept)}
    shown.pop("training", None)  # the mode, which calls set
    return f"{kind.__name__} {sorted(shown.items())}"


def _tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
        digest.update(content.numpy().tobytes())
    return digest.hexdigest()


def forced(victim: Detected, threshold: float) -> Detected:
    """The same victim with another threshold; infinite thresholds accept or reject everything."""
    calibration = replace(victim.calibration, threshold=threshold)
    fitted = dict(victim.numbers.named_buffers())
    return Detected(victim.victim, victim.detector, calibration, fitted, victim.text)
