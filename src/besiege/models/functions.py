"""`function_model`: a victim that is a Python function of numpy arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from besiege.core.errors import BesiegeError, InputError, VictimError, described
from besiege.core.identity import lasts, plain
from besiege.core.text import check_whole
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.models.black_box import BlackBox, Keep, Logits, Pixels

Function = Callable[[Any], Any]


class FunctionModel(BlackBox, Victim):
    """The victim that `function_model` returns."""

    def __init__(
        self, function: Function, *, name: str, batch: int | None = None, **about: Any
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
        """SHA-256 of the function, of the code it uses, and of how its answers are read."""
        reader = (self.reader.access, self.reader.outputs, self.reader.top_k, self.declared)
        about = (*reader, self.box, self.grid, self.stochastic)
        return hashlib.sha256(f"function {self._text()} {about}".encode()).hexdigest()

    def keep_in(self, path: Path | str) -> None:
        """Keep every answer in a ledger; refused if no later process can identify the function."""
        if not lasts(self._text()):
            raise InputError(
                f"another process could not identify {self.name} (it was typed into a console, or "
                "holds an object that cannot be read), so its answers would never be reused: leave "
                "ledger= out, or define the function in a file, with plain values only"
            )
        super().keep_in(path)

    def _text(self) -> str:
        """The code that decides the answers; for a method of a module, the module too."""
        module = getattr(self.function, "__self__", None)
        text = plain(self.function)
        return f"{text} of {plain(module)}" if isinstance(module, nn.Module) else text

    def _answers(self, pixels: Pixels, keep: Keep | None) -> Logits:
        return self._in_batches(pixels, self.batch or len(pixels), self._called, keep)

    def _called(self, pixels: Pixels) -> object:
        try:
            with torch.no_grad():  # a function that ends in numpy() fails on what needs gradients
                return self.function(pixels)
        except BaseException as problem:
            if isinstance(problem, (BesiegeError, KeyboardInterrupt)):
                raise
            raise VictimError(
                f"{self.name} failed on an array {list(pixels.shape)}: {described(problem)}"
            ) from problem


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
    """A black-box model given as a function of numpy arrays; usable wherever a model is.

    Attacks that need more access than it grants are refused, and the error lists attacks that fit.
    The function only receives images that an attack queries: no padding, no look-ahead.

    Parameters
    ----------
    f : callable
        Takes float32 ``[rows, channels, height, width]`` inside the box; returns scores
        ``[rows, classes]``, labels ``[rows]``, or with `top_k` ``(indices, scores)``, both
        ``[rows, k]``.
    classes : int, optional
        Number of classes. Required for labels and top-k scores; full scores show it.
    access : {"score", "decision"}
        What it returns. At decision access, only the label of returned scores is used.
    outputs : {"logits", "probabilities"}, optional
        What the scores are; the logarithm of probabilities is used as logits. By default logits,
        and top-k scores that look like probabilities are refused.
    top_k : int, optional
        It returns only this many classes. The logits of the others are minus infinity.
    box : (float, float)
        The range of pixel values it takes.
    grid : float, optional
        Step of the pixel values it distinguishes, such as ``1/255`` if it quantises.
    batch : int, optional
        Largest number of images in one call.
    name : str, optional
        Name in reports; the function's name when not given.
    stochastic : bool
        Whether its answers are random.
    ledger : path, optional
        A file that keeps its answers; repeated images are answered from it.

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
    """The value, if it is a whole number from 1 or None."""
    if value is not None:
        check_whole(value, name)
    return value
