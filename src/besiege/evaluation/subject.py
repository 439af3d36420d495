"""A victim under examination: its images, the space around them, and the precision of its answers.

Unlike `Oracle`, a subject sends batches exactly as they are given, without padding, and returns
answers that are not finite: both are what the examination looks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from besiege.core.answer import Aim
from besiege.core.ball import Ball, ball
from besiege.core.dice import Dice
from besiege.core.door import is_theirs, raised
from besiege.core.errors import VictimError
from besiege.core.oracle import CPU_ENTRIES, GPU_ENTRIES, GPU_ROWS, Oracle
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Access, Linf, Norm, Threat
from besiege.core.victim import Victim
from besiege.defenses.defended import Defended
from besiege.defenses.detected import Detected
from besiege.defenses.layers import Layer
from besiege.defenses.pooling import Pooled
from besiege.defenses.smoothing import Smoothed

MOST = 16
"""Images that are examined."""
METERED = 4
"""Images of a metered victim that are examined."""
_LEVELS = (1, 3, 7, 15, 16, 31, 63, 127, 255)
"""Steps of the grids that pixel values of data sets lie on."""
_USUAL = {Linf: 8 / 255, L2: 0.5, L1: 12.0, L0: 20.0}
"""Budgets at whose scale a victim is examined if the threat has none, for a box of width 1."""
HALF = 1e-4
"""Above this machine epsilon a type is float16 or bfloat16."""


@dataclass(frozen=True)
class Subject:
    """Images of a victim, and what it takes to examine it around them.

    Attributes
    ----------
    victim : Victim
        The model.
    images, labels : Tensor
        The images, ``[rows, ...]``, and their labels.
    dice : Dice or None
        The randomness of each image if the victim is stochastic: the same in every batch.
    ball : Ball
        The threat's ball around the images.
    near : Ball
        A ball of similar size in linf or l2, in which moves in all pixel values make sense.
    amplitude : float
        The change of every pixel value of a perturbation as large as the budget.
    access : Access
        What the threat and the victim grant.
    """

    victim: Victim
    images: Tensor
    labels: Tensor
    dice: Dice | None
    ball: Ball
    near: Ball
    amplitude: float
    access: Access

    @classmethod
    def of(
        cls, victim: Victim, samples: Samples, threat: Threat, seed: int = 0, most: int = MOST
    ) -> Subject:
        """The first few samples on the victim's device."""
        few = samples.at(_spread(samples.labels, METERED if victim.metered else most))
        few = few.to(victim.device)
        dice = Dice.throw(seed, few.ids).of("examination") if victim.stochastic else None
        return cls._around(victim, few.images, few.labels, dice, threat)

    @classmethod
    def _around(
        cls, victim: Victim, images: Tensor, labels: Tensor, dice: Dice | None, threat: Threat
    ) -> Subject:
        width, size = victim.box[1] - victim.box[0], images[0].numel()
        radius = threat.radius
        if math.isinf(radius):
            radius = _USUAL[threat.norm] * (1.0 if threat.norm is L0 else width)
            radius = min(radius, max(1.0, size / 8)) if threat.norm is L0 else radius
        own = ball(threat.norm, images, radius, victim.box, victim.grid)
        norm, length = _dense(threat.norm, radius, width, size)
        near = ball(norm, images, length, victim.box, victim.grid)
        amplitude = length if norm is Linf else length / math.sqrt(size)
        access = min(threat.access, victim.access)
        return cls(victim, images, labels, dice, own, near, amplitude, access)

    def __len__(self) -> int:
        return len(self.images)

    def with_victim(self, victim: Victim) -> Subject:
        """The same images for another copy of the victim."""
        return replace(self, victim=victim)

    def past_surrogates(self, threat: Threat) -> tuple[Subject, int]:
        """What comes after the last layer with a surrogate, and how many layers that leaves out."""
        victim, images, dice, skipped = self.victim, self.images, self.dice, 0
        if isinstance(victim, Detected) and (beside := _declared(victim.detector.layers)):
            # The layers of a detector are beside the model, not before it: the model is examined.
            victim, skipped = victim.victim, beside
        while isinstance(victim, Defended):
            own = dice or Dice(torch.zeros(len(images), dtype=torch.int64, device=images.device))
            seen, last = images, -1 if _surrogates(victim.victim) == 0 else len(victim.layers) - 1
            outputs = []
            for place, layer in enumerate(victim.layers):
                stand_in = layer.surrogate(seen, victim.box, own.of("layer", place))
                last = max(last, place if stand_in is not None else -1)
                seen = layer(seen, victim.box, own.of("layer", place))
                outputs.append(seen)
            if last < 0:
                break
            images, skipped = outputs[last], skipped + last + 1
            rest = victim.layers[last + 1 :]
            inner = victim.victim
            victim = Defended(inner, *rest) if rest else inner
            dice = dice if victim.stochastic else None
        if not skipped:
            return self, 0
        images = images.clamp(*victim.box)
        return self._around(victim, images, self.labels, dice, threat), skipped

    @property
    def hides_surrogates(self) -> bool:
        """Whether layers with surrogates are left inside, such as in members of an ensemble."""
        return _surrogates(self.victim) > 0

    @property
    def follows(self) -> bool:
        """Whether attacks may follow gradients."""
        return self.access >= Access.GRADIENT

    @property
    def batch(self) -> int:
        """How many images the attacks send at once, as `Oracle` does."""
        entries = max(1, self.images[0].numel())
        if self.images.device.type == "cpu":
            return min(256, max(16, CPU_ENTRIES // entries))
        return min(GPU_ROWS, max(64, GPU_ENTRIES // entries))

    def rows(self, dice_of: Tensor) -> Dice | None:
        """The dice of the images that some rows were made from."""
        return None if self.dice is None else self.dice.at(dice_of)

    def ask(self, x: Tensor, of: Tensor, gradients: bool = False) -> Tensor:
        """Logits of one batch, sent as it is.

        Parameters
        ----------
        x : Tensor
            Images ``[n, ...]``.
        of : Tensor
            int64 ``[n]``: which image each was made from.
        gradients : bool
            Whether the images require gradients, as in a backward pass.
        """
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            given = x.detach().clone().requires_grad_(gradients)
            try:
                # A copy, since a leaf that requires gradients cannot be changed in place.
                answer = self.victim(given.clone() if gradients else given, self.rows(of))
            except BaseException as problem:
                if not is_theirs(problem):
                    raise
                raise raised(problem, tuple(x.shape)) from problem
        if answer.dim() != 2 or len(answer) != len(x):
            raise VictimError(f"the model answered {tuple(answer.shape)} to {len(x)} images")
        return answer.detach().float()

    def ask_all(self, x: Tensor, of: Tensor) -> Tensor:
        """Logits of many images, in batches of a moderate size."""
        starts = range(0, len(x), self.batch)
        parts = [slice(start, start + self.batch) for start in starts]
        return torch.cat([self.ask(x[rows], of[rows]) for rows in parts])

    def gradient(self, x: Tensor, of: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of margins as attacks get them, and the margins."""
        aim = Aim(rivals[of, 0], rivals[of, 1])
        gradient, value, _ = Oracle(self.victim).gradient(x, _margin, aim, self.rows(of))
        return gradient, value

    def rivals(self, clean: Tensor) -> Tensor:
        """The label and its runner-up on the clean images, ``[rows, 2]``."""
        scores = self.classes(clean)
        rows = torch.arange(len(scores), device=scores.device)
        label = self.labels.clamp(max=scores.shape[1] - 1)
        label = torch.where(torch.isfinite(scores[rows, label]), label, scores.argmax(1))
        others = scores.nan_to_num(-torch.inf, -torch.inf, -torch.inf).clone()
        others[rows, label] = -torch.inf
        return torch.stack([label, others.argmax(1)], 1)

    def classes(self, logits: Tensor) -> Tensor:
        """The logits of the classes, without the column of rejection."""
        return logits[:, :-1] if self.victim.rejects else logits

    def accepting(self) -> Subject:
        """The same without the column of rejection: the classes of a victim that rejects images."""
        return self.with_victim(_Seen(self.victim, self.classes)) if self.victim.rejects else self

    def rejecting(self) -> Subject:
        """Two classes in their place: accepted, and rejected as the label of every image.

        The margin is then how far the column of rejection lies above the others.
        """

        def two(logits: Tensor) -> Tensor:
            return torch.stack([logits[:, :-1].amax(1), logits[:, -1]], 1)

        return replace(self, victim=_Seen(self.victim, two), labels=torch.ones_like(self.labels))

    def step(self) -> float:
        """The step of the grid that the images lie on, such as 1/255 of the box."""
        low, width = self.victim.box[0], self.near.width
        shares = (self.images.double() - low) / width
        for levels in _LEVELS:
            if bool(((shares * levels - (shares * levels).round()).abs() < 1e-4 * levels).all()):
                return width / levels
        return width / 255

    def on_grid(self, x: Tensor) -> Tensor:
        """Images on the grid of the clean ones, rounded such that they stay in the ball."""
        if self.victim.grid is not None:
            return self.ball.received(x)
        step = self.step()
        center = self.gridded(self.images, step)
        return type(self.ball)(center, self.ball.radius, self.victim.box, step).received(x)

    def gridded(self, x: Tensor, step: float) -> Tensor:
        """The nearest images on a grid, inside the box."""
        low = self.victim.box[0]
        levels = round(self.near.width / step)
        steps = ((x.double() - low) / step).round().clamp(0, levels)
        return (steps / levels * self.near.width + low).to(x.dtype)


class _Seen(Victim):
    """A victim that rejects images, with other columns: none of them means a rejection."""

    def __init__(self, victim: Victim, change: Callable[[Tensor], Tensor]) -> None:
        self.adopt(victim)
        self.inner, self.change = victim, change
        self.rejects, self.classes = False, None

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return self.change(self.inner(x, dice))


def _margin(logits: Tensor, aim: Aim) -> Tensor:
    assert aim.targets is not None
    return margin(logits, torch.stack([aim.labels, aim.targets], 1))


def margin(logits: Tensor, rivals: Tensor) -> Tensor:
    """The logit of the label minus that of its runner-up on the clean image."""
    pair = logits.gather(1, rivals)
    return pair[:, 0] - pair[:, 1]


def precision(victim: Victim, answers: Tensor) -> float:
    """The machine epsilon of the victim: of its coarsest weights, or of its answers if coarser."""
    found = [torch.finfo(kind).eps for kind in _types(victim)]
    values = answers[torch.isfinite(answers) & (answers != 0)]
    for kind in (torch.float16, torch.bfloat16):
        # Rounded scores also fit into few bits; those of a half-precision network use all of them.
        bits = torch.finfo(kind).eps
        if len(values) < 16 or bool((values != values.to(kind).float()).any()):
            continue
        whole = values / torch.exp2(values.abs().log2().floor()) / bits
        if float((whole.round() % 2 != 0).float().mean()) > 0.25:
            found.append(bits)
    return max([torch.finfo(torch.float32).eps, *found])


def _types(part: Victim | nn.Module) -> Iterator[torch.dtype]:
    if isinstance(part, Victim):
        for inner in part.parts:
            yield from _types(inner)
        return
    for tensor in chain(part.parameters(), part.buffers()):
        if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            yield tensor.dtype


def _surrogates(victim: Victim | nn.Module) -> int:
    """How many layers with surrogates of their own are inside, and votes."""
    if not isinstance(victim, Victim):
        return 0
    own = 0
    if isinstance(victim, Defended):
        own = _declared(victim.layers)
    elif isinstance(victim, Detected):
        own = _declared(victim.detector.layers)
    elif isinstance(victim, Pooled):
        own = int(victim.of == "votes")  # its gradient is that of the mean probability
    elif isinstance(victim, Smoothed):
        own = 1  # it votes, too
    return own + sum(_surrogates(part) for part in victim.parts)


def _declared(layers: Iterable[Layer]) -> int:
    """How many layers have surrogates."""
    return sum(layer.has_surrogate for layer in layers)


def _dense(norm: Norm, radius: float, width: float, size: int) -> tuple[Norm, float]:
    """A norm and radius in which all pixel values move, of similar Euclidean size."""
    if norm is Linf:
        return Linf, min(radius, 0.5 * width)
    length = radius
    if norm is L1:  # as many pixel values as it can move across the box
        length = math.sqrt(radius * width)
    elif norm is L0:
        length = width * math.sqrt(radius)
    return L2, min(length, 0.1 * width * math.sqrt(size))


def _spread(labels: Tensor, most: int) -> Tensor:
    """The first rows, taken from different classes as far as there are several."""
    seen: dict[int, int] = {}
    rank = []
    for label in labels[: 8 * most].tolist():
        rank.append(seen.get(label, 0))
        seen[label] = seen.get(label, 0) + 1
    order = torch.tensor(rank).argsort(stable=True)[:most]
    return order.sort().values.to(labels.device)


Fresh = Callable[[], Victim]
"""An untouched copy of the model, each time it is called."""
