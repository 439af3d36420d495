"""Objectives: the loss of one training step, as frozen values with a text form.

An objective is a function of a `Step`, which holds the images, what was crafted from them and the
model in training mode, and returns one loss. `Training` alone holds optimiser, averages and
checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.fields import check_fields, number, of_kind, whole_number, yes_or_no
from besiege.core.registry import Registry
from besiege.core.vocabulary import Vocabulary
from besiege.training.reaching import relative_reach

if TYPE_CHECKING:
    from besiege.training.bounded import Around

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    ("besiege.training.objectives", "besiege.training.bounded"),
    "besiege.objectives",
)
LANGUAGE = Vocabulary(OBJECTIVES)
T = TypeVar("T", bound="type[Objective]")

# The largest probability of another class that MART's logarithm takes, as in the authors' code.
_ABOVE_ONE = 1.0001
# Added to the diagonal of ADP's matrix: identical members would have a determinant of zero.
_JITTER = 1e-6


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


@objective("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Cross-entropy of the crafted images, and of the clean ones beside them.

    Parameters
    ----------
    clean : float
        Weight of the clean images; the crafted ones have the rest. 0 is the training of Madry et
        al. (2018), 1/2 that of Tramèr et al. (2018), 1/1.3 that of Kurakin et al. (2017), whose
        weights 1 and 0.3 are divided by their sum.
    smoothing : float
        Label smoothing; attacks always use the labels themselves.
    temperature : float
        Divisor of the logits, as for the teacher of a distillation.
    """

    clean: float = number(0.0, most=1)
    smoothing: float = number(0.0, below=1)
    temperature: float = number(1.0, above=0)

    def __call__(self, step: Step) -> Tensor:
        loss = self._of(step.seen, step.y)
        if self.clean > 0 and step.crafted is not step.x:
            loss = (1 - self.clean) * loss + self.clean * self._of(step.clean, step.y)
        return loss

    def _of(self, logits: Tensor, y: Tensor) -> Tensor:
        if self.temperature != 1:
            logits = logits / self.temperature
        return functional.cross_entropy(logits, y, label_smoothing=self.smoothing)


def divergence(clean: Tensor, other: Tensor) -> Tensor:
    """``KL(p_clean || p_other)`` of every row, from logits."""
    return functional.kl_div(
        other.log_softmax(1), clean.log_softmax(1), reduction="none", log_target=True
    ).sum(1)


@objective("trades")
@dataclass(frozen=True)
class Trades(Objective):
    """``CE(x) + beta KL(p(x) || p(x'))``, with gradients through both (Zhang et al. 2019).

    The images x' maximise the same divergence: ``attack=pgd(loss=divergence, ...)``.
    """

    beta: float = number(6.0)
    needs_attack = True

    def __call__(self, step: Step) -> Tensor:
        usual = functional.cross_entropy(step.clean, step.y)
        return usual + self.beta * divergence(step.clean, step.seen).mean()


@objective("smoothadv")
@dataclass(frozen=True)
class SmoothAdv(Objective):
    """Adversarial training of a smoothed classifier (Salman et al. 2019).

    An image is crafted against the mean probability over `noises` draws of the layers' noise, which
    stay the same through the steps of the attack: it maximises ``-log mean_j p_y(x' + n_j)``. The
    loss is the mean cross-entropy of the same noisy images, ``mean_j CE(x' + n_j)``.

    Parameters
    ----------
    noises : int
        Draws of noise of each image. With fresh noise in each step many more would be needed.
    """

    noises: int = whole_number(2)
    needs_attack = True

    def __call__(self, step: Step) -> Tensor:
        every = step.noisy.float()
        return functional.cross_entropy(every.flatten(0, 1), step.y.repeat(len(every)))


@objective("mart")
@dataclass(frozen=True)
class Mart(Objective):
    """Misclassification-aware training (Wang et al. 2020).

    ``-log p_y(x') - log(1.0001 - max_{k != y} p_k(x')) + weight KL(p(x) || p(x')) (1 - p_y(x))``:
    images that are misclassified already count most, and gradients pass through that weight too.
    """

    weight: float = number(5.0)
    needs_attack = True

    def __call__(self, step: Step) -> Tensor:
        own = step.y[:, None]
        likely = step.seen.softmax(1)
        rival = likely.scatter(1, own, 0.0).amax(1)
        boosted = functional.cross_entropy(step.seen, step.y) - torch.log(_ABOVE_ONE - rival).mean()
        doubt = 1 - step.clean.softmax(1).gather(1, own)[:, 0]
        return boosted + self.weight * (divergence(step.clean, step.seen) * doubt).mean()


