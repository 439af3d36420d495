"""Public weights besiege knows by name: architecture, normalisation, input and digest of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class PublicWeights:
    """What it takes to run a published weights file.

    Parameters
    ----------
    sha256 : str
        Digest of the safetensors file.
    architecture : str
        A name of `besiege.models.ARCHITECTURES`.
    shape : (int, int, int)
        Channels, height and width of the images.
    mean, std : tuple of float, optional
        Normalisation, for pixels in [0, 1].
    source : str
        Where it was published, and the licence.
    """

    sha256: str
    architecture: str
    shape: tuple[int, int, int]
    source: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: int = 10

    @property
    def arguments(self) -> Mapping[str, int]:
        """Keyword arguments of the architecture."""
        channels, size, _ = self.shape
        arguments = {"in_channels": channels, "classes": self.classes}
        if not self.architecture.startswith("resnet"):
            arguments["size"] = size
        return arguments


_CIFAR, _MNIST = (3, 32, 32), (1, 28, 28)
_AKAMASTER = "akamaster/pytorch_resnet_cifar10, BSD-2-Clause style"
_CROWN = "Verified-Intelligence/alpha-beta-CROWN, BSD style"
_LOCUSLAB = "locuslab/convex_adversarial, MIT"


def _resnet(sha256: str, depth: int) -> PublicWeights:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return PublicWeights(sha256, f"resnet{depth}", _CIFAR, _AKAMASTER, mean, std)


def _cifar_cnn_a(sha256: str) -> PublicWeights:
    mean, std = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
    return PublicWeights(sha256, "cnn_a", _CIFAR, _CROWN, mean, std)


def _cifar_small(sha256: str) -> PublicWeights:
    mean, std = (0.485, 0.456, 0.406), (0.225, 0.225, 0.225)
    return PublicWeights(sha256, "cnn_a", _CIFAR, _LOCUSLAB, mean, std)


def _raw_small(sha256: str, source: str = _LOCUSLAB) -> PublicWeights:
    return PublicWeights(sha256, "cnn_a", _MNIST, source)


PUBLIC: Mapping[str, PublicWeights] = MappingProxyType(
    {
        "cifar10_resnet20": _resnet(
            "c951b60a92eb35bd136ddb7401705c4e47d7cf37589744aeb71b3710a67cde73", 20
        ),
        "cifar10_resnet32": _resnet(
            "c8bd166a63854a2d937fd11d674c3a3fa525ba0527d4c107e5eeb711b18c3ac3", 32
        ),
        "cifar10_resnet44": _resnet(
            "cf3adc0929d70bee9734a81318a3c12db28e71c4307d9e25cd01429bfe9267f3", 44
        ),
        "cifar10_resnet56": _resnet(
            "81221464cd64f0310bce6ea79728a2904a70fbd172010c81972254b9b3d51a32", 56
        ),
        "cifar10_cnn_a_adv": _cifar_cnn_a(
            "aa85b9e479af267aedcd44a818b7f1188c8fffdf2506d96cd88d0d7e631cf6a7"
        ),
        "cifar10_cnn_a_adv4": _cifar_cnn_a(
            "e84fab6ae75c907b3fceb4f449d606b83247a38b7106c89af666c1835fb65c8e"
        ),
        "cifar10_cnn_a_mix": _cifar_cnn_a(
            "9c2e7fa3741a5511d4492a23d95f00f95aecea3c46ac12f88f63528c1d39915d"
        ),
        "mnist_cnn_a_adv": _raw_small(
            "941da4e52bcaa0f0935bca35215d7e43338079a84e7a5af143205f5e1df0acb0", _CROWN
        ),
        "mnist_kw_small_eps0.1": _raw_small(
            "a3f730ab1291a5d583ad486043932cca221e8fbfaf727335b3e597f61c05e3ea"
        ),
        "mnist_kw_small_eps0.3": _raw_small(
            "7bb89a449563199c794312ca4dc38d4000dc61072a086702fcbbb7fe81b74f5c"
        ),
        "fashion_kw_small_eps0.1": _raw_small(
            "7665f7a1ae64f9696cd2ddda31b0110524b26a879ab1d097d7e21d9197b015d2"
        ),
        "cifar10_kw_small_8px": _cifar_small(
            "086640e89d5fa0892722bc96172225ce2d07330ac99ab9aa506ea790ee54d6e8"
        ),
        "cifar10_kw_small_l2_36px": _cifar_small(
            "dc219b710042cf8149fb8f164c8a9b2e32add7ae4cf147ed2584d1061c715aab"
        ),
    }
)
