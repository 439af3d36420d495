"""`Classifier`, the usual victim: a module that maps images to logits, with its normalisation."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, overload

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.door import OUTPUTS, is_single, is_theirs, logits_of, named_logits, raised
from besiege.core.errors import InputError, VictimError
from besiege.core.identity import fingerprint
from besiege.core.oracle import full_precision
from besiege.core.samples import Samples
from besiege.core.text import MOST, quoted
from besiege.core.threat import Threat
from besiege.core.victim import DERIVE, Victim, floating
from besiege.models.drawing import drawing, given
from besiege.models.sizing import Sizing


class Classifier(Victim):
    """A module that maps images to logits, with all that an attack must know about it.

    The normalisation ``(x - mean) / std`` happens inside, so every distance is measured in pixel
    values. The module itself is never changed.

    Parameters
    ----------
    module : nn.Module
        Maps images ``[rows, channels, height, width]`` to ``[rows, classes]``, or to an output
        whose ``logits`` are that, as Hugging Face models do. A network with one logit per image
        has two classes: label 1 where the logit is above 0. A network with a part that draws
        (`besiege.models.drawing.Draws`) makes the victim stochastic.
    mean, std : float or sequence of float, optional
        Normalisation, one value or one per channel; both or neither.
    box : (float, float)
        The range of pixel values the victim accepts.
    classes : int, optional
        Number of classes; read from the first answer when not given.
    outputs : {"logits", "logit", "probabilities"}
        What the module returns; the logarithm of probabilities is used as logits. ``"logit"``
        declares one logit for two classes, which is noticed without it, too.
    name : str, optional
        Name in reports; the module's class name when not given.
    grid : float, optional
        Step of the pixel values the victim can receive, such as ``1/255`` if it quantises.
    sizing : Sizing, optional
        How images of another size are resized and cropped, before the normalisation.

    Examples
    --------
    >>> victim = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), mean=0.5, std=0.5)
    >>> victim(torch.zeros(2, 1, 2, 2)).shape
    torch.Size([2, 3])
    """

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
        sizing: Sizing | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise InputError(
                f"the model is a {type(module).__name__}, but a Classifier wraps a torch.nn.Module"
            )
        self.module = module
        self.mean, self.std = normalisation(mean, std)
        self.box = checked_box(box)
        if not _is_count(classes):
            raise InputError(
                f"classes is {quoted(classes)}, but a classifier has 2 classes or more"
            )
        self.classes = classes
        if outputs not in OUTPUTS:
            raise InputError(f"outputs is {outputs!r}: write one of {', '.join(OUTPUTS)}")
        self.outputs = outputs
        self.name = type(module).__name__ if name is None else name
        self.grid = checked_grid(grid, self.box)
        self.sizing = sizing
        if drawing(module):
            self.stochastic = True
        self.single = False
        """Whether the module has answered with one number per image."""
        self._scales: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    @property
    def parts(self) -> tuple[nn.Module]:
        """The module."""
        return (self.module,)

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of images.

        Parameters
        ----------
        x : Tensor
            Images ``[rows, channels, height, width]`` inside the box.
        dice : Dice, optional
            The randomness of every image, for a network that draws; not used by others.

        Returns
        -------
        Tensor
            float32 ``[rows, classes]``. Rounding float64 logits never changes the predicted class.
        """
        rows = len(x)
        answer = named_logits(self._answer(self._prepared(x), dice))
        self.single = is_single(answer, rows)
        return logits_of(answer, rows, self.name, self.outputs)

    def each(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """The logits of every member of a network that has several, such as `joint`.

        Parameters
        ----------
        x, dice
            As for a call.

        Returns
        -------
        Tensor
            float32 ``[members, rows, classes]``.
        """
        if not callable(getattr(self.module, "each", None)):
            raise InputError(
                f"'{self.name}' has no members whose logits could be told apart: build a network "
                "of several, such as joint(of='resnet20', members=3)"
            )
        answer = self._answer(self._prepared(x), dice, each=True)
        if not isinstance(answer, Tensor) or answer.dim() != 3 or answer.shape[1] != len(x):
            raise VictimError(
                f"each() of {self.name} must answer a tensor [members, rows, classes] to "
                f"{len(x)} images"
            )
        return answer.float()

    def answer(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """What the module itself answers to images, for networks that are no classifiers.

        A layer holds such a network: a PixelCNN answers logits of levels, an autoencoder images.

        Parameters
        ----------
        x, dice
            As for a call.

        Returns
        -------
        Tensor
            Of any shape with the rows first.
        """
        answer = self._answer(self._prepared(x), dice)
        if not isinstance(answer, Tensor) or answer.dim() < 1 or len(answer) != len(x):
            raise VictimError(f"{self.name} must answer a tensor with the rows of its images first")
        return answer

    def overwrites(self, x: Tensor) -> tuple[bool, bool]:
        """Whether the module overwrites its input, and whether autograd notices."""
        sent = self._prepared(x).clone()
        before, version = sent.clone(), sent._version
        self._answer(sent, Dice(torch.zeros(len(x), dtype=torch.int64, device=x.device)))
        noticed = sent._version != version
        return noticed or not torch.equal(sent, before), noticed

    def _prepared(self, x: Tensor) -> Tensor:
        if self.sizing is not None:
            x = self.sizing(x)
        if self.mean is not None:
            mean, std = self._scale(x)
            x = (x - mean) / std
        kind = floating(self.module)
        return x if kind is None or kind.dtype == x.dtype else x.to(kind.dtype)

    def _answer(self, x: Tensor, dice: Dice | None = None, each: bool = False) -> object:
        module: Any = self.module
        parts = drawing(module) if self.stochastic else []
        if dice is None and not all(part.training for part in parts):
            raise VictimError(f"'{self.name}' is stochastic and was given no dice")
        try:
            with given(parts, dice):
                return module.each(x) if each else module(x)
        except BaseException as problem:
            if not is_theirs(problem):
                raise
            raise raised(problem, tuple(x.shape)) from problem

    def digest(self) -> str:
        """SHA-256 of everything that decides the answers, as hexadecimal text.

        Covers classes and their source, attributes, parameters and buffers, normalisation, box,
        outputs, grid and sizing; not the name, the device, or the path of a file. If something
        cannot be read (a class typed into a console, an attribute that is an opaque object), the
        digest is valid in this process only. It is computed on every call, since a module may be
        trained.
        """
        about = (self.mean, self.std, self.box, self.outputs, self.grid)
        # Left out where there is none: digests of earlier versions stay as they are.
        return fingerprint(self.module, *about, *([] if self.sizing is None else [self.sizing]))

    def twin(
        self,
        samples: Samples,
        threat: Threat,
        *,
        seed: int = 0,
        compiled: bool = False,
        precision: torch.dtype = torch.float32,
    ) -> Classifier | None:
        """An accelerated copy, if one agrees with this classifier around some samples.

        None for a subclass that overrides ``__call__``.
        """
        from besiege.models import twins

        if type(self).__call__ is not Classifier.__call__ or self.stochastic or self.metered:
            return None
        with self.held(), full_precision(self.device):
            probe = twins.probe(samples.to(self.device), threat, self.box, seed)
            return twins.twin(self, probe, compiled=compiled, precision=precision)

    @overload
    @classmethod
    def of(cls, model: Classifier | nn.Module | str) -> Classifier: ...
    @overload
    @classmethod
    def of(cls, model: Victim) -> Victim: ...
    @classmethod
    def of(cls, model: Victim | nn.Module | str) -> Victim:
        """A victim from a victim (unchanged), a module, or the text of a source."""
        if isinstance(model, str):
            from besiege.models.sources import load

            return load(model)
        if isinstance(model, nn.Module):
            return cls(model)
        if isinstance(model, Victim):
            return model
        raise _no_model(model)

    def _scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = (x.device, x.dtype)
        if key not in self._scales:
            # Outside the caller's inference mode: later calls compute gradients with them.
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
                f"{list(x.shape)}: {_channels_advice(self.name, len(mean), x)}"
            )
        return mean, std


def _channels_advice(name: str, takes: int, x: Tensor) -> str:
    """What to write for images of other channels than a network takes."""
    if x.ndim != 4 or (takes, x.shape[1]) != (3, 1):
        return "images are [rows, channels, height, width]"
    size = x.shape[2] if x.shape[2] == x.shape[3] else tuple(x.shape[2:])
    adapted = shlex.quote(f"{name}+adapt(size={size}, channels=3)")
    return f"these are grey, and it takes colour: write {adapted}, or choose another model"


def normalisation(
    mean: float | Sequence[float] | None, std: float | Sequence[float] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and std per channel, both or neither, checked."""
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


def checked_box(box: tuple[float, float]) -> tuple[float, float]:
    """The lowest and the highest pixel value, validated."""
    try:
        low, high = (float(v) for v in box)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(
            f"box is {box!r}, but it is the lowest and the highest pixel value, such as (0, 1)"
        )
    return low, high


def _is_count(classes: Any) -> bool:
    """Whether a number of classes is valid; None means that it is not known yet."""
    return classes is None or (isinstance(classes, Integral) and 2 <= int(classes) <= MOST)


def _is_step(grid: Any) -> bool:
    """Whether a step of pixel values is a positive number that fits a float."""
    return isinstance(grid, Real) and 0 < grid <= sys.float_info.max  # type: ignore[operator]  # a Real compares


def checked_grid(grid: float | None, box: tuple[float, float]) -> float | None:
    """The step of the pixel values, validated: the box must be a whole number of steps wide."""
    if grid is None:
        return None
    if not _is_step(grid):
        raise InputError(
            f"grid is {quoted(grid)}, but it is the positive step of the pixel values, such as "
            "1/255"
        )
    steps = (box[1] - box[0]) / grid
    if round(steps) < 1 or abs(steps - round(steps)) > 1e-6 * steps:
        raise InputError(f"grid is {grid!r}, but the box {box} must be a whole number of its steps")
    return grid


def _no_model(given: object) -> InputError:
    """The error for what is no model, with what may have been meant."""
    also = f"a victim type of your own must {DERIVE}"
    if isinstance(given, Mapping):
        also = "several models are a list; besiege.Classifier(net, name='...') gives one a name"
    elif callable(given):
        also = "besiege.function_model makes a model of a function"
    return InputError(
        f"the model is a {type(given).__name__}: give a torch.nn.Module, a Classifier, or the text "
        f"of a source such as 'zoo:NAME' or 'path/to/file.py:factory' ({also})"
    )