@objective("pairing")
@dataclass(frozen=True)
class Pairing(Objective):
    """Adversarial logit pairing (Kannan et al. 2018).

    Half the cross-entropy of each image and of its adversarial version, and `weight` times the
    squared distance of their logits: summed over classes, averaged over the batch.
    """

    weight: float = number(0.5)
    needs_attack = True

    def __call__(self, step: Step) -> Tensor:
        both = [functional.cross_entropy(logits, step.y) for logits in (step.clean, step.seen)]
        apart = (step.clean - step.seen).square().sum(1).mean()
        return 0.5 * (both[0] + both[1]) + self.weight * apart


@objective("gradient_penalty")
@dataclass(frozen=True)
class GradientPenalty(Objective):
    """Input-gradient regularisation (Ross and Doshi-Velez 2018), by double backpropagation.

    Parameters
    ----------
    weight : float
        Weight of the squared l2 norm of each image's gradient of its own loss.
    per_example : bool
        Whether these are averaged over the batch. False takes the gradient of the batch's mean loss
        instead, as DEEPSEC's code does: the penalty is then ``B`` times smaller for a batch of B,
        so that its weight 316 with batches of 100 is 3.16 here.
    """

    weight: float = number(1.0)
    per_example: bool = yes_or_no(True)
    second_order = True
    reads_slope = True

    def __call__(self, step: Step) -> Tensor:
        loss = functional.cross_entropy(step.seen, step.y)
        (slope,) = torch.autograd.grad(loss, step.crafted, create_graph=True)
        # The gradient of a mean is the images' own gradients divided by their number.
        rows = len(slope) if self.per_example else 1
        return loss + self.weight * rows * slope.square().sum()


@objective("distil")
@dataclass(frozen=True)
class Distil(Objective):
    """Defensive distillation (Papernot et al. 2016): the teacher's probabilities as labels.

    ``-sum p log softmax(z / T)`` with ``p = softmax(z_teacher / T)``. The student is deployed with
    T = 1: its logits are T times larger, which hides its gradients from cross-entropy in float32.

    Parameters
    ----------
    teacher : str, optional
        The model that labels. Without one, `fit` first trains one of the same architecture, with
        ``cross_entropy(temperature=T)``.
    temperature : float
        The T of both.
    """

    teacher: str | None = of_kind(None, str, "the text of a model")
    temperature: float = number(50.0, above=0)
    needs_teacher = True

    def __call__(self, step: Step) -> Tensor:
        assert step.teacher is not None
        soft = (step.teacher(step.crafted) / self.temperature).softmax(1)
        return functional.cross_entropy(step.seen / self.temperature, soft)


@objective("diversity")
@dataclass(frozen=True)
class Diversity(Objective):
    """Adaptive diversity promoting for a ``joint`` network (Pang et al. 2019).

    ``sum_k CE_k - alpha H(mean p) - beta log det G``, where G holds the inner products of the
    members' probabilities without the true class, each scaled to length one.
    """

    alpha: float = number(2.0)
    beta: float = number(0.5)
    needs_members = True

    def __call__(self, step: Step) -> Tensor:
        logits = step.members.float()
        members, rows, classes = logits.shape
        each = functional.cross_entropy(logits.flatten(0, 1), step.y.repeat(members)) * members
        # From logarithms: probabilities of a confident member round to zero, where neither the
        # entropy nor a length has a gradient.
        mean = logits.log_softmax(2).logsumexp(0) - math.log(members)
        entropy = -(mean.exp() * mean).sum(1).mean()
        # By their places and not by a mask, whose number of elements a GPU would have to report.
        others = torch.arange(classes - 1, device=logits.device).expand(rows, -1)
        others = others + (others >= step.y[:, None])
        wrong = logits.transpose(0, 1).gather(2, others[:, None].expand(-1, members, -1))
        # The softmax without the true class has the direction of the probabilities without it.
        wrong = functional.normalize(wrong.softmax(2), dim=2)
        alike = wrong @ wrong.mT + _JITTER * torch.eye(members, device=logits.device)
        loss: Tensor = each - self.alpha * entropy - self.beta * torch.logdet(alike).mean()
        return loss

    def check(self, classes: int, members: int) -> None:
        if members > classes - 1:
            raise InputError(
                f"'diversity' needs at most classes - 1 members, and the model has {members} for "
                f"{classes} classes: the determinant would be zero; write members={classes - 1}"
            )


@objective("centres")
@dataclass(frozen=True)
class Centres(Objective):
    """Max-Mahalanobis centre loss (Pang et al. 2020): half the squared distance to a fixed centre.

    The outputs of the network are the features, one per class, and the centres a simplex of length
    `scale`: ``scale sqrt(L / (L - 1)) (e_k - 1 / L)``. Its centres have the inner products of the
    published ones, and the nearest centre is that of the largest output. The 256 features of the
    paper add directions that its classifier ignores.
    """

    scale: float = number(10.0, above=0)

    def __call__(self, step: Step) -> Tensor:
        centres = self.scale * simplex(step.seen.shape[1], step.seen.device)
        loss: Tensor = 0.5 * (step.seen - centres[step.y]).square().sum(1).mean()
        return loss


