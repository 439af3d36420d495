"""`Bounding`: proofs that no image within a budget is misclassified, for networks that have bounds.

An attack shows how low robust accuracy is at most. A bound shows how low it is at least: where the
logit of the label stays above all others on the whole ball, no attack can succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.bounds.backward import lower, lower_by_intervals
from besiege.bounds.forward import in_pieces, intervals, linear_bounds
from besiege.bounds.graph import Graph
from besiege.bounds.operations import Rectifier
from besiege.bounds.region import Region
from besiege.bounds.relaxing import Bounds, Lines, lines
from besiege.bounds.tracing import trace
from besiege.core.door import out_of_memory
from besiege.core.errors import BoundError, InputError, ThreatError, near
from besiege.core.oracle import full_precision
from besiege.core.threat import L0, Norm, Threat
from besiege.core.victim import Victim

MARGIN = 1e-5
"""How far the margin's bound must be above zero, in units of the image's largest logit if that is
above 1: the bounds are computed in float32, like the answers."""
ON_CPU, ON_GPU = 1, 256
"""Images whose bounds are computed at once. One by one is faster on a CPU, whose caches are small,
and no result depends on other images."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """Bounds of all values of a network around some images, and the lines around its ReLUs.

    ``others`` are more lines for the same ReLUs: the best margin by any of them counts.
    """

    region: Region
    bounds: dict[int, Bounds]
    lines: dict[int, Lines]
    others: tuple[dict[int, Lines], ...] = ()


def ibp(graph: Graph, region: Region) -> Relaxed:
    """Interval bound propagation (Gowal et al. 2018): every value by itself."""
    return Relaxed(region, intervals(graph, region), {})


def crown_ibp(graph: Graph, region: Region) -> Relaxed:
    """CROWN-IBP (Zhang et al. 2020): intervals, and the margins from the image."""
    bounds = intervals(graph, region)
    return Relaxed(region, bounds, lines_of(graph, bounds))


def lines_of(
    graph: Graph, bounds: Mapping[int, Bounds], parallel: bool = False
) -> dict[int, Lines]:
    """The lines around all ReLUs of a network."""
    found = {}
    for number in graph.bent:
        node = graph.nodes[number]
        assert isinstance(node.operation, Rectifier)
        found[number] = lines(node.operation, bounds[node.parents[0]], parallel)
    return found


def fast_lin(graph: Graph, region: Region) -> Relaxed:
    """Fast-Lin (Weng et al. 2018), with the numbers of Wong and Kolter (2018): parallel lines."""
    return Relaxed(region, *linear_bounds(graph, region, parallel=True))


def crown(graph: Graph, region: Region) -> Relaxed:
    """CROWN (Zhang et al. 2018): the line below a ReLU has the slope of the smaller area.

    The margins are also bounded with parallel lines, which are better for some images and cost
    little in the last step.
    """
    bounds, chosen = linear_bounds(graph, region)
    return Relaxed(region, bounds, chosen, (lines_of(graph, bounds, parallel=True),))


BOUNDS: dict[str, Callable[[Graph, Region], Relaxed]] = {
    "ibp": ibp,
    "crown-ibp": crown_ibp,
    "fast-lin": fast_lin,
    "crown": crown,
}
"""The ways to bound a network, the cheapest first."""


@dataclass(frozen=True)
class Bounding:
    """A victim whose margins are bounded from below.

    Examples
    --------
    >>> from torch import nn
    >>> from besiege.models.classifier import Classifier
    >>> victim = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    >>> images = torch.full((2, 1, 2, 2), 0.5)
    >>> bounding = Bounding.of(victim, images)
    >>> labels = victim(images).argmax(1)
    >>> bounding.margins(images, labels, Threat.parse("linf:1/1000")).shape
    torch.Size([2])
    """

    victim: Victim
    graph: Graph

    @classmethod
    def of(cls, victim: Victim, images: Tensor) -> Bounding:
        """Follow a victim's operations; `BoundError` names the first without bounds."""
        return cls(victim, trace(victim, images))

    def margins(
        self,
        images: Tensor,
        labels: Tensor,
        threat: Threat,
        method: str = "crown",
        radius: Tensor | None = None,
    ) -> Tensor:
        """Lower bounds of the smallest margin ``z_y - z_k`` over all allowed images.

        Parameters
        ----------
        images, labels : Tensor
            ``[rows, channels, height, width]`` and ``[rows]``.
        threat : Threat
            linf, l2 or l1, with a budget; untargeted.
        method : str
            One of `BOUNDS`.
        radius : Tensor, optional
            The budget of each image, ``[rows]``; that of the threat by default.

        Returns
        -------
        Tensor
            ``[rows]``. Above `needed`, no image within the budget is misclassified. It is the
            better of the method's bound and the one by intervals.
        """
        must_fit(threat)
        if method not in BOUNDS:
            raise InputError(f"no bound is called '{method}': {near(method, BOUNDS)}")
        radii = images.new_full((len(images),), threat.radius) if radius is None else radius
        piece = ON_GPU if images.device.type == "cuda" else ON_CPU
        parts = []
        start = 0
        with full_precision(images.device), self.victim.held():
            while start < len(images):
                some = slice(start, start + piece)
                region = Region.of(images[some].clone(), radii[some], threat.norm, self.victim.box)
                try:
                    parts.append(self.least(region, labels[some], method).amin(1))
                except RuntimeError as problem:
                    # Functions were split already, down to one at once.
                    if not out_of_memory(problem) or piece == 1:
                        raise
                    piece //= 2
                    continue
                start += piece
        return torch.cat(parts) if parts else images.new_zeros(0)

    def least(self, region: Region, labels: Tensor, method: str = "crown") -> Tensor:
        """Lower bounds ``[rows, classes - 1]`` of the margins to all other classes."""
        relaxed = BOUNDS[method](self.graph, region)
        return margin_bounds(self.graph, relaxed, labels)

    def needed(self, images: Tensor) -> Tensor:
        """What a margin's bound must exceed to be a proof, ``[rows]``."""
        with torch.no_grad():
            return MARGIN * self.victim(images).abs().amax(1).clamp_min(1.0)


