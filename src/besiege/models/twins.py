"""An accelerated copy of a victim, for searching only: the judge never asks it."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from besiege.core.ball import ball
from besiege.core.cuda_graphs import Captures
from besiege.core.dice import Dice
from besiege.core.oracle import allow_tf32
from besiege.core.samples import Samples
from besiege.core.threat import Linf, Threat
from besiege.models.classifier import Classifier

# Folding rounds differently, by about 1e-6 of the largest logit; a twin further off is no twin.
_LOGITS_AGREE = 1e-3
# A rounding can turn a ReLU that stands at zero, and with it a part of one row's gradient.
_GRADIENTS_AGREE = 5e-2
# Eight bits of precision instead of 24, and as many layers; TF32 on a GPU has eleven.
_ROUGHER, _ROUGH = 50.0, 10.0


def twin(
    classifier: Classifier,
    probe: Tensor,
    *,
    compiled: bool = False,
    precision: torch.dtype = torch.float32,
) -> Classifier | None:
    """A copy that answers the same to rounding, and sooner.

    Batch norm is folded into the convolutions before it where `torch.fx` can follow the forward
    pass, ReLUs overwrite what nobody else reads, convolutions run channels-last, and parameters
    are frozen. The normalisation stays as it is: folding it would change what zero padding means.
    On a GPU its passes are captured as graphs. Whether there is a twin depends on the network and
    the probe, never on a clock, so that a search takes the same path every time. On a CPU there is
    none without batch norm: small networks lose by the other layout (cnn_a: 0.94x).

    Parameters
    ----------
    classifier : Classifier
        The original; it is never changed.
    probe : Tensor
        A few images ``[rows, channels, height, width]`` on which the two are compared.
    compiled : bool
        Whether `torch.compile` makes it: several seconds at first, and then faster again.
    precision : torch.dtype
        Its type; ``torch.bfloat16`` is the faster on a GPU, and searches less exactly.

    Returns
    -------
    Classifier or None
        None where nothing is gained, where no copy can be made, or where its logits or input
        gradients differ.
    """
    gpu = classifier.device.type == "cuda"
    folds = any(isinstance(m, nn.BatchNorm2d) for m in classifier.module.modules())
    if not (gpu or (classifier.device.type == "cpu" and folds)):
        return None
    try:
        module = copy.deepcopy(classifier.module)
    except (Exception, SystemExit):  # whatever a module of somebody else's raises, it has no copy
        return None
    module.eval().requires_grad_(False)
    for accelerate in (_folded, _laid_out):
        try:
            fast = accelerate(copy.deepcopy(module)).to(precision)
        except (Exception, SystemExit):  # tracing runs the module's own code, which may do anything
            continue
        candidate = alike(classifier, _compiled(fast) if compiled else fast)
        if gpu:
            candidate.captures = Captures()
        rougher = _ROUGHER if precision != torch.float32 else _ROUGH if gpu else 1.0
        if _agree(classifier, candidate, probe, rougher):
            return candidate
    return None


def probe(samples: Samples, threat: Threat, box: tuple[float, float], seed: int) -> Tensor:
    """Clean images, and points as far off as the attack may go: a twin must agree on both."""
    few = samples.at(torch.arange(min(8, len(samples)), device=samples.images.device))
    width = box[1] - box[0]
    around = ball(Linf, few.images, min(max(threat.radius, 0.1 * width), 0.5 * width), box)
    dice = Dice.throw(seed, few.ids).of("probe")
    return torch.cat([few.images, around.sample(dice), around.shell(dice, 1)])


def alike(victim: Classifier, module: Any) -> Classifier:
    """The same victim around another module."""
    return Classifier(
        module,
        mean=victim.mean,
        std=victim.std,
        box=victim.box,
        classes=victim.classes,
        outputs=victim.outputs,
        name=victim.name,
        grid=victim.grid,
    )


def _compiled(module: ChannelsLast) -> nn.Module:
    """A module made of compiled code, one for any number of rows."""
    # Not the layout around it: that code all twins share, and torch would count them together.
    # Padding of matrices would compile anew for other numbers of rows.
    module.inner = torch.compile(module.inner, dynamic=True, options={"shape_padding": False})
    return module


class ChannelsLast(nn.Module):
    """Runs a network on images laid out channels-last, which convolutions are fastest at."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        # torch's stubs do not know this form of Module.to, which its documentation describes.
        self.inner = inner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Images in any layout to what the network answers."""
        answer: Tensor = self.inner(x.contiguous(memory_format=torch.channels_last))
        return answer


def fold_batch_norm(module: nn.Module) -> fx.GraphModule:
    """Put each batch norm that follows a convolution into that convolution's weights."""
    traced = fx.symbolic_trace(module)
    modules = dict(traced.named_modules())
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        norm = modules[node.target] if node.op == "call_module" else None
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None:
            continue
        before = node.args[0]
        conv = modules[before.target] if before.op == "call_module" else None
        # A convolution that is read or called elsewhere too must keep its own weights.
        if not isinstance(conv, nn.Conv2d) or len(before.users) > 1 or calls[before.target] > 1:
            continue
        parent, _, leaf = str(before.target).rpartition(".")
        setattr(traced.get_submodule(parent), leaf, fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def overwrite_in_relu(traced: fx.GraphModule) -> fx.GraphModule:
    """Let a ReLU write over its input where that is fresh and read by nobody else."""
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if not _is_relu(node, modules):
            continue
        before = node.args[0]
        # These give a new tensor and remember nothing of it for the backward pass.
        fresh = (
            isinstance(modules[before.target], (nn.Conv2d, nn.Linear))
            if before.op == "call_module"
            else before.target in (operator.add, torch.add)
        )
        if fresh and len(before.users) == 1:
            node.op, node.target, node.args, node.kwargs = (
                "call_function",
                torch.relu_,
                (before,),
                {},
            )
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.ReLU)
    return node.op == "call_function" and node.target in (torch.relu, functional.relu)


