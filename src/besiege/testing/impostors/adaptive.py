"""The true robust accuracy of an impostor: a long attack that knows the disguise.

What counts is the classifier as it is deployed: **one image at a time, gradients off, a new copy of
the model for every image**. A stochastic impostor is asked ten times, and most draws count. An
image stands if it is classified correctly and no candidate within the budget is misclassified.

Candidates come from the bare network and from smooth surrogates of the disguise: margin PGD
towards every wrong class with restarts, run to the end, so that most of them are misclassified by
far. Each is tried as it is, closer to the image, and on the grid of 256 pixel values. Of stochastic
impostors, only the most promising candidates are tried, and a success must be confirmed by new
draws: otherwise the luckiest of many candidates would count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn

from besiege.core.threat import Threat
from besiege.data import Data
from besiege.models.classifier import Classifier
from besiege.testing.impostors.impostor import Impostor, Wrap, data
from besiege.testing.impostors.parts import CLASSES, bare

DRAWS = 10
MOST = 6
"""Candidates of each pool that a stochastic impostor is asked."""
STEPS = 200
RESTARTS = 3
SHARES = (1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.93, 0.9)
"""Parts of a candidate's perturbation that are tried."""
GRID = 256


def measure(impostor: Impostor, count: int = 60, steps: int = STEPS) -> tuple[float, float]:
    """Clean and robust accuracy of an impostor on the first `count` test images.

    Parameters
    ----------
    impostor : Impostor
        New copies of it are asked.
    count, steps : int
        Images, and steps of the attack: fewer find fewer adversarial images.
    """
    samples = data(count)
    budget = float(Threat.parse(impostor.threat).eps or 0)
    correct = [not _broken(impostor, row[None], int(y)) for row, y in _pairs(samples)]
    candidates = _candidates(impostor, samples, budget, steps)
    standing = 0
    for index, (image, label) in enumerate(_pairs(samples)):
        tried = _tried(impostor, candidates[:, index], image[None], budget)
        standing += correct[index] and not any(_broken(impostor, x, int(label)) for x in tried)
    return sum(correct) / len(samples), standing / len(samples)


def _pairs(samples: Data) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(samples.images, samples.labels, strict=True)


def _tried(
    impostor: Impostor, candidates: Tensor, image: Tensor, budget: float
) -> Iterator[Tensor]:
    """The images that an impostor is asked in place of one image."""
    for candidate in candidates:
        if impostor.stochastic:
            yield candidate[None]
        else:
            yield from _tuned(candidate[None], image, budget)


def _broken(impostor: Impostor, image: Tensor, label: int) -> bool:
    """Whether deployed copies misclassify an image: in most draws, if it is stochastic."""
    if not impostor.stochastic:
        return _answer(impostor.make(), image) != label
    return all(_mostly_wrong(impostor, image, label) for _ in range(2))


def _mostly_wrong(impostor: Impostor, image: Tensor, label: int) -> bool:
    wrong = sum(_answer(impostor.make(), image) != label for _ in range(DRAWS))
    return 2 * wrong > DRAWS


def _answer(victim: Classifier, image: Tensor) -> int:
    """The class of one image; NaN counts as the largest logit, as in torch."""
    with torch.no_grad():
        return int(victim.module(image).argmax(1))


def _tuned(candidate: Tensor, image: Tensor, budget: float) -> Iterator[Tensor]:
    """A candidate as it is, closer to its image, and on the grid of pixel values."""
    gap = candidate - image
    for share in SHARES:
        yield _inside(image + share * gap, image, budget)
    # Clean pixels are on the grid, so rounding towards them stays within budget and box.
    yield image + (gap * GRID).trunc() / GRID


def _inside(x: Tensor, image: Tensor, budget: float) -> Tensor:
    """The nearest image within the budget and the box."""
    return torch.minimum(torch.maximum(x, image - budget), image + budget).clamp(0, 1)


def _candidates(impostor: Impostor, samples: Data, budget: float, steps: int) -> Tensor:
    """Candidates ``[tries, images, channels, height, width]``, the most promising first."""
    makers = [*impostor.surrogates, _unchanged]
    pools = [_crafted_on(maker, len(samples), budget, steps) for maker in makers]
    return torch.cat([pool[:MOST] if impostor.stochastic else pool for pool in pools])


def _unchanged(net: nn.Module) -> nn.Module:
    return net


@cache
def _crafted_on(wrap: Wrap, count: int, budget: float, steps: int) -> Tensor:
    """Candidates of a surrogate, which several impostors may share."""
    return crafted(wrap(bare()).eval(), data(count), budget, steps)


def crafted(net: nn.Module, samples: Data, budget: float, steps: int = STEPS) -> Tensor:
    """Margin PGD towards every wrong class, with restarts: the best image of every try.

    Returns
    -------
    Tensor
        ``[tries, images, ...]``; tries with the largest margins first, for each image.
    """
    rows, tries = len(samples), (CLASSES - 1) * RESTARTS
    clean = samples.images.repeat(tries, 1, 1, 1)
    shifts = torch.arange(1, CLASSES).repeat_interleave(rows).repeat(RESTARTS)
    targets = (samples.labels.repeat(tries) + shifts) % CLASSES
    generator = torch.Generator().manual_seed(0)
    start = budget * (2 * torch.rand(clean.shape, generator=generator) - 1)
    x, best, found = _inside(clean + start, clean, budget), clean, torch.full(targets.shape, -1e9)
    for step in range(steps):
        x = x.detach().requires_grad_()
        margin = _margin(net(x), targets)
        (slope,) = torch.autograd.grad(margin.sum(), x)
        better = margin.detach() > found
        found = torch.where(better, margin.detach(), found)
        best = torch.where(better[:, None, None, None], x.detach(), best)
        length = 0.5 * budget * 0.02 ** (step / max(steps - 1, 1))
        x = _inside(x.detach() + length * slope.sign(), clean, budget)
    order = found.reshape(tries, rows).argsort(0, descending=True)
    return best.reshape(tries, rows, *best.shape[1:])[order, torch.arange(rows)]


def _margin(logits: Tensor, targets: Tensor) -> Tensor:
    """The target's logit minus the largest other one."""
    own = logits.gather(1, targets[:, None])
    return (own - logits.scatter(1, targets[:, None], -torch.inf).amax(1, keepdim=True))[:, 0]
