"""`Joint`: several networks that are trained as one, and answer with their mean probability."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.errors import InputError, UnknownNameError, near
from besiege.core.text import read


class Joint(nn.Module):
    """Networks of the same images and classes, trained and attacked as one (ADP, Pang et al. 2019).

    Unlike `besiege.models.Ensemble`, which is a victim of finished models, it is one network with
    one file of weights.

    Parameters
    ----------
    members : sequence of nn.Module
        Each maps images to logits ``[rows, classes]``.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def each(self, x: Tensor) -> Tensor:
        """The logits of every member, ``[members, rows, classes]``."""
        return torch.stack([member(x) for member in self.members])

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the members' mean probability, ``[rows, classes]``."""
        return self.each(x).log_softmax(2).logsumexp(0) - math.log(len(self.members))


def joint(
    of: str = "resnet20",
    members: int = 3,
    classes: int | None = None,
    in_channels: int | None = None,
    size: int | None = None,
) -> Joint:
    """Several networks of one architecture as one: logits are the log of the mean probability.

    Parameters
    ----------
    of : str
        The members' architecture, perhaps with arguments: ``"preact_resnet18(width=16)"``.
    members : int
        How many; each has fresh weights.
    classes, in_channels, size : int, optional
        As the members take them; by default as in `of`. A size is ignored where members take any.

    Examples
    --------
    >>> joint(of="resnet20", members=2).each(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([2, 4, 10])
    """
    if type(members) is not int or members < 1:
        raise InputError(f"members is {members!r}, but a joint has one member or more")
    make, given = read(of, _architecture)
    known = inspect.signature(make).parameters
    fits = {"classes": classes, "in_channels": in_channels, "size": size}
    decided = {key: value for key, value in fits.items() if value is not None and key in known}
    return Joint([make(**{**decided, **given}) for _ in range(members)])


def _architecture(
    name: str, args: list[Any], given: dict[str, Any]
) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    # It lists this architecture, too.
    from besiege.models.architectures import ARCHITECTURES
    from besiege.models.checkpoints import check_arguments

    if name not in ARCHITECTURES:
        raise UnknownNameError(f"no architecture is called '{name}': {near(name, ARCHITECTURES)}")
    if args:
        raise InputError(f"write the arguments of {name} as name=value pairs")
    check_arguments(ARCHITECTURES[name], given, name)
    return ARCHITECTURES[name], given
