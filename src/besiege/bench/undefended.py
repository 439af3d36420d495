"""The named models that are known to have no defense: attacks that do not break them are faulty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from besiege.models.catalogue import zoo_card, zoo_names

PUBLIC = frozenset(
    {
        "cifar10_resnet20",
        "cifar10_resnet32",
        "cifar10_resnet44",
        "cifar10_resnet56",
        "imagenet_efficientnet_lite0",
        "imagenet_mobilenet_v1_0.75",
        "imagenet_mobilenet_v2_1.0",
        "imagenet_squeezenet1.1",
        "mnist_conv_small_nat",
        "mnist_lenet_clean",
    }
)
"""Published weights that were trained on clean images only."""


# Settings of natural training.
_NATURAL = {"attack": None, "objective": "cross_entropy", "update": "plain"}
# Entries of a card that say what natural training does not: layers, or weights to start from.
_MORE = ("layers", "start")
# Arguments of architectures that are a defense: noise (RSE) and feature denoising.
_DEFENSES = ("noise", "denoise")


def is_undefended(model: str) -> bool:
    """Whether the text names a model trained on clean images only, without any defense.

    Cards of the zoo tell it by the settings of their recipe. A layer, a penalty, another objective
    or a defense in the network is none of natural training.

    Examples
    --------
    >>> is_undefended("zoo:digits-natural"), is_undefended("zoo:digits-natural+bits(depth=3)")
    (True, False)
    """
    scheme, _, name = model.partition(":")
    if scheme == "zoo" and name in zoo_names():
        return _naturally_trained(zoo_card(name))
    return scheme == "public" and name in PUBLIC


def _naturally_trained(card: Mapping[str, Any]) -> bool:
    settings, arguments = card.get("settings", {}), card.get("arguments") or {}
    natural = all(key in settings and settings[key] == usual for key, usual in _NATURAL.items())
    more = any(key in card for key in _MORE) or any(arguments.get(key) for key in _DEFENSES)
    return natural and not more
