"""The true robust accuracy of an impostor: a long attack that knows the disguise.

What counts is the classifier as it is deployed: **one image at a time, gradients off, a new copy of
the model for every image**. A stochastic impostor is asked ten times, and most draws count. An
image stands if it is classified correctly and no candidate within the budget is misclassified.

Candidates come from the bare network and from smooth surrogates of the disguise: margin PGD
towards every wrong class with restarts, run to the end, so that most of them are misclassified by
far. Each is tried as it is, closer to the image, and on the grid of 256 pixel values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn

from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.models.classifier import Classifier
from besiege.testing.impostors.impostor import Impostor, data
from besiege.testing.impostors.parts import CLASSES, bare

DRAWS = 10
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
        if not correct[index]:
            continue
        tried = (
            tuned
            for one in candidates[:, index]
            for tuned in _tuned(one[None], image[None], budget)
        )
        standing += not any(_broken(impostor, one, int(label)) for one in tried)
    return sum(correct) / len(samples), standing / len(samples)


def _pairs(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(samples.images, samples.labels, strict=True)


def _broken(impostor: Impostor, image: Tensor, label: int) -> bool:
    """Whether a deployed copy misclassifies an image: in most draws, if it is stochastic."""
    draws = DRAWS if impostor.stochastic else 1
    wrong = sum(_answer(impostor.make(), image) != label for _ in range(draws))
    return 2 * wrong > draws


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


def _candidates(impostor: Impostor, samples: Samples, budget: float, steps: int) -> Tensor:
    """Candidates ``[tries, images, channels, height, width]``, the most promising first."""
    pools = [_of_bare(len(samples), budget, steps)]
    pools += [
        crafted(soft(bare()).eval(), samples, budget, steps) for soft in impostor.surrogates
    ]
    return torch.cat(list(reversed(pools)))


@cache
def _of_bare(count: int, budget: float, steps: int) -> Tensor:
    return crafted(bare(), data(count), budget, steps)


def crafted(net: nn.Module, samples: Samples, budget: float, steps: int = STEPS) -> Tensor:
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
