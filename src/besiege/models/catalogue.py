"""Lists architectures, shipped and public models, and the forms of a model's text, without torch.

Listings and help texts read this module, and neither may import torch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from besiege.models.public import PUBLIC

ZOO = Path(__file__).parent / "zoo"
_LONGEST_HEADER = 100_000_000  # as safetensors itself allows
SCHEMES = ("torchvision", "timm", "hf", "robustbench")
"""Words before the colon of models that other packages load."""

FORMS = MappingProxyType(
    {
        "zoo:NAME": "a model that comes with besiege",
        "public:NAME": "published weights in the data root, in the folder BESIEGE_DATA/weights",
        "ARCH(mean=..., std=...):path/weights.safetensors": (
            "own weights of an architecture besiege knows; also .pt, .pth, .ckpt, .bin and .tar "
            "files that hold only tensors"
        ),
        "torchvision:NAME": (
            "a model of the installed torchvision, with its own preprocessing; "
            "torchvision:resnet50(weights=IMAGENET1K_V1), or own weights: "
            "torchvision:resnet18(num_classes=10, weights=file.pt)"
        ),
        "timm:NAME": "a model of the installed timm, with its own preprocessing: timm:NAME.TAG",
        "hf:REPO": "an image classifier of the Hugging Face hub, loaded with transformers",
        "robustbench:DATA/THREAT/NAME": "a model of the installed robustbench",
        "path/to/file.py:factory": (
            "a torch.nn.Module or a besiege.Classifier that a function in a file returns; "
            "with arguments: file.py:factory(width=2)"
        ),
        "path/file.onnx": (
            "a network in an ONNX file, without gradients; with arguments: "
            "file.onnx(mean=0.5, std=0.25)"
        ),
        "http://HOST:PORT/PATH": (
            "a model that answers HTTP requests, without gradients; with arguments: "
            "http://HOST/PATH(format=png, classes=10, access=decision)"
        ),
    }
)


@dataclass(frozen=True)
class Architecture:
    """A network besiege can build.

    Attributes
    ----------
    about : str
        Description in one line.
    arguments : str
        Its arguments with their defaults, as text.
    shape : (int, int, int)
        Channels, height and width of the images it is built for by default.
    makes : str
        What it answers: 'logits' of classes, or, of a network inside a layer, 'images' or the
        'levels' of pixel values (their logits).
    """

    about: str
    arguments: str
    shape: tuple[int, int, int]
    makes: str = "logits"


LAYERS: Mapping[str, str | None] = MappingProxyType(
    {"logits": None, "images": "reform", "levels": "pixeldefend"}
)
"""The layer that takes networks of these answers; none takes classifiers."""

_RESIDUAL = "classes=10, in_channels=3"
_SIZED_RESIDUAL = "classes=10, in_channels=3, size=32"
_COLOUR = "in_channels=3, size=32, classes=10"
_GREY = "in_channels=1, size=28, classes=10"
_DIGITS = "in_channels=1, size=8, classes=10"
_LARGE = "classes=1000, in_channels=3"
_32, _28, _8 = (3, 32, 32), (1, 28, 28), (1, 8, 8)
_224, _227 = (3, 224, 224), (3, 227, 227)

CATALOGUE: Mapping[str, Architecture] = MappingProxyType(
    {
        "resnet20": Architecture(
            "CIFAR ResNet, 20 layers, 0.27 M parameters; denoise='gaussian' adds feature denoising",
            f"{_RESIDUAL}, denoise=None",
            _32,
        ),
        "resnet32": Architecture("CIFAR ResNet, 32 layers, 0.46 M parameters", _RESIDUAL, _32),
        "resnet44": Architecture("CIFAR ResNet, 44 layers, 0.66 M parameters", _RESIDUAL, _32),
        "resnet56": Architecture("CIFAR ResNet, 56 layers, 0.85 M parameters", _RESIDUAL, _32),
        "resnet110": Architecture("CIFAR ResNet, 110 layers, 1.73 M parameters", _RESIDUAL, _32),
        "preact_resnet18": Architecture(
            "pre-activation ResNet, 18 layers, 11.2 M parameters at width 64; denoise as resnet20",
            "width=64, classes=10, in_channels=3, denoise=None",
            _32,
        ),
        "wide_resnet": Architecture(
            "wide ResNet, 28 layers, 36.5 M parameters (WRN-28-10)",
            "depth=28, widen=10, classes=10, in_channels=3",
            _32,
        ),
        "vgg16": Architecture(
            "VGG-16 with batch norm, 14.7 M parameters; noise=(0.2, 0.1) makes it RSE",
            "width=64, noise=None, classes=10, in_channels=3, size=32",
            _32,
        ),
        "vgg": Architecture(
            "VGG with batch norm, 11, 13, 16 or 19 layers",
            f"depth=13, width=16, {_SIZED_RESIDUAL}",
            _32,
        ),
        "plain_cnn": Architecture(
            "plain convolutions without batch norm, in three stages",
            f"depth=6, width=32, {_SIZED_RESIDUAL}",
            _32,
        ),
        "densenet": Architecture(
            "DenseNet-BC, 40 layers, 0.18 M parameters", f"depth=40, growth=12, {_RESIDUAL}", _32
        ),
        "mobile_cifar": Architecture(
            "depthwise and 1x1 convolutions as in MobileNet v1, for small images",
            f"multiplier=1.0, {_RESIDUAL}",
            _32,
        ),
        "inception_cifar": Architecture(
            "parallel branches as in Inception v1, for small images",
            f"blocks=2, width=48, {_RESIDUAL}",
            _32,
        ),
        "joint": Architecture(
            "several networks trained as one (ADP): the mean of their probabilities",
            "of='resnet20', members=3, classes=None, in_channels=None, size=None",
            _32,
        ),
        "resnet2b": Architecture(
            "residual network of 2 blocks for verifiers, no batch norm", _SIZED_RESIDUAL, _32
        ),
        "resnet4b": Architecture(
            "residual network of 4 blocks for verifiers, no batch norm", _SIZED_RESIDUAL, _32
        ),
        "cnn_a": Architecture(
            "small network of the verification papers: 2 convolutions, 2 layers", _COLOUR, _32
        ),
        "conv_small": Architecture("cnn_a without padding (ERAN's ConvSmall)", _COLOUR, _32),
        "oval_base": Architecture("OVAL's base network: cnn_a, half the channels", _COLOUR, _32),
        "oval_wide": Architecture("OVAL's wide network: cnn_a by another name", _COLOUR, _32),
        "oval_deep": Architecture("OVAL's deep network: 4 convolutions, 2 layers", _COLOUR, _32),
        "conv5": Architecture(
            "DeepDefense's network for CIFAR-10: 3 convolutions, 2 layers", _COLOUR, _32
        ),
        "lenet": Architecture(
            "advertorch's LeNet for MNIST: 2 convolutions with pooling, 2 layers", _GREY, _28
        ),
        "deepsec_cnn": Architecture(
            "DEEPSEC's network for MNIST: 4 convolutions, 3 layers", f"{_GREY}, width=32", _28
        ),
        "digits_cnn": Architecture("2 convolutions, 2 layers, for 8x8 digits", _DIGITS, _8),
        "digits_mlp": Architecture("fully connected, for 8x8 digits", _DIGITS, _8),
        "autoencoder": Architecture(
            "MagNet's autoencoder, for the layer reform: 5 convolutions, 3 with pool=False",
            "width=3, pool=True, in_channels=1",
            _28,
            makes="images",
        ),
        "pixelcnn": Architecture(
            "gated PixelCNN, for the layer pixeldefend, 0.61 M parameters",
            "levels=256, width=64, blocks=7, in_channels=3",
            _32,
            makes="levels",
        ),
        "squeezenet": Architecture(
            "SqueezeNet 1.1, 1.2 M parameters; bgr=True reverses the channels, as Caffe's weights "
            "need",
            f"{_LARGE}, bgr=False",
            _227,
        ),
        "mobilenet_v1": Architecture(
            "MobileNet v1, 4.2 M parameters, 2.6 M with multiplier 0.75",
            f"multiplier=1.0, {_LARGE}",
            _224,
        ),
        "mobilenet_v2": Architecture(
            "MobileNet v2, 3.5 M parameters, batch norm folded in, background class dropped",
            _LARGE,
            _224,
        ),
        "efficientnet_lite0": Architecture("EfficientNet-Lite0, 4.7 M parameters", _LARGE, _224),
    }
)


@dataclass(frozen=True)
class Listed:
    """A shipped or public model, as `besiege models` lists it.

    Attributes
    ----------
    name : str
        The text that `besiege.models.load` takes.
    architecture, data : str
        Its architecture, and the data set with its images and classes: the one it was trained on,
        or imagenet-sample for networks trained on ImageNet.
    clean : str
        Accuracy on that data's test images; empty if it was not measured.
    weights : Path or None
        Path of the weights, whether they exist or not; None if no data root is set.
    present : bool
        Whether the weights exist.
    arguments : mapping
        Arguments of the architecture that its card has.
    recipe : str
        How it was trained, as `besiege.training.recipe` reads it; empty if besiege did not.
    threat, pgd20, autoattack : str
        Accuracy under PGD with 20 steps and under AutoAttack, and the threat of both; empty if
        they were not measured.
    parameters : int or None
        Number of its parameters; None if the weights do not exist.
    """

    name: str
    architecture: str
    data: str
    clean: str
    weights: Path | None
    present: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    threat: str = ""
    pgd20: str = ""
    autoattack: str = ""
    parameters: int | None = None

    @property
    def built(self) -> str:
        """The architecture with its arguments."""
        given = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.architecture}({given})" if given else self.architecture


def listing() -> list[Listed]:
    """Every shipped and public model: the zoo first, then the public ones, each by name.

    Examples
    --------
    >>> from besiege.models import listing
    >>> [row.name for row in listing() if row.name.startswith("zoo:digits")]
    ['zoo:digits-autoencoder', 'zoo:digits-natural', 'zoo:digits-pgd-at', 'zoo:digits-pixelcnn']
    """
    return [*map(_shipped, zoo_names()), *map(_published, sorted(PUBLIC))]


def _shipped(name: str) -> Listed:
    card, path = zoo_card(name), ZOO / f"{name}.safetensors"
    data = str(card.get("data", "")).replace(",", " ").split()
    figures = card.get("accuracy") or {}
    return Listed(
        f"zoo:{name}",
        card["arch"],
        data[0] if data else "",
        figures.get("clean", ""),
        path,
        path.exists(),
        card.get("arguments") or {},
        card.get("recipe", ""),
        card.get("threat", ""),
        figures.get("pgd20", ""),
        figures.get("autoattack", ""),
        count_parameters(path),
    )


def _published(name: str) -> Listed:
    entry, path = PUBLIC[name], public_path(name)
    return Listed(
        f"public:{name}",
        entry.architecture,
        entry.data,
        f"{entry.clean:.2f} %",
        path,
        path is not None and path.exists(),
        parameters=None if path is None else count_parameters(path),
    )


# Buffers of batch norm, which files of weights hold beside the parameters.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def count_parameters(weights: Path) -> int | None:
    """The number of parameters in a safetensors file, from its header; None without a sound one."""
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LONGEST_HEADER:
                return None
            header = json.loads(file.read(length))
        return sum(
            int(math.prod(entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__" and not name.endswith(_STATISTICS)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def zoo_names() -> list[str]:
    """Names of the models that come with besiege, in alphabetical order."""
    return sorted(p.stem for p in ZOO.glob("*.json"))


def zoo_card(name: str) -> dict[str, Any]:
    """The card of a zoo model."""
    card: dict[str, Any] = json.loads((ZOO / f"{name}.json").read_text())
    return card


def architecture_of(text: str) -> str | None:
    """The architecture that a text of a model names; None if it names none, as a factory does.

    Examples
    --------
    >>> architecture_of("zoo:digits-natural"), architecture_of("lenet(size=8):mine.safetensors")
    ('digits_cnn', 'lenet')
    """
    scheme, _, name = text.partition(":")
    if scheme == "zoo":
        return zoo_card(name).get("arch") if name in zoo_names() else None
    if scheme == "public":
        return PUBLIC[name].architecture if name in PUBLIC else None
    found = re.match(r"\s*(\w+)\s*[(:]", text)
    return found[1] if found and found[1] in CATALOGUE else None


def layer_of(text: str) -> str | None:
    """The layer whose network a text names; None for a classifier, or where it cannot be told.

    Examples
    --------
    >>> layer_of("pixelcnn(levels=16):mine.safetensors"), layer_of("zoo:digits-natural")
    ('pixeldefend', None)
    """
    known = CATALOGUE.get(architecture_of(text) or "")
    return None if known is None else LAYERS[known.makes]


def public_path(name: str) -> Path | None:
    """The path of public weights in the data root; None if no root is set."""
    root = os.environ.get("BESIEGE_DATA")
    return Path(root) / "weights" / public_file(name) if root else None


def public_file(name: str) -> str:
    """The name of the file of public weights."""
    return f"{PUBLIC[name].file if name in PUBLIC else name}.safetensors"
