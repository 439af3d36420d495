"""The named models that are known to have no defense: attacks that do not break them are faulty."""

from __future__ import annotations

from besiege.models.catalogue import zoo_card, zoo_names

PUBLIC = frozenset(
    {
        "cifar10_resnet20",
        "cifar10_resnet32",
        "cifar10_resnet44",
        "cifar10_resnet56",
        "mnist_conv_small_nat",
        "mnist_lenet_clean",
    }
)
"""Published weights that were trained on clean images only."""


def is_undefended(model: str) -> bool:
    """Whether the text names a model trained on clean images only, without layers before it.

    Examples
    --------
    >>> is_undefended("zoo:digits-natural"), is_undefended("zoo:digits-natural+bits(depth=3)")
    (True, False)
    """
    scheme, _, name = model.partition(":")
    if scheme == "zoo" and name in zoo_names():
        return zoo_card(name).get("recipe") == "natural"
    return scheme == "public" and name in PUBLIC