def _folded(module: nn.Module) -> ChannelsLast:
    traced = overwrite_in_relu(fold_batch_norm(module))
    return ChannelsLast(traced).eval().requires_grad_(False)


def _laid_out(module: nn.Module) -> ChannelsLast:
    return ChannelsLast(module).eval()


def _agree(
    original: Classifier, candidate: Classifier, probe: Tensor, rougher: float = 1.0
) -> bool:
    """Whether logits and input gradients of the two are the same to rounding."""
    devices = [probe.device] if probe.is_cuda else []
    # A randomised module draws: neither the caller's stream nor the comparison may be disturbed.
    with torch.random.fork_rng(devices), original.held():
        try:
            logits, gradient = _answers(original, probe)
            with allow_tf32():
                others, other = _answers(candidate, probe)
                with torch.no_grad():  # compiled code is another without gradients
                    bare = candidate(probe)
        except Exception:  # traced code can fail; where the original does, the attack says so
            return False
    if logits.shape != others.shape or not _close(others, bare, rougher * _LOGITS_AGREE):
        return False
    return _close(logits, others, rougher * _LOGITS_AGREE) and _close(
        gradient, other, min(rougher * _GRADIENTS_AGREE, 0.5)
    )


def _answers(classifier: Classifier, probe: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.enable_grad():
        x = probe.detach().clone().requires_grad_(True)
        logits = classifier(x)
        # Different weights per class: an unweighted sum could hide classes that changed places.
        weights = torch.linspace(-1.0, 1.0, logits.shape[1], device=logits.device)
        (gradient,) = torch.autograd.grad((logits * weights).sum(), x)
    return logits.detach(), gradient


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    # Not "not greater": a NaN compares false and must not pass.
    return bool((a - b).norm() <= tolerance * a.norm())
