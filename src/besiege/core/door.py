"""Checks of a model's answers, and the errors that describe a model that fails.

Whatever a model does, its caller receives float32 logits or a `VictimError` of one sentence.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from besiege.core.errors import BesiegeError, GradientError, VictimError, described

OUTPUTS = ("logits", "logit", "probabilities")
"""What a network may return: a logit per class, one logit for two classes, or probabilities."""
SMALLEST_PROBABILITY = 1e-30
# Whole folders: a model may lie in a folder that is called 'besiege', such as a clone.
_NOT_THEIRS = tuple(
    str(Path(file).parent) + os.sep for file in (torch.__file__, Path(__file__).parent)
)
_IN_PLACE = "modified by an inplace operation"
_TO_NUMPY = "Can't call numpy() on Tensor that requires grad"


def logits_of(answer: object, rows: int, name: str, outputs: str = "logits") -> Tensor:
    """A module's answer to `rows` images as float32 logits; anything else is refused.

    Of the outputs of Hugging Face models, or of a dictionary, ``logits`` is taken. One number per
    image (``[rows]`` or ``[rows, 1]``) means two classes: see `of_two_classes`.
    """
    answer = named_logits(answer)
    single = is_single(answer, rows)
    if isinstance(answer, Tensor) and single:
        must_be_real(answer, name)
        answer = of_two_classes(answer.reshape(rows), outputs)
    if not isinstance(answer, Tensor) or answer.ndim != 2 or len(answer) != rows:
        shape = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise VictimError(
            f"{name} answered {shape} to {rows} images, but a classifier answers a "
            "tensor [rows, classes]: wrap the module so that it returns only its logits"
        )
    if outputs == "logit" and not single:
        raise VictimError(
            f"{name} was declared to return one logit per image, but answered {list(answer.shape)} "
            f"to {rows} images: leave outputs='logit' out"
        )
    must_be_real(answer, name)
    if answer.dtype != torch.float64:
        answer = answer.float()
    if outputs == "probabilities":
        answer = answer.clamp_min(SMALLEST_PROBABILITY).log()
    return answer if answer.dtype == torch.float32 else rounded(answer)


def of_two_classes(score: Tensor, outputs: str = "logits") -> Tensor:
    """One number z per image as the two columns of a classifier, ``[rows, 2]``.

    A logit z, trained with the binary cross-entropy, becomes (-z/2, z/2): class 1 where z > 0, a
    margin of exactly z, and a cross-entropy that equals the binary one, since only differences of
    logits count in it. (0, z) would have these properties as well, but its first column has no
    gradient, so that attacks which follow single logits (JSMA) would find none for class 0.
    A probability p becomes (1 - p, p).
    """
    if outputs == "probabilities":
        return torch.stack([1 - score, score], 1)
    return torch.stack([-0.5 * score, 0.5 * score], 1)


def is_single(answer: object, rows: int) -> bool:
    """Whether an answer has one number per image."""
    return isinstance(answer, Tensor) and answer.shape in ((rows,), (rows, 1))


def named_logits(answer: object) -> object:
    """The logits of an output with names, as Hugging Face models return it."""
    if isinstance(answer, Tensor):
        return answer
    if isinstance(answer, Mapping):
        return answer.get("logits", answer)
    return getattr(answer, "logits", answer)


_LABELS = (
    ". A model that answers one label for each image is evaluated as "
    "besiege.function_model(function, classes=N, access='decision')"
)


def must_be_real(logits: Tensor, name: str = "the model") -> None:
    """Refuse logits that are not dense floating-point numbers in memory."""
    if logits.is_meta:
        raise VictimError(
            f"{name} answered a meta tensor, which has no values: load its weights first"
        )
    if logits.layout is not torch.strided or not logits.dtype.is_floating_point:
        kind = str(logits.dtype if logits.layout is torch.strided else logits.layout)
        raise VictimError(
            f"{name} answered {kind.removeprefix('torch.')} logits, but logits are dense "
            "floating-point numbers: wrap the module so that it returns those"
            f"{_LABELS if logits.ndim == 1 else ''}"
        )


def rounded(logits: Tensor) -> Tensor:
    """float64 logits in float32, with the same largest class.

    Rounding can create ties. Where the largest logit ties with one that was smaller, it is raised
    to the next float32 number, so that labels and the signs of margins stay the same.
    """
    short = logits.float()
    with torch.no_grad():
        highest, top = logits.max(1, keepdim=True)
        level = short.gather(1, top)
        tied = ((short == level) & (logits < highest)).any(1, keepdim=True)
        above = torch.nextafter(level, torch.full_like(level, torch.inf)) - level
        lift = torch.zeros_like(short).scatter_(1, top, above.where(tied, torch.zeros_like(above)))
    return short + lift


def tops(logits: Tensor) -> Tensor:
    """The sum of every row's largest logit: finite if and only if every row has a valid one.

    NaN and infinity are the largest of their row; -inf, which rules a class out, is the largest
    only where every class is. A single number, which a GPU can copy without waiting.
    """
    return logits.detach().amax(1).sum(dtype=torch.float64)


def not_numbers() -> VictimError:
    """The error for logits whose `tops` are not finite."""
    return VictimError(
        "the model answered NaN or infinite logits (or -inf for every class), so nothing can be "
        "said about its robustness; check its weights and its normalisation"
    )


def is_theirs(problem: BaseException) -> bool:
    """Whether an exception raised while the model ran is the model's fault."""
    ours = isinstance(problem, (BesiegeError, KeyboardInterrupt, GeneratorExit))
    return not ours and not out_of_memory(problem)


