"""State that a run must not change: of modules, random generators and torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def changed_in(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names of what differs between two states."""
    return [key for key in old if not _equal(old[key], new[key])]


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor):
        return isinstance(new, Tensor) and torch.equal(old, new)
    return bool(old == new)


def state_of(module: nn.Module) -> dict[str, Any]:
    """Modes, parameters, buffers, ``grad`` and ``requires_grad`` of a module."""
    state: dict[str, Any] = {f"mode of '{k}'": m.training for k, m in module.named_modules()}
    for name, parameter in module.named_parameters():
        state[f"requires_grad of {name}"] = parameter.requires_grad
        grad = parameter.grad
        # Both the tensor's identity and its values.
        state[f"grad of {name}"] = None if grad is None else grad.detach().clone()
        state[f"identity of the grad of {name}"] = None if grad is None else id(grad)
    for name, tensor in module.state_dict().items():
        state[f"value of {name}"] = tensor.detach().clone()
    return state


def surroundings() -> tuple[dict[str, Any], dict[str, Any]]:
    """The global random states, and the modes and settings of torch."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    random_states = {
        "torch": torch.get_rng_state(),
        "numpy": (kind, tuple(np.asarray(keys).tolist()), *rest),
        "random": random.getstate(),
    }
    modes = {
        "inference mode": torch.is_inference_mode_enabled(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    return random_states, modes
