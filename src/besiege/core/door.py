"""The door to a model: what it may answer, and what is said when it raises.

Whatever a model does, its caller sees logits in float32 or a `VictimError` of one sentence.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch import Tensor

from besiege.core.errors import BesiegeError, VictimError, described

SMALLEST_PROBABILITY = 1e-30
_IN_PLACE = "modified by an inplace operation"


def logits_of(answer: object, rows: int, name: str, outputs: str = "logits") -> Tensor:
    """What a module answered to so many images, as logits in float32; refused if it is not that."""
    if not isinstance(answer, Tensor) or answer.ndim != 2 or len(answer) != rows:
        shape = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise VictimError(
            f"{name} answered {shape} to {rows} images, but a classifier answers a "
            "tensor [rows, classes]: wrap the module so that it returns its logits alone"
        )
    must_be_real(answer, name)
    if answer.dtype != torch.float64:
        answer = answer.float()
    if outputs == "probabilities":
        answer = answer.clamp_min(SMALLEST_PROBABILITY).log()
    return answer if answer.dtype == torch.float32 else rounded(answer)


def must_be_real(logits: Tensor, name: str = "the model") -> None:
    """Refuse logits that are no floating-point numbers in memory."""
    if logits.is_meta:
        raise VictimError(
            f"{name} answered a meta tensor, which has no values: load its weights first"
        )
    if logits.layout is not torch.strided or not logits.dtype.is_floating_point:
        kind = str(logits.dtype if logits.layout is torch.strided else logits.layout)
        raise VictimError(
            f"{name} answered {kind.removeprefix('torch.')} logits, but logits are dense "
            "floating-point numbers: wrap the module so that it returns those"
        )


def rounded(logits: Tensor) -> Tensor:
    """Logits of float64 in float32, with the same class on top.

    Rounding makes ties of what differs. Where the largest logit ties with one that was smaller, it
    is raised by the smallest amount there is, so that every label and margin has the right sign.
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
    """The sum of every row's largest logit: finite if and only if every row names a class.

    NaN and infinity are the largest of their row, and so is -inf, for a class that is ruled out,
    where all are. One number, so that a GPU need not be waited for.
    """
    return logits.detach().amax(1).sum(dtype=torch.float64)


def not_numbers() -> VictimError:
    """What is said of such logits."""
    return VictimError(
        "the model answered NaN or infinite logits (or -inf for every class), so nothing can be "
        "said about its robustness; check its weights and its normalisation"
    )


def is_theirs(problem: BaseException) -> bool:
    """Whether the model is to blame for what was raised while it ran."""
    ours = isinstance(problem, (BesiegeError, KeyboardInterrupt, GeneratorExit))
    return not ours and not out_of_memory(problem)


def raised(problem: BaseException, shape: tuple[int, ...]) -> VictimError:
    """What is said of a model that raised when it was given images of a shape."""
    if isinstance(problem, RuntimeError) and type(problem) is RuntimeError:
        said = described(problem).removeprefix("RuntimeError: ")
        return VictimError(
            f"the model could not take images {shape}: {said}{_where(problem)}. Images are "
            "[rows, channels, height, width]; for channels last, pass images.permute(0, 3, 1, 2)"
        )
    return VictimError(
        f"the model raised {described(problem)}{_where(problem)} when it was given images {shape}"
    )


def raised_backwards(problem: BaseException) -> VictimError:
    """What is said where no gradient came back through a model."""
    if _IN_PLACE in str(problem):
        return VictimError(
            "the model changes its images, or another tensor that its gradient needs, in place "
            "(x.mul_, x[...] = ..., inplace=True): let it work on a copy, x.clone()"
        )
    return VictimError(
        f"the model raised {described(problem)}{_where(problem)} in its backward pass"
    )


def _where(problem: BaseException) -> str:
    """The place in the model's own code, where there is one."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        parts = Path(frame.filename).parts
        if not {"torch", "besiege"} & set(parts) and not frame.filename.startswith("<"):
            return f" ({parts[-1]}, line {frame.lineno})"
    return ""


def out_of_memory(problem: BaseException) -> bool:
    """Whether memory ran out, so that smaller batches may help."""
    # Of the CPU allocator there is only the message, and that depends on the system.
    if isinstance(problem, MemoryError):
        return True
    if not isinstance(problem, RuntimeError):
        return False
    said = described(problem)
    return (
        isinstance(problem, torch.OutOfMemoryError)
        or "not enough memory" in said
        or "can't allocate memory" in said
    )
