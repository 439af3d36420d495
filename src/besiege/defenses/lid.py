"""`LID`: adversarial images have another local dimension, layer by layer, than clean ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError
from besiege.core.fields import check_fields, number, whole_number
from besiege.core.victim import Victim
from besiege.defenses.detecting import Detector, Examined, Material, Numbers, detector
from besiege.models.classifier import Classifier

_CLOSEST = 1e-10
"""Smallest ratio of squared distances: the logarithm of the distance to a copy would be infinite,
and differences below it are rounding."""
_FLATTEST = 1e-6
"""Smallest mean logarithm: neighbours that are all equally far have an infinite dimension."""
_SMALL = 256
"""Largest size of a layer whose distances are computed from differences."""
_ROWS = 128
_FOLDS = 5
_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Values of C, the inverse weight of the penalty, that are cross-validated."""
# Modules without an effect of their own on the distances between images.
_SILENT = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Unflatten)
_CONTAINERS = (nn.Sequential, nn.ModuleList)


@detector("lid")
@dataclass(frozen=True)
class LID(Detector):
    """Local intrinsic dimensionality of an image's activations, weighed by a logistic regression.

    At every layer, input and softmax included, the distances ``r_1 <= ... <= r_k`` to the nearest
    of a fixed set of clean reference images give ``LID = -k / sum_i ln(r_i / r_k)``. Layers are
    those of the network, with a block (such as a residual one) as one layer. The score is the
    logit of a logistic regression on the estimates, scaled by their range; its positives are FGSM
    images, its negatives clean and noisy ones. It is differentiable.

    Parameters
    ----------
    k : int
        Number of neighbours.
    batch : int
        Number of reference images. The estimates depend on it.
    eps : float, optional
        Size of the FGSM that it is fitted on, as a share of the box; by default 0.3 for grey images
        and 0.1 for colour, as in DEEPSEC.

    References
    ----------
    Ma et al., Characterizing adversarial subspaces using local intrinsic dimensionality, 2018.
    """

    k: int = whole_number(20, 2)
    batch: int = whole_number(100, 3)
    eps: float | None = number(None, above=0, most=1)

    # The modules of an accelerated copy are fused: their outputs are not those of the layers.
    follows_twin = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.k >= self.batch:
            raise InputError(
                f"k is {self.k} and there are {self.batch} reference images: give more than k, "
                "since an image that is one of them is not compared with itself"
            )

    @property
    def references(self) -> int:
        return self.batch

    def contrast(self, shape: Sequence[int]) -> float:
        if self.eps is not None:
            return self.eps
        return 0.3 if shape[0] == 1 else 0.1

    def must_fit(self, victim: Victim) -> None:
        source = victim.source
        if not isinstance(source, Classifier) or not layers_of(source.module):
            raise InputError(
                f"'{victim.name}' has no layers that can be read: lid needs a torch.nn.Module made "
                "of modules; squeezing needs none"
            )

    def fit(self, victim: Victim, material: Material) -> dict[str, Tensor]:
        """The ranges of the estimates and the weights of the regression."""
        numbers = Numbers({"reference": material.reference})
        numbers.to(victim.device)
        kinds = (material.adversarial, material.clean[material.kept], material.noisy)
        with victim.held(), torch.no_grad():
            found = [self._estimates(victim, images, numbers) for images in kinds]
        estimates = torch.cat(found).double()
        low, high = estimates.amin(0), estimates.amax(0)
        width = (high - low).clamp_min(1e-12)
        images = len(material.kept)
        wanted = torch.arange(3 * images, device=estimates.device) < images
        # An image, its noisy and its adversarial version are on the same side of every fold.
        folds = torch.arange(images, device=estimates.device).repeat(3) % _FOLDS
        weight, bias = regressed((estimates - low) / width, wanted, folds)
        made = {"weight": weight / width, "bias": bias - (weight * low / width).sum()}
        return {name: value.float().cpu() for name, value in made.items()}

    def _estimates(self, victim: Victim, images: Tensor, numbers: Numbers) -> Tensor:
        parts = [
            self._seen(victim, part, None, numbers)[1]
            for part in torch.split(images.to(victim.device), _ROWS)
        ]
        return torch.cat(parts)

    def examine(self, victim: Victim, x: Tensor, dice: Dice, numbers: Numbers) -> Examined:
        logits, estimates = self._seen(victim, x, dice, numbers)
        kept = dict(numbers.named_buffers())
        if estimates.shape[1] != len(kept["weight"]):
            raise VictimError(
                f"'{victim.name}' has {estimates.shape[1]} layers, but this lid was fitted on "
                f"{len(kept['weight'])}: fit it again"
            )
        # Not a matrix product, whose rounding depends on the number of rows.
        return Examined(logits, (estimates * kept["weight"]).sum(1) + kept["bias"])

    def _seen(
        self, victim: Victim, x: Tensor, dice: Dice | None, numbers: Numbers
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the estimate of every layer, ``[rows, layers]``."""
        held = dict(numbers.named_buffers())["reference"]
        if len(held) != self.batch:
            raise VictimError(
                f"this lid has {len(held)} reference images and was fitted with {self.batch}: its "
                "estimates depend on their number, so fit it again"
            )
        about = (x.device, x.dtype)
        known = numbers.known(about, lambda: _references(victim, held.to(x)))
        own = _own(x, known[0])
        found: list[Tensor] = []

        def take(out: Tensor) -> None:
            if len(found) == len(known):
                raise VictimError(f"'{victim.name}' calls other layers for other images")
            found.append(dimension(known[len(found)].squared(out.flatten(1)), self.k, own))

        take(x)
        with watched(victim, take):
            logits = victim(x, dice)
        take(logits.softmax(1))
        return logits, torch.stack(found, 1)


class Reference(NamedTuple):
    """The activations of the reference images at one layer, and their squared norms."""

    values: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Reference:
        """From activations ``[references, size]``."""
        return cls(values, values.square().sum(1))

    def squared(self, values: Tensor) -> Tensor:
        """Squared distances ``[rows, references]`` of other activations.

        Of large layers as one matrix product, which is many times faster than differences. Of small
        ones by differences: probabilities that are nearly one would cancel.
        """
        if values.shape[1] <= _SMALL:
            return (values[:, None] - self.values).square().sum(2)
        size: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True).square()
        return _products(values, self.values, -0.5 * self.sizes).mul(-2) + size


def _products(values: Tensor, references: Tensor, bias: Tensor) -> Tensor:
    """``values @ references.T + bias``.

    On a CPU, as a convolution with kernels as large as the image: oneDNN's convolutions are twice
    as fast there as the matrix products of MKL (AMD EPYC, torch 2.13), forward and backward. The
    order of the values does not matter, so that the channels-last images are views.
    """
    side = 8
    if values.device.type != "cpu" or values.dtype != torch.float32 or values.shape[1] % side**2:
        return functional.linear(values, references, bias)

    def images(rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), side, side, -1).movedim(-1, 1)

    return functional.conv2d(images(values), images(references), bias).flatten(1)


def dimension(squared: Tensor, k: int, own: Tensor | None = None) -> Tensor:
    """``-k / sum_i ln(r_i / r_k)`` from the squared distances to all references.

    Parameters
    ----------
    squared : Tensor
        Squared distances ``[rows, references]``.
    k : int
        Number of neighbours.
    own : Tensor, optional
        Boolean ``[rows, references]``: the reference that is the query itself, which is left out.
        Nothing is left out for any other query.

    Examples
    --------
    >>> import torch
    >>> dimension(torch.tensor([[1.0, 2.0, 4.0, 8.0]]).square(), 4)
    tensor([0.9618])
    """
    if own is not None:
        squared = squared.masked_fill(own, torch.inf)
    near = squared.topk(k, dim=1, largest=False, sorted=False).values
    farthest = near.amax(1, keepdim=True).clamp_min(torch.finfo(near.dtype).tiny / _CLOSEST)
    ratio = (near / farthest).clamp_min(_CLOSEST)
    return 2 / (-ratio.log()).mean(1).clamp_min(_FLATTEST)


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a network: its leaves, and every block of its own as one.

    Examples
    --------
    >>> from torch import nn
    >>> len(layers_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))))
    3
    """
    return list(_layers(module, True))


def _layers(module: nn.Module, outermost: bool = False) -> Iterator[nn.Module]:
    inside = list(module.children())
    if inside and (outermost or isinstance(module, _CONTAINERS)):
        for child in inside:
            yield from _layers(child)
    elif not isinstance(module, (*_SILENT, *_CONTAINERS)):
        yield module


@contextmanager
def watched(victim: Victim, take: Callable[[Tensor], None]) -> Iterator[None]:
    """Pass the output of every layer of a victim's network to `take`, in the order of calls."""
    source = victim.source
    assert isinstance(source, Classifier)

    def see(module: nn.Module, given: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim() > 1:
            # The next layer may overwrite it before the backward pass.
            take(out.clone() if out.requires_grad else out)

    hooks = [layer.register_forward_hook(see) for layer in dict.fromkeys(layers_of(source.module))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _references(victim: Victim, images: Tensor) -> list[Reference]:
    """The activations of the reference images at every layer, input and softmax included."""
    found = [Reference.of(images.flatten(1))]

    def keep(out: Tensor) -> None:
        found.append(Reference.of(out.flatten(1).clone()))  # the next layer may work in place

    # In evaluation mode, whoever asks: batch statistics would make them those of another network.
    with victim.held(), watched(victim, keep):
        logits = victim(images)
    return [*found, Reference.of(logits.softmax(1))]


def _own(x: Tensor, reference: Reference) -> Tensor:
    """Which reference is the query itself, ``[rows, references]``; one of equal ones."""
    with torch.no_grad():
        some = x.detach().flatten(1)
        nearest = reference.squared(some).argmin(1)
        same = (some == reference.values[nearest]).all(1)
        return functional.one_hot(nearest, len(reference.values)).bool() & same[:, None]


def regressed(features: Tensor, wanted: Tensor, folds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and bias of a logistic regression, its penalty chosen by cross-validation.

    Minimises ``C sum_i log(1 + exp(-y_i (w . x_i + b))) + |w|^2 / 2`` as scikit-learn does.

    Parameters
    ----------
    features : Tensor
        float64 ``[rows, size]``, scaled to about [0, 1].
    wanted : Tensor
        Boolean ``[rows]``: the positives.
    folds : Tensor
        The fold of every row.
    """
    losses = []
    for strength in _STRENGTHS:
        loss = 0.0
        for fold in range(_FOLDS):
            held = folds == fold
            weight, bias = logistic(features[~held], wanted[~held], strength)
            logits = features[held] @ weight + bias
            loss += float(
                functional.binary_cross_entropy_with_logits(
                    logits, wanted[held].to(logits), reduction="sum"
                )
            )
        losses.append(loss)
    best = _STRENGTHS[min(range(len(losses)), key=losses.__getitem__)]
    return logistic(features, wanted, best)


def logistic(features: Tensor, wanted: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Weights and bias of a logistic regression with penalty ``|w|^2 / (2 C)``, by Newton steps."""
    rows = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    penalty = torch.full_like(rows[0], 1 / strength)
    penalty[-1] = 0  # the bias is free
    target = wanted.to(rows)

    def objective(beta: Tensor) -> Tensor:
        logits = rows @ beta
        loss = functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        return loss + (penalty * beta.square()).sum() / 2

    beta = torch.zeros_like(rows[0])
    for _ in range(100):
        chance = (rows @ beta).sigmoid()
        slope = rows.T @ (chance - target) + penalty * beta
        if float(slope.abs().max()) < 1e-8 * len(rows):
            break
        curve = (rows * (chance * (1 - chance))[:, None]).T @ rows
        curve += torch.diag(penalty + 1e-10)
        step = torch.linalg.solve(curve, slope)
        # Halved until it falls: a full Newton step may overshoot where classes are separable.
        length, now = 1.0, objective(beta)
        while length > 1e-6 and not bool(objective(beta - length * step) < now):
            length /= 2
        beta = beta - length * step
    return beta[:-1], beta[-1]
