"""The victim of most sieges: a module that maps images to logits, with its normalisation."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError
from besiege.core.oracle import Victim
from besiege.core.threat import Access

# Stands in for code that cannot be read: what one process calls by a name, another may not.
_THIS_PROCESS = os.urandom(16).hex()

_SMALLEST_PROBABILITY = 1e-30


class Classifier:
    """A module that maps images to logits, and what must be known to attack it.

    The normalisation ``(x - mean) / std`` happens inside, so that every distance outside is
    measured in pixels. The module itself is never changed.

    Parameters
    ----------
    module : nn.Module
        Maps images ``[rows, channels, height, width]`` to ``[rows, classes]``.
    mean, std : float or sequence of float, optional
        Normalisation, one value or one per channel; both or neither.
    box : (float, float)
        The range of pixel values the victim accepts.
    classes : int, optional
        How many classes there are; found out on first use when not given.
    outputs : {"logits", "probabilities"}
        What the module answers; probabilities are taken through the logarithm.
    name : str, optional
        What reports call it; the module's class name when not given.
    grid : float, optional
        Step of the pixel values the victim can receive, such as ``1/255`` if it quantises.

    Examples
    --------
    >>> victim = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), mean=0.5, std=0.5)
    >>> victim(torch.zeros(2, 1, 2, 2)).shape
    torch.Size([2, 3])
    """

    access = Access.GRADIENT
    stochastic = False
    metered = False

    def __init__(
        self,
        module: nn.Module,
        *,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        box: tuple[float, float] = (0.0, 1.0),
        classes: int | None = None,
        outputs: str = "logits",
        name: str | None = None,
        grid: float | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise InputError(
                f"the model is a {type(module).__name__}, but a Classifier wraps a torch.nn.Module"
            )
        self.module = module
        self.mean: tuple[float, ...] | None
        self.std: tuple[float, ...] | None
        self.mean, self.std = _normalisation(mean, std)
        self.box = _box(box)
        if classes is not None and classes < 2:
            raise InputError(f"classes is {classes!r}, but a classifier has 2 classes or more")
        self.classes = classes
        if outputs not in ("logits", "probabilities"):
            raise InputError(f"outputs is {outputs!r}: write 'logits' or 'probabilities'")
        self.outputs = outputs
        self.name = type(module).__name__ if name is None else name
        if grid is not None and not (math.isfinite(grid) and grid > 0):
            raise InputError(
                f"grid is {grid!r}, but it is the positive step of the pixel values, such as 1/255"
            )
        if grid is not None:
            steps = (self.box[1] - self.box[0]) / grid
            if round(steps) < 1 or abs(steps - round(steps)) > 1e-6 * steps:
                raise InputError(
                    f"grid is {grid!r}, but the box {self.box} must be a whole number of its steps"
                )
        self.grid = grid
        self._scales: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __repr__(self) -> str:
        return f"Classifier({self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where the module computes."""
        held = _first(self.module)
        return torch.device("cpu") if held is None else held.device

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of images.

        Parameters
        ----------
        x : Tensor
            Images ``[rows, channels, height, width]`` inside the box.
        dice : Dice, optional
            The chances of a stochastic victim; this one has none.

        Returns
        -------
        Tensor
            float32 ``[rows, classes]``.
        """
        if self.mean is not None:
            mean, std = self._scale(x)
            x = (x - mean) / std
        kind = _first(self.module)
        if kind is not None and kind.dtype != x.dtype:
            x = x.to(kind.dtype)
        answer: object = self.module(x)
        if not isinstance(answer, Tensor) or answer.ndim != 2 or len(answer) != len(x):
            shape = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise VictimError(
                f"{self.name} answered {shape} to {len(x)} images, but a classifier answers a "
                "tensor [rows, classes]: wrap the module so that it returns its logits alone"
            )
        answer = answer.float()
        if self.outputs == "probabilities":
            answer = answer.clamp_min(_SMALLEST_PROBABILITY).log()
        return answer

    @contextmanager
    def held(self) -> Iterator[None]:
        """Evaluation mode and frozen parameters for the time of a siege, then all as it was."""
        modes = [(m, m.training) for m in self.module.modules()]
        grads = [(p, p.requires_grad) for p in self.module.parameters()]
        try:
            for module, _ in modes:
                # The flag itself: train() would also run what a module overrides it with.
                module.training = False
            for parameter, _ in grads:
                parameter.requires_grad_(False)
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, grad in grads:
                parameter.requires_grad_(grad)

    def digest(self) -> str:
        """SHA-256 of everything that decides the answers, as hexadecimal text.

        Covers classes and their source, plain attributes, parameters and buffers, normalisation,
        box, outputs and grid. Where something cannot be read (a class typed into a console, an
        attribute that is an object of its own) the digest holds for this process only.
        """
        digest = hashlib.sha256()

        def add(*parts: object) -> None:
            for part in parts:
                text = part if isinstance(part, bytes) else str(part).encode()
                digest.update(len(text).to_bytes(8, "big"))
                digest.update(text)

        add("classifier", self.mean, self.std, self.box, self.outputs, self.grid)
        for path, module in self.module.named_modules(remove_duplicate=False):
            add(path, _code(type(module)))
            for key, value in sorted(vars(module).items()):
                if not key.startswith("_") and key != "training":
                    add(key, _plain(value))
        tensors = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        for path, tensor in tensors:
            add(path, tensor.dtype, tuple(tensor.shape), _content(tensor))
        return digest.hexdigest()

    @overload
    @classmethod
    def of(cls, model: Classifier | nn.Module | str) -> Classifier: ...
    @overload
    @classmethod
    def of(cls, model: Victim) -> Victim: ...
    @classmethod
    def of(cls, model: Victim | nn.Module | str) -> Victim:
        """A victim from what a user has: a victim as it is, a module, or the text of a source."""
        if isinstance(model, str):
            from besiege.models.sources import load

            return load(model)
        if isinstance(model, nn.Module):
            return cls(model)
        if hasattr(model, "access") and hasattr(model, "held"):
            return model
        raise InputError(
            f"the model is a {type(model).__name__}: give a torch.nn.Module, a Classifier, or the "
            "text of a source such as 'zoo:NAME' or 'path/to/file.py:factory'"
        )

    def _scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = (x.device, x.dtype)
        if key not in self._scales:
            # Made outside any inference mode of the caller: gradients flow through them later.
            with torch.inference_mode(False):
                mean, std = (
                    torch.tensor(v, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)
                    for v in (self.mean, self.std)
                )
            self._scales[key] = mean, std
        mean, std = self._scales[key]
        if x.ndim != 4 or len(mean) not in (1, x.shape[1]):
            raise InputError(
                f"{self.name} normalises {len(mean)} channels, but was given images "
                f"{list(x.shape)}: images are [rows, channels, height, width]"
            )
        return mean, std


def _first(module: nn.Module) -> Tensor | None:
    """Any floating-point parameter or buffer: it tells where and in what type the module works."""
    tensors = chain(module.parameters(), module.buffers())
    return next((t for t in tensors if t.is_floating_point()), None)


def _normalisation(
    mean: float | Sequence[float] | None, std: float | Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    if mean is None and std is None:
        return None, None
    if mean is None or std is None:
        raise InputError("mean and std belong together: give both or neither")
    try:
        means, stds = (
            (float(v),) if isinstance(v, (int, float)) else tuple(float(c) for c in v)
            for v in (mean, std)
        )
    except (TypeError, ValueError):
        raise InputError(
            f"mean is {mean!r} and std is {std!r}: give numbers, one or one per channel"
        ) from None
    if len(means) != len(stds) or not means:
        raise InputError(
            f"mean has {len(means)} values and std has {len(stds)}: give one of each per channel"
        )
    if not all(map(math.isfinite, means + stds)) or min(stds) <= 0:
        raise InputError(
            f"mean is {means} and std is {stds}: all must be finite and std above zero, "
            "in the units of the images (for pixels in [0, 1], not 0 to 255)"
        )
    return means, stds


def _box(box: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in box)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(
            f"box is {box!r}, but it is the lowest and the highest pixel value, such as (0, 1)"
        )
    return low, high


def _code(thing: Any) -> str:
    """Name and source of a class or function; torch's own and built-in ones go by name alone."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    if str(thing.__module__).split(".")[0] == "torch" or inspect.isbuiltin(thing):
        return name
    try:
        return name + "\n" + inspect.getsource(thing)
    except (OSError, TypeError):
        return f"{name}\nunread {_THIS_PROCESS}"


def _plain(value: object) -> str:
    """Text of an attribute, since it may decide what a module computes."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.device, Enum)):
        return repr(value)
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}{hashlib.sha256(_content(value)).hexdigest()}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_plain(v) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_plain(k)}:{_plain(v)}" for k, v in value.items()) + "}"
    if isinstance(value, partial):
        return "partial" + _plain((value.func, value.args, value.keywords))
    if inspect.isroutine(value) or inspect.isclass(value):
        return _code(value)
    # Nothing is known of its content, so it is equal to itself alone.
    return f"{type(value).__module__}.{type(value).__qualname__} {_THIS_PROCESS} {id(value)}"


def _content(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
