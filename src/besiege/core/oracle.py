"""The victim as attacks query it: up to an access level, in padded batches."""

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
from besiege.core.backward import logit_gradients, loss_gradient
from besiege.core.cuda_graphs import Function, rounded
from besiege.core.dice import Dice
from besiege.core.door import is_theirs, must_be_real, not_numbers, out_of_memory, raised, tops
from besiege.core.door import rounded as to_float32
from besiege.core.errors import AccessError, VictimError
from besiege.core.refusal import folded, unfolded
from besiege.core.threat import Access
from besiege.core.victim import Victim

__all__ = ["Access", "Oracle"]

PAD, LEAST = 8, 16
"""On a CPU, batches are padded to a multiple of `PAD` rows and to at least `LEAST`, so that a row's
arithmetic does not depend on how many neighbours it has: kernels use other loops for small
remainders, and matrix products of 8 rows round otherwise than those of 16 and more."""

GPU_ROWS, GPU_ENTRIES = 512, 512 * 3 * 32 * 32
"""Images and pixel values per call on a GPU: enough to fill it. A ResNet-20 on an H200 takes 27 us
an image in batches of 64, 5.9 in 256, 4.8 in 512 and 4.0 in 8192."""
CPU_ENTRIES = 64 * 3 * 32 * 32
"""Pixel values per call on a CPU: 64 images of CIFAR-10, or 256 small ones. Larger batches leave
its caches, smaller ones do not pay for their calls."""

CPU_CALL, GPU_CALL = 12, 320
"""The fixed cost of a call, counted in images: small on a CPU, large on a GPU, where launching
kernels takes longer than running them."""
GPU_SORT = 1000
"""The cost, in images, of sorting out candidates computed ahead on a GPU, which synchronises. Like
the cost of a call, it is estimated from a profile of ResNet-20 on an H200."""
CPU_AHEAD = 128
"""Most images computed ahead of a decision on a CPU: more do not get cheaper."""
_AHEAD = (1, 2, 3, *(n << k for k in range(11) for n in (4, 5, 6, 7)))
AHEAD_PAYS = 1.1
"""By which factor computing candidates ahead must be cheaper, to pay for sorting them out."""