def raised(problem: BaseException, shape: tuple[int, ...]) -> VictimError:
    """The error for a model that raised when it was given images of a shape."""
    if _TO_NUMPY in described(problem):
        return blocked(_where(problem).strip(" ()"))
    if type(problem) is RuntimeError:
        message = described(problem).removeprefix("RuntimeError: ")
        return VictimError(
            f"the model could not take images {shape}: {message}{_where(problem)}. Images are "
            "[rows, channels, height, width]; for channels last, pass images.permute(0, 3, 1, 2)"
        )
    return VictimError(
        f"the model raised {described(problem)}{_where(problem)} when it was given images {shape}"
    )


def raised_backwards(problem: BaseException) -> VictimError:
    """The error for a model whose backward pass raised."""
    if _IN_PLACE in str(problem):
        return VictimError(
            "the model changes its images, or another tensor that its gradient needs, in place "
            "(x.mul_, x[...] = ..., inplace=True): let it work on a copy, x.clone()"
        )
    return VictimError(
        f"the model raised {described(problem)}{_where(problem)} in its backward pass"
    )


def blocked(place: str = "") -> GradientError:
    """The error for a model whose answer has no gradient; `place` says where it stops."""
    return GradientError(
        "the model's answer does not depend differentiably on the image: the gradient stops "
        f"{f'at {place}' if place else 'inside the model'}. Remove the no_grad, inference_mode, "
        "detach, .data, cast to whole numbers, argmax or .numpy() there, or make that step a "
        "besiege.defenses.Layer with a surrogate (besiege show Layer). To attack the model as it "
        "is, grant no gradients, as in threat='linf:8/255 score', and use attacks that need none "
        "(square, hopskipjump)"
    )


def _where(problem: BaseException) -> str:
    """File and line in the model's own code, where there is one."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if not frame.filename.startswith((*_NOT_THEIRS, "<")):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


def out_of_memory(problem: BaseException) -> bool:
    """Whether memory ran out, so that smaller batches may help."""
    if isinstance(problem, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The CPU allocator raises a RuntimeError, whose message depends on the operating system.
    signs = ("not enough memory", "can't allocate memory")
    return isinstance(problem, RuntimeError) and any(s in described(problem) for s in signs)
