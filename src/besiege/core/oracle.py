"""What answers an attack: the victim behind an access, batched and padded, and the meter."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from besiege.core.answer import Aim
from besiege.core.cuda_graphs import Function, rounded
from besiege.core.dice import Dice
from besiege.core.door import (
    is_theirs,
    must_be_real,
    not_numbers,
    out_of_memory,
    raised,
    raised_backwards,
    tops,
)
from besiege.core.door import rounded as to_float32
from besiege.core.errors import AccessError, VictimError
from besiege.core.threat import Access
from besiege.core.victim import Victim

__all__ = ["Access", "Meter", "Oracle"]

PAD = 8
"""Batches are padded to a multiple of this many rows, so that a row's arithmetic does not depend
on how many neighbours it has: CPU kernels choose other loops for small remainders."""

GPU_ROWS, GPU_ENTRIES = 512, 512 * 3 * 32 * 32
"""What is sent to a GPU at a time: enough images to fill it. A ResNet-20 on an H200 takes 27 us an
image for 64 at a time, 5.9 for 256, 4.8 for 512 and 4.0 for 8192."""
CPU_ENTRIES = 64 * 3 * 32 * 32
"""What a CPU is fastest with at a time: 64 images of CIFAR-10, and 256 small ones; larger batches
leave its caches, smaller ones do not pay for their calls."""

CPU_CALL, GPU_CALL = 12, 320
"""What a call costs besides its images, counted in images: little on a CPU, and on a GPU, where
starting everything takes longer than computing it, much."""
GPU_SORT = 1000
"""What sorting candidates that were computed ahead costs on a GPU, which must be waited for; like
the call's, estimated from a profile of ResNet-20 on an H200."""
CPU_AHEAD = 128
"""Images computed ahead of a decision on a CPU, at most: more do not get cheaper."""
_AHEAD = (1, 2, 3, *(n << k for k in range(11) for n in (4, 5, 6, 7)))
AHEAD_PAYS = 1.1
"""How many times less it must cost to compute candidates ahead, for what it takes to sort them."""


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No inference mode, gradients, autocast or TF32 of the caller's: answers in float32."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        _short_floats(False),
    ):
        yield


def allow_tf32() -> AbstractContextManager[None]:
    """Convolutions of float32 in TF32 on a GPU, for a search whose successes are confirmed."""
    return _short_floats(True)


@contextmanager
def _short_floats(allowed: bool) -> Iterator[None]:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    try:
        products.allow_tf32, convolutions.allow_tf32 = False, allowed
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


class Meter:
    """What every sample has cost so far.

    ``forwards`` and ``backwards`` count images computed on the sample's behalf, ``queries`` the
    answers the attack's decisions used, ``asked`` requests; the budget limits queries. Padding is
    nobody's.
    """

    def __init__(self, samples: int, device: torch.device, budget: int | None = None) -> None:
        # Side by side, so that one addition does for all.
        self.tab = torch.zeros(samples, 4, dtype=torch.int64, device=device)
        self.forwards, self.backwards, self.queries, self.asked = self.tab.unbind(1)
        self.budget = budget
        self.padding = 0
        self._prices: dict[tuple[int, int], Tensor] = {}

    def price(self, forwards: int, backwards: int) -> Tensor:
        """What one request adds to the tab of a sample: ``[1, 4]``."""
        key = forwards, backwards
        if key not in self._prices:
            price = [forwards, backwards, forwards, 1]
            self._prices[key] = torch.tensor([price], device=self.tab.device)
        return self._prices[key]

    def left(self, samples: Tensor) -> Tensor:
        """Queries each of the samples may still ask."""
        if self.budget is None:
            return torch.full_like(samples, torch.iinfo(torch.int64).max)
        return self.budget - self.queries[samples]