def padded(rows: int) -> int:
    """The size of a batch of so many rows with its padding, on a CPU."""
    return max(LEAST, -(-rows // PAD) * PAD) if rows else 0


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off the caller's inference mode, gradients, autocast and TF32: answers are float32."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        _tf32(False),
    ):
        yield


def allow_tf32() -> AbstractContextManager[None]:
    """Allow TF32 in convolutions on a GPU, for a search whose successes are confirmed."""
    return _tf32(True)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    try:
        products.allow_tf32, convolutions.allow_tf32 = False, allowed
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


class Oracle:
    """A victim that answers up to an access level, in batches of a size that fits.

    Parameters
    ----------
    victim : Victim
        The model that is queried.
    access : Access
        The most that attacks may see of its answers.
    batch : int, optional
        Rows per call; by default the size that the victim declares, or one that is fast on its
        device.
    pad : bool
        Whether to pad batches; never done for a metered victim, which would charge for padding.
        Without padding, the last bits of a row's logits may depend on its neighbours.
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
        self.least = LEAST if self.pad > 1 and victim.device.type == "cpu" else self.pad
        self.together = victim.together
        """The batch size that the victim declares, or 0."""
        batch = batch or self.together or None
        self.batch = None if batch is None else self._whole(batch)
        self.padded = 0
        self.batch_sensitive = victim.device.type != "cpu" and not (
            victim.metered or victim.stochastic
        )
        """Whether logits depend on the batch size in their last bits (GPU kernels), and images may
        be sent again to find out."""
        # Members of a victim whose losses are fused: each is queried for its own loss.
        self._apart = [(w, Oracle(one, access, batch, pad)) for w, one in victim.apart or ()]
        # A graph holds a loss of logits as the victim answers them, not folded.
        self._captures = None if victim.rejects else victim.captures
        self.deferred = self._captures is not None
        """Whether answers are examined one request late, so that a GPU never waits. The tracker
        then also checks that they are finite."""

    def _whole(self, rows: int) -> int:
        return max(self.least, rows // self.pad * self.pad)

    def _filled(self, rows: int) -> int:
        """The size of a batch of so many rows with its padding."""
        if self._captures is not None:
            # As many rows as a graph has: logits must not depend on whether one was captured yet.
            return rounded(rows)
        return max(self.least, -(-rows // self.pad) * self.pad)

    def _size(self, x: Tensor) -> int:
        """Rows per call: the given batch size, or one that suits the device and the images."""
        if self.batch is None:
            entries = max(1, x[0].numel())
            if x.device.type == "cpu":
                rows = min(256, max(16, CPU_ENTRIES // entries))
            else:
                rows = min(GPU_ROWS, max(64, GPU_ENTRIES // entries))
            self.batch = self._whole(rows)
        return self.batch

    def ahead(self, x: Tensor, draws: int, chance: float) -> int:
        """How many candidates per row to compute in one call, where they are used in order.

        `chance` is the probability that a candidate is accepted, after which the rest are wasted.
        Of the numbers that fit into a call, the one with the least cost per candidate used.
        """
        rows, call, sort, most = len(x) * draws, GPU_CALL, GPU_SORT, self._size(x)
        if x.device.type == "cpu":
            call, sort, most = CPU_CALL, 0, min(most, CPU_AHEAD)

        def cost(k: int) -> float:
            used = k if chance < 1e-9 else (1.0 - (1.0 - chance) ** k) / chance
            images = self._filled(rows * k)
            return (call + (sort if k > 1 else 0) + images) / used

        best = min((k for k in _AHEAD if k == 1 or k * rows <= most), key=cost)
        return best if cost(best) * AHEAD_PAYS < cost(1) else 1

    def allow(self, access: Access, fitting: Callable[[Access], list[str]]) -> None:
        """Refuse access above what is granted; the error names attacks that fit."""
        if access > self.access:
            fit = ", ".join(fitting(self.access)) or "none is registered"
            raise AccessError(
                f"{access} access was asked for, but this threat grants {self.access} access only; "
                f"attacks that fit: {fit}"
            )

    def fold(self, logits: Tensor, labels: Tensor, loss: object = None) -> Tensor:
        """Logits as an attacker sees them: a rejection counts as the label's class.

        A loss that is `unfolded` sees all columns.
        """
        return folded(logits, labels) if self.victim.rejects and not unfolded(loss) else logits

    def logits(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of a flat batch ``[n, ...]``, with the column of rejection if there is one."""
        if not len(x):
            return self._empty(x)

        def one(rows: slice) -> tuple[Tensor, ...]:
            with torch.inference_mode(False), torch.no_grad():
                return self._graphed("logits", self._forward, x[rows]) or (
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

        The loss is a function of the logits of some rows and their aims. With aims, the logits are
        folded.
        """
        if not len(x):
            return torch.zeros_like(x), x.new_zeros(0), self._empty(x, folds=aim is not None)
        if self._apart:
            return self._gradient_apart(x, loss, aim, dice, through)

        def one(rows: slice) -> tuple[Tensor, ...]:
            some = aim if aim is None or len(aim.labels) == rows.stop - rows.start else aim.at(rows)
            if through is None and some is not None and _is_fixed(loss):
                function = partial(self._gradient, loss)
                captured = self._graphed(("gradient", loss), function, x[rows], some)
                if captured is not None:
                    return captured

            def ask(image: Tensor) -> Tensor:
                return self._ask(image if through is None else through(image, rows), dice, rows)

            def score(logits: Tensor) -> Tensor:
                seen = logits if some is None else self.fold(logits, some.labels, loss)
                return loss(seen, some)

            return loss_gradient(x[rows], ask, score)

        gradient, value, logits = self._batched(x, one)
        return gradient, value, logits if aim is None else self.fold(logits, aim.labels)

    def _gradient_apart(
        self,
        x: Tensor,
        loss: Callable[[Tensor, Any], Tensor],
        aim: Aim | None,
        dice: Dice | None,
        through: Callable[[Tensor, slice], Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted sums of the members' gradients and losses, and the fused logits."""
        gradient, value, answers = torch.zeros_like(x), x.new_zeros(len(x)), []
        for place, (weight, member) in enumerate(self._apart):
            padded = member.padded
            own = None if dice is None else dice.of("member", place)
            slope, height, logits = member.gradient(x, loss, aim, own, through)
            gradient.add_(slope, alpha=weight)
            value.add_(height, alpha=weight)
            answers.append(logits)
            self.padded += member.padded - padded
        return gradient, value, self._checked(self.victim.fused(answers), len(x))

    def _graphed(
        self, what: Hashable, function: Function, x: Tensor, aim: Aim | None = None
    ) -> tuple[Tensor, ...] | None:
        """The outputs of a CUDA graph of the function, or None where there is none."""
        if self._captures is None:
            return None
        parts = () if aim is None else (aim.labels, aim.targets, aim.clean)
        present = tuple(part is not None for part in parts)
        given = (x, *(part for part in parts if part is not None))

        def with_nones(x: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
            rest = iter(held)
            return function(x, *(next(rest) if there else None for there in present))

        answer = self._captures((what, present), with_nones, given)
        if answer is not None:
            self.padded += rounded(len(x)) - len(x)
        return answer

    def _forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.victim(x.clone()),)

    def _gradient(
        self,
        loss: Callable[[Tensor, Any], Tensor],
        x: Tensor,
        labels: Tensor,
        targets: Tensor | None,
        clean: Tensor | None,
    ) -> tuple[Tensor, ...]:
        aim = Aim(labels, targets, clean)
        return loss_gradient(x, lambda image: self.victim(image.clone()), lambda z: loss(z, aim))

    def gradients(
        self,
        x: Tensor,
        classes: Tensor,
        dice: Dice | None = None,
        labels: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Input gradients of chosen logits, ``[n, c, ...]``, and the logits: one forward.

        With labels, the logits are folded.
        """
        if not len(x):
            empty = self._empty(x, folds=labels is not None)
            return x.new_zeros(0, classes.shape[1], *x.shape[1:]), empty
        if self._captures is not None:
            return self._gradients_apart(x, classes)

        def one(rows: slice) -> tuple[Tensor, Tensor]:
            def ask(image: Tensor) -> Tensor:
                logits = self._ask(image, dice, rows)
                return logits if labels is None else self.fold(logits, labels[rows])

            return logit_gradients(x[rows], ask, classes[rows])

        gradients, logits = self._batched(x, one)
        return gradients, logits

    def _gradients_apart(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """The same with one graph call per class: a graph has one backward pass."""
        answers = [self.gradient(x, _chosen, Aim(one)) for one in classes.unbind(1)]
        self.padded += len(x) * (len(answers) - 1)  # forwards beyond the one requested
        return torch.stack([gradient for gradient, _, _ in answers], 1), answers[0][2]

    def _empty(self, x: Tensor, folds: bool = False) -> Tensor:
        """The logits of no images; the victim is not called."""
        return x.new_zeros(0, (self.classes or 1) + (self.victim.rejects and not folds))

    def _ask(self, x: Tensor, dice: Dice | None, rows: slice) -> Tensor:
        count = len(x)
        short = self._filled(count) - count
        # Always a copy: a victim may overwrite its input.
        x = torch.cat([x, x[-1:].expand(short, *x.shape[1:])]) if short else x.clone()
        self.padded += short
        if dice is not None:
            key = dice.key[rows]
            dice = Dice(torch.cat([key, key[-1:].expand(short)]) if short else key)
        try:
            logits = self.victim(x, dice)
        except BaseException as problem:
            if not is_theirs(problem):
                raise
            raise raised(problem, tuple(x.shape)) from problem
        logits = self._checked(logits, count + short)
        return logits[:count] if short else logits

    def _checked(self, logits: Tensor, rows: int) -> Tensor:
        """The logits; an error that says why, if these are not logits of so many rows."""
        if logits.dim() != 2 or logits.shape[0] != rows:
            raise VictimError(
                f"the model answered {rows} images with a tensor of shape {tuple(logits.shape)}, "
                f"but logits have one row per image and one column per class: [{rows}, classes]"
            )
        columns, rejection = logits.shape[1], int(self.victim.rejects)
        if self.classes is None:
            self.classes = columns - rejection
        if columns != self.classes + rejection or self.classes < 2:
            raise _wrong_columns(columns, max(self.classes, 2), self.victim.rejects)
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
            except RuntimeError as problem:
                if not out_of_memory(problem) or size <= self.least:
                    raise
            # Outside the handler: there the exception would keep the tensors alive.
            if self.victim.device.type == "cuda":
                torch.cuda.empty_cache()
            self.batch = size = self._whole(size // 2)
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _wrong_columns(columns: int, classes: int, rejects: bool) -> VictimError:
    """The error of a victim that answers another number of columns than it declares."""
    if rejects:
        return VictimError(
            f"the model says that it rejects images (rejects = True), but answered {columns} "
            f"columns: {classes + 1} are expected, one for each class and the rejection last"
        )
    more = ""
    if columns == classes + 1:
        more = (
            "; if the last column means that an image is rejected, make it a "
            "besiege.core.victim.Victim with rejects = True: a rejection is no class"
        )
    return VictimError(
        f"the model answered {columns} classes, but {classes} are expected; declare "
        f"Classifier(..., classes={columns}) or check the model's last layer (two classes at "
        f"least){more}"
    )


def _chosen(logits: Tensor, aim: Aim) -> Tensor:
    """The logit of the class aimed at."""
    return logits.gather(1, aim.labels[:, None])[:, 0]


def _is_fixed(loss: object) -> bool:
    """Whether a loss has no state: a graph would repeat what one with a state did first."""
    params = getattr(type(loss), "__dataclass_params__", None)
    return isinstance(loss, FunctionType) if params is None else bool(params.frozen)
