"""The model under attack: one base class that names everything besiege asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from besiege.core.cells import Cells
from besiege.core.cuda_graphs import Captures
from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError, near
from besiege.core.identity import code, plain
from besiege.core.threat import Access, Threat

if TYPE_CHECKING:
    from besiege.core.samples import Samples, Withheld

AnyVictim = TypeVar("AnyVictim", bound="Victim")

DERIVE = "derive from besiege.core.victim.Victim"
"""The advice to the author of an object that behaves like a victim and is none."""
_DEVICES = ("cpu", "cuda", "mps", "xpu")
_COPIED = (
    *("box", "grid", "classes", "outputs", "access", "metered", "stochastic", "rejects"),
    *("passes", "together"),
)
# Copied where it is stated: attributes are part of the digest.
_STATED = ("nominal_rejections",)
# Attributes that the digest does not depend on: the name, and where the victim computes.
_IDLE = ("name", "device", "captures")


class Victim(ABC):
    """A model under attack. A new type of victim overrides `__call__` and what differs.

    Nothing outside this class asks whether a victim has an attribute: every one has them all.

    Attributes
    ----------
    name : str
        What reports call it. Default: the name of its class.
    box : (float, float)
        The range of pixel values it accepts. Default: (0, 1).
    grid : float, optional
        Step of the pixel values it can receive, such as 1/255. Default: none.
    classes : int, optional
        How many classes there are. Default: determined on first use.
    outputs : str
        The output of its network, ``"logits"`` or ``"probabilities"``; `__call__` always returns
        logits. Default: ``"logits"``.
    access : Access
        The most that it grants. Default: gradients.
    metered : bool
        Whether every image is paid for: then no padding is sent. Default: no.
    stochastic : bool
        Whether answers depend on the dice given with the images. Default: no.
    rejects : bool
        Whether it answers one column more than `classes`, the last: larger than all others exactly
        when it rejects the image. Default: no.
    nominal_rejections : float, optional
        The share of clean images that it was calibrated to reject; reports compare it with the
        realised share. Default: not known.
    passes : int
        Forward passes of the network for one answer. Default: 1.
    draws : int
        Draws of its randomness that one answer pools. Default: 1.
    together : int
        Images it wants per call; 0 lets the oracle choose. Default: 0.
    levels : int, optional
        Levels of thermometer codes, ``[rows, channels, levels, height, width]``, which it takes in
        place of images. Default: it takes images only.
    cells : Cells, optional
        The cells of pixel values that a layer in front does not tell apart, or a detector's; the
        fewest where there are several. Default: there are none.
    captures : Captures, optional
        CUDA graphs of its passes. Default: none.
    withheld : Withheld, optional
        Images that it was calibrated on, which an evaluation leaves out. Default: none.
    behind : Victim, optional
        The victim this one stands in front of, set by `adopt`. Default: none.
    parts : tuple of Victim or nn.Module
        All networks and victims inside. `device`, `to`, `held` and `digest` reach them. Default:
        the victim behind it, if there is one.
    bare : Victim
        The undefended model that an attacker who ignores the defense would use. Default: itself.
    source : Victim
        The last victim behind this one; itself where there is none.
    apart : list of (float, Victim), optional
        Weights and members whose losses are fused, see `fused`. Default: none.
    device : torch.device
        Where it computes. Default: the device of its first part, else the CPU.
    """

    box: tuple[float, float] = (0.0, 1.0)
    grid: float | None = None
    classes: int | None = None
    outputs: str = "logits"
    access: Access = Access.GRADIENT
    metered: bool = False
    stochastic: bool = False
    rejects: bool = False
    nominal_rejections: float | None = None
    passes: int = 1
    draws: int = 1
    together: int = 0
    levels: int | None = None
    cells: Cells | None = None
    captures: Captures | None = None
    withheld: Withheld | None = None
    behind: Victim | None = None

    @abstractmethod
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits float32 ``[rows, classes]`` of images in the box.

        A stochastic victim draws from `dice`, which has one key per image, and from nothing else.
        """

    @cached_property
    def name(self) -> str:
        """What reports call it."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        """All networks and victims inside."""
        return () if self.behind is None else (self.behind,)

    @property
    def bare(self) -> Victim:
        """The undefended model."""
        return self

    @property
    def source(self) -> Victim:
        """The last victim behind this one."""
        last: Victim = self
        while last.behind is not None:
            last = last.behind
        return last

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members whose losses are fused."""
        return None

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """One answer from the members of `apart`, in their order."""
        raise NotImplementedError(f"{type(self).__name__} has no members whose losses are fused")

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        for part in self.parts:
            if isinstance(part, Victim):
                return part.device
            if (tensor := floating(part)) is not None:
                return tensor.device
        return torch.device("cpu")

    def to(self, device: str | torch.device) -> Self:
        """Move every part, as torch does, and return this victim.

        Parameters
        ----------
        device : str or torch.device
            Such as ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        """
        if not self.parts and str(device) != str(self.device):
            raise InputError(
                f"a {type(self).__name__} cannot be moved to '{device}': make it there in the "
                "first place"
            )
        for part in self.parts:
            part.to(device) if isinstance(part, Victim) else _move(part, device)
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Evaluation mode and frozen parameters of every part, then everything as it was."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(
                    part.held() if isinstance(part, Victim) else frozen(part, self.name)
                )
            yield

    def digest(self) -> str:
        """SHA-256, as hexadecimal text, of everything that decides the answers.

        Covers the code of the class and its attributes, victims inside by their own digests;
        neither the name nor the device. Override it where an attribute changes with use.
        """
        held = {key: _identified(v) for key, v in vars(self).items() if key not in _IDLE}
        # This class goes in by name: a comment written here must not change users' digests.
        text = code(type(self), {id(Victim)}) + plain(held)
        return sha256(text.encode()).hexdigest()

    def twin(
        self,
        samples: Samples,
        threat: Threat,
        *,
        seed: int = 0,
        compiled: bool = False,
        precision: torch.dtype = torch.float32,
    ) -> Victim | None:
        """An accelerated victim to search on, if one agrees with this one around some samples."""
        return None

    def adopt(self, victim: AnyVictim) -> AnyVictim:
        """Stand in front of another victim: copy what it declares, and return it.

        Copies box, grid, classes, outputs, access, metered, stochastic, rejects, passes, draws,
        together and withheld.
        """
        for what in (*_COPIED, *(one for one in _STATED if getattr(victim, one) is not None)):
            setattr(self, what, getattr(victim, what))
        if victim.draws != 1:  # otherwise not set: attributes are part of the digest
            self.draws = victim.draws
        if victim.withheld is not None:
            self.withheld = victim.withheld
        self.behind = victim
        return victim