def margin_bounds(graph: Graph, relaxed: Relaxed, labels: Tensor) -> Tensor:
    """Lower bounds of all margins, ``[rows, classes - 1]``: the better of intervals and lines."""
    found = margins_by_intervals(graph, relaxed, labels)
    for chosen in (relaxed.lines, *relaxed.others):
        if len(chosen) == len(graph.bent):  # without lines there are intervals only
            found = torch.maximum(found, margins_by_lines(graph, relaxed, labels, chosen))
    return found


def margins_by_intervals(graph: Graph, relaxed: Relaxed, labels: Tensor) -> Tensor:
    """Lower bounds of all margins, ``[rows, classes - 1]``; the last layer is merged into them."""
    last, known = len(graph.nodes) - 1, relaxed.bounds
    functions, of = differences(labels, graph.classes, relaxed.region.centre)

    def bound(start: int, end: int) -> Tensor:
        return lower_by_intervals(graph, last, functions[start:end], of[start:end], known)

    return in_pieces(bound, len(of), graph, functions.device).view(len(labels), -1)


def margins_by_lines(
    graph: Graph, relaxed: Relaxed, labels: Tensor, chosen: Mapping[int, Lines]
) -> Tensor:
    """Lower bounds of all margins, ``[rows, classes - 1]``, followed back to the image."""
    last, known = len(graph.nodes) - 1, relaxed.bounds
    functions, of = differences(labels, graph.classes, relaxed.region.centre)

    def bound(start: int, end: int) -> Tensor:
        part = functions[start:end], of[start:end]
        return lower(graph, last, *part, relaxed.region, known, chosen)

    return in_pieces(bound, len(of), graph, functions.device).view(len(labels), -1)


def differences(labels: Tensor, classes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The margins ``z_y - z_k`` as functions of the logits, and the image of each.

    Returns
    -------
    tuple of Tensor
        ``[rows * (classes - 1), classes]``, the other classes in their order, and ``[...]``.
    """
    every = torch.arange(classes, device=labels.device)
    others = every.expand(len(labels), -1)[every != labels[:, None]].view(len(labels), -1)
    functions = like.new_zeros((*others.shape, classes))
    functions.scatter_(2, others[..., None], -1.0)
    functions.scatter_(2, labels[:, None, None].expand(*others.shape, 1), 1.0)
    of = torch.arange(len(labels), device=labels.device).repeat_interleave(classes - 1)
    return functions.flatten(0, 1), of


def must_fit(threat: Threat) -> None:
    """Refuse a threat that no bound is about."""
    if threat.norm is L0:
        raise ThreatError("no certificate is known here for l0: write linf, l2 or l1")
    if threat.eps is None:
        raise ThreatError(
            f"a certificate is for one budget: write it, such as {threat.norm}:8/255 "
            "(the method exact finds the smallest perturbation in linf)"
        )
    if threat.goal.targeted:
        raise ThreatError("a certificate is about every other class: leave the targets out")


__all__ = ["BOUNDS", "MARGIN", "BoundError", "Bounding", "Norm", "Relaxed", "must_fit"]
