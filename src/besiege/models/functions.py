"""A victim that is only a function of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from besiege.core.errors import BesiegeError, InputError, VictimError, described
from besiege.core.identity import lasts, plain
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.models.black_box import BlackBox, Keep, Logits, Pixels

Function = Callable[[Any], Any]


class FunctionModel(BlackBox, Victim):
    """What `function_model` makes."""

    def __init__(
        self,
        function: Function,
        *,
        name: str,
        batch: int | None = None,
        **about: Any,
    ) -> None:
        if not callable(function):
            raise InputError(
                f"the model is a {type(function).__name__}, but function_model takes a function "
                "of an array [rows, channels, height, width]"
            )
        self.function = function
        super().__init__(name, **about)
        self.batch = checked_count("batch", batch)

    def digest(self) -> str:
        """SHA-256 of the function, with what it uses, and of how its answers are read."""
        reader = (self.reader.access, self.reader.outputs, self.reader.top_k, self.declared)
        about = (*reader, self.box, self.grid, self.stochastic)
        return hashlib.sha256(f"function {self._text()} {about}".encode()).hexdigest()

    def keep_in(self, path: Path | str) -> None:
        """Keep every answer in a ledger; refused where the function is not known again."""
        if not lasts(self._text()):
            raise InputError(
                f"{self.name} cannot be told from another function in the next process (it was "
                "typed into a console, or holds what cannot be read), so its answers would not "
                "be found again: leave ledger= out, or write it in a file, of plain values"
            )
        super().keep_in(path)

    def _text(self) -> str:
        """What decides what the function answers; of a module's method the module too."""
        module = getattr(self.function, "__self__", None)
        text = plain(self.function)
        return f"{text} of {plain(module)}" if isinstance(module, nn.Module) else text

    def _answers(self, pixels: Pixels, keep: Keep | None) -> Logits:
        pieces = []
        size = self.batch or max(1, len(pixels))
        for first in range(0, len(pixels), size):
            some = pixels[first : first + size]
            self._count(sent=len(some))
            try:
                answer = self.function(some)
            except BaseException as problem:
                if isinstance(problem, (BesiegeError, KeyboardInterrupt)):
                    raise
                raise VictimError(
                    f"{self.name} failed on an array {list(some.shape)}: {described(problem)}"
                ) from problem
            pieces.append(self.reader(answer, len(some)))
            if keep is not None:
                keep(first, pieces[-1])
        return np.concatenate(pieces) if pieces else np.zeros((0, self.classes or 1), np.float32)


def function_model(
    f: Function,
    classes: int | None = None,
    access: str | Access = "score",
    outputs: str | None = None,
    *,
    top_k: int | None = None,
    box: tuple[float, float] = (0.0, 1.0),
    grid: float | None = None,
    batch: int | None = None,
    name: str | None = None,
    stochastic: bool = False,
    ledger: Path | str | None = None,
) -> FunctionModel:
    """A model that is only a function of numpy arrays; it is used wherever a model is.

    It grants the access it has: attacks that need more are refused with those that fit. It is
    never sent an image that nobody asked about.

    Parameters
    ----------
    f : callable
        Given float32 ``[rows, channels, height, width]`` inside the box, answers scores
        ``[rows, classes]``, labels ``[rows]``, or with `top_k` ``(indices, scores)``, both
        ``[rows, k]``.
    classes : int, optional
        How many there are. Scores tell; labels and first few do not.
    access : {"score", "decision"}
        What it answers. From scores, labels alone are used at decision access.
    outputs : {"logits", "probabilities"}, optional
        What the scores are; probabilities are taken through the logarithm. Where nobody says,
        logits, and what looks like probabilities is refused.
    top_k : int, optional
        It answers so many classes alone. The others are ruled out: minus infinity.
    box : (float, float)
        The range of pixel values it takes.
    grid : float, optional
        Step of the pixel values it can tell apart, such as ``1/255`` where it quantises.
    batch : int, optional
        The most images in one call.
    name : str, optional
        What reports call it; the function's name when not given.
    stochastic : bool
        Whether it draws by chance.
    ledger : path, optional
        A file that keeps its answers, where they are worth keeping: exact repeats come from it.

    Returns
    -------
    FunctionModel

    Examples
    --------
    >>> import besiege, torch
    >>> brighter = lambda x: (x.mean(axis=(1, 2, 3)) > 0.5).astype(int)
    >>> model = besiege.function_model(brighter, classes=2, access="decision")
    >>> images = torch.full((1, 1, 2, 2), 0.75)
    >>> model(images).argmax(1)
    tensor([1])
    """
    return FunctionModel(
        f,
        name=str(getattr(f, "__name__", type(f).__name__)) if name is None else name,
        batch=batch,
        classes=classes,
        access=access,
        outputs=outputs,
        top_k=top_k,
        box=box,
        grid=grid,
        stochastic=stochastic,
        ledger=ledger,
    )


def checked_count(name: str, value: int | None) -> int | None:
    """A whole number from one, or none."""
    if value is not None and (type(value) is not int or value < 1):
        raise InputError(f"{name} is {value!r}, but a whole number from 1 is needed")
    return value
