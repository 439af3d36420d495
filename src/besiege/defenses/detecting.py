"""What all kinds of detectors share.

A kind of detector is a frozen dataclass in a file of its own, registered under a name. It makes a
score of every image, higher where the image is more suspicious. `besiege.training.fit_detector`
fits and calibrates one, and writes a file that ``MODEL+detector('FILE')`` reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.registry import Registry
from besiege.core.victim import Victim
from besiege.core.vocabulary import Vocabulary
from besiege.defenses.contents import digest_of
from besiege.defenses.layers import LAYERS, Layer

T = TypeVar("T")
DETECTORS: Registry[type[Detector]] = Registry(
    "detector",
    tuple(f"besiege.defenses.{name}" for name in ("lid", "magnet", "squeezing")),
    group="besiege.detectors",
)
LANGUAGE = Vocabulary(DETECTORS, LAYERS)


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