@contextmanager
def frozen(module: nn.Module, name: str) -> Iterator[None]:
    """Evaluation mode and frozen parameters of a module, then everything as it was."""
    modes = [(m, m.training) for m in module.modules()]
    grads = [(p, p.requires_grad) for p in module.parameters()]
    if any(p.is_meta for p, _ in grads):
        raise VictimError(
            f"{name} has weights on the meta device, which have no values: load them first"
        )
    try:
        for part, _ in modes:
            # The flag itself: a module may override train().
            part.training = False
        for parameter, _ in grads:
            parameter.requires_grad_(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, grad in grads:
            parameter.requires_grad_(grad)


def floating(module: nn.Module) -> Tensor | None:
    """Any floating-point parameter or buffer: it shows the device and type of the module."""
    tensors = chain(module.parameters(), module.buffers())
    return next((t for t in tensors if t.is_floating_point()), None)


def _move(module: nn.Module, device: str | torch.device) -> None:
    try:
        module.to(torch.device(device))
    # torch raises several types for an unknown or missing device.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        kind = str(device).partition(":")[0]
        reason = str(error).strip().splitlines()[0] if kind in _DEVICES else near(kind, _DEVICES)
        raise InputError(
            f"the device '{device}' cannot be used: {reason} "
            "(write 'cpu', or 'cuda' or 'cuda:1' for a GPU)"
        ) from None


def _identified(value: Any) -> Any:
    """An attribute as the digest takes it: victims as their digests."""
    if isinstance(value, Victim):
        return value.digest()
    if type(value) in (list, tuple):
        return [_identified(one) for one in value]
    if type(value) is dict:
        return {key: _identified(one) for key, one in value.items()}
    return value
