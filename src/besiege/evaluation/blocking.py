"""Finds where the gradient of a model stops, for the error about a model without gradients."""

from __future__ import annotations

import linecache
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from besiege.core.dice import Dice
from besiege.core.door import blocked
from besiege.core.errors import GradientError, VictimError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import Samples
from besiege.core.victim import Victim

_TORCH, _OURS = (
    str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1])
)
_LONGEST = 80
"""Characters of a line of code in a message."""


@dataclass(frozen=True)
class _Step:
    """A call of torch: what it was given and returned, by address, and where the code called it."""

    given: frozenset[int]
    returned: frozenset[int]
    stops: bool
    compares: bool
    where: str


class _Steps(TorchFunctionMode):
    """Records the calls of torch while it is active; it keeps what they return alive."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self._alive: list[Any] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        given, returned = list(_things((args, kwargs or {}))), list(_things(answer))
        self._alive += [*given, *returned]
        flows = any(isinstance(one, Tensor) and one.requires_grad for one in given)
        stays = any(isinstance(one, Tensor) and one.requires_grad for one in returned)
        stops = flows and not stays
        self.steps.append(
            _Step(
                frozenset(map(id, given)),
                frozenset(map(id, returned)),
                stops,
                all(isinstance(one, Tensor) and one.dtype == torch.bool for one in returned),
                _place() if stops else "",
            )
        )
        return answer


def must_have_gradient(victim: Victim, samples: Samples, seed: int = 0) -> None:
    """Refuse a model whose answers to a few images have no gradient.

    The error says where the gradient stops. Metered victims are not queried.
    """
    if victim.metered:
        return
    with victim.held(), full_precision(victim.device):
        some = samples.to(victim.device)
        dice = Dice.throw(seed, some.ids).of("probe") if victim.stochastic else None
        try:
            Oracle(victim).gradient(some.images, lambda logits, _: logits.amax(1), dice=dice)
        except GradientError as problem:
            raise explained(problem, victim, samples, seed) from problem.__cause__
        except VictimError:  # another failure is recorded with the attacks that meet it
            pass


def explained(
    problem: GradientError, victim: Victim, samples: Samples, seed: int = 0
) -> GradientError:
    """The same error with the place where the gradient stops, if it can be found."""
    if problem.__cause__ is not None:  # it was raised at that place, and names it
        return problem
    with victim.held(), full_precision(victim.device):
        some = samples.at(torch.arange(1, device=samples.images.device)).to(victim.device)
        dice = Dice.throw(seed, some.ids).of("probe") if victim.stochastic else None
        where = ""
        try:
            with torch.inference_mode(False), torch.enable_grad(), _Steps() as seen:
                answer = victim(some.images.clone().requires_grad_(True), dice)
            where = _stop(seen.steps, answer)
        except Exception:  # the place is a courtesy: the error stands without it
            pass
    return blocked(where) if where else problem


def _stop(steps: Sequence[_Step], answer: Tensor) -> str:
    """Where the gradient stops: the first step that cuts a path to the answer.

    The answer is followed back through what has no gradient. Comparisons never have one: they are
    named only where nothing else stops. An array in between hides the path; then it is the last
    step that stops a gradient.
    """
    made = defaultdict[int, list[int]](list)  # several: some steps return what they were given
    for place, step in enumerate(steps):
        for one in step.returned:
            made[one].append(place)
    pending, visited, found = [id(answer)], set[int](), list[int]()
    while pending:
        for place in set(made[pending.pop()]) - visited:
            visited.add(place)
            if steps[place].stops:
                found.append(place)
            else:
                pending += steps[place].given
    found = [place for place in found if not steps[place].compares] or found
    if not found:
        found = [place for place, step in enumerate(steps) if step.stops][-1:]
    return steps[min(found)].where if found else ""


def _things(values: Any) -> Iterator[Any]:
    """Tensors, arrays and lists of numbers in arguments or results."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple) or (isinstance(values, list) and _has_tensors(values)):
        for one in values:
            yield from _things(one)
    elif isinstance(values, (Tensor, list)) or type(values).__module__ == "numpy":
        yield values


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(one, (Tensor, tuple, list)) for one in values)


def _place() -> str:
    """File, line and code of the model that is running; empty where torch runs without any."""
    frame: FrameType | None = sys._getframe(2)  # what called torch
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith((_TORCH, "<")):
            code = linecache.getline(file, line).strip()
            shown = code if len(code) <= _LONGEST else code[: _LONGEST - 3] + "..."
            return f"{Path(file).name}, line {line} ({shown})"
        frame = frame.f_back
    return ""
