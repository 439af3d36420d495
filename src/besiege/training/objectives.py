"""Objectives: the loss of one training step, as frozen values with a text form.

An objective is a function of a `Step`, which holds the images, what was crafted from them and the
model in training mode, and returns one loss. `Training` alone holds optimiser, averages and
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.fields import check_fields
from besiege.core.registry import Registry
from besiege.core.vocabulary import Vocabulary

if TYPE_CHECKING:
    from besiege.training.bounded import Around

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    tuple(f"besiege.training.{name}" for name in ("losses", "separating", "restoring", "bounded")),
    "besiege.objectives",
)
LANGUAGE = Vocabulary(OBJECTIVES)
T = TypeVar("T", bound="type[Objective]")


@dataclass(frozen=True, eq=False)
class Step:
    """All that the loss of one training step may depend on.

    Attributes
    ----------
    x, y : Tensor
        Clean images as they were augmented, and their labels.
    crafted : Tensor
        The adversarial images; `x` itself where nothing is crafted.
    ask : callable
        Logits of images, with the model in training mode.
    still : callable
        Logits of images with the model in evaluation mode, differentiable in its weights.
    each : callable
        Logits of every member of a joint network, ``[members, rows, classes]``.
    teacher : callable, optional
        Logits of the teacher, which is never trained.
    dice : Dice
        Random draws of every row, for this step.
    epoch : int
        Counted from 1.
    network : callable, optional
        What the network itself answers to images, of any shape, in training mode.
    guide : callable, optional
        Logits of the model that guides a denoiser, differentiable in the images.
    box : (float, float)
        The range of pixel values.
    classifies : bool
        Whether the network is a classifier.
    under : callable, optional
        Logits of images, ``[noises, rows, classes]``, under the noise they were crafted with.
    progress : float
        The share of the whole training that is over, from 0 to below 1.
    around : callable, optional
        Bounds of the network's values within a share of the budget around the clean images.
    """

    x: Tensor
    y: Tensor
    crafted: Tensor
    ask: Callable[[Tensor], Tensor]
    still: Callable[[Tensor], Tensor]
    each: Callable[[Tensor], Tensor]
    teacher: Callable[[Tensor], Tensor] | None
    dice: Dice
    epoch: int
    network: Callable[[Tensor], Tensor] | None = None
    guide: Callable[[Tensor], Tensor] | None = None
    box: tuple[float, float] = (0.0, 1.0)
    classifies: bool = True
    under: Callable[[Tensor], Tensor] | None = None
    progress: float = 0.0
    around: Callable[[float], Around] | None = None

    @cached_property
    def seen(self) -> Tensor:
        """Logits of the crafted images, computed once."""
        return self.ask(self.crafted)

    @cached_property
    def clean(self) -> Tensor:
        """Logits of the clean images, computed once."""
        return self.seen if self.crafted is self.x else self.ask(self.x)

    @cached_property
    def members(self) -> Tensor:
        """Logits of every member for the crafted images, computed once."""
        return self.each(self.crafted)

    @cached_property
    def noisy(self) -> Tensor:
        """Logits of the crafted images under each noise, computed once."""
        assert self.under is not None
        return self.under(self.crafted)

    def correct(self) -> Tensor:
        """How many of the images that were trained on are classified correctly, if any can be."""
        if not self.classifies:
            return self.y.new_zeros(())
        several = next((one for one in ("members", "noisy") if one in vars(self)), None)
        answer = self.seen if several is None else vars(self)[several].softmax(2).mean(0)
        return (answer.argmax(1) == self.y).sum()


class Objective:
    """The loss of a training step; subclasses are frozen dataclasses registered under a name."""

    needs_attack: ClassVar[bool] = False
    """Whether crafted images are part of the loss, so that a recipe without an attack is wrong."""
    needs_teacher: ClassVar[bool] = False
    """Whether a teacher labels the images."""
    teacher: str | None = None
    fine_tunes: ClassVar[bool] = False
    """Whether it improves a trained network, and does not train one."""
    needs_members: ClassVar[bool] = False
    """Whether it trains several networks together, such as those of `joint`."""
    second_order: ClassVar[bool] = False
    """Whether gradients of gradients are taken: such a step is never compiled."""
    reads_slope: ClassVar[bool] = False
    """Whether the gradient with respect to the crafted images is taken."""
    classifies: ClassVar[bool] = True
    """Whether it trains a classifier; otherwise a network of a layer, without labels."""
    proves: ClassVar[bool] = False
    """Whether it trains against bounds of the network within the budget, and without an attack."""
    guide: str | None = None
    noises: int = 0
    """Draws of the layers' noise that stay while an image is crafted; 0 for new ones in each step.
    """

    __post_init__ = check_fields

    def __call__(self, step: Step) -> Tensor:
        """The loss, a scalar to be minimised."""
        raise NotImplementedError

    def check(self, classes: int, members: int) -> None:
        """Refuse a joint network that this objective cannot train."""

    def check_answer(self, x: Tensor, answer: Tensor) -> None:
        """Refuse a network that is no classifier by its answer to some images."""

    def __str__(self) -> str:
        return LANGUAGE.text(self)


def objective(name: str) -> Callable[[T], T]:
    """Register an objective under a name of the text form."""
    return OBJECTIVES.register(name)