def simplex(classes: int, device: torch.device | None = None) -> Tensor:
    """Unit vectors ``[classes, classes]`` whose inner products are ``-1 / (classes - 1)``."""
    scale = math.sqrt(classes / (classes - 1))
    return scale * (torch.eye(classes, device=device) - 1 / classes)


@objective("reach")
@dataclass(frozen=True)
class Reach(Objective):
    """DeepDefense (Yan et al. 2018): cross-entropy, and a reward for distant DeepFool points.

    For an image that is classified correctly ``exp(-right r)``, for another ``exp(wrong r)``,
    where r is the length of its DeepFool perturbation divided by that of the image. Gradients pass
    through the perturbation. A trained network is fine-tuned with it.

    Parameters
    ----------
    weight : float
        Weight beside the cross-entropy.
    right, wrong : float
        The two factors.
    steps : int
        Iterations of DeepFool.
    """

    weight: float = number(15.0)
    right: float = number(25.0)
    wrong: float = number(5.0)
    steps: int = whole_number(5)
    second_order = True
    fine_tunes = True

    def __call__(self, step: Step) -> Tensor:
        reach, right = relative_reach(step.still, step.x, step.y, self.steps)
        usual = functional.cross_entropy(step.seen, step.y)
        # One exponential: that of the branch not taken could overflow, and spoil the gradient.
        factor = torch.where(right, -self.right, self.wrong)
        return usual + self.weight * torch.exp(factor * reach).mean()


@objective("likelihood")
@dataclass(frozen=True)
class Likelihood(Objective):
    """Mean negative log-likelihood of pixel values under a PixelCNN, in bits per dimension.

    A value at the share s of the box has the level ``round(s (levels - 1))``. The network sees the
    levels' values, and answers their logits ``[rows, channels, levels, height, width]``; the loss
    is ``-log2 p(level)``, averaged over pixel values and images.
    """

    classifies = False

    def __call__(self, step: Step) -> Tensor:
        assert step.network is not None
        logits = step.network(step.crafted).float()
        low, width = step.box[0], step.box[1] - step.box[0]
        level = ((step.crafted - low) / width * (logits.shape[2] - 1)).round().long()
        loss = functional.cross_entropy(logits.flatten(0, 1), level.flatten(0, 1))
        return loss / math.log(2)

    def check_answer(self, x: Tensor, answer: Tensor) -> None:
        shape = x.shape[:2] + answer.shape[2:3] + x.shape[2:]
        if answer.dim() != 5 or answer.shape != shape:
            raise InputError(
                f"'likelihood' trains a network that answers logits [rows, channels, levels, "
                f"height, width], and this one answers {list(answer.shape)} to images "
                f"{list(x.shape)}: choose an architecture such as pixelcnn"
            )


@objective("reconstruction")
@dataclass(frozen=True)
class Reconstruction(Objective):
    """A network that removes noise: the mean squared error of ``net(x + noise)`` (MagNet, 2017).

    With a guide it is HGD's loss (Liao et al. 2018), the mean absolute difference between the
    guide's logits of ``net(x + noise)`` and of x: a small error in pixels may be a large one to the
    model behind.

    Parameters
    ----------
    noise : float
        Standard deviation of Gaussian noise on the network's input, which is clipped to the box; as
        a share of the box. MagNet has 0.1 for MNIST and 0.025 for CIFAR-10.
    guide : str, optional
        The model whose logits are compared: ``zoo:NAME`` or ``ARCH:FILE``. It is not trained.
    """

    noise: float = number(0.1)
    guide: str | None = None
    classifies = False

    def __call__(self, step: Step) -> Tensor:
        assert step.network is not None
        x, (low, high) = step.crafted, step.box
        drawn = step.dice.of("noise").normal(tuple(x.shape[1:])).to(x)
        made = step.network((x + self.noise * (high - low) * drawn).clamp(low, high)).float()
        if step.guide is None:
            return functional.mse_loss(made, x)
        with torch.no_grad():
            wanted = step.guide(x)
        return functional.l1_loss(step.guide(made.clamp(low, high)), wanted)

    def check_answer(self, x: Tensor, answer: Tensor) -> None:
        if answer.shape != x.shape:
            raise InputError(
                f"'reconstruction' trains a network that answers images, and this one answers "
                f"{list(answer.shape)} to images {list(x.shape)}: choose an architecture such as "
                "autoencoder"
            )
