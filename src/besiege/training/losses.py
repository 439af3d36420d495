"""Objectives of classifiers: losses of clean and crafted images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.fields import number, of_kind, whole_number, yes_or_no
from besiege.training.objectives import Objective, Step, objective
from besiege.training.reaching import relative_reach

# The largest probability of another class that MART's logarithm takes, as in the authors' code.
_ABOVE_ONE = 1.0001


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
