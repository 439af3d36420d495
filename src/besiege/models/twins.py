"""Twins: accelerated copies of a victim that attacks search on; the judge never uses them."""

from __future__ import annotations

import copy
import operator
import os
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from besiege.core.ball import ball
from besiege.core.cuda_graphs import Captures
from besiege.core.dice import Dice
from besiege.core.files import cache_folder
from besiege.core.oracle import allow_tf32
from besiege.core.samples import Samples
from besiege.core.threat import Linf, Threat
from besiege.models.classifier import Classifier

# Folding rounds differently, by about 1e-6 of the largest logit; more than this is an error.
_LOGITS_AGREE = 1e-3
# Rounding can switch a ReLU whose input is near zero, and with it a part of one row's gradient.
_GRADIENTS_AGREE = 5e-2
# Factors for bfloat16 (8 bits of precision instead of 24) and for TF32 on a GPU (11 bits).
_ROUGHER, _ROUGH = 50.0, 10.0
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def twin(
    classifier: Classifier,
    probe: Tensor,
    *,
    compiled: bool = False,
    precision: torch.dtype = torch.float32,
) -> Classifier | None:
    """A faster copy with the same answers up to rounding.

    Batch norm is folded into the convolutions before it if `torch.fx` can trace the forward pass,
    ReLUs work in place where no other node reads their input, convolutions run channels-last, and
    parameters are frozen. The normalisation is not folded: that would change what zero padding
    means. On a GPU, forward and backward passes are captured as CUDA graphs. Whether there is a
    twin depends on the network and the probe, never on timing, so that a search is reproducible.
    On a CPU only networks with batch norm have one: small networks get slower in the other layout
    (cnn_a: 0.94x).

    Parameters
    ----------
    classifier : Classifier
        The original; it is never changed.
    probe : Tensor
        A few images ``[rows, channels, height, width]`` on which the two are compared.
    compiled : bool
        Whether to use `torch.compile`: several seconds of compilation, then faster still.
    precision : torch.dtype
        Its type; ``torch.bfloat16`` is faster on a GPU, and searches less exactly.

    Returns
    -------
    Classifier or None
        None if nothing is gained, if the module cannot be copied, or if the copy's logits or input
        gradients differ.
    """
    gpu = classifier.device.type == "cuda"
    folds = any(isinstance(m, nn.BatchNorm2d) for m in classifier.module.modules())
    if not (gpu or (classifier.device.type == "cpu" and folds)):
        return None
    try:
        module = copy.deepcopy(classifier.module)
    except (Exception, SystemExit):  # a user's module may raise anything when it is copied
        return None
    module.eval().requires_grad_(False)
    for accelerate in (_folded, _laid_out):
        try:
            fast = accelerate(copy.deepcopy(module)).to(precision)
        except (Exception, SystemExit):  # tracing runs the module's own code, which may raise too
            continue
        candidate = alike(classifier, _compiled(fast) if compiled else fast)
        if gpu:
            candidate.captures = Captures()
        rougher = _ROUGHER if precision != torch.float32 else _ROUGH if gpu else 1.0
        if _agree(classifier, candidate, probe, rougher):
            return candidate
    return None


def probe(samples: Samples, threat: Threat, box: tuple[float, float], seed: int) -> Tensor:
    """Clean images, and points as far away as the threat allows: a twin must agree on both."""
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
        sizing=victim.sizing,
    )


def keep_compiled() -> None:
    """Have torch keep what it compiles in the user's cache, for later runs.

    Its default is a folder of temporary files. A folder that the environment names stays.
    """
    cache = cache_folder()
    if cache is None or _INDUCTOR in os.environ:
        return
    with suppress(OSError):  # a folder that cannot be written: torch keeps its default
        (cache / "inductor").mkdir(parents=True, exist_ok=True)
        os.environ[_INDUCTOR] = str(cache / "inductor")


def _compiled(module: ChannelsLast) -> nn.Module:
    """The module with its inner network compiled, once for any number of rows."""
    keep_compiled()
    # Not the `ChannelsLast` around it: all twins share its code, and torch limits recompilations
    # per code object. Padding of matrices would recompile for other numbers of rows.
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
    """Fold each batch norm that follows a convolution into that convolution's weights."""
    traced = fx.symbolic_trace(module)
    modules = dict(traced.named_modules())
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        norm = modules[node.target] if node.op == "call_module" else None
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None:
            continue
        before = node.args[0]
        conv = modules[before.target] if before.op == "call_module" else None
        # A convolution that is used elsewhere too must keep its own weights.
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
    """Make a ReLU work in place if its input is a new tensor that no other node reads."""
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if not _is_relu(node, modules):
            continue
        before = node.args[0]
        # These return a new tensor and do not need it in the backward pass.
        fresh = (
            isinstance(modules[before.target], (nn.Conv2d, nn.Linear))
            if before.op == "call_module"
            else before.target in (operator.add, torch.add)
        )
        if fresh and len(before.users) == 1:
            node.op, node.target = "call_function", torch.relu_
            node.args, node.kwargs = (before,), {}
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
    """Whether logits and input gradients of the two are equal up to rounding."""
    devices = [probe.device] if probe.is_cuda else []
    # A randomised module draws numbers: the caller's random state must not change.
    with torch.random.fork_rng(devices), original.held():
        try:
            logits, gradient = _answers(original, probe)
            with allow_tf32():
                others, other = _answers(candidate, probe)
                with torch.no_grad():  # torch.compile makes other code for this
                    bare = candidate(probe)
        except Exception:  # traced code can fail; if the original does, the attack reports it
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
        # Different weights per class: an unweighted sum would hide swapped classes.
        weights = torch.linspace(-1.0, 1.0, logits.shape[1], device=logits.device)
        (gradient,) = torch.autograd.grad((logits * weights).sum(), x)
    return logits.detach(), gradient


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    # Written as "<=", which is false for NaN.
    return bool((a - b).norm() <= tolerance * a.norm())
