"""Certified training: the loss of the worst that bounds allow within the budget.

Gowal et al. (2018) train by intervals, Zhang et al. (2020) by intervals inside the network and
lines for the margins, Wong and Kolter (2018) by lines throughout. Each takes the lower bounds
``m_k`` of the margins ``z_y - z_k`` as logits of the classes, ``-m_k`` and 0 for the label: their
cross-entropy is at least that of every image within the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from besiege.bounds.bounding import (
    Relaxed,
    crown_ibp,
    fast_lin,
    ibp,
    margins_by_intervals,
    margins_by_lines,
    must_fit,
)
from besiege.bounds.graph import Graph
from besiege.bounds.region import Region
from besiege.bounds.tracing import trace
from besiege.core.errors import InputError
from besiege.core.fields import number, one_of
from besiege.core.threat import Threat
from besiege.models.classifier import Classifier
from besiege.training.objectives import Objective, Step, objective


@dataclass(frozen=True, eq=False)
class Around:
    """A network, and the images around each clean one that it is bounded on."""

    graph: Graph
    region: Region


@objective("bounded")
@dataclass(frozen=True)
class Bounded(Objective):
    """``kappa CE(z(x), y) + (1 - kappa) CE(-m, y)`` with lower bounds m of the margins.

    The budget is 0 for the share `calm` of the training, then grows to that of the threat times
    `beyond`, until the share `ramp` is over; kappa falls with it from `natural` to `clean`.

    Parameters
    ----------
    method : {"ibp", "crown-ibp", "fast-lin"}
        The bounds. ``crown-ibp`` mixes those of lines and of intervals: lines weigh 1 before the
        budget has grown, and 0 afterwards, when intervals are tight on the network.
    natural, clean : float
        The weight kappa of the clean images at first and at last.
    beyond : float
        The budget of the training as a share of that of the threat.
    calm, ramp : float
        The shares of the training after which the budget begins to grow, and is whole.
    rise : {"smooth", "linear"}
        How it grows: as ``t^4`` for a quarter of the way and linearly from there, with one slope,
        or linearly.
    first : float
        The share of the budget from which a linear rise begins.
    """

    method: Literal["ibp", "crown-ibp", "fast-lin"] = one_of("ibp", "crown-ibp", "fast-lin")
    natural: float = number(1.0, most=1)
    clean: float = number(0.5, most=1)
    beyond: float = number(1.1, above=0)
    calm: float = number(0.05, below=1)
    ramp: float = number(0.5, most=1)
    rise: Literal["smooth", "linear"] = one_of("smooth", "linear")
    first: float = number(0.0, most=1)
    proves = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ramp <= self.calm:
            raise ValueError(
                f"the budget of '{self}' begins to grow at {self.calm:g} of the training and is "
                f"whole at {self.ramp:g}: without a time to grow a network answers one class only"
            )

    def share(self, progress: float) -> float:
        """The share of the budget, when a share of the training is over."""
        gone = min(max((progress - self.calm) / (self.ramp - self.calm), 0.0), 1.0)
        if self.rise == "linear":
            return self.first + (1 - self.first) * gone
        return smooth(gone)

    def __call__(self, step: Step) -> Tensor:
        share = self.share(step.progress)
        kappa = self.natural + (self.clean - self.natural) * share
        usual = functional.cross_entropy(step.clean, step.y)
        if kappa >= 1:
            return usual
        assert step.around is not None
        margins = self._margins(step.around(self.beyond * share), step.y, share)
        worst = functional.cross_entropy(worst_logits(margins, step.y), step.y)
        return kappa * usual + (1 - kappa) * worst

    def _margins(self, around: Around, labels: Tensor, share: float) -> Tensor:
        """Lower bounds of the margins, ``[rows, classes - 1]``."""
        graph, region = around.graph, around.region
        if self.method == "fast-lin":
            return _by_lines(graph, fast_lin(graph, region), labels)
        if self.method == "ibp" or share >= 1:
            return margins_by_intervals(graph, ibp(graph, region), labels)
        relaxed = crown_ibp(graph, region)
        flat = margins_by_intervals(graph, relaxed, labels)
        return share * flat + (1 - share) * _by_lines(graph, relaxed, labels)


def _by_lines(graph: Graph, relaxed: Relaxed, labels: Tensor) -> Tensor:
    return margins_by_lines(graph, relaxed, labels, relaxed.lines)


def smooth(gone: float, middle: float = 0.25) -> float:
    """A rise from 0 to 1: as ``t^4`` up to `middle`, then linear, with the same slope there.

    Examples
    --------
    >>> smooth(0.0), round(smooth(0.25), 4), smooth(1.0)
    (0.0, 0.0769, 1.0)
    """
    # a t^4, and from there a line of the slope 4 a m^3 that ends at 1.
    scale = 1 / (middle**4 + 4 * middle**3 * (1 - middle))
    if gone <= middle:
        return scale * gone**4
    return scale * (middle**4 + 4 * middle**3 * (gone - middle))


def worst_logits(margins: Tensor, labels: Tensor) -> Tensor:
    """Logits ``[rows, classes]`` that no image within the budget exceeds in cross-entropy.

    Parameters
    ----------
    margins : Tensor
        Lower bounds of ``z_y - z_k`` for all other classes k in their order.
    labels : Tensor
        The classes y.
    """
    rows, others = margins.shape
    every = torch.arange(others + 1, device=labels.device).expand(rows, -1)
    own = every == labels[:, None]
    return margins.new_zeros(rows, others + 1).masked_scatter(~own, -margins)


def followed(victim: Classifier, threat: Threat, images: Tensor) -> Graph:
    """The graph of a network in training, whose weights are those of the network itself.

    Parameters
    ----------
    victim : Classifier
        The network.
    threat : Threat
        The budget and its norm.
    images : Tensor
        Some images.

    Raises
    ------
    BesiegeError
        If an operation has no bounds, or a weight is read in another form than it is trained in.
    """
    must_fit(threat)
    graph = trace(victim, images)
    read: set[int] = set()
    for node in graph.nodes:
        read |= {id(value) for value in vars(node.operation or node).values()}
    for place, parameter in victim.module.named_parameters():
        if id(parameter) not in read:
            kind = type(victim.module.get_submodule(place.rpartition(".")[0])).__name__
            raise InputError(
                f"'{victim.name}' cannot be trained by bounds: the parameter '{place}' of a {kind} "
                "is no weight or bias of a convolution or linear layer, so that bounds would be "
                "those of other weights. Choose a network without batch norm, such as digits_cnn, "
                "deepsec_cnn or oval_base"
            )
    return graph