class Oracle:
    """A victim that answers up to an access level, in batches of a size that fits.

    Parameters
    ----------
    victim : Victim
        What answers.
    access : Access
        The most that may be asked.
    batch : int, optional
        Rows per call; by default what the victim says it takes, or a size that is fast on its
        device.
    pad : bool
        Whether to pad batches; never done for a metered victim, who would charge for it. Without
        padding the last digits of a row's logits may depend on its neighbours.
    """

    def __init__(
        self,
        victim: Victim,
        access: Access = Access.GRADIENT,
        batch: int | None = None,
        pad: bool = True,
    ) -> None:
        self.victim = victim
        self.classes = victim.classes
        self.access = min(access, victim.access)
        self.pad = PAD if pad and not victim.metered else 1
        self.together = victim.together
        """How many images a victim takes at a time that says so: several requests at once."""
        batch = batch or self.together or None
        self.batch = None if batch is None else self._whole(batch)
        self.padded = 0
        self.batch_sensitive = victim.device.type != "cpu" and not (
            victim.metered or victim.stochastic
        )
        """Whether the last digits of an answer depend on how many images are asked about with it,
        and it may be asked again: a GPU chooses its kernels by the size of the batch."""
        # The parts of a victim whose losses are fused, each asked for its own.
        self._apart = [(w, Oracle(one, access, batch, pad)) for w, one in victim.apart or ()]
        self._captures = victim.captures
        self.deferred = self._captures is not None
        """Whether answers are looked at one request late, so that a GPU never waits; then whoever
        looks also checks that they are numbers."""

    def _whole(self, rows: int) -> int:
        return max(self.pad, rows // self.pad * self.pad)

    def _size(self, x: Tensor) -> int:
        """Rows per call: what was asked for, or what suits the device and the images."""
        if self.batch is None:
            entries = max(1, x[0].numel())
            if x.device.type == "cpu":
                rows = min(256, max(16, CPU_ENTRIES // entries))
            else:
                rows = min(GPU_ROWS, max(64, GPU_ENTRIES // entries))
            self.batch = self._whole(rows)
        return self.batch

    def ahead(self, x: Tensor, draws: int, chance: float) -> int:
        """How many candidates of every row are best computed in one call, to be used in order.

        Each is the last one used with the chance given. Of the numbers that fit into a call, the
        one whose used candidates cost least: a share of the call and its images, with padding.
        """
        rows, call, sort, most = len(x) * draws, GPU_CALL, GPU_SORT, self._size(x)
        if x.device.type == "cpu":
            call, sort, most = CPU_CALL, 0, min(most, CPU_AHEAD)

        def cost(k: int) -> float:
            used = k if chance < 1e-9 else (1.0 - (1.0 - chance) ** k) / chance
            images = -(-rows * k // self.pad) * self.pad
            return (call + (sort if k > 1 else 0) + images) / used

        best = min((k for k in _AHEAD if k == 1 or k * rows <= most), key=cost)
        return best if cost(best) * AHEAD_PAYS < cost(1) else 1

    def allow(self, access: Access, fitting: Callable[[Access], list[str]]) -> None:
        """Refuse what lies above the access granted, naming the attacks that would fit."""
        if access > self.access:
            fit = ", ".join(fitting(self.access)) or "none is registered"
            raise AccessError(
                f"{access} access was asked for, but this threat grants {self.access} access only; "
                f"attacks that fit: {fit}"
            )

    def logits(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of a flat batch ``[n, ...]``."""
        if not len(x):
            return self._nothing(x)

        def one(rows: slice) -> tuple[Tensor, ...]:
            with torch.inference_mode(False), torch.no_grad():
                return self._graphed("logits", self._bare, x[rows]) or (
                    self._ask(x[rows], dice, rows),
                )

        return self._batched(x, one)[0]

    def gradient(
        self,
        x: Tensor,
        loss: Callable[[Tensor, Any], Tensor],
        aim: Aim | None = None,
        dice: Dice | None = None,
        through: Callable[[Tensor, slice], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Input gradients of a per-row loss of a flat batch, with the losses and the logits.

        The loss is given the logits of some rows and their aims.
        """
        if not len(x):
            return torch.zeros_like(x), x.new_zeros(0), self._nothing(x)
        if self._apart:
            return self._gradient_apart(self._apart, x, loss, aim, dice, through)

        def one(rows: slice) -> tuple[Tensor, ...]:
            some = aim if aim is None or len(aim.labels) == rows.stop - rows.start else aim.at(rows)
            if through is None and some is not None and _is_fixed(loss):
                slope = partial(self._slope, loss)
                captured = self._graphed(("gradient", loss), slope, x[rows], some)
                if captured is not None:
                    return captured

            def ask(image: Tensor) -> Tensor:
                return self._ask(image if through is None else through(image, rows), dice, rows)

            return _slope(x[rows], ask, lambda logits: loss(logits, some))

        gradient, value, logits = self._batched(x, one)
        return gradient, value, logits

    def _gradient_apart(
        self,
        parts: list[tuple[float, Oracle]],
        x: Tensor,
        loss: Callable[[Tensor, Any], Tensor],
        aim: Aim | None,
        dice: Dice | None,
        through: Callable[[Tensor, slice], Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted sum of the parts' losses and of their gradients, and the fused logits."""
        gradient, value, answers = torch.zeros_like(x), x.new_zeros(len(x)), []
        for place, (weight, part) in enumerate(parts):
            padded = part.padded
            own = None if dice is None else dice.of("member", place)
            slope, height, logits = part.gradient(x, loss, aim, own, through)
            gradient.add_(slope, alpha=weight)
            value.add_(height, alpha=weight)
            answers.append(logits)
            self.padded += part.padded - padded
        return gradient, value, self._checked(self.victim.fused(answers), len(x))

    def _graphed(
        self, what: Hashable, function: Function, x: Tensor, aim: Aim | None = None
    ) -> tuple[Tensor, ...] | None:
        """What a graph of the victim answers, where there is one."""
        if self._captures is None:
            return None
        parts = () if aim is None else (aim.labels, aim.targets, aim.clean)
        known = tuple(part is not None for part in parts)
        given = (x, *(part for part in parts if part is not None))

        def whole(x: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
            rest = iter(held)
            return function(x, *(next(rest) if there else None for there in known))

        answer = self._captures((what, known), whole, given)
        if answer is not None:
            self.padded += rounded(len(x)) - len(x)
        return answer

    def _bare(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.victim(x.clone()),)

    def _slope(
        self,
        loss: Callable[[Tensor, Any], Tensor],
        x: Tensor,
        labels: Tensor,
        targets: Tensor | None,
        clean: Tensor | None,
    ) -> tuple[Tensor, ...]:
        aim = Aim(labels, targets, clean)
        return _slope(x, lambda image: self.victim(image.clone()), lambda z: loss(z, aim))

    def gradients(
        self, x: Tensor, classes: Tensor, dice: Dice | None = None
    ) -> tuple[Tensor, Tensor]:
        """Input gradients of chosen logits, ``[n, c, ...]``, and the logits: one forward."""
        if not len(x):
            return x.new_zeros(0, classes.shape[1], *x.shape[1:]), self._nothing(x)
        if self._captures is not None:
            return self._gradients_apart(x, classes)

        def one(rows: slice) -> tuple[Tensor, Tensor]:
            with torch.inference_mode(False), torch.enable_grad():
                image = x[rows].detach().requires_grad_(True)
                logits = self._ask(image, dice, rows)
                _must_depend(logits)
                wanted = logits.gather(1, classes[rows])
                each = image.new_empty(len(image), wanted.shape[1], *image.shape[1:])
                for c in range(wanted.shape[1]):
                    total = wanted[:, c].sum()
                    each[:, c] = _backward(total, image, retain=True)
            return each, logits.detach()

        gradients, logits = self._batched(x, one)
        return gradients, logits

    def _gradients_apart(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """The same by one graph after the other: compiled passes have one backward each."""
        answers = [self.gradient(x, _chosen, Aim(one)) for one in classes.unbind(1)]
        self.padded += len(x) * (len(answers) - 1)  # forwards that nobody asked for
        return torch.stack([gradient for gradient, _, _ in answers], 1), answers[0][2]

    def _nothing(self, x: Tensor) -> Tensor:
        """The logits of no images: nobody is asked."""
        return x.new_zeros(0, self.classes or 1)

    def _ask(self, x: Tensor, dice: Dice | None, rows: slice) -> Tensor:
        count = len(x)
        # As many rows as a graph would have: what is computed must not depend on whether one is
        # there yet.
        short = -count % self.pad if self._captures is None else rounded(count) - count
        # Always a copy: a victim may write over what it is given.
        x = torch.cat([x, x[-1:].expand(short, *x.shape[1:])]) if short else x.clone()
        self.padded += short
        if dice is not None:
            key = dice.key[rows]
            dice = Dice(torch.cat([key, key[-1:].expand(short)]) if short else key)
        many = len(x)
        try:
            logits = self.victim(x, dice)
        except BaseException as problem:
            if not is_theirs(problem):
                raise
            raise raised(problem, tuple(x.shape)) from problem
        logits = self._checked(logits, many)
        return logits[:count] if short else logits

    def _checked(self, logits: Tensor, rows: int) -> Tensor:
        """The logits of so many rows, or an error that says why they are none."""
        if logits.dim() != 2 or logits.shape[0] != rows:
            raise VictimError(
                f"the model answered {rows} images with a tensor of shape {tuple(logits.shape)}, "
                f"but logits have one row per image and one column per class: [{rows}, classes]"
            )
        if self.classes is None:
            self.classes = logits.shape[1]
        if logits.shape[1] != self.classes or self.classes < 2:
            raise VictimError(
                f"the model answered {logits.shape[1]} classes, but "
                f"{max(self.classes, 2)} are expected; declare Classifier(..., classes="
                f"{logits.shape[1]}) or check the model's last layer (two classes at least)"
            )
        must_be_real(logits)
        if not self.deferred and not math.isfinite(tops(logits)):
            raise not_numbers()
        return to_float32(logits) if logits.dtype == torch.float64 else logits

    def _batched(self, x: Tensor, one: Callable[[slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run slice after slice, halving the batch whenever memory runs out."""
        parts: list[tuple[Tensor, ...]] = []
        done, count, size = 0, len(x), self._size(x)
        while done < count:
            rows = slice(done, min(done + size, count))
            try:
                parts.append(one(rows))
                done = rows.stop
                continue
            except (torch.OutOfMemoryError, RuntimeError) as problem:
                if not out_of_memory(problem) or size <= self.pad:
                    raise
            # Outside the handler, where the exception no longer holds the tensors it met.
            if self.victim.device.type == "cuda":
                torch.cuda.empty_cache()
            self.batch = size = self._whole(size // 2)
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _chosen(logits: Tensor, aim: Aim) -> Tensor:
    """The logit of the class aimed at."""
    return logits.gather(1, aim.labels[:, None])[:, 0]


def _is_fixed(loss: object) -> bool:
    """Whether a loss is the same function every time: what has a state must not be captured."""
    params = getattr(type(loss), "__dataclass_params__", None)
    return isinstance(loss, FunctionType) if params is None else bool(params.frozen)


def _must_depend(answer: Tensor) -> None:
    if not answer.requires_grad:
        raise VictimError(
            "the model's answer does not depend differentiably on the image (is there "
            "no_grad, detach or numpy inside?), and gradient attacks need that: use "
            "a threat of score or decision access and an attack that fits"
        )


def _slope(
    x: Tensor, ask: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of a per-row loss, the loss, and the logits."""
    with torch.inference_mode(False), torch.enable_grad():
        image = x.detach().requires_grad_(True)
        logits = ask(image)
        value = loss(logits)
        _must_depend(value)
        # The sum, never the mean: a row's gradient must not shrink with the batch.
        gradient = _backward(value.sum(), image)
    return gradient, value.detach(), logits.detach()


def _backward(total: Tensor, image: Tensor, retain: bool = False) -> Tensor:
    try:
        return torch.autograd.grad(total, image, retain_graph=retain)[0]
    except BaseException as problem:
        if not is_theirs(problem):
            raise
        raise raised_backwards(problem) from problem
